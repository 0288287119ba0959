//! Placement of parallel branches: each node, the most urgent first, goes to the worker where it finishes earliest,
//! transfers included. (Topcuoglu, Hariri, Wu: Performance-effective and low-complexity task scheduling for
//! heterogeneous computing, 2002.)

use super::cut::UNPINNED;
use crate::place::cluster::{Team, WorkerModel};
use crate::place::eligibility::TeamEligibility;
use crate::place::schedule::priorities;
use crate::place::work::{NONE, Work};

/// Most (flow, participant) pairs; a larger table of arrivals is not worth its memory.
const MOST_ARRIVALS: usize = 16 << 20;

/// Returns a placement of `work` over `team`; `None` if weights do not fit or the graph is too large.
pub fn ranked(
    work: &Work,
    team: &Team,
    pinned: &[u16],
    able: &TeamEligibility<'_>,
) -> Option<Vec<u16>> {
    let n = team.size();
    if work.flow_value.len().checked_mul(n)? > MOST_ARRIVALS {
        return None;
    }
    let rank = priorities(work, team, &vec![0; work.positions()]);
    let mut order: Vec<u32> = (0..work.positions() as u32).collect();
    // A node's rank exceeds its successors', so the order is topological.
    order.sort_by_key(|p| (std::cmp::Reverse(rank[*p as usize]), *p));

    let mut participant = pinned.to_vec();
    let mut finish = vec![0u64; work.positions()];
    let mut free_at = vec![0u64; n];
    let mut memory: Vec<u64> = team.workers.iter().map(WorkerModel::reach).collect();
    let mut holds = vec![false; work.const_value.len() * n];
    for p in order.into_iter().map(|p| p as usize) {
        let weights = |m: usize, holds: &[bool]| -> u64 {
            let missing = work
                .weights
                .row(p)
                .iter()
                .filter(|c| !holds[**c as usize * n + m]);
            missing.fold(0u64, |sum, c| {
                sum.saturating_add(work.const_bytes[*c as usize])
            })
        };
        let place = match (pinned[p], work.beside[p]) {
            (UNPINNED, beside) if beside != NONE => participant[beside as usize],
            (pin, _) => pin,
        };
        let mut best: Option<(u64, usize)> = None;
        for m in 0..n {
            let here = place == UNPINNED || usize::from(place) == m;
            let allowed = here && able.allows(p, m);
            if !allowed || weights(m, &holds) > memory[m] {
                continue;
            }
            let arrived = work
                .reads
                .row(p)
                .iter()
                .map(|v| match work.writer[*v as usize] {
                    NONE => team.driver.transfer_ns(work.flow_bytes[*v as usize]),
                    w => {
                        let from = participant[w as usize] as usize;
                        let transfer = team.transfer_ns(from, m, work.flow_bytes[*v as usize]);
                        finish[w as usize].saturating_add(transfer)
                    }
                });
            let start = arrived.max().unwrap_or(0).max(free_at[m]);
            let end = start.saturating_add(team.time_ns(m, &work.cost[p]));
            if best.is_none_or(|(e, _)| end < e) {
                best = Some((end, m));
            }
        }
        let (end, m) = best?;
        memory[m] -= weights(m, &holds);
        work.weights
            .row(p)
            .iter()
            .for_each(|c| holds[*c as usize * n + m] = true);
        participant[p] = m as u16;
        finish[p] = end;
        free_at[m] = end;
    }
    Some(participant)
}
