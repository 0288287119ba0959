//! Measures how long the planning of an imported function for three workers takes: optimise, place, partition.

use convoke::{DType, TensorType};
use convoke_common::error::{Error, Result};
use convoke_common::rpc::{Intent, Numerics, PlanOptions, Profiles, Speed, WorkerCount};
use convoke_coordinator::partition::partition;
use convoke_coordinator::passes::optimise;
use convoke_coordinator::place::{ClusterModel, WorkerModel, place};
use convoke_graph::Dim;
use convoke_graph::artifact::{ArtifactMeta, CHUNK};
use convoke_graph::graph::{Attrs, Function, Literal, Node, RunsAt, ValueId};
use convoke_graph::program::Axes;
use tokio::time::Instant;

use crate::bench::turns::{Samples, alone, millis};

/// Columns of the activations, and rows and columns of each weight matrix.
const SIDE: usize = 64;
const WORKERS: usize = 3;
/// The largest number of nodes that are planned in all turns together.
const MOST_NODES: usize = 2_000_000;

/// The function under construction: layers of matrix product, bias, activation and residual, with weights in a file
/// that is never read.
struct Graph {
    f: Function,
    bytes: u64,
}

fn flow() -> TensorType {
    TensorType::new(DType::F32, vec![Dim::sym("n"), SIDE.into()])
}

impl Graph {
    fn weight(&mut self, shape: &[usize]) -> ValueId {
        let name = format!("w{}", self.f.values.len());
        let id = self.f.add_value(name, TensorType::fixed(DType::F32, shape));
        let len = shape.iter().product::<usize>() as u64 * 4;
        let range = Literal::Range {
            artifact: 0,
            offset: self.bytes,
            len,
        };
        self.f.literals.push((id, range));
        self.bytes += len;
        id
    }

    fn node(&mut self, op: &str, inputs: &[ValueId]) -> ValueId {
        let out = self
            .f
            .add_value(format!("v{}", self.f.values.len()), flow());
        self.f.nodes.push(Node {
            name: format!("/layer/{op}_{}", self.f.nodes.len()).into(),
            op: op.into(),
            attrs: Attrs::default(),
            inputs: inputs.iter().map(|v| Some(*v)).collect(),
            outputs: vec![out],
            runs_at: RunsAt::Step,
        });
        out
    }
}

/// Makes a function of at most `nodes` nodes, in layers of four.
fn function(nodes: usize) -> Function {
    let mut g = Graph {
        f: Function {
            name: "compile".into(),
            ..Function::default()
        },
        bytes: 0,
    };
    let mut x = g.f.add_value("x", flow());
    g.f.params.push(x);
    while g.f.nodes.len() + 4 <= nodes {
        let (w, b) = (g.weight(&[SIDE, SIDE]), g.weight(&[SIDE]));
        let product = g.node("MatMul", &[x, w]);
        let sum = g.node("Add", &[product, b]);
        let active = g.node("Tanh", &[sum]);
        x = g.node("Add", &[active, x]);
    }
    let chunks = vec![[0; 32]; g.bytes.div_ceil(CHUNK) as usize];
    g.f.artifacts = vec![ArtifactMeta::new(String::new(), g.bytes, chunks)];
    g.f.results = vec![("y".into(), x)];
    g.f
}

fn cluster() -> ClusterModel {
    let speed = Speed {
        flops: 5e11,
        memory_bandwidth: 2e10,
    };
    let worker = |i: usize| WorkerModel {
        threads: 8,
        load_buffer: 64 << 20,
        ..WorkerModel::cpu(i as u64, 64 << 30, speed)
    };
    ClusterModel::new((0..WORKERS).map(worker).collect())
}

fn options() -> PlanOptions {
    PlanOptions {
        intent: Intent::Install,
        workers: WorkerCount::Exactly(WORKERS as u32),
        pins: vec![],
        stages: vec![],
        list_nodes: false,
        axes: Axes {
            bounds: vec![("n".into(), 32)],
        },
        tighter: vec![],
        expected: vec![],
        numerics: Numerics::Standard,
        in_flight: 2,
        avoid: vec![],
        ops: vec![],
        profiles: Profiles::Uniform,
    }
}

/// Measures how long planning a function of about `nodes` nodes takes, in milliseconds.
pub async fn compile(nodes: usize, rounds: u32) -> Result<Samples> {
    let (cluster, options) = (cluster(), options());
    // Planning a large function takes seconds, so it gets fewer turns.
    let rounds = rounds.min((MOST_NODES / nodes).max(1) as u32);
    alone(rounds, async || {
        let given = function(nodes);
        let start = Instant::now();
        let optimised = optimise(given, Numerics::Standard)?.function;
        let parts = partition(&place(optimised, &cluster, &options)?);
        let took = millis(start.elapsed());
        match parts.programs.len() == WORKERS {
            true => Ok(vec![took]),
            false => Err(Error::internal("a plan for three workers uses fewer")),
        }
    })
    .await
}
