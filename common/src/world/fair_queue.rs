//! The queue of compute: who has the next turn, and when whoever runs gives way.
//!
//! ```text
//! accounts ──the least served first──> leases of that account ──the least served first──> jobs by priority
//! ```
//! Start-time fair queueing: each account, and each lease within its account, has a *virtual time*, the nanoseconds that
//! it was served divided by its weight. Who has the least goes first. Whoever was idle catches up with the others, but for
//! [`CREDIT`]: time in which nobody else wanted to run is not held against those who used it, and those who rarely want to
//! run are served at once.
//!
//! Invariants
//! 1. Whoever waits is served before others have had more than their part, whatever their number of jobs is.
//! 2. Jobs that began and gave way are not refused, and hold no more places than [`MOST_BEGUN`] for each account.
//! 3. Every queue is bounded, and what is kept of accounts that are idle is forgotten as others go on.
//!
//! Plain state: time comes from the caller, as [`FairQueue::charge`].

use std::collections::BTreeMap;
use std::time::Duration;

use super::job_queue::JobQueue;
use super::share::{AccountId, Share};
use crate::ids::LeaseId;
use crate::mutant;

/// Jobs that may wait: far above steps in flight of all leases together.
const MOST: usize = 1 << 16;
/// Of these, jobs of one account: others find room.
const MOST_OF_ACCOUNT: usize = 1 << 15;
/// How far behind the others whoever was idle may begin, and so how long one turn of those who compete is at least.
pub const CREDIT: Duration = Duration::from_millis(2);
/// How long a step may run while others of its lease wait: in turns they would all end late.
pub const STEP_TURN: Duration = Duration::from_millis(500);
/// Jobs of an account that have begun and not ended.
pub const MOST_BEGUN: usize = 4;
/// What a job is charged at least, so that those that take no time have turns as well.
const LEAST: u64 = 1_000;
/// Idle accounts, or leases, that are kept before those are looked for that can be forgotten.
const IDLE: usize = 64;

fn credit() -> u64 {
    CREDIT.as_nanos() as u64
}

/// Those who are served in parts.
struct Level<K, V> {
    /// The virtual time of the least served who wants to run.
    clock: u64,
    turns: u64,
    all: BTreeMap<K, Child<V>>,
}

/// One of them.
struct Child<V> {
    /// Its virtual time.
    served: u64,
    /// The turn that it had last: of two who were served alike the other one goes first.
    turn: u64,
    weight: u32,
    /// Jobs that wait and have not begun.
    fresh: usize,
    /// Jobs that wait and have begun.
    paused: usize,
    /// Jobs that run.
    running: usize,
    of: V,
}

impl<V> Child<V> {
    fn is_busy(&self) -> bool {
        self.fresh + self.paused + self.running > 0
    }

    fn begun(&self) -> usize {
        self.paused + self.running
    }
}

impl<K, V> Default for Level<K, V> {
    fn default() -> Self {
        Level {
            clock: credit(),
            turns: 0,
            all: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Clone, V: Default> Level<K, V> {
    /// Who is about to have one job more: idle until now, it catches up.
    fn enter(&mut self, key: &K, weight: u32) -> &mut Child<V> {
        let least = self.clock.saturating_sub(credit());
        let child = self.all.entry(key.clone()).or_insert_with(|| Child {
            served: 0,
            turn: 0,
            weight,
            fresh: 0,
            paused: 0,
            running: 0,
            of: V::default(),
        });
        child.weight = weight;
        if !child.is_busy() {
            child.served = child.served.max(least);
        }
        child
    }

    /// It was served for so many nanoseconds.
    fn charge(&mut self, key: &K, nanos: u64) {
        if let Some(child) = self.all.get_mut(key) {
            let part = nanos / u64::from(child.weight.max(1));
            child.served = child.served.saturating_add(part);
        }
        let busy = self.all.values().filter(|c| c.is_busy());
        if let Some(least) = busy.map(|c| c.served).min() {
            self.clock = self.clock.max(least);
        }
    }

    /// Who is to be served next, of those who `may`.
    fn first(&self, may: impl Fn(&Child<V>) -> bool) -> Option<(&K, &Child<V>)> {
        let all = self.all.iter().filter(|(_, c)| may(c));
        all.min_by_key(|(_, c)| (c.served, c.turn))
    }

    fn has_turn(&mut self, key: &K) -> Option<&mut Child<V>> {
        self.turns += 1;
        let child = self.all.get_mut(key)?;
        child.turn = self.turns;
        Some(child)
    }

    /// Somebody has one job less. Who is idle, and would catch up when it returns, is forgotten.
    fn left(&mut self, key: &K) {
        let least = self.clock.saturating_sub(credit());
        let gone = |c: &Child<V>| !c.is_busy() && c.served <= least;
        if self.all.get(key).is_some_and(gone) {
            self.all.remove(key);
        }
        if self.all.len() > IDLE {
            self.all.retain(|_, c| !gone(c));
        }
    }
}

/// A job that waits.
struct Item<T> {
    share: Share,
    begun: bool,
    of: T,
}

type Leases<T> = Level<LeaseId, JobQueue<Item<T>>>;

/// See the module.
pub struct FairQueue<T> {
    accounts: Level<AccountId, Leases<T>>,
    waiting: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        FairQueue {
            accounts: Level::default(),
            waiting: 0,
        }
    }
}

/// Why whoever runs should give way, or should not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rival {
    /// Nobody waits who could run.
    None,
    /// Another account, or lease, of which this one is so many nanoseconds ahead; negative where it is behind.
    Other(i64),
    /// Another job of the same lease.
    Same,
}

impl<T> FairQueue<T> {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Adds a job, or returns it where the queue is full.
    pub fn push(&mut self, share: &Share, priority: i64, job: T) -> Result<(), T> {
        let anybody = mutant!("served-by-arrival");
        let anybody = anybody.then(|| Share::new(AccountId::named("anybody"), LeaseId(0)));
        let share = anybody.as_ref().unwrap_or(share);
        let account = self.accounts.all.get(share.account());
        let of_account = account.map_or(0, |a| a.fresh);
        if self.waiting >= MOST || of_account >= MOST_OF_ACCOUNT {
            return Err(job);
        }
        self.enter(share, priority, job, false);
        Ok(())
    }

    /// A job that began gives way, and waits for its next turn: as the first of its lease, or behind those of its priority.
    pub fn give_way(&mut self, share: &Share, priority: i64, first: bool, job: T) {
        self.stops_running(share);
        let priority = if first { i64::MAX } else { priority };
        self.enter(share, priority, job, true);
    }

    fn enter(&mut self, share: &Share, priority: i64, of: T, begun: bool) {
        let account = self.accounts.enter(share.account(), share.weight());
        let lease = account.of.enter(&share.lease(), 1);
        match begun {
            true => (account.paused, lease.paused) = (account.paused + 1, lease.paused + 1),
            false => (account.fresh, lease.fresh) = (account.fresh + 1, lease.fresh + 1),
        }
        let share = share.clone();
        lease.of.push(priority, Item { share, begun, of });
        self.waiting += 1;
    }

    fn stops_running(&mut self, share: &Share) {
        if let Some(account) = self.accounts.all.get_mut(share.account()) {
            account.running = account.running.saturating_sub(1);
            if let Some(lease) = account.of.all.get_mut(&share.lease()) {
                lease.running = lease.running.saturating_sub(1);
            }
        }
    }

    /// Whose turn it is. `fresh`: whether a job may begin, or only those go on that have begun.
    fn first(&self, fresh: bool) -> Option<(&AccountId, LeaseId, bool)> {
        let begins = |a: &Child<Leases<T>>| fresh && a.fresh > 0 && a.begun() < MOST_BEGUN;
        let accounts = &self.accounts;
        let (id, account) = accounts.first(|a| a.paused > 0 || begins(a))?;
        let begins = begins(account);
        let leases = &account.of;
        let (lease, _) = leases.first(|l| l.paused > 0 || begins && l.fresh > 0)?;
        Some((id, *lease, begins))
    }

    /// The job whose turn it is, which runs from now on until [`FairQueue::ended`]; whether it had begun before. `fresh` as
    /// there is room for one that begins.
    pub fn pop(&mut self, fresh: bool) -> Option<(Share, T)> {
        let (account, lease, begins) = self.first(fresh)?;
        let account = account.clone();
        let account = self.accounts.has_turn(&account)?;
        let of = account.of.has_turn(&lease)?;
        let item = match begins {
            true => of.of.pop(),
            false => of.of.take(|item| item.begun),
        }?;
        match item.begun {
            true => (account.paused, of.paused) = (account.paused - 1, of.paused - 1),
            false => (account.fresh, of.fresh) = (account.fresh - 1, of.fresh - 1),
        }
        account.running += 1;
        of.running += 1;
        self.waiting -= 1;
        Some((item.share, item.of))
    }

    /// Takes out a job that gave way, and goes on without a turn.
    pub fn take(&mut self, share: &Share, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let account = self.accounts.all.get_mut(share.account())?;
        let lease = account.of.all.get_mut(&share.lease())?;
        let item = lease.of.take(|item| item.begun && wanted(&item.of))?;
        (account.paused, lease.paused) = (account.paused - 1, lease.paused - 1);
        (account.running, lease.running) = (account.running + 1, lease.running + 1);
        self.waiting -= 1;
        Some(item.of)
    }

    /// A job that ran has ended.
    pub fn ended(&mut self, share: &Share) {
        self.charge_nanos(share, LEAST);
        self.stops_running(share);
        if let Some(account) = self.accounts.all.get_mut(share.account()) {
            account.of.left(&share.lease());
        }
        self.accounts.left(share.account());
    }

    /// A share was served for so long.
    pub fn charge(&mut self, share: &Share, time: Duration) {
        self.charge_nanos(share, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    fn charge_nanos(&mut self, share: &Share, nanos: u64) {
        if let Some(account) = self.accounts.all.get_mut(share.account()) {
            account.of.charge(&share.lease(), nanos);
        }
        self.accounts.charge(share.account(), nanos);
    }

    /// Who would run in the place of a job of `share`. `fresh` as for [`FairQueue::pop`].
    pub fn rival(&self, share: &Share, fresh: bool) -> Rival {
        let Some((account, lease, _)) = self.first(fresh) else {
            return Rival::None;
        };
        let ahead = |a: u64, b: u64| {
            let ahead = i128::from(a) - i128::from(b);
            ahead.clamp(i64::MIN.into(), i64::MAX.into()) as i64
        };
        let served = |id: &AccountId| self.accounts.all.get(id);
        let (Some(own), Some(other)) = (served(share.account()), served(account)) else {
            return Rival::Other(0);
        };
        if account != share.account() {
            return Rival::Other(ahead(own.served, other.served));
        }
        if lease == share.lease() {
            return Rival::Same;
        }
        let served = |id: &LeaseId| own.of.all.get(id).map_or(0, |l| l.served);
        Rival::Other(ahead(served(&share.lease()), served(&lease)))
    }

    /// Whether work of `share` that takes so long may run at once, beside the queue, while others wait: only where it has not
    /// had more than its part. It is charged then.
    pub fn admits(&mut self, share: &Share, time: Duration) -> bool {
        if let Rival::None = self.rival(share, true) {
            return true;
        }
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let clock = self.accounts.clock;
        let account = self.accounts.enter(share.account(), share.weight());
        let admitted = account.served <= clock;
        if admitted {
            self.charge_nanos(share, nanos.max(LEAST));
        }
        admitted
    }

    /// Those that wait, with whether they have begun.
    pub fn waiting(&self) -> impl Iterator<Item = (&Share, bool, &T)> {
        let leases = self.accounts.all.values().flat_map(|a| a.of.all.values());
        let items = leases.flat_map(|l| l.of.iter());
        items.map(|item| (&item.share, item.begun, &item.of))
    }
}

#[cfg(test)]
mod tests;
