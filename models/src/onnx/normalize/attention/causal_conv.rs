//! CausalConvWithState.

use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::super::builder::Builder;
use super::super::node::{Expansion, ImportFailure, ImportedNode, Made, Outputs, unsupported};

/// How the operands of a causal convolution lie.
#[derive(Clone, Copy)]
pub(in super::super) struct CausalForm {
    /// The distance between the elements under the kernel.
    pub dilation: i64,
    /// Whether the channels come after the sequence, on one axis or several.
    pub channels_last: bool,
}

/// Imports CausalConvWithState: a depthwise convolution of the input behind what came before it, of which the end is the
/// next state.
pub(in super::super) fn causal_conv(b: &mut Builder, c: ImportedNode) -> Outputs {
    let form = CausalForm {
        dilation: 1,
        channels_last: false,
    };
    causal_conv_of(b, c, form)
}

/// Imports CausalConvWithState with operands in a given form.
pub(in super::super) fn causal_conv_of(
    b: &mut Builder,
    mut c: ImportedNode,
    form: CausalForm,
) -> Outputs {
    let silu = match c.take_name("activation")?.as_deref() {
        None | Some("none") => false,
        Some("silu" | "swish") => true,
        Some(_) => return Err(c.wrong("activation", "silu, swish or none").into()),
    };
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (x, weight) = (c.need(0)?, c.need(1)?);
    let mut e = Expansion { b, c: &c };
    let shape = e.shape(weight)?;
    let [channels, one, length] = shape.as_slice() else {
        return Err(c.error("weight must have rank 3").into());
    };
    let (Some(channels), Some(length)) = (channels.as_const(), length.as_const()) else {
        return Err(unsupported("weights of a shape that is not known"));
    };
    if length < 1 || one.as_const().is_some_and(|one| one != 1) {
        return Err(c.error("weight must be [channels, 1, k]").into());
    }
    let state = (length - 1).checked_mul(form.dilation);
    let state = state.ok_or_else(|| c.error("a kernel that is too long"))?;
    let own = form.axes(&e, x)?;
    let input = form.channels_first(&mut e, x, channels)?;
    let padded = match c.input(3) {
        Some(past) => {
            let past = form.channels_first(&mut e, past, channels)?;
            let columns = e.shape(past)?;
            let columns = columns.get(2).and_then(|d| d.as_const());
            if columns.is_some_and(|columns| columns != state) {
                return Err(c
                    .error(format!("past_state must have {state} columns"))
                    .into());
            }
            e.joined(2, &[past, input])?
        }
        None => {
            let pads = e.ints("pads", &[0, 0, state, 0, 0, 0])?;
            e.plain("Pad", &[input, pads])?
        }
    };
    // A kernel does not fit into the state of an empty sequence: one element more makes room for it.
    let sequence = e.shape(input)?.get(2).and_then(|d| d.as_const());
    let may_be_empty = sequence.is_none_or(|length| length < 1);
    let conv = Attrs::default()
        .with("group", Attr::Int(channels))
        .with("dilations", Attr::Ints(vec![form.dilation]))
        .with("kernel_shape", Attr::Ints(vec![length]))
        .with("pads", Attr::Ints(vec![0, may_be_empty.into()]));
    let mut operands = vec![padded, weight];
    operands.extend(c.input(2));
    let mut y = e.op("Conv", conv, &operands)?;
    if silu {
        y = e.plain("Swish", &[y])?;
    }
    if may_be_empty {
        let (first, length) = (e.ints("first", &[0])?, e.length(input, 2)?);
        let along = e.ints("axes", &[2])?;
        y = e.plain("Slice", &[y, first, length, along])?;
    }
    let mut out = vec![form.restored(&mut e, 0, y, &own)?];
    if c.outputs.len() > 1 {
        let (start, end) = (e.length(input, 2)?, e.length(padded, 2)?);
        let along = e.ints("axes", &[2])?;
        let next = e.plain("Slice", &[padded, start, end, along])?;
        out.push(form.restored(&mut e, 1, next, &own)?);
    }
    out.truncate(c.outputs.len());
    Ok(out)
}

impl CausalForm {
    /// The sizes of the axes of the channels.
    fn axes(&self, e: &Expansion<'_>, x: ValueId) -> Result<Vec<i64>, ImportFailure> {
        let shape = e.shape(x)?;
        if shape.len() < 3 || (shape.len() > 3 && !self.channels_last) {
            return Err(e.c.error("input must have rank 3").into());
        }
        let axes = if self.channels_last {
            &shape[2..]
        } else {
            &shape[1..2]
        };
        let axes: Option<Vec<i64>> = axes.iter().map(|d| d.as_const()).collect();
        match axes {
            Some(axes) => Ok(axes),
            // One axis is that of the weight's channels.
            None if shape.len() == 3 => Ok(vec![-1]),
            None => Err(unsupported("an unknown number of channels")),
        }
    }

    /// An operand or a state as [batch, channels, sequence].
    fn channels_first(&self, e: &mut Expansion<'_>, x: ValueId, channels: i64) -> Made {
        if !self.channels_last {
            return Ok(x);
        }
        let x = e.reshaped(x, &[0, 0, channels])?;
        e.transposed(x, &[0, 2, 1])
    }

    /// A result [batch, channels, sequence] as output `o`, in the form of the operands.
    fn restored(&self, e: &mut Expansion<'_>, o: usize, y: ValueId, axes: &[i64]) -> Made {
        if !self.channels_last {
            return e.last(o, "Identity", Attrs::default(), &[y]);
        }
        let y = e.transposed(y, &[0, 2, 1])?;
        let shape: Vec<i64> = [0, 0].iter().chain(axes).copied().collect();
        let shape = e.ints("shape", &shape)?;
        e.last(o, "Reshape", Attrs::default(), &[y, shape])
    }
}
