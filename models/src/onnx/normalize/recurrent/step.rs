//! One step of LSTM, GRU and RNN: the body of the Scan.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, TensorType, ValueId};

use super::super::super::builder::{Body, Builder};
use super::super::{ImportFailure, ImportedNode, operands, unsupported};
use super::{Activation, ActivationFunction, Cell, Layer, Made, StepConstants, binary};

/// The body of the Scan: one step of one direction.
pub(super) fn body(
    outer: &mut Builder,
    c: &ImportedNode,
    layer: &Layer,
    inner: ValueId,
    outside: &StepConstants,
    activations: &[Activation],
) -> Result<Body, ImportFailure> {
    let mut body = Builder::body(&c.name);
    let b = &mut body;
    let h = b.param(&c.sub("h"), layer.state.clone());
    let cell = (layer.states() == 2).then(|| b.param(&c.sub("c"), layer.state.clone()));
    let slice = outer.ty(inner).map(|ty| {
        let shape = ty.shape.get(1..).unwrap_or_default().to_vec();
        TensorType::new(ty.dtype, shape)
    });
    let x = b.param_of(&c.sub("x"), slice);
    let valid = match layer.steps {
        None => None,
        Some((_, lengths)) => {
            let step = b.param(&c.sub("step"), TensorType::new(DType::I64, vec![]));
            let lengths = b.capture(outer, lengths);
            Some(binary(b, c, "Less", step, lengths)?)
        }
    };
    let weights: Vec<_> = outside
        .weights
        .iter()
        .map(|w| b.capture(outer, *w))
        .collect();
    let peepholes: Vec<_> = outside
        .peepholes
        .iter()
        .map(|p| b.capture(outer, *p))
        .collect();
    let reset_bias = outside.reset_bias.map(|bias| b.capture(outer, bias));
    let (mut next, mut next_cell) = match (layer.cell, cell) {
        (Cell::Lstm, Some(cell)) => {
            let (h, cell) = lstm(
                b,
                c,
                layer,
                (h, cell, x),
                weights[0],
                &peepholes,
                activations,
            )?;
            (h, Some(cell))
        }
        (Cell::Gru, _) => {
            let next = gru(b, c, layer, (h, x), &weights, reset_bias, activations)?;
            (next, None)
        }
        _ => {
            let product = binary(b, c, "MatMul", h, weights[0])?;
            let sum = binary(b, c, "Add", x, product)?;
            (activated(b, c, layer, sum, activations[0])?, None)
        }
    };
    let mut y = next;
    if let Some(valid) = valid {
        let zero = scalar(b, c, layer, "zero", 0.0)?;
        let either = |b: &mut Builder, new, old| {
            let operands = vec![Some(valid), Some(new), Some(old)];
            c.before(b, "Where", Attrs::default(), operands)
        };
        if layer.all_steps {
            y = either(b, next, zero)?;
        }
        next = either(b, next, h)?;
        if let (Some(new), Some(old)) = (next_cell, cell) {
            next_cell = Some(either(b, new, old)?);
        }
    }
    let mut results = vec![next];
    results.extend(next_cell);
    results.extend(layer.all_steps.then_some(y));
    Ok(body.finish_body(&results, outer))
}

/// The next state and cell of an LSTM.
fn lstm(
    b: &mut Builder,
    c: &ImportedNode,
    layer: &Layer,
    (h, cell, x): (ValueId, ValueId, ValueId),
    weights: ValueId,
    peepholes: &[ValueId],
    activations: &[Activation],
) -> Result<(ValueId, ValueId), ImportFailure> {
    let product = binary(b, c, "MatMul", h, weights)?;
    let sum = binary(b, c, "Add", x, product)?;
    let gates = split(b, c, sum, 4)?;
    let [input, output, forget, candidate] = gates[..] else {
        return Err(c.error("has other gates").into());
    };
    let seen = |b: &mut Builder, gate: ValueId, which: usize, cell: ValueId| -> Made {
        match peepholes.get(which) {
            None => Ok(gate),
            Some(weights) => {
                let seen = binary(b, c, "Mul", *weights, cell)?;
                binary(b, c, "Add", gate, seen)
            }
        }
    };
    let input = seen(b, input, 0, cell)?;
    let input = activated(b, c, layer, input, activations[0])?;
    let forget = match layer.input_forget {
        true => {
            let one = scalar(b, c, layer, "one", 1.0)?;
            binary(b, c, "Sub", one, input)?
        }
        false => {
            let forget = seen(b, forget, 2, cell)?;
            activated(b, c, layer, forget, activations[0])?
        }
    };
    let candidate = activated(b, c, layer, candidate, activations[1])?;
    let kept = binary(b, c, "Mul", forget, cell)?;
    let added = binary(b, c, "Mul", input, candidate)?;
    let cell = binary(b, c, "Add", kept, added)?;
    let output = seen(b, output, 1, cell)?;
    let output = activated(b, c, layer, output, activations[0])?;
    // The cell is not clipped, as ONNX Runtime has it.
    let shown = activation(b, c, layer, cell, activations[2])?;
    Ok((binary(b, c, "Mul", output, shown)?, cell))
}

/// The next state of a GRU.
fn gru(
    b: &mut Builder,
    c: &ImportedNode,
    layer: &Layer,
    (h, x): (ValueId, ValueId),
    weights: &[ValueId],
    reset_bias: Option<ValueId>,
    activations: &[Activation],
) -> Made {
    let given = split(b, c, x, 3)?;
    let product = binary(b, c, "MatMul", h, weights[0])?;
    let parts = if weights.len() == 1 { 3 } else { 2 };
    let recurrent = split(b, c, product, parts)?;
    let gate = |b: &mut Builder, which: usize| {
        let sum = binary(b, c, "Add", given[which], recurrent[which])?;
        activated(b, c, layer, sum, activations[0])
    };
    let (update, reset) = (gate(b, 0)?, gate(b, 1)?);
    let seen = match weights.get(1) {
        Some(weights) => {
            let left = binary(b, c, "Mul", reset, h)?;
            binary(b, c, "MatMul", left, *weights)?
        }
        None => {
            let mut all = recurrent[2];
            if let Some(bias) = reset_bias {
                all = binary(b, c, "Add", all, bias)?;
            }
            binary(b, c, "Mul", reset, all)?
        }
    };
    let sum = binary(b, c, "Add", given[2], seen)?;
    let candidate = activated(b, c, layer, sum, activations[1])?;
    let one = scalar(b, c, layer, "one", 1.0)?;
    let rest = binary(b, c, "Sub", one, update)?;
    let new = binary(b, c, "Mul", rest, candidate)?;
    let old = binary(b, c, "Mul", update, h)?;
    binary(b, c, "Add", new, old)
}

/// Equal parts of a value along its last axis.
fn split(
    b: &mut Builder,
    c: &ImportedNode,
    x: ValueId,
    parts: i64,
) -> Result<Vec<ValueId>, ImportFailure> {
    let attrs = Attrs::default()
        .with("axis", Attr::Int(-1))
        .with("num_outputs", Attr::Int(parts));
    let name = c.sub("Split");
    let outputs: Vec<String> = (0..parts).map(|p| format!("{name}.{p}")).collect();
    Ok(b.emit("Split", &name, attrs, vec![Some(x)], &outputs)?)
}

fn scalar(b: &mut Builder, c: &ImportedNode, layer: &Layer, what: &str, v: f32) -> Made {
    let t = operands::float(layer.dtype, v);
    let t = t.ok_or_else(|| unsupported(format!("operands of {}", layer.dtype)))?;
    Ok(b.literal(&c.sub(what), t))
}

/// An activation of a clipped value.
fn activated(
    b: &mut Builder,
    c: &ImportedNode,
    layer: &Layer,
    mut x: ValueId,
    f: Activation,
) -> Made {
    if let Some(most) = layer.clip {
        let (low, high) = (
            scalar(b, c, layer, "least", -most)?,
            scalar(b, c, layer, "most", most)?,
        );
        let operands = vec![Some(x), Some(low), Some(high)];
        x = c.before(b, "Clip", Attrs::default(), operands)?;
    }
    activation(b, c, layer, x, f)
}

fn activation(b: &mut Builder, c: &ImportedNode, layer: &Layer, x: ValueId, f: Activation) -> Made {
    let alpha = Attrs::default().with("alpha", Attr::Float(f.alpha));
    let (op, attrs) = match f.function {
        ActivationFunction::Plain(op) => (op, Attrs::default()),
        ActivationFunction::WithAlpha(op) => (op, alpha),
        ActivationFunction::HardSigmoid => ("HardSigmoid", alpha.with("beta", Attr::Float(f.beta))),
        ActivationFunction::Affine => {
            let (alpha, beta) = (
                scalar(b, c, layer, "alpha", f.alpha)?,
                scalar(b, c, layer, "beta", f.beta)?,
            );
            let scaled = binary(b, c, "Mul", x, alpha)?;
            return binary(b, c, "Add", scaled, beta);
        }
        ActivationFunction::ScaledTanh => {
            let (alpha, beta) = (
                scalar(b, c, layer, "alpha", f.alpha)?,
                scalar(b, c, layer, "beta", f.beta)?,
            );
            let scaled = binary(b, c, "Mul", x, beta)?;
            let tanh = c.before(b, "Tanh", Attrs::default(), vec![Some(scaled)])?;
            return binary(b, c, "Mul", tanh, alpha);
        }
    };
    Ok(c.before(b, op, attrs, vec![Some(x)])?)
}
