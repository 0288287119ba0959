//! The blocked layout of ONNX Runtime's optimizer.
//!
//! At its highest level, the optimizer lays activations out in blocks of channels, as wide as the registers of the
//! processor that it runs on, and stores the weights of convolutions in that order:
//!
//! ```text
//! activations  [N, C/block, H, W, block]
//! weights      [O/block, I/block, KH, KW, block of I, block of O], or [O/block, I, KH, KW, block of O]
//! ```
//!
//! Here activations keep the order [N, C, H, W], with the channels that fill the last block, and weights get ONNX's
//! order back, once at install.

use std::collections::HashMap;

use convoke_graph::Tensor;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::super::builder::Builder;
use super::super::super::proto::{GraphProto, NodeProto};
use super::super::node::{Expansion, ImportFailure, ImportedNode, Made, Outputs, unsupported};
use super::conv::convolved;
use super::elementwise::Activation;
use crate::error::EITHER_WIDTH;

/// The domain of the ops on blocked activations.
const DOMAIN: &str = "com.microsoft.nchwc";

/// The channels of a block, or why they are not known. Where nothing depends on them, a block has one channel.
pub(in super::super::super) type Block = Result<i64, &'static str>;

/// The channels of a block where a model's file leaves them open: it does not state them, and every number of channels
/// in it is a multiple of 16. Weights that are read in blocks of the other width give wrong numbers, and no error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockWidth {
    /// The width on x86 processors without AVX-512.
    Eight,
    /// The width on processors with AVX-512, and on those of ARM.
    Sixteen,
}

impl BlockWidth {
    fn channels(self) -> i64 {
        match self {
            BlockWidth::Eight => 8,
            BlockWidth::Sixteen => 16,
        }
    }
}

/// The channels of a block in a model, which the shapes of its weights may decide: the model does not state them. Where
/// they do not, it is `open`. Nodes are in the order in which ONNX Runtime writes them.
///
/// Without convolutions they do not matter: what fills a block is left out again where the order of channels becomes
/// that of ONNX.
pub(in super::super::super) fn block_of(graph: &GraphProto, open: Option<BlockWidth>) -> Block {
    let shapes: HashMap<&str, &[i64]> = graph
        .initializer
        .iter()
        .map(|t| (t.name(), t.dims.as_slice()))
        .collect();
    // The values in blocks, with their channels where they are known.
    let mut blocked: HashMap<&str, Option<i64>> = HashMap::new();
    let (mut narrow, mut wide) = (false, false);
    for n in &graph.node {
        let operand = n.input.first().and_then(|x| blocked.get(x.as_str()));
        let operand = operand.copied();
        let mut made = operand.flatten();
        match (n.domain(), n.op_type()) {
            (DOMAIN, "Conv") => {
                let weights = n.input.get(1).and_then(|w| shapes.get(w.as_str()));
                let Some([outputs, inputs, ..]) = weights else {
                    continue;
                };
                let whole = operand.is_some() && integer(n, "group", 1) == 1;
                narrow |= outputs % 16 == 8 || (whole && inputs % 16 == 8);
                wide |= operand.is_none() && (8..16).contains(inputs);
                made = Some(*outputs);
            }
            (DOMAIN, "ReorderOutput") => {
                let filled = made.and_then(|all| all.checked_sub(integer(n, "channels", all)));
                wide |= filled.is_some_and(|filled| (8..16).contains(&filled));
                continue;
            }
            (DOMAIN, _) => {}
            // The optimizer leaves values in blocks to ops that work on each element.
            (_, "Concat") => made = None,
            _ => {}
        }
        if n.domain() == DOMAIN || n.input.iter().any(|x| blocked.contains_key(x.as_str())) {
            blocked.extend(n.output.iter().map(|o| (o.as_str(), made)));
        }
    }
    match (narrow, wide) {
        (true, true) => Err("weights in blocks of different widths"),
        (true, false) => Ok(8),
        (false, true) => Ok(16),
        (false, false) if !convolves(graph) => Ok(1),
        (false, false) => open.map(BlockWidth::channels).ok_or(EITHER_WIDTH),
    }
}

/// Whether a graph, or one within it, has a convolution of values in blocks.
fn convolves(graph: &GraphProto) -> bool {
    graph.node.iter().any(|n| {
        (n.domain(), n.op_type()) == (DOMAIN, "Conv")
            || (n.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs))).any(convolves)
    })
}

/// An integer attribute of a node.
fn integer(n: &NodeProto, attr: &str, default: i64) -> i64 {
    let found = n.attribute.iter().find(|a| a.name() == attr);
    found.and_then(|a| a.i).unwrap_or(default)
}

/// Imports a node of the domain.
pub(super) fn import(b: &mut Builder, c: ImportedNode, block: Block) -> Outputs {
    let block = block.map_err(unsupported)?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    match c.op.as_str() {
        "Conv" => conv(b, c, block),
        "AveragePool" | "GlobalAveragePool" | "GlobalMaxPool" | "MaxPool" => c.emit(b),
        "ReorderInput" => reorder_input(b, c, block),
        "ReorderOutput" => reorder_output(b, c),
        "Upsample" => upsample(b, c),
        _ => Err(unsupported("")),
    }
}

/// Imports a convolution: `activation(conv(x, w) + bias + sum)`.
fn conv(b: &mut Builder, mut c: ImportedNode, block: i64) -> Outputs {
    let activation = Activation::of_conv(&mut c)?;
    // The graph of a branch may have convolutions where the model's own has none.
    if block == 1 {
        return Err(unsupported(EITHER_WIDTH));
    }
    let group = c.take_int("group")?.unwrap_or(1);
    let attrs = std::mem::take(&mut c.attrs).with("group", Attr::Int(group));
    let (x, w, residual) = (c.need(0)?, c.need(1)?, c.input(3));
    let mut e = Expansion { b, c: &c };
    let w = in_order(&mut e, w, group, block)?;
    let operands: Vec<ValueId> = [Some(x), Some(w), c.input(2)]
        .into_iter()
        .flatten()
        .collect();
    Ok(vec![convolved(
        &mut e, attrs, &operands, residual, activation,
    )?])
}

/// Weights in ONNX's order.
fn in_order(e: &mut Expansion<'_>, w: ValueId, group: i64, block: i64) -> Made {
    let shape: Option<Vec<i64>> = e.shape(w)?.iter().map(|d| d.as_const()).collect();
    let Some(&[outputs, inputs, rows, columns]) = shape.as_deref() else {
        return Err(unsupported(
            "weights that do not have four known dimensions",
        ));
    };
    let misfit = |what: &str, n: i64| {
        let reason = format!("{n} {what} channels are no multiple of blocks of {block}");
        ImportFailure::from(e.c.error(reason))
    };
    if outputs % block != 0 {
        return Err(misfit("output", outputs));
    }
    // One channel of each group, and few channels of an operand that is not blocked, are in no blocks.
    let depthwise = group > 1 && inputs == 1;
    if depthwise || (group == 1 && inputs < block) {
        let parts = e.reshaped(w, &[outputs / block, inputs, rows, columns, block])?;
        let parts = e.transposed(parts, &[0, 4, 1, 2, 3])?;
        return e.reshaped(parts, &[outputs, inputs, rows, columns]);
    }
    if inputs % block != 0 {
        return Err(misfit("input", inputs));
    }
    let shape = [outputs / block, inputs / block, rows, columns, block, block];
    let parts = e.reshaped(w, &shape)?;
    let parts = e.transposed(parts, &[0, 5, 1, 4, 2, 3])?;
    e.reshaped(parts, &[outputs, inputs, rows, columns])
}

/// Imports ReorderInput, which fills the last block of channels with zeros.
fn reorder_input(b: &mut Builder, mut c: ImportedNode, block: i64) -> Outputs {
    let last = c.take_flag("channels_last", false)?;
    c.no_more_attributes()?;
    let mut x = c.need(0)?;
    let mut e = Expansion { b, c: &c };
    let shape = e.shape(x)?;
    let channels = match shape.as_slice() {
        [_, _, _, channels] if last => channels,
        [_, channels, _, _] => channels,
        _ => return Err(c.error("the operand must have rank 4").into()),
    };
    let whole = (block == 1).then_some(0);
    let channels = channels.as_const().or(whole);
    let channels = channels.ok_or_else(|| unsupported("an unknown number of channels"))?;
    if last {
        x = e.transposed(x, &[0, 3, 1, 2])?;
    }
    let filled = (block - channels.rem_euclid(block)) % block;
    if filled == 0 {
        return Ok(vec![e.last(0, "Identity", Attrs::default(), &[x])?]);
    }
    let pads = e.ints("pads", &[0, 0, 0, 0, 0, filled, 0, 0])?;
    Ok(vec![e.last(0, "Pad", Attrs::default(), &[x, pads])?])
}

/// Imports ReorderOutput, which leaves out the channels that fill the last block.
fn reorder_output(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let channels = c.take_int("channels")?.unwrap_or(0);
    let last = c.take_flag("channels_last", false)?;
    c.no_more_attributes()?;
    let mut x = c.need(0)?;
    let mut e = Expansion { b, c: &c };
    let shape = e.shape(x)?;
    let [_, all, _, _] = shape.as_slice() else {
        return Err(c.error("the operand must have rank 4").into());
    };
    if channels > 0 && !all.is(channels) {
        x = e.slice(x, 1, 0, channels, 1)?;
    }
    let perm: &[usize] = if last { &[0, 2, 3, 1] } else { &[0, 1, 2, 3] };
    x = e.transposed(x, perm)?;
    Ok(vec![e.last(0, "Identity", Attrs::default(), &[x])?])
}

/// Imports Upsample, whose scales are whole numbers.
fn upsample(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let scales = c.take_ints("scales")?.unwrap_or_else(|| vec![1; 4]);
    let mode = c.take_name("mode")?.unwrap_or_else(|| "nearest".into());
    let places = c.take_name("coordinate_transformation_mode")?;
    let places = places.unwrap_or_else(|| "asymmetric".into());
    c.no_more_attributes()?;
    let x = c.need(0)?;
    let scales: Vec<f32> = scales.iter().map(|s| *s as f32).collect();
    let scales = Tensor::from_slice(&[scales.len()], &scales);
    let scales = scales.map_err(|e| c.error(e.to_string()))?;
    let scales = b.literal(&c.sub("scales"), scales);
    let attrs = Attrs::default()
        .with("mode", Attr::Str(mode.as_str().into()))
        .with("nearest_mode", Attr::Str("floor".into()))
        .with(
            "coordinate_transformation_mode",
            Attr::Str(places.as_str().into()),
        );
    c.finish(b, "Resize", attrs, vec![Some(x), None, Some(scales)])
}
