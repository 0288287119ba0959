//! Measures what a node of a function costs besides its kernel: the time of calls of functions of many nodes on an
//! embedded worker of one thread, minus that of functions of few nodes. The floor, in this thread, is as many calls of
//! boxed functions, each of which moves a shared value from one place to the next: the least that an interpreter of
//! custom ops does.

use std::hint::black_box;
use std::sync::Arc;

use convoke::kernels::{self, KernelFailure};
use convoke::ops::{
    AttrDef, AttrKind, Infer, InferredOutput, OpDef, OpError, OperandDef, operand, required,
};
use convoke::{Attr, Attrs, Cluster, DType, Function, Tensor};
use convoke_common::error::{Error, Result};
use convoke_graph::ops::{ConcreteOperand, ConcreteOutputs};
use tokio::time::Instant;

use super::eager::arrays;
use crate::bench::report::Baseline;
use crate::bench::turns::{Samples, beside, bounded, nanos_each};

/// The floor of null ops: calls of boxed functions, see the [module](self).
pub const FLOOR: Baseline = Baseline {
    name: "boxed calls",
    usual: None,
};

/// Samples of a measurement and of its floor.
type SamplesAndFloor = (Samples, Samples);

/// The number of nodes of a chain.
const CHAIN: usize = 10_000;
/// The width of a layer, and the number of layers.
const LAYERED: (usize, usize) = (1000, 10);
/// Calls of each function in a turn.
const CALLS: usize = 10;

const OPERANDS: &[OperandDef] = &[operand("X", &[DType::F32])];
const LANE: &[AttrDef] = &[required("lane", AttrKind::Int)];
const MANY: &[OperandDef] = &[operand("X", &[DType::F32]).variadic()];

/// An op that returns its operand. Nodes that differ in `lane` are not merged into one.
static NULL: OpDef = OpDef::new("convoke.bench.Null", "X, any shape.", OPERANDS, same)
    .attrs(LANE)
    .quick(same_quickly);

/// An op that takes many operands and returns the first, so that no pass removes the others as unused.
static FIRST: OpDef =
    OpDef::new("convoke.bench.First", "The first X, any shape.", MANY, same).quick(same_quickly);

fn same(i: &Infer<'_>) -> Result<Vec<InferredOutput>, OpError> {
    let x = i.required(0)?.ty;
    Ok(vec![InferredOutput::of(x.dtype, x.shape.clone())])
}

/// The shape rule for run time, which ops of the registry have too: without it, shape inference would dominate the
/// measurement.
fn same_quickly(operands: &[Option<ConcreteOperand<'_>>]) -> Option<ConcreteOutputs> {
    let x = (*operands.first()?)?;
    Some([(x.dtype, x.shape.into())].into_iter().collect())
}

/// Registers the ops. Must run before the embedded cluster starts, because its worker announces its ops when it joins.
pub fn register() -> Result<()> {
    for def in [&NULL, &FIRST] {
        kernels::register(def, |_| {
            Ok(kernels::kernel(|call| {
                let x = call.take(0).map(|x| [x]);
                x.ok_or_else(|| KernelFailure::new("no operand"))
            }))
        })?;
    }
    Ok(())
}

type Move = Box<dyn Fn(&mut [Option<Arc<f32>>])>;

/// Runs the calls of [`FLOOR`], and returns nanoseconds per call.
fn moves() -> f64 {
    let of = |i: usize| -> Move {
        let (from, to) = (i % 2, (i + 1) % 2);
        Box::new(move |places| places[to] = places[from].take())
    };
    let all: Vec<Move> = (0..CHAIN).map(of).collect();
    let mut places = [Some(Arc::new(1.0)), None];
    let start = Instant::now();
    for each in black_box(&all) {
        each(&mut places);
    }
    black_box(&places);
    nanos_each(start.elapsed(), CHAIN)
}

fn null(x: &Tensor, lane: usize) -> Result<Tensor> {
    let attrs = Attrs::default().with("lane", Attr::Int(lane as i64));
    convoke::op(&NULL, attrs, [x])
}

/// Measures a chain of null ops, each of which depends on the one before.
pub async fn null_chain(cluster: &Cluster, x: &Tensor, rounds: u32) -> Result<SamplesAndFloor> {
    let chain = |nodes: usize| {
        cluster.function(move |t| {
            let mut y = t[0].clone();
            for _ in 0..nodes {
                y = null(&y, 0)?;
            }
            Ok(vec![y])
        })
    };
    per_node([chain(CHAIN), chain(1)], CHAIN - 1, x, 1., moves, rounds).await
}

/// Measures null ops in layers: each node reads one node of the layer before, and the result needs the whole last
/// layer. The time of a function of one layer is subtracted, as it too gathers a layer and starts as many nodes at
/// once; a function of a single node would do neither.
pub async fn null_layered(cluster: &Cluster, x: &Tensor, rounds: u32) -> Result<SamplesAndFloor> {
    let (width, depth) = LAYERED;
    let layers = |depth: usize| {
        cluster.function(move |t| {
            let mut layer = vec![t[0].clone(); width];
            for _ in 0..depth {
                let lanes = layer.iter().enumerate();
                layer = lanes.map(|(i, y)| null(y, i)).collect::<Result<_>>()?;
            }
            Ok(vec![convoke::op(&FIRST, Attrs::default(), &layer)?])
        })
    };
    let nodes = width * (depth - 1);
    per_node([layers(depth), layers(1)], nodes, x, 1., moves, rounds).await
}

/// Measures a chain of additions of scalars, each of which depends on the one before.
pub async fn add_chain(cluster: &Cluster, x: &Tensor, rounds: u32) -> Result<SamplesAndFloor> {
    let chain = |nodes: usize| {
        cluster.function(move |t| {
            let mut y = t[0].clone();
            for _ in 0..nodes {
                y = y.add(&t[0])?;
            }
            Ok(vec![y])
        })
    };
    let sum = (CHAIN + 1) as f32;
    per_node([chain(CHAIN), chain(1)], CHAIN - 1, x, sum, arrays, rounds).await
}

/// Measures the cost of each of the `nodes` that the first function has and the second lacks, in nanoseconds. Fails if
/// the first function does not return `expected`.
async fn per_node(
    [many, few]: [Function; 2],
    nodes: usize,
    x: &Tensor,
    expected: f32,
    floor: fn() -> f64,
    rounds: u32,
) -> Result<SamplesAndFloor> {
    let operands = std::slice::from_ref(x);
    let first = bounded(async {
        let made = many.call(operands).await?;
        made[0].fetch::<f32>().await
    });
    if first.await? != expected {
        return Err(Error::internal("a chain of ops gave another value"));
    }
    let call = async |f: &Function| {
        let start = Instant::now();
        f.call(operands).await?;
        Ok::<_, Error>(start.elapsed())
    };
    let work = async || {
        let mut each = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            let (long, short) = (call(&many).await?, call(&few).await?);
            each.push(nanos_each(long.saturating_sub(short), nodes));
        }
        Ok(each)
    };
    beside(rounds, work, async || Ok(vec![floor()])).await
}
