//! Functions whose steps take as long as a test needs.

use std::os::unix::fs::FileExt;
use std::path::Path;

use convoke::graph::Function;
use convoke::{DType, TensorType};
use convoke_graph::Dim;
use convoke_graph::graph::{Attr, Attrs, Literal, Node, RunsAt, ValueId};
use convoke_models::ArtifactIndex;

/// The bytes of each table of [`with_tables`].
pub const TABLE: usize = 48 << 20;
/// The memory of a worker that has room for one table or as much of other weights, and for 4 MiB of tensors beside it, but
/// not for two. The process itself takes several MiB more or less, depending on the machine; so the room that is left is
/// chosen midway between the two.
pub const ROOM_FOR_ONE: &str = "132MiB";

/// Makes a node that is named after its op and its output.
pub fn node(op: &str, inputs: &[ValueId], output: ValueId, attrs: Attrs) -> Node {
    Node {
        name: format!("{op}_{}", output.0).into(),
        op: op.into(),
        attrs,
        inputs: inputs.iter().map(|v| Some(*v)).collect(),
        outputs: vec![output],
        runs_at: RunsAt::Step,
    }
}

/// Makes the function x(i+1) = tanh(x(i)), `nodes` times, over `shape`; its nodes are `Tanh_1`, `Tanh_2`, ….
pub fn tanh_chain(shape: &[usize], nodes: usize) -> Function {
    let mut f = Function {
        name: "tanh".into(),
        ..Function::default()
    };
    let ty = TensorType::fixed(DType::F32, shape);
    let mut last = f.add_value("x", ty.clone());
    f.params.push(last);
    for i in 0..nodes {
        let next = f.add_value(format!("t{i}"), ty.clone());
        f.nodes.push(node("Tanh", &[last], next, Attrs::default()));
        last = next;
    }
    f.results.push(("y".into(), last));
    f
}

/// Makes the function x(i+1) = tanh(x(i) · x), `nodes` times, over a square of this side: work that no pass can
/// shorten.
pub fn product_chain(side: usize, nodes: usize) -> Function {
    let mut f = Function {
        name: "chain".into(),
        ..Function::default()
    };
    let ty = TensorType::fixed(DType::F32, &[side, side]);
    let x = f.add_value("x", ty.clone());
    f.params.push(x);
    let mut last = x;
    for i in 0..nodes {
        let product = f.add_value(format!("p{i}"), ty.clone());
        let next = f.add_value(format!("t{i}"), ty.clone());
        f.nodes
            .push(node("MatMul", &[last, x], product, Attrs::default()));
        f.nodes
            .push(node("Tanh", &[product], next, Attrs::default()));
        last = next;
    }
    f.results.push(("y".into(), last));
    f
}

/// The side of [`square`]: a matrix product of this size takes a second or more on one thread.
pub const SQUARE: usize = 3072;

/// Makes the function y = x · x, with the one node `square`.
pub fn square() -> Function {
    let ty = || TensorType::fixed(DType::F32, &[SQUARE, SQUARE]);
    let mut f = Function {
        name: "squares".into(),
        ..Function::default()
    };
    let (x, y) = (f.add_value("x", ty()), f.add_value("y", ty()));
    f.params = vec![x];
    f.nodes = vec![Node {
        name: "square".into(),
        ..node("MatMul", &[x, x], y, Attrs::default())
    }];
    f.results = vec![("y".into(), y)];
    f
}

/// Rows and columns of a weight of [`layers`].
pub const SIDE: usize = 1024;
/// Bytes of a weight of [`layers`].
pub const WEIGHT: u64 = (SIDE * SIDE * 4) as u64;

/// Makes `file` as long as this, with other content in each chunk than in any other chunk of this or another seed.
fn distinct_chunks(file: &Path, bytes: u64, seed: u32) {
    let weights = std::fs::File::create(file).unwrap();
    weights.set_len(bytes).unwrap();
    for chunk in 0..bytes >> 20 {
        // Near 1, so that what is computed of them does not vanish over many layers.
        let mark = (1. + seed as f32 / 8. + chunk as f32 / 1e6).to_le_bytes();
        weights.write_all_at(&mark, chunk << 20).unwrap();
    }
}

/// Makes the function x(i+1) = tanh(x(i) · w(i)), `layers` times, over any number of rows. Models of different seeds
/// have no weight in common.
pub fn layers(layers: usize, file: &Path, seed: u32) -> (Function, Vec<convoke::Source>) {
    distinct_chunks(file, WEIGHT * layers as u64, seed);
    let index = ArtifactIndex::new(None, None);
    let sources = index.sources(&[file.to_owned()], None).unwrap();
    let mut f = Function {
        name: "layers".into(),
        artifacts: vec![sources[0].meta().clone()],
        ..Function::default()
    };
    let rows = TensorType::new(DType::F32, vec![Dim::sym("rows"), Dim::from(SIDE)]);
    let mut last = f.add_value("x", rows.clone());
    f.params.push(last);
    for i in 0..layers {
        let weight = f.add_value(
            format!("w{i}"),
            TensorType::fixed(DType::F32, &[SIDE, SIDE]),
        );
        let range = Literal::Range {
            artifact: 0,
            offset: i as u64 * WEIGHT,
            len: WEIGHT,
        };
        f.literals.push((weight, range));
        let product = f.add_value(format!("p{i}"), rows.clone());
        let next = f.add_value(format!("t{i}"), rows.clone());
        f.nodes
            .push(node("MatMul", &[last, weight], product, Attrs::default()));
        f.nodes
            .push(node("Tanh", &[product], next, Attrs::default()));
        last = next;
    }
    f.results.push(("y".into(), last));
    (f, sources)
}

/// Writes `tables` tables to `file`, which those of another seed do not resemble.
fn tables_file(file: &Path, tables: usize, seed: u32) -> Vec<convoke::Source> {
    distinct_chunks(file, (TABLE * tables) as u64, seed);
    let index = ArtifactIndex::new(None, None);
    index.sources(&[file.to_owned()], None).unwrap()
}

/// Extends the function `f`, whose only result is a square of this side, by `tables` tables of [`TABLE`] bytes each
/// in `file`, which are zero but for the first element of each chunk. The new function adds to the result the row of each
/// table that its input `row` names. Models of different seeds have no table in common.
pub fn with_tables(
    mut f: Function,
    file: &Path,
    side: usize,
    tables: usize,
    seed: u32,
) -> (Function, Vec<convoke::Source>) {
    let rows = TABLE / (side * 4);
    let sources = tables_file(file, tables, seed);
    f.artifacts.push(sources[0].meta().clone());
    // The row is an input, so that no pass replaces the tables by the rows that are taken from them.
    let row = f.add_value("row", TensorType::fixed(DType::I64, &[1]));
    f.params.push(row);
    for i in 0..tables {
        let table = f.add_value(
            format!("table{i}"),
            TensorType::fixed(DType::F32, &[rows, side]),
        );
        f.literals.push((
            table,
            Literal::Range {
                artifact: 0,
                offset: (i * TABLE) as u64,
                len: TABLE as u64,
            },
        ));
        let line = TensorType::fixed(DType::F32, &[1, side]);
        let taken = f.add_value(format!("taken{i}"), line);
        f.nodes.push(node(
            "Gather",
            &[table, row],
            taken,
            Attrs::default().with("axis", Attr::Int(0)),
        ));
        let (name, last) = f.results.pop().unwrap();
        let ty = f.ty(last).clone();
        let sum = f.add_value(format!("sum{i}"), ty);
        f.nodes
            .push(node("Add", &[last, taken], sum, Attrs::default()));
        f.results.push((name, sum));
    }
    (f, sources)
}

/// Makes a loop of `count` iterations over `tables` tables of [`TABLE`] bytes each in `file`, as [`with_tables`] makes
/// them: an iteration adds the row of each table that the input `row` names to `x`, and takes the hyperbolic tangent
/// each time.
pub fn loop_over_tables(
    file: &Path,
    side: usize,
    tables: usize,
    seed: u32,
) -> (Function, Vec<convoke::Source>) {
    let rows = TABLE / (side * 4);
    let sources = tables_file(file, tables, seed);
    let scalar = |dtype| TensorType::fixed(dtype, &[]);
    let line = || TensorType::fixed(DType::F32, &[1, side]);
    let table = || TensorType::fixed(DType::F32, &[rows, side]);
    let number = || TensorType::fixed(DType::I64, &[1]);

    let mut body = Function::default();
    let going = body.add_value("going", scalar(DType::Bool));
    let iteration = body.add_value("iteration", scalar(DType::I64));
    let mut x = body.add_value("x", line());
    let row = body.add_value("row", number());
    let taken_from: Vec<ValueId> = (0..tables)
        .map(|i| body.add_value(format!("table{i}"), table()))
        .collect();
    body.params = [iteration, going, x, row]
        .into_iter()
        .chain(taken_from.clone())
        .collect();
    for (i, table) in taken_from.iter().enumerate() {
        let made = ["taken", "sum", "layer"].map(|n| body.add_value(format!("{n}{i}"), line()));
        let [taken, sum, layer] = made;
        let none = Attrs::default;
        body.nodes
            .push(node("Gather", &[*table, row], taken, none()));
        body.nodes.push(node("Add", &[x, taken], sum, none()));
        body.nodes.push(node("Tanh", &[sum], layer, none()));
        x = layer;
    }
    body.results = vec![("going".into(), going), ("x".into(), x)];

    let mut f = Function {
        name: "loop".into(),
        artifacts: vec![sources[0].meta().clone()],
        ..Function::default()
    };
    let count = f.add_value("count", scalar(DType::I64));
    let row = f.add_value("row", number());
    let x = f.add_value("x", line());
    f.params = vec![count, row, x];
    let mut inputs = vec![Some(count), None, Some(x), Some(row)];
    for i in 0..tables {
        let table = f.add_value(format!("t{i}"), table());
        let range = Literal::Range {
            artifact: 0,
            offset: (i * TABLE) as u64,
            len: TABLE as u64,
        };
        f.literals.push((table, range));
        inputs.push(Some(table));
    }
    let y = f.add_value("y", line());
    let attrs = Attrs::default()
        .with("body", Attr::Function(body.into()))
        .with("captured", Attr::Int(1 + tables as i64));
    f.nodes.push(Node {
        inputs,
        ..node("Loop", &[], y, attrs)
    });
    f.results.push(("y".into(), y));
    (f, sources)
}
