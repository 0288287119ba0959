//! Moves nodes that depend on constants only to the init part: the worker that needs the result computes it once, at
//! install.
//!
//! A result whose size depends on data stays in the step, so that memory can be predicted. Results may be larger than
//! their operands (weights given as `ConstantOfShape`); they are counted as weights. Custom ops also stay in the step:
//! constants live where they are read, and not all workers have the kernel of a custom op.

use convoke_graph::graph::{Function, RunsAt};
use convoke_graph::ops;

use super::edit::Edit;
use super::pass;

/// Runs the pass.
pub fn run(f: Function) -> (Function, Option<String>) {
    let mut e = Edit::new(f);
    let mut moved = 0;
    for i in 0..e.f.nodes.len() {
        let node = &e.f.nodes[i];
        let constant = node.runs_at == RunsAt::Step
            && node.inputs.iter().flatten().all(|v| e.is_constant(*v))
            && node
                .outputs
                .iter()
                .all(|o| e.f.ty(*o).fixed_shape().is_some())
            && !ops::is_custom(&node.op)
            && ops::lookup(&node.op).is_some_and(|op| op.pure_op);
        if constant {
            e.make_init(i);
            moved += 1;
        }
    }
    let report = (moved > 0).then(|| format!("{} to install time", pass::count(moved, "node")));
    (e.finish(), report)
}
