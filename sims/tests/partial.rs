//! Partial calls of random models over simulated networks: only the results that depend on a failure fail, the others
//! equal those of a call without a failure bit for bit, and nothing is left behind.

use crate::settled;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use convoke::{Model as Loaded, Outputs, PartialOutputs};
use convoke_common::error::{Error, Result};
use convoke_coordinator::passes::optimise;
use convoke_graph::Tensor;
use convoke_graph::graph::ValueId;
use convoke_sims::cluster::{Cluster, Host, Task};
use convoke_sims::draw::Draw;
use convoke_sims::invariants::left_over;
use convoke_sims::workload::{Model, ModelSpec, TRAP, Trap, inputs};
use settled::{NEVER, end, settled};

const MODELS: usize = 30;
const AXIS: i64 = 4;

/// The names of the results that depend on the trap in the optimised function.
fn caught(model: &Model) -> BTreeSet<String> {
    let planned = optimise(
        (*model.function).clone(),
        convoke_common::rpc::Numerics::Exact,
    )
    .expect("it verifies");
    let f = planned.function;
    let mut lost: BTreeSet<ValueId> = BTreeSet::new();
    loop {
        let before = lost.len();
        for node in &f.nodes {
            let trap = node.name.split('+').any(|n| n == TRAP);
            if trap || node.inputs.iter().flatten().any(|v| lost.contains(v)) {
                lost.extend(&node.outputs);
            }
        }
        if lost.len() == before {
            break;
        }
    }
    let results = f.results.iter().filter(|(_, v)| lost.contains(v));
    results.map(|(name, _)| name.clone()).collect()
}

/// Returns inputs that make the trap fail, and the same inputs with harmless values for the trap.
fn given(model: &Model, seed: u64) -> [Vec<(String, Tensor)>; 2] {
    let [good, bad] = [false, true].map(|sprung| inputs(model, seed, AXIS, sprung));
    let bad: BTreeMap<String, Tensor> = bad.into_iter().collect();
    let of_trap = |name: &str| ["which", "divisor", "size"].contains(&name);
    let one = |(name, t): &(String, Tensor)| match of_trap(name) {
        true => (name.clone(), bad[name].clone()),
        false => (name.clone(), t.clone()),
    };
    let sprung = good.iter().map(one).collect();
    [sprung, good]
}

/// Checks every result of a partial call. Returns how many failed.
#[track_caller]
fn check(model: &Model, whole: &Outputs, partial: &PartialOutputs) -> usize {
    let caught = caught(model);
    assert_eq!(partial.0.len(), whole.0.len());
    for (name, result) in &partial.0 {
        match (result, caught.contains(name)) {
            (Ok(t), false) => assert_eq!(t, &whole[name.as_str()], "{name} of {:?}", model.spec),
            (Err(e), true) => {
                let node = e.site.as_ref().and_then(|s| s.node.as_deref());
                let trap = node.is_some_and(|n| n.split('+').any(|n| n == TRAP));
                assert!(trap, "{name} of {:?}: {e}", model.spec);
                assert_eq!(Some(e.code), model.spec.trap.map(Trap::code), "{e}");
            }
            (got, caught) => panic!("{name} of {:?}, caught {caught}: {got:?}", model.spec),
        }
    }
    caught.len()
}

async fn call(loaded: &Loaded, model: &Model, seed: u64) -> Result<(Outputs, PartialOutputs)> {
    let [sprung, good] = given(model, seed);
    let whole = loaded.call(good).await?;
    Ok((whole, loaded.partial().call(sprung).await?))
}

#[test]
fn exactly_what_depends_on_a_failure_fails() {
    let mut cluster = settled(41, 3);
    let mut d = Draw::new(9);
    let (mut failed, mut arrived) = (0, 0);
    for _ in 0..MODELS {
        let trap = Some(d.pick(&[Trap::Index, Trap::Divide, Trap::Memory]));
        let spec = ModelSpec {
            trap,
            ..ModelSpec::draw(&mut d)
        };
        let (model, seed) = (spec.build(), d.word());
        let own = model.clone();
        let calls: Task<Result<_>> = cluster.on_client(0, move |c| async move {
            let load = c.load_function((*own.function).clone(), vec![]);
            let loaded = load.workers(3).numerics(convoke::Numerics::Exact).await?;
            let called = call(&loaded, &own, seed).await?;
            loaded.unload().await?;
            Ok::<_, Error>(called)
        });
        let (whole, partial) = end(&mut cluster, &calls).expect("no fault");
        let caught = check(&model, &whole, &partial);
        failed += caught;
        arrived += whole.0.len() - caught;
    }
    assert!(
        failed > MODELS / 2 && arrived > MODELS / 2,
        "{failed} {arrived}"
    );
    cluster.run_until(NEVER, |c| left_over(c).is_empty());
    assert_eq!(left_over(&cluster), Vec::<String>::new());
}

/// Sets how long each kernel takes, so that a fault meets a call in the middle.
fn slow(cluster: &Cluster, ms: u64) {
    for i in 0..3 {
        cluster.knobs(Host::Worker(i)).set_job_ms(ms, ms);
    }
}

#[test]
fn a_partial_call_whose_worker_is_lost_runs_again() {
    let mut cluster = settled(42, 3);
    let spec = ModelSpec {
        trap: Some(Trap::Index),
        ..ModelSpec::narrow(3, 16)
    };
    let model = spec.build();
    let own = model.clone();
    let loading = cluster.on_client(0, move |c| async move {
        let load = c.load_function((*own.function).clone(), vec![]);
        let loaded = load.workers(3).numerics(convoke::Numerics::Exact).await?;
        let called = call(&loaded, &own, 1).await?;
        Ok::<_, Error>((loaded, called))
    });
    let (loaded, (whole, partial)) = end(&mut cluster, &loading).expect("no fault yet");
    assert!(check(&model, &whole, &partial) > 0);
    slow(&cluster, 500);
    let own = model.clone();
    let calling = cluster.on_client(0, move |_| async move {
        let [sprung, _] = given(&own, 1);
        let called = loaded.partial().call(sprung).await?;
        let plan = loaded.plan().await.expect("it is loaded");
        let workers = plan.parts.into_iter().map(|part| part.name);
        Ok::<_, Error>((called, workers.collect::<Vec<_>>()))
    });
    cluster.run_for(Duration::from_millis(200));
    assert!(!calling.is_over());
    cluster.kill(Host::Worker(1));
    slow(&cluster, 0);
    let (again, workers) = end(&mut cluster, &calling).expect("it runs again");
    assert_eq!(workers, ["w0", "w2"]);
    check(&model, &whole, &again);
}
