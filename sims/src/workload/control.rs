//! Control flow: branches, loops and scans with small bodies.

use convoke_graph::graph::{Attr, Attrs, Function, Node, RunsAt, TensorType, ValueId};
use convoke_graph::ops::infer_types;
use convoke_graph::{DType, Dim, Tensor};

use super::build::{Build, LiveMatrix, Rows};
use super::ops::NotApplicable;

const UNARY: &[&str] = &["Tanh", "Sigmoid", "Neg", "Abs", "Relu"];

/// Makes the body of a control-flow op: a function with these parameters, and nodes of one output each. A node is an op
/// and the numbers of its operands, which count the parameters first and then the nodes; `results` holds such numbers
/// as well.
fn body(params: Vec<TensorType>, nodes: &[(&str, &[u32])], results: &[u32]) -> Attr {
    let mut f = Function {
        name: "body".into(),
        ..Function::default()
    };
    for (i, ty) in params.into_iter().enumerate() {
        let id = f.add_value(format!("p{i}"), ty);
        f.params.push(id);
    }
    for (i, (op, operands)) in nodes.iter().enumerate() {
        let name = format!("b{i}");
        let output = f.add_value(name.as_str(), scalar(DType::F32));
        f.nodes.push(Node {
            name: name.into(),
            op: (*op).into(),
            attrs: Attrs::default(),
            inputs: operands.iter().map(|o| Some(ValueId(*o))).collect(),
            outputs: vec![output],
            runs_at: RunsAt::Step,
        });
    }
    let results = results.iter().enumerate();
    f.results = results
        .map(|(i, r)| (format!("r{i}"), ValueId(*r)))
        .collect();
    infer_types(&mut f).unwrap_or_else(|e| panic!("a generated body is wrong: {e:?}\n{f}"));
    Attr::Function(f.into())
}

fn scalar(dtype: DType) -> TensorType {
    TensorType::new(dtype, vec![])
}

fn of(x: LiveMatrix) -> TensorType {
    TensorType::new(DType::F32, vec![x.rows.dim(), Dim::from(x.cols)])
}

/// Adds a branch: the sign of a value's sum decides which of two unary ops runs.
pub(super) fn branch(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    let all = Attrs::default().with("keepdims", Attr::Int(0));
    let sum = b.node("ReduceSum", all, &[x.id], 1)[0];
    let zero = b.literal(Tensor::scalar(0f32));
    let positive = b.apply("Greater", &[sum, zero]);
    let [yes, no] = [(); 2].map(|()| {
        let op = b.draw.pick(UNARY);
        body(vec![of(x)], &[(op, &[0])], &[1])
    });
    let attrs = Attrs::default()
        .with("then_branch", yes)
        .with("else_branch", no);
    let y = b.node("If", attrs, &[positive, x.id], 1)[0];
    b.push(y, x.rows, x.cols);
    Ok(())
}

/// Adds a loop that applies a unary op up to four times.
pub(super) fn rounds(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    let count = b.draw.below(5) as i64;
    let count = b.literal(Tensor::scalar(count));
    let on = Tensor::from_bools(&[], &[true]).expect("one element");
    let on = b.literal(on);
    let op = b.draw.pick(UNARY);
    let params = vec![scalar(DType::I64), scalar(DType::Bool), of(x)];
    let attrs = Attrs::default().with("body", body(params, &[(op, &[2])], &[1, 3]));
    let y = b.node("Loop", attrs, &[count, on, x.id], 1)[0];
    b.push(y, x.rows, x.cols);
    Ok(())
}

/// Adds a scan over rows: it keeps a running sum, and multiplies each row by the sum so far.
pub(super) fn rows(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    if x.cols > 1024 || x.rows == Rows::Fixed(0) {
        return Err(NotApplicable);
    }
    let state = b.weights(&[x.cols]);
    let row = || TensorType::fixed(DType::F32, &[x.cols]);
    let nodes: &[(&str, &[u32])] = &[("Add", &[0, 1]), ("Mul", &[0, 1])];
    let attrs = Attrs::default()
        .with("body", body(vec![row(), row()], nodes, &[2, 3]))
        .with("num_scan_inputs", Attr::Int(1));
    let both = b.node("Scan", attrs, &[state, x.id], 2);
    b.push(both[1], x.rows, x.cols);
    Ok(())
}

/// Rows and columns of a table.
const TABLE: (usize, usize) = (4096, 256);

/// How often the rows of a table are repeated, so that it can be made of a few bytes.
const REPEATED: usize = 64;

/// Adds a loop of three rounds that reads one row of each of `count` tables in each round, and returns its output. The
/// tables are made at install.
pub(super) fn tables(b: &mut Build, count: u8) -> ValueId {
    let (rows, cols) = TABLE;
    let x = b.operand();
    let all = Attrs::default().with("keepdims", Attr::Int(0));
    let sum = b.node("ReduceSum", all, &[x.id], 1)[0];
    let bias = b.weights(&[1, cols]);
    let first = b.apply("Add", &[sum, bias]);
    let rounds = b.literal(Tensor::scalar(3i64));
    let on = Tensor::from_bools(&[], &[true]).expect("one element");
    let on = b.literal(on);
    let mut inputs = vec![rounds, on, first];
    for _ in 0..count {
        let (left, right) = (b.weights(&[rows / REPEATED, 1]), b.weights(&[1, cols]));
        let product = b.apply("MatMul", &[left, right]);
        let times = b.ints(&[REPEATED as i64, 1]);
        inputs.push(b.apply("Tile", &[product, times]));
    }
    let mut params = vec![
        scalar(DType::I64),
        scalar(DType::Bool),
        TensorType::fixed(DType::F32, &[1, cols]),
    ];
    params.extend((0..count).map(|_| TensorType::fixed(DType::F32, &[rows, cols])));
    // Three nodes for each table: the row of this round, its sum with the state, and the new state.
    let after = params.len() as u32;
    let operands: Vec<[[u32; 2]; 3]> = (0..u32::from(count))
        .map(|i| {
            let row = after + 3 * i;
            let state = if i == 0 { 2 } else { row - 1 };
            [[3 + i, 0], [state, row], [row + 1, row + 1]]
        })
        .collect();
    let nodes = operands.iter().flat_map(|[gather, add, tanh]| {
        [
            ("Gather", &gather[..]),
            ("Add", &add[..]),
            ("Tanh", &tanh[..1]),
        ]
    });
    let nodes: Vec<(&str, &[u32])> = nodes.collect();
    let last = after + 3 * u32::from(count) - 1;
    let attrs = Attrs::default()
        .with("body", body(params, &nodes, &[1, last]))
        .with("captured", Attr::Int(count.into()));
    let y = b.node("Loop", attrs, &inputs, 1)[0];
    b.push(y, Rows::Fixed(1), cols);
    y
}
