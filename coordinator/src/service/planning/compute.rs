//! Computes the plan of a request.

use std::sync::Arc;

use convoke_common::rpc::PlanOptions;
use convoke_common::{Code, Error, Result};
use convoke_graph::graph::Function;
use convoke_graph::program::model_name;

use super::options::check;
use super::profiles::plan_apart;
use crate::place::ClusterModel;
use crate::plan::PlannedPrograms;

/// Checks a request, and plans it for the first bounds with which it fits. This is the only place where the service
/// calls the planner.
pub(crate) fn compute(
    function: Arc<Function>,
    cluster: &ClusterModel,
    mut options: PlanOptions,
) -> Result<PlannedPrograms> {
    check(&function, &options)?;
    let mut function = Arc::unwrap_or_clone(function);
    function.name = model_name(&function.name);
    for tighter in std::mem::take(&mut options.tighter) {
        match plan_apart(function.clone(), cluster, &options) {
            Err(e) if needs_less(&e) => options.axes = tighter,
            planned => return planned,
        }
    }
    plan_apart(function, cluster, &options)
}

/// Returns whether a function may fit with tighter bounds. Where each profile was tried, any of them may fit.
fn needs_less(e: &Error) -> bool {
    let of_memory = |e: &Error| matches!(e.code, Code::ClusterTooSmall | Code::OutOfMemory);
    of_memory(e) || e.attached.iter().any(of_memory)
}

#[cfg(test)]
mod tests {
    use convoke_common::rpc::WorkerCount;
    use convoke_graph::program::Axes;

    use super::*;
    use crate::testing::{cluster, options, parse};

    #[test]
    fn bounds_are_tried_from_roomy_to_tight() {
        let f = parse(
            "param x: f32[n, 256]
             weight a: f32[256, 256]
             y = MatMul(x, a)
             result y",
        );
        let bound = |most: i64| Axes {
            bounds: vec![("n".into(), most)],
        };
        let check =
            |cluster: &ClusterModel, pinned: bool, tighter: &[i64], want: Result<i64, Code>| {
                let mut options = options(&f, WorkerCount::Auto);
                options.axes = bound(1 << 20);
                options.tighter = tighter.iter().map(|most| bound(*most)).collect();
                if pinned {
                    options.pins = vec![("*".into(), "w0".into())];
                }
                let made = compute(Arc::new(f.clone()), cluster, options);
                let made = made.map(|planned| planned.axes.bounds[0].1);
                assert_eq!(made.map_err(|e| e.code), want);
            };
        let small = cluster(1, 4 << 20);
        check(&small, false, &[1 << 19, 100, 10], Ok(100));
        check(&small, false, &[1 << 19], Err(Code::ClusterTooSmall));
        check(&small, false, &[10; 4], Err(Code::InvalidArgument));
        // The faster profile cannot run nodes that are pinned elsewhere, whatever the bounds.
        let mut mixed = cluster(2, 4 << 20);
        mixed.workers[1].profile = "fast".into();
        mixed.workers[1].device_speed.flops *= 100.0;
        check(&mixed, true, &[10], Ok(10));
    }
}
