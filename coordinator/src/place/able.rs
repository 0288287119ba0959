//! Which workers may run which nodes: those of custom ops only where there is a kernel, pinned ones only where the pin says.
//!
//! Ops that every worker has constrain nothing, and ops of the registry are such. A pin that names one worker is no
//! constraint here: it decides.

use std::collections::BTreeMap;

use convoke_common::graph::{Function, Node};
use convoke_common::ops::{self, CustomOp};
use convoke_common::{Code, Error, Result};

use super::cluster::{ClusterModel, WorkerModel};
use super::pins::Pins;
use super::segment::UNPINNED;
use super::work::Work;

/// Names listed before a message says how many more there are.
const LISTED: usize = 8;

/// No constraint.
const ANY: u16 = u16::MAX;

/// The constraints on where positions may run.
#[derive(Debug, Default)]
pub struct Able {
    /// By constraint, which workers keep it.
    sets: Vec<Vec<bool>>,
    /// By worker, whether it has a kernel for every node.
    equipped: Vec<bool>,
    /// The constraint of each position; empty where there is none.
    of: Vec<u16>,
}

/// [`Able`] for the members of a team.
#[derive(Debug)]
pub struct Allowed<'a> {
    sets: Vec<Vec<bool>>,
    of: &'a [u16],
}

impl Allowed<'_> {
    /// Whether a member can run a position.
    pub fn allows(&self, position: usize, member: usize) -> bool {
        match self.of.get(position) {
            None | Some(&ANY) => true,
            Some(set) => self.sets[usize::from(*set)][member],
        }
    }

    /// Each constrained position that no pin holds, pinned to the first member that can run it.
    pub fn settle(&self, pinned: &[u16]) -> Vec<u16> {
        let mut settled = pinned.to_vec();
        for (p, set) in self.of.iter().enumerate().filter(|(_, set)| **set != ANY) {
            let able = self.sets[usize::from(*set)].iter().position(|able| *able);
            if let (UNPINNED, Some(member)) = (settled[p], able) {
                settled[p] = member as u16;
            }
        }
        settled
    }

    /// Whether there is any constraint.
    pub fn constrains(&self) -> bool {
        !self.of.is_empty()
    }
}

/// The custom op that a node needs a kernel of.
fn custom(node: &Node) -> Option<&str> {
    ops::is_custom(&node.op).then_some(&*node.op)
}

impl Able {
    /// What `f` and its pins ask of the workers; `defined` are custom ops as the caller defines them. Fails where no worker
    /// has an op, or none of those that a pin names.
    pub fn new(
        f: &Function,
        work: &Work,
        cluster: &ClusterModel,
        pins: &Pins,
        defined: &[CustomOp],
    ) -> Result<Able> {
        let mut able = Able {
            equipped: vec![true; cluster.workers.len()],
            ..Able::default()
        };
        let mut of = vec![ANY; work.positions()];
        for (p, set) in of.iter_mut().enumerate() {
            if let Some(choice) = pins.choice(p) {
                *set = able.constraint(choice.to_vec())?;
            }
        }
        // By op, which workers have it; nothing where all do.
        let mut known: BTreeMap<&str, Option<Vec<bool>>> = BTreeMap::new();
        let steps = work.steps.iter().enumerate();
        let steps = steps.map(|(p, i)| (Some(p), *i));
        for (position, i) in steps.chain(work.inits.iter().map(|i| (None, *i))) {
            let node = &f.nodes[i as usize];
            let Some(op) = custom(node) else { continue };
            if !known.contains_key(op) {
                known.insert(op, workers_with(f, cluster, op, defined)?);
            }
            let Some(Some(have)) = known.get(op) else {
                continue;
            };
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

    /// The index of the constraint to these workers, of whom there is one at least.
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
                let msg = "more pins and custom ops than a plan can number";
                Error::new(Code::InvalidGraph, msg)
            })
    }

    /// How many constraints a worker keeps.
    pub fn count(&self, worker: usize) -> usize {
        self.sets.iter().filter(|set| set[worker]).count()
    }

    /// Whether a worker may run everything.
    pub fn all(&self, worker: usize) -> bool {
        self.count(worker) == self.sets.len()
    }

    /// Whether a worker has a kernel for everything, pins aside.
    pub fn equipped(&self, worker: usize) -> bool {
        self.equipped[worker]
    }

    /// The constraints for a team of these workers; `None` where none of them can run a node.
    pub fn on(&self, indices: &[usize]) -> Option<Allowed<'_>> {
        let member = |set: &Vec<bool>| indices.iter().map(|i| set[*i]).collect::<Vec<_>>();
        let sets: Vec<Vec<bool>> = self.sets.iter().map(member).collect();
        let possible = sets.iter().all(|set| set.contains(&true));
        possible.then_some(Allowed { sets, of: &self.of })
    }

    /// `team`, and of `order` whom it needs besides so that every node can run: first whoever can run most.
    pub fn complete(&self, mut team: Vec<usize>, order: &[usize]) -> Vec<usize> {
        loop {
            let open = || {
                let held = |set: &&Vec<bool>| team.iter().any(|w| set[*w]);
                self.sets.iter().filter(move |set| !held(set))
            };
            let helps = |w: &usize| open().filter(|set| set[*w]).count();
            // Of equals the first.
            match order.iter().rev().max_by_key(|w| helps(w)) {
                Some(w) if helps(w) > 0 => team.push(*w),
                _ => return team,
            }
        }
    }
}

/// Which workers have a custom op; nothing where all do. Fails where none does.
fn workers_with(
    f: &Function,
    cluster: &ClusterModel,
    op: &str,
    defined: &[CustomOp],
) -> Result<Option<Vec<bool>>> {
    let wanted = defined.iter().find(|d| d.name == op);
    let has = |w: &WorkerModel| match wanted {
        Some(d) => w.ops.contains(d),
        None => w.ops.iter().any(|o| o.name == op),
    };
    let set: Vec<bool> = cluster.workers.iter().map(has).collect();
    match set.contains(&true) {
        false => Err(nobody(f, cluster, op)),
        true => Ok(Some(set).filter(|set| set.contains(&false))),
    }
}

/// A pin asks for workers that have no kernel of a node's op; `have` says who has one.
fn not_equipped(node: &Node, who: &str, cluster: &ClusterModel, have: &[bool]) -> Error {
    let (name, op) = (&node.name, &node.op);
    let msg = format!("node '{name}' is to run on {who} kernel of its op '{op}'");
    let there = cluster.workers.iter().zip(have).filter(|(_, has)| **has);
    let there = listed(there.map(|(w, _)| w.name.clone()));
    Error::new(Code::UnsupportedOp, msg).advise(format!("{there} have it"))
}

/// No worker has an op.
fn nobody(f: &Function, cluster: &ClusterModel, op: &str) -> Error {
    let nodes = f.nodes.iter().filter(|n| custom(n) == Some(op));
    let nodes = listed(nodes.map(|n| format!("'{}'", n.name)));
    let workers = listed(cluster.workers.iter().map(|w| w.name.clone()));
    let other = cluster.workers.iter();
    let other = other.filter(|w| w.ops.iter().any(|o| o.name == op));
    let other: Vec<String> = other.map(|w| w.name.clone()).collect();
    let msg = format!(
        "no worker has a kernel of the op '{op}', which {nodes} need; there are: {workers}"
    );
    match other.is_empty() {
        true => Error::new(Code::UnsupportedOp, msg)
            .advise("start a worker of a binary that registers it"),
        false => {
            let there = listed(other.into_iter());
            let msg = format!("{msg}; another definition of it is that of {there}");
            Error::new(Code::UnsupportedOp, msg)
                .advise("build client and workers with the same definition")
        }
    }
}

fn listed(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.collect();
    let hidden = names.len().saturating_sub(LISTED);
    names.truncate(LISTED);
    if hidden > 0 {
        names.push(format!("and {hidden} more"));
    }
    names.join(", ")
}
