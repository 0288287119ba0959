//! Results of an If that are a scalar in one branch, and a list of one number in the other.
//!
//! The rank of such a result depends on data. It is imported as the list, which gives the same result as the scalar
//! wherever it is broadcast against a tensor that has an axis. Any other use of it is reported as unsupported.

use convoke_graph::graph::ValueId;

use super::super::builder::Builder;

/// Ops that broadcast their operands.
const BROADCAST: &[&str] = &[
    "Add",
    "And",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Mean",
    "Min",
    "Mul",
    "Or",
    "Pow",
    "Sub",
    "Sum",
    "Where",
    "Xor",
];

/// Why a node is not imported.
pub(in super::super) const REASON: &str =
    "an operand is a scalar in one branch of an If, and a list of one number in the other";

/// How a node reads operands that are a scalar or a list of one number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in super::super) enum Reads {
    /// The result is the same for both.
    Alike,
    /// The result is a scalar or a list of one number itself.
    PassedOn,
    Otherwise,
}

/// How node `op` of ONNX's own reads its operands.
pub(in super::super) fn reads(b: &Builder, op: &str, inputs: &[Option<ValueId>]) -> Reads {
    let is_single = |id: &ValueId| b.single.contains(id);
    if !inputs.iter().flatten().any(is_single) {
        return Reads::Alike;
    }
    let has_axes = |id: &ValueId| b.ty(*id).is_some_and(|ty| !ty.shape.is_empty());
    let mut others = inputs.iter().flatten().filter(|id| !is_single(id));
    match op {
        "CastLike"
            if !inputs
                .first()
                .copied()
                .flatten()
                .is_some_and(|x| is_single(&x)) =>
        {
            Reads::Alike
        }
        "Cast" | "CastLike" | "Identity" => Reads::PassedOn,
        _ if !BROADCAST.contains(&op) => Reads::Otherwise,
        _ if others.any(has_axes) => Reads::Alike,
        _ => Reads::PassedOn,
    }
}
