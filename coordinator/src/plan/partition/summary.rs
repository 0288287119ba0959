//! The summary of a plan, which `plan` prints.

use convoke_common::rpc::{
    BodySummary, CutEdge, PartSummary, PinPart, PinSummary, PlanSummary, StageSummary, WorkerCount,
};

use convoke_graph::Printable;

use super::Partition;
use crate::place::{MemoryModel, Need, PlacedStage, Placement};

/// Describes a partitioned placement; `passes` is what the optimiser reported.
pub fn summarise(
    placed: &Placement,
    parts: &Partition,
    bodies: Vec<BodySummary>,
    passes: Vec<String>,
) -> PlanSummary {
    PlanSummary {
        parts: (0..placed.team.size())
            .map(|m| part(placed, parts, &bodies, m))
            .collect(),
        cut_edges: cut_edges(placed, parts),
        step_ns: placed.schedule.step_ns,
        single_ns: placed.single_ns,
        pins: pins(placed),
        stages: stages(placed),
        passes,
        warnings: warnings(placed),
        bodies,
    }
}

/// The tensors that cross between the workers of a placement.
pub fn cut_edges(placed: &Placement, parts: &Partition) -> Vec<CutEdge> {
    let name = |m: u16| placed.team.workers[usize::from(m)].name.clone();
    let cuts = parts.cuts.iter().map(|cut| CutEdge {
        tensor: placed.function.value(cut.value).name.to_string(),
        from: name(cut.from),
        to: name(cut.to),
        bytes: cut.bytes,
    });
    cuts.collect()
}

/// The names of the first and the last node that participant `m` runs.
pub fn extent(placed: &Placement, m: usize) -> (String, String) {
    let node = |p: &u32| &placed.function.nodes[placed.work.steps[*p as usize] as usize];
    let mut order = placed
        .schedule
        .order
        .iter()
        .filter(|p| usize::from(placed.participant[**p as usize]) == m);
    let first = order.next();
    let last = order.next_back().or(first);
    let named = |p: Option<&u32>| p.map_or(String::new(), |p| node(p).name.to_string());
    (named(first), named(last))
}

fn part(placed: &Placement, parts: &Partition, bodies: &[BodySummary], m: usize) -> PartSummary {
    let (worker, usage) = (&placed.team.workers[m], &placed.usage[m]);
    let program = &parts.programs[m];
    let within = bodies.iter().flat_map(|b| &b.parts);
    let within = || within.clone().filter(|p| p.worker == worker.name);
    let (mut first_node, mut last_node) = extent(placed, m);
    if let (Some(first), Some(last), true) =
        (within().next(), within().next_back(), first_node.is_empty())
    {
        (first_node, last_node) = (first.first_node.clone(), last.last_node.clone());
    }
    let host = (
        usage.needed,
        worker.host.offered,
        free(&worker.host, usage.needed, &usage.beyond),
    );
    let device = &usage.device;
    let device = worker.device_memory.as_ref().map_or(host, |own| {
        (
            device.needed,
            own.offered,
            free(own, device.needed, &device.beyond),
        )
    });
    PartSummary {
        name: worker.name.clone(),
        address: worker.address.clone(),
        device: worker.device.clone(),
        profile: worker.profile.to_string(),
        threads: worker.threads,
        nodes: program.nodes.len() as u32 - program.init_nodes
            + within().map(|p| p.nodes).sum::<u32>(),
        first_node,
        last_node,
        weights_bytes: usage.weights,
        artifact_bytes: usage.artifacts,
        activation_bytes: usage.activations,
        needed_bytes: host.0,
        memory: host.1,
        free: host.2,
        device_needed_bytes: device.0,
        device_memory: device.1,
        device_free: device.2,
        peak_bytes: placed.peaks[m],
        step_ns: placed.schedule.busy_ns[m],
    }
}

/// The bytes of a memory that are free for a part, among which count the constants of the part that are there already.
fn free(memory: &MemoryModel, needed: u64, beyond: &Need) -> u64 {
    let present = needed.saturating_sub(beyond.memory);
    let paid = needed.saturating_sub(beyond.budget);
    let there = memory.free.saturating_add(present);
    there.min(memory.budget.saturating_add(paid))
}

/// Summarises how many nodes of each pin run on each worker.
fn pins(placed: &Placement) -> Vec<PinSummary> {
    let each = placed.pins.each().map(|(pin, positions)| {
        let mut nodes = vec![0u32; placed.team.size()];
        for p in positions {
            nodes[usize::from(placed.participant[p])] += 1;
        }
        let workers = placed.team.workers.iter().zip(nodes);
        let used = workers.filter(|(_, nodes)| *nodes > 0);
        PinSummary {
            pattern: pin.pattern.clone(),
            devices: pin.devices.to_string(),
            parts: used
                .map(|(w, nodes)| PinPart {
                    worker: w.name.clone(),
                    nodes,
                })
                .collect(),
        }
    });
    each.collect()
}

/// Summarises what runs where because of the stages of the model's file.
fn stages(placed: &Placement) -> Vec<StageSummary> {
    let each = placed.pins.stages().map(|(stage, positions)| StageSummary {
        device: stage.device.clone(),
        worker: stage.worker.clone(),
        nodes: positions.count() as u32,
    });
    each.collect()
}

/// The names of the nodes that each participant runs in a step.
pub fn names(placed: &Placement) -> Vec<Vec<String>> {
    let mut names = vec![vec![]; placed.team.size()];
    for (node, participant) in placed.work.steps.iter().zip(&placed.participant) {
        let name = &placed.function.nodes[*node as usize].name;
        names[usize::from(*participant)].push(name.to_string());
    }
    names
}

fn warnings(placed: &Placement) -> Vec<String> {
    let idle =
        |p: &str| format!("the pin '{p}' has no effect: what it names does not run in a step");
    let mut warnings: Vec<String> = placed.pins.without_effect().map(idle).collect();
    warnings.extend(elsewhere(placed.pins.stages().map(|(stage, _)| stage)));
    let used = placed.team.size();
    if let WorkerCount::Exactly(n) = placed.asked
        && n as usize > used
    {
        let reason = idle_because(
            placed.work.positions(),
            used,
            placed.pins.each().next().is_some(),
            placed.pins.stages().next().is_some(),
        );
        warnings.push(format!(
            "{used} of the {n} workers that were asked for are used: {reason}"
        ));
    }
    warnings
}

/// Why only `used` workers run some of the `nodes` of a step. `pinned` says whether there are pins, and `staged`
/// whether the model's file divides it into stages.
fn idle_because(nodes: usize, used: usize, pinned: bool, staged: bool) -> String {
    let placing = match (pinned, staged) {
        _ if nodes == 0 => return "no node of the model runs in a step".into(),
        _ if nodes == 1 => return "the model has 1 node after optimisation".into(),
        _ if nodes == used => return format!("the model has {nodes} nodes after optimisation"),
        (true, true) => "pins and the stages of the model's file leave",
        (true, false) => "pins leave",
        (false, true) => "the stages of the model's file leave",
        (false, false) => "nodes that must run together, or on certain workers, leave",
    };
    format!("{placing} the others nothing to run")
}

/// Says which devices that the model's file names its stages do not run on, and why.
fn elsewhere<'a>(stages: impl Iterator<Item = &'a PlacedStage>) -> Vec<String> {
    let (mut unknown, mut unused) = (vec![], vec![]);
    for stage in stages {
        let Some(device) = stage.device.as_deref() else {
            continue;
        };
        match &stage.named {
            None => unknown.push(device),
            Some(worker) if *worker != stage.worker => unused.push(device),
            Some(_) => {}
        }
    }
    let told = [
        (unknown, "are no workers", "run on workers in order"),
        (
            unused,
            "are more workers than the plan may use",
            "share those that it uses",
        ),
    ];
    let told = told.into_iter().filter_map(|(devices, what, then)| {
        Some(format!(
            "{} of the devices that the model's file names {what} ('{}' is the first): their stages {then}",
            devices.len(),
            Printable(devices.first()?)
        ))
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_workers_are_explained() {
        let check = |nodes, used, pinned, staged, want: &str| {
            let got = idle_because(nodes, used, pinned, staged);
            assert!(got.starts_with(want), "{got}");
        };
        check(0, 1, false, false, "no node of the model runs");
        check(1, 1, true, true, "the model has 1 node");
        check(2, 2, false, false, "the model has 2 nodes");
        check(6, 2, true, false, "pins leave");
        check(6, 2, false, true, "the stages of the model's file leave");
        check(6, 2, true, true, "pins and the stages");
        check(6, 2, false, false, "nodes that must run together");
    }

    #[test]
    fn a_device_is_said_to_be_unknown_or_unused() {
        let stage = |device: &str, named: Option<&str>| PlacedStage {
            device: Some(device.into()),
            worker: "w0".into(),
            named: named.map(str::to_owned),
            index: 0,
        };
        let stages = [
            stage("gpu", None),
            stage("w0", Some("w0")),
            stage("w1/cpu:0", Some("w1")),
        ];
        let told = elsewhere(stages.iter());
        let [unknown, unused] = &told[..] else {
            panic!("{told:?}");
        };
        assert!(unknown.contains("no workers ('gpu'"), "{unknown}");
        assert!(unused.contains("may use ('w1/cpu:0'"), "{unused}");
        assert!(elsewhere(stages[1..2].iter()).is_empty());
    }
}
