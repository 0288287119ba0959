//! Cuts the coordinator off or stops it while steps run: no step fails, whichever members are cut off, however long.

use std::time::Duration;

use crate::common::partitions::{Cut, Rig};

/// The lengths of the cuts in milliseconds; those of a row follow each other on one cluster.
const CUTS_MS: [&[u64]; 2] = [&[1000, 2500, 4000, 10_000], &[60_000]];

/// Makes `rounds` cuts of each length and kind, on eight clusters at once; returns whether no step failed.
pub async fn run(rounds: u32) -> bool {
    let rows = CUTS_MS.into_iter();
    let kinds = rows.flat_map(|row| Cut::ALL.map(|cut| run_kind(cut, row, rounds)));
    let kept = futures::future::join_all(kinds).await;
    kept.into_iter().all(|kept| kept)
}

async fn run_kind(cut: Cut, lengths: &[u64], rounds: u32) -> bool {
    let mut kept = true;
    let mut rig = Rig::start(&format!("partitions-{cut:?}-{}", lengths[0])).await;
    for ms in lengths {
        let (mut steps, mut failed) = (0, 0);
        for _ in 0..rounds {
            let round = rig.round(cut, Duration::from_millis(*ms)).await;
            round.failed.iter().for_each(|f| println!("  {f}"));
            steps += round.steps;
            failed += round.failed.len();
            // A round in which no step ran proves nothing.
            kept &= round.failed.is_empty() && round.steps > 0;
        }
        println!("{cut:?}, {ms} ms, {rounds} times: {steps} steps, {failed} failed");
    }
    rig.end().await;
    kept
}
