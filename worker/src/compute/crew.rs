//! A crew: threads that have at most one job, and sleep at their check points while it has no turn.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use convoke_kernels::{Exec, Turn};
use tokio::time::Instant;

use super::Scheduler;

/// How often a sleeping job checks whether it was cancelled: kernels promise to notice within 10 ms.
const POLL: Duration = Duration::from_millis(5);
/// Microseconds between two looks of a job for rivals.
const LOOK: u64 = 100;

/// The crew has no job.
const IDLE: u8 = 0;
/// The crew's job has a turn.
const RUNS: u8 = 1;
/// The crew's job has begun, and sleeps until its next turn.
const SLEEPS: u8 = 2;
/// The crew's job was cancelled while it slept, and ends.
const LEAVES: u8 = 3;

thread_local! {
    /// The crew whose job this thread interprets.
    static CURRENT: RefCell<Option<Arc<Crew>>> = const { RefCell::new(None) };
}

/// A pool of threads with at most one job, which takes turns with the jobs of other crews.
pub(crate) struct Crew {
    pool: rayon::ThreadPool,
    /// The threads' ids, as the system numbers them, and their names.
    threads: Arc<Mutex<Vec<(u32, String)>>>,
    shared: OnceLock<Weak<Scheduler>>,
    me: Weak<Crew>,
    /// One of the modes above; changed under the lock that all crews share.
    mode: AtomicU8,
    /// How many threads the crew's job may use, where other jobs use the others.
    width: AtomicUsize,
    /// Whether check points must look further: other jobs wait, or the crew's job has no turn.
    contested: AtomicBool,
    /// When a check point looks for rivals next, in microseconds since [`Scheduler::epoch`].
    next_look: AtomicU64,
    woken: Condvar,
    /// Whether the crew's kernel may stand still for as long as it likes.
    excused: AtomicBool,
}

impl Crew {
    pub(super) fn new(
        name: &str,
        threads: usize,
    ) -> Result<Arc<Crew>, rayon::ThreadPoolBuildError> {
        let known = Arc::<Mutex<Vec<(u32, String)>>>::default();
        let (name, list) = (name.to_owned(), known.clone());
        let called = name.clone();
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(move |i| format!("{called}-{i}"))
            .start_handler(move |i| {
                if let Some(id) = super::stuck::this_thread() {
                    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
                    list.push((id, format!("{name}-{i}")));
                }
            })
            .build()?;
        Ok(Arc::new_cyclic(|me| Crew {
            pool,
            threads: known,
            shared: OnceLock::new(),
            me: me.clone(),
            mode: AtomicU8::new(IDLE),
            width: AtomicUsize::new(threads),
            contested: AtomicBool::new(false),
            next_look: AtomicU64::new(0),
            woken: Condvar::new(),
            excused: AtomicBool::new(false),
        }))
    }

    pub(super) fn of(&self, shared: &Arc<Scheduler>) {
        let _ = self.shared.set(Arc::downgrade(shared));
    }

    /// The crew whose job the calling thread interprets.
    pub(crate) fn current() -> Option<Arc<Crew>> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// How the kernels of the crew's job run: on its threads, and in turns with other crews.
    pub(crate) fn exec<'a>(&'a self, cancel: &'a AtomicBool) -> Exec<'a> {
        Exec::pooled(&self.pool, cancel).in_turns(self)
    }

    pub(super) fn pool(&self) -> &rayon::ThreadPool {
        &self.pool
    }

    /// Interprets jobs on the calling thread, which is one of the crew's.
    pub(super) fn enter(self: &Arc<Crew>, jobs: impl FnOnce()) {
        CURRENT.set(Some(self.clone()));
        jobs();
        CURRENT.set(None);
    }

    /// The ids of the crew's threads, as the system numbers them, and their names.
    pub(super) fn threads(&self) -> Vec<(u32, String)> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.clone()
    }

    /// Whether the crew's job may stand still.
    pub(super) fn is_excused(&self) -> bool {
        self.excused.load(Ordering::Relaxed)
    }

    fn set(&self, mode: u8, contested: bool) {
        self.mode.store(mode, Ordering::Relaxed);
        self.next_look.store(0, Ordering::Relaxed);
        self.contested.store(contested, Ordering::Relaxed);
    }

    /// Gives the crew's job a turn; `contested` says whether other jobs wait.
    pub(super) fn runs(&self, contested: bool) {
        self.set(RUNS, contested);
        self.woken.notify_all();
    }

    /// Sets how many threads the kernels that begin from now on may use.
    pub(super) fn may_use(&self, threads: usize) {
        self.width.store(threads, Ordering::Relaxed);
    }

    pub(super) fn sleeps(&self) {
        self.set(SLEEPS, true);
    }

    pub(super) fn leaves(&self) {
        self.set(LEAVES, false);
        self.woken.notify_all();
    }

    pub(super) fn rests(&self) {
        self.set(IDLE, false);
    }

    /// Tells the crew's check points that other jobs wait.
    pub(super) fn contest(&self) {
        self.next_look.store(0, Ordering::Relaxed);
        self.contested.store(true, Ordering::Relaxed);
    }

    /// Notes that the job has looked for rivals at this time and goes on.
    pub(super) fn looked(&self, micros: u64, contested: bool) {
        self.next_look.store(micros + LOOK, Ordering::Relaxed);
        self.contested.store(contested, Ordering::Relaxed);
    }
}

impl Turn for Crew {
    #[inline]
    fn is_contested(&self) -> bool {
        self.contested.load(Ordering::Relaxed)
    }

    #[inline]
    fn width(&self) -> usize {
        self.width.load(Ordering::Relaxed)
    }

    #[inline]
    fn excused(&self) -> &AtomicBool {
        &self.excused
    }

    #[cold]
    fn give_way(&self, cancel: &AtomicBool) {
        let shared = self.shared.get().and_then(Weak::upgrade);
        let (Some(shared), Some(me)) = (shared, self.me.upgrade()) else {
            return;
        };
        if self.mode.load(Ordering::Relaxed) == RUNS {
            let now = shared.micros(Instant::now());
            if now < self.next_look.load(Ordering::Relaxed) {
                return;
            }
            shared.give_way(&me);
        }
        if self.mode.load(Ordering::Relaxed) != SLEEPS {
            return;
        }
        let mut s = shared.lock();
        while self.mode.load(Ordering::Relaxed) == SLEEPS {
            if cancel.load(Ordering::Relaxed) {
                return shared.leave(&me, &mut s);
            }
            let slept = self.woken.wait_timeout(s, POLL);
            s = slept.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
