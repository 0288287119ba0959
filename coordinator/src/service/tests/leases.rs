//! Plans and leases, with workers that follow a script.

use std::sync::Arc;
use std::time::Duration;

use convoke_common::admission::call;
use convoke_common::detection::CLOSE_LOST;
use convoke_common::identity::Role;
use convoke_common::ids::{Incarnation, LeaseId};
use convoke_common::memory::{Purpose, TokenHolding};
use convoke_common::rpc::{
    Intent, LeaseGrant, MemoryReport, MemoryUse, PlanAnswer, PlanOptions, RETURN_BOUND,
    WorkerCount, answer,
};
use convoke_common::{Code, Error, Result};
use convoke_graph::graph::Function;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::service::testing::*;
use crate::testing::{options, parse};

fn model() -> Function {
    parse("param x: f32[4]\na = Relu(x)\nb = Tanh(a)\nc = Relu(b)\nresult c")
}

fn two() -> PlanOptions {
    options(&model(), WorkerCount::Exactly(2))
}

impl TestMember {
    async fn plan(&self, options: PlanOptions) -> Result<PlanAnswer> {
        self.plan_of(model(), options).await
    }

    async fn plan_of(&self, f: Function, options: PlanOptions) -> Result<PlanAnswer> {
        let planned = self
            .client
            .plan(call(), Arc::new(f), options, Incarnation(9));
        answer(None, planned.await)
    }

    async fn install(&self, planned: &PlanAnswer) -> Result<LeaseGrant> {
        answer(None, self.client.install(call(), planned.plan).await)
    }

    async fn leases(&self) -> Vec<(LeaseId, Vec<String>)> {
        let status = answer(None, self.client.status(call()).await).unwrap();
        status
            .leases
            .into_iter()
            .map(|l| (l.lease, l.workers))
            .collect()
    }
}

#[tokio::test]
async fn a_plan_needs_workers_and_sensible_options() {
    let rig = rig().await;
    let client = rig.member(Role::Client, "").await;
    let error = client.plan(two()).await.unwrap_err();
    assert_eq!(error.code, Code::NoWorkers, "{error}");
    let there = answer(None, client.client.await_workers(call(), 1, 20).await);
    assert_eq!(there, Ok(0));
    let waiting = client.client.clone();
    let waiting =
        tokio::spawn(async move { answer(None, waiting.await_workers(call(), 1, 5000).await) });
    let worker = rig.worker("w", Script::default()).await;
    assert_eq!(waiting.await.unwrap(), Ok(1));
    for bad in [
        PlanOptions {
            in_flight: 0,
            ..two()
        },
        PlanOptions {
            in_flight: 1 << 20,
            ..two()
        },
        PlanOptions {
            workers: WorkerCount::Exactly(0),
            ..two()
        },
    ] {
        assert_eq!(
            client.plan(bad).await.unwrap_err().code,
            Code::InvalidArgument
        );
    }
    drop(worker);
}

#[tokio::test]
async fn a_worker_that_asks_for_a_program_that_it_was_sent_fails_the_install() {
    let rig = rig().await;
    let forgetful = Script {
        forgetful: true,
        ..Script::default()
    };
    let worker = rig.worker("a", forgetful).await;
    let client = rig.member(Role::Client, "").await;
    let one = options(&model(), WorkerCount::Exactly(1));
    let planned = client.plan(one).await.unwrap();
    let error = client.install(&planned).await.unwrap_err();
    assert_eq!(error.code, Code::ProtocolViolation, "{error}");
    assert_eq!(worker.programs().len(), 1);
}

#[tokio::test]
async fn a_worker_that_takes_no_call_is_not_lost_while_its_connection_stands() {
    let rig = rig().await;
    let deaf = Script {
        deaf: true,
        ..Script::default()
    };
    let worker = rig.worker("a", deaf).await;
    let client = rig.member(Role::Client, "").await;
    let one = options(&model(), WorkerCount::Exactly(1));
    let planned = client.plan(one).await.unwrap();
    let error = client.install(&planned).await.unwrap_err();
    assert_eq!(error.code, Code::Unreachable, "{error}");
    let about = error.site.as_ref().and_then(|site| site.worker.as_deref());
    assert_eq!(about, Some("a"), "{error}");
    assert!(
        !error.to_string().contains("its connection ended"),
        "{error}"
    );
    assert_eq!(worker.connection.close_reason(), None);
}

#[tokio::test]
async fn a_lease_is_granted_by_all_and_ends_with_its_driver() {
    let rig = rig().await;
    let (a, b) = (
        rig.worker("a", Script::default()).await,
        rig.worker("b", Script::default()).await,
    );
    b.saw(&SeenCall::Probe(vec!["a".into()])).await;
    let client = rig.member(Role::Client, "").await;
    let planned = client.plan(two()).await.unwrap();
    let names: Vec<_> = planned
        .participants
        .iter()
        .map(|p| (p.name.as_str(), p.incarnation))
        .collect();
    assert_eq!(
        names,
        [
            ("a", Incarnation(1)),
            ("b", Incarnation(1)),
            (&*client.name, Incarnation(9))
        ]
    );
    let leased = client.install(&planned).await.unwrap();
    for worker in [&a, &b] {
        worker.saw(&SeenCall::Install(leased.lease)).await;
    }
    let progress = answer(None, client.client.progress(call(), planned.plan).await).unwrap();
    assert_eq!((progress.done, progress.total), (6, 20));
    let other = rig.member(Role::Client, "other").await;
    assert_eq!(
        other.leases().await,
        [(leased.lease, vec!["a".to_owned(), "b".to_owned()])]
    );
    let error = answer(None, other.client.release(call(), leased.lease).await).unwrap_err();
    assert_eq!(error.code, Code::Unauthorized);
    assert_eq!(
        answer(None, other.client.install(call(), planned.plan).await)
            .unwrap_err()
            .code,
        Code::NotFound
    );

    answer(None, client.client.release(call(), leased.lease).await).unwrap();
    let second = client.install(&planned).await.unwrap();
    for worker in [&a, &b] {
        assert_eq!(worker.programs().len(), 1, "a known program is not sent");
    }
    client.connection.close(0u32.into(), b"bye");
    for lease in [leased.lease, second.lease] {
        a.saw(&SeenCall::Release(lease)).await;
        b.saw(&SeenCall::Release(lease)).await;
    }
    assert!(other.leases().await.is_empty());
}

#[tokio::test]
async fn one_failure_takes_the_install_back_and_is_the_answer() {
    let rig = rig().await;
    let failure = Error::new(Code::OutOfMemory, "no room");
    let a = rig
        .worker(
            "a",
            Script {
                hangs: true,
                ..Script::default()
            },
        )
        .await;
    let b = rig
        .worker(
            "b",
            Script {
                install: Some(failure),
                ..Script::default()
            },
        )
        .await;
    let client = rig.member(Role::Client, "").await;
    let planned = client.plan(two()).await.unwrap();
    let error = client.install(&planned).await.unwrap_err();
    assert_eq!(
        (error.code, error.site.unwrap().worker.as_deref()),
        (Code::OutOfMemory, Some("b"))
    );
    let Some(SeenCall::Install(lease)) = b
        .seen
        .0
        .lock()
        .unwrap()
        .iter()
        .find(|c| matches!(c, SeenCall::Install(_)))
        .cloned()
    else {
        panic!("b was asked");
    };
    a.saw(&SeenCall::Release(lease)).await;
    b.saw(&SeenCall::Release(lease)).await;
    assert!(client.leases().await.is_empty());
}

#[tokio::test]
async fn lost_workers_end_installs_and_plans() {
    let rig = rig().await;
    let hangs = Script {
        hangs: true,
        ..Script::default()
    };
    let (a, b) = (
        rig.worker("a", Script::default()).await,
        rig.worker("b", hangs).await,
    );
    let client = rig.member(Role::Client, "").await;
    let planned = client.plan(two()).await.unwrap();
    let installing = {
        let (client, plan) = (client.client.clone(), planned.plan);
        tokio::spawn(async move { answer(None, client.install(call(), plan).await) })
    };
    let lease = async {
        loop {
            if let [(lease, _)] = client.leases().await[..] {
                return lease;
            }
        }
    };
    let lease = tokio::time::timeout(Duration::from_secs(5), lease)
        .await
        .unwrap();
    b.saw(&SeenCall::Install(lease)).await;
    b.connection.close(0u32.into(), b"gone");
    let error = installing.await.unwrap().unwrap_err();
    assert_eq!(error.message, "the coordinator lost contact with b: gone");
    a.saw(&SeenCall::Release(lease)).await;
    let error = client.install(&planned).await.unwrap_err();
    assert_eq!(error.code, Code::PeerLost, "{error}");
    assert!(
        error.message.contains("'b'") && error.advice.contains("plan again"),
        "{error}"
    );
    assert!(client.leases().await.is_empty());
}

#[tokio::test]
async fn a_lease_that_its_driver_did_not_hear_of_is_taken_back() {
    let rig = rig().await;
    let (a, b) = (
        rig.worker("a", Script::default()).await,
        rig.worker("b", Script::default()).await,
    );
    let client = rig.member(Role::Client, "").await;
    let planned = client.plan(two()).await.unwrap();
    let leased = client.install(&planned).await.unwrap();
    answer(None, client.client.abandon(call(), planned.plan).await).unwrap();
    for worker in [&a, &b] {
        worker.saw(&SeenCall::Release(leased.lease)).await;
    }
    assert!(client.leases().await.is_empty());
}

#[tokio::test]
async fn a_cancelled_install_is_taken_back() {
    let rig = rig().await;
    let hangs = Script {
        hangs: true,
        ..Script::default()
    };
    let (a, b) = (
        rig.worker("a", Script::default()).await,
        rig.worker("b", hangs).await,
    );
    let client = rig.member(Role::Client, "").await;
    let planned = client.plan(two()).await.unwrap();
    let cancelled =
        tokio::time::timeout(Duration::from_millis(200), client.install(&planned)).await;
    assert!(cancelled.is_err());
    let install = b.seen.0.lock().unwrap().iter().find_map(|c| match c {
        SeenCall::Install(lease) => Some(*lease),
        _ => None,
    });
    a.saw(&SeenCall::Release(install.unwrap())).await;
    assert!(client.leases().await.is_empty());
}

#[tokio::test]
async fn a_release_is_over_once_the_workers_have_freed_the_lease() {
    let rig = rig().await;
    let frees = Arc::new(Semaphore::new(0));
    let slow = Script {
        frees: Some(frees.clone()),
        ..Script::default()
    };
    let (a, b) = (
        rig.worker("a", Script::default()).await,
        rig.worker("b", slow).await,
    );
    let client = rig.member(Role::Client, "").await;
    let planned = client.plan(two()).await.unwrap();
    let lease = client.install(&planned).await.unwrap().lease;
    let (release, released) = (
        client.client.release(call(), lease),
        SeenCall::Release(lease),
    );
    tokio::pin!(release);
    tokio::select! {
        biased;
        _ = &mut release => panic!("b has not freed it"),
        () = b.saw(&released) => {}
    }
    frees.add_permits(1);
    answer(None, release.await).unwrap();
    // A worker that is out of reach is not waited for.
    let planned = client.plan(two()).await.unwrap();
    let lease = client.install(&planned).await.unwrap().lease;
    a.connection.close(CLOSE_LOST, b"out of reach");
    frees.add_permits(1);
    answer(None, client.client.release(call(), lease).await).unwrap();
    b.saw(&SeenCall::Release(lease)).await;
}

#[tokio::test]
async fn a_release_does_not_wait_for_a_worker_that_ends_while_it_is_told() {
    let rig = rig().await;
    let hangs = Script {
        frees: Some(Arc::new(Semaphore::new(0))),
        ..Script::default()
    };
    let a = rig.worker("a", hangs).await;
    let client = rig.member(Role::Client, "").await;
    let planned = client.plan(options(&model(), WorkerCount::Exactly(1)));
    let planned = planned.await.unwrap();
    let lease = client.install(&planned).await.unwrap().lease;
    let begun = Instant::now();
    let release = async {
        a.saw(&SeenCall::Release(lease)).await;
        a.connection.close(CLOSE_LOST, b"killed");
    };
    let (released, ()) = futures::join!(client.client.release(call(), lease), release);
    answer(None, released).unwrap();
    assert!(begun.elapsed() < RETURN_BOUND, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_driver_that_lost_its_connection_returns_to_its_leases() {
    let rig = rig().await;
    let worker = rig.worker("a", Script::default()).await;
    let token = rig.token(Role::Client).await;
    let identity = rig.join(&token, Role::Client, "").await.unwrap();
    let first = rig.connect(&identity).await.unwrap();
    let planned = first.plan(options(&model(), WorkerCount::Exactly(1)));
    let planned = planned.await.unwrap();
    let lease = first.install(&planned).await.unwrap().lease;
    // The client takes the coordinator for lost.
    first.connection.close(CLOSE_LOST, b"no answer");
    let second = rig.connect(&identity).await.unwrap();
    let stranger = answer(None, second.client.release(call(), lease).await);
    assert_eq!(stranger.unwrap_err().code, Code::Unauthorized);
    let resumed = second.client.resume(
        call(),
        Incarnation(9),
        vec![lease],
        convoke_common::VERSION.into(),
    );
    answer(None, resumed.await).unwrap();
    let again = second.install(&planned).await.unwrap().lease;
    assert_eq!(second.leases().await.len(), 2);
    // The client says goodbye, which ends its leases at once.
    second.connection.close(0u32.into(), b"client leaving");
    worker.saw(&SeenCall::Release(lease)).await;
    worker.saw(&SeenCall::Release(again)).await;
}

#[tokio::test]
async fn a_plan_avoids_whom_its_client_has_lost() {
    let rig = rig().await;
    let workers = ["a", "b"].map(|name| rig.worker(name, Script::default()));
    let _workers = futures::future::join_all(workers).await;
    let client = rig.member(Role::Client, "").await;
    let avoiding = |names: &[&str]| PlanOptions {
        avoid: names
            .iter()
            .map(|n| (n.to_string(), Incarnation(1)))
            .collect(),
        ..two()
    };
    // Two workers were asked for, and one is left.
    let planned = client.plan(avoiding(&["a"])).await.unwrap();
    let names: Vec<_> = planned.participants.iter().map(|p| &p.name).collect();
    assert_eq!(names, ["b", &client.name]);
    // No worker is left: the avoided ones are waited for, and are used in the end since they are still connected.
    let begun = Instant::now();
    let planned = client.plan(avoiding(&["a", "b"])).await.unwrap();
    assert_eq!(planned.participants.len(), 3);
    assert!(begun.elapsed() >= RETURN_BOUND, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_plan_waits_for_workers_that_were_lost_just_now() {
    let rig = rig().await;
    let a = rig.worker("a", Script::default()).await;
    let b = rig.worker("b", Script::default()).await;
    let client = rig.member(Role::Client, "").await;
    let avoiding = PlanOptions {
        avoid: vec![("a".to_owned(), Incarnation(1))],
        pins: vec![("*".to_owned(), "a".to_owned())],
        workers: WorkerCount::Auto,
        ..two()
    };
    // The worker is lost, and its next process is started.
    a.connection.close(0u32.into(), b"killed");
    let waiting = client.plan(avoiding);
    // Joining takes several round trips, so the plan is requested before the worker is back.
    let returning = async {
        let next = rig.member(Role::Worker, "a").await;
        next.register(2).await.map(|_| next)
    };
    let begun = Instant::now();
    let (planned, _next) = futures::future::join(waiting, returning).await;
    assert_eq!(planned.unwrap().participants[0].incarnation, Incarnation(2));
    assert!(begun.elapsed() < RETURN_BOUND, "{:?}", begun.elapsed());
    // A worker that left in order is not waited for.
    answer(None, b.client.leave(call()).await).unwrap();
    b.connection.close(0u32.into(), b"left");
    let begun = Instant::now();
    let error = client.plan(two()).await.unwrap_err();
    assert_eq!(error.code, Code::NoWorkers, "{error}");
    assert!(begun.elapsed() < RETURN_BOUND, "{:?}", begun.elapsed());
}

/// The name of the first worker of a plan.
fn first(planned: &PlanAnswer) -> &str {
    &planned.participants[0].name
}

fn one() -> PlanOptions {
    options(&model(), WorkerCount::Auto)
}

/// The memory of a worker of which handles take all.
fn full() -> MemoryReport {
    MemoryReport {
        host: MemoryUse {
            used: [(Purpose::Handles, 1 << 30)].into(),
            holdings: vec![],
        },
        device: MemoryUse::default(),
    }
}

#[tokio::test]
async fn a_report_of_memory_that_is_too_long_is_not_taken() {
    let rig = rig().await;
    let script = Script::default();
    let _worker = rig.worker("a", script.clone()).await;
    let client = rig.member(Role::Client, "").await;
    let holding = TokenHolding {
        token: "aaaa".parse().unwrap(),
        member: "m".repeat(5 << 20),
        limit: 0,
        used: Default::default(),
    };
    script.memory.lock().unwrap().host.holdings = vec![holding];
    // The worker is full by its report.
    client.plan(one()).await.unwrap();
    *script.memory.lock().unwrap() = full();
    client.plan(one()).await.unwrap_err();
}

#[tokio::test]
async fn a_worker_that_had_no_room_is_not_tried_again_at_once() {
    let rig = rig().await;
    let refuses = Script {
        install: Some(Error::new(Code::OutOfMemory, "no room")),
        ..Script::default()
    };
    let _workers = [
        rig.worker("a", refuses).await,
        rig.worker("b", Script::default()).await,
    ];
    let client = rig.member(Role::Client, "").await;
    let planned = client.plan(one()).await.unwrap();
    assert_eq!(first(&planned), "a");
    let error = client.install(&planned).await.unwrap_err();
    assert_eq!(error.code, Code::OutOfMemory, "{error}");
    let planned = client.plan(one()).await.unwrap();
    assert_eq!(first(&planned), "b");
    client.install(&planned).await.unwrap();
}

#[tokio::test]
async fn what_a_worker_reports_is_taken_and_may_be_freed_meanwhile() {
    let rig = rig().await;
    let script = Script::default();
    let memory = script.memory.clone();
    *memory.lock().unwrap() = full();
    let _worker = rig.worker("a", script).await;
    let client = rig.member(Role::Client, "").await;
    // A load that does not queue waits for a moment.
    let begun = Instant::now();
    let error = client.plan(one()).await.unwrap_err();
    assert_eq!(error.code, Code::OutOfMemory, "{error}");
    assert!(
        error.message.contains("a has 0 B of 983 MiB free"),
        "{error}"
    );
    assert!(begun.elapsed() < RETURN_BOUND, "{:?}", begun.elapsed());
    let queued = PlanOptions {
        intent: Intent::InstallInTurn { wait_ms: 9000 },
        ..one()
    };
    let queue = rig.running.tables();
    assert!(queue.await.unwrap().contains(&("loads that wait", 0)));
    let freed = async {
        while !rig
            .running
            .tables()
            .await
            .unwrap()
            .contains(&("loads that wait", 1))
        {}
        // A load that would have to wait says so, where it may not.
        let at_once = PlanOptions {
            intent: Intent::InstallInTurn { wait_ms: 0 },
            ..one()
        };
        let behind = client.plan(at_once).await.unwrap_err();
        assert!(behind.message.contains("1 load waits"), "{behind}");
        *memory.lock().unwrap() = MemoryReport::default();
    };
    let (planned, ()) = futures::join!(client.plan(queued.clone()), freed);
    assert_eq!(first(&planned.unwrap()), "a");
    // A client that gives up, or whose connection ends, waits no more.
    *memory.lock().unwrap() = full();
    let gives_up = tokio::time::timeout(Duration::from_millis(300), client.plan(queued.clone()));
    assert!(gives_up.await.is_err());
    let other = rig.member(Role::Client, "other").await;
    let gone = async {
        while !rig
            .running
            .tables()
            .await
            .unwrap()
            .contains(&("loads that wait", 1))
        {}
        other.connection.close(CLOSE_LOST, b"gone");
    };
    let (planned, ()) = futures::join!(other.plan(queued), gone);
    assert!(planned.is_err());
    let empty = async {
        while !rig
            .running
            .tables()
            .await
            .unwrap()
            .contains(&("loads that wait", 0))
        {}
    };
    tokio::time::timeout(Duration::from_secs(5), empty)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_model_is_planned_where_half_of_its_constants_are() {
    let rig = rig().await;
    let _workers = [
        rig.worker("a", Script::default()).await,
        rig.worker("b", Script::default()).await,
    ];
    let client = rig.member(Role::Client, "").await;
    // Two products with the first two MiB of a file, and two with the MiB that come after `skipped` more.
    let products = |skipped: usize| {
        let skipped: String = (0..skipped)
            .map(|i| format!("weight s{i}: f32[512, 512]\n"))
            .collect();
        parse(&format!(
            "param x: f32[4, 512]
             weight v: f32[512, 512]
             weight w: f32[512, 512]
             {skipped}
             weight y: f32[512, 512]
             weight z: f32[512, 512]
             a = MatMul(x, v)
             b = MatMul(a, w)
             c = MatMul(b, y)
             d = MatMul(c, z)
             result d"
        ))
    };
    let one = |f: &Function, pins: &[(&str, &str)]| PlanOptions {
        pins: pins
            .iter()
            .map(|(n, d)| ((*n).into(), (*d).into()))
            .collect(),
        ..options(f, WorkerCount::Exactly(1))
    };
    let at = |planned: &PlanAnswer| planned.participants[0].name.clone();
    let (first, other) = (products(0), products(2));
    let planned = client.plan_of(other.clone(), one(&other, &[])).await;
    assert_eq!(at(&planned.unwrap()), "a");
    let pinned = one(&first, &[("*", "b")]);
    let planned = client.plan_of(first, pinned).await.unwrap();
    let lease = client.install(&planned).await.unwrap().lease;
    let planned = client.plan_of(other.clone(), one(&other, &[])).await;
    assert_eq!(at(&planned.unwrap()), "b");
    answer(None, client.client.release(call(), lease).await).unwrap();
    let planned = client.plan_of(other.clone(), one(&other, &[])).await;
    assert_eq!(at(&planned.unwrap()), "a");
}
