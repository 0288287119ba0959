//! Kills a worker and starts it again, over and over: the coordinator's memory grows by at most
//! [`GROWTH`], and its open files not at all.

use crate::common::cluster::Processes;
use crate::common::usage::Usage;

/// The bytes by which the coordinator may grow after the first tenth of the restarts, in which it warms up.
const GROWTH: u64 = 2 << 20;

/// Restarts one of two workers `restarts` times; returns whether the coordinator's memory and files stayed.
pub fn run(restarts: u32) -> bool {
    let mut processes = Processes::start("memory", 2, "256MiB");
    let coordinator = processes.coordinator.as_ref().unwrap().pid();
    let mut restart = |times: u32| {
        for _ in 0..times {
            processes.kill_worker(1);
            processes.start_worker(1);
        }
        Usage::of(coordinator)
    };
    let first = restarts / 10;
    let (early, late) = (restart(first), restart(restarts - first));
    let grown = late.memory.saturating_sub(early.memory);
    let each = grown / u64::from((restarts - first).max(1));
    println!(
        "the coordinator after {first} restarts: {early}; after {restarts}: {late}; {each} bytes each"
    );
    grown <= GROWTH && late.files <= early.files
}
