//! Compute threads in production: one rayon pool that both interprets steps and runs their kernels.
//!
//! One job is interpreted at a time, on a thread of the pool, so that a kernel that splits itself finds its
//! own thread and the others in one pool, without a hand-over; other jobs wait by priority.

use std::sync::{Arc, Mutex, PoisonError};

use convoke_common::world::{Compute, Job, JobQueue, Refusal, RefusedJob};

use crate::measure::measure;

#[derive(Default)]
struct State {
    waiting: JobQueue<Job>,
    active: bool,
}

/// See the module.
#[derive(Clone)]
pub struct Threads {
    pool: Arc<rayon::ThreadPool>,
    state: Arc<Mutex<State>>,
}

impl Threads {
    /// A pool of `threads` threads named after `name`.
    pub fn start(name: &str, threads: usize) -> Result<Threads, rayon::ThreadPoolBuildError> {
        let name = name.to_owned();
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads.max(1))
            .thread_name(move |i| format!("{name}-compute-{i}"))
            .build()?;
        Ok(Threads {
            pool: Arc::new(pool),
            state: Arc::default(),
        })
    }

    /// The pool, for kernels.
    pub fn pool(&self) -> Arc<rayon::ThreadPool> {
        self.pool.clone()
    }

    fn drain(state: &Mutex<State>) {
        loop {
            let job = {
                let mut s = state.lock().unwrap_or_else(PoisonError::into_inner);
                match s.waiting.pop() {
                    Some(job) => job,
                    None => {
                        s.active = false;
                        return;
                    }
                }
            };
            // A job reports its own panics; one that escapes must not end the loop.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        }
    }
}

impl Compute for Threads {
    fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    fn speed(&self) -> (f64, f64) {
        measure(&self.pool)
    }

    fn submit(&self, priority: i64, job: Job) -> Result<(), RefusedJob> {
        let mut s = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let pushed = s.waiting.push(priority, job);
        pushed.map_err(|job| RefusedJob {
            job,
            reason: Refusal::Full,
        })?;
        if !std::mem::replace(&mut s.active, true) {
            let state = self.state.clone();
            self.pool.spawn(move || Threads::drain(&state));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn runs_everything_by_priority_and_survives_panics() {
        let t = Threads::start("t", 2).unwrap();
        let (hold, gate) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        assert!(
            t.submit(9, Box::new(move || gate.recv().unwrap_or_default()))
                .is_ok()
        );
        for p in [1, 3, 2] {
            let tell = tell.clone();
            assert!(t.submit(p, Box::new(move || tell.send(p).unwrap())).is_ok());
        }
        assert!(t.submit(4, Box::new(|| panic!("on purpose"))).is_ok());
        hold.send(()).unwrap();
        assert_eq!(told.iter().take(3).collect::<Vec<_>>(), [3, 2, 1]);
    }
}
