//! Leases at the workers: how they are installed, and how they are released.

mod installing;
mod open_releases;
mod releasing;

pub use open_releases::{ReleaseGuard, Releases};
