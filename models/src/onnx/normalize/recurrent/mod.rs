//! LSTM, GRU and RNN as a Scan over the sequence.
//!
//! ```text
//! X ── MatMul Wᵀ, Add bias ──┐  for all steps at once
//!                            ├── Scan: h, c, slice ──> h, c, y ── joined over the directions ── Y, Y_h, Y_c
//! initial h, c ──────────────┘        one product by Rᵀ a step
//! ```
//!
//! Sequences of different lengths run to the length of the longest one. Beyond its own length a sequence keeps its state
//! and yields zeros, in either direction.

mod step;

use convoke_graph::graph::{Attr, Attrs, TensorType, ValueId};
use convoke_graph::{DType, Tensor};

use super::super::builder::Builder;
use super::{ImportFailure, ImportedNode, Outputs, operands, unsupported};

type Made = Result<ValueId, ImportFailure>;

/// The kind of a recurrent op.
#[derive(Clone, Copy, PartialEq)]
enum Cell {
    Rnn,
    Gru,
    Lstm,
}

impl Cell {
    /// How many gates the weights are of.
    fn gates(self) -> i64 {
        match self {
            Cell::Rnn => 1,
            Cell::Gru => 3,
            Cell::Lstm => 4,
        }
    }

    /// The activations of one direction, where the node names none.
    fn activations(self) -> &'static [&'static str] {
        match self {
            Cell::Rnn => &["Tanh"],
            Cell::Gru => &["Sigmoid", "Tanh"],
            Cell::Lstm => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

/// An activation with its parameters.
#[derive(Clone, Copy)]
struct Activation {
    function: ActivationFunction,
    alpha: f32,
    beta: f32,
}

#[derive(Clone, Copy)]
enum ActivationFunction {
    /// An op without parameters.
    Plain(&'static str),
    /// An op with the attribute `alpha`.
    WithAlpha(&'static str),
    HardSigmoid,
    Affine,
    ScaledTanh,
}

/// The activations of the standard, with the defaults of `alpha` and `beta` where they have such parameters.
const ACTIVATIONS: &[(&str, ActivationFunction, Option<f32>, Option<f32>)] = {
    use ActivationFunction::*;
    &[
        ("relu", Plain("Relu"), None, None),
        ("tanh", Plain("Tanh"), None, None),
        ("sigmoid", Plain("Sigmoid"), None, None),
        ("softsign", Plain("Softsign"), None, None),
        ("softplus", Plain("Softplus"), None, None),
        ("affine", Affine, Some(1.0), Some(0.0)),
        ("leakyrelu", WithAlpha("LeakyRelu"), Some(0.01), None),
        (
            "thresholdedrelu",
            WithAlpha("ThresholdedRelu"),
            Some(1.0),
            None,
        ),
        ("scaledtanh", ScaledTanh, Some(1.0), Some(1.0)),
        ("hardsigmoid", HardSigmoid, Some(0.2), Some(0.5)),
        ("elu", WithAlpha("Elu"), Some(1.0), None),
    ]
};

/// What all directions of a node have in common.
struct Layer {
    cell: Cell,
    dtype: DType,
    /// Elements of the state.
    hidden: i64,
    directions: usize,
    /// Whether the batch is the first axis of operands and results.
    batch_first: bool,
    clip: Option<f32>,
    input_forget: bool,
    linear_before_reset: bool,
    /// The operand, with the sequence as its first axis.
    x: ValueId,
    /// The type of the state.
    state: TensorType,
    /// Zeros in the shape of the state, where an initial state is left out.
    zeros: Option<ValueId>,
    /// The numbers of the steps, and for each element of the batch the length of its sequence, where lengths are given.
    steps: Option<(ValueId, ValueId)>,
    /// Whether the results of all steps are read.
    all_steps: bool,
}

/// Imports LSTM, GRU and RNN.
pub(super) fn recurrent(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let cell = match c.op.as_str() {
        "LSTM" => Cell::Lstm,
        "GRU" => Cell::Gru,
        _ => Cell::Rnn,
    };
    let reversed: &[bool] = match c.take("direction") {
        None => &[false],
        Some(Attr::Str(d)) if &*d == "forward" => &[false],
        Some(Attr::Str(d)) if &*d == "reverse" => &[true],
        Some(Attr::Str(d)) if &*d == "bidirectional" => &[false, true],
        Some(_) => return Err(c.wrong("direction", "a direction").into()),
    };
    let activations = activations(&mut c, cell, reversed.len())?;
    // Where a node before this one was refused, it is that which is reported.
    if [0, 2]
        .into_iter()
        .any(|i| c.input(i).is_some_and(|id| b.ty(id).is_none()))
    {
        return Ok(b.stand_ins(&c.outputs));
    }
    let layer = layer(b, &mut c, cell, reversed.len())?;
    let mut finals: [Vec<ValueId>; 2] = Default::default();
    let mut all = Vec::new();
    let each = cell.activations().len();
    for (d, (reversed, activations)) in reversed.iter().zip(activations.chunks(each)).enumerate() {
        let mut made = direction(b, &c, &layer, d, *reversed, activations)?.into_iter();
        for last in finals.iter_mut().take(layer.states()) {
            last.extend(made.next());
        }
        all.extend(made.next());
    }
    let [h, cells] = finals;
    let state_axis = i64::from(layer.batch_first);
    let mut out = Vec::new();
    for (i, name) in c.outputs.iter().enumerate() {
        let named = std::slice::from_ref(name);
        out.push(match (i, name.is_empty()) {
            (0, false) if layer.batch_first => {
                let y = joined(b, &c, &all, 2, None)?;
                let perm = Attrs::default().with("perm", Attr::Ints(vec![1, 0, 2, 3]));
                emit_last(b, &c, "Transpose", perm, vec![Some(y)], named)?
            }
            (0, false) => joined(b, &c, &all, 1, Some(named))?,
            (1, false) => joined(b, &c, &h, state_axis, Some(named))?,
            (2, false) if cell == Cell::Lstm => joined(b, &c, &cells, state_axis, Some(named))?,
            // Nothing reads an output without a name.
            (0..=2, true) => layer.x,
            _ => return Err(c.error("has too many outputs").into()),
        });
    }
    Ok(out)
}

impl Layer {
    /// How many tensors the state consists of.
    fn states(&self) -> usize {
        1 + usize::from(self.cell == Cell::Lstm)
    }
}

/// The activations of all directions, in order.
fn activations(
    c: &mut ImportedNode,
    cell: Cell,
    directions: usize,
) -> Result<Vec<Activation>, ImportFailure> {
    let names: Vec<String> = match c.take("activations") {
        None => {
            let names = cell.activations().iter().map(|n| n.to_string());
            names
                .cycle()
                .take(directions * cell.activations().len())
                .collect()
        }
        Some(Attr::Strs(names)) => names.iter().map(|n| n.to_string()).collect(),
        Some(_) => return Err(c.wrong("activations", "a list of names").into()),
    };
    if names.len() != directions * cell.activations().len() {
        let want = directions * cell.activations().len();
        return Err(c.wrong("activations", &format!("{want} names")).into());
    }
    let floats = |c: &mut ImportedNode, attr: &str| match c.take(attr) {
        None => Ok(Vec::new()),
        Some(Attr::Floats(v)) => Ok(v),
        Some(_) => Err(c.wrong(attr, "a list of floats")),
    };
    // Each activation that has the parameter takes the next number.
    let mut alphas = floats(c, "activation_alpha")?.into_iter();
    let mut betas = floats(c, "activation_beta")?.into_iter();
    let mut all = Vec::with_capacity(names.len());
    for name in &names {
        let known = ACTIVATIONS.iter().find(|a| a.0.eq_ignore_ascii_case(name));
        let (_, function, alpha, beta) =
            known.ok_or_else(|| unsupported(format!("activation '{name}'")))?;
        let next = |default: &Option<f32>, given: &mut dyn Iterator<Item = f32>| {
            default.map_or(0.0, |default| given.next().unwrap_or(default))
        };
        all.push(Activation {
            function: *function,
            alpha: next(alpha, &mut alphas),
            beta: next(beta, &mut betas),
        });
    }
    Ok(all)
}

fn layer(
    b: &mut Builder,
    c: &mut ImportedNode,
    cell: Cell,
    directions: usize,
) -> Result<Layer, ImportFailure> {
    let (mut x, r) = (c.need(0)?, c.need(2)?);
    c.need(1)?;
    let shape = b.ty(r).and_then(|ty| ty.fixed_shape());
    let shape = shape.ok_or_else(|| unsupported("weights of a shape that is not known"))?;
    let hidden = match *shape.as_slice() {
        [d, rows, hidden] if d == directions && rows as i64 == cell.gates() * hidden as i64 => {
            hidden as i64
        }
        _ => {
            return Err(c
                .error(format!("recurrent weights of shape {shape:?}"))
                .into());
        }
    };
    if c.take_int("hidden_size")?.is_some_and(|h| h != hidden) {
        return Err(c.error("hidden_size is not that of the weights").into());
    }
    // An attribute of the first operator set, which says whether the first output is computed.
    c.take_int("output_sequence")?;
    let batch_first = c.take_int("layout")?.unwrap_or(0) != 0;
    let input_forget = c.take_int("input_forget")?.unwrap_or(0) != 0;
    let linear_before_reset = c.take_int("linear_before_reset")?.unwrap_or(0) != 0;
    let clip = c.take_float("clip")?;
    if let Some(attr) = c.attrs.0.keys().next() {
        return Err(unsupported(format!("attribute '{attr}'")));
    }
    if batch_first {
        let perm = Attrs::default().with("perm", Attr::Ints(vec![1, 0, 2]));
        x = c.before(b, "Transpose", perm, vec![Some(x)])?;
    }
    let ty = b.ty(x).cloned();
    let ty = ty.ok_or_else(|| unsupported("an operand of a type that is not known"))?;
    let [length, batch, _] = ty.shape.as_slice() else {
        return Err(c.error(format!("an operand of type {ty}")).into());
    };
    let state = TensorType::new(ty.dtype, vec![batch.clone(), hidden.into()]);
    let states = 1 + usize::from(cell == Cell::Lstm);
    let given = (5..5 + states).all(|i| c.input(i).is_some());
    let zeros = match given {
        true => None,
        false => {
            let shape = match batch.as_const() {
                Some(batch) => b.ints(&c.sub("shape"), &[batch, hidden])?,
                None => {
                    let batch = size(b, c, x, 1)?;
                    let hidden = b.ints(&c.sub("hidden"), &[hidden])?;
                    let axis = Attrs::default().with("axis", Attr::Int(0));
                    c.before(b, "Concat", axis, vec![Some(batch), Some(hidden)])?
                }
            };
            let zero = operands::scalar(b, c, "zero", 0.0)?;
            let operands = vec![Some(zero), Some(shape)];
            Some(c.before(b, "Expand", Attrs::default(), operands)?)
        }
    };
    let known = c.input(4).and_then(|id| b.elements(id));
    let full = known.zip(length.as_const());
    let full = full.is_some_and(|(lengths, full)| lengths.iter().all(|l| *l == full));
    let lengths = c.input(4).filter(|_| !full);
    let steps = match lengths {
        None => None,
        Some(lengths) => {
            let behind = b.ints(&c.sub("axes"), &[-1])?;
            let operands = vec![Some(lengths), Some(behind)];
            let lengths = c.before(b, "Unsqueeze", Attrs::default(), operands)?;
            let dtype = c.dtype(b, 4);
            let to = Attrs::default().with("to", Attr::DType(DType::I64));
            let lengths = match dtype {
                DType::I64 => lengths,
                _ => c.before(b, "Cast", to, vec![Some(lengths)])?,
            };
            let length = size(b, c, x, 0)?;
            let front = b.ints(&c.sub("axes"), &[0])?;
            let operands = vec![Some(length), Some(front)];
            let length = c.before(b, "Squeeze", Attrs::default(), operands)?;
            let first = b.literal(&c.sub("first"), Tensor::scalar(0i64));
            let step = b.literal(&c.sub("step"), Tensor::scalar(1i64));
            let operands = vec![Some(first), Some(length), Some(step)];
            let steps = c.before(b, "Range", Attrs::default(), operands)?;
            Some((steps, lengths))
        }
    };
    Ok(Layer {
        cell,
        dtype: ty.dtype,
        hidden,
        directions,
        batch_first,
        clip,
        input_forget,
        linear_before_reset,
        x,
        state,
        zeros,
        steps,
        all_steps: c.outputs.first().is_some_and(|o| !o.is_empty()),
    })
}

/// The size of an axis, as a list of one number.
fn size(b: &mut Builder, c: &ImportedNode, x: ValueId, axis: i64) -> Made {
    let shape = c.before(b, "Shape", Attrs::default(), vec![Some(x)])?;
    slice(b, c, shape, 0, (axis, axis + 1))
}

/// The elements of `x` from the first to the second number along an axis.
fn slice(b: &mut Builder, c: &ImportedNode, x: ValueId, axis: i64, (from, to): (i64, i64)) -> Made {
    let operands = [
        Some(x),
        Some(b.ints(&c.sub("starts"), &[from])?),
        Some(b.ints(&c.sub("ends"), &[to])?),
        Some(b.ints(&c.sub("axes"), &[axis])?),
    ];
    Ok(c.before(b, "Slice", Attrs::default(), operands.into())?)
}

/// The part of an operand that belongs to direction `d`; the directions are its axis `axis`.
fn part(b: &mut Builder, c: &ImportedNode, layer: &Layer, x: ValueId, axis: i64, d: usize) -> Made {
    let x = match layer.directions {
        1 => x,
        _ => slice(b, c, x, axis, (d as i64, d as i64 + 1))?,
    };
    let axes = b.ints(&c.sub("axes"), &[axis])?;
    let operands = vec![Some(x), Some(axes)];
    Ok(c.before(b, "Squeeze", Attrs::default(), operands)?)
}

fn transposed(b: &mut Builder, c: &ImportedNode, x: ValueId) -> Made {
    let perm = Attrs::default().with("perm", Attr::Ints(vec![1, 0]));
    Ok(c.before(b, "Transpose", perm, vec![Some(x)])?)
}

fn binary(b: &mut Builder, c: &ImportedNode, op: &str, x: ValueId, y: ValueId) -> Made {
    Ok(c.before(b, op, Attrs::default(), vec![Some(x), Some(y)])?)
}

/// The tensors of `parts` along a new axis; the last node has the name of the original one where `output` is given.
fn joined(
    b: &mut Builder,
    c: &ImportedNode,
    parts: &[ValueId],
    axis: i64,
    output: Option<&[String]>,
) -> Made {
    let axes = b.ints(&c.sub("axes"), &[axis])?;
    if let ([one], Some(output)) = (parts, output) {
        let operands = vec![Some(*one), Some(axes)];
        return emit_last(b, c, "Unsqueeze", Attrs::default(), operands, output);
    }
    let mut all = Vec::with_capacity(parts.len());
    for part in parts {
        let operands = vec![Some(*part), Some(axes)];
        all.push(c.before(b, "Unsqueeze", Attrs::default(), operands)?);
    }
    if let ([one], None) = (all.as_slice(), output) {
        return Ok(*one);
    }
    let attrs = Attrs::default().with("axis", Attr::Int(axis));
    let operands = all.into_iter().map(Some).collect();
    match output {
        Some(output) => emit_last(b, c, "Concat", attrs, operands, output),
        None => Ok(c.before(b, "Concat", attrs, operands)?),
    }
}

/// Adds a node that yields an output of the original one.
fn emit_last(
    b: &mut Builder,
    c: &ImportedNode,
    op: &str,
    attrs: Attrs,
    operands: Vec<Option<ValueId>>,
    output: &[String],
) -> Made {
    let made = b.emit(op, &c.name, attrs, operands, output)?;
    let made = made.first().copied();
    Ok(made.ok_or_else(|| c.error("has no output"))?)
}

/// The values outside of the body that one direction reads in each step.
struct StepConstants {
    /// The recurrent weights, transposed; for a GRU that multiplies before it resets, those of the last gate alone are
    /// the second ones.
    weights: Vec<ValueId>,
    /// The recurrent bias of a GRU's last gate, where it is added before the reset.
    reset_bias: Option<ValueId>,
    /// The peephole weights of the gates i, o and f.
    peepholes: Vec<ValueId>,
}

/// Adds the Scan of direction `d`. Returns the final states, and the results of all steps where they are read.
fn direction(
    b: &mut Builder,
    c: &ImportedNode,
    layer: &Layer,
    d: usize,
    reversed: bool,
    activations: &[Activation],
) -> Result<Vec<ValueId>, ImportFailure> {
    let hidden = layer.hidden;
    let gates = layer.cell.gates() * hidden;
    let reset = layer.cell == Cell::Gru;
    let w = part(b, c, layer, c.need(1)?, 0, d)?;
    let w = transposed(b, c, w)?;
    let mut inner = binary(b, c, "MatMul", layer.x, w)?;
    let r = part(b, c, layer, c.need(2)?, 0, d)?;
    let mut outside = StepConstants {
        weights: vec![],
        reset_bias: None,
        peepholes: vec![],
    };
    match reset && !layer.linear_before_reset {
        false => outside.weights.push(transposed(b, c, r)?),
        true => {
            for range in [(0, 2 * hidden), (2 * hidden, 3 * hidden)] {
                let r = slice(b, c, r, 0, range)?;
                outside.weights.push(transposed(b, c, r)?);
            }
        }
    }
    if let Some(bias) = c.input(3) {
        let bias = part(b, c, layer, bias, 0, d)?;
        let own = slice(b, c, bias, 0, (0, gates))?;
        let other = slice(b, c, bias, 0, (gates, 2 * gates))?;
        let sum = match reset && layer.linear_before_reset {
            false => binary(b, c, "Add", own, other)?,
            true => {
                outside.reset_bias = Some(slice(b, c, other, 0, (2 * hidden, gates))?);
                let first = slice(b, c, own, 0, (0, 2 * hidden))?;
                let other = slice(b, c, other, 0, (0, 2 * hidden))?;
                let first = binary(b, c, "Add", first, other)?;
                let last = slice(b, c, own, 0, (2 * hidden, gates))?;
                let axis = Attrs::default().with("axis", Attr::Int(0));
                c.before(b, "Concat", axis, vec![Some(first), Some(last)])?
            }
        };
        inner = binary(b, c, "Add", inner, sum)?;
    }
    if let Some(p) = c.input(7).filter(|_| layer.cell == Cell::Lstm) {
        let p = part(b, c, layer, p, 0, d)?;
        for gate in 0..3 {
            let range = (gate * hidden, (gate + 1) * hidden);
            outside.peepholes.push(slice(b, c, p, 0, range)?);
        }
    }
    let mut operands = Vec::new();
    for i in 0..layer.states() {
        operands.push(match (c.input(5 + i), layer.zeros) {
            (Some(given), _) => part(b, c, layer, given, i64::from(layer.batch_first), d)?,
            (None, Some(zeros)) => zeros,
            (None, None) => return Err(c.error("an initial state is missing").into()),
        });
    }
    operands.push(inner);
    operands.extend(layer.steps.map(|(steps, _)| steps));
    let body = step::body(b, c, layer, inner, &outside, activations)?;
    let scanned = operands.len() - layer.states();
    let directions = |n: usize| Attr::Ints(vec![i64::from(reversed); n]);
    let mut attrs = Attrs::default()
        .with("num_scan_inputs", Attr::Int(scanned as i64))
        .with("scan_input_directions", directions(scanned));
    if layer.all_steps {
        attrs = attrs.with("scan_output_directions", directions(1));
    }
    let outputs = layer.states() + usize::from(layer.all_steps);
    let name = c.sub("Scan");
    let names: Vec<String> = (0..outputs).map(|o| format!("{name}.{o}")).collect();
    let operands = operands.into_iter().map(Some);
    Ok(body.emit(b, "Scan", &name, attrs, operands, &names)?)
}
