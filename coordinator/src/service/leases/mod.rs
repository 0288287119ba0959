//! Leases at the workers: how they are installed, and how they are released.

mod installing;
mod releases;
mod releasing;

pub use releases::{ReleaseGuard, Releases};
