//! Plans of functions whose bodies fit no single worker, or fit none together with the function around them.

use convoke_common::Code;
use convoke_common::rpc::WorkerCount;
use convoke_graph::graph::Function;
use convoke_graph::program::PARTITIONED;

use crate::place::ClusterModel;
use crate::plan::{PlannedPrograms, plan};
use crate::testing::{cluster, options, parse, parse_with};

/// Each weight takes 256 KiB, and twice as much while it is packed.
const PARAMS: &str = "param x: f32[1, 256]
    param w1: f32[256, 256]
    param w2: f32[256, 256]
    param w3: f32[256, 256]";

const LAYERS: &str = "a = MatMul(x, w1)
    b = MatMul(a, w2)
    c = MatMul(b, w3)";

const WEIGHTS: &str = "weight w1: f32[256, 256]
    weight w2: f32[256, 256]
    weight w3: f32[256, 256]";

/// The body of a loop over all weights.
fn body() -> String {
    format!("param i: i64[]\n param going: bool[]\n {PARAMS}\n {LAYERS}\n result going\n result c")
}

fn looped() -> Function {
    let text = format!(
        "param m: i64[]
         param x: f32[1, 256]
         {WEIGHTS}
         r = Relu(x)
         y = Loop(m, _, r, w1, w2, w3) {{body=&body; captured=3}}
         result y"
    );
    parse_with(&text, &[("body", &parse(&body()))])
}

fn planned(f: &Function, cluster: &ClusterModel) -> convoke_common::Result<PlannedPrograms> {
    plan(f.clone(), cluster, &options(f, WorkerCount::Auto))
}

/// Checks which workers run each body, and who drives it.
fn check(f: &Function, cluster: &ClusterModel, want: &[(&str, &[&str])]) -> PlannedPrograms {
    let planned = planned(f, cluster).unwrap();
    let bodies = planned.summary.bodies.iter().map(|b| {
        let workers = b.parts.iter().map(|p| p.worker.as_str()).collect();
        (b.owner.as_str(), workers)
    });
    let found: Vec<(&str, Vec<&str>)> = bodies.collect();
    let want: Vec<(&str, Vec<&str>)> = want.iter().map(|(o, w)| (*o, w.to_vec())).collect();
    assert_eq!(found, want, "{:?}", planned.summary.bodies);
    let workers = planned.participants.len();
    let mut bodies = planned.bodies.clone();
    bodies.sort_by_key(|b| b.number);
    for (body, summary) in bodies.iter().zip(&planned.summary.bodies) {
        assert!(body.driver.names(body.workers.len()));
        assert!(usize::from(body.owner) < workers);
        for (at, part) in body.workers.iter().zip(&summary.parts) {
            assert_eq!(planned.participants[usize::from(*at)].name, part.worker);
        }
    }
    for part in &planned.summary.parts {
        assert!(part.needed_bytes <= part.memory, "{part:?}");
    }
    planned
}

#[test]
fn a_body_is_taken_apart_where_no_worker_holds_it() {
    let f = looped();
    check(&f, &cluster(3, 4 << 20), &[]);
    let apart = check(&f, &cluster(3, 640 << 10), &[("w0", &["w0", "w1", "w2"])]);
    let nodes = |p: &convoke_graph::program::HashedProgram| -> Vec<String> {
        let p = p.program();
        let steps = &p.nodes[p.init_nodes as usize..];
        steps.iter().map(|n| n.name.to_string()).collect()
    };
    let main: Vec<_> = apart.programs.iter().map(nodes).collect();
    assert_eq!(main.concat(), ["r", "y"]);
    let parts: Vec<_> = apart.bodies[0].programs.iter().map(nodes).collect();
    assert_eq!(parts, [["a"], ["b"], ["c"]]);
    let cuts = apart.summary.bodies[0].cut_edges.iter();
    let cuts: Vec<_> = cuts
        .map(|e| (&*e.tensor, &*e.from, &*e.to, e.bytes))
        .collect();
    let want = [
        ("a", "w0", "w1", 1024),
        ("b", "w1", "w2", 1024),
        ("c", "w2", "w0", 1024),
    ];
    assert_eq!(cuts, want);
    // Weights are packed where they are used, as without control flow.
    for program in &apart.bodies[0].programs {
        assert_eq!(
            (
                program.program().literals.len(),
                program.program().init_nodes
            ),
            (1, 1)
        );
    }
    let again = planned(&f, &cluster(3, 640 << 10)).unwrap();
    assert_eq!(
        (again.programs, again.bodies),
        (apart.programs, apart.bodies)
    );
}

/// A body whose weights fit one worker may not fit it together with the function around it.
#[test]
fn more_memory_never_makes_a_function_too_large() {
    for kib in (640..2048).step_by(16) {
        let planned = planned(&looped(), &cluster(3, kib << 10));
        let planned = planned.unwrap_or_else(|e| panic!("{kib} KiB: {e}"));
        for part in &planned.summary.parts {
            assert!(part.needed_bytes <= part.memory, "{kib} KiB: {part:?}");
        }
    }
}

#[test]
fn a_body_that_fits_an_idle_worker_waits_for_its_memory() {
    for memory in [3 << 20, 4 << 20] {
        let mut taken = cluster(3, memory);
        taken
            .workers
            .iter_mut()
            .for_each(|w| w.host.free = 640 << 10);
        let e = planned(&looped(), &taken).unwrap_err();
        assert_eq!(e.code, Code::ClusterTooSmall);
    }
}

#[test]
fn what_fits_nowhere_is_told_as_before() {
    let e = planned(&looped(), &cluster(2, 640 << 10)).unwrap_err();
    assert_eq!(e.code, Code::ClusterTooSmall);
    assert!(e.message.starts_with("the model needs "), "{e}");
}

#[test]
fn what_would_fit_counts_workers_that_run_a_body_together() {
    let e = planned(&looped(), &cluster(3, 400 << 10)).unwrap_err();
    assert!(
        e.advice.contains("or 3 workers that offer 513 KiB each"),
        "{e}"
    );
    assert!(planned(&looped(), &cluster(3, 513 << 10)).is_ok());
    assert!(planned(&looped(), &cluster(3, 480 << 10)).is_err());
    let alone = planned(&looped(), &cluster(1, 400 << 10)).unwrap_err();
    assert!(!alone.advice.contains("together"), "{alone}");
}

#[test]
fn sizes_that_depend_on_data_are_refused() {
    let grows = body().replace("f32[1, 256]", "f32[n, 256]").replace(
        "result going\n result c",
        "d = Concat(c, c) {axis=0}
         result going
         result d",
    );
    let text = format!(
        "param m: i64[]
         param x: f32[1, 256]
         {WEIGHTS}
         y = Loop(m, _, x, w1, w2, w3) {{body=&body; captured=3}}
         result y"
    );
    let f = parse_with(&text, &[("body", &parse(&grows))]);
    let e = planned(&f, &cluster(3, 640 << 10)).unwrap_err();
    assert_eq!(e.code, Code::ClusterTooSmall);
    assert!(e.message.contains("'body' of node 'y'"), "{e}");
    assert!(e.message.contains("depends on data"), "{e}");
}

#[test]
fn bodies_within_bodies_are_taken_apart_alone() {
    let branch = |of: &str| {
        let text = format!(
            "param x: f32[1, 256]
             param w1: f32[256, 256]
             param w2: f32[256, 256]
             param w3: f32[256, 256]
             {of}"
        );
        parse(&text)
    };
    let yes = branch("a = MatMul(x, w1)\nb = MatMul(a, w2)\nresult b");
    let no = branch("c = MatMul(x, w3)\nresult c");
    let body = parse_with(
        "param i: i64[]
         param going: bool[]
         param x: f32[1, 256]
         param w1: f32[256, 256]
         param w2: f32[256, 256]
         param w3: f32[256, 256]
         s = Sigmoid(x)
         z = If(going, s, w1, w2, w3) {then_branch=&yes; else_branch=&no}
         result going
         result z",
        &[("yes", &yes), ("no", &no)],
    );
    let text = format!(
        "param m: i64[]
         param x: f32[1, 256]
         {WEIGHTS}
         y = Loop(m, _, x, w1, w2, w3) {{body=&body; captured=3}}
         result y"
    );
    let f = parse_with(&text, &[("body", &body)]);
    let planned = planned(&f, &cluster(3, 640 << 10)).unwrap();
    let bodies = planned.summary.bodies.iter();
    let bodies: Vec<_> = bodies
        .map(|b| (&*b.node, &*b.function, b.parts.len()))
        .collect();
    let want = [
        ("y", "body", 1),
        ("z", "then_branch", 2),
        ("z", "else_branch", 1),
    ];
    // The branches are in the order of the attributes.
    assert_eq!(bodies, want);
    // The loop, which reads no weight but those of its branches, is loaded after them.
    let within: Vec<u32> = planned.bodies.iter().map(|b| b.within).collect();
    assert_eq!(within, [1, 1, 0]);
    let inner = planned.bodies[2].programs.iter();
    let named = inner.flat_map(|p| &p.program().nodes);
    let numbers: Vec<_> = named.filter_map(|n| n.attrs.ints(PARTITIONED)).collect();
    assert_eq!(numbers, [[2, 3]]);
}

/// An `If` one of whose branches reads all weights, and the other some of them, in this order.
fn branched(other: &[&str]) -> Function {
    let all = format!("{PARAMS}\n {LAYERS}\n result c");
    let mut one = PARAMS.to_owned();
    for (i, w) in other.iter().enumerate() {
        let from = if i == 0 {
            "x".into()
        } else {
            format!("d{}", i - 1)
        };
        one.push_str(&format!("\n d{i} = MatMul({from}, {w})"));
    }
    one.push_str(&format!("\n result d{}", other.len() - 1));
    let text = format!(
        "param going: bool[]
         param x: f32[1, 256]
         {WEIGHTS}
         r = Relu(x)
         y = If(going, r, w1, w2, w3) {{then_branch=&all; else_branch=&one}}
         result y"
    );
    parse_with(&text, &[("all", &parse(&all)), ("one", &parse(&one))])
}

/// A weight takes 512 KiB while it is packed, and 256 KiB when both branches have it.
#[test]
fn a_weight_that_branches_share_is_there_once() {
    let planned = check(
        &branched(&["w3"]),
        &cluster(3, 640 << 10),
        &[("w0", &["w0", "w1", "w2"]), ("w0", &["w2"])],
    );
    let weights = planned.needed.iter().map(|n| n.host.constants.total());
    assert_eq!(weights.collect::<Vec<_>>(), [256 << 10; 3]);
    for part in &planned.summary.parts {
        assert_eq!(part.artifact_bytes, 256 << 10, "{part:?}");
        // Beside what is needed, chunks of 1 MiB that bring a weight, and what is in transit.
        assert!(part.peak_bytes < part.needed_bytes + (3 << 19), "{part:?}");
    }
    // In another order, each weight is still read where it is.
    let all = ["w0", "w1", "w2"];
    let back = ["w2", "w1", "w0"];
    check(
        &branched(&["w3", "w2", "w1"]),
        &cluster(3, 640 << 10),
        &[("w0", &all), ("w0", &back)],
    );
}
