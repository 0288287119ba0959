//! Lays out constant operands of matrix products, convolutions and recurrent layers, codes among them, once, at
//! install, in the form that the kernels read. A weight of a product or convolution stays in its dtype: the kernels
//! widen 16-bit weights themselves. A weight with several users of one form is packed once.

use std::collections::BTreeMap;

use convoke_graph::graph::{Attr, Attrs, Function, Node, TensorType, ValueId};
use convoke_graph::ops::attrs::{
    BlockWeightAttrs, PackCodesAttrs, RecurrentAttrs, packed_recurrent_len,
};
use convoke_graph::ops::{
    FusedOp, MovementOp, Op, QuantisedOp, RecurrentOp, ShapeOp, UnaryOp, packing,
};
use convoke_graph::{DType, Tensor};

use super::edit::Edit;
use super::pass;

/// Runs the pass.
pub fn run(f: Function) -> (Function, Option<String>) {
    let mut e = Edit::new(f);
    let mut packed = BTreeMap::new();
    let mut nodes = 0;
    for i in 0..e.f.nodes.len() {
        let done = match e.f.nodes[i].kind() {
            Some(Op::Fused(FusedOp::FusedGemm)) => gemm(&mut e, i, &mut packed),
            Some(Op::Fused(FusedOp::FusedConv)) => conv(&mut e, i, &mut packed),
            Some(Op::Quantised(QuantisedOp::MatMulNBits) | Op::Fused(FusedOp::MatMulNBitsInt8)) => {
                blocks(&mut e, i, &mut packed)
            }
            Some(Op::Recurrent(op)) => recurrent(&mut e, i, op, &mut packed),
            _ => None,
        };
        nodes += usize::from(done.is_some());
    }
    let report = (nodes > 0).then(|| {
        format!(
            "{} for {}",
            pass::count(packed.len(), "weight"),
            pass::count(nodes, "node")
        )
    });
    (e.finish(), report)
}

/// How a packed value is read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    /// A matrix, or its transpose.
    Matrix { trans: bool },
    /// The filters of this many groups.
    Filters { groups: i64 },
    /// The parts of a recurrent layer, as decimal digits.
    Parts(i64),
    /// Codes of this many bits, of this many columns.
    Codes { bits: usize, n: usize },
    /// Parameters of this many blocks in each of this many columns.
    Parameters { n: usize, blocks: usize },
}

/// Packed values, by raw value and form.
type PackedWeights = BTreeMap<(ValueId, Form), ValueId>;

/// Returns the node that computes a constant, and its first operand.
fn source(e: &Edit, v: ValueId) -> Option<(&Node, ValueId)> {
    let node = e.def(v).filter(|_| e.is_constant(v))?;
    Some((&e.f.nodes[node], e.operand(node, 0)?))
}

/// If `v` is widened from a half type, which products and packing do themselves, returns the half value.
fn widened(e: &Edit, v: ValueId) -> Option<ValueId> {
    let (node, from) = source(e, v)?;
    let half = matches!(e.f.ty(from).dtype, DType::F16 | DType::BF16);
    (node.is(UnaryOp::Cast) && half && e.f.ty(v).dtype == DType::F32).then_some(from)
}

/// If `v` is the transpose of a matrix, which packing does itself, returns that matrix.
fn transposed(e: &Edit, v: ValueId) -> Option<ValueId> {
    let (node, from) = source(e, v)?;
    let swaps = node.attrs.ints("perm").is_none_or(|p| p == [1, 0]) && e.f.ty(v).shape.len() == 2;
    (node.is(MovementOp::Transpose) && swaps).then_some(from)
}

fn gemm(e: &mut Edit, node: usize, packed: &mut PackedWeights) -> Option<()> {
    let weight = raw_weight(e, node)?;
    let [k, n] = e.f.ty(weight).fixed_shape()?[..] else {
        return None;
    };
    let len = packing::packed_gemm_len(k, n)?;
    let mut from = weight;
    let mut trans = false;
    // Look through a widening and a transposition, in either order.
    for _ in 0..2 {
        if let Some(v) = widened(e, from) {
            from = v;
        }
        if let Some(v) = transposed(e, from).filter(|_| !trans) {
            (from, trans) = (v, true);
        }
    }
    let attrs = match trans {
        true => Attrs::default().with("trans", Attr::Int(1)),
        false => Attrs::default(),
    };
    let operand = pack(
        e,
        node,
        packed,
        (from, Form::Matrix { trans }),
        FusedOp::PackGemmB,
        attrs,
        len,
    );
    let node = &mut e.f.nodes[node];
    node.inputs[1] = Some(operand);
    let attrs = std::mem::take(&mut node.attrs);
    node.attrs = attrs
        .with("packed", Attr::Int(1))
        .with("k", Attr::Int(i64::try_from(k).ok()?))
        .with("n", Attr::Int(i64::try_from(n).ok()?));
    Some(())
}

fn conv(e: &mut Edit, node: usize, packed: &mut PackedWeights) -> Option<()> {
    let weight = raw_weight(e, node)?;
    let shape = e.f.ty(weight).fixed_shape()?;
    let group = e.f.nodes[node].attrs.int("group", 1);
    let (m, per_group) = (*shape.first()?, *shape.get(1)?);
    if per_group == 1 && group > 1 {
        // Depthwise kernels read the weights without packing.
        return None;
    }
    let volume = shape[2..]
        .iter()
        .try_fold(1usize, |n, d| n.checked_mul(*d))?;
    let len = packing::packed_conv_len(m, per_group, volume, usize::try_from(group).ok()?)?;
    let from = widened(e, weight).unwrap_or(weight);
    let attrs = Attrs::default().with("group", Attr::Int(group));
    let operand = pack(
        e,
        node,
        packed,
        (from, Form::Filters { groups: group }),
        FusedOp::PackConvW,
        attrs,
        len,
    );
    let node = &mut e.f.nodes[node];
    node.inputs[1] = Some(operand);
    node.attrs = std::mem::take(&mut node.attrs).with("packed", Attr::Int(1));
    Some(())
}

/// Packs both weights of a recurrent layer, if they are constants.
fn recurrent(e: &mut Edit, node: usize, op: RecurrentOp, packed: &mut PackedWeights) -> Option<()> {
    let attrs = RecurrentAttrs::new(op, &e.f.nodes[node].attrs).ok()?;
    let weights = [1, 2].map(|i| e.operand(node, i).filter(|v| e.is_constant(*v)));
    let [w, r] = [weights[0]?, weights[1]?];
    let (w_shape, r_shape) = (e.f.ty(w).fixed_shape()?, e.f.ty(r).fixed_shape()?);
    let (&[directions, _, input], &[_, _, hidden]) = (&w_shape[..], &r_shape[..]) else {
        return None;
    };
    let narrow = |v: ValueId| matches!(e.f.ty(v).dtype, DType::F32 | DType::F16 | DType::BF16);
    if attrs.packed.is_some() || !narrow(w) || !narrow(r) {
        return None;
    }
    let gates = [op.gates()];
    let mut operands = [w, r];
    for (operand, parts, k) in [
        (0, &gates[..], input),
        (1, attrs.recurrent_parts(op), hidden),
    ] {
        let from = operands[operand];
        let key = parts.iter().fold(0, |key, p| key * 10 + *p as i64);
        let parts_of = Attr::Ints(parts.iter().map(|p| *p as i64).collect());
        let attrs = Attrs::default().with("parts", parts_of);
        let len = packed_recurrent_len(directions, parts, hidden, k)?;
        operands[operand] = pack(
            e,
            node,
            packed,
            (from, Form::Parts(key)),
            FusedOp::PackRecurrent,
            attrs,
            len,
        );
    }
    let node = &mut e.f.nodes[node];
    node.inputs[1] = Some(operands[0]);
    node.inputs[2] = Some(operands[1]);
    node.attrs = std::mem::take(&mut node.attrs)
        .with("hidden_size", Attr::Int(i64::try_from(hidden).ok()?))
        .with("packed_input_size", Attr::Int(i64::try_from(input).ok()?));
    Some(())
}

/// Packs the codes of a product by blocks, and turns their parameters, if all are constants.
fn blocks(e: &mut Edit, node: usize, packed: &mut PackedWeights) -> Option<()> {
    let attrs = BlockWeightAttrs::new(&e.f.nodes[node].attrs).ok()?;
    let constant = |e: &Edit, i: usize| e.operand(node, i).filter(|v| e.is_constant(*v));
    let (codes, scales, zeros) = (constant(e, 1)?, constant(e, 2)?, e.operand(node, 3));
    if attrs.packed || zeros.is_some_and(|v| !e.is_constant(v)) {
        return None;
    }
    // Refuse weights that cannot be packed before anything changes.
    let form = PackCodesAttrs {
        bits: attrs.bits,
        n: attrs.n,
    };
    let len = |e: &Edit, v: ValueId| {
        let ty = e.f.ty(v);
        let elements = ty
            .fixed_shape()?
            .iter()
            .try_fold(1usize, |n, d| n.checked_mul(*d))?;
        let rows = form.rows(ty.dtype, elements).ok()?;
        packing::packed_codes_len(form.bits, rows, form.n)
    };
    let are_codes = zeros.map(|v| e.f.ty(v).dtype == DType::U8);
    let code_len = len(e, codes)?;
    let zero_len = match (zeros, are_codes) {
        (Some(v), Some(true)) => len(e, v)?,
        _ => 0,
    };
    e.f.ty(scales).fixed_shape()?;
    let lay_out = |e: &mut Edit, packed: &mut PackedWeights, v: ValueId, len: usize| {
        let attrs = Attrs::default()
            .with("bits", Attr::Int(form.bits as i64))
            .with("N", Attr::Int(form.n as i64));
        pack(
            e,
            node,
            packed,
            (
                v,
                Form::Codes {
                    bits: form.bits,
                    n: form.n,
                },
            ),
            FusedOp::PackCodes,
            attrs,
            len,
        )
    };
    let codes = lay_out(e, packed, codes, code_len);
    let zeros = match (zeros, are_codes) {
        (Some(v), Some(true)) => Some(lay_out(e, packed, v, zero_len)),
        (Some(v), _) => Some(block_by_block(e, node, packed, v, &attrs)?),
        (None, _) => None,
    };
    let scales = block_by_block(e, node, packed, scales, &attrs)?;
    let node = &mut e.f.nodes[node];
    (node.inputs[1], node.inputs[2]) = (Some(codes), Some(scales));
    if let Some(zeros) = zeros {
        node.inputs[3] = Some(zeros);
    }
    node.attrs = std::mem::take(&mut node.attrs).with("packed", Attr::Int(1));
    Some(())
}

/// Parameters of blocks, column by column, as those of columns, block by block.
fn block_by_block(
    e: &mut Edit,
    at: usize,
    packed: &mut PackedWeights,
    v: ValueId,
    attrs: &BlockWeightAttrs,
) -> Option<ValueId> {
    let (n, blocks, dtype) = (attrs.n, attrs.blocks(), e.f.ty(v).dtype);
    let key = (v, Form::Parameters { n, blocks });
    if let Some(turned) = packed.get(&key) {
        return Some(*turned);
    }
    let name = e.f.value(v).name.clone();
    let sizes = Tensor::from_slice(&[2], &[n as i64, blocks as i64]).ok()?;
    let shape = e.constant(&format!("{name}:blocks"), sizes);
    let (columns, turned) = (format!("{name}:columns"), format!("{name}:turned"));
    let ty = TensorType::fixed(dtype, &[n, blocks]);
    let v = e.init_node(
        at,
        &columns,
        ShapeOp::Reshape,
        Attrs::default(),
        &[v, shape],
        ty,
    );
    let ty = TensorType::fixed(dtype, &[blocks, n]);
    let transpose = MovementOp::Transpose;
    let turned = e.init_node(at, &turned, transpose, Attrs::default(), &[v], ty);
    packed.insert(key, turned);
    Some(turned)
}

/// Returns the constant weight of a fused node if it is not packed yet.
fn raw_weight(e: &Edit, node: usize) -> Option<ValueId> {
    let raw = e.f.nodes[node].attrs.int("packed", 0) == 0;
    let weight = e.operand(node, 1).filter(|v| raw && e.is_constant(*v))?;
    let dtype = e.f.ty(weight).dtype;
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16).then_some(weight)
}

fn pack(
    e: &mut Edit,
    at: usize,
    packed: &mut PackedWeights,
    key: (ValueId, Form),
    op: FusedOp,
    attrs: Attrs,
    len: usize,
) -> ValueId {
    if let Some(v) = packed.get(&key) {
        return *v;
    }
    let name = format!("{}:packed", e.f.value(key.0).name);
    let dtype = match op {
        FusedOp::PackRecurrent => DType::F32,
        FusedOp::PackCodes => DType::U8,
        _ => e.f.ty(key.0).dtype,
    };
    let ty = TensorType::fixed(dtype, &[len]);
    let v = e.init_node(at, &name, op, attrs, &[key.0], ty);
    packed.insert(key, v);
    v
}
