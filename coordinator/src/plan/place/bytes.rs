//! The bytes that are counted for a value, before anything is known but its type and the sizes of axes.

use convoke_graph::dim::Bindings;
use convoke_graph::graph::{Function, Node, TensorType, ValueId};
use convoke_graph::ops::{self, Op, QuantisedOp};
use convoke_graph::{DType, Dim};

/// The most bytes that a value is counted with: far above any memory, and few enough that those of many values can be
/// added.
pub const MOST_BYTES: u64 = 1 << 56;

/// The sizes of axes that bytes are counted for.
#[derive(Clone, Copy)]
pub enum At<'a> {
    /// These sizes.
    Exactly(&'a Bindings),
    /// Every size up to these: the bytes are at least those of the largest value, which may be one of short axes.
    Most(&'a Bindings),
}

/// Returns the bytes of a value, at most [`MOST_BYTES`]; `None` if they depend on data. A value with a negative
/// dimension takes none: its node refuses to run with operands of these sizes, and says why.
pub fn bytes_of(ty: &TensorType, at: At<'_>) -> Option<u64> {
    let size = |d: &Dim| match at {
        At::Exactly(sizes) => d.eval(sizes),
        At::Most(bounds) => d.at_most_within(bounds),
    };
    let sizes: Option<Vec<i64>> = ty.shape.iter().map(size).collect();
    let sizes = sizes?;
    if sizes.iter().any(|size| *size < 0) {
        return Some(0);
    }
    let sizes = sizes.into_iter().map(Dim::Const).collect();
    let bytes = ops::value_bytes(&TensorType::new(ty.dtype, sizes), &Bindings::new());
    Some(bytes.map_or(MOST_BYTES, |b| b.min(MOST_BYTES)))
}

/// Returns the bytes that are counted for an output whose size depends on data: those of the largest tensor that its
/// node reads. Their sum would double wherever two such outputs meet, and be absurd at the end of a detector's
/// postprocessing. Where a step needs more than this, it asks the ledger for the rest while it runs.
pub fn of_unknown_size(read: impl Iterator<Item = u64>) -> u64 {
    read.max().unwrap_or(0)
}

/// Returns the bytes of the operands among `flows` and of the results of a node in f32, where they are of 16 bits and
/// the kernels of the host compute in f32. Packed weights are not widened as a whole.
pub fn widened_bytes<'a>(
    f: &Function,
    node: &'a Node,
    flows: impl Iterator<Item = &'a ValueId>,
    at: At<'_>,
) -> u64 {
    let is_half = |v: &&ValueId| matches!(f.ty(**v).dtype, DType::F16 | DType::BF16);
    if !node.outputs.iter().any(|v| is_half(&v)) {
        return 0;
    }
    let in_f32 = match node.kind() {
        Some(Op::Conv(_) | Op::Fused(_) | Op::MatMul(_) | Op::Recurrent(_) | Op::Vision(_)) => true,
        Some(Op::Quantised(op)) => op == QuantisedOp::MatMulNBits,
        _ => false,
    };
    if !in_f32 {
        return 0;
    }
    let halves = flows.chain(&node.outputs).filter(is_half);
    let bytes = halves.map(|v| bytes_of(f.ty(*v), at).unwrap_or(0).saturating_mul(2));
    bytes.fold(0, u64::saturating_add)
}

/// Adds the bytes of those values that are chosen.
pub fn sum(of: &[bool], bytes: &[u64]) -> u64 {
    let each = of.iter().zip(bytes).filter(|(of, _)| **of);
    each.fold(0u64, |sum, (_, b)| sum.saturating_add(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_shrinks_as_an_axis_grows_counts_with_its_largest_size() {
        let rest = &Dim::Const(8192) - &Dim::sym("n");
        let ty = TensorType::new(DType::F32, vec![rest, Dim::Const(2)]);
        let at: Bindings = [("n".into(), 8000)].into();
        assert_eq!(bytes_of(&ty, At::Exactly(&at)), Some(192 * 8));
        assert_eq!(bytes_of(&ty, At::Most(&at)), Some(8192 * 8));
        assert_eq!(bytes_of(&ty, At::Most(&Bindings::new())), None);
    }
}
