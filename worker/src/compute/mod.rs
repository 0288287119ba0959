//! Compute threads in production: as many jobs run at once as there are threads, and share the threads. Where more jobs
//! wait, they take turns: a job gives way in the middle when the turn of another has come.
//!
//! ```text
//! submit ──> FairQueue ──a turn──> crew: a rayon pool, whose threads interpret a step and run its kernels
//!               ^───gives way at a check point───┘
//! ```
//! A *crew* is a pool of threads with at most one job, whose kernels split over the crew's threads without a hand-over.
//! A job that runs alone uses all threads. Where several run, the threads are divided among their accounts by weight,
//! and among the jobs of each account equally (`shares::divide`): a kernel that begins splits into that many parts.
//! So steps whose kernels are too small to be split use the processor together. As long as no two jobs compete there is
//! one crew. A job that gives way keeps its stack: the threads of its crew sleep at their check points, and the next job
//! runs on another crew. So a loop without end and a long kernel share the processor with brief calls, and no job ever
//! runs on top of another's stack.
//!
//! Invariants
//! 1. At most as many crews have a turn as the worker has threads. Only a job that was cancelled ends without a turn:
//!    the rest of such a job is brief. So is what a job leaves to be done after it, which counts for no turn.
//! 2. There are at most `MOST_LANES` crews, and few jobs of one account have begun at once ([`FairQueue`]).
//! 3. A check point costs one load as long as no job waits.

mod crew;
mod shares;
mod stuck;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use convoke_common::ids::LeaseId;
use convoke_common::world::{
    AccountId, Begin, CREDIT, Compute, ComputeUse, FairQueue, Job, Refusal, RefusedJob, Rival,
    STEP_TURN, Share,
};
use smallvec::SmallVec;
use tokio::time::Instant;

pub(crate) use self::crew::{Crew, afterwards};
use self::stuck::Watch;
use crate::health::measure::{Speed, measure};

/// Most crews, and so most jobs of all accounts that have begun and not ended.
const MOST_LANES: usize = 64;
/// How many crews have as many threads as the worker has.
const WIDE: usize = 4;
/// The least and the most idle crews that are kept: one for each thread in between.
const KEPT: (usize, usize) = (2, 16);

/// The work that an entry of the queue stands for: a job that has not begun, or one that sleeps in its crew.
enum WaitingWork {
    Fresh(NewJob),
    Paused(Arc<Crew>),
}

/// A job that has not begun.
struct NewJob {
    begin: Option<Begin>,
    job: Job,
}

struct QueuedWork {
    what: WaitingWork,
    priority: i64,
    since: Instant,
}

/// A job that has a turn.
struct CurrentTurn {
    /// The number of the turn.
    number: u64,
    crew: Arc<Crew>,
    share: Share,
    priority: i64,
    /// How many threads the job may use.
    width: usize,
    /// The time until which the job is charged.
    charged: Instant,
    since: Instant,
}

/// Jobs that begin, with their crews: seldom more than one.
type Beginning = SmallVec<[(Arc<Crew>, NewJob); 1]>;

struct SchedulerState {
    queue: FairQueue<QueuedWork>,
    /// How many jobs may have a turn at once, which is the number of threads.
    slots: usize,
    running: Vec<CurrentTurn>,
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
    speed: OnceLock<Speed>,
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
        let waiting = Arc::<AtomicUsize>::default();
        let state = SchedulerState {
            queue: FairQueue::new(threads),
            slots: threads,
            running: Vec::new(),
            turns: 0,
            idle: vec![first.clone()],
            crews: 1,
            leaving: Vec::new(),
            waiting: waiting.clone(),
        };
        let shared = Arc::new(Scheduler {
            waiting,
            name: name.to_owned(),
            threads,
            epoch: Instant::now(),
            first: first.clone(),
            state: Mutex::new(state),
            watch: Mutex::default(),
            speed: OnceLock::new(),
        });
        first.of(&shared);
        Ok(Threads { shared })
    }

    /// The thread that has stopped for good although its crew has a turn, and the share of that turn. To be called
    /// twice a second.
    pub fn stuck(&self) -> Option<(String, Share)> {
        let shared = &self.shared;
        let turns: Vec<_> = {
            let s = shared.lock();
            let turn = |r: &CurrentTurn| (r.number, r.crew.clone(), r.share.clone());
            s.running.iter().map(turn).collect()
        };
        let mut watch = shared.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let crews = turns.iter().map(|(turn, crew, _)| (*turn, &**crew));
        let (turn, thread) = watch.look(crews, Instant::now())?;
        let (_, _, share) = turns.into_iter().find(|(number, ..)| *number == turn)?;
        Some((thread, share))
    }
}

impl SchedulerState {
    /// Charges the jobs that have a turn for their part of the time until now.
    fn charge(&mut self, now: Instant) {
        for r in &mut self.running {
            let mut time = now.saturating_duration_since(r.charged);
            if r.width < self.slots {
                time = time.mul_f64(r.width as f64 / self.slots as f64);
            }
            self.queue.charge(&r.share, time);
            r.charged = now;
        }
    }

    /// Whether there is an idle crew for a job that begins. Crews beyond the first are made where they are needed.
    fn has_room(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Takes the idle crew with the most threads; among equals, the one that was used last.
    fn widest(&mut self) -> Option<Arc<Crew>> {
        let idle = self.idle.iter().enumerate();
        let (at, _) = idle.max_by_key(|(_, l)| l.pool().current_num_threads())?;
        Some(self.idle.remove(at))
    }

    /// The number of a crew that is about to be made.
    fn numbered(&mut self) -> usize {
        self.crews += 1;
        self.crews
    }

    /// The place of the crew's job among those that have a turn.
    fn turn_of(&self, crew: &Crew) -> Option<usize> {
        let mut running = self.running.iter();
        running.position(|r| std::ptr::eq(&*r.crew, crew))
    }

    /// Gives turns to the next jobs as long as there are slots: jobs that slept are woken, jobs that begin are returned
    /// with their crews.
    fn dispatch(&mut self, now: Instant) -> Beginning {
        let mut begin = Beginning::new();
        while self.running.len() < self.slots {
            let Some((share, entry)) = self.queue.pop(self.has_room()) else {
                break;
            };
            let crew = match entry.what {
                WaitingWork::Paused(crew) => crew,
                WaitingWork::Fresh(fresh) => {
                    // The queue gives new jobs only where there is room.
                    let Some(crew) = self.widest() else { break };
                    begin.push((crew.clone(), fresh));
                    crew
                }
            };
            self.turns += 1;
            crew.runs(!self.queue.is_empty());
            self.running.push(CurrentTurn {
                number: self.turns,
                crew,
                share,
                priority: entry.priority,
                width: 1,
                charged: now,
                since: now,
            });
        }
        self.waiting.store(self.queue.len(), Ordering::Relaxed);
        self.divide();
        begin
    }

    /// Divides the threads among the jobs that have a turn.
    fn divide(&mut self) {
        if let [alone] = &mut self.running[..] {
            alone.width = self.slots;
            return alone.crew.may_use(alone.width);
        }
        let shares: SmallVec<[Share; 8]> = self.running.iter().map(|r| r.share.clone()).collect();
        let widths = shares::divide(self.slots, &shares);
        for (r, width) in self.running.iter_mut().zip(widths) {
            r.width = width;
            r.crew.may_use(width);
        }
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
                    if begin.is_none_or(|begin| begin()) {
                        job();
                    }
                };
                // A job reports its own panics; one that escapes it must not end the loop.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
                let follows = self.over(crew);
                crew::follow_up();
                match follows {
                    Some(fresh) => next = fresh,
                    None => return,
                }
            }
        });
    }

    fn start(self: &Arc<Scheduler>, begin: Beginning) {
        for (crew, fresh) in begin {
            let (shared, on) = (self.clone(), crew.clone());
            crew.pool().spawn(move || shared.serve(on, fresh));
        }
    }

    /// Ends the job of a crew; returns the job that the crew runs next, if a turn goes to a new job on it.
    fn over(self: &Arc<Scheduler>, crew: &Arc<Crew>) -> Option<NewJob> {
        let mut surplus = None;
        let mut s = self.lock();
        let now = Instant::now();
        s.charge(now);
        if let Some(at) = s.turn_of(crew) {
            let r = s.running.swap_remove(at);
            s.queue.ended(&r.share);
        } else if let Some(at) = s.leaving.iter().position(|(l, _)| Arc::ptr_eq(l, crew)) {
            let (_, share) = s.leaving.swap_remove(at);
            s.queue.ended(&share);
        }
        crew.rests();
        if s.idle.len() >= s.slots.clamp(KEPT.0, KEPT.1) && !Arc::ptr_eq(crew, &self.first) {
            s.crews -= 1;
            surplus = Some(crew.clone());
        } else {
            s.idle.push(crew.clone());
        }
        let mut begin = s.dispatch(now);
        drop(s);
        drop(surplus);
        let own = begin.iter().position(|(on, _)| Arc::ptr_eq(on, crew));
        let own = own.map(|at| begin.swap_remove(at).1);
        self.start(begin);
        own
    }

    /// Called at a check point of a crew: gives its turn to a rival that should run first, if there is one. The crew then
    /// sleeps until it has a turn again, or its job is cancelled.
    fn give_way(self: &Arc<Scheduler>, crew: &Arc<Crew>) {
        let mut made: Option<Option<Arc<Crew>>> = None;
        loop {
            let mut s = self.lock();
            if let Some(Some(crew)) = made.take_if(|made| made.is_some()) {
                s.idle.push(crew);
                made = Some(None);
            }
            let now = Instant::now();
            s.charge(now);
            let may_make = made.is_none() && s.crews < MOST_LANES;
            let Some(r) = s.turn_of(crew).and_then(|at| s.running.get(at)) else {
                return;
            };
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
                // The crew is made without the lock, since starting threads takes a while.
                let number = s.numbered();
                drop(s);
                made = Some(self.another(number));
                continue;
            }
            let Some(at) = s.turn_of(crew) else { return };
            let r = s.running.swap_remove(at);
            crew.sleeps();
            let entry = QueuedWork {
                what: WaitingWork::Paused(crew.clone()),
                priority: r.priority,
                since: now,
            };
            s.queue.give_way(&r.share, r.priority, first, entry);
            let begin = s.dispatch(now);
            drop(s);
            self.start(begin);
            return;
        }
    }

    /// Makes a crew for the job that waits although there is a slot for it.
    fn make_room(self: &Arc<Scheduler>) {
        let mut s = self.lock();
        let full = s.running.len() >= s.slots || s.crews >= MOST_LANES;
        if full || s.has_room() || !s.queue.may_begin() {
            return;
        }
        let number = s.numbered();
        drop(s);
        let made = self.another(number);
        let mut s = self.lock();
        s.idle.extend(made);
        let begin = s.dispatch(Instant::now());
        drop(s);
        self.start(begin);
    }

    /// Makes the crew of a number. Where the system refuses threads, there is one crew less.
    fn another(self: &Arc<Scheduler>, number: usize) -> Option<Arc<Crew>> {
        // The more crews have jobs, the fewer threads each may use.
        let threads = match number <= WIDE {
            true => self.threads,
            false => (self.threads / number).max(1),
        };
        match Crew::new(&format!("{}-crew-{number}", self.name), threads) {
            Ok(crew) => {
                crew.of(self);
                Some(crew)
            }
            Err(e) => {
                tracing::warn!("compute cannot be shared for now: no further thread: {e}");
                self.lock().crews -= 1;
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

    /// The speed of the threads, measured when it is first asked for.
    fn speed(&self) -> Speed {
        *self.speed.get_or_init(|| measure(self.first.pool()))
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
        let begin = s.dispatch(now);
        let waits = !s.queue.is_empty();
        if waits {
            s.running.iter().for_each(|r| r.crew.contest());
        }
        drop(s);
        self.start(begin);
        if waits {
            self.make_room();
        }
        Ok(())
    }
}

impl Compute for Threads {
    fn threads(&self) -> usize {
        self.shared.threads
    }

    fn speed(&self) -> (f64, f64) {
        let speed = self.shared.speed();
        (speed.flops, speed.bandwidth)
    }

    fn brief(&self) -> Duration {
        self.shared.speed().brief
    }

    fn submit(&self, share: &Share, priority: i64, job: Job) -> Result<(), RefusedJob> {
        self.shared
            .push(share, priority, NewJob { begin: None, job })
    }

    fn submit_begun(
        &self,
        share: &Share,
        priority: i64,
        begin: Begin,
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
        for r in &s.running {
            let one = all.entry((r.share.account(), r.share.lease()));
            let one = one.or_insert_with(|| runs(&r.share, true));
            one.since_ms = one.since_ms.max(ms(r.since));
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
