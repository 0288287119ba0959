//! Determines which workers may run which nodes: an op needs a worker with its kernel, a pinned node a worker of its
//! pin's set.
//!
//! Ops that every worker has kernels for constrain nothing. A pin whose set is one worker is not a constraint here: it
//! fixes the worker.

use convoke_common::{Code, Error, Result};
use convoke_graph::graph::{Function, Node};
use convoke_graph::ops::CustomOp;

use super::cluster::ClusterModel;
use super::needed_kernel::{NeededKernel, listed};
use super::pins::Pins;
use super::work::{UNPINNED, Work};

/// The index of a position without a constraint.
const ANY: u16 = u16::MAX;

/// The constraints on where positions may run.
#[derive(Debug, Default)]
pub struct Eligibility {
    /// For each constraint the workers that satisfy it.
    sets: Vec<Vec<bool>>,
    /// For each worker whether it has a kernel for every node.
    equipped: Vec<bool>,
    /// The constraint of each position, or [`ANY`]; empty if there are no constraints.
    of: Vec<u16>,
}

/// The constraints of [`Eligibility`], by participant of a team instead of worker.
#[derive(Debug)]
pub struct TeamEligibility<'a> {
    sets: Vec<Vec<bool>>,
    of: &'a [u16],
}

impl TeamEligibility<'_> {
    /// Returns whether a participant can run a position.
    pub fn allows(&self, position: usize, participant: usize) -> bool {
        match self.of.get(position) {
            None | Some(&ANY) => true,
            Some(set) => self.sets[usize::from(*set)][participant],
        }
    }

    /// Returns `pinned` with each constrained position that is not pinned yet pinned to the first participant that can
    /// run it.
    pub fn settle(&self, pinned: &[u16]) -> Vec<u16> {
        let mut settled = pinned.to_vec();
        for (p, set) in self.of.iter().enumerate().filter(|(_, set)| **set != ANY) {
            let able = self.sets[usize::from(*set)].iter().position(|able| *able);
            if let (UNPINNED, Some(participant)) = (settled[p], able) {
                settled[p] = participant as u16;
            }
        }
        settled
    }

    /// Returns whether there is any constraint.
    pub fn constrains(&self) -> bool {
        !self.of.is_empty()
    }
}

impl Eligibility {
    /// Derives the constraints of `f` and its pins; `defined` are custom ops as the caller defines them. Fails if no
    /// worker, or no worker of a pin's set, has a kernel for an op.
    pub fn new(
        f: &Function,
        work: &Work,
        cluster: &ClusterModel,
        pins: &Pins,
        defined: &[CustomOp],
    ) -> Result<Eligibility> {
        let mut able = Eligibility {
            equipped: vec![true; cluster.workers.len()],
            ..Eligibility::default()
        };
        let mut of = vec![ANY; work.positions()];
        for (p, set) in of.iter_mut().enumerate() {
            if let Some(choice) = pins.choice(p) {
                *set = able.constraint(choice.to_vec())?;
            }
        }
        // Usually every worker has every kernel of the registry.
        let registry = !cluster.workers.iter().all(|w| w.kernels.host.is_all());
        // For each kernel the workers that have it; `None` if all of them do.
        let mut known: Vec<(NeededKernel<'_>, Option<Vec<bool>>)> = vec![];
        let mut needed = vec![];
        let steps = work.steps.iter().enumerate();
        let steps = steps.map(|(p, i)| (Some(p), *i));
        for (position, i) in steps.chain(work.inits.iter().map(|i| (None, *i))) {
            let node = &f.nodes[i as usize];
            let op = &node.op;
            needed.clear();
            NeededKernel::add(f, node, registry, &mut needed);
            let mut able_to: Option<Vec<bool>> = None;
            for kernel in &needed {
                if !known.iter().any(|(k, _)| k == kernel) {
                    known.push((*kernel, kernel.workers(f, cluster, defined)?));
                }
                let have = known.iter().find(|(k, _)| k == kernel);
                let Some((_, Some(have))) = have else {
                    continue;
                };
                let all = able_to.get_or_insert_with(|| vec![true; have.len()]);
                all.iter_mut().zip(have).for_each(|(all, one)| *all &= one);
            }
            let Some(have) = &able_to else { continue };
            able.equipped
                .iter_mut()
                .zip(have)
                .for_each(|(all, one)| *all &= one);
            let Some(p) = position else {
                let msg = format!(
                    "node '{}' runs at install, wherever its result is read, and not all workers have its op '{op}'",
                    node.name
                );
                return Err(Error::new(Code::UnsupportedOp, msg));
            };
            let fixed = usize::from(pins.fixed[p]);
            if let Some(worker) = cluster.workers.get(fixed) {
                if !have[fixed] {
                    let who = format!("worker {}, which has no", worker.name);
                    return Err(not_equipped(node, &who, cluster, have));
                }
                continue;
            }
            let set: Vec<bool> = match pins.choice(p) {
                None => have.clone(),
                Some(choice) => choice.iter().zip(have).map(|(a, b)| *a && *b).collect(),
            };
            if !set.contains(&true) {
                return Err(not_equipped(
                    node,
                    "workers of which none has a",
                    cluster,
                    have,
                ));
            }
            of[p] = able.constraint(set)?;
        }
        if !able.sets.is_empty() {
            able.of = of;
        }
        Ok(able)
    }

    /// Returns the index of the constraint to these workers, of which there is at least one, and adds it if it is new.
    fn constraint(&mut self, set: Vec<bool>) -> Result<u16> {
        let same = self.sets.iter().position(|s| *s == set);
        let at = same.unwrap_or(self.sets.len());
        if same.is_none() {
            self.sets.push(set);
        }
        u16::try_from(at)
            .ok()
            .filter(|at| *at != ANY)
            .ok_or_else(|| {
                let msg = "more pins and kernels that some workers lack than a plan can number";
                Error::new(Code::InvalidGraph, msg)
            })
    }

    /// Returns whether a worker can run a position.
    pub fn allows(&self, position: usize, worker: usize) -> bool {
        match self.of.get(position) {
            None | Some(&ANY) => true,
            Some(set) => self.sets[usize::from(*set)][worker],
        }
    }

    /// Returns how many constraints a worker satisfies.
    pub fn count(&self, worker: usize) -> usize {
        self.sets.iter().filter(|set| set[worker]).count()
    }

    /// Returns whether a worker may run all nodes.
    pub fn all(&self, worker: usize) -> bool {
        self.count(worker) == self.sets.len()
    }

    /// Returns whether a worker has a kernel for all nodes, whatever the pins say.
    pub fn equipped(&self, worker: usize) -> bool {
        self.equipped[worker]
    }

    /// Returns the constraints for a team of these workers; `None` if none of them can run some node.
    pub fn on(&self, indices: &[usize]) -> Option<TeamEligibility<'_>> {
        let participant = |set: &Vec<bool>| indices.iter().map(|i| set[*i]).collect::<Vec<_>>();
        let sets: Vec<Vec<bool>> = self.sets.iter().map(participant).collect();
        let possible = sets.iter().all(|set| set.contains(&true));
        possible.then_some(TeamEligibility { sets, of: &self.of })
    }

    /// Extends `team` by workers of `order` until every node can run; workers that satisfy most open constraints come
    /// first.
    pub fn complete(&self, mut team: Vec<usize>, order: &[usize]) -> Vec<usize> {
        loop {
            let open = || {
                let held = |set: &&Vec<bool>| team.iter().any(|w| set[*w]);
                self.sets.iter().filter(move |set| !held(set))
            };
            let helps = |w: &usize| open().filter(|set| set[*w]).count();
            // Among equals the first worker of `order` is taken.
            match order.iter().rev().max_by_key(|w| helps(w)) {
                Some(w) if helps(w) > 0 => team.push(*w),
                _ => return team,
            }
        }
    }
}

/// The error of a pin whose workers have no kernel for a node's op; `have` says which workers have one.
fn not_equipped(node: &Node, who: &str, cluster: &ClusterModel, have: &[bool]) -> Error {
    let (name, op) = (&node.name, &node.op);
    let msg = format!("node '{name}' is to run on {who} kernel of its op '{op}'");
    let there = cluster.workers.iter().zip(have).filter(|(_, has)| **has);
    let there = listed(there.map(|(w, _)| w.name.clone()));
    Error::new(Code::UnsupportedOp, msg).advise(format!("{there} have it"))
}
