//! Passes that may change values: `rewrite` and `batch_norm` in their last bits, `coded` by rounding operands to eight
//! bits. Each runs only where the caller's choice of [`Numerics`](convoke_common::rpc::Numerics) includes it; all other
//! passes keep every bit.

pub mod batch_norm;
pub mod coded;
pub mod rewrite;
