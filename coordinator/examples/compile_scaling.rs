//! How long planning takes: `cargo run --release -p convoke-coordinator --example compile_scaling`.
//!
//! Chains and layered graphs of 1,000 to 100,000 nodes, planned for three workers.

use std::time::Instant;

use convoke_common::artifact::{ArtifactMeta, CHUNK};
use convoke_common::graph::{Attrs, Function, Literal, Node, Part, TensorType, ValueId};
use convoke_common::ids::Incarnation;
use convoke_common::program::Axes;
use convoke_common::rpc::{PlanOptions, WorkerCount};
use convoke_common::{DType, Dim, Result};
use convoke_coordinator::partition::partition;
use convoke_coordinator::passes::optimise;
use convoke_coordinator::place::{ClusterModel, WorkerModel, place};

const SIDE: usize = 64;
const WIDTH: usize = 8;

struct Graph {
    f: Function,
    bytes: u64,
}

impl Graph {
    fn new() -> Graph {
        Graph {
            f: Function {
                name: "scaling".into(),
                ..Function::default()
            },
            bytes: 0,
        }
    }

    fn flow() -> TensorType {
        TensorType::new(DType::F32, vec![Dim::sym("n"), SIDE.into()])
    }

    fn weight(&mut self, shape: &[usize]) -> ValueId {
        let id = self.f.add_value(
            format!("w{}", self.f.values.len()),
            TensorType::fixed(DType::F32, shape),
        );
        let len = shape.iter().product::<usize>() as u64 * 4;
        self.f.literals.push((
            id,
            Literal::Range {
                artifact: 0,
                offset: self.bytes,
                len,
            },
        ));
        self.bytes += len;
        id
    }

    fn node(&mut self, op: &str, inputs: &[ValueId]) -> ValueId {
        let out = self
            .f
            .add_value(format!("v{}", self.f.values.len()), Graph::flow());
        self.f.nodes.push(Node {
            name: format!("/layer/{op}_{}", self.f.nodes.len()).into(),
            op: op.into(),
            attrs: Attrs::default(),
            inputs: inputs.iter().map(|v| Some(*v)).collect(),
            outputs: vec![out],
            part: Part::Step,
        });
        out
    }

    fn finish(mut self, result: ValueId) -> Function {
        let chunks = vec![[0; 32]; self.bytes.div_ceil(CHUNK) as usize];
        self.f.artifacts = vec![ArtifactMeta::new(String::new(), self.bytes, chunks)];
        self.f.results = vec![("y".into(), result)];
        self.f
    }
}

/// Matrix product, bias, activation, residual, again and again.
fn chain(nodes: usize) -> Function {
    let mut g = Graph::new();
    let mut x = g.f.add_value("x", Graph::flow());
    g.f.params.push(x);
    while g.f.nodes.len() + 4 <= nodes {
        let (w, b) = (g.weight(&[SIDE, SIDE]), g.weight(&[SIDE]));
        let product = g.node("MatMul", &[x, w]);
        let sum = g.node("Add", &[product, b]);
        let active = g.node("Tanh", &[sum]);
        x = g.node("Add", &[active, x]);
    }
    g.finish(x)
}

/// Layers of parallel nodes, each of which reads two of the layer before.
fn layered(nodes: usize) -> Function {
    let mut g = Graph::new();
    let x = g.f.add_value("x", Graph::flow());
    g.f.params.push(x);
    let mut layer = vec![x; WIDTH];
    while g.f.nodes.len() + 2 * WIDTH <= nodes {
        let next = |i: usize, g: &mut Graph| {
            let w = g.weight(&[SIDE, SIDE]);
            let sum = g.node("Add", &[layer[i], layer[(i * 3 + 1) % WIDTH]]);
            g.node("MatMul", &[sum, w])
        };
        layer = (0..WIDTH).map(|i| next(i, &mut g)).collect();
    }
    let first = layer[0];
    let sum = layer[1..]
        .iter()
        .copied()
        .fold(first, |a, b| g.node("Add", &[a, b]));
    g.finish(sum)
}

#[allow(clippy::disallowed_methods)]
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let out = work();
    (out, start.elapsed().as_secs_f64() * 1e3)
}

fn main() -> Result<()> {
    let worker = |i: usize| WorkerModel {
        name: format!("w{i}"),
        address: format!("10.0.0.{i}:7000"),
        incarnation: Incarnation(i as u64),
        threads: 8,
        memory: 8 << 30,
        window: 64 << 20,
        flops: 5e11,
        memory_bandwidth: 2e10,
        ops: vec![],
    };
    let cluster = ClusterModel::new((0..3).map(worker).collect());
    println!(
        "{:<8} {:>7} {:>12} {:>10} {:>12} {:>10}",
        "graph", "nodes", "optimise ms", "place ms", "partition ms", "auto ms"
    );
    for nodes in [1_000, 10_000, 100_000] {
        for (name, make) in [
            ("chain", chain as fn(usize) -> Function),
            ("layered", layered),
        ] {
            let options = |workers| PlanOptions {
                workers,
                pins: vec![],
                axes: Axes {
                    bounds: vec![("n".into(), 32)],
                },
                expected: vec![],
                exact: false,
                in_flight: 2,
                avoid: vec![],
                ops: vec![],
            };
            let function = make(nodes);
            let (optimised, t_optimise) = timed(|| optimise(function, false));
            let function = optimised?.function;
            let copy = function.clone();
            let (placed, t_place) =
                timed(|| place(function, &cluster, &options(WorkerCount::Exactly(3))));
            let (auto, t_auto) = timed(|| place(copy, &cluster, &options(WorkerCount::Auto)));
            auto?;
            let placed = placed?;
            let (parts, t_partition) = timed(|| partition(&placed));
            assert_eq!(parts.programs.len(), 3);
            println!(
                "{name:<8} {nodes:>7} {t_optimise:>12.1} {t_place:>10.1} {t_partition:>12.1} {t_auto:>10.1}"
            );
        }
    }
    Ok(())
}
