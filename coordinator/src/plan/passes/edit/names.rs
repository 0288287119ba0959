//! Names of values, each of which stands once in a function.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The names that a function's values have.
///
/// Invariants
/// 1. A name that was taken stays taken, so that the numbers before that in `next` need not be tried again.
#[derive(Debug, Clone, Default)]
pub struct Names {
    taken: HashSet<Arc<str>>,
    /// For each name that was asked for and taken, the number that is tried next behind it.
    next: HashMap<Arc<str>, usize>,
}

impl Names {
    /// Whether no name is taken.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Takes these names.
    pub fn extend(&mut self, names: impl IntoIterator<Item = Arc<str>>) {
        self.taken.extend(names);
    }

    /// Forgets all names.
    pub fn clear(&mut self) {
        *self = Names::default();
    }

    /// Takes `name`, or the first of `name.2`, `name.3`, … that is free where it is taken; returns it.
    pub fn unique(&mut self, name: &str) -> Arc<str> {
        let mut unique: Arc<str> = name.into();
        if self.taken.insert(unique.clone()) {
            return unique;
        }
        let n = self.next.entry(unique.clone()).or_insert(2);
        while !self.taken.insert(unique.clone()) {
            unique = format!("{name}.{n}").into();
            *n += 1;
        }
        unique
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbered_in_linear_time() {
        let mut names = Names::default();
        names.extend(["x".into(), "x.3".into()]);
        let n = 200_000;
        let last = (0..n).map(|_| names.unique("x")).last();
        // The number 3 is taken, and the first name has no number.
        assert_eq!(last.as_deref(), Some(format!("x.{}", n + 2).as_str()));
        assert_eq!(&*names.unique("y"), "y");
        assert_eq!(&*names.unique("x.2"), "x.2.2");
    }
}
