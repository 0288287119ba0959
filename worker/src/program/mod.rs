//! A worker's part of a lease: how its program is kept, installed, ordered and lowered.
//!
//! ```text
//! store (programs by content) -> install (loads weights, runs the init part) -> code (lowered) -> installed
//! ```

pub mod code;
pub(crate) mod init;
pub mod install;
pub mod installed;
pub(crate) mod order;
pub mod store;
