//! Recurrent layers: a cell runs over the steps of a sequence.
//!
//! Sequences of different lengths run to the length of the longest one. Beyond its own length a sequence keeps its state
//! and yields zeros, in either direction.

use crate::Dim;
use crate::graph::{Attrs, TensorType};
use crate::ops::attrs::{RecurrentAttrs, bad, packed_recurrent_len};
use crate::ops::cost::{Cost, elements, with_flops};
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::kind::{Op, RecurrentOp};
use crate::ops::shapes::*;

impl RecurrentOp {
    /// How many gates the weights have.
    pub const fn gates(self) -> usize {
        match self {
            RecurrentOp::GRU => 3,
            RecurrentOp::LSTM => 4,
            RecurrentOp::RNN => 1,
        }
    }

    /// How many tensors the state consists of.
    pub const fn states(self) -> usize {
        match self {
            RecurrentOp::LSTM => 2,
            RecurrentOp::GRU | RecurrentOp::RNN => 1,
        }
    }

    /// The activations of one direction, where a node names none.
    pub const fn activations(self) -> &'static [&'static str] {
        match self {
            RecurrentOp::GRU => &["Sigmoid", "Tanh"],
            RecurrentOp::LSTM => &["Sigmoid", "Tanh", "Tanh"],
            RecurrentOp::RNN => &["Tanh"],
        }
    }
}

/// The place of the first initial state among the operands.
const INITIAL: usize = 5;
/// The place of the peephole weights of an LSTM.
const PEEPHOLES: usize = 7;

/// Checks that an operand, if it is given, has this shape.
fn check_shape(i: &Infer<'_>, operand: usize, name: &str, want: &[Dim]) -> Result<(), OpError> {
    let Some(given) = i.opt(operand) else {
        return Ok(());
    };
    let shape = &given.ty.shape;
    if shape.len() == want.len() && shape.iter().zip(want).all(|(a, b)| can_equal(a, b)) {
        return Ok(());
    }
    Err(OpError::shape(format!(
        "'{name}' must have shape {want:?}, not {shape:?}"
    )))
}

/// The length of the state, after the shapes of the weights were checked.
fn hidden(
    i: &Infer<'_>,
    op: RecurrentOp,
    attrs: &RecurrentAttrs,
    input: &Dim,
) -> Result<Dim, OpError> {
    let directions = attrs.directions.len();
    if let Some(size) = attrs.packed {
        let hidden = attrs.hidden;
        let hidden = hidden.ok_or_else(|| bad("hidden_size", "packed weights need it"))?;
        unify(&size.into(), input, "elements of an input")?;
        for weights in [1, 2] {
            if i.dtype(weights)? != F32 {
                return Err(OpError::shape("packed weights must be f32"));
            }
        }
        let gates = [op.gates()];
        for (operand, name, parts, k) in [
            (1, "W", &gates[..], size),
            (2, "R", attrs.recurrent_parts(op), hidden),
        ] {
            let len = packed_recurrent_len(directions, parts, hidden, k);
            let len = len.ok_or_else(|| OpError::shape(format!("'{name}' is too large")))?;
            check_shape(i, operand, name, &[len.into()])?;
        }
        return Ok(hidden.into());
    }
    for weights in [1, 2] {
        let (left, right) = (i.dtype(0)?, i.dtype(weights)?);
        if left != right {
            return Err(OpError::DTypeMismatch { left, right });
        }
    }
    let r = i.ranked(2, "R", 3)?;
    let mut hidden = r[2].clone();
    if let Some(given) = attrs.hidden {
        hidden = unify(&hidden, &given.into(), "hidden_size and R")?;
    }
    let rows = &hidden * &Dim::from(op.gates());
    check_shape(i, 1, "W", &[directions.into(), rows.clone(), input.clone()])?;
    check_shape(i, 2, "R", &[directions.into(), rows, hidden.clone()])?;
    Ok(hidden)
}

fn layer(i: &Infer<'_>, op: RecurrentOp) -> Rule {
    let attrs = RecurrentAttrs::new(op, i.attrs)?;
    let x = i.ranked(0, "X", 3)?;
    let (steps, batch) = match attrs.batch_first {
        false => (&x[0], &x[1]),
        true => (&x[1], &x[0]),
    };
    let hidden = hidden(i, op, &attrs, &x[2])?;
    let directions = Dim::from(attrs.directions.len());
    let biases = &hidden * &Dim::from(2 * op.gates());
    check_shape(i, 3, "B", &[directions.clone(), biases])?;
    check_shape(i, 4, "sequence_lens", std::slice::from_ref(batch))?;
    let state = match attrs.batch_first {
        false => vec![directions.clone(), batch.clone(), hidden.clone()],
        true => vec![batch.clone(), directions.clone(), hidden.clone()],
    };
    for (at, name) in ["initial_h", "initial_c"]
        .iter()
        .enumerate()
        .take(op.states())
    {
        check_shape(i, INITIAL + at, name, &state)?;
    }
    if op == RecurrentOp::LSTM {
        let peepholes = [directions.clone(), &hidden * &Dim::Const(3)];
        check_shape(i, PEEPHOLES, "P", &peepholes)?;
    }
    let all = match attrs.batch_first {
        false => vec![steps.clone(), directions, batch.clone(), hidden],
        true => vec![batch.clone(), steps.clone(), directions, hidden],
    };
    let dtype = i.dtype(0)?;
    let mut outputs = vec![InferredOutput::of(dtype, all)];
    outputs.extend((0..op.states()).map(|_| InferredOutput::of(dtype, state.clone())));
    Ok(outputs)
}

fn gru(i: &Infer<'_>) -> Rule {
    layer(i, RecurrentOp::GRU)
}

fn lstm(i: &Infer<'_>) -> Rule {
    layer(i, RecurrentOp::LSTM)
}

fn rnn(i: &Infer<'_>) -> Rule {
    layer(i, RecurrentOp::RNN)
}

/// For each element of all steps, the chains over the input and over the state for each gate, and the gates' functions.
fn layer_cost<const GATES: u32>(
    _: &Attrs,
    inputs: &[Option<&TensorType>],
    outputs: &[&TensorType],
) -> Cost {
    let last = |t: Option<&TensorType>| t.and_then(|t| t.shape.last()?.as_const());
    let input = last(inputs.first().copied().flatten()).unwrap_or(0) as f64;
    let hidden = last(outputs.first().copied()).unwrap_or(0) as f64;
    let n = outputs.first().map_or(0., |t| elements(t));
    let gate = 2. * (input + hidden) + 15.;
    with_flops(f64::from(GATES) * gate * n, inputs, outputs)
}

/// The gates that are packed together, from attribute `parts`, and the rows of a direction.
fn parts(attrs: &Attrs) -> Result<Vec<usize>, OpError> {
    let parts = attrs.ints("parts").unwrap_or(&[]);
    let parts = parts
        .iter()
        .map(|p| usize::try_from(*p).ok().filter(|p| *p <= 4));
    let parts: Option<Vec<usize>> = parts.collect();
    let parts = parts.filter(|p| p.len() <= 2 && p.iter().sum::<usize>() > 0);
    parts.ok_or_else(|| {
        bad(
            "parts",
            "must be the numbers of gates of one or two products",
        )
    })
}

/// The shape rule of packing, which the family of fused ops defines.
pub(super) fn pack(i: &Infer<'_>) -> Rule {
    let w = i.ranked(0, "W", 3)?;
    let fixed = i.ty(0)?.fixed_shape();
    let fixed = fixed.ok_or(OpError::ValueNeeded { operand: "W" })?;
    let parts = parts(i.attrs)?;
    let gates: usize = parts.iter().sum();
    let [directions, rows, k] = fixed[..] else {
        return Err(OpError::shape(format!(
            "W must have rank 3, not {}",
            w.len()
        )));
    };
    if rows % gates != 0 {
        return Err(OpError::shape(format!(
            "{rows} rows do not fall into {gates} gates"
        )));
    }
    let len = packed_recurrent_len(directions, &parts, rows / gates, k);
    let len = len.ok_or_else(|| OpError::shape("the packed weight is too large"))?;
    one(F32, vec![len.into()])
}

/// Weights, and the operands that have the dtype of the weights unless these are packed.
const X: OperandDef = operand("X", FLOATS).class(1);
const W: OperandDef = operand("W", FLOATS);
const R: OperandDef = operand("R", FLOATS);
const B: OperandDef = operand("B", FLOATS).optional().class(1);
const LENGTHS: OperandDef = operand("sequence_lens", INDEX).optional();
const H: OperandDef = operand("initial_h", FLOATS).optional().class(1);
const ONE_STATE: &[OperandDef] = &[X, W, R, B, LENGTHS, H];

const ACTIVATIONS: AttrDef = attr("activations", AttrKind::Strs);
const ALPHA: AttrDef = attr("activation_alpha", AttrKind::Floats);
const BETA: AttrDef = attr("activation_beta", AttrKind::Floats);
const CLIP: AttrDef = attr("clip", AttrKind::Float);
const DIRECTION: AttrDef = attr("direction", AttrKind::Str);
const HIDDEN: AttrDef = attr("hidden_size", AttrKind::Int);
const LAYOUT: AttrDef = attr("layout", AttrKind::Int);
const PACKED: AttrDef = attr("packed_input_size", AttrKind::Int);

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef::of(
        Op::Recurrent(RecurrentOp::GRU),
        "Gated recurrent units over X [steps, batch, n]: all states [steps, directions, batch, h] and the last ones.",
        ONE_STATE,
        gru,
    )
    .attrs(&[
        ALPHA,
        BETA,
        ACTIVATIONS,
        CLIP,
        DIRECTION,
        HIDDEN,
        LAYOUT,
        attr("linear_before_reset", AttrKind::Int),
        PACKED,
    ])
    .outputs(1, 2)
    .cost(layer_cost::<3>),
    OpDef::of(
        Op::Recurrent(RecurrentOp::LSTM),
        "Long short-term memory over X [steps, batch, n]: all states [steps, directions, batch, h], the last ones and the last cells.",
        &[
            X,
            W,
            R,
            B,
            LENGTHS,
            H,
            operand("initial_c", FLOATS).optional().class(1),
            operand("P", FLOATS).optional().class(1),
        ],
        lstm,
    )
    .attrs(&[
        ALPHA,
        BETA,
        ACTIVATIONS,
        CLIP,
        DIRECTION,
        HIDDEN,
        attr("input_forget", AttrKind::Int),
        LAYOUT,
        PACKED,
    ])
    .outputs(1, 3)
    .cost(layer_cost::<4>),
    OpDef::of(
        Op::Recurrent(RecurrentOp::RNN),
        "A recurrent layer over X [steps, batch, n]: all states [steps, directions, batch, h] and the last ones.",
        ONE_STATE,
        rnn,
    )
    .attrs(&[ALPHA, BETA, ACTIVATIONS, CLIP, DIRECTION, HIDDEN, LAYOUT, PACKED])
    .outputs(1, 2)
    .cost(layer_cost::<1>),
];
