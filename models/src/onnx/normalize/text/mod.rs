//! Ops on text: those on strings, and the one that counts the n-grams of a text.

mod grams;
mod strings;

pub(in super::super) use grams::tf_idf;
pub(super) use strings::{non_zero, unique};
