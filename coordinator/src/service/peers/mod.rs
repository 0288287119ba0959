//! Peers as the service meets them: newcomers, which may join, and members, which may call.

mod accept;
mod joining;
mod joins;
mod members;

pub use accept::run as accept;
pub use joins::Joins;
pub use members::Caller;
