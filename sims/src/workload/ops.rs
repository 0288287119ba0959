//! The ways in which a function grows by a node or a few.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs};

use super::build::{Build, Rows};
use super::control;

/// The most columns for which products with constants are made, since the constant has to travel inside the graph.
const NARROW: usize = 16;
/// The columns above which values no longer grow.
const WIDEST: usize = 1 << 13;

const UNARY: &[&str] = &[
    "Relu",
    "Tanh",
    "Sigmoid",
    "Neg",
    "Abs",
    "Sqrt",
    "Exp",
    "Floor",
    "Erf",
    "Softplus",
    "HardSwish",
    "Gelu",
    "Sign",
    "Identity",
    "Sin",
];
const BINARY: &[&str] = &["Add", "Sub", "Mul", "Div", "Max", "Min"];
const REDUCE: &[&str] = &["ReduceSum", "ReduceMax", "ReduceMean"];

/// A way to grow that applies to none of the operands at hand.
pub(super) struct NotApplicable;
type NodeMaker = fn(&mut Build) -> Result<(), NotApplicable>;

const WAYS: &[(u64, NodeMaker)] = &[
    (6, unary),
    (5, binary),
    (4, with_constant),
    (4, product),
    (2, gemm),
    (2, softmax),
    (2, layer_norm),
    (2, transposed_product),
    (3, concat),
    (3, split),
    (2, top_k),
    (2, reduce),
    (2, select),
    (1, arg_max),
    (1, running_sum),
    (1, sum_of_many),
    (1, control::branch),
    (1, control::rounds),
    (1, control::rows),
];

/// Adds a node or a few in a way that is drawn by weight.
pub(super) fn grow(b: &mut Build) {
    while b.draw.weighted(WAYS)(b).is_err() {}
}

fn attr(name: &str, value: i64) -> Attrs {
    Attrs::default().with(name, Attr::Int(value))
}

fn unary(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    let op = b.draw.pick(UNARY);
    let y = b.apply(op, &[x.id]);
    b.push(y, x.rows, x.cols);
    Ok(())
}

fn binary(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    let same = |l: &&super::build::LiveMatrix| {
        (l.rows == x.rows || l.rows == Rows::Fixed(1)) && (l.cols == x.cols || l.cols == 1)
    };
    let fits: Vec<_> = b.live.iter().filter(same).map(|l| l.id).collect();
    let other = b.draw.pick(&fits);
    let op = b.draw.pick(BINARY);
    let y = b.apply(op, &[x.id, other]);
    b.push(y, x.rows, x.cols);
    Ok(())
}

fn with_constant(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    if x.cols > 1024 {
        return Err(NotApplicable);
    }
    let c = b.weights(&[x.cols]);
    let op = b.draw.pick(BINARY);
    let y = b.apply(op, &[x.id, c]);
    b.push(y, x.rows, x.cols);
    Ok(())
}

fn product(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    if x.cols > NARROW {
        return Err(NotApplicable);
    }
    let cols = b.draw.pick(&[4, 8, 16]);
    let mut w = b.weights(&[x.cols, cols]);
    if b.draw.chance(30) {
        // This node depends on constants alone, so it becomes part of init.
        w = b.apply("Tanh", &[w]);
    }
    let y = b.apply("MatMul", &[x.id, w]);
    b.push(y, x.rows, cols);
    Ok(())
}

fn gemm(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    if x.cols > NARROW {
        return Err(NotApplicable);
    }
    let cols = b.draw.pick(&[4, 8, 16]);
    let (w, bias) = (b.weights(&[x.cols, cols]), b.weights(&[cols]));
    let y = b.apply("Gemm", &[x.id, w, bias]);
    let y = if b.draw.chance(50) {
        b.apply("Relu", &[y])
    } else {
        y
    };
    b.push(y, x.rows, cols);
    Ok(())
}

fn softmax(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    let op = b.draw.pick(&["Softmax", "LogSoftmax"]);
    let y = b.node(op, attr("axis", -1), &[x.id], 1)[0];
    b.push(y, x.rows, x.cols);
    Ok(())
}

fn layer_norm(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    if x.cols > 1024 {
        return Err(NotApplicable);
    }
    let (scale, bias) = (b.weights(&[x.cols]), b.weights(&[x.cols]));
    let attrs = attr("axis", -1);
    let y = b.node("LayerNormalization", attrs, &[x.id, scale, bias], 1)[0];
    b.push(y, x.rows, x.cols);
    Ok(())
}

/// Adds `xᵀ y` for two values with the same rows, which removes the dynamic axis.
fn transposed_product(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    let fits: Vec<_> = b
        .live
        .iter()
        .filter(|l| l.rows == x.rows && l.cols * x.cols <= 1 << 14)
        .copied()
        .collect();
    let y = *fits
        .get(b.draw.index(fits.len()).ok_or(NotApplicable)?)
        .ok_or(NotApplicable)?;
    let t = b.apply("Transpose", &[x.id]);
    let z = b.apply("MatMul", &[t, y.id]);
    b.push(z, Rows::Fixed(x.cols), y.cols);
    Ok(())
}

fn concat(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    let fits: Vec<_> = b
        .live
        .iter()
        .filter(|l| l.rows == x.rows)
        .copied()
        .collect();
    let mut parts = vec![x];
    for _ in 0..b.draw.range(1, 3) {
        parts.push(b.draw.pick(&fits));
    }
    let cols: usize = parts.iter().map(|p| p.cols).sum();
    if cols > WIDEST {
        return Err(NotApplicable);
    }
    let ids: Vec<_> = parts.iter().map(|p| p.id).collect();
    let y = b.node("Concat", attr("axis", 1), &ids, 1)[0];
    b.push(y, x.rows, cols);
    Ok(())
}

fn split(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    if x.cols < 4 {
        return Err(NotApplicable);
    }
    let first = b.draw.range(1, x.cols as u64 - 2) as usize;
    let sizes = [first, 1, x.cols - first - 1];
    let at = b.ints(&sizes.map(|s| s as i64));
    let parts = b.node("Split", attr("axis", 1), &[x.id, at], 3);
    for (part, cols) in parts.into_iter().zip(sizes) {
        b.push(part, x.rows, cols);
    }
    Ok(())
}

fn top_k(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    let k = b.draw.range(1, x.cols.min(8) as u64);
    let k_value = b.ints(&[k as i64]);
    let both = b.node("TopK", attr("axis", -1), &[x.id, k_value], 2);
    let to = Attrs::default().with("to", Attr::DType(DType::F32));
    let places = b.node("Cast", to, &[both[1]], 1)[0];
    b.push(both[0], x.rows, k as usize);
    b.push(places, x.rows, k as usize);
    Ok(())
}

fn reduce(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    let axes = b.ints(&[1]);
    let op = b.draw.pick(REDUCE);
    let y = b.apply(op, &[x.id, axes]);
    b.push(y, x.rows, 1);
    Ok(())
}

/// Adds a comparison and a selection by it, so that a bool matrix lies between two nodes.
fn select(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    let zero = b.weights(&[1]);
    let above = b.apply("Greater", &[x.id, zero]);
    let y = b.apply("Neg", &[x.id]);
    let z = b.apply("Where", &[above, x.id, y]);
    b.push(z, x.rows, x.cols);
    Ok(())
}

fn arg_max(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    let at = b.node("ArgMax", attr("axis", 1), &[x.id], 1)[0];
    let to = Attrs::default().with("to", Attr::DType(DType::F32));
    let y = b.node("Cast", to, &[at], 1)[0];
    b.push(y, x.rows, 1);
    Ok(())
}

fn running_sum(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    let axis = b.ints(&[1]);
    let axis = b.apply("Squeeze", &[axis]);
    let y = b.apply("CumSum", &[x.id, axis]);
    b.push(y, x.rows, x.cols);
    Ok(())
}

/// Adds a sum of up to four values.
fn sum_of_many(b: &mut Build) -> Result<(), NotApplicable> {
    let x = b.operand();
    let same = |l: &&super::build::LiveMatrix| l.rows == x.rows && l.cols == x.cols;
    let fits: Vec<_> = b.live.iter().filter(same).map(|l| l.id).collect();
    let mut ids = vec![x.id];
    for _ in 0..b.draw.range(1, 3) {
        ids.push(b.draw.pick(&fits));
    }
    let y = b.apply("Sum", &ids);
    b.push(y, x.rows, x.cols);
    Ok(())
}
