//! Properties of placements.

mod devices;
mod pins;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use convoke_common::rpc::WorkerKernels;
use convoke_graph::DType;
use convoke_graph::graph::Literal;
use convoke_graph::ops::{CustomOp, DTypeSet, KernelSet};

use super::*;
use crate::testing::{cluster, options, parse, parse_with, random};

const MIB: u64 = 1 << 20;

/// Returns a chain of `layers` matrix products with `side` × `side` weights.
fn chain(layers: usize, side: usize) -> Function {
    let mut text = format!("param x0: f32[4, {side}]\n");
    for i in 0..layers {
        text += &format!(
            "weight w{i}: f32[{side}, {side}]\nx{} = MatMul(x{i}, w{i})\n",
            i + 1
        );
    }
    parse(&format!("{text}result x{layers}"))
}

/// Places `f` and checks properties that hold for every placement.
fn check(f: &Function, cluster: &ClusterModel, options: &PlanOptions) -> Placement {
    let placed = place(f.clone(), cluster, options).unwrap();
    assert_eq!(placed.participant.len(), placed.work.positions());
    let used = |m: usize| placed.participant.iter().any(|at| usize::from(*at) == m);
    assert!(
        placed.work.positions() == 0 || (0..placed.team.size()).all(used),
        "{:?}",
        placed.participant
    );
    for (usage, worker) in placed.usage.iter().zip(&placed.team.workers) {
        assert!(worker.holds(usage), "{usage:?} on {}", worker.name);
    }
    let again = place(f.clone(), cluster, options).unwrap();
    assert_eq!(again.participant, placed.participant);
    placed
}

fn failure(f: &Function, cluster: &ClusterModel, options: &PlanOptions) -> Error {
    place(f.clone(), cluster, options).unwrap_err()
}

#[test]
fn exactly_n_is_balanced_along_a_chain() {
    let f = chain(12, 64);
    for n in 1..=5 {
        let placed = check(
            &f,
            &cluster(6, 100 * MIB),
            &options(&f, WorkerCount::Exactly(n)),
        );
        assert_eq!(placed.team.size(), n as usize);
        assert!(
            placed.participant.windows(2).all(|w| w[0] <= w[1]),
            "{:?}",
            placed.participant
        );
        let count = |m: u16| placed.participant.iter().filter(|at| **at == m).count();
        let counts: Vec<usize> = (0..n as u16).map(count).collect();
        assert!(
            counts
                .iter()
                .all(|c| *c >= 12 / n as usize && *c <= 12usize.div_ceil(n as usize)),
            "{counts:?}"
        );
    }
}

#[test]
fn auto_takes_the_fewest_that_fit() {
    // The chain has twelve weights of 1 MiB.
    let f = chain(12, 512);
    for (memory, want) in [(100, 1), (9, 2), (6, 3), (4, 4)] {
        let placed = check(
            &f,
            &cluster(6, memory * MIB),
            &options(&f, WorkerCount::Auto),
        );
        assert_eq!(placed.team.size(), want, "{memory} MiB");
    }
}

#[test]
fn branches_spread_where_links_are_fast() {
    let mut text = String::from("param x: f32[512, 512]\nweight w: f32[512, 512]\n");
    for b in 0..2 {
        text += &format!("b{b}s0 = MatMul(x, w)\n");
        for i in 0..6 {
            text += &format!("b{b}s{} = MatMul(b{b}s{i}, w)\n", i + 1);
        }
    }
    let f = parse(&format!("{text}y = Add(b0s6, b1s6)\nresult y"));
    let mut fast = cluster(2, 100 * MIB);
    let link = LinkSpeed {
        latency_ns: 1_000,
        bandwidth: 1e11,
    };
    fast.set_link(0, 1, link);
    fast.set_link(1, 0, link);
    let placed = check(&f, &fast, &options(&f, WorkerCount::Auto));
    assert_eq!(placed.team.size(), 2);
    assert!(placed.schedule.step_ns * 10 < placed.single_ns.unwrap() * 7);
    // Over links of the assumed speed the second worker does not pay.
    let mut slow = cluster(2, 100 * MIB);
    for (a, b) in [(0, 1), (1, 0)] {
        slow.set_link(
            a,
            b,
            LinkSpeed {
                latency_ns: 100_000_000,
                bandwidth: 1e6,
            },
        );
    }
    assert_eq!(
        check(&f, &slow, &options(&f, WorkerCount::Auto))
            .team
            .size(),
        1
    );
}

#[test]
fn faster_workers_get_more() {
    let f = chain(30, 256);
    let mut c = cluster(2, 100 * MIB);
    for w in &mut c.workers[1..] {
        w.device_speed.flops *= 4.0;
        w.device_speed.memory_bandwidth *= 4.0;
    }
    let placed = check(&f, &c, &options(&f, WorkerCount::Exactly(2)));
    let on_slow = placed.participant.iter().filter(|m| **m == 0).count();
    assert!(
        (3..=9).contains(&on_slow),
        "{on_slow} of 30 on the slow worker"
    );
}

#[test]
fn small_memories_get_less() {
    let f = chain(12, 512);
    let mut c = cluster(3, 9 * MIB);
    c.workers[1].host = MemoryModel::idle(4 * MIB);
    check(&f, &c, &options(&f, WorkerCount::Exactly(3)));
}

#[test]
fn errors_say_what_would_fit() {
    let f = chain(12, 512);
    let o = options(&f, WorkerCount::Auto);
    let e = failure(&f, &cluster(2, 5 * MIB), &o);
    assert_eq!(e.code, Code::ClusterTooSmall);
    assert!(
        e.message
            .starts_with("the model needs 12.1 MiB: 12.0 MiB of weights"),
        "{e}"
    );
    assert!(
        e.message.contains("w0 offers 5.0 MiB, w1 offers 5.0 MiB"),
        "{e}"
    );
    assert!(
        e.advice.contains("3 workers that offer 4.1 MiB each"),
        "{e}"
    );
    assert!(
        e.advice.contains("2 workers that offer 6.1 MiB each"),
        "{e}"
    );
    assert_eq!(failure(&f, &cluster(0, 1), &o).code, Code::NoWorkers);
    assert_eq!(
        failure(
            &f,
            &cluster(2, 99 * MIB),
            &options(&f, WorkerCount::Exactly(3))
        )
        .code,
        Code::NoWorkers
    );
}

#[test]
fn no_more_workers_are_used_than_there_are_nodes() {
    let f = chain(12, 512);
    let placed = check(
        &f,
        &cluster(20, 99 * MIB),
        &options(&f, WorkerCount::Exactly(13)),
    );
    assert_eq!(placed.team.size(), 12);
}

#[test]
fn advice_is_true() {
    let f = chain(12, 512);
    let three = cluster(3, 5 * MIB);
    check(&f, &three, &options(&f, WorkerCount::Auto));
    check(
        &f,
        &cluster(2, 6 * MIB + MIB / 4),
        &options(&f, WorkerCount::Auto),
    );
}

#[test]
fn light_chains_move_to_their_reader() {
    let mut text = String::from("param x0: f32[n, 64]\nparam t: f32[1]\nweight w: f32[64, 64]\n");
    text += "a = Sqrt(t)\nb = Tanh(a)\nc = Exp(b)\n";
    for i in 0..40 {
        text += &format!("x{} = MatMul(x{i}, w)\n", i + 1);
    }
    let f = parse(&format!("{text}y = Mul(x40, c)\nresult y"));
    let placed = check(
        &f,
        &cluster(2, 100 * MIB),
        &options(&f, WorkerCount::Exactly(2)),
    );
    let last = *placed.participant.last().unwrap();
    assert_eq!(
        placed.participant[..3],
        [last; 3],
        "{:?}",
        placed.participant
    );
    assert_eq!(placed.participant[3], 1 - last);
}

#[test]
fn more_steps_in_flight_need_more() {
    let f = parse("param x: f32[1024, 256]\ny = Tanh(x)\nz = Add(x, y)\nresult z");
    let mut o = options(&f, WorkerCount::Auto);
    let one = check(&f, &cluster(1, 100 * MIB), &o).usage[0];
    o.in_flight = 3;
    let three = check(&f, &cluster(1, 100 * MIB), &o).usage[0];
    assert_eq!(three.activations, one.activations);
    assert_eq!(three.needed, one.weights + 3 * one.activations);
}

#[test]
fn random_graphs_are_placed_on_any_number() {
    for seed in 0..60 {
        let f = random(seed, 40);
        let n = 1 + seed as u32 % 5;
        let mut o = options(&f, WorkerCount::Exactly(n));
        o.in_flight = 1 + seed as u32 % 3;
        check(&f, &cluster(5, 100 * MIB), &o);
        o.workers = WorkerCount::Auto;
        check(&f, &cluster(5, 100 * MIB), &o);
    }
}

#[test]
fn times_are_of_the_expected_sizes_and_memory_of_the_bounds() {
    let f = parse(
        "param x: f32[rows, 1024]\nweight w: f32[1024, 1024]\ny = MatMul(x, w)\nz = Tanh(y)\nresult z",
    );
    let mut o = options(&f, WorkerCount::Auto);
    o.axes.bounds[0].1 = 8192;
    let at_bounds = check(&f, &cluster(1, 200 * MIB), &o);
    o.expected = vec![("rows".into(), 1024), ("unknown".into(), 7)];
    let expected = check(&f, &cluster(1, 200 * MIB), &o);
    assert_eq!(expected.usage, at_bounds.usage);
    let busy = expected.schedule.busy_ns[0];
    let times = busy * 7..busy * 9;
    assert!(
        times.contains(&at_bounds.schedule.busy_ns[0]),
        "{times:?} {:?}",
        at_bounds.schedule.busy_ns
    );
    // The peak consists of the weights, operand and product at once, and the transport's copies of operand and result.
    assert_eq!(at_bounds.peaks, [4 * MIB + 2 * 32 * MIB + 8 * MIB]);
    assert_eq!(expected.peaks, [4 * MIB + 2 * 4 * MIB + 8 * MIB]);
    // An expected size above the bound counts as the bound.
    o.expected = vec![("rows".into(), 1 << 40)];
    assert_eq!(check(&f, &cluster(1, 200 * MIB), &o).peaks, at_bounds.peaks);
}

#[test]
fn sizes_that_data_decides_do_not_grow_where_they_meet() {
    let mut text = String::from("param x: f32[1024]\na0 = NonZero(x)\n");
    for i in 0..60 {
        text += &format!("b{i} = Neg(a{i})\na{} = Add(a{i}, b{i})\n", i + 1);
    }
    let f = parse(&format!("{text}result a60"));
    let placed = check(&f, &cluster(1, 100 * MIB), &options(&f, WorkerCount::Auto));
    assert!(placed.usage[0].activations < MIB, "{:?}", placed.usage);
}

#[test]
fn chunks_count_as_often_as_they_are_asked_for() {
    // The chain's 16 weights lie in the file in the order of their use, or are read from its two halves in turn.
    let asks = |side: usize, scattered: bool, expected: u64| {
        let mut f = chain(16, side);
        let weight = (side * side * 4) as u64;
        for (i, (_, literal)) in (0u64..).zip(&mut f.literals) {
            let at = if scattered { i % 2 * 8 + i / 2 } else { i };
            if let Literal::Range { offset, .. } = literal {
                *offset = at * weight;
            }
        }
        let mut c = cluster(1, 100 * MIB);
        c.workers[0].load_buffer = 64 * MIB;
        let placed = check(&f, &c, &options(&f, WorkerCount::Auto));
        let usage = placed.usage[0];
        assert_eq!(usage.artifacts, 16 * weight);
        assert_eq!(usage.chunks, expected * MIB);
        let coming = usage.chunks.min(8 * MIB);
        assert_eq!(placed.peaks, [usage.loading + coming / 4 * 5]);
    };
    asks(256, false, 4);
    asks(256, true, 16);
    // Small weights come with a chunk that was requested before.
    asks(128, false, 1);
    asks(128, true, 1);
    asks(160, false, 2);
    asks(160, true, 12);
}

#[test]
fn weights_on_their_way_count_towards_the_peak_alone() {
    // The weights are 1 MiB each and used in their stored form.
    let f = chain(12, 512);
    for (load_buffer, peak) in [(0, 12), (4 * MIB, 17), (64 * MIB, 22)] {
        let mut c = cluster(1, 100 * MIB);
        c.workers[0].load_buffer = load_buffer;
        let placed = check(&f, &c, &options(&f, WorkerCount::Auto));
        let over = placed.peaks[0] - peak * MIB;
        assert!(over < MIB / 8, "{load_buffer}: {:?}", placed.peaks);
        assert!(placed.usage[0].needed < 12 * MIB + MIB / 8);
    }
}

#[test]
fn what_a_session_lends_takes_none_of_the_steps_memory() {
    let bytes = |lent: bool| {
        let source = match lent {
            true => "param n: u64[]\nx = HandleIn(n) {dtype=@f32; dims=[\"1024\"]}",
            false => "param x: f32[1024]",
        };
        let f = parse(&format!("{source}\nz = ReduceSum(x)\nresult z"));
        let placed = check(&f, &cluster(1, 1 << 20), &options(&f, WorkerCount::Auto));
        placed.usage[0].activations
    };
    assert_eq!(bytes(false), bytes(true) + 4096);
}

#[test]
fn only_what_kernels_overwrite_takes_no_further_memory() {
    let check = |node: &str, tensors: u64| {
        let f = parse(&format!("param x: f32[1024]\nz = {node}\nresult z"));
        let placed = check(&f, &cluster(1, 1 << 20), &options(&f, WorkerCount::Auto));
        assert_eq!(placed.usage[0].activations, tensors * 4096, "{node}");
    };
    check("Neg(x)", 1);
    check("Softmax(x)", 2);
    // What a node reads twice is not overwritten.
    check("Mul(x, x)", 2);
}

/// A worker orders its program so, and the memory of its steps is predicted in this order.
#[test]
fn one_worker_runs_the_most_urgent_node_that_can_run() {
    for seed in 0..20 {
        let f = random(seed, 60);
        let placed = check(&f, &cluster(1, 1 << 30), &options(&f, WorkerCount::Auto));
        let (work, schedule) = (&placed.work, &placed.schedule);
        let mut waiting: BTreeSet<u32> = (0..work.positions() as u32).collect();
        for next in &schedule.order {
            let comes_later = |v: &u32| waiting.contains(&work.writer[*v as usize]);
            let can_run = |p: &&u32| !work.reads.row(**p as usize).iter().any(comes_later);
            let urgency = |p: &&u32| (schedule.priority[**p as usize], Reverse(**p));
            let most_urgent = waiting.iter().filter(can_run).max_by_key(urgency);
            assert_eq!(most_urgent, Some(next), "seed {seed}");
            waiting.remove(next);
        }
        assert!(waiting.is_empty());
    }
}

#[test]
fn what_a_kernel_widens_is_there_in_both_dtypes() {
    let in_a_loop = |op: &str| {
        let body = format!(
            "param i: i64[]\n param go: bool[]\n param a: f16[64, 64]
             b = Add(a, a)\n c = {op}(b, b)\n result go\n result c"
        );
        let text = "param m: i64[]\nparam x: f16[64, 64]\ny = Loop(m, _, x) {body=&body}\nresult y";
        let f = parse_with(text, &[("body", &parse(&body))]);
        let placed = check(&f, &cluster(1, 1 << 20), &options(&f, WorkerCount::Auto));
        placed.usage[0].activations
    };
    let check = |op: &str, want: u64| {
        let text = format!("param x: f16[64, 64]\nparam y: f16[64, 64]\nz = {op}(x, y)\nresult z");
        let f = parse(&text);
        let placed = check(&f, &cluster(1, 1 << 20), &options(&f, WorkerCount::Auto));
        assert_eq!(placed.usage[0].activations, want, "{op}");
    };
    const HALVES: u64 = 2 * 64 * 64;
    // A sum takes the place of an operand.
    check("Add", 2 * HALVES);
    check("MatMul", 3 * HALVES + 3 * 2 * HALVES);
    assert_eq!(in_a_loop("MatMul") - in_a_loop("Mul"), 3 * 2 * HALVES);
}

/// Returns a [`chain`] with a custom op for the products at these indices.
fn custom_chain(layers: usize, side: usize, at: &[usize]) -> Function {
    let mut f = chain(layers, side);
    for i in at {
        f.nodes[*i].op = "test.Product".into();
    }
    f.verify().unwrap();
    f
}

fn product(fingerprint: u64) -> CustomOp {
    CustomOp {
        name: "test.Product".into(),
        fingerprint,
    }
}

/// Returns a cluster in which only these workers have [`product`].
fn able(n: usize, memory: u64, able: &[usize]) -> ClusterModel {
    let mut c = cluster(n, memory);
    able.iter()
        .for_each(|w| c.workers[*w].ops = vec![product(1)]);
    c
}

#[test]
fn custom_ops_run_where_their_kernel_is() {
    let check = |f: &Function, c: &ClusterModel, workers, at: &[usize]| {
        let o = PlanOptions {
            ops: vec![product(1)],
            ..options(f, workers)
        };
        let placed = check(f, c, &o);
        for p in at {
            let worker = &placed.team.workers[usize::from(placed.participant[*p])];
            assert_eq!(worker.ops, [product(1)], "{:?}", placed.participant);
        }
        placed.team.indices
    };
    for at in [
        &[0][..],
        &[11],
        &[2, 3, 9],
        &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    ] {
        let f = custom_chain(12, 64, at);
        for who in [&[0][..], &[2], &[1, 3], &[0, 1, 2, 3]] {
            let c = able(4, 100 * MIB, who);
            let team = check(&f, &c, WorkerCount::Auto, at);
            assert!(who.contains(&team[0]) && team.len() == 1, "{team:?}");
            // If all nodes need one of some workers, the other workers have nothing to do.
            let most = if at.len() == 12 { who.len() } else { 4 };
            for n in 1..=most {
                let team = check(&f, &c, WorkerCount::Exactly(n as u32), at);
                assert_eq!(team.len(), n);
            }
        }
    }
    // The chain is cut into halves of 6 MiB; the half with the custom op goes to the worker that has it.
    let f = custom_chain(12, 512, &[3]);
    let c = able(3, 9 * MIB, &[2]);
    let team = check(&f, &c, WorkerCount::Auto, &[3]);
    assert_eq!((team.len(), team[1]), (2, 2));
}

#[test]
fn a_custom_op_that_no_worker_has_is_named() {
    let f = custom_chain(4, 64, &[1, 2]);
    let check = |c: &ClusterModel, ops: &[CustomOp], pins: &[(&str, &str)], want: &str| {
        let pins = pins.iter().map(|(p, w)| (p.to_string(), w.to_string()));
        let o = PlanOptions {
            ops: ops.to_vec(),
            pins: pins.collect(),
            ..options(&f, WorkerCount::Auto)
        };
        let e = failure(&f, c, &o);
        assert_eq!(e.code, Code::UnsupportedOp);
        let text = format!("{}; {}", e.message, e.advice);
        assert!(text.contains(want), "{text}");
    };
    check(
        &cluster(2, 100 * MIB),
        &[product(1)],
        &[],
        "no worker has a kernel of the op 'test.Product', which 'x2', 'x3' need; there are: w0, w1",
    );
    let c = able(2, 100 * MIB, &[1]);
    check(
        &c,
        &[product(2)],
        &[],
        "another definition of it is that of w1",
    );
    check(
        &c,
        &[product(1)],
        &[("x3", "w0")],
        "node 'x3' is to run on worker w0, which has no kernel of its op 'test.Product'",
    );
    let c3 = able(3, 100 * MIB, &[1]);
    check(
        &c3,
        &[product(1)],
        &[("x3", "w0"), ("x2", "w*")],
        "node 'x3' is to run on worker w0, which has no kernel of its op 'test.Product'",
    );
    let mut named = c3.clone();
    named.workers[0].name = "a0".into();
    named.workers[2].name = "a2".into();
    check(
        &named,
        &[product(1)],
        &[("x3", "a*")],
        "node 'x3' is to run on workers of which none has a kernel of its op 'test.Product'; w1 have it",
    );
    // A caller that does not state its definition of the op accepts any definition.
    let placed = place(f.clone(), &c, &options(&f, WorkerCount::Auto)).unwrap();
    assert_eq!(placed.team.indices, [1]);
    let mut two = custom_chain(4, 64, &[1, 2]);
    two.nodes[2].op = "test.Other".into();
    let mut c = able(2, 100 * MIB, &[1]);
    c.workers[0].ops = vec![CustomOp {
        name: "test.Other".into(),
        fingerprint: 0,
    }];
    let placed = super::place(two.clone(), &c, &options(&two, WorkerCount::Auto)).unwrap();
    assert_eq!(placed.participant[1..3], [1, 0]);
    let e = failure(&two, &c, &options(&two, WorkerCount::Exactly(1)));
    assert!(e.message.contains("need 2 workers"), "{e}");
}

#[test]
fn what_is_handed_out_stays_beside_what_computes_it() {
    let mut text = String::from("param x0: f32[4, 64]\nparam n: u64[]\n");
    for i in 0..12 {
        text += &format!(
            "weight w{i}: f32[64, 64]\nx{next} = MatMul(x{i}, w{i})\ny{i} = Tanh(x{next})\n",
            next = i + 1
        );
    }
    for i in 0..12 {
        text += &format!("z{i} = HandleOut(y{i}, n)\nresult z{i}\n");
    }
    let f = parse(&text);
    // This holds for any speed of the links: transfers that cost nearly nothing, or more than all the computation.
    for (latency_ns, bandwidth) in [(0, 1e15), (1_000, 1e10), (1_000_000, 1e6)] {
        for n in 1..=4 {
            for pinned in [None, Some("w0"), Some("w3")] {
                let mut c = cluster(4, 100 * MIB);
                let link = LinkSpeed {
                    latency_ns,
                    bandwidth,
                };
                let pairs = (0..4).flat_map(|a| (0..4).map(move |b| (a, b)));
                pairs.for_each(|(a, b)| c.set_link(a, b, link));
                c.driver = link;
                let mut o = options(&f, WorkerCount::Exactly(n));
                o.pins = pinned
                    .map(|w| ("y3".into(), w.into()))
                    .into_iter()
                    .collect();
                let placed = check(&f, &c, &o);
                let (computed, handed) = placed.participant.split_at(24);
                for (i, participant) in handed.iter().enumerate() {
                    assert_eq!(
                        *participant,
                        computed[2 * i + 1],
                        "{:?}",
                        placed.participant
                    );
                }
            }
        }
    }
}

/// Returns the cluster with the constants of `f` whose names begin so at worker `at`, of which the client's token is
/// charged for those that are `own`.
fn having(
    mut cluster: ClusterModel,
    at: usize,
    f: &Function,
    names: &str,
    own: bool,
) -> ClusterModel {
    let mut work = Work::new(f, &Default::default(), &Default::default());
    work.identify(f, NUMERICS_PROFILE).unwrap();
    let ids = work.const_value.iter().zip(&work.const_id);
    let named = ids.filter(|(v, _)| f.value(**v).name.starts_with(names));
    let all = std::sync::Arc::new(named.filter_map(|(_, id)| *id).collect());
    let constants = &mut cluster.workers[at].host.constants;
    *constants = PresentConstants::default();
    if own {
        constants.own = std::sync::Arc::clone(&all);
    }
    constants.all = all;
    cluster
}

/// Returns a chain of four matrix products of 1 MiB; the names of the first two and of the last two weights begin with
/// these letters.
fn halves(first: char, second: char) -> Function {
    let mut text = "param x0: f32[4, 512]\n".to_owned();
    for (i, name) in [first, first, second, second].into_iter().enumerate() {
        let artifact = if i % 2 == 0 { "a" } else { "b" };
        text += &format!(
            "weight {name}{artifact}: f32[512, 512]\nx{} = MatMul(x{i}, {name}{artifact})\n",
            i + 1
        );
    }
    parse(&format!("{text}result x4"))
}

#[test]
fn a_function_is_planned_where_its_constants_are() {
    let f = halves('p', 'q');
    let one = options(&f, WorkerCount::Exactly(1));
    let at = |cluster: &ClusterModel| check(&f, cluster, &one).team.workers[0].name.clone();
    // The worker that lacks fewer bytes is taken where there is room everywhere, unless another is much faster.
    let roomy = cluster(3, 64 * MIB);
    assert_eq!(at(&roomy), "w0");
    let mut half = having(roomy.clone(), 2, &f, "p", true);
    assert_eq!(at(&half), "w2");
    assert_eq!(at(&having(half.clone(), 1, &f, "", true)), "w1");
    half.workers[0].device_speed.flops *= 1.02;
    half.workers[0].device_speed.memory_bandwidth *= 1.02;
    assert_eq!(at(&half), "w2");
    half.workers[0].device_speed.flops *= 2.;
    half.workers[0].device_speed.memory_bandwidth *= 2.;
    assert_eq!(at(&half), "w0");
    // A worker that has the constants is taken if they fit on no other.
    let tight = cluster(3, 3 * MIB);
    assert_eq!(failure(&f, &tight, &one).code, Code::ClusterTooSmall);
    let half = having(tight.clone(), 1, &f, "q", true);
    assert_eq!(at(&half), "w1");
    // Constants that others have loaded take no further memory, but count against the budget of the client's token.
    let mut others = having(tight, 1, &f, "q", false);
    assert_eq!(failure(&f, &others, &one).code, Code::ClusterTooSmall);
    others.workers[1].host.budget = 5 * MIB;
    let placed = check(&f, &others, &one);
    assert_eq!(placed.team.workers[0].name, "w1");
    let usage = &placed.usage[0];
    assert_eq!((usage.weights, usage.missing), (4 * MIB, 2 * MIB));
    // A part of the function is credited with its own constants only.
    let two = options(&f, WorkerCount::Exactly(2));
    let small = having(cluster(2, 2 * MIB + MIB / 8), 0, &f, "q", true);
    for usage in check(&f, &small, &two).usage {
        assert!(usage.beyond.memory <= usage.needed);
    }
}
