//! Peers as the service meets them: newcomers, which may join, and members, which may call.

mod accept;
mod join_limit;
mod joining;
mod members;

pub use accept::accept_connections;
pub use join_limit::Joins;
pub use members::Caller;
