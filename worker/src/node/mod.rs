//! The worker as a member of its cluster: it joins, registers, accepts connections, and holds leases and sessions.
//!
//! ```text
//! shell (starts, ends) -> coordinator link (registers, returns)
//!                     '-> accept -> service -> holdings (leases, programs, weights, sessions) -> keeper (gives memory back)
//! ```

pub(crate) mod accept;
pub(crate) mod connections;
pub(crate) mod coordinator_link;
pub(crate) mod holdings;
pub(crate) mod keeper;
pub(crate) mod records;
pub(crate) mod service;
pub(crate) mod shell;
#[cfg(test)]
pub(crate) mod testing;
