//! How far the loading of an install has come.

use std::sync::atomic::AtomicU64;

/// Bytes of weights loaded so far, and of all that the install loads.
#[derive(Debug, Default)]
pub struct Counter {
    pub done: AtomicU64,
    pub total: AtomicU64,
}
