//! The coordinator: decides which worker runs which nodes.
//!
//! ```text
//! Function -> passes (optimise) -> place -> partition -> Program per worker
//!
//! peers -- service (QUIC, roles, bounds) -- membership (who is there, plans, leases; a pure core)
//! owner -- admin (Unix socket)           -- authority (tokens, certificates) -- state (disk)
//!                                                                           -- audit (disk)
//! ```
//!
//! Planning and membership are pure and synchronous; nothing in them does I/O or waits, and nothing here reads a
//! weight. Once a lease is granted the coordinator is not on the path of a step.

pub mod admin;
mod audit;
mod authority;
mod blocking;
mod calendar;
#[cfg(test)]
mod filling;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod membership;
pub mod plan;
mod running;
mod service;
mod state;
mod state_dir;

#[cfg(test)]
mod testing;

pub use authority::token_file;
pub use plan::{bodies, partition, passes, place};
pub use running::{Coordinator, CoordinatorConfig, RunningCoordinator};
pub use state_dir::{backup_folder, restore};
