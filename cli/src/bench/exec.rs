//! What a node of a function costs besides its kernel: calls of functions of many nodes on an embedded worker of one
//! thread, less calls of small ones. Beside them, in this thread: as many calls of boxed functions, each of which moves a
//! shared value from one place to the next, which is the least that an interpreter of others' ops does.

use std::hint::black_box;
use std::sync::Arc;

use convoke::kernels::{self, KernelFailure};
use convoke::ops::{
    AttrDef, AttrKind, Infer, Inferred, OpDef, OpError, OperandDef, operand, required,
};
use convoke::{Attr, Attrs, Cluster, DType, Function, Tensor};
use convoke_common::error::{Error, Result};
use convoke_common::ops::{ConcreteOperand, ConcreteOutputs};
use tokio::time::Instant;

use super::eager::arrays;
use super::report::Beside;
use super::turns::{Samples, beside, bounded, nanos_each};

/// See the module.
pub const FLOOR: Beside = Beside {
    name: "boxed calls",
    usual: None,
};

/// What was measured, and its floor.
type Both = (Samples, Samples);

/// Nodes of a chain.
const CHAIN: usize = 10_000;
/// Chains side by side, and the nodes of each.
const LAYERED: (usize, usize) = (1000, 10);
/// Calls a turn.
const CALLS: usize = 10;

const OPERANDS: &[OperandDef] = &[operand("X", &[DType::F32])];
const LANE: &[AttrDef] = &[required("lane", AttrKind::Int)];
const MANY: &[OperandDef] = &[operand("X", &[DType::F32]).variadic()];

/// Hands on its operand. Nodes that differ in `lane` are not merged into one.
static NULL: OpDef = OpDef::new("convoke.bench.Null", "X, any shape.", OPERANDS, same)
    .attrs(LANE)
    .quick(same_quickly);

/// Takes many, so that none of them is left out as useless.
static FIRST: OpDef =
    OpDef::new("convoke.bench.First", "The first X, any shape.", MANY, same).quick(same_quickly);

fn same(i: &Infer<'_>) -> Result<Vec<Inferred>, OpError> {
    let x = i.required(0)?.ty;
    Ok(vec![Inferred::of(x.dtype, x.shape.clone())])
}

/// The rule as ops of the registry have it for run time, so that it is not what is measured.
fn same_quickly(operands: &[Option<ConcreteOperand<'_>>]) -> Option<ConcreteOutputs> {
    let x = (*operands.first()?)?;
    Some([(x.dtype, x.shape.into())].into_iter().collect())
}

/// Makes the ops known: before the embedded cluster starts, which tells what it has when its worker joins.
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

/// Nanoseconds of one call of [`FLOOR`]'s.
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

/// Null ops, each of the one before.
pub async fn null_chain(cluster: &Cluster, x: &Tensor, rounds: u32) -> Result<Both> {
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

/// Null ops in layers: each of one of the layer before, and all of the last layer are needed for the result. What that
/// costs, and so many parallel beginnings, is subtracted with a call of one layer: a single node would have neither.
pub async fn null_layered(cluster: &Cluster, x: &Tensor, rounds: u32) -> Result<Both> {
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

/// Additions of scalars, each to the sum of the one before.
pub async fn add_chain(cluster: &Cluster, x: &Tensor, rounds: u32) -> Result<Both> {
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

/// What each of `nodes` costs that the first function has and the second has not; the first is to give `expected`.
async fn per_node(
    [many, few]: [Function; 2],
    nodes: usize,
    x: &Tensor,
    expected: f32,
    floor: fn() -> f64,
    rounds: u32,
) -> Result<Both> {
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
