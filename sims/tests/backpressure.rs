//! A slow consumer slows its producer: what is on its way between them stays within the window of their lease, no
//! matter how many calls wait, and for how long.

use std::time::Duration;

use convoke_common::error::Error;
use convoke_graph::graph::{Function, Node, RunsAt, TensorType};
use convoke_graph::{DType, Tensor};
use convoke_sims::cluster::{Cluster, Host, Setup};
use convoke_sims::steps::Steps;

const BOUND: Duration = Duration::from_secs(60);
const CALLS: usize = 30;
const IN_FLIGHT: u64 = 3;
/// Elements of the tensor between producer and consumer, which is large enough for a stream of its own.
const ELEMENTS: usize = 1 << 14;
const BYTES: u64 = 4 * ELEMENTS as u64;
/// Milliseconds that the consumer takes for each tensor.
const SLOW_MS: u64 = 50;

/// y = tanh(x) on w0, z = -y on w1.
fn function() -> Function {
    let mut f = Function {
        name: "two".into(),
        ..Function::default()
    };
    let ty = TensorType::fixed(DType::F32, &[ELEMENTS]);
    let [x, y, z] = ["x", "y", "z"].map(|name| f.add_value(name, ty.clone()));
    f.params.push(x);
    for (name, op, from, to) in [("first", "Tanh", x, y), ("second", "Neg", y, z)] {
        f.nodes.push(Node {
            name: name.into(),
            op: op.into(),
            attrs: Default::default(),
            inputs: vec![Some(from)],
            outputs: vec![to],
            runs_at: RunsAt::Step,
        });
    }
    f.results.push(("z".into(), z));
    f
}

#[test]
fn a_slow_consumer_slows_its_producer() {
    let mut cluster = Cluster::new(Setup {
        seed: 33,
        workers: 2,
        ..Setup::default()
    });
    assert!(cluster.settle(BOUND), "{:?}", cluster.ends());
    cluster.knobs(Host::Worker(0)).set_job_ms(0, 0);
    cluster.knobs(Host::Worker(1)).set_job_ms(SLOW_MS, SLOW_MS);
    let begun = cluster.elapsed();
    let calls = cluster.on_client(0, |c| async move {
        let load = c
            .load_function(function(), vec![])
            .numerics(convoke::Numerics::Exact);
        let load = load.pin("first", "w0").pin("second", "w1");
        let loaded = load.in_flight(IN_FLIGHT as u32).await?;
        let x = Tensor::from_slice(&[ELEMENTS], &[0.5f32; ELEMENTS])?;
        let calls = (0..CALLS).map(|_| loaded.call(vec![("x".to_owned(), x.clone())]));
        let results = futures::future::try_join_all(calls).await?;
        loaded.unload().await?;
        Ok::<_, Error>(results.len())
    });
    let mut steps = Steps::default();
    let mut most = 0;
    while !calls.is_over() {
        assert!(cluster.elapsed() < begun + BOUND, "it hangs");
        cluster.tick();
        let events = steps.peek(cluster.trace());
        steps.apply(&events);
        // Only w0 sends anything to w1, and it sends one tensor in each step.
        let to_consumer = steps.steps.values().flat_map(|s| &s.tensors);
        let to_consumer = to_consumer.filter(|((to, _), _)| *to == 1);
        let on_their_way = to_consumer.filter(|(_, t)| !t.sent.is_empty() && t.taken == 0);
        let on_their_way = on_their_way.count() as u64;
        assert!(on_their_way <= IN_FLIGHT, "{on_their_way} on their way");
        most = most.max(on_their_way);
        for i in [0, 1] {
            let Some(worker) = cluster.worker(i) else {
                continue;
            };
            for link in worker.hub().links() {
                let waits = link.status().queued_bytes;
                assert!(waits <= IN_FLIGHT * BYTES + (16 << 10), "{waits} wait");
            }
        }
    }
    assert_eq!(calls.take().expect("the client lives").unwrap(), CALLS);
    // The producer, which takes no time, used its window and then waited for the consumer.
    let took = cluster.elapsed() - begun;
    assert!(
        took >= Duration::from_millis(SLOW_MS) * CALLS as u32,
        "{took:?}"
    );
    assert!(most > 1, "{most}");
}
