//! Bounds how deeply decoding may recurse: a peer may send anything, and a stack that overflows ends the process.

use std::cell::Cell;

use serde::{Deserialize, Deserializer, de::Error};

/// Levels of values inside values of the same kind, on the wire. What we make ourselves has far fewer.
const MAX_DEPTH: u32 = 64;

/// `deserialize_with` for a field that may hold its own kind again.
pub(crate) fn bounded<'de, T: Deserialize<'de>, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
    thread_local!(static DEPTH: Cell<u32> = const { Cell::new(0) });
    let depth = DEPTH.get();
    if depth >= MAX_DEPTH {
        return Err(D::Error::custom("the message is nested too deeply"));
    }
    DEPTH.set(depth + 1);
    let result = T::deserialize(d);
    DEPTH.set(depth);
    result
}
