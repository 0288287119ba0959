//! Weights on their way into a worker, and the constants that are made of them.
//!
//! ```text
//! client, shared folder ──> feed (chunks, as the load buffer allows) ──> cache (chunks on disk)
//!                                                                   '──> loader (ranges of weights) ──> store (constants)
//! ```

pub mod cache;
pub mod counter;
pub(crate) mod feed;
pub(crate) mod load_buffer;
pub mod loader;
pub mod store;
