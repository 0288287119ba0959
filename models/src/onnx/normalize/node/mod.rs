//! What all rewritings work on: the node to import, and the nodes that it is expanded into.

mod attributes;
mod expansion;
mod imported;

pub(in crate::onnx) use expansion::{Expansion, Made, axis_of, exact, perm_of, without_axes};
pub(super) use expansion::{float, is_half, to_dtype};
pub(super) use imported::unsupported;
pub(in crate::onnx) use imported::{ImportFailure, ImportedNode, Outputs};
