//! Properties of partitions of random graphs.

use std::collections::BTreeSet;
use std::sync::Arc;

use convoke_common::rpc::WorkerCount;
use convoke_graph::graph::{Function, RunsAt};
use convoke_graph::program::NO_OPERAND;

use super::*;
use crate::passes::optimise;
use crate::place::place;
use crate::testing::{cluster, options, parse, random};

fn split(f: &Function, n: u32) -> (Placement, Partition) {
    let placed = place(
        f.clone(),
        &cluster(n as usize, 100 << 20),
        &options(f, WorkerCount::Exactly(n)),
    )
    .unwrap();
    let parts = partition(&placed);
    (placed, parts)
}

/// A node by the names of its operands and outputs.
type Edges = (Arc<str>, Vec<Option<Arc<str>>>, Vec<Arc<str>>);

fn edges(p: &Program) -> Vec<Edges> {
    let name = |v: &u32| p.values[*v as usize].name.clone();
    let operand = |v: &u32| (*v != NO_OPERAND).then(|| name(v));
    let node = |n: &convoke_graph::program::ProgramNode| {
        (
            n.name.clone(),
            n.inputs.iter().map(operand).collect(),
            n.outputs.iter().map(name).collect(),
        )
    };
    p.nodes.iter().map(node).collect()
}

fn check(f: &Function, n: u32) -> Partition {
    let (placed, parts) = split(f, n);
    let f = &placed.function;
    assert_eq!(parts.programs.len(), n as usize);
    let mut step_nodes = BTreeSet::new();
    let mut sent = BTreeSet::new();
    for (m, p) in parts.programs.iter().enumerate() {
        p.check().unwrap();
        assert!(
            p.nodes.len() > p.init_nodes as usize,
            "worker {m} has no step node"
        );
        // Crossings: each recv slot is filled once, by the sender that it names, with the value of that name.
        for (slot, r) in p.recvs.iter().enumerate() {
            let ty = &p.values[r.value as usize];
            let key = (m as u16, slot as u32);
            let filled: Vec<&Arc<str>> = match usize::from(r.from) {
                driver if driver == n as usize => {
                    let feeds = parts.driver.feeds.iter().filter(|f| f.to.contains(&key));
                    feeds
                        .inspect(|f| assert_eq!(f.ty, ty.ty))
                        .map(|_| &ty.name)
                        .collect()
                }
                from => {
                    let peer = &parts.programs[from];
                    let sends = peer.sends.iter().filter(|s| (s.to, s.slot) == key);
                    sends.map(|s| &peer.values[s.value as usize].name).collect()
                }
            };
            assert_eq!(filled, [&ty.name]);
        }
        for s in &p.sends {
            assert!(
                sent.insert((p.values[s.value as usize].name.clone(), s.to)),
                "crosses twice"
            );
            match usize::from(s.to) {
                driver if driver == n as usize => {
                    assert_eq!(parts.driver.slots[s.slot as usize].from, m as u16);
                }
                to => assert_eq!(parts.programs[to].recvs[s.slot as usize].from, m as u16),
            }
        }
        let all = edges(p);
        for edge in &all[p.init_nodes as usize..] {
            assert!(step_nodes.insert(edge.clone()), "{} runs twice", edge.0);
        }
    }
    // Together the programs contain all nodes of the function.
    let name = |v: &ValueId| f.value(*v).name.clone();
    let whole: BTreeSet<Edges> = f
        .nodes
        .iter()
        .filter(|n| n.runs_at == RunsAt::Step)
        .map(|n| {
            let inputs = n.inputs.iter().map(|v| v.as_ref().map(name)).collect();
            (n.name.clone(), inputs, n.outputs.iter().map(name).collect())
        })
        .collect();
    assert_eq!(step_nodes, whole);
    check_driver(f, &parts);
    parts
}

fn check_driver(f: &Function, parts: &Partition) {
    let d = &parts.driver;
    assert_eq!(d.feeds.len(), f.params.len());
    assert_eq!(d.fetches.len(), f.results.len());
    for (fetch, (name, value)) in d.fetches.iter().zip(&f.results) {
        assert_eq!((&fetch.name, &fetch.ty), (name, f.ty(*value)));
        match &fetch.from {
            FetchFrom::Param(i) => assert_eq!(f.params[*i as usize], *value),
            FetchFrom::Worker { from, slot } => {
                let p = &parts.programs[usize::from(*from)];
                let mut sends = p
                    .sends
                    .iter()
                    .filter(|s| usize::from(s.to) == parts.programs.len());
                let send = sends.find(|s| s.slot == *slot).unwrap();
                assert_eq!(p.values[send.value as usize].name, f.value(*value).name);
                assert_eq!(d.slots[*slot as usize].from, *from);
            }
        }
    }
}

#[test]
fn programs_together_are_the_function() {
    for seed in 0..60 {
        let f = random(seed, 50);
        let f = if seed % 2 == 0 {
            optimise(f, convoke_common::rpc::Numerics::Standard)
                .unwrap()
                .function
        } else {
            f
        };
        let parts = check(&f, 1 + seed as u32 % 5);
        let again = split(&f, 1 + seed as u32 % 5).1;
        assert_eq!(parts.programs, again.programs, "seed {seed}");
        assert_eq!(parts.driver, again.driver, "seed {seed}");
    }
}

#[test]
fn results_of_every_kind() {
    let f = parse(
        "param x: f32[2]
         param idle: f32[3]
         weight w: f32[2]
         weight only: f32[5]
         init q = Sqrt(w)
         y = Add(x, w)
         z = Tanh(y)
         result z
         result x
         result w
         result only
         result q",
    );
    let mut f = f;
    f.results.push(("again".into(), f.results[0].1));
    let parts = check(&f, 2);
    let d = &parts.driver;
    assert_eq!(d.slots.len(), 4);
    assert_eq!(d.fetches[1].from, FetchFrom::Param(0));
    assert_eq!(d.fetches[0].from, d.fetches[5].from);
    assert!(d.feeds[1].to.is_empty());
}

#[test]
fn a_tensor_crosses_once_and_a_parameter_goes_to_each_reader() {
    let f = parse(
        "param x: f32[512, 512]
         weight v: f32[512, 512]
         weight w: f32[512, 512]
         a = MatMul(x, v)
         b = MatMul(a, w)
         c = Add(b, a)
         d = Add(c, x)
         result d",
    );
    let parts = check(&f, 2);
    assert_eq!(parts.driver.feeds[0].to.len(), 2);
    assert_eq!(parts.cuts.len(), 1);
    // The second worker does not load the first one's weight.
    assert!(parts.programs.iter().all(|p| p.literals.len() == 1));
}
