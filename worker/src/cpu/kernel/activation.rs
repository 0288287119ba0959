//! The activation that products and convolutions apply to their results.

use convoke_graph::ops::{OpError, attrs};
use convoke_kernels::conv::NarrowEnding;
use convoke_kernels::gemm::Activation;

use super::call::Spec;

/// The activation that the attributes specify.
pub(in crate::cpu) fn activation(spec: &Spec<'_>) -> Result<Activation, OpError> {
    let activation = attrs::Activation::new(spec.attrs)?;
    Ok(match activation.map(attrs::Activation::rounded_once) {
        None => Activation::None,
        Some(attrs::Activation::Relu) => Activation::Relu,
        Some(attrs::Activation::Clip { min, max }) => Activation::Clip { min, max },
        Some(attrs::Activation::Sigmoid) => Activation::Sigmoid,
        Some(attrs::Activation::HardSwish | attrs::Activation::GatedHardSigmoid) => {
            Activation::HardSwish
        }
        Some(attrs::Activation::HardSigmoid { alpha, beta }) => {
            Activation::HardSigmoid { alpha, beta }
        }
        Some(attrs::Activation::Silu | attrs::Activation::GatedSigmoid) => Activation::Silu,
        Some(attrs::Activation::Gelu) => Activation::Gelu,
        Some(attrs::Activation::GeluTanh) => Activation::GeluTanh,
        Some(attrs::Activation::Tanh) => Activation::Tanh,
        Some(attrs::Activation::LeakyRelu { alpha }) => Activation::LeakyRelu { alpha },
    })
}

/// What follows the sums of a fused op of 16 bits, each step of which is rounded.
pub(in crate::cpu) fn ending(spec: &Spec<'_>) -> Result<NarrowEnding, OpError> {
    let gate = match attrs::Activation::new(spec.attrs)? {
        Some(attrs::Activation::GatedSigmoid) => Some(Activation::Sigmoid),
        Some(attrs::Activation::GatedHardSigmoid) => Some(Activation::HardSigmoid {
            alpha: 1. / 6.,
            beta: 0.5,
        }),
        _ => None,
    };
    let (activation, gates) = match gate {
        Some(gate) => (gate, true),
        None => (activation(spec)?, false),
    };
    Ok(NarrowEnding { activation, gates })
}
