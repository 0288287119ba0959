//! Passes that may change the last bits of values. Each runs only where the caller's choice of
//! [`Numerics`](convoke_common::rpc::Numerics) includes it; all other passes keep every bit.

pub mod batch_norm;
pub mod coded;
pub mod rewrite;
