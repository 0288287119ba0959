//! The error of a peer that violates the protocol of shared memory.

use convoke_common::error::{Code, Error};

/// The peer says something that makes no sense, for this reason.
pub(super) fn broken(why: &str) -> Error {
    Error::new(Code::ProtocolViolation, format!("shared memory: {why}"))
}
