//! This module chooses the evaluation of each op. It refuses ops, attributes and dtypes that workloads do not have.

use convoke_common::error::Code;
use convoke_graph::graph::{Attrs, Node};
use convoke_graph::{DType, Tensor};

use super::element::{self, broadcast, the_nan};
use super::evaluate::NodeFailure;
use super::slices::of;
use super::{control, elementary, movement, rows};

/// Panics where a node has an attribute that the oracle would ignore.
fn only(node: &Node, names: &[&str]) {
    for name in node.attrs.0.keys() {
        let known = names.contains(&&**name);
        assert!(known, "the oracle ignores '{name}' of {}", node.op);
    }
}

/// The axis that an attribute names, counted from the first; negative ones count from the last.
pub(super) fn axis(attrs: &Attrs, or: i64, rank: usize) -> usize {
    let given = attrs.int("axis", or);
    let from_first = if given < 0 {
        given + rank as i64
    } else {
        given
    };
    usize::try_from(from_first).unwrap_or_else(|_| panic!("no axis {given} of {rank}"))
}

/// Panics unless the attribute names the last axis, which is the only one that rows are written for.
fn along_rows(node: &Node, or: i64, x: &Tensor) {
    only(node, &["axis"]);
    let rank = x.shape().len();
    assert_eq!(axis(&node.attrs, or, rank) + 1, rank, "axis of {}", node.op);
}

/// Computes the outputs of a node.
pub(super) fn apply(node: &Node, operands: &[Tensor]) -> Result<Vec<Tensor>, NodeFailure> {
    let fails = |code| NodeFailure {
        code,
        node: node.name.to_string(),
    };
    if let Some(f) = function_of_one(&node.op) {
        only(node, &[]);
        return Ok(vec![element::each(&operands[0], f)]);
    }
    if let Some(f) = function_of_two(&node.op)
        && operands[0].dtype() == DType::F32
    {
        only(node, &[]);
        let fold = |a: Tensor, b: &Tensor| broadcast(&a, b, f);
        return Ok(vec![operands[1..].iter().fold(operands[0].clone(), fold)]);
    }
    let x = &operands[0];
    Ok(match &*node.op {
        "Identity" => vec![x.clone()],
        "Div" if x.dtype() == DType::I32 => {
            only(node, &[]);
            if of::<i32>(&operands[1]).contains(&0) {
                return Err(fails(Code::KernelFailed));
            }
            vec![broadcast::<i32, i32>(x, &operands[1], i32::wrapping_div)]
        }
        "Greater" => {
            only(node, &[]);
            vec![element::greater(x, &operands[1])]
        }
        "Where" => {
            only(node, &[]);
            vec![element::choose(x, &operands[1], &operands[2])]
        }
        "Cast" => {
            only(node, &["to"]);
            vec![element::cast(x, node.attrs.dtype("to"))]
        }
        "MatMul" => {
            only(node, &[]);
            vec![rows::product(x, &operands[1])]
        }
        "Gemm" => {
            only(node, &[]);
            let product = rows::product(x, &operands[1]);
            vec![broadcast(&product, &operands[2], |a: f32, b| {
                the_nan(a + b)
            })]
        }
        "ReduceSum" | "ReduceMax" | "ReduceMean" => {
            only(node, &["keepdims"]);
            let axes = operands.get(1).map(of::<i64>);
            let keeps = node.attrs.int("keepdims", 1) != 0;
            vec![rows::reduce(&node.op, x, axes, keeps)]
        }
        "Softmax" | "LogSoftmax" => {
            along_rows(node, -1, x);
            vec![rows::softmax(x, &*node.op == "LogSoftmax")]
        }
        "LayerNormalization" => {
            along_rows(node, -1, x);
            vec![rows::layer_norm(x, of(&operands[1]), of(&operands[2]))]
        }
        "TopK" => {
            along_rows(node, -1, x);
            rows::top_k(x, of::<i64>(&operands[1])[0])
        }
        "ArgMax" => {
            along_rows(node, 0, x);
            vec![rows::arg_max(x)]
        }
        "CumSum" => {
            only(node, &[]);
            vec![rows::running_sum(x, of::<i64>(&operands[1])[0])]
        }
        "Transpose" => {
            only(node, &[]);
            vec![movement::transpose(x)]
        }
        "Concat" => {
            only(node, &["axis"]);
            let axis = axis(&node.attrs, 0, x.shape().len());
            vec![movement::concat(operands, axis)]
        }
        "Split" => {
            only(node, &["axis"]);
            let axis = axis(&node.attrs, 0, x.shape().len());
            movement::split(x, of(&operands[1]), axis)
        }
        "Squeeze" => {
            only(node, &[]);
            assert_eq!(operands.len(), 1, "the oracle squeezes all axes of one");
            vec![movement::squeeze(x)]
        }
        "Tile" => {
            only(node, &[]);
            vec![movement::tile(x, of(&operands[1]))]
        }
        "Gather" => {
            only(node, &[]);
            let gathered = movement::gather(x, &operands[1]);
            vec![gathered.ok_or_else(|| fails(Code::KernelFailed))?]
        }
        "ConstantOfShape" => {
            only(node, &[]);
            let zeros = movement::zeros(of(x));
            vec![zeros.ok_or_else(|| fails(Code::OutOfMemory))?]
        }
        "If" => {
            only(node, &["then_branch", "else_branch"]);
            control::branch(node, operands)?
        }
        "Loop" => {
            only(node, &["body", "captured"]);
            control::iterate(node, operands)?
        }
        "Scan" => {
            only(node, &["body", "num_scan_inputs"]);
            control::scan(node, operands)?
        }
        op => panic!("the oracle does not know the op {op}: write it in sims/src/oracle"),
    })
}

fn function_of_one(op: &str) -> Option<fn(f32) -> f32> {
    Some(match op {
        "Abs" => f32::abs,
        "Neg" => |x| -x,
        "Sqrt" => f32::sqrt,
        "Floor" => f32::floor,
        "Sign" => element::sign,
        "Relu" => |x| if x < 0. { 0. } else { x },
        "Exp" => elementary::exp,
        "Tanh" => elementary::tanh,
        "Erf" => elementary::erf,
        "Sin" => elementary::sin,
        "Sigmoid" => elementary::sigmoid,
        "Softplus" => elementary::softplus,
        "Gelu" => elementary::gelu,
        "HardSwish" => elementary::hard_swish,
        _ => return None,
    })
}

/// A function of two floats, which ops of more operands apply from left to right.
fn function_of_two(op: &str) -> Option<fn(f32, f32) -> f32> {
    Some(match op {
        "Add" | "Sum" => |a, b| the_nan(a + b),
        "Mul" => |a, b| the_nan(a * b),
        "Sub" => |a, b| a - b,
        "Div" => |a, b| a / b,
        "Max" => element::larger,
        "Min" => element::smaller,
        _ => return None,
    })
}
