//! Membership and leases as a history: whether everything that was asked of a coordinator, and how it answered, is what a
//! coordinator could have answered that does one thing at a time.
//!
//! ```text
//! clients, workers, operators -- begin, end --> History -- one register per name and lease --> check --> violations
//! ```
//!
//! Invariants
//! 1. A request without an answer may have taken effect once, at any time since, or never; a request that was made again
//!    without an answer, any number of times. A request of an operator takes no effect after the end of the coordinator's
//!    process that was asked; registrations, departures and releases may, because who makes them repeats them.
//! 2. A status is read in one moment for all registers, so each register is checked by itself: linearizability is local.
//! 3. What the faults of a run do not excuse is a violation, and what they may excuse is none.

pub mod checker;
mod lease;
mod member;
mod record;
mod registers;

use std::fmt::Debug;

use checker::{End, Flaw, Operation, Register};
use lease::LeaseRegister;
use registers::{leases, members};

pub use member::{Answer, MemberRegister};
pub use record::{History, ListedLease, Listing, Moment, Reply, Request, RequestId};

/// How many operations before the violation a report shows.
const SHOWN: usize = 12;

impl History {
    /// Checks the history as far as it goes. Returns each violation as text.
    pub fn violations(&self, promises: MemberRegister) -> Vec<String> {
        let entries = self.entries();
        let members = members(&entries).into_iter();
        let members = members.filter_map(|(name, ops)| complaint(&promises, &name, &ops));
        let leases = leases(&entries).into_iter();
        let leases =
            leases.filter_map(|(lease, ops)| complaint(&LeaseRegister, &lease.to_string(), &ops));
        members.chain(leases).collect()
    }
}

/// Checks one register. Returns what is wrong with its history, and the operations that led there.
fn complaint<R>(register: &R, key: &str, operations: &[Operation<R::Op>]) -> Option<String>
where
    R: Register,
    R::Op: Debug,
{
    let flaw = checker::check(register, operations).err()?;
    let (what, at) = match flaw {
        Flaw::Unexplained(at) => ("is in no order that explains it", at),
        Flaw::Undecided(at) => ("overlaps with too many others", at),
    };
    let until = match operations[at].end {
        End::Answered(until) | End::Expires(until) => until,
        End::Never => u64::MAX,
    };
    let mut before: Vec<_> = operations.iter().filter(|o| o.begun <= until).collect();
    before.sort_by_key(|o| o.begun);
    let from = before.len().saturating_sub(SHOWN);
    let shown = before[from..].iter().map(|o| {
        let end = match o.end {
            End::Answered(at) => format!("{at}"),
            End::Expires(at) => format!("{at}?"),
            End::Never => "?".to_owned(),
        };
        format!("{}-{end} {:?}", o.begun, o.op)
    });
    let shown: Vec<String> = shown.collect();
    let what = format!("{key}: {:?} {what}", operations[at].op);
    Some(format!(
        "{what}; its history ends with {}",
        shown.join(", ")
    ))
}

#[cfg(test)]
mod tests;
