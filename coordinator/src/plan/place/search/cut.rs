//! Cuts a graph, in its own order, into one run of nodes per worker: dynamic programming over the cut
//! points, with the cheapest crossings among the runs that fit memory and bounds on busy time.
//!
//! ```text
//! best[k][j] = min over i of best[k - 1][i] + crossing(i)   where positions i..j fit worker k
//! ```
//!
//! The least and the largest i for which a run fits grow with j, so the minimum slides and each k is
//! linear.

use std::collections::VecDeque;

use super::position_run::{Charge, PositionRun, Scale};
use crate::place::cluster::Team;
use crate::place::eligibility::TeamEligibility;
use crate::place::work::{NONE, UNPINNED, Work};

/// The cost of each crossing tensor besides its transfer, in nanoseconds.
const CROSSING_NS: u64 = 5_000;

/// How far the busy time of a run may lie from perfect balance, as a fraction.
const IMBALANCE: [f64; 5] = [0.02, 0.1, 0.25, 0.5, 0.8];

/// Returns the best cut of `work` over all of `team`, in which each participant has at least one position; `None` if no
/// cut fits. `pinned` has the participant of each position, or [`UNPINNED`].
pub fn cut(
    work: &Work,
    team: &Team,
    pinned: &[u16],
    allowed: &TeamEligibility<'_>,
    in_flight: u32,
    charge: Charge,
) -> Option<Vec<u16>> {
    let free = (0..work.positions() as u32)
        .filter(|p| pinned[*p as usize] == UNPINNED && work.beside[*p as usize] == NONE)
        .collect();
    let scale = Scale::new(work, free, in_flight, charge);
    let cutter = Cutter::new(&scale, team, pinned, allowed);
    // An unbalanced cut is a last resort: other steps wait for its busiest worker.
    let last_resort = cutter.cut(0, u64::MAX)?;
    let ideal = cutter.ideal_ns() as f64;
    let within = |x: &f64| {
        cutter.cut(
            (ideal * (1.0 - x)) as u64,
            (ideal * (1.0 + x)).ceil() as u64,
        )
    };
    let balanced = IMBALANCE.iter().filter_map(within);
    let (_, mut best) = balanced
        .min_by_key(|(score, _)| *score)
        .unwrap_or(last_resort);
    work.join(&mut best);
    Some(best)
}

struct Cutter<'a> {
    scale: &'a Scale<'a>,
    team: &'a Team,
    pinned: &'a [u16],
    allowed: &'a TeamEligibility<'a>,
    /// The pinned positions of each participant.
    fixed: Vec<Vec<u32>>,
    /// Nanoseconds of each participant's pinned positions.
    fixed_ns: Vec<u64>,
    /// Bytes and number of the tensors that cross in front of each free position.
    crossing: Vec<(u64, u64)>,
}

impl<'a> Cutter<'a> {
    fn new(
        scale: &'a Scale<'a>,
        team: &'a Team,
        pinned: &'a [u16],
        allowed: &'a TeamEligibility<'a>,
    ) -> Cutter<'a> {
        let mut fixed = vec![Vec::new(); team.size()];
        for (p, m) in pinned.iter().enumerate().filter(|(_, m)| **m != UNPINNED) {
            fixed[*m as usize].push(p as u32);
        }
        let time = |m: usize, p: &u32| team.time_ns(m, scale.work, *p as usize);
        let fixed_ns = fixed
            .iter()
            .enumerate()
            .map(|(m, ps)| ps.iter().map(|p| time(m, p)).sum());
        let fixed_ns = fixed_ns.collect();
        let all = crossings(scale.work);
        let crossing = scale.positions.iter().map(|p| all[*p as usize]).collect();
        Cutter {
            scale,
            team,
            pinned,
            allowed,
            fixed,
            fixed_ns,
            crossing,
        }
    }

    /// Returns the busy time of each participant if work could be divided without limit.
    fn ideal_ns(&self) -> u64 {
        let speed = |m: usize| {
            let work = self.scale.work;
            1.0 / ((0..work.positions())
                .map(|p| self.team.time_ns(m, work, p) as f64)
                .sum::<f64>()
                .max(1.0))
        };
        (1.0 / (0..self.team.size()).map(speed).sum::<f64>()) as u64
    }

    /// Returns the cheapest cut in which each participant is busy for `least` to `most` nanoseconds, with its cost.
    fn cut(&self, least: u64, most: u64) -> Option<(u64, Vec<u16>)> {
        let m = self.scale.positions.len();
        let mut best = vec![u64::MAX; m + 1];
        best[0] = 0;
        let mut from: Vec<Vec<u32>> = Vec::with_capacity(self.team.size());
        for k in 0..self.team.size() {
            let (next, cut_at) = self.extend(k, least, most, &best);
            best = next;
            from.push(cut_at);
        }
        let crossings = best[m];
        if crossings == u64::MAX {
            return None;
        }
        let mut participant = self.pinned.to_vec();
        let mut busy = self.fixed_ns.clone();
        let mut end = m;
        for k in (0..self.team.size()).rev() {
            let start = from[k][end] as usize;
            for p in self.scale.positions[start..end].iter().map(|p| *p as usize) {
                participant[p] = k as u16;
                busy[k] += self.team.time_ns(k, self.scale.work, p);
            }
            end = start;
        }
        let longest = busy.iter().max().copied().unwrap_or(0);
        let total = busy.iter().fold(crossings, |sum, b| sum.saturating_add(*b));
        Some((total.saturating_add(longest), participant))
    }

    /// Adds participant `k`. Returns the least cost of covering the first `j` positions with participants up to `k`,
    /// and where `k` then begins.
    fn extend(&self, k: usize, least: u64, most: u64, before: &[u64]) -> (Vec<u64>, Vec<u32>) {
        let m = self.scale.positions.len();
        let worker = &self.team.workers[k];
        let may_be_empty = !self.fixed[k].is_empty();
        let at = |i: usize| before[i].saturating_add(self.crossing_ns(k, i));
        let mut busy = self.fixed_ns[k];
        // The busy time of participant `k` with all free positions before each index.
        let mut until = vec![busy; m + 1];
        for j in 0..m {
            busy = busy.saturating_add(self.time_ns(k, j));
            until[j + 1] = busy;
        }
        let time = |i: usize, j: usize| until[j] - until[i] + self.fixed_ns[k];

        let mut best = vec![u64::MAX; m + 1];
        let mut from = vec![0u32; m + 1];
        let mut run = PositionRun::new(self.scale, &self.fixed[k], worker);
        let mut next = 0;
        // A run begins after the last position that the participant cannot run.
        let mut least_start = 0;
        // The starts of a monotonic queue: index and cost rise, so the front is the cheapest.
        let mut starts: VecDeque<usize> = VecDeque::new();
        for j in 0..=m {
            if j > 0 {
                run.grow();
                let position = self.scale.positions[j - 1] as usize;
                if !self.allowed.allows(position, k) {
                    least_start = j;
                }
            }
            while run.start < j
                && (run.start < least_start || time(run.start, j) > most || !run.fits())
            {
                run.shrink();
            }
            while next < j + usize::from(may_be_empty) && time(next, j) >= least {
                while starts.back().is_some_and(|s| at(*s) >= at(next)) {
                    starts.pop_back();
                }
                starts.push_back(next);
                next += 1;
            }
            while starts.front().is_some_and(|s| *s < run.start) {
                starts.pop_front();
            }
            let fits = time(run.start, j) <= most && run.fits();
            if let Some(i) = starts.front().filter(|_| fits) {
                best[j] = at(*i);
                from[j] = *i as u32;
            }
        }
        (best, from)
    }

    /// Returns the nanoseconds of a free position on participant `k`.
    fn time_ns(&self, k: usize, index: usize) -> u64 {
        let position = self.scale.positions[index] as usize;
        self.team.time_ns(k, self.scale.work, position)
    }

    /// Returns the cost of a cut in front of free position `i`, where participant `k` begins.
    fn crossing_ns(&self, k: usize, i: usize) -> u64 {
        match (k.checked_sub(1), self.crossing.get(i)) {
            (Some(before), Some((bytes, tensors))) if i > 0 && *tensors > 0 => self
                .team
                .transfer_ns(before, k, *bytes)
                .saturating_add(tensors.saturating_mul(CROSSING_NS)),
            _ => 0,
        }
    }
}

/// Returns the bytes and number of tensors that steps write before each position and read at or after it.
fn crossings(work: &Work) -> Vec<(u64, u64)> {
    let mut change = vec![(0i128, 0i64); work.positions() + 1];
    for v in 0..work.flow_value.len() {
        let mut apart = work.readers.row(v).iter().rev();
        let last = apart.find(|p| work.beside[**p as usize] == NONE);
        let writer = work.writer[v];
        let (Some(last), false) = (last, writer == NONE) else {
            continue;
        };
        let bytes = i128::from(work.flow_bytes[v]);
        let (open, close) = (writer as usize + 1, *last as usize + 1);
        change[open].0 += bytes;
        change[open].1 += 1;
        change[close].0 -= bytes;
        change[close].1 -= 1;
    }
    let mut now = (0i128, 0i64);
    (0..work.positions())
        .map(|p| {
            now = (now.0 + change[p].0, now.1 + change[p].1);
            (
                u64::try_from(now.0).unwrap_or(u64::MAX),
                now.1.max(0) as u64,
            )
        })
        .collect()
}
