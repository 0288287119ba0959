//! Compute threads in production: one job runs at a time. Jobs share the threads fairly, and a job gives way in the
//! middle when the turn of another has come.
//!
//! ```text
//! submit ──> FairQueue ──the turn──> crew: a rayon pool, whose threads interpret a step and run its kernels
//!               ^───gives way at a check point───┘
//! ```
//! A *crew* is a pool of threads with at most one job, whose kernels split over the crew's threads without a hand-over.
//! As long as no two jobs compete there is one crew. A job that gives way keeps its stack: the threads of its crew
//! sleep at their check points, and the next job runs on another crew. So a loop without end and a long kernel share
//! the processor with brief calls, and no job ever runs on top of another's stack.
//!
//! Invariants
//! 1. At most one crew has the turn. Only a job that was cancelled ends without it: what remains of such a job is
//!    brief.
//! 2. There are at most `MOST_LANES` crews, and few jobs of one account have begun at once ([`FairQueue`]).
//! 3. A check point costs one load as long as no job waits.

mod crew;
mod stuck;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convoke_common::ids::LeaseId;
use convoke_common::rpc::ComputeUse;
use convoke_common::world::{
    AccountId, CREDIT, Compute, FairQueue, Job, Refusal, RefusedJob, Rival, STEP_TURN, Share,
};
use tokio::time::Instant;

pub(crate) use self::crew::Crew;
use self::stuck::Watch;
use crate::health::measure::measure;

/// Most crews, and so most jobs of all accounts that have begun and not ended.
const MOST_LANES: usize = 64;
/// Lanes with as many threads as the worker has. Crews beyond these run their kernels on one thread each.
const WIDE: usize = 4;
/// Idle crews that are kept.
const KEPT: usize = 2;

/// What an entry of the queue waits to run: a job that has not begun, or one that sleeps in its crew.
enum WaitingWork {
    Fresh(NewJob),
    Paused(Arc<Crew>),
}

/// A job that has not begun.
struct NewJob {
    begin: Option<Job>,
    job: Job,
}

struct QueuedWork {
    what: WaitingWork,
    priority: i64,
    since: Instant,
}

/// The job that has the turn.
struct CurrentTurn {
    crew: Arc<Crew>,
    share: Share,
    priority: i64,
    /// The time until which the job is charged.
    charged: Instant,
    since: Instant,
}

#[derive(Default)]
struct SchedulerState {
    queue: FairQueue<QueuedWork>,
    running: Option<CurrentTurn>,
    /// Number of turns given so far.
    turns: u64,
    idle: Vec<Arc<Crew>>,
    crews: usize,
    /// Jobs that were cancelled while they slept, and end without a turn.
    leaving: Vec<(Arc<Crew>, Share)>,
    /// Number of jobs that wait, readable without the lock.
    waiting: Arc<AtomicUsize>,
}

struct Scheduler {
    name: String,
    threads: usize,
    epoch: Instant,
    first: Arc<Crew>,
    state: Mutex<SchedulerState>,
    waiting: Arc<AtomicUsize>,
    watch: Mutex<Watch>,
}

/// The compute threads of a worker; clones share them.
#[derive(Clone)]
pub struct Threads {
    shared: Arc<Scheduler>,
}

impl Threads {
    /// Starts a pool of `threads` threads named after `name`.
    pub fn start(name: &str, threads: usize) -> Result<Threads, rayon::ThreadPoolBuildError> {
        let threads = threads.max(1);
        let first = Crew::new(&format!("{name}-compute"), threads)?;
        let state = SchedulerState {
            idle: vec![first.clone()],
            crews: 1,
            ..SchedulerState::default()
        };
        let shared = Arc::new(Scheduler {
            waiting: state.waiting.clone(),
            name: name.to_owned(),
            threads,
            epoch: Instant::now(),
            first: first.clone(),
            state: Mutex::new(state),
            watch: Mutex::default(),
        });
        first.of(&shared);
        Ok(Threads { shared })
    }

    /// The thread that has stopped for good although its crew has the turn, and the share of that turn. To be called
    /// twice a second.
    pub fn stuck(&self) -> Option<(String, Share)> {
        let shared = &self.shared;
        let (running, turn) = {
            let s = shared.lock();
            let running = s.running.as_ref();
            (running.map(|r| (r.crew.clone(), r.share.clone())), s.turns)
        };
        let mut watch = shared.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let crew = running.as_ref().map(|(crew, _)| &**crew);
        let thread = watch.look(crew, turn, Instant::now())?;
        Some((thread, running?.1))
    }
}

impl SchedulerState {
    /// Charges the job that has the turn for its time until now.
    fn charge(&mut self, now: Instant) {
        if let Some(r) = &mut self.running {
            self.queue
                .charge(&r.share, now.saturating_duration_since(r.charged));
            r.charged = now;
        }
    }

    /// Whether there is an idle crew for a job that begins. Crews beyond the first are made where a job gives way.
    fn has_room(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Takes the idle crew with the most threads; among equals, the one that was used last.
    fn widest(&mut self) -> Option<Arc<Crew>> {
        let idle = self.idle.iter().enumerate();
        let (at, _) = idle.max_by_key(|(_, l)| l.pool().current_num_threads())?;
        Some(self.idle.remove(at))
    }

    fn runs(&self, crew: &Crew) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|r| std::ptr::eq(&*r.crew, crew))
    }

    /// Gives the turn to the next job: a job that slept is woken, a job that begins is returned with its crew.
    fn dispatch(&mut self, now: Instant) -> Option<(Arc<Crew>, NewJob)> {
        debug_assert!(self.running.is_none());
        let popped = self.queue.pop(self.has_room());
        self.waiting.store(self.queue.len(), Ordering::Relaxed);
        let (share, entry) = popped?;
        self.turns += 1;
        let (crew, fresh) = match entry.what {
            WaitingWork::Paused(crew) => (crew, None),
            WaitingWork::Fresh(fresh) => (self.widest()?, Some(fresh)),
        };
        self.running = Some(CurrentTurn {
            crew: crew.clone(),
            share,
            priority: entry.priority,
            charged: now,
            since: now,
        });
        crew.runs(!self.queue.is_empty());
        fresh.map(|fresh| (crew, fresh))
    }
}

impl Scheduler {
    fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `next` on a crew, and then further jobs as long as the crew gets the turn.
    fn serve(self: &Arc<Scheduler>, crew: Arc<Crew>, mut next: NewJob) {
        let crew = &crew;
        crew.enter(|| {
            loop {
                let NewJob { begin, job } = next;
                let run = move || {
                    begin.into_iter().for_each(|begin| begin());
                    job();
                };
                // A job reports its own panics; one that escapes it must not end the loop.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
                match self.over(crew) {
                    Some(fresh) => next = fresh,
                    None => return,
                }
            }
        });
    }

    fn start(self: &Arc<Scheduler>, crew: Arc<Crew>, fresh: NewJob) {
        let (shared, on) = (self.clone(), crew.clone());
        crew.pool().spawn(move || shared.serve(on, fresh));
    }

    /// Ends the job of a crew; returns the job that the crew runs next, if the turn goes to a new job on it.
    fn over(self: &Arc<Scheduler>, crew: &Arc<Crew>) -> Option<NewJob> {
        let mut surplus = None;
        let mut s = self.lock();
        let now = Instant::now();
        if s.runs(crew) {
            s.charge(now);
            if let Some(r) = s.running.take() {
                s.queue.ended(&r.share);
            }
        } else if let Some(at) = s.leaving.iter().position(|(l, _)| Arc::ptr_eq(l, crew)) {
            let (_, share) = s.leaving.swap_remove(at);
            s.queue.ended(&share);
        }
        crew.rests();
        if s.idle.len() >= KEPT && !Arc::ptr_eq(crew, &self.first) {
            s.crews -= 1;
            surplus = Some(crew.clone());
        } else {
            s.idle.push(crew.clone());
        }
        let started = match s.running {
            None => s.dispatch(now),
            Some(_) => None,
        };
        drop(s);
        drop(surplus);
        let (on, fresh) = started?;
        if Arc::ptr_eq(&on, crew) {
            return Some(fresh);
        }
        self.start(on, fresh);
        None
    }

    /// Called at a check point of a crew: gives the turn to a rival that should run first, if there is one. The crew
    /// then sleeps until it has the turn again, or its job is cancelled.
    fn give_way(self: &Arc<Scheduler>, crew: &Arc<Crew>) {
        let mut made: Option<Option<Arc<Crew>>> = None;
        loop {
            let mut s = self.lock();
            if let Some(Some(crew)) = made.take_if(|made| made.is_some()) {
                s.idle.push(crew);
                made = Some(None);
            }
            if !s.runs(crew) {
                return;
            }
            let now = Instant::now();
            s.charge(now);
            let may_make = made.is_none() && s.crews < MOST_LANES;
            let Some(r) = &s.running else { return };
            let rival = s.queue.rival(&r.share, s.has_room() || may_make);
            let (gives_way, first) = match rival {
                Rival::None => (false, true),
                Rival::Other(ahead) => (ahead >= CREDIT.as_nanos() as i64, true),
                Rival::Same => (now.saturating_duration_since(r.since) >= STEP_TURN, false),
            };
            if !gives_way {
                crew.looked(self.micros(now), !s.queue.is_empty());
                return;
            }
            if !s.has_room() && may_make {
                s.crews += 1;
                let number = s.crews;
                drop(s);
                // The crew is made without the lock, since starting threads takes a while.
                let new = self.another(number);
                if new.is_none() {
                    self.lock().crews -= 1;
                }
                made = Some(new);
                continue;
            }
            let Some(r) = s.running.take() else { return };
            crew.sleeps();
            let entry = QueuedWork {
                what: WaitingWork::Paused(crew.clone()),
                priority: r.priority,
                since: now,
            };
            s.queue.give_way(&r.share, r.priority, first, entry);
            let started = s.dispatch(now);
            drop(s);
            if let Some((on, fresh)) = started {
                self.start(on, fresh);
            }
            return;
        }
    }

    fn another(self: &Arc<Scheduler>, number: usize) -> Option<Arc<Crew>> {
        let threads = if number <= WIDE { self.threads } else { 1 };
        match Crew::new(&format!("{}-crew-{number}", self.name), threads) {
            Ok(crew) => {
                crew.of(self);
                Some(crew)
            }
            Err(e) => {
                tracing::warn!("compute cannot be shared for now: no further thread: {e}");
                None
            }
        }
    }

    /// Lets a sleeping job that was cancelled end without a turn.
    fn leave(&self, crew: &Arc<Crew>, s: &mut SchedulerState) {
        let is_it =
            |e: &QueuedWork| matches!(&e.what, WaitingWork::Paused(l) if Arc::ptr_eq(l, crew));
        let found = s.queue.waiting().find(|(_, _, e)| is_it(e));
        if let Some(share) = found.map(|(share, _, _)| share.clone()) {
            s.queue.take(&share, is_it);
            s.waiting.store(s.queue.len(), Ordering::Relaxed);
            s.leaving.push((crew.clone(), share));
        }
        crew.leaves();
    }

    fn micros(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.epoch).as_micros() as u64
    }

    fn push(
        self: &Arc<Scheduler>,
        share: &Share,
        priority: i64,
        fresh: NewJob,
    ) -> Result<(), RefusedJob> {
        let now = Instant::now();
        let mut s = self.lock();
        s.charge(now);
        let entry = QueuedWork {
            what: WaitingWork::Fresh(fresh),
            priority,
            since: now,
        };
        if let Err(entry) = s.queue.push(share, priority, entry) {
            let WaitingWork::Fresh(NewJob { job, .. }) = entry.what else {
                return Ok(());
            };
            let reason = Refusal::Full;
            return Err(RefusedJob { job, reason });
        }
        s.waiting.store(s.queue.len(), Ordering::Relaxed);
        if let Some(r) = &s.running {
            r.crew.contest();
            return Ok(());
        }
        let started = s.dispatch(now);
        drop(s);
        if let Some((crew, fresh)) = started {
            self.start(crew, fresh);
        }
        Ok(())
    }
}

impl Compute for Threads {
    fn threads(&self) -> usize {
        self.shared.threads
    }

    fn speed(&self) -> (f64, f64) {
        measure(self.shared.first.pool())
    }

    fn submit(&self, share: &Share, priority: i64, job: Job) -> Result<(), RefusedJob> {
        self.shared
            .push(share, priority, NewJob { begin: None, job })
    }

    fn submit_begun(
        &self,
        share: &Share,
        priority: i64,
        begin: Job,
        job: Job,
    ) -> Result<(), RefusedJob> {
        let begin = Some(begin);
        self.shared.push(share, priority, NewJob { begin, job })
    }

    fn admits(&self, share: &Share, time: Duration) -> bool {
        // Without waiting jobs no one competes for the threads: nothing is checked or charged.
        if self.shared.waiting.load(Ordering::Relaxed) == 0 {
            return true;
        }
        let mut s = self.shared.lock();
        s.charge(Instant::now());
        s.queue.admits(share, time)
    }

    fn turns(&self) -> Vec<ComputeUse> {
        let s = self.shared.lock();
        let now = Instant::now();
        let ms = |since: Instant| now.saturating_duration_since(since).as_millis() as u64;
        let mut all: BTreeMap<(&AccountId, LeaseId), ComputeUse> = BTreeMap::new();
        let runs = |share: &Share, runs: bool| ComputeUse {
            account: share.account().clone(),
            member: share.member().to_owned(),
            lease: share.lease(),
            runs,
            waiting: 0,
            paused: 0,
            since_ms: 0,
        };
        if let Some(r) = &s.running {
            let one = all.entry((r.share.account(), r.share.lease()));
            one.or_insert_with(|| runs(&r.share, true)).since_ms = ms(r.since);
        }
        let mut waits: BTreeMap<(&AccountId, LeaseId), u64> = BTreeMap::new();
        for (share, begun, entry) in s.queue.waiting() {
            let key = (share.account(), share.lease());
            let one = all.entry(key).or_insert_with(|| runs(share, false));
            match begun {
                true => one.paused += 1,
                false => one.waiting += 1,
            }
            let longest = waits.entry(key).or_default();
            *longest = (*longest).max(ms(entry.since));
            one.since_ms = *longest;
        }
        let mut all: Vec<ComputeUse> = all.into_values().collect();
        all.sort_by_key(|u| (!u.runs, std::cmp::Reverse(u.since_ms)));
        all.truncate(MOST_TOLD);
        all
    }
}

/// Most shares that a report of compute use lists.
const MOST_TOLD: usize = 32;

#[cfg(test)]
mod tests;
