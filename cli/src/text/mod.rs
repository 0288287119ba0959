//! What people read and write: values, results, progress and failures.

pub(crate) mod budget;
pub(crate) mod failure;
pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod values;
