//! Tests of pins, and of the stages of a model's file.

use convoke_common::rpc::Stage;

use crate::testing::gelu_of_one_branch;

use super::*;

#[test]
fn pins_hold_and_must_match() {
    let f = chain(8, 64);
    let c = cluster(3, 100 * MIB);
    let pinned = |pins: &[(&str, &str)], workers| PlanOptions {
        pins: pins
            .iter()
            .map(|(p, w)| (p.to_string(), w.to_string()))
            .collect(),
        ..options(&f, workers)
    };
    let o = pinned(&[("x1", "w2"), ("x*", "w1")], WorkerCount::Auto);
    let placed = check(&f, &c, &o);
    assert_eq!(placed.team.indices, [1, 2]);
    assert_eq!(placed.participant, [1, 0, 0, 0, 0, 0, 0, 0]);
    let o = pinned(&[("x4", "w1")], WorkerCount::Exactly(2));
    assert_eq!(
        check(&f, &c, &o).team.workers[usize::from(check(&f, &c, &o).participant[3])].name,
        "w1"
    );
    let o = pinned(&[("x1", "w2"), ("nothing*", "w1")], WorkerCount::Auto);
    assert!(check(&f, &c, &o).pins.without_effect().eq(["nothing*"]));
    let e = super::super::check_pins(&f, &o.pins).unwrap_err();
    assert!(e.message.contains("'nothing*' matches no node"), "{e}");
    let near = [("x7*/Relu".to_owned(), "w1".to_owned())];
    let e = super::super::check_pins(&f, &near).unwrap_err();
    assert!(e.advice.contains("begin as it does: x7, "), "{e}");
    let e = failure(&f, &c, &pinned(&[("x1", "w9")], WorkerCount::Auto));
    assert!(
        e.message.contains("'w9'") && e.advice.contains("w0, w1, w2"),
        "{e}"
    );
}

/// Places a chain of eight nodes under these pins and returns the worker of each node.
fn workers_of(c: &ClusterModel, pins: &[(&str, &str)], workers: WorkerCount) -> Vec<String> {
    let f = chain(8, 64);
    let pins = pins.iter().map(|(p, d)| (p.to_string(), d.to_string()));
    let o = PlanOptions {
        pins: pins.collect(),
        ..options(&f, workers)
    };
    let placed = check(&f, c, &o);
    let of = |m: &u16| placed.team.workers[usize::from(*m)].name.clone();
    placed.participant.iter().map(of).collect()
}

#[test]
fn a_pin_to_several_workers_leaves_a_choice_among_them() {
    let mut c = cluster(4, 100 * MIB);
    // Without pins, the plan would use the fastest worker, which the pins exclude.
    for (worker, times) in [(0, 8.0), (2, 4.0)] {
        c.workers[worker].device_speed.flops *= times;
        c.workers[worker].device_speed.memory_bandwidth *= times;
    }
    let auto = WorkerCount::Auto;
    assert_eq!(workers_of(&c, &[], auto), ["w0"; 8]);
    for all in ["*", "cpu", "w*", "w*/cpu:0", "kind:cpu"] {
        assert_eq!(workers_of(&c, &[("*", all)], auto), ["w0"; 8], "{all}");
    }
    c.workers[1].name = "big1".into();
    c.workers[2].name = "big2".into();
    assert_eq!(workers_of(&c, &[("*", "big*")], auto), ["big2"; 8]);
    assert_eq!(workers_of(&c, &[("x4", "big*")], auto), ["big2"; 8]);
    // A pin whose set holds all workers exempts its nodes from later pins.
    let on = workers_of(&c, &[("x4", "cpu"), ("x*", "w3")], auto);
    assert!(
        on.iter().enumerate().all(|(i, w)| i == 3 || w == "w3"),
        "{on:?}"
    );
    // Two pins whose sets have no worker in common need two workers.
    let on = workers_of(&c, &[("x1", "big*"), ("x8", "w*")], auto);
    assert!(on[0].starts_with("big") && on[7].starts_with('w'), "{on:?}");
    let on = workers_of(&c, &[("x1", "big*")], WorkerCount::Exactly(4));
    assert!(on[0].starts_with("big"), "{on:?}");
}

#[test]
fn workers_that_pins_leave_nothing_are_not_used() {
    let mut c = cluster(3, 100 * MIB);
    let pins = [("x1", "w0"), ("x*", "w2")];
    let used = workers_of(&c, &pins, WorkerCount::Exactly(3));
    assert_eq!(used[0], "w0");
    assert!(used[1..].iter().all(|w| w == "w2"), "{used:?}");
    let used = workers_of(&c, &[("x*", "w1")], WorkerCount::Exactly(3));
    assert!(used.iter().all(|w| w == "w1"), "{used:?}");
    c.workers[2].name = "other".into();
    let used = workers_of(&c, &[("x*", "w*")], WorkerCount::Exactly(3));
    assert_eq!((&*used[0], &*used[7]), ("w0", "w1"), "{used:?}");
}

/// The worker of each node of a chain of eight whose nodes `x1` to `x4` are the first stage, and `x5` to `x7` the
/// second.
fn staged(devices: [Option<&str>; 2], pins: &[(&str, &str)], workers: WorkerCount) -> String {
    let f = chain(8, 64);
    let c = cluster(3, 100 * MIB);
    let nodes = [1..=4, 5..=7].map(|each| each.map(|n| format!("x{n}")).collect());
    let stages = devices.into_iter().zip(nodes);
    let is_pinned = !pins.is_empty();
    let pins = pins.iter().map(|(p, d)| (p.to_string(), d.to_string()));
    let o = PlanOptions {
        pins: pins.collect(),
        stages: stages
            .map(|(device, nodes)| Stage {
                device: device.map(str::to_owned),
                nodes,
            })
            .collect(),
        ..options(&f, workers)
    };
    let placed = check(&f, &c, &o);
    let of = |m: &u16| &*placed.team.workers[usize::from(*m)].name;
    let used: Vec<&str> = placed.participant.iter().take(7).map(of).collect();
    let (first, second) = (used[0], used[4]);
    assert!(
        is_pinned || used[..4].iter().all(|w| *w == first),
        "{used:?}"
    );
    assert!(
        is_pinned || used[4..].iter().all(|w| *w == second),
        "{used:?}"
    );
    format!("{first} {second}")
}

#[test]
fn stages_run_on_the_workers_that_they_name_or_in_order() {
    let check = |devices, pins: &[(&str, &str)], workers, want| {
        assert_eq!(staged(devices, pins, workers), want, "{devices:?}");
    };
    let auto = WorkerCount::Auto;
    check([None, None], &[], auto, "w0 w1");
    check([Some("w2"), Some("w1/cpu:0")], &[], auto, "w2 w1");
    // Names of other devices, and of several, say nothing.
    check([Some("cuda:0"), Some("w*")], &[], auto, "w0 w1");
    check(
        [Some("w2"), Some("gpu")],
        &[],
        WorkerCount::Exactly(2),
        "w2 w0",
    );
    check([None, Some("w0")], &[], auto, "w1 w0");
    // Stages share the workers of a plan for fewer of them.
    check([Some("w2"), None], &[], WorkerCount::Exactly(1), "w2 w2");
    check(
        [Some("w2"), Some("w1")],
        &[],
        WorkerCount::Exactly(1),
        "w2 w2",
    );
    check([None, None], &[], WorkerCount::Exactly(1), "w0 w0");
    // Pins come first.
    check([None, None], &[("x5", "w2")], auto, "w0 w2");
}

/// A node that the optimiser makes of several nodes of a stage is in the stage as well, and does not move into a
/// branch.
#[test]
fn a_node_that_is_made_of_staged_ones_stays_in_its_stage() {
    let f = gelu_of_one_branch();
    let nodes = ["a", "b", "d", "e", "h"].map(str::to_owned);
    let o = PlanOptions {
        stages: vec![Stage {
            device: Some("w1".into()),
            nodes: nodes.to_vec(),
        }],
        list_nodes: true,
        ..options(&f, WorkerCount::Auto)
    };
    let planned = crate::plan::plan(f, &cluster(2, 100 * MIB), &o).unwrap();
    let gelu = planned
        .nodes
        .iter()
        .flatten()
        .any(|n| n.split('+').any(|part| part == "b"));
    assert!(gelu, "{:?}", planned.nodes);
}

#[test]
fn a_stage_may_have_nodes_that_are_named_like_fused_ones() {
    let mut f = chain(8, 64);
    f.nodes[4].name = "x1+x6".into();
    let stages = [["x1", "w1"], ["x1+x6", "w2"]].map(|[node, device]| Stage {
        device: Some(device.into()),
        nodes: vec![node.into()],
    });
    let o = PlanOptions {
        stages: stages.to_vec(),
        ..options(&f, WorkerCount::Auto)
    };
    let placed = check(&f, &cluster(3, 100 * MIB), &o);
    let at = |p: usize| &*placed.team.workers[usize::from(placed.participant[p])].name;
    assert_eq!((at(0), at(4)), ("w1", "w2"));
}

#[test]
fn a_pin_says_where_its_nodes_run() {
    let f = chain(8, 64);
    let c = cluster(3, 100 * MIB);
    let pins = [("x1", "w*"), ("x8", "w2/cpu:0")];
    let o = PlanOptions {
        pins: pins.map(|(p, d)| (p.to_string(), d.to_string())).to_vec(),
        ..options(&f, WorkerCount::Auto)
    };
    let placed = check(&f, &c, &o);
    let each = placed
        .pins
        .each()
        .map(|(pin, at)| (pin.devices.to_string(), at.collect()));
    let each: Vec<(String, Vec<usize>)> = each.collect();
    assert_eq!(each, [("w*".into(), vec![0]), ("w2/cpu:0".into(), vec![7])]);
}

#[test]
fn a_worker_that_does_not_hold_its_pinned_nodes_is_named_with_what_it_must_offer() {
    let f = chain(8, 512);
    let at = |memory: u64, others: u64, pins: &[(&str, &str)]| {
        let pins = pins.iter().map(|(p, d)| (p.to_string(), d.to_string()));
        let o = PlanOptions {
            pins: pins.collect(),
            ..options(&f, WorkerCount::Auto)
        };
        let mut c = cluster(3, others);
        c.workers[1].host = MemoryModel::idle(memory);
        place(f.clone(), &c, &o)
    };
    let all = [("*", "w1")];
    let e = at(5 * MIB, 64 * MIB, &all).unwrap_err();
    assert_eq!(e.code, Code::ClusterTooSmall);
    let advice = "for the nodes pinned on them, these workers must offer: w1 8.2 MiB (raise --memory there, or pin fewer nodes)";
    assert_eq!(e.advice, advice);
    // Following the advice is enough.
    assert!(at(8 * MIB + MIB / 4, MIB, &all).is_ok());
    // Where the pinned nodes fit, the advice is on the whole.
    let e = at(2 * MIB, 2 * MIB, &[("x1", "w1")]).unwrap_err();
    assert!(e.advice.ends_with("; pins may be in the way"), "{e}");
}
