//! Searches for a placement: which workers to use, and which nodes to run on each.
//!
//! Every candidate is predicted in full (time and memory), and judged by the time of one step plus the busiest worker's
//! share, which bounds how often a step can start.

mod cut;
mod position_run;
mod ranked;
mod refine;

use std::cell::OnceCell;
use std::sync::Arc;

use convoke_common::{Code, Error, Result};

use super::cluster::{ClusterModel, Team};
use super::eligibility::Eligibility;
use super::memory::{Usage, usage};
use super::schedule::{Schedule, priorities, simulate};
use super::too_small;
use super::work::{UNPINNED, Work};
use cut::cut;
pub(super) use position_run::{Charge, Scale};
use ranked::ranked;
use refine::refine;

/// Most kinds of workers that are tried as the only worker.
const MOST_KINDS: usize = 8;

/// A placement with its predictions.
pub struct Candidate {
    pub team: Team,
    /// The participant of each position.
    pub participant: Vec<u16>,
    /// The participant that holds each constant result.
    pub homes: Vec<u16>,
    pub schedule: Schedule,
    pub usage: Vec<Usage>,
}

impl Candidate {
    fn fits(&self) -> bool {
        self.usage
            .iter()
            .zip(&self.team.workers)
            .all(|(u, w)| w.holds(u))
    }

    /// Returns the bytes of weights that workers lack.
    fn missing(&self) -> u64 {
        let each = self.usage.iter();
        each.fold(0u64, |sum, usage| sum.saturating_add(usage.missing))
    }

    fn score(&self) -> u64 {
        let busiest = self.schedule.busy_ns.iter().max().copied().unwrap_or(0);
        self.schedule.step_ns.saturating_add(busiest)
    }
}

/// Returns the indices of the workers, the largest memory first.
pub fn by_memory(cluster: &ClusterModel) -> Vec<usize> {
    let mut order: Vec<usize> = (0..cluster.workers.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(cluster.workers[*i].reach()));
    order
}

/// The inputs of the search, with what is derived from them once.
pub struct Search<'a> {
    work: &'a Work,
    cluster: &'a ClusterModel,
    /// The worker that each position is pinned to, or [`UNPINNED`].
    pinned: &'a [u16],
    able: &'a Eligibility,
    /// The workers that pins name, followed by those that are also needed for kernels which not all workers have.
    needed: Vec<usize>,
    /// How many of the needed workers are named by pins.
    named: usize,
    /// Indices of the workers, the fastest for this graph first.
    by_speed: Vec<usize>,
    in_flight: u32,
    /// The first position that reads a weight which a worker has, for each worker that has some; `usize::MAX` where none does.
    first_read: Vec<OnceCell<usize>>,
    /// Whether parallel branches could shorten a step at all.
    branches: bool,
}

/// Whether a predicted step is shorter than another by more than predictions are off.
fn is_shorter(step_ns: u64, than: u64) -> bool {
    step_ns < than / 20 * 19
}

impl<'a> Search<'a> {
    /// Prepares the search; the cluster has at least one worker.
    pub fn new(
        work: &'a Work,
        cluster: &'a ClusterModel,
        pinned: &'a [u16],
        able: &'a Eligibility,
        in_flight: u32,
    ) -> Self {
        let mut total = convoke_graph::ops::Cost::default();
        for c in &work.cost {
            total.flops += c.flops;
            total.bytes += c.bytes;
        }
        let mut by_speed: Vec<usize> = (0..cluster.workers.len()).collect();
        by_speed.sort_by_key(|i| cluster.workers[*i].total_ns(&total));
        let mut pinned_workers: Vec<usize> = pinned
            .iter()
            .filter(|p| **p != UNPINNED)
            .map(|p| usize::from(*p))
            .collect();
        pinned_workers.sort_unstable();
        pinned_workers.dedup();
        let named = pinned_workers.len();
        let needed = able.complete(pinned_workers, &by_speed);
        let alone = cluster.team(&by_speed[..1]);
        let longest = priorities(work, &alone, &vec![0; work.positions()])
            .into_iter()
            .max()
            .unwrap_or(0);
        let each = (0..work.positions()).map(|p| alone.time_ns(0, work, p));
        let sum = each.fold(0u64, u64::saturating_add);
        let branches = longest < sum / 10 * 9;
        Search {
            work,
            cluster,
            pinned,
            able,
            needed,
            named,
            by_speed,
            in_flight,
            first_read: vec![OnceCell::new(); cluster.workers.len()],
            branches,
        }
    }

    /// Returns the placement on the fastest single worker that holds everything, whatever the pins say.
    pub fn single(&self) -> Option<Candidate> {
        self.fastest(|worker| self.able.equipped(worker))
    }

    /// Returns the fastest placement on one of the workers that `may` run everything and whose memory suffices.
    fn fastest(&self, may: impl Fn(usize) -> bool) -> Option<Candidate> {
        let weights = self.weights();
        let mut kinds = Vec::new();
        let mut best: Option<Candidate> = None;
        for i in &self.by_speed {
            let w = &self.cluster.workers[*i];
            let speeds = [w.host_speed, w.device_speed];
            let [host_speed, device_speed] =
                speeds.map(|s| [s.flops.to_bits(), s.memory_bandwidth.to_bits()]);
            let own = w.device_memory.as_ref().unwrap_or(&w.host);
            let (host, own) = (
                (w.host.usable(), w.host.reach()),
                (own.usable(), own.reach()),
            );
            let kind = [host.0, host.1, own.0, own.1];
            let kind = (kind, [host_speed, device_speed], Arc::as_ptr(&w.on_device));
            if !may(*i)
                || w.host.reach() < weights
                || kinds.contains(&kind)
                || kinds.len() >= MOST_KINDS
            {
                continue;
            }
            kinds.push(kind);
            best = better(best, Some(self.alone(*i)).filter(Candidate::fits));
        }
        best
    }

    fn alone(&self, worker: usize) -> Candidate {
        self.predict(self.cluster.team(&[worker]), vec![0; self.work.positions()])
    }

    /// Returns the best placement over exactly `n` workers, or over as many as there are nodes, or as pins leave something
    /// to run.
    pub fn exactly(&self, n: usize, single: Option<Candidate>) -> Result<Candidate> {
        let there = self.cluster.workers.len();
        if n == 0 {
            return Err(Error::new(
                Code::InvalidArgument,
                "a plan needs at least one worker",
            ));
        }
        if n > there {
            let msg = format!("{n} workers are asked for; {there} are there");
            return Err(
                Error::new(Code::NoWorkers, msg).advise("start more workers, or ask for fewer")
            );
        }
        // Further workers would have nothing to run.
        let n = n.min(self.most_used()).max(1);
        if self.needed.len() > n {
            let msg = match self.needed.len() - self.named {
                0 => format!("pins name {} workers, but the plan may use {n}", self.named),
                _ => format!(
                    "the pins and the nodes' kernels need {} workers, but the plan may use {n}",
                    self.needed.len()
                ),
            };
            return Err(Error::new(Code::InvalidArgument, msg));
        }
        let found = match n {
            1 => self.one(single),
            _ => self.of(n),
        };
        found.ok_or_else(|| self.refusal(n))
    }

    /// Returns how many workers can have something to run at most, which the number of nodes, the pins and the kernels
    /// bound.
    fn most_used(&self) -> usize {
        let workers = 0..self.cluster.workers.len();
        let free = |p: &usize| self.pinned[*p] == UNPINNED;
        let free: Vec<usize> = (0..self.work.positions()).filter(free).collect();
        let named: Vec<bool> = workers
            .clone()
            .map(|w| self.pinned.contains(&(w as u16)))
            .collect();
        let others =
            workers.filter(|w| !named[*w] && free.iter().any(|p| self.able.allows(*p, *w)));
        let named = named.iter().filter(|named| **named).count();
        named + others.count().min(free.len())
    }

    /// Returns the best placement over the fewest workers that suffice, or over more while that shortens the step.
    pub fn fewest(&self, single: Option<Candidate>) -> Result<Candidate> {
        let most = self.cluster.workers.len().min(self.most_used().max(1));
        let mut n = self.needed.len().max(1);
        let mut best = match n {
            1 => self.one(single),
            _ => self.of(n),
        };
        while best.is_none() && n < most {
            n += 1;
            best = self.of(n);
        }
        let mut best = best.ok_or_else(|| self.refusal(most))?;
        while self.branches && n < most {
            n += 1;
            match self.of(n) {
                Some(c) if is_shorter(c.schedule.step_ns, best.schedule.step_ns) => best = c,
                _ => break,
            }
        }
        Ok(best)
    }

    /// Returns the best placement on one worker; pins name at most one.
    fn one(&self, single: Option<Candidate>) -> Option<Candidate> {
        match (self.named, self.needed.first()) {
            (1, Some(w)) => Some(self.alone(*w)).filter(Candidate::fits),
            (_, Some(_)) => self.fastest(|worker| self.able.all(worker)),
            (_, None) => single,
        }
    }

    /// Returns the best placement over `n` workers, two or more.
    fn of(&self, n: usize) -> Option<Candidate> {
        let mut teams = vec![self.team(&self.by_speed, n)];
        let mut ablest = self.by_speed.clone();
        ablest.sort_by_key(|w| std::cmp::Reverse(self.able.count(*w)));
        for order in [by_memory(self.cluster), ablest] {
            let team = self.team(&order, n);
            if !teams.contains(&team) {
                teams.push(team);
            }
        }
        if let Some(team) = self.by_presence(n).filter(|team| !teams.contains(team)) {
            teams.push(team);
        }
        teams
            .into_iter()
            .fold(None, |best, indices| better(best, self.on(&indices)))
    }

    /// Returns the `n` workers that have most of the weights, in the order in which these are read; `None` where none has any. A cut
    /// gives each worker of a team one run of nodes, in the team's order.
    fn by_presence(&self, n: usize) -> Option<Vec<usize>> {
        let presence = |i: usize| &self.cluster.workers[i].host.presence;
        let mut order = self.by_speed.clone();
        order.sort_by_key(|i| std::cmp::Reverse(presence(*i).bytes()));
        if presence(*order.first()?).is_empty() {
            return None;
        }
        let first_read = |i: &usize| {
            let has = |p: &usize| {
                let mut weights = self.work.weights.row(*p).iter();
                weights.any(|c| presence(*i).has(*c as usize))
            };
            if presence(*i).is_empty() {
                return usize::MAX;
            }
            let known = &self.first_read[*i];
            *known.get_or_init(|| (0..self.work.positions()).find(has).unwrap_or(usize::MAX))
        };
        let mut team = self.team(&order, n);
        team.sort_by_key(first_read);
        Some(team)
    }

    /// Returns the needed workers and the first others in `order`, `n` in all, ascending.
    fn team(&self, order: &[usize], n: usize) -> Vec<usize> {
        let others = order.iter().filter(|i| !self.needed.contains(i));
        let mut team: Vec<usize> = self.needed.iter().chain(others).take(n).copied().collect();
        team.sort_unstable();
        team
    }

    fn on(&self, indices: &[usize]) -> Option<Candidate> {
        let team = self.cluster.team(indices);
        let memory = team
            .workers
            .iter()
            .fold(0u64, |sum, w| sum.saturating_add(w.host.reach()));
        if memory < self.weights() {
            return None;
        }
        let to_member = |p: &u16| match indices.iter().position(|i| *i == usize::from(*p)) {
            Some(m) if *p != UNPINNED => m as u16,
            _ => UNPINNED,
        };
        let allowed = self.able.on(indices)?;
        let pinned: Vec<u16> = self.pinned.iter().map(to_member).collect();
        let cut = |charge| {
            let cut =
                |pinned: &[u16]| cut(self.work, &team, pinned, &allowed, self.in_flight, charge);
            // A cut gives each participant, in order, one run of positions. If no such runs satisfy the constraints, the
            // constrained positions are pinned first, so that runs need not contain them.
            let settled = || allowed.constrains().then(|| allowed.settle(&pinned));
            cut(&pinned).or_else(|| cut(&settled()?))
        };
        let mut best = None;
        for charge in [Charge::Everything, Charge::OwnOperands] {
            if let Some(cut) = cut(charge) {
                let mut refined = cut.clone();
                refine(self.work, &team, &pinned, &allowed, &mut refined);
                let fits = Some(self.predict(team.clone(), refined)).filter(Candidate::fits);
                best =
                    fits.or_else(|| Some(self.predict(team.clone(), cut)).filter(Candidate::fits));
            }
            if best.is_some() {
                break;
            }
        }
        if self.branches
            && let Some(participant) = ranked(self.work, &team, &pinned, &allowed)
            && (0..team.size()).all(|m| participant.contains(&(m as u16)))
        {
            best = better(
                best,
                Some(self.predict(team, participant)).filter(Candidate::fits),
            );
        }
        best
    }

    /// Returns the bytes of all weights that steps read.
    fn weights(&self) -> u64 {
        let mut read = vec![false; self.work.const_value.len()];
        for p in 0..self.work.positions() {
            self.work
                .weights
                .row(p)
                .iter()
                .for_each(|c| read[*c as usize] = true);
        }
        let bytes = read
            .iter()
            .zip(&self.work.const_bytes)
            .filter(|(read, _)| **read);
        bytes.fold(0u64, |sum, (_, b)| sum.saturating_add(*b))
    }

    fn predict(&self, team: Team, participant: Vec<u16>) -> Candidate {
        let schedule = simulate(self.work, &team, &participant);
        let homes = homes(self.work, &team, &participant);
        let usage = usage(
            self.work,
            &team,
            &participant,
            &schedule.order,
            &homes,
            self.in_flight,
        );
        Candidate {
            team,
            participant,
            homes,
            schedule,
            usage,
        }
    }

    fn refusal(&self, n: usize) -> Error {
        let e = too_small::error(self.work, self.cluster, n, self.in_flight);
        let (work, cluster) = (self.work, self.cluster);
        if let Some(advice) = too_small::pinned_advice(work, cluster, self.pinned, self.in_flight) {
            return e.advise(advice);
        }
        match self.needed.is_empty() {
            true => e,
            false => {
                let what = ["pins", "pins and kernels that some workers lack"]
                    [usize::from(self.needed.len() > self.named)];
                let advice = format!("{}; {what} may be in the way", e.advice);
                e.advise(advice)
            }
        }
    }
}

/// Returns the better of two candidates: the faster one, or, where predictions are not precise enough to tell which that
/// is, the one that loads fewer weights.
fn better(a: Option<Candidate>, b: Option<Candidate>) -> Option<Candidate> {
    let slower = |a: &Candidate, b: &Candidate| a.score() / 20 * 19 > b.score();
    match (a, b) {
        (Some(a), Some(b)) if a.missing() != b.missing() && !slower(&a, &b) && !slower(&b, &a) => {
            Some(if b.missing() < a.missing() { b } else { a })
        }
        (Some(a), Some(b)) => Some(if b.score() < a.score() { b } else { a }),
        (a, b) => a.or(b),
    }
}

/// Returns the participant that each constant result comes from: one that holds it anyway, else the one whose host has most
/// memory, since results are kept there.
fn homes(work: &Work, team: &Team, participant: &[u16]) -> Vec<u16> {
    let mut home = vec![UNPINNED; work.const_value.len()];
    if !work.const_results.is_empty() {
        for p in (0..work.positions()).rev() {
            work.weights
                .row(p)
                .iter()
                .for_each(|c| home[*c as usize] = participant[p]);
        }
    }
    let largest = (0..team.size())
        .rev()
        .max_by_key(|m| team.workers[*m].host.reach())
        .unwrap_or(0) as u16;
    let of = |c: &u32| match home[*c as usize] {
        UNPINNED => largest,
        m => m,
    };
    work.const_results.iter().map(of).collect()
}
