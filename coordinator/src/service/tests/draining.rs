//! Tests of workers out of service and of quarantined nodes, over the admin socket and a restart.

use std::sync::Arc;
use std::time::Duration;

use convoke_common::admission::call;
use convoke_common::identity::Role;
use convoke_common::ids::Incarnation;
use convoke_common::rpc::{ClusterStatus, Death, MemberState, Registration, WorkerCount, answer};
use convoke_common::{Code, Result};
use convoke_graph::graph::Function;

use crate::CoordinatorConfig;
use crate::admin::{AdminClient, socket_in};
use crate::service::testing::*;
use crate::testing::{options, parse};

fn function() -> Function {
    parse("param x: f32[4]\ny = Relu(x)\nresult y")
}

async fn plan(client: &TestMember, function: Function) -> Result<()> {
    let options = options(&function, WorkerCount::Auto);
    let planned = client
        .client
        .plan(call(), Arc::new(function), options, Incarnation(9));
    answer(None, planned.await).map(drop)
}

/// Starts a coordinator that keeps its state in `scratch`, with a client of its admin socket.
async fn kept(scratch: &Scratch) -> (Rig, AdminClient) {
    let dir = scratch.path().join("state");
    let config = CoordinatorConfig {
        state_dir: Some(dir.clone()),
        run_dir: Some(dir.clone()),
        ..config()
    };
    (
        rig_with(config).await.unwrap(),
        AdminClient::new(&socket_in(&dir)),
    )
}

async fn status(client: &TestMember) -> ClusterStatus {
    answer(None, client.client.status(call()).await).unwrap()
}

fn states(status: &ClusterStatus) -> Vec<(&str, MemberState)> {
    let members = status.members.iter();
    members.map(|m| (m.name.as_str(), m.state)).collect()
}

#[tokio::test]
async fn a_drained_worker_is_told_and_stays_out_over_a_restart() {
    let scratch = Scratch::new();
    let (rig, admin) = kept(&scratch).await;
    let token = rig.token(Role::Worker).await;
    let a = rig.join(&token, Role::Worker, "a").await.unwrap();
    let worker = rig.connect(&a).await.unwrap();
    worker.serve(&rig.world, Script::default());
    worker.register(1).await.unwrap();
    let b = rig.join(&token, Role::Worker, "b").await.unwrap();
    rig.connect(&b).await.unwrap().register(2).await.unwrap();
    let error = admin.drain("nobody").await.unwrap_err();
    assert_eq!(
        (error.code, &*error.message),
        (Code::NotFound, "there is no worker 'nobody'")
    );
    assert!(admin.drain("a").await.unwrap());
    worker.saw(&SeenCall::Drain).await;
    answer(None, worker.client.leave(call()).await).unwrap();
    let client = rig.member(Role::Client, "").await;
    let now = status(&client).await;
    assert_eq!(states(&now)[0], ("a", MemberState::Leaving));
    // The next process of it is out of service too, until it is asked back.
    let next = rig.connect(&a).await.unwrap();
    assert!(next.register(3).await.unwrap().drained);
    assert!(admin.undrain("a").await.unwrap());
    assert_eq!(states(&status(&client).await)[0], ("a", MemberState::Alive));
    admin.drain("b").await.unwrap();
    rig.running.shutdown(Duration::from_secs(5)).await;

    let (rig, admin) = kept(&scratch).await;
    let client = rig.member(Role::Client, "").await;
    // The name of a worker that has not returned yet is known.
    let lost = ("a", MemberState::Lost);
    assert_eq!(
        states(&status(&client).await),
        [lost, ("b", MemberState::Drained)]
    );
    let back = rig.connect(&b).await.unwrap();
    assert!(back.register(4).await.unwrap().drained);
    let error = plan(&client, function()).await.unwrap_err();
    assert_eq!(error.code, Code::NoWorkers, "{error}");
    assert!(admin.undrain("b").await.unwrap());
    plan(&client, function()).await.unwrap();
    assert_eq!(
        states(&status(&client).await),
        [lost, ("b", MemberState::Alive)]
    );
}

/// Plans a function and installs the plan.
async fn grant(client: &TestMember, function: Function) -> Result<()> {
    let options = options(&function, WorkerCount::Auto);
    let planned = client
        .client
        .plan(call(), Arc::new(function), options, Incarnation(9));
    let plan = answer(None, planned.await)?.plan;
    answer(None, client.client.install(call(), plan).await).map(drop)
}

async fn register(
    worker: &TestMember,
    incarnation: u64,
    died: Option<(u64, &Function)>,
) -> Result<()> {
    let deaths = died.map(|(incarnation, function)| Death {
        incarnation: Incarnation(incarnation),
        signal: 11,
        function: function.id().unwrap(),
        node: "y".into(),
    });
    let request = Registration {
        deaths: Vec::from_iter(deaths),
        ..offer(incarnation)
    };
    answer(None, worker.client.register(call(), request).await).map(drop)
}

#[tokio::test]
async fn a_node_that_killed_two_processes_is_refused_until_it_is_lifted() {
    let scratch = Scratch::new();
    let (rig, _) = kept(&scratch).await;
    let f = function();
    let token = rig.token(Role::Worker).await;
    let identity = rig.join(&token, Role::Worker, "a").await.unwrap();
    let process = async || {
        let process = rig.connect(&identity).await.unwrap();
        process.serve(&rig.world, Script::default());
        process
    };
    let client = rig.member(Role::Client, "").await;
    // A worker's word alone counts for nothing: these processes never were, and this one was granted nothing.
    let mut a = process().await;
    register(&a, 101, None).await.unwrap();
    for incarnation in [102, 103] {
        let next = process().await;
        for died in [100, 101, 102] {
            register(&next, incarnation, Some((died, &f)))
                .await
                .unwrap();
        }
        a = next;
    }
    assert!(status(&client).await.quarantine.is_empty());
    // Neither does a new process that comes over the same connection.
    grant(&client, f.clone()).await.unwrap();
    let refused = register(&a, 104, Some((103, &f))).await.unwrap_err();
    assert!(refused.message.contains("another incarnation"), "{refused}");
    let second = process().await;
    register(&second, 104, Some((103, &f))).await.unwrap();
    grant(&client, f.clone()).await.unwrap();
    let third = process().await;
    register(&third, 105, Some((104, &f))).await.unwrap();
    let error = plan(&client, f.clone()).await.unwrap_err();
    assert_eq!(error.code, Code::Quarantined);
    let deaths = error.message.matches("worker 'a' (SIGSEGV, ").count();
    assert!(error.message.contains("node 'y'") && deaths == 2, "{error}");
    rig.running.shutdown(Duration::from_secs(5)).await;

    let (rig, admin) = kept(&scratch).await;
    let client = rig.member(Role::Client, "").await;
    let worker = rig.member(Role::Worker, "c").await;
    register(&worker, 5, None).await.unwrap();
    assert_eq!(
        plan(&client, f.clone()).await.unwrap_err().code,
        Code::Quarantined
    );
    let listed = status(&client).await.quarantine;
    assert_eq!(
        (listed.len(), listed[0].refused, listed[0].deaths.len()),
        (1, true, 2)
    );
    assert_eq!(
        admin.lift_quarantine("x").await.unwrap_err().code,
        Code::NotFound
    );
    assert_eq!(admin.lift_quarantine("y").await.unwrap(), 1);
    plan(&client, f).await.unwrap();
    assert!(status(&client).await.quarantine.is_empty());
}
