//! The whole pipeline: optimise, place, partition.
//!
//! ```text
//! Function -> passes::optimise -> place::place -> partition::partition -> PlannedPrograms
//!                                  '-> bodies, where a large one does not fit beside the rest
//! ```
//! Invariants
//! 1. Pure and deterministic: no clock, no randomness, no I/O.
//! 2. Decisions that affect values are made by `optimise`, which knows nothing of the cluster.
//! 3. Every program yielded passes [`convoke_graph::program::Program::check`].

pub mod bodies;
pub mod partition;
pub mod passes;
pub mod place;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use convoke_common::grant::Participant;
use convoke_common::rpc::{PlanOptions, PlanSummary, WorkerCount};
use convoke_common::{Code, Error, Result};
use convoke_graph::graph::Function;
use convoke_graph::ids::FunctionId;
use convoke_graph::ops::ControlOp;
use convoke_graph::program::{Axes, ConstantId, DriverProgram, HashedProgram, Program};
use serde::{Deserialize, Serialize};

use crate::bodies::{DividedFunction, PlannedBody};
use crate::partition::{names, partition, summarise};
use crate::passes::{StaysInPlace, control_op, optimise_in_place};
use crate::place::{ClusterModel, Placement, check_pins, human, is_pinned, place};

/// The memory that a part of a plan needs on its worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartMemory {
    pub host: MemoryNeed,
    /// The memory of the worker's device; none where the device is the host itself.
    pub device: MemoryNeed,
}

/// What a part of a plan needs of one memory of its worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryNeed {
    /// Bytes in all.
    pub all: u64,
    /// The constants among them that leases share.
    pub constants: Arc<PartConstants>,
}

impl MemoryNeed {
    /// A need of this many bytes, with the constants among them.
    pub fn new(all: u64, constants: BTreeMap<ConstantId, u64>) -> MemoryNeed {
        MemoryNeed {
            all,
            constants: Arc::new(PartConstants::new(constants)),
        }
    }
}

/// The constants of a part that leases share.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartConstants {
    /// The bytes of each.
    bytes: BTreeMap<ConstantId, u64>,
    total: u64,
}

impl PartConstants {
    /// Constants with the bytes of each.
    pub fn new(bytes: BTreeMap<ConstantId, u64>) -> PartConstants {
        let sum = |sum: u64, bytes: &u64| sum.saturating_add(*bytes);
        PartConstants {
            total: bytes.values().fold(0, sum),
            bytes,
        }
    }

    /// The bytes of each constant.
    pub fn each(&self) -> &BTreeMap<ConstantId, u64> {
        &self.bytes
    }

    /// The bytes of all constants together.
    pub fn total(&self) -> u64 {
        self.total
    }
}

/// A plan as it is computed: the program of each worker, and the summary for the client.
#[derive(Debug, Clone)]
pub struct PlannedPrograms {
    /// The index in [`ClusterModel::workers`] of each worker in use, by participant.
    pub workers: Vec<usize>,
    /// The workers in use; the caller adds the driver as the last participant.
    pub participants: Vec<Participant>,
    /// One program for each worker in use.
    pub programs: Vec<HashedProgram>,
    pub driver: DriverProgram,
    /// Most bytes of one step's tensors at once on each worker in use.
    pub step_bytes: Vec<u64>,
    /// Bytes that the whole part needs of each worker in use, with its parts of bodies.
    pub needed: Vec<PartMemory>,
    /// The partitioned bodies, in the order in which workers load them.
    pub bodies: Vec<PlannedBody>,
    pub axes: Axes,
    pub in_flight: u32,
    pub summary: PlanSummary,
    /// The names of the nodes of each part, where they were asked for.
    pub nodes: Vec<Vec<String>>,
}

/// Plans `function` for `cluster`.
pub fn plan(
    function: Function,
    cluster: &ClusterModel,
    options: &PlanOptions,
) -> Result<PlannedPrograms> {
    check_axes(&function, &options.axes)?;
    check_pins(&function, &options.pins)?;
    let id = function
        .id()
        .map_err(|e| Error::internal(format!("function cannot be encoded: {e}")))?;
    let (mut divided, report) = optimised_and_divided(function, cluster, options)?;
    let parts = partition(&divided.placed);
    let mut finished = divided.finish(id)?;
    let bodies = finished.iter().map(|(body, _)| body.clone()).collect();
    finished.sort_by_key(|(body, _)| body.number);
    let summaries = finished.into_iter().map(|(_, summary)| summary).collect();
    let (placed, constants) = (&divided.placed, divided.constants());
    let constants = constants.into_iter().zip(placed.device_constants());
    let summary = summarise(placed, &parts, summaries, report);
    let participants = placed.team.workers.iter().map(|w| Participant {
        name: w.name.clone(),
        incarnation: w.incarnation,
        address: w.address.clone(),
    });
    Ok(PlannedPrograms {
        participants: participants.collect(),
        workers: placed.team.indices.clone(),
        programs: hashed(parts.programs, id)?,
        driver: parts.driver,
        step_bytes: parts.step_bytes,
        bodies,
        needed: placed
            .usage
            .iter()
            .zip(constants)
            .map(|(usage, (host, device))| PartMemory {
                host: MemoryNeed::new(usage.needed, host),
                device: MemoryNeed::new(usage.device.needed, device),
            })
            .collect(),
        axes: options.axes.clone(),
        in_flight: options.in_flight.max(1),
        summary,
        nodes: match options.list_nodes {
            true => names(placed),
            false => vec![],
        },
    })
}

/// Checks the programs of a partition of function `id`, and hashes them.
pub(crate) fn hashed(programs: Vec<Program>, id: FunctionId) -> Result<Vec<HashedProgram>> {
    let programs = programs.into_iter().map(|mut program| {
        program.function = id;
        let malformed = |e| Error::internal(format!("partition: {e}"));
        program.check().map_err(malformed)?;
        HashedProgram::new(Arc::new(program))
            .map_err(|e| Error::internal(format!("program cannot be encoded: {e}")))
    });
    programs.collect()
}

/// The functions of control flow that are placed on several workers: those that need more than a whole worker or, if
/// that does not suffice, more than a half or a quarter of one, since the function around them needs memory as well.
const LARGE: [u64; 3] = [1, 2, 4];

/// Optimises and places a function. Where it does not fit, large functions of control flow in it are placed on several
/// workers.
fn optimised_and_divided(
    function: Function,
    cluster: &ClusterModel,
    options: &PlanOptions,
) -> Result<(DividedFunction, Vec<String>)> {
    let control = function.nodes.iter().any(|n| control_op(n).is_some());
    let again = control.then(|| function.clone());
    let (error, again) = match (optimised_and_placed(function, cluster, options), again) {
        (Ok((placed, report)), _) => return Ok((DividedFunction::whole(placed), report)),
        (Err(e), Some(again)) if e.code == Code::ClusterTooSmall => (e, again),
        (Err(e), _) => return Err(e),
    };
    let mut whole = cluster.is_taken().then(|| again.clone());
    let made = optimise_in_place(again, options.numerics, &|_| true)?;
    let mut refused = None;
    for share in LARGE {
        // A function that would fit idle workers whole only has to wait for memory. Dividing its bodies would slow it
        // down for as long as its lease lives.
        if share > 1
            && let Some(whole) = whole.take()
            && optimised_and_placed(whole, &cluster.idle(), options).is_ok()
        {
            break;
        }
        let function = made.function.clone();
        match DividedFunction::divide(function, cluster, options, (share, &error)) {
            Ok(Some(divided)) => return Ok((divided, made.report)),
            Err(e) if e.code != Code::ClusterTooSmall => return Err(e),
            // This error names the memory that no worker offers.
            Err(e) if share == 1 => refused = Some(e),
            Ok(None) | Err(_) => {}
        }
    }
    let mut error = refused.unwrap_or(error);
    if let Some(bytes) = least_together(&made.function, cluster, options, &error) {
        let (count, each) = (cluster.workers.len(), human(bytes));
        error.advice = format!(
            "{}; or {count} workers that offer {each} each, which run its branches and loops together",
            error.advice
        );
    }
    Err(error)
}

/// Divides a function for the first of the shares with which it fits. The error is that of the first.
fn divided_by_any(
    function: &Function,
    cluster: &ClusterModel,
    options: &PlanOptions,
    error: &Error,
) -> Result<Option<DividedFunction>> {
    let divide =
        |share| DividedFunction::divide(function.clone(), cluster, options, (share, error));
    let mut all = LARGE.into_iter().map(divide);
    let first = all.next().unwrap_or(Ok(None));
    if matches!(first, Ok(Some(_))) {
        return first;
    }
    let other = all.find(|d| matches!(d, Ok(Some(_))));
    other.unwrap_or(first)
}

/// The plan in which the cluster's workers run large functions of control flow together, with the least memory of each
/// for which the planner uses all of them. The search lies below what they offer; `None` where more memory than that
/// would be needed, or nothing large is there.
pub fn plan_together(
    function: Function,
    cluster: &ClusterModel,
    options: &PlanOptions,
) -> Result<Option<PlanSummary>> {
    let id = FunctionId([0; 32]);
    let made = optimise_in_place(function, options.numerics, &|_| true)?;
    let none = Error::new(Code::ClusterTooSmall, "");
    let workers = cluster.workers.len();
    let offered = cluster.workers.iter().map(|w| w.offered()).min();
    let offered = offered.unwrap_or(0);
    let divided = |memory| {
        let other = cluster.with_memory(memory);
        // Fewer workers may suffice.
        let divided = divided_by_any(&made.function, &other, options, &none)?;
        Ok(divided.filter(|d| d.placed.team.size() == workers))
    };
    let range = offered / (2 * workers.max(1) as u64)..offered;
    let Some((_, mut divided)) = least_memory(range, divided)? else {
        return Ok(None);
    };
    let parts = partition(&divided.placed);
    let summaries = divided.finish(id)?.into_iter().map(|(_, s)| s).collect();
    Ok(Some(summarise(&divided.placed, &parts, summaries, vec![])))
}

/// The memory of each of the cluster's workers with which they run large functions of control flow together, if any
/// does: the least to within a tenth.
fn least_together(
    function: &Function,
    cluster: &ClusterModel,
    options: &PlanOptions,
    error: &Error,
) -> Option<u64> {
    if cluster.workers.len() < 2 {
        return None;
    }
    let divided = |bytes| divided_by_any(function, &cluster.with_memory(bytes), options, error);
    let least = cluster.workers.iter().map(|w| w.offered()).min()?;
    let range = least..least.saturating_mul(10);
    let found = least_memory(range, divided).ok()?;
    found.map(|(bytes, _)| bytes)
}

/// Searches a range for the least memory with which `plan` has a plan: to within a hundredth of the range. Where `plan`
/// has none without an error, there is more memory than it needs: only bodies that no worker holds alone are divided.
fn least_memory<T>(
    range: Range<u64>,
    plan: impl Fn(u64) -> Result<Option<T>>,
) -> Result<Option<(u64, T)>> {
    const STEPS: u32 = 8;
    let (mut least, mut most, mut best) = (range.start, range.end, None);
    for _ in 0..STEPS {
        let memory = least.midpoint(most);
        match plan(memory) {
            Ok(planned) => {
                most = memory;
                best = planned.map(|p| (memory, p)).or(best);
            }
            Err(e) if matches!(e.code, Code::ClusterTooSmall | Code::OutOfMemory) => least = memory,
            Err(e) => return Err(e),
        }
    }
    Ok(best)
}

/// Optimises and places a function. Nodes that only one branch of an `If` needs move into the branch, which runs on one
/// worker as a whole. Where that does not fit, or leaves nothing to one of the workers that were asked for, they stay
/// outside, and run whichever branch is taken. A node that is pinned, or that a stage of the model's file places,
/// always stays.
fn optimised_and_placed(
    function: Function,
    cluster: &ClusterModel,
    options: &PlanOptions,
) -> Result<(Placement, Vec<String>)> {
    let made = |f: Function, stays: StaysInPlace<'_>| optimise_in_place(f, options.numerics, stays);
    let branches = function.nodes.iter().any(|n| n.is(ControlOp::If));
    if !branches || !cluster.runs_branches_alike() {
        let made = made(function, &|_| true)?;
        return Ok((place(made.function, cluster, options)?, made.report));
    }
    let whole = function.clone();
    let staged: BTreeSet<&str> = options
        .stages
        .iter()
        .flat_map(|s| &s.nodes)
        .map(|n| &**n)
        .collect();
    // A node that is made of several has all their names.
    let in_stage =
        |node: &str| staged.contains(node) || node.split('+').any(|part| staged.contains(part));
    let stays = |node: &str| in_stage(node) || is_pinned(&options.pins, node);
    let inside = made(function, &stays)?;
    let placed = place(inside.function, cluster, options);
    if !inside.moved || !outside_may_be_better(&placed, options.workers) {
        return Ok((placed?, inside.report));
    }
    let outside = made(whole, &|_| true)?;
    match (placed, place(outside.function, cluster, options)) {
        (Ok(placed), Ok(other)) if other.team.size() <= placed.team.size() => {
            Ok((placed, inside.report))
        }
        (_, Ok(other)) => Ok((other, outside.report)),
        (placed, Err(_)) => Ok((placed?, inside.report)),
    }
}

/// Whether nodes that moved into branches may have to be placed outside.
fn outside_may_be_better(inside: &Result<Placement>, asked: WorkerCount) -> bool {
    match (inside, asked) {
        (Err(e), _) => matches!(e.code, Code::ClusterTooSmall | Code::OutOfMemory),
        (Ok(placed), WorkerCount::Exactly(n)) => placed.team.size() < n as usize,
        (Ok(_), WorkerCount::Auto) => false,
    }
}

/// Checks that each symbol of the parameters has one bound.
fn check_axes(f: &Function, axes: &Axes) -> Result<()> {
    let bad = |msg: String| {
        let e = Error::new(Code::InvalidArgument, msg);
        Err(e.advise("bound an axis with --dim NAME=1..MAX"))
    };
    let mut bound = BTreeSet::new();
    for (name, most) in &axes.bounds {
        if *most < 0 {
            return bad(format!("axis '{name}' is bounded by {most}"));
        }
        if !bound.insert(name.clone()) {
            return bad(format!("axis '{name}' is bounded twice"));
        }
    }
    let mut symbols = BTreeSet::new();
    for p in &f.params {
        if let Some(value) = f.values.get(p.ix()) {
            value.ty.shape.iter().for_each(|d| d.symbols(&mut symbols));
        }
    }
    match symbols.difference(&bound).next() {
        Some(name) => bad(format!("axis '{name}' has no bound")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cluster, options, parse, parse_with};

    const NO_BRANCH: &str = "param h: f32[256]
        const zeros: f32[1] = 0
        const n: i64[1] = 256
        z = Expand(zeros, n)
        result z";

    fn net() -> Function {
        parse(
            "param image: f32[batch, 1, 8, 8]
             weight k1: f32[8, 1, 3, 3]
             weight k2: f32[16, 8, 3, 3]
             weight w: f32[256, 10]
             weight b: f32[10]
             const at: i64[2] = 0, 256
             a = Conv(image, k1) {pads=[1, 1, 1, 1]}
             r = Relu(a)
             c = Conv(r, k2) {pads=[1, 1, 1, 1]}
             s = Relu(c)
             p = MaxPool(s) {kernel_shape=[2, 2]; strides=[2, 2]}
             f = Reshape(p, at)
             y = Gemm(f, w, b)
             result y",
        )
    }

    #[test]
    fn explains_itself() {
        let f = net();
        let planned = plan(
            f.clone(),
            &cluster(3, 64 << 20),
            &options(&f, WorkerCount::Exactly(3)),
        )
        .unwrap();
        let s = &planned.summary;
        assert!(
            s.parts.len() == 3 && s.parts.iter().all(|p| p.nodes > 0),
            "{s:?}"
        );
        assert_eq!(s.cut_edges.len(), 2);
        assert_eq!(s.cut_edges[0].from, "w0");
        assert_eq!(
            (&*s.parts[0].first_node, &*s.parts[2].last_node),
            ("a+r", "y")
        );
        assert!(
            s.single_ns.is_some_and(|single| single < s.step_ns),
            "{s:?}"
        );
        assert!(
            s.passes
                .iter()
                .any(|l| l.starts_with("fuse: 2 convolutions")),
            "{:?}",
            s.passes
        );
        let files: u64 = s.parts.iter().map(|p| p.artifact_bytes).sum();
        assert_eq!(files, 4 * (8 * 9 + 16 * 8 * 9 + 2560 + 10));
        assert_eq!(planned.participants.len(), planned.programs.len());
        let again = plan(
            f.clone(),
            &cluster(3, 64 << 20),
            &options(&f, WorkerCount::Exactly(3)),
        )
        .unwrap();
        assert_eq!(again.programs, planned.programs);
    }

    #[test]
    fn programs_do_not_depend_on_who_else_is_there() {
        let f = net();
        let alone = plan(
            f.clone(),
            &cluster(1, 64 << 20),
            &options(&f, WorkerCount::Auto),
        )
        .unwrap();
        let among = plan(
            f.clone(),
            &cluster(9, 64 << 20),
            &options(&f, WorkerCount::Auto),
        )
        .unwrap();
        assert_eq!(alone.programs, among.programs);
        assert!(alone.summary.warnings.is_empty());
        let all = options(&f, WorkerCount::Exactly(9));
        let fewer = plan(f, &cluster(9, 64 << 20), &all).unwrap().summary;
        let (used, warning) = (fewer.parts.len(), &fewer.warnings[0]);
        let text = format!("{used} of the 9 workers that were asked for are used");
        assert!(used < 9 && warning.starts_with(&text), "{warning}");
    }

    #[test]
    fn every_axis_needs_a_bound() {
        let f = net();
        let fails = |bounds: &[(&str, i64)]| {
            let mut o = options(&f, WorkerCount::Auto);
            o.axes.bounds = bounds.iter().map(|(n, b)| ((*n).into(), *b)).collect();
            plan(f.clone(), &cluster(1, 64 << 20), &o)
                .unwrap_err()
                .message
        };
        assert_eq!(fails(&[]), "axis 'batch' has no bound");
        assert_eq!(fails(&[("batch", -1)]), "axis 'batch' is bounded by -1");
        assert_eq!(
            fails(&[("batch", 1), ("batch", 2)]),
            "axis 'batch' is bounded twice"
        );
        assert!(fails(&[("batch", i64::MAX)]).starts_with("the model needs"));
    }

    /// The nodes of steps that are outside of branches, in the order of participants.
    fn outside_of_branches(f: Function, cluster: &ClusterModel, o: &PlanOptions) -> Vec<String> {
        let planned = plan(f, cluster, o).unwrap();
        let programs = planned.programs.iter();
        let nodes = programs.flat_map(|p| &p.program().nodes[p.program().init_nodes as usize..]);
        nodes.map(|n| n.name.to_string()).collect()
    }

    #[test]
    fn work_of_a_branch_moves_out_only_for_workers_that_were_asked_for() {
        let branch = |result: &str| {
            let text = format!(
                "param x: f32[64, 1024]
                 param a: f32[64, 1024]
                 param b: f32[64, 1024]
                 {result}
                 result r"
            );
            parse(&text)
        };
        let (sum, other) = (branch("r = Add(a, b)"), branch("r = Neg(x)"));
        // The work that one branch needs is a product, or two that two workers could compute at once.
        let check = |workers: usize, count: usize, asked: WorkerCount, outside: &[&str]| {
            let product = |i: usize| format!("h{i} = MatMul(x, w{i})\n");
            let products: String = (0..count).map(product).collect();
            let last = count - 1;
            let f = parse_with(
                &format!(
                    "param c: bool[]
                     param x: f32[64, 1024]
                     weight w0: f32[1024, 1024]
                     weight w1: f32[1024, 1024]
                     {products}
                     z = If(c, x, h0, h{last}) {{then_branch=&yes; else_branch=&no}}
                     result z"
                ),
                &[("yes", &sum), ("no", &other)],
            );
            let o = options(&f, asked);
            let found = outside_of_branches(f, &cluster(workers, 64 << 20), &o);
            assert_eq!(found, outside, "{workers} {count} {asked:?}");
        };
        check(2, 1, WorkerCount::Auto, &["z"]);
        check(2, 2, WorkerCount::Exactly(1), &["z"]);
        check(2, 2, WorkerCount::Auto, &["z"]);
        check(3, 2, WorkerCount::Auto, &["z"]);
        check(2, 2, WorkerCount::Exactly(2), &["h0", "h1", "z"]);
    }

    #[test]
    fn what_a_branch_needs_stays_outside_where_it_is_pinned_or_does_not_fit_one_worker() {
        let branch = |op: &str| {
            let text = format!(
                "param h: f32[256]
                 r = {op}(h)
                 result r"
            );
            parse(&text)
        };
        let outside = |memory: u64, pins: &[(&str, &str)]| {
            let f = parse_with(
                "param c: bool[]
                 param x: f32[256]
                 weight w1: f32[256, 256]
                 weight w2: f32[256, 256]
                 h1 = MatMul(x, w1)
                 h2 = MatMul(h1, w2)
                 z = If(c, h2) {then_branch=&yes; else_branch=&no}
                 result z",
                &[("yes", &branch("Relu")), ("no", &parse(NO_BRANCH))],
            );
            let mut options = options(&f, WorkerCount::Auto);
            let pin = |(n, d): &(&str, &str)| (n.to_string(), d.to_string());
            options.pins = pins.iter().map(pin).collect();
            outside_of_branches(f, &cluster(2, memory), &options)
        };
        assert_eq!(outside(64 << 20, &[]), ["z"]);
        assert_eq!(outside(64 << 20, &[("h1", "w*")]), ["h1", "z"]);
        // Each of the weights takes 256 KiB.
        assert_eq!(outside(400 << 10, &[]), ["h1", "h2", "z"]);
    }
}
