//! Why an op rejects a node.

use crate::dtype::DType;

/// Why an op rejects a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The registry has no such op.
    #[error("op '{op}' is not supported")]
    Unknown { op: String },
    /// Too few or too many operands.
    #[error("takes {expected} operands, {got} given")]
    OperandCount { expected: String, got: usize },
    /// A required operand is left out.
    #[error("operand '{operand}' is required")]
    MissingOperand { operand: &'static str },
    /// An operand has a dtype that the op does not accept.
    #[error("operand '{operand}' is {got}; it must be one of {allowed}")]
    DType {
        operand: String,
        got: DType,
        allowed: String,
    },
    /// Operands whose dtypes must agree differ in dtype.
    #[error("operands differ in dtype: {left} and {right}")]
    DTypeMismatch { left: DType, right: DType },
    /// An attribute is missing, unknown or of the wrong kind.
    #[error("attribute '{attr}': {reason}")]
    Attr { attr: String, reason: String },
    /// Shapes do not fit together.
    #[error("{reason}")]
    Shape { reason: String },
    /// The rule needs a host operand whose elements are not known before the run.
    #[error("operand '{operand}' decides the rank of the result and must be known before the run")]
    ValueNeeded { operand: &'static str },
}

impl OpError {
    /// Makes a shape error.
    pub fn shape(reason: impl Into<String>) -> OpError {
        OpError::Shape {
            reason: reason.into(),
        }
    }
}
