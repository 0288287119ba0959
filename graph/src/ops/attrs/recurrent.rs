//! Attributes of the recurrent ops.

use super::bad;
use crate::graph::{Attr, Attrs};
use crate::ops::attrs::flag;
use crate::ops::error::OpError;
use crate::ops::kind::RecurrentOp;
use crate::ops::packing::packed_gemm_len;

/// An activation of a recurrent op, with its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CellActivation {
    Affine { alpha: f32, beta: f32 },
    Elu { alpha: f32 },
    HardSigmoid { alpha: f32, beta: f32 },
    LeakyRelu { alpha: f32 },
    Relu,
    ScaledTanh { alpha: f32, beta: f32 },
    Sigmoid,
    Softplus,
    Softsign,
    Tanh,
    ThresholdedRelu { alpha: f32 },
}

impl CellActivation {
    /// Reads an activation by its name, whose case does not count. Each activation that has a parameter takes the next
    /// number of its list, or the standard's default where the list has ended.
    fn named(
        name: &str,
        alphas: &mut dyn Iterator<Item = f32>,
        betas: &mut dyn Iterator<Item = f32>,
    ) -> Option<CellActivation> {
        let mut alpha = |default| alphas.next().unwrap_or(default);
        let mut beta = |default| betas.next().unwrap_or(default);
        Some(match name.to_ascii_lowercase().as_str() {
            "affine" => CellActivation::Affine {
                alpha: alpha(1.0),
                beta: beta(0.0),
            },
            "elu" => CellActivation::Elu { alpha: alpha(1.0) },
            "hardsigmoid" => CellActivation::HardSigmoid {
                alpha: alpha(0.2),
                beta: beta(0.5),
            },
            "leakyrelu" => CellActivation::LeakyRelu { alpha: alpha(0.01) },
            "relu" => CellActivation::Relu,
            "scaledtanh" => CellActivation::ScaledTanh {
                alpha: alpha(1.0),
                beta: beta(1.0),
            },
            "sigmoid" => CellActivation::Sigmoid,
            "softplus" => CellActivation::Softplus,
            "softsign" => CellActivation::Softsign,
            "tanh" => CellActivation::Tanh,
            "thresholdedrelu" => CellActivation::ThresholdedRelu { alpha: alpha(1.0) },
            _ => return None,
        })
    }
}

/// One direction of a recurrent op.
#[derive(Debug, Clone, PartialEq)]
pub struct RecurrentDirection {
    /// Whether the sequence runs from its end.
    pub reversed: bool,
    /// The activations f, g and h, as many as the op has.
    pub activations: Vec<CellActivation>,
}

/// Attributes of `GRU`, `LSTM` and `RNN`.
#[derive(Debug, Clone, PartialEq)]
pub struct RecurrentAttrs {
    pub directions: Vec<RecurrentDirection>,
    /// The bound that clips the inputs of activations; `None` if there is none.
    pub clip: Option<f32>,
    /// Elements of the state, where the node says it.
    pub hidden: Option<usize>,
    /// Whether the forget gate of an LSTM is one minus the input gate.
    pub input_forget: bool,
    /// Whether a GRU multiplies by the recurrent weights before it resets.
    pub linear_before_reset: bool,
    /// Whether the batch is the first axis of operands and results.
    pub batch_first: bool,
    /// Elements of an input, where the weights are packed.
    pub packed: Option<usize>,
}

impl RecurrentAttrs {
    /// Reads the attributes of a node.
    pub fn new(op: RecurrentOp, attrs: &Attrs) -> Result<RecurrentAttrs, OpError> {
        let reversed: &[bool] = match attrs.str("direction", "forward") {
            "forward" => &[false],
            "reverse" => &[true],
            "bidirectional" => &[false, true],
            other => return Err(bad("direction", format!("'{other}' is unknown"))),
        };
        let each = op.activations().len();
        let size = |name: &str| match attrs.get(name) {
            None => Ok(None),
            Some(_) => usize::try_from(attrs.int(name, -1))
                .map(Some)
                .map_err(|_| bad(name, "must not be negative")),
        };
        let clip = attrs.get("clip").map(|_| attrs.float("clip", 0.0));
        if let Some(clip) = clip.filter(|c| c.is_nan() || *c < 0.0) {
            return Err(bad("clip", format!("{clip} is no bound")));
        }
        let activations = activations(op, attrs, each * reversed.len())?;
        let directions = reversed.iter().zip(activations.chunks(each));
        let directions = directions.map(|(reversed, activations)| RecurrentDirection {
            reversed: *reversed,
            activations: activations.to_vec(),
        });
        Ok(RecurrentAttrs {
            directions: directions.collect(),
            clip,
            hidden: size("hidden_size")?,
            input_forget: flag(attrs, "input_forget", false),
            linear_before_reset: flag(attrs, "linear_before_reset", false),
            batch_first: flag(attrs, "layout", false),
            packed: size("packed_input_size")?,
        })
    }

    /// The gates of the recurrent weights that are multiplied together, in order. A GRU that resets first needs the
    /// product of its last gate later than the others.
    pub fn recurrent_parts(&self, op: RecurrentOp) -> &'static [usize] {
        match op {
            RecurrentOp::GRU if !self.linear_before_reset => &[2, 1],
            RecurrentOp::GRU => &[3],
            RecurrentOp::LSTM => &[4],
            RecurrentOp::RNN => &[1],
        }
    }
}

/// Elements of packed weights for `directions` directions, whose products have `gates` gates of `hidden` rows each, and
/// chains of length `k`. `None` on overflow.
pub fn packed_recurrent_len(
    directions: usize,
    parts: &[usize],
    hidden: usize,
    k: usize,
) -> Option<usize> {
    let part = |gates: &usize| packed_gemm_len(k, hidden.checked_mul(*gates)?);
    let all = parts.iter().map(part);
    let each = all.sum::<Option<usize>>()?;
    each.checked_mul(directions)
}

/// The activations of all directions, in order.
fn activations(
    op: RecurrentOp,
    attrs: &Attrs,
    count: usize,
) -> Result<Vec<CellActivation>, OpError> {
    let floats = |name: &str| match attrs.get(name) {
        Some(Attr::Floats(v)) => v.clone(),
        _ => Vec::new(),
    };
    let mut alphas = floats("activation_alpha").into_iter();
    let mut betas = floats("activation_beta").into_iter();
    let mut read = |name: &str| {
        CellActivation::named(name, &mut alphas, &mut betas)
            .ok_or_else(|| bad("activations", format!("'{name}' is unknown")))
    };
    let named: Result<Vec<_>, OpError> = match attrs.get("activations") {
        Some(Attr::Strs(names)) => names.iter().map(|name| read(name)).collect(),
        _ => {
            let defaults = op.activations().iter().cycle().take(count);
            defaults.map(|name| read(name)).collect()
        }
    };
    let named = named?;
    match named.len() == count {
        true => Ok(named),
        false => Err(bad(
            "activations",
            format!("must be {count} names, not {}", named.len()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_take_their_parameters_in_turn() {
        let names = [
            "LeakyRelu",
            "TANH",
            "Affine",
            "affine",
            "Elu",
            "HardSigmoid",
        ];
        let names = names.map(Into::into).to_vec();
        let attrs = Attrs::default()
            .with("direction", Attr::Str("bidirectional".into()))
            .with("activations", Attr::Strs(names))
            .with("activation_alpha", Attr::Floats(vec![0.5, 2.0, 3.0]))
            .with("activation_beta", Attr::Floats(vec![4.0]));
        let read = RecurrentAttrs::new(RecurrentOp::LSTM, &attrs).unwrap();
        let [first, second] = &read.directions[..] else {
            panic!("two directions");
        };
        use CellActivation::*;
        assert_eq!(
            (first.reversed, first.activations.as_slice()),
            (
                false,
                &[
                    LeakyRelu { alpha: 0.5 },
                    Tanh,
                    Affine {
                        alpha: 2.0,
                        beta: 4.0
                    }
                ][..]
            )
        );
        assert_eq!(
            (second.reversed, second.activations.as_slice()),
            (
                true,
                &[
                    Affine {
                        alpha: 3.0,
                        beta: 0.0
                    },
                    Elu { alpha: 1.0 },
                    HardSigmoid {
                        alpha: 0.2,
                        beta: 0.5
                    }
                ][..]
            )
        );
    }
}
