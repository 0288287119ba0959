//! Bounds how deeply decoding may recurse: a peer may send anything, and a stack that overflows ends the process.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The most levels of values inside values of the same kind, on the wire. Messages of our own have far fewer.
const MAX_DEPTH: u32 = 64;

/// `deserialize_with` for a field whose values may hold values of the same kind.
pub fn bounded<'de, T: Deserialize<'de>, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
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

/// As [`bounded`], for a list.
pub fn bounded_list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    d: D,
) -> Result<Vec<T>, D::Error> {
    bounded(d).map(|GrowingVec(list)| list)
}

/// A list that allocates memory as its elements arrive. serde's own list allocates up to 1 MiB for the length that a
/// message claims, which adds up over the levels of a nested message.
pub struct GrowingVec<T>(pub Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for GrowingVec<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_seq(Elements(PhantomData))
    }
}

struct Elements<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
    type Value = GrowingVec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<GrowingVec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = seq.next_element()? {
            list.push(element);
        }
        Ok(GrowingVec(list))
    }
}
