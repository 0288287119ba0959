//! The ops that a device has kernels for, each with dtypes: what a worker tells the coordinator of its host and device.
//!
//! A kernel is chosen by op, attributes and the dtypes of all operands. A set names the op and the dtype of its first
//! operand, which is coarser: an op that is in the set may still be refused for its attributes. Nothing that a device has a
//! kernel for is missing from its set.

use serde::{Deserialize, Serialize};

use super::registry::lookup;
use crate::dtype::DType;

/// Most ops that a set may list; the registry has fewer.
const MOST_LISTED: usize = 1024;

/// Most bytes of the name of an op in a set; the longest name of the registry is shorter.
const LONGEST_NAME: usize = 64;

/// Dtypes, as one bit each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DTypeSet(u32);

impl DTypeSet {
    fn bit(dtype: DType) -> u32 {
        1u32.checked_shl(dtype as u32).unwrap_or(0)
    }

    /// Returns whether a dtype is in the set.
    pub fn contains(self, dtype: DType) -> bool {
        self.0 & DTypeSet::bit(dtype) != 0
    }

    /// Returns whether no dtype is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<DType> for DTypeSet {
    fn from_iter<I: IntoIterator<Item = DType>>(dtypes: I) -> DTypeSet {
        let bits = dtypes.into_iter().map(DTypeSet::bit);
        DTypeSet(bits.fold(0, |all, bit| all | bit))
    }
}

/// An op with dtypes of its first operand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpDTypes {
    pub op: String,
    pub dtypes: DTypeSet,
}

/// The ops that a device has kernels for. Custom ops are listed separately ([`super::CustomOp`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KernelSet {
    /// Every op of the registry at every dtype, except these.
    AllExcept(Vec<OpDTypes>),
    /// These and no others.
    Only(Vec<OpDTypes>),
}

impl KernelSet {
    /// Every op of the registry.
    pub fn all() -> KernelSet {
        KernelSet::AllExcept(vec![])
    }

    /// The set of these ops, each of which is named once; those without dtypes are left out.
    pub fn only(ops: impl IntoIterator<Item = (&'static str, DTypeSet)>) -> KernelSet {
        KernelSet::Only(listed(ops))
    }

    /// Every op of the registry except these, each of which is named once; those without dtypes are left out.
    pub fn all_except(ops: impl IntoIterator<Item = (&'static str, DTypeSet)>) -> KernelSet {
        KernelSet::AllExcept(listed(ops))
    }

    fn list(&self) -> &[OpDTypes] {
        match self {
            KernelSet::AllExcept(list) | KernelSet::Only(list) => list,
        }
    }

    /// Returns whether every op of the registry is in the set.
    pub fn is_all(&self) -> bool {
        matches!(self, KernelSet::AllExcept(list) if list.is_empty())
    }

    /// Returns whether a set that another process sent can be one: its list is short and sorted, and names things that
    /// may be ops.
    pub fn is_well_formed(&self) -> bool {
        let list = self.list();
        let named = |o: &OpDTypes| {
            let graphic = o.op.bytes().all(|b| b.is_ascii_graphic());
            !o.op.is_empty() && o.op.len() <= LONGEST_NAME && graphic
        };
        list.len() <= MOST_LISTED
            && list.iter().all(named)
            && list.windows(2).all(|two| two[0].op < two[1].op)
    }

    /// Returns whether the set has an op whose first operand has this dtype; `None` is an op without operands.
    pub fn contains(&self, op: &str, dtype: Option<DType>) -> bool {
        let list = self.list();
        let found = list.binary_search_by(|o| o.op.as_str().cmp(op)).ok();
        let found = found.and_then(|at| list.get(at));
        match self {
            // An op without operands is missing where it is at every dtype.
            KernelSet::AllExcept(_) => {
                let missing = |o: &OpDTypes| match dtype {
                    Some(dtype) => o.dtypes.contains(dtype),
                    None => DType::ALL.iter().all(|d| o.dtypes.contains(*d)),
                };
                lookup(op).is_some() && !found.is_some_and(missing)
            }
            KernelSet::Only(_) => found.is_some_and(|o| dtype.is_none_or(|d| o.dtypes.contains(d))),
        }
    }
}

fn listed(ops: impl IntoIterator<Item = (&'static str, DTypeSet)>) -> Vec<OpDTypes> {
    let ops = ops.into_iter().filter(|(_, dtypes)| !dtypes.is_empty());
    let mut list: Vec<OpDTypes> = ops
        .map(|(op, dtypes)| OpDTypes {
            op: op.to_owned(),
            dtypes,
        })
        .collect();
    list.sort_by(|a, b| a.op.cmp(&b.op));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(dtypes: &[DType]) -> DTypeSet {
        dtypes.iter().copied().collect()
    }

    #[test]
    fn a_set_has_ops_at_dtypes() {
        let ops = [
            ("Relu", of(&[DType::F32, DType::Str])),
            ("Add", of(&[DType::I64])),
            ("Neg", of(&[])),
        ];
        let check = |set: &KernelSet, op: &str, dtype: Option<DType>, want: bool| {
            assert!(set.is_well_formed());
            assert_eq!(set.contains(op, dtype), want, "{op} {dtype:?} {set:?}");
        };
        let only = KernelSet::only(ops);
        check(&only, "Relu", Some(DType::F32), true);
        check(&only, "Relu", Some(DType::Str), true);
        check(&only, "Relu", Some(DType::F16), false);
        check(&only, "Relu", None, true);
        check(&only, "Neg", Some(DType::F32), false);
        let except = KernelSet::all_except(ops);
        check(&except, "Relu", Some(DType::F32), false);
        check(&except, "Relu", Some(DType::F16), true);
        check(&except, "Neg", Some(DType::F32), true);
        check(&except, "NoSuchOp", Some(DType::F32), false);
        check(&except, "Relu", None, true);
        let none = KernelSet::all_except([("Relu", of(&DType::ALL))]);
        check(&none, "Relu", None, false);
        check(&KernelSet::all(), "Add", Some(DType::I64), true);
    }

    #[test]
    fn what_another_process_sends_is_bounded() {
        let check = |names: &[String], want: bool| {
            let one = |op: &String| OpDTypes {
                op: op.clone(),
                dtypes: of(&[DType::F32]),
            };
            let set = KernelSet::Only(names.iter().map(one).collect());
            assert_eq!(set.is_well_formed(), want, "{} names", names.len());
        };
        let numbered = |n: usize| (0..n).map(|i| format!("Op{i:04}")).collect::<Vec<_>>();
        check(&numbered(MOST_LISTED), true);
        check(&numbered(MOST_LISTED + 1), false);
        check(&["b".into(), "a".into()], false);
        check(&["a".into(), "a".into()], false);
        check(&[String::new()], false);
        check(&["a\nb".into()], false);
        check(&["a".repeat(65)], false);
    }

    #[test]
    fn a_set_can_list_the_registry() {
        let all = crate::ops::all().map(|def| (def.name, of(&[DType::F32])));
        assert!(KernelSet::only(all).is_well_formed());
    }
}
