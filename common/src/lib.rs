//! What the processes of a cluster share: errors, ids, the wire, identities, the detection of lost peers, the memory
//! ledger, and the seams to the outside world. What they compute is in `convoke-graph`.
//!
//! Invariants
//! 1. Nothing here knows coordinator, worker or client; they meet in the types and services of this crate.
//! 2. Everything ambient (network, disk, clock, randomness, threads) comes through [`world::World`]; time
//!    is `tokio::time` only.
//! 3. Every size that comes from outside is checked before anything is allocated for it.

pub mod actor;
pub mod control_events;
pub mod counters;
pub mod detection;
pub mod device_spec;
pub mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod grant;
pub mod identity;
pub mod ids;
mod membership;
pub mod memory;
pub mod mutant;
pub mod rpc;
pub mod tasks;
pub mod telemetry;
pub mod world;

/// The version of this release. All members of a cluster run the same release.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub use error::{Code, Error, Result, Site};
pub use membership::{admission, credentials, members, places};
