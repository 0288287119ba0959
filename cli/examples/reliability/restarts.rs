//! Kills workers while weights load, and restarts them within half a second: every load and call succeeds.

use std::time::Duration;

use convoke::Retry;

use crate::common::functions::ROOM_FOR_ONE;
use crate::common::restarts::Rig;

/// The longest time until a supervisor restarts a worker; each round waits another fraction of it.
const LONGEST: Duration = Duration::from_millis(500);

/// The clusters: name, number of workers, memory of each, and number of tables of 48 MiB. The first cluster needs its
/// only worker, the second needs all workers, and the third could do without some.
const CLUSTERS: [(&str, usize, &str, usize); 3] = [
    ("one", 1, "1GiB", 2),
    ("all", 3, ROOM_FOR_ONE, 3),
    ("some", 3, "1GiB", 3),
];

/// Runs `rounds` rounds in each cluster; returns whether every load succeeded.
pub async fn run(rounds: u32) -> bool {
    let mut failed = 0;
    for (name, workers, memory, tables) in CLUSTERS {
        let mut rig = Rig::start(&format!("restarts-{name}"), workers, memory, tables).await;
        let mut times = vec![];
        for i in 0..rounds {
            let pause = LONGEST * i / rounds.saturating_sub(1).max(1);
            match rig.round(pause, Retry::On).await {
                Ok(round) => times.push(round.took),
                Err(e) => {
                    failed += 1;
                    println!("{name}: back after {pause:?}: {}: {e}", e.code.name());
                }
            }
        }
        rig.cluster.shutdown().await;
        times.sort_unstable();
        let at = |part: usize| times.get(times.len() * part / 100).or(times.last());
        let (p50, longest) = (
            at(50).copied().unwrap_or_default(),
            at(100).copied().unwrap_or_default(),
        );
        println!(
            "{name}: {} of {rounds} loads and calls succeeded; from the kill to the result {p50:?} (p50), {longest:?} (longest)",
            times.len()
        );
    }
    failed == 0
}
