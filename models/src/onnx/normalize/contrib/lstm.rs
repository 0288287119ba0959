//! DynamicQuantizeLSTM: a layer whose weights are codes, and whose operands become codes when it runs: the whole input at once,
//! the state at each step. So the steps are those of a Scan.

use convoke_graph::graph::{Attr, Attrs, TensorType, ValueId};
use convoke_graph::{DType, Dim};

use super::super::super::builder::Builder;
use super::super::super::import::Importer;
use super::super::expansion::{Expansion, Made, axis_of};
use super::super::{ImportedNode, Outputs, unsupported};
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

/// One direction of the layer.
struct Direction {
    backward: bool,
    /// The contribution of the input and the biases to the gates: f32 [steps, batch, 4 * hidden].
    gates: ValueId,
    /// The hidden and the cell state before the first step.
    states: [ValueId; 2],
    weights: Codes,
}

/// Imports DynamicQuantizeLSTM.
pub(in super::super::super) fn dynamic_lstm(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let backward: &[bool] = match c.take_name("direction")?.as_deref() {
        None | Some("forward") => &[false],
        Some("reverse") => &[true],
        Some("bidirectional") => &[false, true],
        Some(_) => {
            return Err(c
                .wrong("direction", "forward, reverse or bidirectional")
                .into());
        }
    };
    c.take_int("hidden_size")?;
    if c.take_flag("input_forget", false)? {
        return Err(unsupported("attribute 'input_forget'"));
    }
    c.no_more_attributes()?;
    for (operand, what) in [(LENGTHS, "lengths of sequences"), (PEEPHOLES, "peepholes")] {
        if c.input(operand).is_some() {
            return Err(unsupported(what));
        }
    }
    if c.follows_a_refusal(&i.b) {
        return Ok(i.b.stand_ins(&c.outputs));
    }
    let x = codes_of(&mut i.b, &c, c.need(0)?)?;
    let (mut all, mut last) = (vec![], [vec![], vec![]]);
    for (d, backward) in backward.iter().enumerate() {
        let direction = direction(&mut i.b, &c, x, d as i64, *backward)?;
        let [h, cell, each] = steps(i, &c, direction)?;
        let mut e = Expansion { b: &mut i.b, c: &c };
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

/// Adds the nodes in front of the steps of direction `d`.
fn direction(
    b: &mut Builder,
    c: &ImportedNode,
    x: Codes,
    d: i64,
    backward: bool,
) -> Result<Direction, super::super::ImportFailure> {
    let (input, state) = (c.need(1)?, c.need(2)?);
    let mut e = Expansion { b, c };
    let hidden = match (e.shape(input)?.as_slice(), e.shape(state)?.as_slice()) {
        ([_, _, _], [_, hidden, _]) => hidden.as_const(),
        _ => return Err(c.error("weights must have rank 3").into()),
    };
    let hidden = hidden.ok_or_else(|| unsupported("a state of a size that is not known"))?;
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
    Ok(Direction {
        backward,
        gates,
        states: [initial(0)?, initial(1)?],
        weights,
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
) -> Result<Codes, super::super::ImportFailure> {
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
) -> Result<[ValueId; 3], super::super::ImportFailure> {
    let slice = i.b.ty(d.gates).map(|ty| {
        let shape: Vec<Dim> = ty.shape.get(1..).unwrap_or_default().to_vec();
        TensorType::new(ty.dtype, shape)
    });
    let types = d.states.map(|id| i.b.ty(id).cloned()).to_vec();
    let body = i.settled(types, 0, |i, types| {
        i.body(&c.name, |i| {
            let names = ["state", "cell", "gates"].map(|what| c.sub(what));
            let types = types.iter().chain([&slice]);
            let params = names.iter().zip(types);
            let params: Vec<_> = params.map(|(n, ty)| i.b.param_of(n, ty.clone())).collect();
            let [h, cell, gates] = params[..] else {
                return Err(c.error("has no state"));
            };
            let outer = i.enclosing.last();
            let outer = outer.ok_or_else(|| c.error("is in no function"))?;
            let weights = Codes {
                codes: i.b.capture(outer, d.weights.codes),
                scale: i.b.capture(outer, d.weights.scale),
                zero: d.weights.zero.map(|zero| i.b.capture(outer, zero)),
            };
            cell_of(&mut i.b, c, [h, cell, gates], weights)
        })
    })?;
    let way = || Attr::Ints(vec![d.backward.into()]);
    let attrs = Attrs::default()
        .with("num_scan_inputs", Attr::Int(1))
        .with("scan_input_directions", way())
        .with("scan_output_directions", way());
    let operands = [d.states[0], d.states[1], d.gates].map(Some).into_iter();
    let names = ["last_state", "last_cell", "states"].map(|what| c.sub(what));
    let made = body.emit(&mut i.b, "Scan", &c.sub("Scan"), attrs, operands, &names)?;
    match made[..] {
        [h, cell, all] => Ok([h, cell, all]),
        _ => Err(c.error("has no states").into()),
    }
}

/// Adds one step of an LSTM: the gates are those of input, output, forgetting and cell.
fn cell_of(
    b: &mut Builder,
    c: &ImportedNode,
    [h, cell, gates]: [ValueId; 3],
    weights: Codes,
) -> Result<Vec<ValueId>, ModelError> {
    let h = codes_of(b, c, h)?;
    let of_state = product(b, c, h, weights)?;
    let operands = vec![Some(gates), Some(of_state)];
    let sum = c.before(b, "Add", Attrs::default(), operands)?;
    let names: Vec<String> = (0..4).map(|gate| c.sub(&format!("gate{gate}"))).collect();
    let attrs = axis_of(-1).with("num_outputs", Attr::Int(4));
    let split = b.emit("Split", &c.sub("Split"), attrs, vec![Some(sum)], &names)?;
    let [input, output, forget, fresh] = split[..] else {
        return Err(c.error("has no gates"));
    };
    let mut plain = |op: &str, operands: &[ValueId]| {
        let operands = operands.iter().copied().map(Some).collect();
        c.before(b, op, Attrs::default(), operands)
    };
    let (input, output) = (plain("Sigmoid", &[input])?, plain("Sigmoid", &[output])?);
    let (forget, fresh) = (plain("Sigmoid", &[forget])?, plain("Tanh", &[fresh])?);
    let kept = plain("Mul", &[forget, cell])?;
    let added = plain("Mul", &[input, fresh])?;
    let cell = plain("Add", &[kept, added])?;
    let seen = plain("Tanh", &[cell])?;
    let h = plain("Mul", &[output, seen])?;
    Ok(vec![h, cell, h])
}
