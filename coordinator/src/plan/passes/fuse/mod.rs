//! Fuses convolutions and matrix products with the bias, residual and activation that follow them, and matrix products
//! with the dequantisation of their weights. The fused kernels round like the separate ops, so no bit changes.
//!
//! The fused node stands where the last of its nodes stood and keeps that node's output. A value that is
//! a result, or that something else uses too, is never fused away.

mod activation;
mod codes;
mod conv;
mod fused_node;
mod gemm;

use convoke_graph::graph::{Function, RunsAt};
use convoke_graph::ops::{ConvOp, IndexOp, MatMulOp, Op};

use super::edit::Edit;
use super::pass;

/// Runs the pass.
pub fn run(f: Function) -> (Function, Option<String>) {
    let mut e = Edit::new(f);
    let (mut convs, mut gemms, mut absorbed, mut tables) = (0, 0, 0, 0);
    for i in 0..e.f.nodes.len() {
        if e.is_removed(i) || e.f.nodes[i].runs_at == RunsAt::Init {
            continue;
        }
        let (fused, count) = match e.f.nodes[i].kind() {
            Some(Op::Conv(ConvOp::Conv)) => (conv::find(&mut e, i), &mut convs),
            Some(Op::MatMul(MatMulOp::Gemm)) => (gemm::find_gemm(&mut e, i), &mut gemms),
            Some(Op::MatMul(MatMulOp::MatMul)) => (gemm::find_matmul(&mut e, i), &mut gemms),
            Some(Op::Index(IndexOp::Gather)) => {
                tables += usize::from(codes::gather(&mut e, i).is_some());
                continue;
            }
            _ => continue,
        };
        let Some(fused) = fused else { continue };
        *count += 1;
        absorbed += fused.nodes.len() - 1;
        fused.apply(&mut e);
    }
    let fused = (convs + gemms > 0).then(|| {
        format!(
            "{} and {} absorbed {}",
            pass::count(convs, "convolution"),
            pass::count(gemms, "matrix product"),
            pass::count(absorbed, "node")
        )
    });
    let tables =
        (tables > 0).then(|| format!("kept the codes of {}", pass::count(tables, "table")));
    let report = fused
        .into_iter()
        .chain(tables)
        .reduce(|a, b| format!("{a}, {b}"));
    (e.finish(), report)
}
