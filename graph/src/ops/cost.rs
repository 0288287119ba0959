//! What ops cost: floating-point operations and bytes moved, for concrete shapes.
//!
//! Bytes are those of all operands and outputs, each counted once. Operations follow the arithmetic of
//! the op; a transcendental counts about ten.

use crate::dim::Bindings;
use crate::graph::{Attrs, TensorType};

/// The work of one execution of an op, for concrete shapes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations; a fused multiply-add counts two.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

/// Elements of `ty`, zero where a dimension is unknown.
pub(super) fn elements(ty: &TensorType) -> f64 {
    ty.shape
        .iter()
        .map(|d| d.as_const().unwrap_or(0).max(0) as f64)
        .product()
}

/// Bytes of all operands and outputs.
pub(super) fn moved(inputs: &[Option<&TensorType>], outputs: &[&TensorType]) -> f64 {
    let all = inputs.iter().flatten().chain(outputs);
    all.map(|t| elements(t) * t.dtype.bits() as f64 / 8.).sum()
}

/// The cost of `flops` operations that read these operands and write these outputs.
pub(super) fn with_flops(
    flops: f64,
    inputs: &[Option<&TensorType>],
    outputs: &[&TensorType],
) -> Cost {
    Cost {
        flops,
        bytes: moved(inputs, outputs),
    }
}

/// The cost rule of an op with `N` operations per element of the first output.
pub fn per_element<const N: u32>(
    _: &Attrs,
    inputs: &[Option<&TensorType>],
    outputs: &[&TensorType],
) -> Cost {
    let n = outputs.first().map_or(0., |t| elements(t));
    with_flops(n * f64::from(N), inputs, outputs)
}

/// The cost rule of an op with `N` operations per element of the first operand.
pub(super) fn per_input_element<const N: u32>(
    _: &Attrs,
    inputs: &[Option<&TensorType>],
    outputs: &[&TensorType],
) -> Cost {
    let n = inputs.first().copied().flatten().map_or(0., elements);
    with_flops(n * f64::from(N), inputs, outputs)
}

/// The cost rule of an op without work: the output shares the operand's buffer, or follows from its type alone.
pub(super) fn free(_: &Attrs, _: &[Option<&TensorType>], _: &[&TensorType]) -> Cost {
    Cost::default()
}

/// The cost rule of an op such as a gather or a slice, which writes the bytes of its outputs and reads as many.
pub(super) fn output_traffic(
    _: &Attrs,
    _: &[Option<&TensorType>],
    outputs: &[&TensorType],
) -> Cost {
    Cost {
        flops: 0.,
        bytes: 2. * moved(&[], outputs),
    }
}

/// Bytes of a value under `bindings`; `None` where a symbol is unbound, or the size is negative or overflows.
pub fn value_bytes(ty: &TensorType, bindings: &Bindings) -> Option<u64> {
    crate::program::bytes_under(ty, bindings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Dim};

    #[test]
    fn bytes_of_a_value() {
        let ty = TensorType::new(DType::F16, vec![Dim::sym("s"), Dim::Const(3)]);
        assert_eq!(value_bytes(&ty, &Bindings::new()), None);
        assert_eq!(value_bytes(&ty, &[("s".into(), 5)].into()), Some(30));
        assert_eq!(value_bytes(&ty, &[("s".into(), i64::MAX)].into()), None);
        let packed = TensorType::new(DType::U2, ty.shape);
        assert_eq!(value_bytes(&packed, &[("s".into(), 3)].into()), Some(3));
    }
}
