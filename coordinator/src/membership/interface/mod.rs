//! The interface between the core and its shell: events with their times go in, commands and refusals come out.

mod commands;
mod error;
pub mod events;
mod moment;

pub use commands::{Command, ConnectionId, Fingerprint};
pub use error::MembershipError;
pub use moment::Moment;
