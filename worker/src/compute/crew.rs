//! A crew: threads that have at most one job, and sleep at their check points while it has no turn.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use convoke_kernels::{Exec, Turn, stay_awake};
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
    /// Whether this thread interprets a job or stays awake for its crew.
    static OCCUPIED: Cell<bool> = const { Cell::new(false) };
    /// Closures that run when the job of this thread is over.
    static AFTERWARDS: RefCell<Vec<Box<dyn FnOnce()>>> = const { RefCell::new(Vec::new()) };
}

/// Runs `what`, which is brief, once the job that the calling thread interprets is over, before the thread begins another one; or at
/// once where the thread has none. No turn is counted for it.
pub(crate) fn afterwards(what: impl FnOnce() + 'static) {
    match CURRENT.with_borrow(Option::is_some) {
        true => AFTERWARDS.with_borrow_mut(|all| all.push(Box::new(what))),
        false => what(),
    }
}

/// Runs the closures that wait for the end of this thread's job.
pub(super) fn follow_up() {
    for what in AFTERWARDS.take() {
        // As a job does, it reports its own panics.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what));
    }
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
    /// How many threads are awake and wait for work.
    awake: AtomicUsize,
    /// How many threads are called and have not noticed it.
    called: AtomicUsize,
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
            awake: AtomicUsize::new(0),
            called: AtomicUsize::new(0),
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
    /// The thread then stays awake for a while, since the next job may follow at once.
    pub(super) fn enter(self: &Arc<Crew>, jobs: impl FnOnce()) {
        let was_awake = OCCUPIED.replace(true);
        if was_awake {
            self.awake.fetch_sub(1, Ordering::Relaxed);
        }
        CURRENT.set(Some(self.clone()));
        jobs();
        CURRENT.set(None);
        OCCUPIED.set(was_awake);
        match was_awake {
            true => drop(self.awake.fetch_add(1, Ordering::Relaxed)),
            false => self.stays_awake(),
        }
    }

    /// Lets the calling thread, which is one of the crew's, wait for work without sleeping, unless it is occupied.
    fn stays_awake(&self) {
        if OCCUPIED.replace(true) {
            return;
        }
        self.awake.fetch_add(1, Ordering::Relaxed);
        stay_awake(|| self.is_contested());
        self.awake.fetch_sub(1, Ordering::Relaxed);
        OCCUPIED.set(false);
    }

    /// Calls threads of the crew that sleep.
    #[cold]
    fn call(&self, missing: usize) {
        let quiet = Ordering::Relaxed;
        let first = self.called.compare_exchange(0, missing, quiet, quiet);
        let (Ok(_), Some(me)) = (first, self.me.upgrade()) else {
            return;
        };
        for _ in 0..missing {
            let me = me.clone();
            self.pool.spawn(move || {
                me.called.fetch_sub(1, Ordering::Relaxed);
                me.stays_awake();
            });
        }
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
    fn wake(&self) {
        let missing = self
            .width()
            .saturating_sub(self.awake.load(Ordering::Relaxed) + 1);
        if missing > 0 && !self.is_contested() && self.called.load(Ordering::Relaxed) == 0 {
            self.call(missing);
        }
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
