//! Compute is shared: of two parties that both want to run, neither gets more of a worker's time than the other, except
//! for a few jobs. This holds between accounts, and between the leases and sessions of one account.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use convoke_common::world::{AccountId, CREDIT};

use crate::cluster::Host;
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;
use crate::world::{Party, Turn};

/// How much more time the first of a pair had than the second, while both wanted to run.
type LeadTimes<K> = BTreeMap<(K, K), Duration>;

/// The times of one worker.
#[derive(Default)]
struct WorkerShares {
    accounts: LeadTimes<AccountId>,
    leases: LeadTimes<Party>,
    /// How long the longest job took.
    longest: Duration,
}

#[derive(Default)]
pub(in crate::invariants) struct Fairness(BTreeMap<Host, WorkerShares>);

impl Invariant for Fairness {
    fn name(&self) -> &'static str {
        "compute is shared"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        for host in view.cluster.hosts() {
            for turn in view.cluster.turns(host) {
                let shared = self.0.entry(host).or_default();
                for (ahead, behind) in shared.note(&turn) {
                    found.say(format!(
                        "{host}: {ahead} had more than its part while {behind} waited"
                    ));
                }
            }
        }
    }
}

impl WorkerShares {
    /// Adds a turn. Returns the pairs of which the first is too far ahead of the second.
    fn note(&mut self, turn: &Turn) -> Vec<(String, String)> {
        self.longest = self.longest.max(turn.took);
        // A party that was idle begins one credit behind the clock. Others are up to two jobs ahead of the clock, which
        // moves only when a job begins or ends, and one more job runs on after its party's share is used up.
        let bound = CREDIT + 3 * self.longest;
        let (account, lease) = &turn.of;
        let others = turn.waited.iter();
        let accounts = others.clone().map(|(a, _)| a).filter(|a| *a != account);
        let accounts = accounts.cloned().collect();
        let of = account.clone();
        let mut found: Vec<(String, String)> =
            advance(&mut self.accounts, of, accounts, turn.took, bound)
                .into_iter()
                .map(|(a, b)| (a.to_string(), b.to_string()))
                .collect();
        let leases = others.filter(|(a, l)| a == account && l != lease);
        let leases = leases.cloned().collect();
        let of = turn.of.clone();
        let between = advance(&mut self.leases, of, leases, turn.took, bound);
        let text = |(a, l): Party| format!("{l} of {a}");
        found.extend(between.into_iter().map(|(a, b)| (text(a), text(b))));
        found
    }
}

/// Adds time during which `of` was served while `waited` wanted to be. The pairs of `of` with a party that did not want
/// to run start over at zero.
fn advance<K: Ord + Clone>(
    ahead: &mut LeadTimes<K>,
    of: K,
    waited: BTreeSet<K>,
    took: Duration,
    bound: Duration,
) -> Vec<(K, K)> {
    let mut found = Vec::new();
    ahead.retain(|(a, b), _| (*a != of || waited.contains(b)) && (*b != of || waited.contains(a)));
    for other in waited {
        let behind = ahead.get_mut(&(other.clone(), of.clone()));
        let repaid = behind.map_or(Duration::ZERO, |behind| {
            let repaid = took.min(*behind);
            *behind -= repaid;
            repaid
        });
        let pair = (of.clone(), other);
        let by = ahead.entry(pair.clone()).or_default();
        *by += took - repaid;
        if *by > bound {
            found.push(pair);
        }
    }
    found
}
