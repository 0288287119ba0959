//! What ops cost: floating-point operations and bytes moved, for concrete shapes.
//!
//! Bytes are those of all operands and outputs, each counted once. Operations follow the arithmetic of
//! the op; a transcendental counts about ten.

use super::def::{Cost, OpDef};
use super::families::{control_cost, iterations};
use super::kind::Op;
use crate::dim::Bindings;
use crate::graph::{Attrs, Function, Node, TensorType};

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

/// The work of one execution of `node` under `bindings`; dimensions that stay unknown count as zero.
pub fn node_cost(f: &Function, node: &Node, bindings: &Bindings) -> Cost {
    let bind = |id: &crate::graph::ValueId| {
        let ty = &f.values.get(id.ix())?.ty;
        let shape = ty
            .shape
            .iter()
            .map(|d| crate::Dim::Const(d.eval(bindings).unwrap_or(0)));
        Some(TensorType::new(ty.dtype, shape.collect()))
    };
    let inputs: Vec<_> = node
        .inputs
        .iter()
        .map(|i| i.as_ref().and_then(bind))
        .collect();
    let outputs: Vec<_> = node.outputs.iter().filter_map(bind).collect();
    let inputs: Vec<_> = inputs.iter().map(Option::as_ref).collect();
    let outputs: Vec<_> = outputs.iter().collect();
    match super::lookup(&node.op) {
        Some(OpDef {
            op: Op::Control(op),
            ..
        }) => {
            let runs = iterations(f, node, *op, bindings);
            control_cost((*op, runs), &node.attrs, &inputs, &outputs, bindings)
        }
        Some(op) => super::custom::guarded(op, || (op.cost)(&node.attrs, &inputs, &outputs))
            .unwrap_or_default(),
        None => with_flops(0., &inputs, &outputs),
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
