//! DynamicQuantizeLSTM: a layer whose weights are codes, and whose operands become codes when it runs: the whole input at once,
//! the state at each step. So the steps are those of a Scan.
//!
//! ```text
//! cell.rs    one step
//! ```
//!
//! Where sequences have lengths of their own, the rows of those that have ended keep their states. A direction that runs
//! backward has its sequences reversed, each within its length.

mod cell;

use convoke_graph::graph::{Attr, Attrs, TensorType, ValueId};
use convoke_graph::ops::RecurrentOp;
use convoke_graph::ops::attrs::{RecurrentAttrs, RecurrentDirection};
use convoke_graph::{DType, Dim};

use self::cell::Cell;
use super::super::super::builder::Builder;
use super::super::super::import::Importer;
use super::super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, axis_of, unsupported,
};
use crate::error::ModelError;

/// The places of operands.
const BIAS: usize = 3;
const LENGTHS: usize = 4;
const INITIAL: usize = 5;
const PEEPHOLES: usize = 7;
const INPUT_SCALE: usize = 8;
const STATE_SCALE: usize = 10;

/// Codes with their scale and, where it is not zero, their zero point.
#[derive(Clone, Copy)]
struct Codes {
    codes: ValueId,
    scale: ValueId,
    zero: Option<ValueId>,
}

/// The lengths of sequences.
#[derive(Clone, Copy)]
struct Lengths {
    /// i64 [batch].
    lengths: ValueId,
    /// Whether a sequence has not ended before a step: bool [steps, batch, 1].
    running: ValueId,
}

/// One direction of the layer.
struct Direction {
    backward: bool,
    /// The contribution of the input and the biases to the gates: f32 [steps, batch, 4 * hidden].
    gates: ValueId,
    /// The hidden and the cell state before the first step.
    states: [ValueId; 2],
    cell: Cell,
}

/// Imports DynamicQuantizeLSTM.
pub(in super::super::super) fn dynamic_lstm(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let attrs = take_attrs(&mut c)?;
    if c.follows_a_refusal(&i.b) {
        return Ok(i.b.stand_ins(&c.outputs));
    }
    let mut e = Expansion { b: &mut i.b, c: &c };
    let lengths = match c.input(LENGTHS) {
        Some(lengths) => Some(running(&mut e, lengths)?),
        None => None,
    };
    let x = input(&mut e, lengths)?;
    let x = codes_of(&mut i.b, &c, x)?;
    let (mut all, mut last) = (vec![], [vec![], vec![]]);
    for (d, own) in attrs.directions.iter().enumerate() {
        let mut direction = direction(&mut i.b, &c, x, d as i64, (own, &attrs))?;
        let turned = lengths.filter(|_| direction.backward);
        if let Some(lengths) = turned {
            let mut e = Expansion { b: &mut i.b, c: &c };
            direction.gates = reversed(&mut e, direction.gates, lengths)?;
            direction.backward = false;
        }
        let [h, cell, mut each] = steps(i, &c, direction, lengths)?;
        let mut e = Expansion { b: &mut i.b, c: &c };
        if let Some(lengths) = turned {
            each = reversed(&mut e, each, lengths)?;
        }
        all.push(e.unsqueezed(each, &[1])?);
        last[0].push(e.unsqueezed(h, &[0])?);
        last[1].push(e.unsqueezed(cell, &[0])?);
    }
    let mut e = Expansion { b: &mut i.b, c: &c };
    let [h, cell] = last;
    let results = [(1, all), (0, h), (0, cell)];
    let results = results.iter().enumerate().take(c.outputs.len());
    let results = results.map(|(o, (axis, parts))| e.last(o, "Concat", axis_of(*axis), parts));
    results.collect()
}

/// Takes the attributes, which are those of an LSTM.
fn take_attrs(c: &mut ImportedNode) -> Result<RecurrentAttrs, ImportFailure> {
    let names = [
        "activation_alpha",
        "activation_beta",
        "activations",
        "clip",
        "direction",
        "hidden_size",
        "input_forget",
    ];
    let mut attrs = Attrs::default();
    for name in names {
        match c.take(name) {
            None => {}
            // Without names, the activations are those of an LSTM.
            Some(Attr::Strs(none)) if none.is_empty() => {}
            Some(attr) => attrs = attrs.with(name, attr),
        }
    }
    c.no_more_attributes()?;
    RecurrentAttrs::new(RecurrentOp::LSTM, &attrs).map_err(|e| c.error(e.to_string()).into())
}

/// Adds nodes that compare the number of each step with the lengths of the sequences. A sequence runs in a step whose number is
/// below its length.
fn running(e: &mut Expansion<'_>, lengths: ValueId) -> Result<Lengths, ImportFailure> {
    let lengths = e.cast(lengths, DType::I64)?;
    let steps = e.length(e.c.need(0)?, 0)?;
    let steps = e.scalar(steps)?;
    let step = e.counted(steps)?;
    let step = e.unsqueezed(step, &[1])?;
    let running = e.plain("Less", &[step, lengths])?;
    let running = e.unsqueezed(running, &[2])?;
    Ok(Lengths { lengths, running })
}

/// The input, with zeros behind the end of the longest sequence: the span of its codes is that of what comes before.
fn input(e: &mut Expansion<'_>, lengths: Option<Lengths>) -> Made {
    let x = e.c.need(0)?;
    let Some(Lengths { lengths, .. }) = lengths else {
        return Ok(x);
    };
    let axes = e.ints("axes", &[0])?;
    let longest = e.plain("ReduceMax", &[lengths, axes])?;
    let steps = e.length(x, 0)?;
    let steps = e.scalar(steps)?;
    let step = e.counted(steps)?;
    let counts = e.plain("Less", &[step, longest])?;
    let counts = e.unsqueezed(counts, &[1, 2])?;
    let zero = e.float("zero", DType::F32, 0.0)?;
    e.plain("Where", &[counts, x, zero])
}

/// Sequences [steps, batch, ...] from their ends on.
fn reversed(e: &mut Expansion<'_>, x: ValueId, lengths: Lengths) -> Made {
    let attrs = Attrs::default()
        .with("time_axis", Attr::Int(0))
        .with("batch_axis", Attr::Int(1));
    e.op("ReverseSequence", attrs, &[x, lengths.lengths])
}

/// Adds the nodes in front of the steps of direction `d`.
fn direction(
    b: &mut Builder,
    c: &ImportedNode,
    x: Codes,
    d: i64,
    (own, all): (&RecurrentDirection, &RecurrentAttrs),
) -> Result<Direction, ImportFailure> {
    let (input, state) = (c.need(1)?, c.need(2)?);
    let mut e = Expansion { b, c };
    let hidden = match (e.shape(input)?.as_slice(), e.shape(state)?.as_slice()) {
        ([_, _, _], [_, hidden, _]) => hidden.as_const(),
        _ => return Err(c.error("weights must have rank 3").into()),
    };
    let hidden = hidden.ok_or_else(|| unsupported("a state of a size that is not known"))?;
    if all
        .hidden
        .is_some_and(|said| usize::try_from(hidden) != Ok(said))
    {
        return Err(c
            .wrong("hidden_size", "as long as the state of operand R")
            .into());
    }
    if hidden.checked_mul(8).is_none() {
        return Err(c.error("the state is too large").into());
    }
    let input = weights(&mut e, input, INPUT_SCALE, d)?;
    let weights = weights(&mut e, state, STATE_SCALE, d)?;
    let mut gates = product(e.b, c, x, input)?;
    if let Some(biases) = c.input(BIAS) {
        let biases = picked(&mut e, biases, d)?;
        let of_input = e.slice(biases, 0, 0, 4 * hidden, 1)?;
        let of_state = e.slice(biases, 0, 4 * hidden, 8 * hidden, 1)?;
        let sum = e.plain("Add", &[of_input, of_state])?;
        gates = e.plain("Add", &[gates, sum])?;
    }
    let mut peepholes = None;
    if let Some(all) = c.input(PEEPHOLES) {
        let own = picked(&mut e, all, d)?;
        let [input, output, forget] =
            [0, 1, 2].map(|gate| e.slice(own, 0, gate * hidden, (gate + 1) * hidden, 1));
        peepholes = Some([input?, output?, forget?]);
    }
    let mut initial = |state: usize| match c.input(INITIAL + state) {
        Some(given) => picked(&mut e, given, d),
        None => {
            let batch = e.length(c.need(0)?, 1)?;
            let width = e.ints("hidden", &[hidden])?;
            let shape = e.joined(0, &[batch, width])?;
            let zero = e.float("zero", DType::F32, 0.0)?;
            e.plain("Expand", &[zero, shape])
        }
    };
    let states = [initial(0)?, initial(1)?];
    Ok(Direction {
        backward: own.reversed,
        gates,
        states,
        cell: Cell::new(c, own, all, weights, peepholes)?,
    })
}

/// The part of an operand that belongs to direction `d`.
fn picked(e: &mut Expansion<'_>, x: ValueId, d: i64) -> Made {
    let d = e.int("direction", d)?;
    e.op("Gather", axis_of(0), &[x, d])
}

/// The weights of direction `d`, whose scale is operand `scale`.
fn weights(
    e: &mut Expansion<'_>,
    codes: ValueId,
    scale: usize,
    d: i64,
) -> Result<Codes, ImportFailure> {
    Ok(Codes {
        codes: picked(e, codes, d)?,
        scale: picked(e, e.c.need(scale)?, d)?,
        zero: match e.c.input(scale + 1) {
            Some(zero) => Some(picked(e, zero, d)?),
            None => None,
        },
    })
}

/// The codes of numbers that only a run knows.
fn codes_of(b: &mut Builder, c: &ImportedNode, x: ValueId) -> Result<Codes, ModelError> {
    let names = ["codes", "scale", "zero"].map(|what| c.sub(what));
    let op = "DynamicQuantizeLinear";
    let made = b.emit(op, &c.sub(op), Attrs::default(), vec![Some(x)], &names)?;
    match made[..] {
        [codes, scale, zero] => Ok(Codes {
            codes,
            scale,
            zero: Some(zero),
        }),
        _ => Err(c.error("has no codes")),
    }
}

/// The product of two matrices of codes, as numbers.
fn product(b: &mut Builder, c: &ImportedNode, x: Codes, w: Codes) -> Result<ValueId, ModelError> {
    let plain = |b: &mut Builder, op: &str, operands: Vec<Option<ValueId>>| {
        c.before(b, op, Attrs::default(), operands)
    };
    let operands = vec![Some(x.codes), Some(w.codes), x.zero, w.zero];
    let sums = plain(b, "MatMulInteger", operands)?;
    let to = Attrs::default().with("to", Attr::DType(DType::F32));
    let sums = c.before(b, "Cast", to, vec![Some(sums)])?;
    let scale = plain(b, "Mul", vec![Some(x.scale), Some(w.scale)])?;
    plain(b, "Mul", vec![Some(sums), Some(scale)])
}

/// Adds the steps of a direction. Returns the states after the last step, and the hidden state after each.
fn steps(
    i: &mut Importer<'_>,
    c: &ImportedNode,
    d: Direction,
    lengths: Option<Lengths>,
) -> Result<[ValueId; 3], ImportFailure> {
    let all_are_read = c.outputs.first().is_some_and(|name| !name.is_empty());
    let mut states = d.states.to_vec();
    // As in ONNX Runtime, where the states of all steps are results, the span of a state's codes is that of its result, which
    // is zero for sequences that have ended. So the last state is a third one.
    if lengths.is_some() && all_are_read {
        states.push(d.states[0]);
    }
    let scanned: Vec<ValueId> = [d.gates]
        .into_iter()
        .chain(lengths.map(|l| l.running))
        .collect();
    let slices: Vec<_> = scanned.iter().map(|id| slice_of(&i.b, *id)).collect();
    let types: Vec<_> = states.iter().map(|id| i.b.ty(*id).cloned()).collect();
    let body = i.settled(types, 0, |i, types| {
        i.body(&c.name, |i| {
            let states = ["state", "cell", "last"].into_iter().zip(types);
            let states = params(&mut i.b, c, states);
            let scanned = ["gates", "running"].into_iter().zip(&slices);
            let scanned = params(&mut i.b, c, scanned);
            let outer = i.enclosing.last();
            let outer = outer.ok_or_else(|| c.error("is in no function"))?;
            let cell = d.cell.captured(&mut i.b, outer);
            cell.step(&mut i.b, c, &states, &scanned)
        })
    })?;
    let ways = || Attr::Ints(vec![d.backward.into(); scanned.len()]);
    let attrs = Attrs::default()
        .with("num_scan_inputs", Attr::Int(scanned.len() as i64))
        .with("scan_input_directions", ways())
        .with(
            "scan_output_directions",
            Attr::Ints(vec![d.backward.into()]),
        );
    let operands: Vec<_> = states.iter().chain(&scanned).copied().map(Some).collect();
    let names = ["last_state", "last_cell", "states"].map(|what| c.sub(what));
    let names = match states.len() {
        2 => names.to_vec(),
        _ => {
            let [state, cell, all] = names;
            vec![c.sub("shown_state"), cell, state, all]
        }
    };
    let made = body.emit(
        &mut i.b,
        "Scan",
        &c.sub("Scan"),
        attrs,
        operands.into_iter(),
        &names,
    )?;
    match made[..] {
        [h, cell, all] | [_, cell, h, all] => Ok([h, cell, all]),
        _ => Err(c.error("has no states").into()),
    }
}

/// The type of a step's part of `x`, whose first axis are the steps.
fn slice_of(b: &Builder, x: ValueId) -> Option<TensorType> {
    b.ty(x).map(|ty| {
        let shape: Vec<Dim> = ty.shape.get(1..).unwrap_or_default().to_vec();
        TensorType::new(ty.dtype, shape)
    })
}

/// Parameters of the steps' body.
fn params<'a>(
    b: &mut Builder,
    c: &ImportedNode,
    named: impl Iterator<Item = (&'static str, &'a Option<TensorType>)>,
) -> Vec<ValueId> {
    named
        .map(|(name, ty)| b.param_of(&c.sub(name), ty.clone()))
        .collect()
}
