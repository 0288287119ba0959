//! A cluster that has settled, and the ends of what is asked of it.

use std::time::Duration;

use convoke_sims::cluster::{Cluster, Setup, Task};

/// By then every worker has joined.
pub const SETTLE: Duration = Duration::from_secs(20);

/// Longer than anything in these tests may take.
pub const NEVER: Duration = Duration::from_secs(60);

/// A cluster whose workers have joined.
pub fn settled(seed: u64, workers: u16) -> Cluster {
    let mut cluster = Cluster::new(Setup {
        seed,
        workers,
        ..Setup::default()
    });
    assert!(cluster.settle(SETTLE), "{:?}", cluster.ends());
    cluster
}

/// Takes a task's result, which has to be there within [`NEVER`].
pub fn end<T>(cluster: &mut Cluster, task: &Task<T>) -> T {
    assert!(cluster.run_until(NEVER, |_| task.is_over()), "it hangs");
    task.take().expect("the client lives")
}
