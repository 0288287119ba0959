//! `convoke check`: says whether a model runs, how much it takes and what is not supported. No cluster is needed, and
//! no weight is loaded.

use std::collections::BTreeSet;
use std::sync::Arc;

use convoke::{Error, Phase, Signature};
use convoke_common::rpc::{
    Intent, Numerics, PlanOptions, PlanSummary, Profiles, Speed, WorkerCount,
};
use convoke_coordinator::place::{ClusterModel, MOST_BYTES, WorkerModel};
use convoke_coordinator::plan::{plan, plan_together};
use convoke_graph::Printable;
use convoke_graph::dim::Bindings;
use convoke_graph::graph::{Function, Node, ValueId};
use convoke_graph::ops::{self, ControlOp, Op};
use convoke_graph::printable::Listed;
use convoke_graph::program::Axes;
use convoke_models::{
    ImportedModel, LISTED_OPS, LoadOptions, ModelError, OF_PATTERNS, UnsupportedNode, further_ops,
    onnx, unsupported_ops,
};
use serde::Serialize;

mod sizes;

use crate::args::CheckArgs;
use crate::commands::model::{Arrays, given};
use crate::commands::plan::cut_bytes;
use crate::text::failure::Failure;
use crate::text::output;
use crate::text::progress::Progress;
use crate::text::values::bytes;
use sizes::{Axis, Sizes};

/// The most node names that are listed for an op; the number of nodes is given as well.
const NAMED: usize = 10;

/// The most unsupported ops that are reported; the number of the others is given as well. A text has fewer.
const REPORTED: usize = 64;

/// The memory of the imagined workers for which memory is predicted. It is more than any model needs, so that each
/// model is split by time alone.
const PLENTY: u64 = 1 << 60;

#[derive(Serialize)]
struct Report {
    /// The path as it was given.
    model: String,
    /// Whether every node is supported.
    runs: bool,
    unsupported: Vec<Unsupported>,
    /// Counts of the unsupported nodes that `unsupported` does not list.
    further: Further,
    /// Parts of the file that are ignored, and limits on how the model may be used.
    remarks: Vec<String>,
    /// Sizes and predictions of the model, if it can run.
    figures: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Error>,
}

/// Nodes of one op that are not supported for one reason.
#[derive(Serialize)]
struct Unsupported {
    op: String,
    opset: Option<i64>,
    dtypes: Vec<String>,
    nodes: usize,
    first_nodes: Vec<String>,
    reason: String,
    advice: String,
}

/// Ops that are not listed, and their nodes, which are not supported either.
#[derive(Default, Serialize)]
struct Further {
    ops: usize,
    nodes: usize,
}

#[derive(Serialize)]
struct Figures {
    nodes: usize,
    /// Elements of the weights.
    parameters: u64,
    weights_bytes: u64,
    /// Floating-point operations of one step, except those of nodes that are not counted.
    operations: f64,
    /// Nodes whose operands or results have sizes that data decides, so that their operations are not counted.
    uncounted_nodes: usize,
    /// Loops whose number of iterations only a run decides, and how many are counted for each.
    open_loops: usize,
    assumed_iterations: u32,
    /// The size of each dynamic axis for which the figures hold.
    axes: Vec<Axis>,
    /// Why the model does not run with these sizes, some of which are assumed; no larger ones were found that it runs
    /// with.
    misfit: Option<String>,
    splits: Vec<SplitSummary>,
    /// The most workers that were asked for.
    #[serde(skip)]
    most_workers: usize,
}

/// The predicted memory of the model on a number of workers of equal speed.
#[derive(Serialize)]
struct SplitSummary {
    workers: usize,
    /// Whether its branches and loops run on several of the workers, which a plan does only where no worker has the
    /// memory for them.
    divided: bool,
    /// Bytes that each worker must offer, for its weights and the tensors of one step.
    needed_bytes: Vec<u64>,
    /// Bytes that cross between workers in a step, without those within branches and loops.
    cut_bytes: u64,
    /// Bytes that cross in one run of each branch and loop that runs on several workers.
    within_bytes: u64,
}

/// Checks a model, and prints the report.
pub fn check(args: CheckArgs, json: bool) -> Result<(), Failure> {
    let mut arrays = Arrays::open(&args.inputs)?;
    let report = match load(&args, &arrays)? {
        Ok(imported) => {
            let function = &imported.function;
            let read_as = arrays.fit(&signatures(function));
            Report {
                model: args.model.display().to_string(),
                runs: true,
                unsupported: vec![],
                further: Further::default(),
                figures: Some(figures(function, &args, &arrays)?),
                remarks: imported.remarks.into_iter().chain(read_as).collect(),
                error: None,
            }
        }
        Err(nodes) => {
            let (unsupported, further) = groups(&nodes);
            Report {
                model: args.model.display().to_string(),
                runs: false,
                unsupported,
                further,
                remarks: vec![],
                figures: None,
                error: Some(refused(nodes)),
            }
        }
    };
    let told = match json {
        true => output::json(&report),
        false => output::print(&text(&report)),
    };
    match report.error {
        Some(e) if json => Err(Failure::Reported(e)),
        // The text has the advice.
        Some(e) => Err(e.advise("").into()),
        None => told,
    }
}

/// The error of a model with nodes that are not supported. The report lists them.
fn refused(nodes: Vec<UnsupportedNode>) -> Error {
    let count = nodes.len();
    let first = nodes.first().map_or(String::new(), |n| n.node.clone());
    let mut error = Error::from(ModelError::Unsupported { nodes });
    let first = Printable(&first);
    error.message = match count {
        1 => format!("1 node of the model is not supported: '{first}'"),
        n => format!("{n} nodes of the model are not supported, '{first}' is the first"),
    };
    error
}

/// Imports the model; returns its nodes that are not supported, where there are any.
fn load(
    args: &CheckArgs,
    arrays: &Arrays,
) -> Result<Result<ImportedModel, Vec<UnsupportedNode>>, Failure> {
    let progress = Progress::new();
    let told = progress.clone();
    let options = LoadOptions {
        weights: args.weights.clone(),
        inputs: given(arrays.shapes()),
        without_others: arrays.shapes().next().is_some(),
        block_width: args.blocks.nchwc_block.map(Into::into),
        progress: Some(Arc::new(move |p: convoke_models::Progress| {
            told.phase(Phase::Hashing {
                done: p.done,
                total: p.total,
            });
        })),
        ..LoadOptions::default()
    };
    match onnx::load(&args.model, &options) {
        Ok(imported) => {
            let mut refused = vec![];
            refused_patterns(&imported.function, &mut refused);
            Ok(match refused.is_empty() {
                true => Ok(imported),
                false => Err(refused),
            })
        }
        Err(ModelError::Unsupported { nodes }) => Ok(Err(nodes)),
        Err(e) => Err(Error::from(e).into()),
    }
}

fn groups(nodes: &[UnsupportedNode]) -> (Vec<Unsupported>, Further) {
    let mut groups = unsupported_ops(nodes);
    let others = groups.split_off(groups.len().min(REPORTED));
    let further = Further {
        ops: others.len(),
        nodes: others.iter().map(|group| group.nodes.len()).sum(),
    };
    let group = groups.into_iter().map(|group| Unsupported {
        op: group.op.to_owned(),
        opset: group.opset,
        dtypes: group.dtypes.iter().map(|d| d.to_string()).collect(),
        nodes: group.nodes.len(),
        first_nodes: group
            .nodes
            .iter()
            .take(NAMED)
            .map(|n| (*n).to_owned())
            .collect(),
        reason: group.reason.unwrap_or("no such op").to_owned(),
        advice: group.advice().to_owned(),
    });
    (group.collect(), further)
}

fn figures(function: &Function, args: &CheckArgs, arrays: &Arrays) -> Result<Figures, Failure> {
    let Sizes { axes, misfit } = Sizes::new(function, args, arrays)?;
    let bounds = sizes::bounds(&axes);
    let bindings: Bindings = bounds.at_bounds();
    let mut weights = (0u64, 0u64);
    for (value, _) in &function.literals {
        let ty = function.ty(*value);
        let shape = ty.fixed_shape();
        let elements = shape.and_then(|s| s.iter().try_fold(1usize, |n, d| n.checked_mul(*d)));
        let size = elements.and_then(|n| Some((n, ty.dtype.bytes_for(n)?)));
        // Integer constants of at most one dimension belong to arithmetic on shapes; they are no weights.
        if let Some((elements, bytes)) = size.filter(|_| ty.dtype.is_float() || ty.shape.len() > 1)
        {
            weights.0 = weights.0.saturating_add(elements as u64);
            weights.1 = weights.1.saturating_add(bytes as u64);
        }
    }
    let costs = function.nodes.iter();
    let costs = costs.map(|node| ops::node_cost(function, node, &bindings).flops);
    let sized = |id: &ValueId| {
        let mut shape = function.ty(*id).shape.iter();
        shape.all(|d| d.eval(&bindings).is_some())
    };
    let uncounted = function.nodes.iter().filter(|node| {
        let operands = node.inputs.iter().flatten();
        !operands.chain(&node.outputs).all(sized)
    });
    let uncounted_nodes = uncounted.count();
    let single = split(function, 1, &bounds)?;
    let whole = single.parts.iter().map(|p| p.needed_bytes).sum();
    let mut splits = vec![SplitSummary::new(1, &single)];
    for workers in 2..=args.workers as usize {
        let plain = split(function, workers, &bounds).ok();
        let plain = plain.filter(|summary| summary.parts.len() == workers);
        // If a loop has most of the weights, a worker that holds the whole loop needs as much as a single worker would.
        let most = plain.as_ref().map_or(u64::MAX, largest);
        let divided = divided(function, workers, whole, &bounds)?;
        let divided = divided.filter(|summary| largest(summary) < most / 4 * 3);
        // It cannot be split so far.
        let Some(summary) = divided.or(plain) else {
            break;
        };
        splits.push(SplitSummary::new(workers, &summary));
    }
    Ok(Figures {
        nodes: function.nodes.len(),
        parameters: weights.0,
        weights_bytes: weights.1,
        // The sum of no numbers is -0.
        operations: 0. + costs.sum::<f64>(),
        uncounted_nodes,
        open_loops: open_loops(function, &bindings),
        assumed_iterations: ops::ITERATIONS,
        axes,
        misfit,
        splits,
        most_workers: args.workers as usize,
    })
}

impl SplitSummary {
    fn new(workers: usize, summary: &PlanSummary) -> SplitSummary {
        let within = summary.bodies.iter().map(|b| cut_bytes(&b.cut_edges));
        SplitSummary {
            within_bytes: within.fold(0, u64::saturating_add),
            workers,
            divided: !summary.bodies.is_empty(),
            needed_bytes: summary.parts.iter().map(|p| p.needed_bytes).collect(),
            cut_bytes: cut_bytes(&summary.cut_edges),
        }
    }
}

/// The bytes of the worker that needs most.
fn largest(summary: &PlanSummary) -> u64 {
    let needed = summary.parts.iter().map(|p| p.needed_bytes);
    needed.max().unwrap_or(0)
}

/// Adds the nodes whose patterns of strings no kernel takes, which is found out where they are compiled.
fn refused_patterns(function: &Function, refused: &mut Vec<UnsupportedNode>) {
    for node in &function.nodes {
        for (_, within) in node.attrs.functions() {
            refused_patterns(within, refused);
        }
        if !matches!(node.kind(), Some(Op::Text(_))) {
            continue;
        }
        let dtype = |v: &Option<ValueId>| v.map(|v| function.ty(v).dtype);
        let dtypes: Vec<_> = node.inputs.iter().map(dtype).collect();
        let kernel =
            convoke_worker::cpu::resolve(&node.op, &node.attrs, &dtypes, node.outputs.len());
        if let Err(why) = kernel {
            refused.push(UnsupportedNode {
                node: node.name.to_string(),
                op: node.op.to_string(),
                opset: None,
                dtype: dtypes.first().copied().flatten(),
                reason: Some(format!("{OF_PATTERNS} is not taken: {why}")),
            });
        }
    }
}

/// The parameters of a function as inputs of a model.
fn signatures(function: &Function) -> Vec<Signature> {
    let params = function.params.iter();
    params
        .map(|p| Signature {
            name: function.value(*p).name.to_string(),
            ty: function.ty(*p).clone(),
        })
        .collect()
}

/// The loops of a function, and of those within it, whose number of iterations only a run decides.
fn open_loops(function: &Function, axes: &Bindings) -> usize {
    let of = |node: &Node| {
        let known = || ops::known_iterations(function, node, ControlOp::Loop, axes).is_some();
        let open = node.is(ControlOp::Loop) && !known();
        let within = node.attrs.functions().map(|(_, f)| open_loops(f, axes));
        usize::from(open) + within.sum::<usize>()
    };
    function.nodes.iter().map(of).sum()
}

/// A plan that divides large branches and loops among all the workers, with the least memory per worker for which the
/// planner uses every one. With `whole` bytes one worker runs everything.
fn divided(
    function: &Function,
    workers: usize,
    whole: u64,
    axes: &Axes,
) -> Result<Option<PlanSummary>, Failure> {
    if function
        .nodes
        .iter()
        .all(|n| n.attrs.functions().next().is_none())
    {
        return Ok(None);
    }
    let (cluster, options) = (equal(workers, whole), explained(workers, axes));
    Ok(plan_together(function.clone(), &cluster, &options)?)
}

/// A cluster of this many equal workers with this many bytes each.
fn equal(workers: usize, memory: u64) -> ClusterModel {
    let speed = Speed {
        flops: 1e11,
        memory_bandwidth: 1e10,
    };
    let worker = |i: usize| WorkerModel::cpu(i as u64, memory, speed);
    ClusterModel::new((0..workers).map(worker).collect())
}

/// The options of a plan that only explains.
fn explained(workers: usize, axes: &Axes) -> PlanOptions {
    PlanOptions {
        intent: Intent::Explain,
        workers: WorkerCount::Exactly(workers as u32),
        pins: vec![],
        stages: vec![],
        list_nodes: false,
        axes: axes.clone(),
        tighter: vec![],
        expected: vec![],
        numerics: Numerics::Standard,
        in_flight: 1,
        avoid: vec![],
        ops: vec![],
        profiles: Profiles::Uniform,
    }
}

/// Plans the function for a number of equal workers that have room for anything.
fn split(function: &Function, workers: usize, axes: &Axes) -> Result<PlanSummary, Failure> {
    let (cluster, options) = (equal(workers, PLENTY), explained(workers, axes));
    Ok(plan(function.clone(), &cluster, &options)?.summary)
}

/// A number with a unit of thousands, such as `25.6 M`.
fn thousands(n: f64) -> String {
    let units = ["", " k", " M", " G", " T"];
    let mut scaled = n;
    for unit in units {
        if scaled < 1000.0 {
            return match unit {
                "" => format!("{scaled:.0}"),
                unit => format!("{scaled:.1}{unit}"),
            };
        }
        scaled /= 1000.0;
    }
    format!("{scaled:.1} P")
}

/// A number of nodes.
fn counted(nodes: usize) -> String {
    match nodes {
        1 => "1 node".into(),
        n => format!("{n} nodes"),
    }
}

/// What a worker needs, where a machine may have that much.
fn needed(n: u64) -> String {
    match n < MOST_BYTES {
        true => bytes(n),
        false => "unbounded: give smaller sizes with --dim".into(),
    }
}

fn text(r: &Report) -> String {
    let Some(f) = &r.figures else {
        let row = |u: &Unsupported| {
            vec![
                Listed(&u.op).to_string(),
                u.opset.map_or("-".into(), |v| v.to_string()),
                match u.dtypes.is_empty() {
                    true => "-".into(),
                    false => u.dtypes.join(", "),
                },
                u.nodes.to_string(),
                u.first_nodes
                    .first()
                    .map_or(String::new(), |n| Listed(n).to_string()),
                u.reason.clone(),
            ]
        };
        let (listed, others) = r.unsupported.split_at(r.unsupported.len().min(LISTED_OPS));
        let rows: Vec<Vec<String>> = listed.iter().map(row).collect();
        let head = ["OP", "OPSET", "DTYPE", "NODES", "FIRST NODE", "WHY"];
        let table = output::table(&head, &[1, 3], &rows);
        let advice: BTreeSet<&str> = listed.iter().map(|u| &*u.advice).collect();
        let advice: String = advice.iter().map(|a| format!("{a}\n")).collect();
        let further = match others.len() + r.further.ops {
            0 => String::new(),
            ops => {
                let nodes = others.iter().map(|u| u.nodes).sum::<usize>() + r.further.nodes;
                format!("{}\n", further_ops(ops, nodes))
            }
        };
        return format!("{} does not run\n{table}{further}{advice}", r.model);
    };
    let mut text = format!(
        "{} runs: {}, {} parameters, {} of weights, {}{}FLOP per step\n",
        r.model,
        counted(f.nodes),
        thousands(f.parameters as f64),
        bytes(f.weights_bytes),
        match f.uncounted_nodes {
            0 => "",
            _ => "at least ",
        },
        match thousands(f.operations) {
            plain if plain.contains(' ') => plain,
            plain => format!("{plain} "),
        }
    );
    text.extend(r.remarks.iter().map(|remark| format!("{remark}\n")));
    if f.uncounted_nodes > 0 {
        text.push_str(&format!(
            "{} of unknown size: data decides how many operations these take\n",
            counted(f.uncounted_nodes)
        ));
    }
    if f.open_loops > 0 {
        text.push_str(&format!(
            "a run decides how often {} iterate{}: {} iterations are counted for each\n",
            match f.open_loops {
                1 => "1 loop".to_owned(),
                n => format!("{n} loops"),
            },
            if f.open_loops == 1 { "s" } else { "" },
            f.assumed_iterations,
        ));
    }
    let row = |s: &SplitSummary| {
        let needs: Vec<String> = s.needed_bytes.iter().map(|n| needed(*n)).collect();
        let crossing = match s.divided {
            true => format!(
                "{}, and {} per run of each body",
                bytes(s.cut_bytes),
                bytes(s.within_bytes)
            ),
            false => bytes(s.cut_bytes),
        };
        vec![s.workers.to_string(), needs.join(", "), crossing]
    };
    let rows: Vec<Vec<String>> = f.splits.iter().map(row).collect();
    let head = ["WORKERS", "EACH NEEDS", "CROSSING PER STEP"];
    text.push_str(&output::table(&head, &[0, 2], &rows));
    if let Some(last) = f.splits.last().filter(|s| s.workers < f.most_workers) {
        let what = match last.workers {
            1 => "a single worker".to_owned(),
            n => format!("{n} workers"),
        };
        text.push_str(&format!(
            "no split over more than {what} is found: workers run whole nodes\n"
        ));
    }
    if f.splits.iter().any(|s| s.divided) {
        text.push_str(
            "bodies, which are branches and loops, run on several workers where no worker offers enough memory for them\n",
        );
    }
    let shown = |assumed: bool| {
        let axes = f.axes.iter().filter(move |a| a.assumed == assumed);
        let axes = axes.map(|a| format!("{}={}", a.axis, a.size));
        axes.collect::<Vec<_>>().join(", ")
    };
    let (given, assumed) = (shown(false), shown(true));
    if !given.is_empty() {
        text.push_str(&format!("for {given}\n"));
    }
    if !assumed.is_empty() {
        text.push_str(&format!(
            "assumed: {assumed}; give other sizes with --dim AXIS=SIZE, or inputs with --inputs FILE.npz\n"
        ));
    }
    if let Some(misfit) = &f.misfit {
        text.push_str(&format!("with these sizes it does not run: {misfit}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use convoke_graph::Tensor;
    use convoke_graph::graph::{Attr, Attrs, Literal, RunsAt, TensorType};

    use super::*;

    /// A loop of this many iterations, if their number is known, over three products by weights of 4 KiB each.
    fn looped(iterations: Option<i64>) -> Function {
        let ty = |shape: &[usize]| TensorType::fixed(convoke::DType::F32, shape);
        let (row, square) = (ty(&[1, 32]), ty(&[32, 32]));
        let scalar = |dtype| TensorType::fixed(dtype, &[]);
        let (long, bool) = (scalar(convoke::DType::I64), scalar(convoke::DType::Bool));
        let node = |f: &mut Function, op: &str, inputs: Vec<Option<ValueId>>, attrs: Attrs| {
            let name = format!("{op}{}", f.nodes.len());
            let out = f.add_value(name.clone(), row.clone());
            f.nodes.push(Node {
                name: name.into(),
                op: op.into(),
                attrs,
                inputs,
                outputs: vec![out],
                runs_at: RunsAt::Step,
            });
            out
        };
        let mut body = Function::default();
        let own = [("i", long.clone()), ("going", bool), ("x", row.clone())];
        let weights = ["w0", "w1", "w2"].map(|w| (w, square.clone()));
        let params = own.into_iter().chain(weights.clone());
        body.params = params.map(|(name, ty)| body.add_value(name, ty)).collect();
        let p = body.params.clone();
        let mut x = p[2];
        for w in &p[3..] {
            x = node(
                &mut body,
                "MatMul",
                vec![Some(x), Some(*w)],
                Attrs::default(),
            );
        }
        body.results = vec![("going".into(), p[1]), ("x".into(), x)];

        let mut f = Function::default();
        let count = f.add_value("count", long);
        let x = f.add_value("x", row.clone());
        match iterations {
            Some(n) => f.literals.push((count, Literal::Inline(Tensor::scalar(n)))),
            None => f.params.push(count),
        }
        f.params.push(x);
        let mut inputs = vec![Some(count), None, Some(x)];
        for (at, (name, ty)) in weights.into_iter().enumerate() {
            let w = f.add_value(name, ty);
            // Equal ones would become one.
            let content = Tensor::from_slice(&[32, 32], &[at as f32; 1024]).unwrap();
            f.literals.push((w, Literal::Inline(content)));
            inputs.push(Some(w));
        }
        let attrs = Attrs::default()
            .with("body", Attr::Function(body.into()))
            .with("captured", Attr::Int(3));
        let y = node(&mut f, "Loop", inputs, attrs);
        f.results = vec![("y".into(), y)];
        ops::infer_types(&mut f).unwrap();
        f
    }

    #[test]
    fn memory_on_several_workers_is_that_of_a_divided_loop() {
        let f = looped(None);
        let whole = largest(&split(&f, 1, &Axes::default()).unwrap());
        let alone = split(&f, 3, &Axes::default()).unwrap();
        assert_eq!(alone.parts.len(), 1);
        for workers in [2, 3] {
            let divided = divided(&f, workers, whole, &Axes::default())
                .unwrap()
                .unwrap();
            let made = SplitSummary::new(workers, &divided);
            assert!(made.divided && made.needed_bytes.len() == workers && made.within_bytes > 0);
            assert!(largest(&divided) < whole, "{:?} {whole}", made.needed_bytes);
        }
        assert!(divided(&f, 4, whole, &Axes::default()).unwrap().is_none());
    }

    #[test]
    fn loops_are_counted_with_their_iterations_where_they_are_known() {
        let axes = Bindings::new();
        let flops = |f: &Function| ops::node_cost(f, &f.nodes[0], &axes).flops;
        let (five, ten) = (looped(Some(5)), looped(Some(10)));
        assert_eq!(flops(&ten), 2. * flops(&five));
        for (f, open) in [(&five, 0), (&looped(Some(i64::MAX)), 1), (&looped(None), 1)] {
            assert_eq!(open_loops(f, &axes), open);
        }
        assert_eq!(flops(&looped(None)), 200. * flops(&five));
    }

    #[test]
    fn numbers_are_short() {
        let check = |n: f64, want: &str| assert_eq!(thousands(n), want);
        check(0.0, "0");
        check(999.0, "999");
        check(25_557_032.0, "25.6 M");
        check(8.2e9, "8.2 G");
        check(3e18, "3000.0 P");
    }

    #[test]
    fn one_node_is_no_plural_and_no_machine_has_more_than_there_is() {
        assert_eq!([0, 1, 2].map(counted), ["0 nodes", "1 node", "2 nodes"]);
        assert_eq!(needed(3 << 30), "3.0 GiB");
        let unbounded = "unbounded: give smaller sizes with --dim";
        assert_eq!([MOST_BYTES, 2 * MOST_BYTES].map(needed), [unbounded; 2]);
    }
}
