//! What a request for a plan may ask for, and what is left of it where workers are missing.

use convoke_common::grant::MOST_IN_FLIGHT;
use convoke_common::rpc::{PlanOptions, WorkerCount};
use convoke_common::{Code, Error, Result};
use convoke_graph::graph::Function;

use crate::place::ClusterModel;

/// Most pins, and most axes, of one plan.
const MOST_NAMES: usize = 4096;
/// The most bounds that a request may have besides the first, each of which takes a plan.
const MOST_TIGHTER: usize = 3;

/// Fails if a request is not one that a client may make.
pub fn check(function: &Function, options: &PlanOptions) -> Result<()> {
    let bad = |what: &str| Err(Error::new(Code::InvalidArgument, what));
    if options.workers == WorkerCount::Exactly(0) {
        return bad("a plan needs at least one worker");
    }
    if !(1..=MOST_IN_FLIGHT).contains(&options.in_flight) {
        return bad(&format!(
            "{} steps in flight; 1 to {MOST_IN_FLIGHT} may be",
            options.in_flight
        ));
    }
    let names = [
        options.pins.len(),
        options.stages.len(),
        options.axes.bounds.len(),
        options.expected.len(),
        options.avoid.len(),
        options.ops.len(),
    ];
    if names.iter().any(|n| *n > MOST_NAMES) {
        return bad(&format!(
            "a plan may have {MOST_NAMES} pins, stages and axes"
        ));
    }
    let bounds = options.tighter.iter().map(|axes| axes.bounds.len());
    if options.tighter.len() > MOST_TIGHTER || bounds.max().unwrap_or(0) > MOST_NAMES {
        return bad(&format!(
            "a plan may have {MOST_TIGHTER} tighter bounds of {MOST_NAMES} axes"
        ));
    }
    let artifacts = function.artifacts.iter();
    let mut checked = artifacts.map(|a| {
        a.check()
            .map_err(|e| Error::new(Code::InvalidGraph, e.to_string()))
    });
    checked.try_for_each(|artifact| artifact)
}

/// Adapts options to the workers that are left without the avoided ones: a plan for more workers than those uses them
/// all.
pub fn for_what_is_left(options: PlanOptions, cluster: &ClusterModel) -> Result<PlanOptions> {
    let left = u32::try_from(cluster.workers.len()).unwrap_or(u32::MAX);
    let avoided = || {
        let names = options.avoid.iter().map(|(name, _)| name.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let start = "start one with `convoke worker --join HOST:PORT --token-file FILE`";
    match options.workers {
        _ if left == 0 && options.avoid.is_empty() => {
            Err(Error::new(Code::NoWorkers, "no worker has joined").advise(start))
        }
        _ if left == 0 => {
            let msg = format!("no worker is left besides {}", avoided());
            Err(Error::new(Code::NoWorkers, msg).advise(start))
        }
        WorkerCount::Exactly(n) if n > left && !options.avoid.is_empty() => Ok(PlanOptions {
            workers: WorkerCount::Exactly(left),
            ..options
        }),
        _ => Ok(options),
    }
}

/// Returns whether a function that could not be planned may fit once more workers are connected.
pub fn lacks_workers(error: &Error, options: &PlanOptions) -> bool {
    match error.code {
        Code::NoWorkers | Code::ClusterTooSmall | Code::UnsupportedOp => true,
        // A pin may name a worker that is not connected.
        Code::InvalidArgument => !options.pins.is_empty(),
        _ => false,
    }
}
