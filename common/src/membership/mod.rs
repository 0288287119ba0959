//! Membership, as every process takes part in it: how a process becomes and stays a member, and what the connections of
//! members and of newcomers may take of another process. Who is a member is decided by the coordinator alone.
//!
//! ```text
//! join token ── admission ──> certificate ── credentials (renewed, or fetched anew) ──> connection of a member
//!                                                                                             │
//!                   a process that listens: places (for newcomers), members (connections and bytes ahead)
//! ```

pub mod admission;
pub mod credentials;
pub mod members;
pub mod places;
