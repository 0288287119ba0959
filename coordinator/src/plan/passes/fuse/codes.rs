//! Dequantised weights of products, and tables that are looked up: they stay codes, of which each step makes numbers a
//! part at a time. The numbers are those of the separate op, so no bit changes.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, Node, TensorType, ValueId};
use convoke_graph::ops::attrs::{Granularity, ParameterShape, QuantiseAttrs};
use convoke_graph::ops::{MovementOp, QuantisedOp, SliceOp, UnaryOp};
use convoke_graph::tensor::Tensor;

use crate::passes::edit::Edit;

/// The weights of a product as operands of `MatMulNBits`.
pub struct CodedWeights {
    pub attrs: Attrs,
    pub codes: ValueId,
    pub scales: ValueId,
    pub zeros: Option<ValueId>,
}

/// The blocks of weights `[k, n]`, and the node that the nodes which bring them in order stand before.
struct Blocks {
    at: usize,
    /// Whether the weights are `[n, k]`.
    trans: bool,
    n: usize,
    /// Blocks of a column.
    count: usize,
}

/// The fewest elements of a block whose weights stay codes.
const LEAST_BLOCK: usize = 16;

/// Returns the codes of matrix `b` if it is a constant that is dequantised for node `at` alone. With `trans` it is
/// `[n, k]`.
pub fn find(e: &mut Edit, at: usize, b: ValueId, trans: bool) -> Option<CodedWeights> {
    let (node, trans) = dequantisation(e, b, trans)?;
    let (w, scales, zeros) = (e.operand(node, 0)?, e.operand(node, 1)?, e.operand(node, 2));
    let (bits, signed) = match e.f.ty(w).dtype {
        DType::U8 => (8, false),
        DType::I8 => (8, true),
        DType::U4 => (4, false),
        DType::I4 => (4, true),
        DType::U2 => (2, false),
        DType::I2 => (2, true),
        _ => return None,
    };
    let [rows, cols] = e.f.ty(w).fixed_shape()?[..] else {
        return None;
    };
    let (k_axis, (k, n)) = if trans {
        (1, (cols, rows))
    } else {
        (0, (rows, cols))
    };
    let attrs = QuantiseAttrs::new(&e.f.nodes[node].attrs).ok()?;
    let shape = e.f.ty(scales).fixed_shape()?;
    let block = match attrs.granularity(2, ParameterShape::of(&shape)).ok()? {
        Granularity::Tensor => k,
        Granularity::Axis(axis) if axis != k_axis => k,
        Granularity::Blocks { axis, size } if axis == k_axis && k.is_multiple_of(size) => size,
        _ => return None,
    };
    // Columns and blocks begin with a whole byte. The parameters of small blocks would take more memory than the
    // numbers.
    let whole = block > 0 && n > 0 && (block * bits).is_multiple_of(8);
    let pays = block >= LEAST_BLOCK || block == k;
    let counts = [k, n].iter().all(|size| i32::try_from(*size).is_ok());
    if !whole || !pays || !counts || e.f.ty(scales).dtype != DType::F32 {
        return None;
    }
    let count = k / block;
    let blocks = Blocks {
        at,
        trans,
        n,
        count,
    };
    let zeros = match (zeros, signed) {
        (Some(zeros), true) => Some(blocks.parameters(e, zeros, DType::I8)?),
        (Some(zeros), false) => Some(blocks.parameters(e, zeros, DType::F32)?),
        // The middle of signed codes is 0.
        (None, true) => None,
        (None, false) => {
            let zero = e.constant(&format!("{}:zero", e.f.value(w).name), Tensor::scalar(0f32));
            Some(blocks.parameters(e, zero, DType::F32)?)
        }
    };
    let size = |n: usize| i64::try_from(n).ok().map(Attr::Int);
    Some(CodedWeights {
        attrs: Attrs::default()
            .with("K", size(k)?)
            .with("N", size(n)?)
            .with("bits", size(bits)?)
            .with("block_size", size(block)?),
        codes: if trans {
            w
        } else {
            transposed(e, at, w, [n, k])
        },
        scales: blocks.parameters(e, scales, DType::F32)?,
        zeros,
    })
}

/// If node `at` gathers slices of a constant table that is dequantised by one scale for it alone, makes it gather
/// codes, and dequantises what it gathered.
pub fn gather(e: &mut Edit, at: usize) -> Option<()> {
    let table = e.operand(at, 0)?;
    let node = definition(e, table).filter(|n| e.f.nodes[*n].is(QuantisedOp::DequantizeLinear))?;
    let (w, scale, zero) = (e.operand(node, 0)?, e.operand(node, 1)?, e.operand(node, 2));
    // Codes of fewer bits are spread over a byte each where elements move, all of them in each step.
    let dtype = e.f.ty(w).dtype;
    let attrs = QuantiseAttrs::new(&e.f.nodes[node].attrs).ok()?;
    let parameters = ParameterShape::of(&e.f.ty(scale).fixed_shape()?);
    let granularity = attrs.granularity(e.f.ty(w).shape.len(), parameters).ok()?;
    if !matches!(dtype, DType::U8 | DType::I8) || granularity != Granularity::Tensor {
        return None;
    }
    let out = e.f.nodes[at].outputs[0];
    let ty = TensorType::new(dtype, e.f.ty(out).shape.clone());
    let codes = e.value(&format!("{}:codes", e.f.value(out).name), ty, false);
    let dequantise = Node {
        op: e.f.nodes[node].op.clone(),
        attrs: match attrs.output_dtype {
            Some(dtype) => Attrs::default().with("output_dtype", Attr::DType(dtype)),
            None => Attrs::default(),
        },
        inputs: [Some(codes), Some(scale)]
            .into_iter()
            .chain(zero.map(Some))
            .collect(),
        ..e.f.nodes[at].clone()
    };
    let mut gather = std::mem::replace(&mut e.f.nodes[at], dequantise);
    gather.name = format!("{}:codes", gather.name).into();
    gather.inputs[0] = Some(w);
    gather.outputs = vec![codes];
    e.insert(at, gather);
    Some(())
}

/// Returns the node that computes constant `v`, if `v` is used once.
fn definition(e: &Edit, v: ValueId) -> Option<usize> {
    e.def(v)
        .filter(|_| e.sole_user(v).is_some() && e.is_constant(v))
}

/// Returns the node that dequantises `b`, perhaps before a transposition, and whether its result is `[n, k]`.
fn dequantisation(e: &Edit, b: ValueId, trans: bool) -> Option<(usize, bool)> {
    let node = definition(e, b)?;
    if e.f.nodes[node].is(QuantisedOp::DequantizeLinear) {
        return Some((node, trans));
    }
    let swaps = e.f.nodes[node]
        .attrs
        .ints("perm")
        .is_none_or(|p| p == [1, 0]);
    if !e.f.nodes[node].is(MovementOp::Transpose) || !swaps {
        return None;
    }
    let inner = definition(e, e.operand(node, 0)?)?;
    let dequantises = e.f.nodes[inner].is(QuantisedOp::DequantizeLinear);
    dequantises.then_some((inner, !trans))
}

impl Blocks {
    /// Scales or zero points of `dtype`, one for each block of each column, column by column.
    fn parameters(&self, e: &mut Edit, v: ValueId, dtype: DType) -> Option<ValueId> {
        let shape = e.f.ty(v).fixed_shape()?;
        let all = self.n.checked_mul(self.count)?;
        let is_all = shape.iter().product::<usize>() == all;
        // One number that has axes, as [1, 1], does not expand to a list.
        if !is_all && shape.len() > 1 {
            return None;
        }
        let name = e.f.value(v).name.clone();
        let mut v = v;
        if e.f.ty(v).dtype != dtype {
            let attrs = Attrs::default().with("to", Attr::DType(dtype));
            let ty = TensorType::fixed(dtype, &shape);
            v = e.init_node(
                self.at,
                &format!("{name}:number"),
                UnaryOp::Cast,
                attrs,
                &[v],
                ty,
            );
        }
        if shape.len() == 2 && self.count > 1 && !self.trans {
            return Some(transposed(e, self.at, v, [self.n, self.count]));
        }
        if is_all {
            return Some(v);
        }
        let dims = Tensor::from_slice(&[1], &[i64::try_from(all).ok()?]).ok()?;
        let dims = e.constant(&format!("{name}:dims"), dims);
        let ty = TensorType::fixed(dtype, &[all]);
        let attrs = Attrs::default();
        let name = format!("{name}:of each column");
        Some(e.init_node(self.at, &name, SliceOp::Expand, attrs, &[v, dims], ty))
    }
}

/// Adds an init node that transposes `v`, whose transpose has this shape.
fn transposed(e: &mut Edit, at: usize, v: ValueId, shape: [usize; 2]) -> ValueId {
    let name = format!("{}:transposed", e.f.value(v).name);
    let attrs = Attrs::default().with("perm", Attr::Ints(vec![1, 0]));
    let ty = TensorType::fixed(e.f.ty(v).dtype, &shape);
    e.init_node(at, &name, MovementOp::Transpose, attrs, &[v], ty)
}
