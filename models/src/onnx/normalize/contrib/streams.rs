//! Gates, and hyper-connections: a residual that is several streams [..., C, H], or flattened [..., C * H].

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::super::builder::Builder;
use super::super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, axis_of, exact, to_dtype, unsupported,
    without_axes,
};
use super::norm::wide;

/// Imports GatedRMSNorm: groups of columns that are divided by their root mean square, times a weight and the activation of
/// a gate.
pub(super) fn gated_rms_norm(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let epsilon = c.take_float("epsilon")?.unwrap_or(1e-5);
    let activation = match c.take_name("activation")?.as_deref() {
        None | Some("silu" | "swish") => "Swish",
        Some("sigmoid") => "Sigmoid",
        Some(_) => return Err(c.wrong("activation", "silu, swish or sigmoid").into()),
    };
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (x, scale, gate) = (c.need(0)?, c.need(1)?, c.need(2)?);
    let mut e = Expansion { b, c: &c };
    let e = &mut e;
    let dtype = e.ty(x)?.dtype;
    let columns = match e.shape(scale)?.as_slice() {
        [columns] => columns.as_const(),
        _ => return Err(c.error("scale must be a list").into()),
    };
    let columns = columns.ok_or_else(|| unsupported("groups of a size that is not known"))?;
    let (x, scale, gate) = (wide(e, x)?, wide(e, scale)?, wide(e, gate)?);
    let shape = e.plain("Shape", &[gate])?;
    let groups = e.reshaped(x, &[-1, columns])?;
    let attrs = axis_of(-1).with("epsilon", Attr::Float(epsilon));
    let normal = e.op("RMSNormalization", attrs, &[groups, scale])?;
    let normal = e.op("Reshape", exact(), &[normal, shape])?;
    let gate = e.plain(activation, &[gate])?;
    let y = e.plain("Mul", &[normal, gate])?;
    Ok(vec![e.last(0, "Cast", to_dtype(dtype), &[y])?])
}

/// Imports LinearAttentionGate: `decay_scale * softplus(a + dt_bias)`, and the sigmoid of `b`.
pub(super) fn linear_attention_gate(b: &mut Builder, c: ImportedNode) -> Outputs {
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (a, bias, scale) = (c.need(0)?, c.need(1)?, c.need(2)?);
    let mut e = Expansion { b, c: &c };
    let dtype = e.ty(a)?.dtype;
    let a = e.cast(a, DType::F32)?;
    let sum = e.plain("Add", &[a, bias])?;
    let bent = e.plain("Softplus", &[sum])?;
    let decay = e.plain("Mul", &[bent, scale])?;
    let mut out = vec![e.last(0, "Cast", to_dtype(dtype), &[decay])?];
    if e.is_read(1) {
        out.push(e.last(1, "Sigmoid", Attrs::default(), &[c.need(3)?])?);
    }
    Ok(out)
}

/// Imports ScaledSiLU: `s * x * sigmoid(s * x)`, computed in f32 and rounded once, where ONNX Runtime rounds each of the three steps.
pub(super) fn scaled_silu(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let alpha = c.take_float("alpha")?.unwrap_or(1.0);
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let x = c.need(0)?;
    let mut e = Expansion { b, c: &c };
    let dtype = e.ty(x)?.dtype;
    let x = e.cast(x, DType::F32)?;
    let scale = match c.input(1) {
        Some(scale) => {
            let scale = e.reshaped(scale, &[])?;
            e.cast(scale, DType::F32)?
        }
        None => e.float("alpha", DType::F32, alpha.into())?,
    };
    let scaled = e.plain("Mul", &[x, scale])?;
    let y = e.plain("Swish", &[scaled])?;
    Ok(vec![e.last(0, "Cast", to_dtype(dtype), &[y])?])
}

/// Streams in f32 as [..., C, H].
struct Streams {
    x: ValueId,
    dtype: DType,
    /// How many dimensions come before the streams.
    leading: usize,
    branches: i64,
}

impl Streams {
    /// Takes operand 0, which is flattened where attribute `num_branches` is above zero.
    fn take(e: &mut Expansion<'_>, branches: i64) -> Result<Streams, ImportFailure> {
        if branches < 0 {
            return Err(e.c.wrong("num_branches", "0 or more").into());
        }
        let x = e.c.need(0)?;
        let (ty, flat) = (e.ty(x)?, branches > 0);
        let own = if flat { 1 } else { 2 };
        let Some(leading) = ty.shape.len().checked_sub(own) else {
            return Err(e.c.error("streams have too few axes").into());
        };
        let x = e.cast(x, DType::F32)?;
        let (x, branches) = match flat {
            true => (grouped(e, x, leading, branches)?, branches),
            false => (x, ty.shape[leading].as_const().unwrap_or(-1)),
        };
        if branches < 1 {
            return Err(unsupported("streams of a number that is not known"));
        }
        Ok(Streams {
            x,
            dtype: ty.dtype,
            leading,
            branches,
        })
    }

    /// Operand `i`, a factor of each stream or of each of its elements, in f32 as [..., C, 1] or [..., C, H].
    fn gate(&self, e: &mut Expansion<'_>, i: usize) -> Made {
        let gate = e.c.need(i)?;
        let shape = e.shape(gate)?;
        let gate = e.cast(gate, DType::F32)?;
        match shape.len().checked_sub(self.leading) {
            Some(2) => Ok(gate),
            Some(1) if shape[self.leading].is(self.branches) => e.unsqueezed(gate, &[-1]),
            Some(1) => grouped(e, gate, self.leading, self.branches),
            _ => Err(e.c.error("a gate must have the axes of the streams").into()),
        }
    }

    /// The last node, which yields `y` in the shape and the dtype of operand 0.
    fn finish(&self, e: &mut Expansion<'_>, y: ValueId) -> Outputs {
        let y = e.cast(y, self.dtype)?;
        let shape = e.plain("Shape", &[e.c.need(0)?])?;
        Ok(vec![e.last(0, "Reshape", exact(), &[y, shape])?])
    }
}

/// `x` [..., C * H], of `leading` axes before the last, as [..., C, H].
fn grouped(e: &mut Expansion<'_>, x: ValueId, leading: usize, branches: i64) -> Made {
    let all = e.shape(x)?;
    let columns = match all.last().and_then(|all| all.as_const()) {
        None => -1,
        Some(all) if all % branches == 0 => all / branches,
        Some(all) => {
            let reason = format!("{all} columns do not divide into {branches} streams");
            return Err(e.c.error(reason).into());
        }
    };
    let mut shape = vec![0; leading];
    shape.extend([branches, columns]);
    e.reshaped(x, &shape)
}

/// Imports BranchwiseRMSNorm: streams that are divided by their root mean square.
pub(super) fn branchwise_norm(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let epsilon = c.take_float("epsilon")?.unwrap_or(1e-5);
    let branches = c.take_int("num_branches")?.unwrap_or(0);
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let mut e = Expansion { b, c: &c };
    let e = &mut e;
    let streams = Streams::take(e, branches)?;
    let axes = e.ints("axes", &[-1])?;
    let squares = e.plain("Mul", &[streams.x, streams.x])?;
    let mean = e.plain("ReduceMean", &[squares, axes])?;
    let epsilon = e.float("epsilon", DType::F32, epsilon.into())?;
    let mean = e.plain("Add", &[mean, epsilon])?;
    let root = e.plain("Sqrt", &[mean])?;
    let mut y = e.plain("Div", &[streams.x, root])?;
    if let Some(scale) = c.input(1) {
        // One list may be the weights of a stream, or of all.
        let columns = e.shape(streams.x)?.last().and_then(|d| d.as_const());
        let scale = match (e.shape(scale)?.as_slice(), columns) {
            ([own], Some(columns)) if !own.is(columns) => {
                e.reshaped(scale, &[streams.branches, columns])?
            }
            _ => scale,
        };
        let scale = e.cast(scale, DType::F32)?;
        y = e.plain("Mul", &[y, scale])?;
    }
    streams.finish(e, y)
}

/// Imports HyperConnectionPreMix: the sum of the streams times their gates.
pub(super) fn pre_mix(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let scale = c.take_float("reduction_scale")?.unwrap_or(1.0);
    let branches = c.take_int("num_branches")?.unwrap_or(0);
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let mut e = Expansion { b, c: &c };
    let e = &mut e;
    let streams = Streams::take(e, branches)?;
    let gate = streams.gate(e, 1)?;
    let parts = e.plain("Mul", &[streams.x, gate])?;
    let axes = e.ints("axes", &[-2])?;
    let mut y = e.op("ReduceSum", without_axes(), &[parts, axes])?;
    if scale != 1.0 {
        let scale = e.float("scale", DType::F32, scale.into())?;
        y = e.plain("Mul", &[y, scale])?;
    }
    Ok(vec![e.last(0, "Cast", to_dtype(streams.dtype), &[y])?])
}

/// Imports HyperConnectionPostMix: the streams, or sums of them by the columns of a matrix, plus a block's result times the
/// gates.
pub(super) fn post_mix(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let branches = c.take_int("num_branches")?.unwrap_or(0);
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let mut e = Expansion { b, c: &c };
    let e = &mut e;
    let streams = Streams::take(e, branches)?;
    let gate = streams.gate(e, 2)?;
    let block = e.cast(c.need(1)?, DType::F32)?;
    let block = e.unsqueezed(block, &[-2])?;
    let added = e.plain("Mul", &[block, gate])?;
    let mut mixed = streams.x;
    if let Some(matrix) = c.input(3) {
        let rank = e.shape(matrix)?.len();
        if rank != streams.leading + 2 {
            return Err(c.error("stream_mix must be a matrix of the streams").into());
        }
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 2, rank - 1);
        let matrix = e.cast(matrix, DType::F32)?;
        let matrix = e.transposed(matrix, &perm)?;
        mixed = e.plain("MatMul", &[matrix, mixed])?;
    }
    let y = e.plain("Add", &[mixed, added])?;
    streams.finish(e, y)
}
