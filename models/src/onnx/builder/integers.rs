//! Products and convolutions of numbers that were codes, and whose results become codes, are computed with codes.
//!
//! ```text
//! DequantizeLinear ─┐
//! DequantizeLinear ─┴─> MatMul, Gemm or Conv ─> Relu, if any ─> QuantizeLinear  becomes QLinearMatMul or QLinearConv
//! ```
//! Nodes between the two that only move numbers, whose results become the codes that they were, move codes.
//!
//! This is what quantisers mean by these nodes, and how ONNX Runtime runs them. Sums of products of codes are exact. The
//! separate nodes round each number and each sum, so where a result lies close to the middle of two codes, they may give
//! the neighbour of the code that is nearest.
//!
//! A bias is taken over where it is quantised by the product of both scales, which are the units of the sums. A Relu
//! changes nothing where the least code stands for zero, since results below it become that code anyway.

use std::collections::HashMap;

use convoke_graph::graph::{Attrs, Function, Literal, Node, TensorType, ValueId};
use convoke_graph::ops::attrs::{GemmAttrs, Granularity, ParameterShape, QuantiseAttrs};
use convoke_graph::ops::{
    ConvOp, IndexOp, MatMulOp, MovementOp, Op, PoolOp, QuantisedOp, ShapeOp, SliceOp, UnaryOp,
};
use convoke_graph::{DType, Tensor};

use super::Builder;

/// The definitions and the number of uses of all values.
struct Index {
    /// The node that defines a value.
    def: Vec<Option<usize>>,
    uses: Vec<u32>,
    /// The place of the literal that defines a value.
    literals: HashMap<ValueId, usize>,
}

impl Index {
    fn new(f: &Function) -> Index {
        let mut def = vec![None; f.values.len()];
        let mut uses = vec![0; f.values.len()];
        for (at, node) in f.nodes.iter().enumerate() {
            node.outputs.iter().for_each(|o| def[o.ix()] = Some(at));
            node.inputs.iter().flatten().for_each(|i| uses[i.ix()] += 1);
        }
        f.results.iter().for_each(|(_, v)| uses[v.ix()] += 1);
        let literals = f.literals.iter().enumerate();
        Index {
            def,
            uses,
            literals: literals.map(|(at, (v, _))| (*v, at)).collect(),
        }
    }

    /// The node that defines `v`.
    fn node<'f>(&self, f: &'f Function, v: ValueId) -> Option<(usize, &'f Node)> {
        let at = (*self.def.get(v.ix())?)?;
        Some((at, &f.nodes[at]))
    }

    fn inline<'f>(&self, f: &'f Function, v: ValueId) -> Option<&'f Tensor> {
        match &f.literals[*self.literals.get(&v)?].1 {
            Literal::Inline(t) => Some(t),
            Literal::Range { .. } => None,
        }
    }

    fn numbers<'f>(&self, f: &'f Function, v: ValueId) -> Option<&'f [f32]> {
        self.inline(f, v)?.as_slice().ok()
    }
}

/// Codes with their scale and zero point; `None` stands for zero.
#[derive(Clone, Copy)]
struct Codes {
    codes: ValueId,
    scale: ValueId,
    zero: Option<ValueId>,
}

/// The node that takes the place of the one that quantises a result.
struct Product {
    /// The nodes that it replaces; the first gives it its name and attributes, the last its place.
    of: Vec<usize>,
    op: QuantisedOp,
    x: Codes,
    w: Codes,
    y: Codes,
    bias: Option<ValueId>,
    /// Whether `w` is the transpose of the right operand.
    transposed: bool,
}

/// A node that moves numbers, between the node that makes them of codes and the one that makes codes of them.
struct Movement {
    /// The node that moves.
    node: usize,
    /// The node that makes codes, whose place it takes.
    encodes: usize,
    /// The codes that it moves.
    codes: ValueId,
}

fn operand(node: &Node, i: usize) -> Option<ValueId> {
    node.inputs.get(i).copied().flatten()
}

/// Whether codes have eight bits.
fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::U8)
}

/// The parameters of a node that goes between codes and numbers, and their granularity.
fn parameters(f: &Function, node: &Node, codes: ValueId) -> Option<(Codes, Granularity)> {
    let scale = operand(node, 1)?;
    let attrs = QuantiseAttrs::new(&node.attrs).ok()?;
    let shape = f.ty(scale).fixed_shape()?;
    let rank = f.ty(codes).shape.len();
    let granularity = attrs.granularity(rank, ParameterShape::of(&shape)).ok()?;
    let is_f32 =
        f.ty(scale).dtype == DType::F32 && matches!(attrs.precision, None | Some(DType::F32));
    let codes = Codes {
        codes,
        scale,
        zero: operand(node, 2),
    };
    is_f32.then_some((codes, granularity))
}

/// The codes whose numbers `v` has, with their granularity.
fn dequantised(f: &Function, ix: &Index, v: ValueId) -> Option<(Codes, Granularity)> {
    let (_, node) = ix.node(f, v)?;
    if !node.is(QuantisedOp::DequantizeLinear) || f.ty(v).dtype != DType::F32 {
        return None;
    }
    parameters(f, node, operand(node, 0)?)
}

/// The codes of the bias whose numbers `v` has, if they are in units of both scales. Scales that are too large to be part of
/// the graph cannot be looked at: one for each filter is what quantisers write.
fn bias(f: &Function, ix: &Index, v: ValueId, x: &Codes, w: &Codes) -> Option<ValueId> {
    let (own, _) = dequantised(f, ix, v)?;
    // ONNX has no other zero point for these codes.
    if f.ty(own.codes).dtype != DType::I32 {
        return None;
    }
    let numbers = |v| ix.numbers(f, v).filter(|all| !all.is_empty());
    let fits = match (numbers(own.scale), numbers(x.scale), numbers(w.scale)) {
        (Some(own), Some([x]), Some(w)) => (0..own.len().max(w.len())).all(|i| {
            let unit = x * w[i % w.len()];
            (own[i % own.len()] - unit).abs() <= unit.abs() * 1e-6
        }),
        _ => {
            let constant = |v| ix.literals.contains_key(&v);
            let all = [own.scale, x.scale, w.scale];
            all.into_iter().all(constant) && f.ty(own.scale).shape == f.ty(w.scale).shape
        }
    };
    fits.then_some(own.codes)
}

/// Whether the least code of `y` stands for zero.
fn saturates_at_zero(f: &Function, ix: &Index, y: &Codes, dtype: DType) -> bool {
    let least = if dtype == DType::I8 { -128 } else { 0 };
    match y.zero {
        None => dtype == DType::U8,
        Some(zero) => {
            let zeros = ix.inline(f, zero).and_then(Tensor::to_i64s);
            zeros.is_some_and(|zeros| zeros.iter().all(|z| *z == least))
        }
    }
}

/// The product whose results node `at` quantises.
fn find(f: &Function, ix: &Index, at: usize) -> Option<Product> {
    let node = &f.nodes[at];
    if !node.is(QuantisedOp::QuantizeLinear) {
        return None;
    }
    let out = *node.outputs.first()?;
    let (mut y, granularity) = parameters(f, node, out)?;
    let dtype = f.ty(out).dtype;
    if granularity != Granularity::Tensor || !is_byte(dtype) {
        return None;
    }
    let once = |v: ValueId| (ix.uses[v.ix()] == 1).then_some(v);
    let (mut product, mut inner) = ix.node(f, once(operand(node, 0)?)?)?;
    let mut of = vec![at];
    if inner.is(UnaryOp::Relu) && saturates_at_zero(f, ix, &y, dtype) {
        of.insert(0, product);
        (product, inner) = ix.node(f, once(operand(inner, 0)?)?)?;
    }
    of.insert(0, product);
    let (is_conv, is_gemm) = (inner.is(ConvOp::Conv), inner.is(MatMulOp::Gemm));
    if !is_conv && !is_gemm && !inner.is(MatMulOp::MatMul) {
        return None;
    }
    let gemm = GemmAttrs::new(&inner.attrs);
    if is_gemm && (gemm.trans_a || (gemm.alpha, gemm.beta) != (1.0, 1.0)) {
        return None;
    }
    let transposed = is_gemm && gemm.trans_b;
    let (x, x_granularity) = dequantised(f, ix, operand(inner, 0)?)?;
    let (w, w_granularity) = dequantised(f, ix, operand(inner, 1)?)?;
    let rank = f.ty(w.codes).shape.len();
    let fits = match w_granularity {
        Granularity::Tensor => true,
        Granularity::Axis(axis) if is_conv || transposed => axis == 0,
        Granularity::Axis(axis) => rank >= 2 && axis + 1 == rank,
        _ => false,
    };
    let bytes = [x.codes, w.codes].iter().all(|v| is_byte(f.ty(*v).dtype));
    if x_granularity != Granularity::Tensor || !fits || !bytes {
        return None;
    }
    let bias = match operand(inner, 2) {
        None => None,
        // A number for each column, or each filter.
        Some(v) if f.ty(v).shape.len() == 1 => Some(bias(f, ix, v, &x, &w)?),
        Some(_) => return None,
    };
    if let (true, Some(bias)) = (is_gemm, bias) {
        let columns = f.ty(operand(inner, 1)?).shape.get(usize::from(!transposed));
        if columns != f.ty(bias).shape.first() {
            return None;
        }
    }
    y.codes = out;
    Some(Product {
        of,
        op: match is_conv {
            true => QuantisedOp::QLinearConv,
            false => QuantisedOp::QLinearMatMul,
        },
        x,
        w,
        y,
        bias,
        transposed,
    })
}

/// Whether a node only moves the numbers of its first operand, or chooses the greatest of them.
fn moves(node: &Node) -> bool {
    const OPS: [Op; 9] = [
        Op::Movement(MovementOp::Transpose),
        Op::Shape(ShapeOp::Reshape),
        Op::Shape(ShapeOp::Flatten),
        Op::Shape(ShapeOp::Squeeze),
        Op::Shape(ShapeOp::Unsqueeze),
        Op::Slice(SliceOp::Slice),
        Op::Slice(SliceOp::Expand),
        Op::Index(IndexOp::Gather),
        Op::Pool(PoolOp::MaxPool),
    ];
    node.outputs.len() == 1 && OPS.iter().any(|op| node.is(*op))
}

/// Whether two values hold the same single number.
fn same_number(f: &Function, ix: &Index, a: ValueId, b: ValueId) -> bool {
    a == b
        || matches!((ix.inline(f, a), ix.inline(f, b)), (Some(a), Some(b))
            if a.dtype() == b.dtype() && a.bytes() == b.bytes())
}

/// Whether the codes have one scale, and quantising their numbers with it gives the same codes: neither scale nor
/// numbers underflow.
fn returns(f: &Function, ix: &Index, codes: &Codes) -> bool {
    matches!(ix.numbers(f, codes.scale), Some([scale]) if (1e-30..1e30).contains(scale))
}

/// The movement whose results node `at` makes codes of, with the scale and the zero point that they had.
fn find_movement(f: &Function, ix: &Index, at: usize) -> Option<Movement> {
    let node = &f.nodes[at];
    if !node.is(QuantisedOp::QuantizeLinear) {
        return None;
    }
    let out = *node.outputs.first()?;
    let (to, granularity) = parameters(f, node, out)?;
    let value = operand(node, 0).filter(|v| ix.uses[v.ix()] == 1)?;
    let (inner_at, inner) = ix.node(f, value)?;
    if !moves(inner) {
        return None;
    }
    let (from, own) = dequantised(f, ix, operand(inner, 0)?)?;
    let dtype = f.ty(out).dtype;
    let zeros = match (from.zero, to.zero) {
        (None, None) => true,
        (Some(a), Some(b)) => same_number(f, ix, a, b),
        _ => false,
    };
    let fits = (own, granularity) == (Granularity::Tensor, Granularity::Tensor)
        && is_byte(dtype)
        && f.ty(from.codes).dtype == dtype
        && zeros
        && same_number(f, ix, from.scale, to.scale)
        && returns(f, ix, &from);
    fits.then_some(Movement {
        node: inner_at,
        encodes: at,
        codes: from.codes,
    })
}

/// Moves codes instead of numbers.
fn move_codes(f: &mut Function, ix: &mut Index) -> Vec<usize> {
    let found: Vec<Movement> = (0..f.nodes.len())
        .filter_map(|at| find_movement(f, ix, at))
        .collect();
    let mut replaced = vec![];
    for m in found {
        let encodes = &f.nodes[m.encodes];
        let (outputs, runs_at) = (encodes.outputs.clone(), encodes.runs_at);
        for v in encodes.inputs.iter().flatten() {
            ix.uses[v.ix()] -= 1;
        }
        let mut node = Node {
            outputs,
            runs_at,
            ..f.nodes[m.node].clone()
        };
        if let Some(first) = node.inputs.first_mut() {
            *first = Some(m.codes);
        }
        for v in node.inputs.iter().flatten() {
            ix.uses[v.ix()] += 1;
        }
        f.nodes[m.encodes] = node;
        replaced.extend([m.node, m.encodes]);
    }
    replaced
}

/// The zero point of codes.
fn zero(b: &mut Builder, codes: &Codes) -> ValueId {
    let dtype = b.f.ty(codes.codes).dtype;
    let name = format!("{}:zero", b.f.value(codes.codes).name);
    codes.zero.unwrap_or_else(|| {
        let zero = match dtype {
            DType::I8 => Tensor::scalar(0i8),
            _ => Tensor::scalar(0u8),
        };
        b.literal(&name, zero)
    })
}

/// Puts the transposition of a matrix of codes in the place of node `at`, which another replaces.
fn transpose(f: &mut Function, ix: &mut Index, at: usize, codes: ValueId) -> ValueId {
    let name: std::sync::Arc<str> = format!("{}:transposed", f.value(codes).name).into();
    let TensorType { dtype, mut shape } = f.ty(codes).clone();
    shape.reverse();
    let out = f.add_value(name.clone(), TensorType::new(dtype, shape));
    for v in f.nodes[at].inputs.iter().flatten() {
        ix.uses[v.ix()] -= 1;
    }
    ix.uses[codes.ix()] += 1;
    let node = &mut f.nodes[at];
    *node = Node {
        name,
        op: MovementOp::Transpose.name().into(),
        attrs: Attrs::default(),
        inputs: vec![Some(codes)],
        outputs: vec![out],
        runs_at: node.runs_at,
    };
    out
}

/// Replaces all products that can be computed with codes. The function's types are known.
pub(in crate::onnx) fn fuse(b: &mut Builder) {
    if !b.f.nodes.iter().any(|n| n.is(QuantisedOp::QuantizeLinear)) {
        return;
    }
    let mut ix = Index::new(&b.f);
    let mut replaced = move_codes(&mut b.f, &mut ix);
    let found: Vec<Product> = (0..b.f.nodes.len())
        .filter_map(|at| find(&b.f, &ix, at))
        .collect();
    for mut p in found {
        let zeros = [&p.x, &p.w, &p.y].map(|codes| zero(b, codes));
        let [first, .., last] = p.of[..] else {
            continue;
        };
        let Node { name, attrs, .. } = b.f.nodes[first].clone();
        let attrs = match p.op {
            QuantisedOp::QLinearConv => attrs,
            _ => Attrs::default(),
        };
        if p.transposed {
            p.w.codes = transpose(&mut b.f, &mut ix, first, p.w.codes);
        }
        let mut inputs = vec![];
        for (codes, zero) in [&p.x, &p.w].into_iter().zip(zeros) {
            inputs.extend([codes.codes, codes.scale, zero].map(Some));
        }
        inputs.extend([p.y.scale, zeros[2]].map(Some));
        inputs.extend(p.bias.map(Some));
        let node = &mut b.f.nodes[last];
        for v in node.inputs.iter().flatten() {
            ix.uses[v.ix()] -= 1;
        }
        ix.uses.resize(b.f.values.len(), 0);
        for v in inputs.iter().flatten() {
            ix.uses[v.ix()] += 1;
        }
        *node = Node {
            name,
            op: p.op.name().into(),
            attrs,
            inputs,
            outputs: node.outputs.clone(),
            runs_at: node.runs_at,
        };
        replaced.extend(p.of);
    }
    remove_unused(&mut b.f, &mut ix, &replaced);
}

/// Removes the nodes that were replaced, and what only they needed of the nodes that make numbers of codes.
fn remove_unused(f: &mut Function, ix: &mut Index, replaced: &[usize]) {
    let mut candidate = vec![false; f.nodes.len()];
    replaced.iter().for_each(|at| candidate[*at] = true);
    let mut kept = vec![true; f.nodes.len()];
    for at in (0..f.nodes.len()).rev() {
        let node = &f.nodes[at];
        let unused = node.outputs.iter().all(|o| ix.uses[o.ix()] == 0);
        let goes = candidate[at] || node.is(QuantisedOp::DequantizeLinear);
        if unused && goes {
            kept[at] = false;
            node.inputs
                .iter()
                .flatten()
                .for_each(|i| ix.uses[i.ix()] -= 1);
        }
    }
    let mut kept = kept.into_iter();
    f.nodes.retain(|_| kept.next().unwrap_or(true));
}
