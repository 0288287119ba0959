//! Placement of parallel branches: each node, the most urgent first, goes to the worker where it finishes earliest,
//! transfers included. (Topcuoglu, Hariri, Wu: Performance-effective and low-complexity task scheduling for
//! heterogeneous computing, 2002.)

use crate::place::cluster::{Team, WorkerModel};
use crate::place::eligibility::TeamEligibility;
use crate::place::memory::MemoryModel;
use crate::place::schedule::priorities;
use crate::place::work::{NONE, UNPINNED, Work};

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
    let mut room: Vec<Room<'_>> = team.workers.iter().map(|w| Room::of(work, w)).collect();
    for p in order.into_iter().map(|p| p as usize) {
        let place = match (pinned[p], work.beside[p]) {
            (UNPINNED, beside) if beside != NONE => participant[beside as usize],
            (pin, _) => pin,
        };
        let mut best: Option<(u64, usize)> = None;
        for m in 0..n {
            let here = place == UNPINNED || usize::from(place) == m;
            let allowed = here && able.allows(p, m);
            if !allowed || !room[m].holds(p) {
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
            let end = start.saturating_add(team.time_ns(m, work, p));
            if best.is_none_or(|(e, _)| end < e) {
                best = Some((end, m));
            }
        }
        let (end, m) = best?;
        room[m].take(p);
        participant[p] = m as u16;
        finish[p] = end;
        free_at[m] = end;
    }
    Some(participant)
}

/// The memory of a worker that is left for weights.
struct Room<'a> {
    work: &'a Work,
    worker: &'a WorkerModel,
    host: u64,
    /// What is left of a device's own memory; as good as endless where it has none.
    device: u64,
    /// The constants that the worker has from positions before, on its host and on its device.
    held: Vec<[bool; 2]>,
}

impl<'a> Room<'a> {
    fn of(work: &'a Work, worker: &'a WorkerModel) -> Room<'a> {
        let device = worker.device_memory.as_ref();
        Room {
            work,
            worker,
            host: worker.host.reach(),
            device: device.map_or(u64::MAX, MemoryModel::reach),
            held: vec![[false; 2]; work.const_value.len()],
        }
    }

    /// Returns whether the device keeps constants in memory of its own, and runs a position.
    fn on_device(&self, position: usize) -> bool {
        self.worker.device_memory.is_some() && self.worker.on_device.runs(position)
    }

    /// Returns the bytes of the constants of a position that are not there yet, on the host and on the device.
    fn missing(&self, position: usize) -> [u64; 2] {
        let constants = || self.work.weights.row(position).iter().map(|c| *c as usize);
        let sum = |bytes: &[u64], at: usize| {
            let missing = constants().filter(|c| !self.held[*c][at]);
            missing.fold(0u64, |sum, c| sum.saturating_add(bytes[c]))
        };
        let device = match self.on_device(position) {
            true => sum(self.worker.on_device.constant_bytes(), 1),
            false => 0,
        };
        [sum(&self.work.const_bytes, 0), device]
    }

    fn holds(&self, position: usize) -> bool {
        let [host, device] = self.missing(position);
        host <= self.host && device <= self.device
    }

    fn take(&mut self, position: usize) {
        let ([host, device], on_device) = (self.missing(position), self.on_device(position));
        self.host = self.host.saturating_sub(host);
        self.device = self.device.saturating_sub(device);
        for c in self.work.weights.row(position) {
            let [on_host, there] = &mut self.held[*c as usize];
            *on_host = true;
            *there |= on_device;
        }
    }
}
