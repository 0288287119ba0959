//! The activation that a fused op applies last.

use super::bad;
use crate::graph::Attrs;
use crate::ops::error::OpError;

/// An elementwise function on f32, with its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    Relu,
    Clip {
        min: f32,
        max: f32,
    },
    Sigmoid,
    HardSwish,
    HardSigmoid {
        alpha: f32,
        beta: f32,
    },
    Silu,
    /// x · sigmoid(x), where the sigmoid is rounded to the dtype before it is multiplied.
    GatedSigmoid,
    /// x · hard_sigmoid(x) with alpha 1/6 and beta 1/2, where the hard sigmoid is rounded to the dtype before it is multiplied.
    GatedHardSigmoid,
    Gelu,
    GeluTanh,
    Tanh,
    LeakyRelu {
        alpha: f32,
    },
}

impl Activation {
    /// Reads attributes `activation`, `act_alpha` and `act_beta`; `None` where there is no activation. Defaults are
    /// those of the op of the same name.
    pub fn new(attrs: &Attrs) -> Result<Option<Activation>, OpError> {
        let (alpha, beta) = (
            |d| attrs.float("act_alpha", d),
            |d| attrs.float("act_beta", d),
        );
        Ok(Some(match attrs.str("activation", "") {
            "" => return Ok(None),
            "Relu" => Activation::Relu,
            "Clip" => Activation::Clip {
                min: alpha(f32::MIN),
                max: beta(f32::MAX),
            },
            "Sigmoid" => Activation::Sigmoid,
            "HardSwish" => Activation::HardSwish,
            "HardSigmoid" => Activation::HardSigmoid {
                alpha: alpha(0.2),
                beta: beta(0.5),
            },
            "Silu" => Activation::Silu,
            "GatedSigmoid" => Activation::GatedSigmoid,
            "GatedHardSigmoid" => Activation::GatedHardSigmoid,
            "Gelu" => Activation::Gelu,
            "GeluTanh" => Activation::GeluTanh,
            "Tanh" => Activation::Tanh,
            "LeakyRelu" => Activation::LeakyRelu { alpha: alpha(0.01) },
            other => return Err(bad("activation", format!("'{other}' is unknown"))),
        }))
    }

    /// The same function without a rounding within it, which changes nothing in f32.
    pub fn rounded_once(self) -> Activation {
        match self {
            Activation::GatedSigmoid => Activation::Silu,
            Activation::GatedHardSigmoid => Activation::HardSwish,
            other => other,
        }
    }

    /// Floating-point operations per element, roughly.
    pub fn flops(&self) -> f64 {
        match self {
            Activation::Relu | Activation::Clip { .. } => 1.,
            Activation::LeakyRelu { .. } => 2.,
            Activation::HardSwish | Activation::HardSigmoid { .. } => 4.,
            _ => 10.,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Attr;

    #[test]
    fn reads_names_and_defaults() {
        let of = |name: &str| {
            Activation::new(&Attrs::default().with("activation", Attr::Str(name.into())))
        };
        assert_eq!(Activation::new(&Attrs::default()), Ok(None));
        assert_eq!(
            of("LeakyRelu"),
            Ok(Some(Activation::LeakyRelu { alpha: 0.01 }))
        );
        assert!(of("Nope").is_err());
    }
}
