//! The queue of compute: which job has the next turn, and when a running job should give way.
//!
//! ```text
//! accounts ──the least served first──> leases of that account ──the least served first──> jobs by priority
//! ```
//! Start-time fair queueing: each account, and each lease within its account, has a *virtual time*, the nanoseconds for
//! which it was served divided by its weight. The least virtual time goes first. An account or lease that was idle
//! catches up with the others, except for [`CREDIT`]: time that nobody else wanted is not held against those that used
//! it, and those that rarely want to run are served at once.
//!
//! Invariants
//! 1. A job that waits is served before other accounts and leases get more than their part, however many jobs they
//!    have.
//! 2. Jobs that began and gave way are not refused, and hold no more places for each account than there are threads, or
//!    than [`MOST_BEGUN`] if those are fewer.
//! 3. Every queue is bounded, and the records of idle accounts are dropped as the others go on.
//!
//! The queue is plain state: its owner reports the time that jobs took, through [`FairQueue::charge`].

use std::collections::BTreeMap;
use std::time::Duration;

use super::job_queue::JobQueue;
use super::share::{AccountId, Share};
use crate::ids::LeaseId;
use crate::mutant;

/// How many jobs may wait: far more than all leases together have steps in flight.
const MOST: usize = 1 << 16;
/// How many jobs of one account may wait, so that there is room for others.
const MOST_OF_ACCOUNT: usize = 1 << 15;
/// How far behind the others an account or lease that was idle may begin; it is also the least length of a turn among
/// competitors.
pub const CREDIT: Duration = Duration::from_millis(2);
/// How long a step may run while other steps of its lease wait. If they took turns, all of them would end late.
pub const STEP_TURN: Duration = Duration::from_millis(500);
/// How many jobs of one account may have begun and not ended, where there are no more threads than that.
const MOST_BEGUN: usize = 4;
/// The least that a job is charged, in nanoseconds, so that jobs that take no time have turns as well.
const LEAST: u64 = 1_000;
/// How many accounts, or leases, may be recorded before those that are idle and can be dropped are looked for.
const IDLE: usize = 64;

fn credit() -> u64 {
    CREDIT.as_nanos() as u64
}

/// Competitors that are served in turns: the accounts, or the leases of one account.
struct Level<K, V> {
    /// The least virtual time among the competitors that want to run.
    clock: u64,
    turns: u64,
    all: BTreeMap<K, Child<V>>,
}

/// One competitor: an account or a lease.
struct Child<V> {
    /// The virtual time of the competitor.
    served: u64,
    /// The number of its last turn: of two competitors with equal virtual times, the one with the older turn goes
    /// first.
    turn: u64,
    weight: u32,
    /// How many of its jobs wait and have not begun.
    fresh: usize,
    /// How many of its jobs have begun and wait for their next turn.
    paused: usize,
    /// How many of its jobs run.
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
    /// Returns the competitor that is about to get one more job; if it was idle until now, its virtual time catches up.
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

    /// Charges a competitor for the nanoseconds for which it was served.
    fn charge(&mut self, key: &K, nanos: u64) {
        if let Some(child) = self.all.get_mut(key) {
            let part = nanos / u64::from(child.weight.max(1));
            child.served = child.served.saturating_add(part);
        }
        self.go_on();
    }

    /// Moves the clock on to the least virtual time among those that want to run.
    fn go_on(&mut self) {
        let busy = self.all.values().filter(|c| c.is_busy());
        if let Some(least) = busy.map(|c| c.served).min() {
            self.clock = self.clock.max(least);
        }
    }

    /// The next competitor to be served, among those for which `may` holds.
    fn first(&self, may: impl Fn(&Child<V>) -> bool) -> Option<(&K, &Child<V>)> {
        let all = self.all.iter().filter(|(_, c)| may(c));
        all.min_by_key(|(_, c)| (c.served, c.turn))
    }

    /// Notes that a job of a competitor begins. The clock advances before that, so that a competitor that is away saves
    /// up nothing for the time in which it does not want to run.
    fn has_turn(&mut self, key: &K) -> Option<&mut Child<V>> {
        self.go_on();
        self.turns += 1;
        let child = self.all.get_mut(key)?;
        child.turn = self.turns;
        Some(child)
    }

    /// Drops a competitor whose job has ended if it is idle, and would catch up with the others when it returns.
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

/// The queue of compute, fair between accounts and between the leases of each; the module says how.
pub struct FairQueue<T> {
    accounts: Level<AccountId, Leases<T>>,
    waiting: usize,
    /// How many jobs of one account may have begun and not ended.
    most_begun: usize,
}

/// Whether a running job has a competitor that should run in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rival {
    /// No job waits that could run.
    None,
    /// A job of another account or lease waits; the running one is ahead of it by this many nanoseconds, or behind if
    /// negative.
    Other(i64),
    /// Another job of the same lease waits.
    Same,
}

impl<T> FairQueue<T> {
    /// Creates the queue of a computer that runs as many jobs at once as it has threads.
    pub fn new(threads: usize) -> Self {
        FairQueue {
            accounts: Level::default(),
            waiting: 0,
            most_begun: threads.max(MOST_BEGUN),
        }
    }

    /// How many jobs wait.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Whether no job waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Adds a job, or returns it if the queue is full.
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

    /// Queues a job that began and gives way: as the first of its lease, or behind the others of its priority.
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

    /// The account and the lease whose turn it is, and whether a new job may begin. If `fresh` is false, only jobs that
    /// have begun may go on.
    fn first(&self, fresh: bool) -> Option<(&AccountId, LeaseId, bool)> {
        let begins = |a: &Child<Leases<T>>| fresh && a.fresh > 0 && a.begun() < self.most_begun;
        let accounts = &self.accounts;
        let (id, account) = accounts.first(|a| a.paused > 0 || begins(a))?;
        let begins = begins(account);
        let leases = &account.of;
        let (lease, _) = leases.first(|l| l.paused > 0 || begins && l.fresh > 0)?;
        Some((id, *lease, begins))
    }

    /// Whether a job waits that may have a turn now.
    pub fn may_begin(&self) -> bool {
        self.first(true).is_some()
    }

    /// Takes the job whose turn it is; it counts as running until [`FairQueue::ended`]. If `fresh` is false, only jobs
    /// that have begun may go on.
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

    /// Takes out a job that gave way, so that it goes on without a turn.
    pub fn take(&mut self, share: &Share, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let account = self.accounts.all.get_mut(share.account())?;
        let lease = account.of.all.get_mut(&share.lease())?;
        let item = lease.of.take(|item| item.begun && wanted(&item.of))?;
        (account.paused, lease.paused) = (account.paused - 1, lease.paused - 1);
        (account.running, lease.running) = (account.running + 1, lease.running + 1);
        self.waiting -= 1;
        Some(item.of)
    }

    /// Records that a running job has ended.
    pub fn ended(&mut self, share: &Share) {
        self.charge_nanos(share, LEAST);
        self.stops_running(share);
        if let Some(account) = self.accounts.all.get_mut(share.account()) {
            account.of.left(&share.lease());
        }
        self.accounts.left(share.account());
    }

    /// Charges a share for the time for which it was served.
    pub fn charge(&mut self, share: &Share, time: Duration) {
        self.charge_nanos(share, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    fn charge_nanos(&mut self, share: &Share, nanos: u64) {
        if let Some(account) = self.accounts.all.get_mut(share.account()) {
            account.of.charge(&share.lease(), nanos);
        }
        self.accounts.charge(share.account(), nanos);
    }

    /// The competitor that would run if a job of `share` gave way. `fresh` is as in [`FairQueue::pop`].
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

    /// Whether work of `share` that takes `time` may run at once, beside the queue. While other jobs wait, it may only
    /// if its account has had no more than its part, and is charged then.
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

    /// The jobs that wait, with their shares and whether they have begun.
    pub fn waiting(&self) -> impl Iterator<Item = (&Share, bool, &T)> {
        let leases = self.accounts.all.values().flat_map(|a| a.of.all.values());
        let items = leases.flat_map(|l| l.of.iter());
        items.map(|item| (&item.share, item.begun, &item.of))
    }
}

#[cfg(test)]
mod tests;
