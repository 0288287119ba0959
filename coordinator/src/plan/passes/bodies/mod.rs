//! Passes enter the functions of control flow: each is pruned, folded, merged and fused as the function around it, and
//! what does not change from run to run moves out of it.
//!
//! ```text
//! Loop(…, w)  body: x' = Relu(MatMul(x, w))   ->   p = PackGemmB(w)   Loop(…, p)  body: x' = FusedGemm(x, p)
//!             constants move to the init part, values that a loop captures to the step in front of it
//! ```
//! A captured constant stands for itself in the function while passes run: as a literal without bytes, whose offset is
//! its number among the captured values.
//!
//! Invariants
//! 1. No value changes in any bit: of the passes that may change values only `coded` enters, by itself, and before.
//! 2. Only nodes that cannot fail move out of a function ([`infallible`]), because a branch may not be taken, and a
//!    loop may have no iteration.
//! 3. The types of a function are those that hold in each of its runs ([`ops::typed_bodies`]).

mod captures;
mod constants;
mod hoist;
mod infallible;
#[cfg(test)]
mod tests;

use convoke_graph::graph::Function;
use convoke_graph::ops::{self, ControlOp};

pub use captures::{Bodies, control_op, inline_literals, read_by};
use constants::CapturedConstants;
use hoist::{Hoist, MoveCounts};
use infallible::infallible;

use super::edit::Edit;
use super::pass::{self, Pass};
use super::{cse, fold, fuse, identity, pack, prune, sink, transpose};

/// The passes that run on a function of control flow, in order.
const PASSES: &[Pass] = &[
    prune::run,
    fold::run,
    transpose::run,
    identity::run,
    cse::run,
    constants::to_init,
    |f| sink::run(f, &|_| false),
    run,
    fuse::run,
    pack::run,
    cse::run,
    prune::run,
];

/// Runs the pass.
pub fn run(f: Function) -> (Function, Option<String>) {
    let control = f.nodes.iter().enumerate();
    let control = control.filter_map(|(i, n)| Some((i, control_op(n)?)));
    let control: Vec<_> = control.collect();
    if control.is_empty() {
        return (f, None);
    }
    let mut e = Edit::new(f);
    let mut moved = MoveCounts::default();
    for (i, op) in &control {
        enter(&mut e, *i, *op, &mut moved);
    }
    let report = format!(
        "of {}: {} to install time, {} in front of loops",
        pass::count(control.len(), "node"),
        pass::count(moved.to_init, "node"),
        pass::count(moved.to_step, "node"),
    );
    (e.finish(), Some(report))
}

/// Runs the passes on the functions of node `at`; leaves them where their types are not known.
fn enter(e: &mut Edit, at: usize, op: ControlOp, moved: &mut MoveCounts) -> Option<()> {
    let functions = ops::typed_bodies(op, &e.f.nodes[at], &e.f.values).ok()?;
    let mut bodies = Bodies::of(op, &e.f.nodes[at], functions)?;
    for b in 0..bodies.functions.len() {
        let constants = CapturedConstants::make_literals(e, &mut bodies, b);
        let mut f = std::mem::take(&mut bodies.functions[b]);
        for pass in PASSES {
            f = pass(f).0;
        }
        bodies.set(b, f);
        constants.into_params(&mut bodies, b);
        let hoist = Hoist {
            e,
            at,
            bodies: &mut bodies,
            body: b,
        };
        hoist.run(op, moved);
    }
    bodies.forget_unread();
    bodies.write(&mut e.f.nodes[at]);
    Some(())
}
