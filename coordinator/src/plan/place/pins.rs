//! Pins: patterns of node names, each with the set of devices that may run the matching nodes.
//!
//! A pin whose set holds one worker fixes where its nodes run. If the set holds several, the search chooses among them.
//! If it holds all workers, the pin only exempts its nodes from later pins.
//!
//! Behind the pins come the stages that a model's file divides the model into: each fixes the worker of its nodes.

use std::collections::HashMap;

use convoke_common::device_spec::{DeviceSpec, matches_pattern};
use convoke_common::rpc::{PlanOptions, WorkerCount};
use convoke_common::{Code, Error, Result};
use convoke_graph::graph::Function;
use convoke_graph::printable;

use super::cluster::ClusterModel;
use super::work::{NONE, UNPINNED, Work};

/// The pins of a plan, resolved for the workers of a cluster.
#[derive(Debug, Clone)]
pub struct Pins {
    pins: Vec<Pin>,
    stages: Vec<PlacedStage>,
    /// The pin that each position obeys, or [`UNPINNED`]; numbers behind those of the pins are those of stages.
    of: Vec<u16>,
    /// The worker that each position is pinned to, or `UNPINNED`.
    pub fixed: Vec<u16>,
    /// For each position the pin that leaves a choice among some of the workers, or [`UNPINNED`].
    choices: Vec<u16>,
}

/// A pin with the workers of its set.
#[derive(Debug, Clone)]
pub struct Pin {
    pub pattern: String,
    pub devices: DeviceSpec,
    /// For each worker whether its device is in the set.
    workers: Vec<bool>,
    /// Whether a node that runs in a step matches the pattern.
    matched: bool,
}

/// A stage of the model's file with its worker.
#[derive(Debug, Clone)]
pub struct PlacedStage {
    /// The name of the stage's device in the file.
    pub device: Option<String>,
    /// The name of the stage's worker.
    pub worker: String,
    /// The worker that the name of the device is that of, which a plan for fewer workers may leave out.
    pub named: Option<String>,
    /// The number of the stage's worker in the cluster.
    pub index: u16,
}

impl Pin {
    /// Returns the worker of a pin whose set holds exactly one.
    fn only(&self) -> Option<u16> {
        let mut workers = self.workers.iter().enumerate().filter(|(_, is)| **is);
        let first = workers.next().map(|(i, _)| i as u16);
        first.filter(|_| workers.next().is_none())
    }

    fn leaves_all(&self) -> bool {
        self.workers.iter().all(|is| *is)
    }
}

/// Fails if a pattern matches no node of the function as the client sent it.
pub fn check(f: &Function, pins: &[(String, String)]) -> Result<()> {
    let unknown = |pattern: &str| !f.nodes.iter().any(|n| matches_node(pattern, &n.name));
    match pins.iter().find(|(pattern, _)| unknown(pattern)) {
        Some((pattern, _)) => {
            let msg = format!("the pin '{pattern}' matches no node");
            let alike = alike(f, pattern);
            let names = match alike.is_empty() {
                true => "no node's name begins as it does".to_owned(),
                false => format!("names that begin as it does: {}", printable::list(alike)),
            };
            let advice = format!("{names}; `*` matches anything");
            Err(Error::new(Code::InvalidArgument, msg).advise(advice))
        }
        None => Ok(()),
    }
}

/// The names of at most three nodes: those that begin most like a pattern.
fn alike<'f>(f: &'f Function, pattern: &str) -> Vec<&'f str> {
    let common = |name: &str| {
        let letters = pattern.chars().zip(name.chars());
        letters.take_while(|(a, b)| a == b).count()
    };
    let names = f.nodes.iter().map(|n| &*n.name);
    let mut names: Vec<&str> = names.filter(|name| common(name) > 0).collect();
    // Among names that are equally alike, the model's first come first.
    names.sort_by_cached_key(|name| std::cmp::Reverse(common(name)));
    names.truncate(3);
    names
}

impl Pins {
    /// Resolves pins and stages for the positions of `work`; the first pattern that matches a node applies, and its
    /// stage where none does. Fails if no device of the cluster is in a pin's set.
    pub fn resolve(
        f: &Function,
        work: &Work,
        cluster: &ClusterModel,
        options: &PlanOptions,
    ) -> Result<Pins> {
        let none = || vec![UNPINNED; work.positions()];
        let given = options.pins.iter();
        let pins: Result<Vec<Pin>> = given.map(|(p, d)| Pin::resolve(p, d, cluster)).collect();
        let mut all = Pins {
            pins: pins?,
            stages: staged(cluster, options),
            of: none(),
            fixed: none(),
            choices: none(),
        };
        if all.pins.is_empty() && all.stages.is_empty() {
            return Ok(all);
        }
        let first = all.pins.len();
        let stage_of = options.stages.iter().enumerate().flat_map(|(i, stage)| {
            let number = (first + i) as u16;
            stage.nodes.iter().map(move |name| (name.as_str(), number))
        });
        let stage_of: HashMap<&str, u16> = stage_of.collect();
        for (p, node) in work.steps.iter().enumerate() {
            let name = &f.nodes[*node as usize].name;
            for (i, pin) in all.pins.iter_mut().enumerate() {
                if matches_node(&pin.pattern, name) {
                    pin.matched = true;
                    if all.of[p] == UNPINNED {
                        all.of[p] = i as u16;
                    }
                }
            }
            if all.of[p] == UNPINNED {
                // The name of a node may look like the list that a fused node is named with.
                let whole = stage_of.get(&**name);
                let stage = whole.or_else(|| name.split('+').find_map(|p| stage_of.get(p)));
                all.of[p] = stage.copied().unwrap_or(UNPINNED);
            }
        }
        work.join(&mut all.of);
        all.settle();
        all.settle_companions(work);
        Ok(all)
    }

    /// Notes which positions have one worker, and which a choice among some of them.
    fn settle(&mut self) {
        for (p, number) in self.of.iter().enumerate() {
            let at = usize::from(*number);
            let stage = at.checked_sub(self.pins.len());
            if let Some(stage) = stage.and_then(|at| self.stages.get(at)) {
                self.fixed[p] = stage.index;
            }
            let Some(pin) = self.pins.get(at) else {
                continue;
            };
            match pin.only() {
                Some(worker) => self.fixed[p] = worker,
                None if pin.leaves_all() => {}
                None => self.choices[p] = *number,
            }
        }
    }

    /// Settles each position that has a choice and runs beside another position, its head, whose worker it then shares.
    /// A head that obeys no pin takes over the choice. If the head has another choice, or is fixed to a worker outside
    /// of the companion's set, the companion takes the first worker of its own set.
    fn settle_companions(&mut self, work: &Work) {
        for p in 0..work.positions() {
            let head = work.beside[p];
            if head == NONE || self.choices[p] == UNPINNED {
                continue;
            }
            let own = &self.pins[usize::from(self.choices[p])].workers;
            let head = head as usize;
            let suits = match (self.fixed[head], self.choices[head]) {
                (UNPINNED, UNPINNED) => {
                    self.choices[head] = self.choices[p];
                    true
                }
                (UNPINNED, choice) => choice == self.choices[p],
                (worker, _) => own[usize::from(worker)],
            };
            if !suits {
                let first = own.iter().position(|is| *is);
                self.fixed[p] = first.map_or(UNPINNED, |w| w as u16);
            }
            self.choices[p] = UNPINNED;
        }
    }

    /// Returns which workers a position may run on, if its pin leaves a choice among some of them.
    pub fn choice(&self, position: usize) -> Option<&[bool]> {
        let pin = self.pins.get(usize::from(*self.choices.get(position)?))?;
        Some(&pin.workers)
    }

    /// Returns the pins in the order in which they were given, each with the positions that obey it.
    pub fn each(&self) -> impl Iterator<Item = (&Pin, impl Iterator<Item = usize>)> {
        self.pins.iter().enumerate().map(|(i, pin)| {
            let of = self.of.iter().enumerate();
            let of = of.filter(move |(_, pin)| usize::from(**pin) == i);
            (pin, of.map(|(p, _)| p))
        })
    }

    /// Returns the stages of the model's file, each with the positions that obey it.
    pub fn stages(&self) -> impl Iterator<Item = (&PlacedStage, impl Iterator<Item = usize>)> {
        self.stages.iter().enumerate().map(|(i, stage)| {
            let number = self.pins.len() + i;
            let of = self.of.iter().enumerate();
            let of = of.filter(move |(_, stage)| usize::from(**stage) == number);
            (stage, of.map(|(p, _)| p))
        })
    }

    /// Returns the patterns that match no node that runs in a step: those nodes were removed, merged, or run at
    /// install.
    pub fn without_effect(&self) -> impl Iterator<Item = &str> {
        let idle = self.pins.iter().filter(|pin| !pin.matched);
        idle.map(|pin| pin.pattern.as_str())
    }
}

impl Pin {
    fn resolve(pattern: &str, devices: &str, cluster: &ClusterModel) -> Result<Pin> {
        let devices: DeviceSpec = devices.parse()?;
        let workers = cluster.workers.iter();
        let workers = workers.map(|w| devices.contains(&w.name, &w.device));
        let workers: Vec<bool> = workers.collect();
        if !workers.contains(&true) {
            let names = printable::list(cluster.workers.iter().map(|w| &*w.name));
            let msg = format!(
                "the pin '{pattern}' asks for '{devices}', and no device that is there fits that"
            );
            let advice =
                format!("the workers are {names}; patterns as w* and kinds as cpu are understood");
            return Err(Error::new(Code::InvalidArgument, msg).advise(advice));
        }
        Ok(Pin {
            pattern: pattern.to_owned(),
            devices,
            workers,
            matched: false,
        })
    }
}

/// Chooses a worker for each stage: the one that the stage's device names, else the next one in order that no stage
/// names. Where a plan may use fewer workers than that would be, stages share them, and those that are named come
/// first.
fn staged(cluster: &ClusterModel, options: &PlanOptions) -> Vec<PlacedStage> {
    let named = options.stages.iter().map(|stage| {
        let devices: DeviceSpec = stage.device.as_ref()?.parse().ok()?;
        let workers = cluster.workers.iter().enumerate();
        let mut there = workers.filter(|(_, w)| devices.contains(&w.name, &w.device));
        let (index, _) = there.next()?;
        there.next().is_none().then_some(index)
    });
    let named: Vec<Option<usize>> = named.collect();
    let most = match options.workers {
        WorkerCount::Exactly(n) => (n as usize).min(cluster.workers.len()),
        WorkerCount::Auto => cluster.workers.len(),
    };
    let mut used: Vec<usize> = Vec::new();
    for index in named.iter().copied().flatten() {
        if !used.contains(&index) {
            used.push(index);
        }
    }
    let all_fit = used.len() <= most;
    let fixed = |named: &Option<usize>| named.filter(|_| all_fit);
    let others = (0..cluster.workers.len()).filter(|i| !used.contains(i));
    let others: Vec<usize> = others.take(most.saturating_sub(used.len())).collect();
    used.truncate(most.max(1));
    let order = if others.is_empty() { used } else { others };
    let open = named.iter().filter(|n| fixed(n).is_none()).count();
    let share = open.max(order.len());
    let mut next = (0..).map(|i| order[i * order.len() / share]);
    let name = |index: usize| cluster.workers[index].name.clone();
    let placed = options
        .stages
        .iter()
        .zip(&named)
        .filter_map(|(stage, named)| {
            let index = fixed(named).or_else(|| next.next())?;
            Some(PlacedStage {
                device: stage.device.clone(),
                worker: name(index),
                named: named.map(name),
                index: index as u16,
            })
        });
    placed.collect()
}

/// Returns whether a pin names the node.
pub fn is_pinned(pins: &[(String, String)], node: &str) -> bool {
    pins.iter().any(|(pattern, _)| matches_node(pattern, node))
}

/// Returns whether `pattern` matches the name, or one of the names that a fused node lists.
fn matches_node(pattern: &str, name: &str) -> bool {
    matches_pattern(pattern, name)
        || (name.contains('+') && name.split('+').any(|part| matches_pattern(pattern, part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_a_part_of_a_fused_node() {
        assert!(matches_node("/head/*", "/body/Conv+/head/Relu"));
        assert!(!matches_node("/head", "/body/Conv+/head/Relu"));
    }
}
