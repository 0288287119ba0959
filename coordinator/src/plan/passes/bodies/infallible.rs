//! Tells of nodes whether they can fail once their types are known. Those that cannot may run although nobody asks for
//! their results.

use convoke_graph::Dim;
use convoke_graph::graph::{Function, Node, TensorType, ValueId};
use convoke_graph::ops::{
    BinaryOp, MatMulOp, MovementOp, Op, ShapeOp, SliceOp, UnaryOp, float_function,
};

/// Whether a node with the types that `f` declares always has results. The ops are those of floats: they look at the
/// elements of none of their operands but those that must be literals, which `is_literal` tells of.
pub fn infallible(f: &Function, node: &Node, is_literal: impl Fn(&ValueId) -> bool) -> bool {
    let operands: Vec<&TensorType> = node.inputs.iter().flatten().map(|v| f.ty(*v)).collect();
    let results: Vec<&TensorType> = node.outputs.iter().map(|v| f.ty(*v)).collect();
    let [result] = results[..] else { return false };
    let floats = || operands.iter().all(|ty| ty.dtype.is_float()) && result.dtype.is_float();
    let fixed = || operands.iter().all(|ty| is_fixed(ty)) && is_fixed(result);
    let literal = || node.inputs.iter().skip(1).flatten().all(&is_literal);
    let of_floats = || operands.first().is_some_and(|ty| ty.dtype.is_float());
    match node.kind() {
        Some(Op::Unary(UnaryOp::Identity)) => true,
        Some(Op::Unary(UnaryOp::Cast)) => floats(),
        Some(Op::Unary(op)) => floats() && matches!(float_function(op, &node.attrs), Ok(Some(_))),
        Some(Op::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div)) => {
            floats() && operands.iter().all(|ty| broadcasts(ty, result))
        }
        Some(Op::MatMul(MatMulOp::MatMul | MatMulOp::Gemm)) => floats() && fixed(),
        Some(Op::Movement(MovementOp::Transpose)) => true,
        Some(Op::Shape(
            ShapeOp::Reshape | ShapeOp::Flatten | ShapeOp::Squeeze | ShapeOp::Unsqueeze,
        ))
        | Some(Op::Slice(SliceOp::Slice)) => of_floats() && fixed() && literal(),
        Some(Op::Slice(SliceOp::Concat)) => of_floats() && fixed(),
        _ => false,
    }
}

fn is_fixed(ty: &TensorType) -> bool {
    ty.fixed_shape().is_some()
}

/// Whether an operand broadcasts to a result whatever the sizes of its symbols are.
fn broadcasts(operand: &TensorType, result: &TensorType) -> bool {
    let pairs = operand.shape.iter().rev().zip(result.shape.iter().rev());
    operand.shape.len() <= result.shape.len()
        && pairs
            .into_iter()
            .all(|(a, b)| a == b || *a == Dim::Const(1))
}
