//! One module per family of ops: each answers for its own ops by name.

mod binary;
mod cast;
mod conv;
mod conv_f64;
mod fused;
mod handle;
mod index;
mod matmul;
mod movement;
mod norm;
mod pool;
mod random;
mod reduce;
mod shape;
mod softmax;
mod unary;
mod views;

use super::call::{Found, Spec};

/// The implementation of `spec`, by the family that knows the op.
pub(super) fn find(spec: &Spec<'_>) -> Found {
    let families = [
        unary::find,
        binary::find,
        cast::find,
        views::find,
        shape::find,
        matmul::find,
        fused::find,
        conv::find,
        reduce::find,
        softmax::find,
        norm::find,
        pool::find,
        movement::find,
        index::find,
        random::find,
        handle::find,
        crate::ops::find,
    ];
    for family in families {
        if let Some(body) = family(spec)? {
            return Ok(Some(body));
        }
    }
    Ok(None)
}
