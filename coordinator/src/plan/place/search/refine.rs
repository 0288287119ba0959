//! Moves light nodes between participants if that saves transfers: shape arithmetic goes to its consumers, and a node
//! at a boundary to the side that it shares more with. A node takes along the nodes that only it reads.

use crate::place::cluster::Team;
use crate::place::eligibility::TeamEligibility;
use crate::place::work::{NONE, UNPINNED, Work};

/// Most bytes of weights that may move with a node: little against any prediction of memory.
const LIGHT: u64 = 64 << 10;
/// Most nodes that move together.
const MOST_TOGETHER: usize = 16;
/// Number of sweeps over the graph; moves become rare after the first.
const SWEEPS: usize = 2;
/// Most (flow, participant) pairs; a larger table of readers is not worth its memory.
const MOST_READERS: usize = 32 << 20;

/// Improves `participant` in place. Each participant keeps at least one position.
pub fn refine(
    work: &Work,
    team: &Team,
    pinned: &[u16],
    allowed: &TeamEligibility<'_>,
    participant: &mut [u16],
) {
    let n = team.size();
    if n < 2
        || work
            .flow_value
            .len()
            .checked_mul(n)
            .is_none_or(|size| size > MOST_READERS)
    {
        return;
    }
    let mut r = Refiner::new(work, team, pinned, allowed, participant);
    for _ in 0..SWEEPS {
        let mut moved = false;
        // The sweep runs backwards, so that a chain follows its last consumer at once.
        for p in (0..work.positions())
            .rev()
            .filter(|p| pinned[*p] == UNPINNED && work.beside[*p] == NONE)
        {
            moved |= r.improve(p);
        }
        if !moved {
            break;
        }
    }
}

struct Refiner<'a> {
    work: &'a Work,
    team: &'a Team,
    pinned: &'a [u16],
    allowed: &'a TeamEligibility<'a>,
    participant: &'a mut [u16],
    /// Number of readers of each (flow, participant).
    readers: Vec<u32>,
    positions: Vec<u32>,
    busy: Vec<u64>,
    /// The most busy time that a move may lead to, in nanoseconds: a quarter more than the busiest participant had.
    limit: u64,
}

impl<'a> Refiner<'a> {
    fn new(
        work: &'a Work,
        team: &'a Team,
        pinned: &'a [u16],
        allowed: &'a TeamEligibility<'a>,
        participant: &'a mut [u16],
    ) -> Refiner<'a> {
        let n = team.size();
        let mut readers = vec![0; work.flow_value.len() * n];
        let mut positions = vec![0; n];
        let mut busy = vec![0; n];
        for (p, m) in participant.iter().map(|m| usize::from(*m)).enumerate() {
            positions[m] += 1;
            busy[m] += team.time_ns(m, work, p);
            work.reads
                .row(p)
                .iter()
                .for_each(|v| readers[*v as usize * n + m] += 1);
        }
        let limit = busy
            .iter()
            .max()
            .map_or(0, |b: &u64| b.saturating_add(b / 4));
        Refiner {
            work,
            team,
            pinned,
            allowed,
            participant,
            readers,
            positions,
            busy,
            limit,
        }
    }

    /// Moves position `p`, alone or with the nodes that only it reads, to a neighbour's participant if that saves
    /// transfers. Returns whether it moved.
    fn improve(&mut self, p: usize) -> bool {
        if !self.is_light(p) {
            return false;
        }
        let neighbours = self.neighbours(p);
        if neighbours.is_empty() {
            return false;
        }
        let (group, alone) = self.group(p);
        for size in [group.len(), alone] {
            for to in &neighbours {
                if self.move_if_better(&group[..size], *to) {
                    return true;
                }
            }
        }
        false
    }

    fn is_light(&self, p: usize) -> bool {
        let weights = self.work.weights.row(p).iter();
        weights.fold(0u64, |n, c| {
            n.saturating_add(self.work.const_bytes[*c as usize])
        }) <= LIGHT
    }

    /// Returns the other participants that hold a writer of what `p` reads, or a reader of what it writes.
    fn neighbours(&self, p: usize) -> Vec<usize> {
        let reads = self
            .work
            .reads
            .row(p)
            .iter()
            .map(|v| self.work.writer[*v as usize]);
        let writes = self.work.writes.row(p).iter();
        let readers = writes
            .flat_map(|v| self.work.readers.row(*v as usize))
            .copied();
        let mut participants = Vec::new();
        for neighbour in reads
            .filter(|w| *w != NONE)
            .take(16)
            .chain(readers.take(16))
        {
            let m = usize::from(self.participant[neighbour as usize]);
            if self.participant[neighbour as usize] != self.participant[p]
                && !participants.contains(&m)
            {
                participants.push(m);
            }
        }
        participants
    }

    /// Returns `p` with the positions beside it, their number, and then the light positions of the same participant
    /// whose outputs only the group reads.
    fn group(&self, p: usize) -> (Vec<usize>, usize) {
        let mut group = vec![p];
        let company = self.work.company(p).map(|p| p as usize);
        group.extend(company.filter(|p| self.pinned[*p] == UNPINNED));
        let alone = group.len();
        let mut next = 0;
        while next < group.len() && group.len() < MOST_TOGETHER {
            for v in self.work.reads.row(group[next]) {
                let writer = self.work.writer[*v as usize];
                if writer == NONE {
                    continue;
                }
                let w = writer as usize;
                let inside = |v: &u32| {
                    !self.work.flow_is_result[*v as usize]
                        && self
                            .work
                            .readers
                            .row(*v as usize)
                            .iter()
                            .all(|r| group.contains(&(*r as usize)))
                };
                if self.participant[w] == self.participant[p]
                    && self.pinned[w] == UNPINNED
                    && group.len() < MOST_TOGETHER
                    && !group.contains(&w)
                    && self.is_light(w)
                    && self.work.writes.row(w).iter().all(inside)
                {
                    group.push(w);
                }
            }
            next += 1;
        }
        (group, alone)
    }

    /// Moves `group` from its participant to `to`, and undoes the move unless it saves transfers. Returns whether it
    /// moved.
    fn move_if_better(&mut self, group: &[usize], to: usize) -> bool {
        let from = usize::from(self.participant[group[0]]);
        let time = group
            .iter()
            .fold(0u64, |sum, p| sum + self.team.time_ns(to, self.work, *p));
        if !group.iter().all(|p| self.allowed.allows(*p, to))
            || self.positions[from] as usize <= group.len()
            || self.busy[to].saturating_add(time) > self.limit
        {
            return false;
        }
        let mut gain = 0;
        for p in group {
            gain += self.gain(*p, from, to);
            self.apply(*p, from, to);
        }
        if gain <= 0 {
            group.iter().for_each(|p| self.apply(*p, to, from));
        }
        gain > 0
    }

    /// Returns the nanoseconds of transfers that moving `p` saves.
    fn gain(&self, p: usize, from: usize, to: usize) -> i128 {
        let n = self.team.size();
        let transfer = |a: usize, b: usize, bytes| i128::from(self.team.transfer_ns(a, b, bytes));
        let mut gain = 0;
        for v in self.work.reads.row(p).iter().map(|v| *v as usize) {
            let bytes = self.work.flow_bytes[v];
            let only_reader = self.readers[v * n + from] == 1;
            let new_reader = self.readers[v * n + to] == 0;
            match self.work.writer[v] {
                NONE => {
                    let fed = i128::from(self.team.driver.transfer_ns(bytes));
                    gain += i128::from(only_reader) * fed - i128::from(new_reader) * fed;
                }
                w => {
                    let home = self.participant[w as usize] as usize;
                    gain += i128::from(only_reader) * transfer(home, from, bytes);
                    gain -= i128::from(new_reader) * transfer(home, to, bytes);
                }
            }
        }
        for v in self.work.writes.row(p).iter().map(|v| *v as usize) {
            let bytes = self.work.flow_bytes[v];
            for m in (0..n).filter(|m| self.readers[v * n + m] > 0) {
                gain += transfer(from, m, bytes) - transfer(to, m, bytes);
            }
        }
        gain
    }

    fn apply(&mut self, p: usize, from: usize, to: usize) {
        let n = self.team.size();
        for v in self.work.reads.row(p) {
            self.readers[*v as usize * n + from] -= 1;
            self.readers[*v as usize * n + to] += 1;
        }
        self.participant[p] = to as u16;
        self.positions[from] -= 1;
        self.positions[to] += 1;
        self.busy[from] -= self.team.time_ns(from, self.work, p);
        self.busy[to] += self.team.time_ns(to, self.work, p);
    }
}
