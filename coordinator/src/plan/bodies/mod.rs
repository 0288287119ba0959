//! Partitioned bodies: functions of control flow that several workers run together, because they are too large for one
//! worker, alone or beside the function around them.
//!
//! ```text
//! function ── take out what is too large ──> body, body, …    each placed and partitioned as a function of its own
//!     └────────────────────────────────────> the rest         placed in the memory that the bodies leave
//! ```
//! The worker that runs the node is the owner of its bodies, and the driver of their steps. A body may have bodies that
//! are too large as well; all bodies of a plan are numbered, from 1.
//!
//! Invariants
//! 1. If a function fits with each of its bodies on one worker, supposing that all memory is free for the caller, its
//!    bodies are not partitioned.
//! 2. Taking a body out changes no bit: its nodes are those that run on one worker.
//! 3. A body and the function around it fit on a worker together. Parts are placed in the order in which a worker loads
//!    them, those with more weights first and the function last, each in the memory that the others leave. A constant
//!    that several parts of a worker read is there once.

mod outline;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use convoke_common::grant::MOST_BODIES;
use convoke_common::rpc::{BodyPartSummary, BodySummary, CutEdge, PlanOptions};
use convoke_common::{Code, Error, Result};
use convoke_graph::graph::{Function, Node, ValueId};
use convoke_graph::ids::{FunctionId, ParticipantIx};
use convoke_graph::ops::{self, ControlOp};
use convoke_graph::program::{
    Axes, ConstantId, DriverProgram, FetchFrom, HashedProgram, PARTITIONED,
};
use serde::{Deserialize, Serialize};

use crate::partition::{Partition, cut_edges, extent, partition};
use crate::passes::control_op;
use crate::place::{At, ClusterModel, PartsUsage, Placement, bytes_of, human, inner_bytes, place};
use crate::plan::hashed;
use outline::{constants, forget_unread, outline};

/// A partitioned body as it is installed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedBody {
    pub number: u32,
    /// The number of the body that the node which runs this one is a part of; 0 stands for the function itself.
    pub within: u32,
    /// The participant of the lease that drives the body.
    pub owner: ParticipantIx,
    /// The participants of the lease that run it.
    pub workers: Vec<ParticipantIx>,
    /// One program for each of them.
    pub programs: Vec<HashedProgram>,
    pub driver: DriverProgram,
    pub axes: Axes,
    /// Most bytes of one run's tensors at once on each of them.
    pub step_bytes: Vec<u64>,
}

/// A body that was taken out of its node and placed.
struct PlacedBody {
    /// From 1 on, in the order in which the bodies were taken out.
    number: u32,
    placed: Placement,
    node: String,
    /// The attribute of the node that the body was.
    function: String,
    within: u32,
    axes: Axes,
    /// The number of times that a step is assumed to run it.
    times: f64,
}

/// A function that was placed together with its partitioned bodies.
pub struct DividedFunction {
    /// The function without the bodies. All workers that run a part of a body are among its participants.
    pub placed: Placement,
    /// The parts, in the order in which workers load them.
    bodies: Vec<PlacedBody>,
    /// The memory that all parts together need of each participant; empty where there are no bodies.
    parts: Vec<PartsUsage>,
}

impl DividedFunction {
    /// A function none of whose bodies is partitioned.
    pub fn whole(placed: Placement) -> DividedFunction {
        DividedFunction {
            placed,
            bodies: vec![],
            parts: vec![],
        }
    }

    /// Places an optimised function, after taking out the bodies that need more than one `share`th of the largest
    /// worker. `None` if there are none of that kind; where the rest does not fit either, `too_small` is the error.
    pub fn divide(
        function: Function,
        cluster: &ClusterModel,
        options: &PlanOptions,
        (share, too_small): (u64, &Error),
    ) -> Result<Option<DividedFunction>> {
        let offers = cluster.workers.iter().map(|w| w.offered());
        let mut dividing = PlacementSearch {
            most: offers.max().unwrap_or(0) / share,
            options,
            too_small,
            left: cluster.clone(),
            parts: vec![PartsUsage::default(); cluster.workers.len()],
        };
        let (mut function, mut outlined) = (function, vec![]);
        dividing.take_out(&mut function, &options.axes, (0, 1.0), &mut outlined)?;
        if outlined.is_empty() {
            return Ok(None);
        }
        let mut numbered: Vec<(u32, OutlinedBody)> = (1..).zip(outlined).collect();
        // A body with fewer weights may find them where a larger one has them.
        numbered.sort_by_key(|(_, o)| std::cmp::Reverse(weights(&o.body, &o.axes)));
        let mut bodies = Vec::with_capacity(numbered.len());
        for (number, outlined) in numbered {
            bodies.push(dividing.place_body(number, outlined)?);
        }
        let left = dividing.left.clone();
        let mut placed = dividing.place(function, &left, options)?;
        let mut indices = placed.team.indices.clone();
        for i in bodies.iter().flat_map(|b| &b.placed.team.indices) {
            if !indices.contains(i) {
                indices.push(*i);
            }
        }
        let known = std::mem::replace(&mut placed.team, cluster.team(&indices));
        for (worker, known) in placed.team.workers.iter_mut().zip(known.workers) {
            worker.on_device = known.on_device;
        }
        placed.usage.resize(indices.len(), Default::default());
        placed.peaks.resize(indices.len(), 0);
        placed.schedule.busy_ns.resize(indices.len(), 0);
        placed.single_ns = None;
        let mut parts = dividing.parts;
        let parts = indices.iter().map(|i| std::mem::take(&mut parts[*i]));
        Ok(Some(DividedFunction {
            placed,
            bodies,
            parts: parts.collect(),
        }))
    }

    /// Partitions the bodies. Then the predictions of the function around them, which was partitioned before, become
    /// those of all parts.
    pub fn finish(&mut self, id: FunctionId) -> Result<Vec<(PlannedBody, BodySummary)>> {
        let mut planned = Vec::with_capacity(self.bodies.len());
        for body in &self.bodies {
            let mut parts = partition(&body.placed);
            let summary = self.summarise(body, &parts)?;
            let programs = std::mem::take(&mut parts.programs);
            let one = PlannedBody {
                number: body.number,
                within: body.within,
                owner: self.owner(body)?,
                workers: self.participants(body),
                programs: hashed(programs, id)?,
                driver: parts.driver,
                axes: body.axes.clone(),
                step_bytes: parts.step_bytes,
            };
            planned.push((one, summary));
        }
        for body in &self.bodies {
            let at = self.participants(body);
            let run = |ns: u64| (ns as f64 * body.times) as u64;
            let inner = &body.placed;
            for (m, at) in at.into_iter().map(usize::from).enumerate() {
                let busy = &mut self.placed.schedule.busy_ns[at];
                *busy = busy.saturating_add(run(inner.schedule.busy_ns[m]));
            }
            let step = &mut self.placed.schedule.step_ns;
            *step = step.saturating_add(run(inner.schedule.step_ns));
        }
        for (at, parts) in self.parts.iter().enumerate() {
            self.placed.usage[at] = parts.total;
            self.placed.peaks[at] = parts.peak;
        }
        Ok(planned)
    }

    /// The constants that each participant keeps for its leases to share, with their bytes.
    pub fn constants(&self) -> Vec<BTreeMap<ConstantId, u64>> {
        let mut all = self.placed.constants();
        for body in &self.bodies {
            let each = self.participants(body).into_iter().map(usize::from);
            for (at, kept) in each.zip(body.placed.constants()) {
                all[at].extend(kept);
            }
        }
        all
    }

    /// The participant of the lease that a worker of the cluster is.
    fn participant(&self, index: usize) -> ParticipantIx {
        let mut team = self.placed.team.indices.iter();
        team.position(|i| *i == index).unwrap_or_default() as ParticipantIx
    }

    /// The participants of the lease that run a body.
    fn participants(&self, body: &PlacedBody) -> Vec<ParticipantIx> {
        let indices = body.placed.team.indices.iter();
        indices.map(|i| self.participant(*i)).collect()
    }

    /// The participant that runs the node of a body.
    fn owner(&self, body: &PlacedBody) -> Result<ParticipantIx> {
        let within = self.bodies.iter().find(|b| b.number == body.within);
        let around = within.map_or(&self.placed, |b| &b.placed);
        let runs = |p: &usize| {
            let node = &around.function.nodes[around.work.steps[*p] as usize];
            let numbers = node.attrs.ints(PARTITIONED).unwrap_or_default();
            numbers.contains(&i64::from(body.number))
        };
        let position = (0..around.work.positions()).find(runs);
        let position = position.ok_or_else(|| Error::internal("a body that no node runs"))?;
        let at = usize::from(around.participant[position]);
        Ok(self.participant(around.team.indices[at]))
    }

    fn summarise(&self, body: &PlacedBody, parts: &Partition) -> Result<BodySummary> {
        let owner = usize::from(self.owner(body)?);
        let owner = self.placed.team.workers[owner].name.clone();
        let part = |(m, program): (usize, &convoke_graph::program::Program)| {
            let (first_node, last_node) = extent(&body.placed, m);
            BodyPartSummary {
                worker: body.placed.team.workers[m].name.clone(),
                nodes: program.nodes.len() as u32 - program.init_nodes,
                first_node,
                last_node,
                weights_bytes: body.placed.usage[m].weights,
            }
        };
        Ok(BodySummary {
            node: body.node.clone(),
            function: body.function.clone(),
            cut_edges: crossings(&owner, &body.placed, parts),
            owner,
            parts: parts.programs.iter().enumerate().map(part).collect(),
            step_ns: body.placed.schedule.step_ns,
        })
    }
}

/// The tensors that cross between workers in one run of a body: its operands where the owner does not run their reader,
/// tensors between its workers, and the results that the owner does not compute.
fn crossings(owner: &str, placed: &Placement, parts: &Partition) -> Vec<CutEdge> {
    let (f, driver) = (&placed.function, &parts.driver);
    let edge = |v: ValueId, from: &str, to: &str| CutEdge {
        tensor: f.value(v).name.to_string(),
        from: from.to_owned(),
        to: to.to_owned(),
        bytes: placed.work.expected_bytes(v),
    };
    let name = |m: ParticipantIx| &*placed.team.workers[usize::from(m)].name;
    let mut crossings = vec![];
    for (param, feed) in f.params.iter().zip(&driver.feeds) {
        let to = feed.to.iter().map(|(m, _)| name(*m));
        crossings.extend(
            to.filter(|to| *to != owner)
                .map(|to| edge(*param, owner, to)),
        );
    }
    crossings.extend(cut_edges(placed, parts));
    let mut fetched = BTreeSet::new();
    for ((_, result), fetch) in f.results.iter().zip(&driver.fetches) {
        if let FetchFrom::Worker { from, slot } = fetch.from
            && name(from) != owner
            && fetched.insert(slot)
        {
            crossings.push(edge(*result, name(from), owner));
        }
    }
    crossings
}

/// A body that was taken out of its node.
struct OutlinedBody {
    body: Function,
    node: String,
    /// The attribute of the node that the body was.
    function: String,
    within: u32,
    axes: Axes,
    /// The number of times that a step is assumed to run it.
    times: f64,
}

/// The search for a placement of a function and its partitioned bodies.
struct PlacementSearch<'a> {
    /// The bytes beyond which a function of control flow is placed on several workers.
    most: u64,
    options: &'a PlanOptions,
    too_small: &'a Error,
    /// The cluster without the memory that is taken by parts that are placed.
    left: ClusterModel,
    /// The memory that the placed parts need of each worker of the cluster.
    parts: Vec<PartsUsage>,
}

impl PlacementSearch<'_> {
    /// The nodes of `f` whose functions are placed on several workers.
    fn too_large(&self, f: &Function, axes: &Axes) -> Vec<usize> {
        let nodes = f.nodes.iter().enumerate();
        let control = nodes.filter(|(_, n)| control_op(n).is_some());
        let large = control.filter(|(_, n)| self.needed(f, n, axes) > self.most);
        large.map(|(i, _)| i).collect()
    }

    /// The bytes of a node's constants, and of the values inside its functions for all steps in flight.
    fn needed(&self, f: &Function, node: &Node, axes: &Axes) -> u64 {
        let (bounds, constant) = (axes.at_bounds(), constants(f));
        let read: BTreeSet<_> = node.inputs.iter().flatten().collect();
        let read = read.into_iter().filter(|v| constant[v.ix()]);
        let weights = read.filter_map(|v| bytes_of(f.ty(*v), At::Most(&bounds)));
        let inner = inner_bytes(node, At::Most(&bounds));
        let inner = inner.saturating_mul(u64::from(self.options.in_flight.max(1)));
        weights.fold(inner, u64::saturating_add)
    }

    /// Takes out the bodies of `f`, which is body `within` or the function itself, that are too large, and theirs.
    fn take_out(
        &self,
        f: &mut Function,
        axes: &Axes,
        (within, times): (u32, f64),
        bodies: &mut Vec<OutlinedBody>,
    ) -> Result<()> {
        let first = bodies.len();
        for at in self.too_large(f, axes) {
            let needed = self.needed(f, &f.nodes[at], axes);
            let outlined = outline(f, at, bodies.len() as u32 + 1)?;
            if bodies.len() + outlined.len() > MOST_BODIES {
                let msg =
                    format!("more than {MOST_BODIES} branches and loops fit no single worker");
                return Err(Error::new(Code::ClusterTooSmall, msg)
                    .advise("start workers that offer more memory"));
            }
            let node = &f.nodes[at];
            let op = control_op(node).unwrap_or(ControlOp::If);
            let times = times * ops::iterations(f, node, op, &axes.at_bounds());
            for (function, body) in outlined {
                let axes = axes_of(&body, axes).map_err(|axis| {
                    let (node, needed) = (&node.name, human(needed));
                    let msg = format!(
                        "'{function}' of node '{node}' needs {needed}, which no worker offers, and cannot run on several: \
                         its size '{axis}' depends on data"
                    );
                    Error::new(Code::ClusterTooSmall, msg)
                        .advise(format!("start a worker that offers more than {needed}"))
                })?;
                bodies.push(OutlinedBody {
                    body,
                    node: node.name.to_string(),
                    function,
                    within,
                    axes,
                    times,
                });
            }
        }
        forget_unread(f);
        for at in first..bodies.len() {
            let (axes, times) = (bodies[at].axes.clone(), bodies[at].times);
            let mut body = bodies[at].body.clone();
            self.take_out(&mut body, &axes, (at as u32 + 1, times), bodies)?;
            bodies[at].body = body;
        }
        Ok(())
    }

    /// Places a body, which may run on any workers, and runs on their hosts.
    fn place_body(&mut self, number: u32, outlined: OutlinedBody) -> Result<PlacedBody> {
        let mut options = self.options.clone();
        (options.pins, options.stages) = (vec![], vec![]);
        options.axes = outlined.axes.clone();
        Ok(PlacedBody {
            number,
            placed: self.place(outlined.body, &self.left.hosts(), &options)?,
            node: outlined.node,
            function: outlined.function,
            within: outlined.within,
            axes: outlined.axes,
            times: outlined.times,
        })
    }

    /// Places a part in `left`, the memory that is left for it, and takes what it keeps there.
    fn place(
        &mut self,
        f: Function,
        left: &ClusterModel,
        options: &PlanOptions,
    ) -> Result<Placement> {
        let placed = place(f, left, options).map_err(|e| match e.code {
            Code::ClusterTooSmall | Code::OutOfMemory => self.too_small.clone(),
            _ => e,
        })?;
        let alone = placed.usage_after(&self.parts, options.in_flight);
        let constants = placed
            .constants()
            .into_iter()
            .zip(placed.device_constants());
        let each = placed.team.indices.iter().zip(constants);
        for (m, (i, (constants, on_device))) in each.enumerate() {
            let (worker, usage) = (&mut self.left.workers[*i], &placed.usage[m]);
            worker.host.take(&usage.kept, &constants);
            if let Some(own) = &mut worker.device_memory {
                own.take(&usage.device.beyond, &on_device);
            }
            let (alone, peak) = &alone[m];
            self.parts[*i].add(alone, usage, *peak, &constants);
        }
        Ok(placed)
    }
}

/// The bytes of a body's literals.
fn weights(body: &Function, axes: &Axes) -> u64 {
    let bounds = axes.at_bounds();
    let literals = body.literals.iter();
    let bytes = literals.filter_map(|(v, _)| bytes_of(body.ty(*v), At::Most(&bounds)));
    bytes.fold(0, u64::saturating_add)
}

/// The axes of a body within a function of these axes; fails with one that has no bound.
fn axes_of(body: &Function, around: &Axes) -> Result<Axes, Arc<str>> {
    let mut symbols = BTreeSet::new();
    let params = body.params.iter().flat_map(|p| &body.ty(*p).shape);
    params.for_each(|d| d.symbols(&mut symbols));
    let bound = |name: Arc<str>| {
        let known = around.bounds.iter().find(|(s, _)| *s == name);
        known.cloned().ok_or(name)
    };
    let bounds = symbols.into_iter().map(bound).collect::<Result<_, _>>()?;
    Ok(Axes { bounds })
}
