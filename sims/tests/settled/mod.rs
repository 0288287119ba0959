//! A settled cluster, and a way to wait for the results of tasks.

use std::time::Duration;

use convoke_sims::cluster::{Cluster, Setup, Task};

/// How long it takes until every worker has joined, at most.
pub const SETTLE: Duration = Duration::from_secs(20);

/// A time longer than anything in these tests may take.
pub const NEVER: Duration = Duration::from_secs(60);

/// Starts a cluster and waits until its workers have joined.
pub fn settled(seed: u64, workers: u16) -> Cluster {
    let mut cluster = Cluster::new(Setup {
        seed,
        workers,
        ..Setup::default()
    });
    assert!(cluster.settle(SETTLE), "{:?}", cluster.ends());
    cluster
}

/// Returns a task's result, which has to arrive within [`NEVER`].
pub fn end<T>(cluster: &mut Cluster, task: &Task<T>) -> T {
    assert!(cluster.run_until(NEVER, |_| task.is_over()), "it hangs");
    task.take().expect("the client lives")
}
