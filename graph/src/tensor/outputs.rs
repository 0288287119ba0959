//! The output tensors of an op.

use std::ops::Deref;

use crate::tensor::Tensor;

/// The output tensors in the op's order. This type is as large as two pointers, since most ops have one output, and
/// each list is moved several times.
#[derive(Debug, Clone, Default)]
pub struct Outputs(OutputList);

#[derive(Debug, Clone, Default)]
enum OutputList {
    #[default]
    None,
    One(Tensor),
    #[expect(clippy::box_collection, reason = "a Vec is as large as three pointers")]
    Many(Box<Vec<Tensor>>),
}

impl Outputs {
    /// An empty list.
    #[inline]
    pub const fn new() -> Outputs {
        Outputs(OutputList::None)
    }

    /// Appends a tensor.
    #[inline]
    pub fn push(&mut self, tensor: Tensor) {
        self.0 = match std::mem::take(&mut self.0) {
            OutputList::None => OutputList::One(tensor),
            OutputList::One(first) => OutputList::Many(Box::new(vec![first, tensor])),
            OutputList::Many(mut all) => {
                all.push(tensor);
                OutputList::Many(all)
            }
        };
    }

    /// Removes the last tensor and returns it.
    #[inline]
    pub fn pop(&mut self) -> Option<Tensor> {
        match &mut self.0 {
            OutputList::Many(all) => all.pop(),
            _ => match std::mem::take(&mut self.0) {
                OutputList::One(tensor) => Some(tensor),
                _ => None,
            },
        }
    }

    /// Removes the only tensor and returns it; `None` where there are more or fewer.
    #[inline]
    pub fn pop_only(&mut self) -> Option<Tensor> {
        match &self.0 {
            OutputList::One(_) => self.pop(),
            OutputList::None | OutputList::Many(_) => None,
        }
    }

    /// Drops the tensors after the first `len`.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        match &mut self.0 {
            OutputList::Many(all) => all.truncate(len),
            OutputList::One(_) if len == 0 => self.0 = OutputList::None,
            OutputList::None | OutputList::One(_) => {}
        }
    }
}

impl Deref for Outputs {
    type Target = [Tensor];

    #[inline]
    fn deref(&self) -> &[Tensor] {
        match &self.0 {
            OutputList::None => &[],
            OutputList::One(tensor) => std::slice::from_ref(tensor),
            OutputList::Many(all) => all,
        }
    }
}

impl From<Tensor> for Outputs {
    #[inline]
    fn from(tensor: Tensor) -> Outputs {
        Outputs(OutputList::One(tensor))
    }
}

impl<const N: usize> From<[Tensor; N]> for Outputs {
    #[inline]
    fn from(all: [Tensor; N]) -> Outputs {
        all.into_iter().collect()
    }
}

impl From<Vec<Tensor>> for Outputs {
    fn from(all: Vec<Tensor>) -> Outputs {
        all.into_iter().collect()
    }
}

impl FromIterator<Tensor> for Outputs {
    #[inline]
    fn from_iter<I: IntoIterator<Item = Tensor>>(all: I) -> Outputs {
        let mut outputs = Outputs::new();
        outputs.extend(all);
        outputs
    }
}

impl Extend<Tensor> for Outputs {
    #[inline]
    fn extend<I: IntoIterator<Item = Tensor>>(&mut self, all: I) {
        all.into_iter().for_each(|t| self.push(t));
    }
}

impl IntoIterator for Outputs {
    type Item = Tensor;
    type IntoIter = std::iter::Chain<std::option::IntoIter<Tensor>, std::vec::IntoIter<Tensor>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, many) = match self.0 {
            OutputList::None => (None, vec![]),
            OutputList::One(tensor) => (Some(tensor), vec![]),
            OutputList::Many(all) => (None, *all),
        };
        one.into_iter().chain(many)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_list_of_any_length() {
        assert_eq!(size_of::<Outputs>(), 2 * size_of::<usize>());
        for len in 0..5u64 {
            let all: Vec<Tensor> = (0..len).map(Tensor::scalar).collect();
            let outputs = Outputs::from(all.clone());
            assert_eq!(outputs[..], all[..]);
            assert_eq!(outputs.clone().into_iter().collect::<Vec<_>>(), all);
            assert_eq!(outputs.clone().pop(), all.last().cloned());
            assert_eq!(outputs.clone().pop_only().is_some(), len == 1);
            for keep in 0..5 {
                let mut some = outputs.clone();
                some.truncate(keep);
                assert_eq!(some[..], all[..keep.min(all.len())]);
                while some.pop().is_some() {}
                assert!(some.is_empty());
                some.push(Tensor::scalar(7u64));
                assert_eq!(some[..], [Tensor::scalar(7u64)]);
            }
        }
    }
}
