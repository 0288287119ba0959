//! Counts of refusals by reason, so that an attack or a defect shows in `status`.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Counts by name. Names are constants of the code, so that a peer cannot make new ones.
#[derive(Debug, Default)]
pub struct Counters(Mutex<BTreeMap<&'static str, u64>>);

impl Counters {
    /// Adds one to the count called `name`.
    pub fn count(&self, name: &'static str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let n = all.entry(name).or_default();
        *n = n.saturating_add(1);
    }

    /// All counts that are not zero, by name.
    pub fn counted(&self) -> BTreeMap<String, u64> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect()
    }
}
