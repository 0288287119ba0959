//! The tasks of a process, or of one of its services, which all end when it stops.

use std::future::Future;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::mutant;
use crate::world::World;

/// A set of tasks; clones share it.
#[derive(Clone)]
pub struct Tasks {
    world: World,
    tracker: TaskTracker,
    stop: CancellationToken,
}

/// Cancels the tasks of an owner that is dropped instead of stopped, without waiting for them.
pub struct StopOnDrop(pub Tasks);

impl Tasks {
    /// Returns an empty set of tasks.
    pub fn new(world: World) -> Tasks {
        Tasks {
            world,
            tracker: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Runs a task until it ends or until all tasks are stopped. Once they are stopped, it is not polled again, so that it does
    /// not take for a failure what is a part of the stop.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        let task = async move {
            tokio::select! {
                biased;
                () = stop.cancelled(), if !mutant!("tasks-not-stopped") => {}
                () = task => {}
            }
        };
        self.world.spawn(self.tracker.track_future(task));
    }

    /// Runs a task that ends by itself soon after its token is cancelled, which happens when all tasks are stopped.
    pub fn spawn_to_end<F: Future<Output = ()> + Send + 'static>(
        &self,
        task: impl FnOnce(CancellationToken) -> F,
    ) {
        let task = task(self.stop.clone());
        self.world.spawn(self.tracker.track_future(task));
    }

    /// Has all tasks stop, without waiting for them.
    pub fn cancel(&self) {
        self.stop.cancel();
    }

    /// Whether the tasks were told to stop.
    pub fn is_cancelled(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Stops all tasks and returns once they have ended.
    pub async fn stop(&self) {
        self.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::world::NoCompute;

    #[tokio::test]
    async fn a_task_is_not_polled_once_all_are_stopped() {
        let tasks = Tasks::new(World::real(Arc::new(NoCompute)));
        let (wake, mut woken) = tokio::sync::mpsc::channel::<()>(1);
        let ran = Arc::new(AtomicBool::new(false));
        let told = ran.clone();
        tasks.spawn(async move {
            woken.recv().await;
            told.store(true, Ordering::Relaxed);
        });
        // It waits by now. Then it is woken by both, and sees the stop.
        tokio::task::yield_now().await;
        assert!(!tasks.is_cancelled());
        tasks.cancel();
        drop(wake);
        tasks.stop().await;
        assert!(!ran.load(Ordering::Relaxed) && tasks.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_end_where_their_owner_is_dropped() {
        let tasks = Tasks::new(World::real(Arc::new(NoCompute)));
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        tasks.spawn(async move {
            std::future::pending::<()>().await;
            drop(tell);
        });
        drop(StopOnDrop(tasks));
        let bound = std::time::Duration::from_secs(1);
        let ended = tokio::time::timeout(bound, told).await;
        assert!(ended.expect("the task ends").is_err());
    }

    #[tokio::test]
    async fn a_task_runs_until_it_ends() {
        let tasks = Tasks::new(World::real(Arc::new(NoCompute)));
        let (tell, told) = tokio::sync::oneshot::channel();
        tasks.spawn(async move {
            let _ = tell.send(7);
        });
        assert_eq!(told.await, Ok(7));
        tasks.stop().await;
    }

    #[tokio::test]
    async fn a_task_that_ends_by_itself_is_waited_for() {
        let tasks = Tasks::new(World::real(Arc::new(NoCompute)));
        let ended = Arc::new(AtomicBool::new(false));
        let told = ended.clone();
        tasks.spawn_to_end(|stop| async move {
            stop.cancelled().await;
            tokio::task::yield_now().await;
            told.store(true, Ordering::Relaxed);
        });
        tasks.stop().await;
        assert!(ended.load(Ordering::Relaxed));
    }
}
