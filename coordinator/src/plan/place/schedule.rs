//! Predicts the time of one step with an event simulation: each worker runs one node at a time, the most urgent ready
//! one first, and each link carries one tensor at a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::cluster::Team;
use super::work::{NONE, Work};

/// The prediction of one step.
#[derive(Debug, Clone, Default)]
pub struct Schedule {
    /// Nanoseconds from the start of the step until the last result has reached the driver.
    pub step_ns: u64,
    /// Busy nanoseconds of each participant.
    pub busy_ns: Vec<u64>,
    /// Nanoseconds from the start of a position to the end of the step along the longest path.
    pub priority: Vec<u64>,
    /// The positions in the order in which the workers' programs have them: the most urgent first. What a position waits for is at
    /// least as urgent, so that it comes before. Where a tensor comes late from another worker, what waits for it starts later.
    pub order: Vec<u32>,
}

/// Predicts a step of `work`; `participant` has the participant of `team` that runs each position.
pub fn simulate(work: &Work, team: &Team, participant: &[u16]) -> Schedule {
    let priority = priorities(work, team, participant);
    let mut sim = Simulation::new(work, team, participant, &priority);
    sim.run();
    let Simulation {
        step_ns, busy_ns, ..
    } = sim;
    let mut order: Vec<u32> = (0..work.positions() as u32).collect();
    order.sort_by_key(|p| (Reverse(priority[*p as usize]), *p));
    Schedule {
        step_ns,
        busy_ns,
        priority,
        order,
    }
}

/// Returns the nanoseconds of the longest path from each position to the end of the step, transfers included.
pub fn priorities(work: &Work, team: &Team, participant: &[u16]) -> Vec<u64> {
    let mut rank = vec![0u64; work.positions()];
    for p in (0..work.positions()).rev() {
        let here = participant[p] as usize;
        let mut longest = 0;
        for v in work.writes.row(p) {
            let v = *v as usize;
            if work.flow_is_result[v] {
                longest = longest.max(team.driver.transfer_ns(work.flow_bytes[v]));
            }
            for reader in work.readers.row(v) {
                let to = participant[*reader as usize] as usize;
                let path = team
                    .transfer_ns(here, to, work.flow_bytes[v])
                    .saturating_add(rank[*reader as usize]);
                longest = longest.max(path);
            }
        }
        rank[p] = team.time_ns(here, work, p).saturating_add(longest);
    }
    rank
}

/// An event of the simulation. At equal times a participant chooses its next node after all that is ready by then has come.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The operands of a position are there.
    Ready(u32),
    Finished(u32),
    /// A participant starts the most urgent position that is ready, if it is idle.
    Choice(usize),
}

struct Simulation<'a> {
    work: &'a Work,
    team: &'a Team,
    participant: &'a [u16],
    priority: &'a [u64],
    events: BinaryHeap<Reverse<(u64, Event)>>,
    /// Ready positions of each participant, the most urgent on top.
    ready: Vec<BinaryHeap<(u64, Reverse<u32>)>>,
    busy: Vec<bool>,
    /// For each position the number of operands that have not arrived, and when the latest of the others arrived.
    missing: Vec<u32>,
    ready_at: Vec<u64>,
    /// When each link is free again: from × to, the driver after the participants.
    free_at: Vec<u64>,
    /// When the flow that is being delivered arrives at each participant; `u64::MAX` if it was not sent there.
    arrival: Vec<u64>,
    step_ns: u64,
    busy_ns: Vec<u64>,
}

impl<'a> Simulation<'a> {
    fn new(work: &'a Work, team: &'a Team, participant: &'a [u16], priority: &'a [u64]) -> Self {
        let n = team.size();
        Simulation {
            work,
            team,
            participant,
            priority,
            events: BinaryHeap::new(),
            ready: vec![BinaryHeap::new(); n],
            busy: vec![false; n],
            missing: (0..work.positions())
                .map(|p| work.reads.row(p).len() as u32)
                .collect(),
            ready_at: vec![0; work.positions()],
            free_at: vec![0; (n + 1) * (n + 1)],
            arrival: vec![u64::MAX; n],
            step_ns: 0,
            busy_ns: vec![0; n],
        }
    }

    fn run(&mut self) {
        for p in 0..self.work.positions() {
            if self.missing[p] == 0 {
                self.events.push(Reverse((0, Event::Ready(p as u32))));
            }
        }
        for v in 0..self.work.flow_value.len() {
            if self.work.writer[v] == NONE {
                self.deliver(v, self.team.size(), 0);
            }
        }
        while let Some(Reverse((now, event))) = self.events.pop() {
            match event {
                Event::Ready(p) => {
                    let at = self.participant[p as usize] as usize;
                    self.ready[at].push((self.priority[p as usize], Reverse(p)));
                    self.events.push(Reverse((now, Event::Choice(at))));
                }
                Event::Finished(p) => {
                    let at = self.participant[p as usize] as usize;
                    self.step_ns = self.step_ns.max(now);
                    let work = self.work;
                    work.writes
                        .row(p as usize)
                        .iter()
                        .for_each(|v| self.deliver(*v as usize, at, now));
                    self.busy[at] = false;
                    self.events.push(Reverse((now, Event::Choice(at))));
                }
                Event::Choice(at) => self.start_next(at, now),
            }
        }
    }

    fn start_next(&mut self, at: usize, now: u64) {
        if self.busy[at] {
            return;
        }
        if let Some((_, Reverse(p))) = self.ready[at].pop() {
            let time = self.team.time_ns(at, self.work, p as usize);
            self.busy[at] = true;
            self.busy_ns[at] += time;
            self.events
                .push(Reverse((now.saturating_add(time), Event::Finished(p))));
        }
    }

    /// Sends flow `v`, which exists at `from` at the time `now`, to all of its readers.
    fn deliver(&mut self, v: usize, from: usize, now: u64) {
        let bytes = self.work.flow_bytes[v];
        let work = self.work;
        if work.flow_is_result[v] && from < self.team.size() {
            let arrives = self.send(from, self.team.size(), bytes, now);
            self.step_ns = self.step_ns.max(arrives);
        }
        for reader in work.readers.row(v) {
            let to = self.participant[*reader as usize] as usize;
            if self.arrival[to] == u64::MAX {
                self.arrival[to] = if to == from {
                    now
                } else {
                    self.send(from, to, bytes, now)
                };
            }
            let p = *reader as usize;
            self.ready_at[p] = self.ready_at[p].max(self.arrival[to]);
            self.missing[p] -= 1;
            if self.missing[p] == 0 {
                self.events
                    .push(Reverse((self.ready_at[p], Event::Ready(*reader))));
            }
        }
        for reader in work.readers.row(v) {
            self.arrival[self.participant[*reader as usize] as usize] = u64::MAX;
        }
    }

    fn send(&mut self, from: usize, to: usize, bytes: u64, now: u64) -> u64 {
        let n = self.team.size();
        let link = if from == n || to == n {
            self.team.driver
        } else {
            self.team.link(from, to)
        };
        let free = &mut self.free_at[from * (n + 1) + to];
        *free = now.max(*free).saturating_add(link.occupancy_ns(bytes));
        free.saturating_add(link.latency_ns)
    }
}
