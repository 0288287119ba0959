//! One step of an LSTM whose state becomes codes.

use convoke_graph::Tensor;
use convoke_graph::graph::{Attr, Attrs, ValueId};
use convoke_graph::ops::attrs::{CellActivation, RecurrentAttrs, RecurrentDirection};

use super::super::super::super::builder::Builder;
use super::super::super::node::{ImportFailure, ImportedNode, axis_of};
use super::{Codes, codes_of, product};
use crate::error::ModelError;

/// What a step needs beside states and input.
#[derive(Clone)]
pub(super) struct Cell {
    weights: Codes,
    /// The weights of the cell state in the gates of input, output and forgetting.
    peepholes: Option<[ValueId; 3]>,
    /// Those of the gates, of the fresh cell state, and of the cell state that is seen.
    activations: [CellActivation; 3],
    /// The bound of what activations of gates are given.
    clip: Option<f32>,
    /// Whether what is forgotten is what is not added.
    input_forget: bool,
}

impl Cell {
    pub fn new(
        c: &ImportedNode,
        own: &RecurrentDirection,
        all: &RecurrentAttrs,
        weights: Codes,
        peepholes: Option<[ValueId; 3]>,
    ) -> Result<Cell, ImportFailure> {
        let [gate, fresh, seen] = own.activations[..] else {
            return Err(c.wrong("activations", "three for each direction").into());
        };
        Ok(Cell {
            weights,
            peepholes,
            activations: [gate, fresh, seen],
            clip: all.clip.filter(|clip| *clip > 0.0),
            input_forget: all.input_forget,
        })
    }

    /// The same in a body, which captures the values from `outer`.
    pub fn captured(&self, b: &mut Builder, outer: &Builder) -> Cell {
        let mut inner = |id| b.capture(outer, id);
        Cell {
            weights: Codes {
                codes: inner(self.weights.codes),
                scale: inner(self.weights.scale),
                zero: self.weights.zero.map(&mut inner),
            },
            peepholes: self.peepholes.map(|all| all.map(&mut inner)),
            ..self.clone()
        }
    }

    /// Adds a step. The states are the hidden one, the cell's, and perhaps the last hidden one of sequences that have ended.
    /// `scanned` are the gates of the input, and perhaps which sequences have not ended. Returns the states and the result.
    pub fn step(
        &self,
        b: &mut Builder,
        c: &ImportedNode,
        states: &[ValueId],
        scanned: &[ValueId],
    ) -> Result<Vec<ValueId>, ModelError> {
        let ([h, cell, ..], [gates, ..]) = (states, scanned) else {
            return Err(c.error("has no state"));
        };
        let codes = codes_of(b, c, *h)?;
        let of_state = product(b, c, codes, self.weights)?;
        let sum = plain(b, c, "Add", &[*gates, of_state])?;
        let [fresh_h, fresh_cell] = self.gated(b, c, sum, *cell)?;
        let Some(running) = scanned.get(1) else {
            return Ok(vec![fresh_h, fresh_cell, fresh_h]);
        };
        let zero = b.literal(&c.sub("ended"), Tensor::scalar(0f32));
        let kept = |b: &mut Builder, fresh, old| plain(b, c, "Where", &[*running, fresh, old]);
        let cell = kept(b, fresh_cell, *cell)?;
        let shown = kept(b, fresh_h, zero)?;
        Ok(match states.get(2) {
            None => vec![kept(b, fresh_h, *h)?, cell, shown],
            Some(last) => vec![shown, cell, kept(b, fresh_h, *last)?, shown],
        })
    }

    /// The hidden and the cell state after a step, by the sums of the gates.
    fn gated(
        &self,
        b: &mut Builder,
        c: &ImportedNode,
        sum: ValueId,
        cell: ValueId,
    ) -> Result<[ValueId; 2], ModelError> {
        let names: Vec<String> = (0..4).map(|gate| c.sub(&format!("gate{gate}"))).collect();
        let attrs = axis_of(-1).with("num_outputs", Attr::Int(4));
        let split = b.emit("Split", &c.sub("Split"), attrs, vec![Some(sum)], &names)?;
        let [input, output, forget, fresh] = split[..] else {
            return Err(c.error("has no gates"));
        };
        let [gate, of_fresh, of_seen] = self.activations;
        let [of_input, of_output, of_forget] = match self.peepholes {
            Some(all) => all.map(Some),
            None => [None; 3],
        };
        let input = self.gate(b, c, input, of_input.map(|p| (p, cell)))?;
        let input = activated(b, c, gate, input)?;
        let forget = match self.input_forget {
            true => {
                let one = b.literal(&c.sub("one"), Tensor::scalar(1f32));
                plain(b, c, "Sub", &[one, input])?
            }
            false => {
                let forget = self.gate(b, c, forget, of_forget.map(|p| (p, cell)))?;
                activated(b, c, gate, forget)?
            }
        };
        let fresh = self.gate(b, c, fresh, None)?;
        let fresh = activated(b, c, of_fresh, fresh)?;
        let kept = plain(b, c, "Mul", &[forget, cell])?;
        let added = plain(b, c, "Mul", &[input, fresh])?;
        let cell = plain(b, c, "Add", &[kept, added])?;
        let output = self.gate(b, c, output, of_output.map(|p| (p, cell)))?;
        let output = activated(b, c, gate, output)?;
        let seen = activated(b, c, of_seen, cell)?;
        let h = plain(b, c, "Mul", &[output, seen])?;
        Ok([h, cell])
    }

    /// What a gate's activation is given: `x`, with the cell state times its weights, within the bounds.
    fn gate(
        &self,
        b: &mut Builder,
        c: &ImportedNode,
        mut x: ValueId,
        peephole: Option<(ValueId, ValueId)>,
    ) -> Result<ValueId, ModelError> {
        if let Some((weights, cell)) = peephole {
            let seen = plain(b, c, "Mul", &[weights, cell])?;
            x = plain(b, c, "Add", &[x, seen])?;
        }
        if let Some(clip) = self.clip {
            let bounds = [("least", -clip), ("most", clip)];
            let [low, high] = bounds.map(|(name, v)| b.literal(&c.sub(name), Tensor::scalar(v)));
            x = plain(b, c, "Clip", &[x, low, high])?;
        }
        Ok(x)
    }
}

fn plain(
    b: &mut Builder,
    c: &ImportedNode,
    op: &str,
    operands: &[ValueId],
) -> Result<ValueId, ModelError> {
    let operands = operands.iter().copied().map(Some).collect();
    c.before(b, op, Attrs::default(), operands)
}

/// Adds an activation.
fn activated(
    b: &mut Builder,
    c: &ImportedNode,
    activation: CellActivation,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let float = |b: &mut Builder, name: &str, v: f32| b.literal(&c.sub(name), Tensor::scalar(v));
    let by = |b: &mut Builder, op: &str, attrs: &[(&str, f32)]| {
        let attrs = attrs.iter().fold(Attrs::default(), |all, (name, v)| {
            all.with(name, Attr::Float(*v))
        });
        c.before(b, op, attrs, vec![Some(x)])
    };
    match activation {
        CellActivation::Affine { alpha, beta } => {
            let (alpha, beta) = (float(b, "alpha", alpha), float(b, "beta", beta));
            let scaled = plain(b, c, "Mul", &[x, alpha])?;
            plain(b, c, "Add", &[scaled, beta])
        }
        CellActivation::ScaledTanh { alpha, beta } => {
            let (alpha, beta) = (float(b, "alpha", alpha), float(b, "beta", beta));
            let scaled = plain(b, c, "Mul", &[x, beta])?;
            let bent = plain(b, c, "Tanh", &[scaled])?;
            plain(b, c, "Mul", &[bent, alpha])
        }
        CellActivation::Elu { alpha } => by(b, "Elu", &[("alpha", alpha)]),
        CellActivation::HardSigmoid { alpha, beta } => {
            by(b, "HardSigmoid", &[("alpha", alpha), ("beta", beta)])
        }
        CellActivation::LeakyRelu { alpha } => by(b, "LeakyRelu", &[("alpha", alpha)]),
        CellActivation::ThresholdedRelu { alpha } => by(b, "ThresholdedRelu", &[("alpha", alpha)]),
        CellActivation::Relu => by(b, "Relu", &[]),
        CellActivation::Sigmoid => by(b, "Sigmoid", &[]),
        CellActivation::Softplus => by(b, "Softplus", &[]),
        CellActivation::Softsign => by(b, "Softsign", &[]),
        CellActivation::Tanh => by(b, "Tanh", &[]),
    }
}
