//! Text for people: how values, results, progress and failures are printed and parsed.

pub(crate) mod budget;
pub(crate) mod failure;
pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod values;
