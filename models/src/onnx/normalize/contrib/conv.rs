//! Convolutions and pooling with what ONNX Runtime fuses into them, or with the channels as the last axis.

use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::super::builder::Builder;
use super::super::conv_transpose;
use super::super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, perm_of, unsupported,
};
use super::elementwise::Activation;

/// Imports FusedConv: `activation(conv(x, w) + bias + residual)`.
pub(super) fn fused_conv(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let activation = Activation::of_conv(&mut c)?;
    let attrs = std::mem::take(&mut c.attrs);
    let (x, w, residual) = (c.need(0)?, c.need(1)?, c.input(3));
    let operands: Vec<ValueId> = [Some(x), Some(w), c.input(2)]
        .into_iter()
        .flatten()
        .collect();
    let mut e = Expansion { b, c: &c };
    Ok(vec![convolved(
        &mut e, attrs, &operands, residual, activation,
    )?])
}

/// The last nodes of a convolution with a residual and an activation.
pub(super) fn convolved(
    e: &mut Expansion<'_>,
    attrs: Attrs,
    operands: &[ValueId],
    residual: Option<ValueId>,
    activation: Activation,
) -> Made {
    match residual {
        None => activation.after(e, "Conv", attrs, operands),
        Some(residual) => {
            let y = e.op("Conv", attrs, operands)?;
            activation.after(e, "Add", Attrs::default(), &[y, residual])
        }
    }
}

/// Imports NhwcConv and NhwcFusedConv, whose operand, residual and result have the channels as their last axis. So do the weights
/// of NhwcConv, for which ONNX Runtime has no kernel on the CPU; those of NhwcFusedConv lie as Conv has them.
pub(super) fn nhwc_conv(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let activation = Activation::of_conv(&mut c)?;
    let attrs = std::mem::take(&mut c.attrs);
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (x, mut w) = (c.need(0)?, c.need(1)?);
    let mut e = Expansion { b, c: &c };
    let rank = rank(&e, x)?;
    let x = channels_first(&mut e, x, rank)?;
    if c.op == "NhwcConv" {
        w = channels_first(&mut e, w, rank)?;
    }
    let operands: Vec<ValueId> = [Some(x), Some(w), c.input(2)]
        .into_iter()
        .flatten()
        .collect();
    let mut y = e.op("Conv", attrs, &operands)?;
    y = e.transposed(y, &channels_last_order(rank))?;
    if let Some(residual) = c.input(3) {
        y = e.plain("Add", &[y, residual])?;
    }
    Ok(vec![activation.last(&mut e, y)?])
}

/// Imports NhwcMaxPool, whose operand and result have the channels as their last axis.
pub(super) fn nhwc_max_pool(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let attrs = std::mem::take(&mut c.attrs);
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let x = c.need(0)?;
    let mut e = Expansion { b, c: &c };
    let rank = rank(&e, x)?;
    let x = channels_first(&mut e, x, rank)?;
    let y = e.op("MaxPool", attrs, &[x])?;
    let perm = perm_of(&channels_last_order(rank));
    Ok(vec![e.last(0, "Transpose", perm, &[y])?])
}

/// Imports ConvTransposeWithDynamicPads, whose padding is an operand.
pub(super) fn conv_transpose(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if let Some(pads) = c.input(2) {
        let known = b.elements(pads);
        let pads = known.ok_or_else(|| unsupported("padding that only a run decides"))?;
        c.attrs = c.attrs.with("pads", Attr::Ints(pads));
    }
    c.inputs = vec![c.input(0), c.input(1), c.input(3)];
    conv_transpose::conv_transpose(b, c)
}

/// The rank of an operand with a batch, channels and at least one spatial axis.
pub(in super::super) fn rank(e: &Expansion<'_>, x: ValueId) -> Result<usize, ImportFailure> {
    match e.shape(x)?.len() {
        rank if rank >= 3 => Ok(rank),
        rank => Err(e
            .c
            .error(format!("the operand must have rank 3 or more, not {rank}"))
            .into()),
    }
}

/// `x` whose last axis are the channels, with the channels behind the batch.
pub(in super::super) fn channels_first(e: &mut Expansion<'_>, x: ValueId, rank: usize) -> Made {
    let mut perm: Vec<usize> = (0..rank).collect();
    perm[1..].rotate_right(1);
    e.transposed(x, &perm)
}

/// The axes of a value with the channels behind the batch, in the order with the channels as the last axis.
pub(in super::super) fn channels_last_order(rank: usize) -> Vec<usize> {
    let mut perm: Vec<usize> = (0..rank).collect();
    perm[1..].rotate_left(1);
    perm
}
