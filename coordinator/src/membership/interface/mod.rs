//! The interface between the core and its shell: events with their times go in, commands and refusals come out.

mod asker;
mod commands;
mod connection;
mod error;
pub mod events;
mod moment;

pub use asker::Asker;
pub use commands::Command;
pub use connection::{ConnectionId, Fingerprint};
pub use error::MembershipError;
pub use moment::Moment;
