//! Tests of custom ops on real processes, some of which have no kernel for them: where ops run, and how failures are
//! reported.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

#[path = "../../../cli/tests/common/mod.rs"]
mod common;
#[path = "../examples/sparse/solve.rs"]
mod solve;

use common::cluster::{ANYWHERE, Processes};
use common::kernels::in_kernel;
use common::waits::await_member;
use common::{BOUND, Daemon, run};
use convoke::{Cluster, Code, Device, Error, Function, Tensor};
use convoke_common::rpc::MemberState;
use convoke_custom_op::faulty::{FAULTY, how};

const NONE: [(&str, &str); 1] = [("OPS", "none")];
const OTHER: [(&str, &str); 1] = [("OPS", "other")];

/// Starts a cluster whose workers have these variables in their environment, which select their ops; see
/// `convoke-custom`.
fn cluster(name: &str, workers: &[&[(&'static str, &'static str)]]) -> Processes {
    let mut processes = Processes::prepare(name, "256MiB");
    processes.start_coordinator();
    for variables in workers {
        let own = |(k, v): &(&'static str, &str)| (*k, (*v).to_owned());
        processes.variables = variables.iter().map(own).collect();
        processes.add_worker();
    }
    processes
}

async fn devices(cluster: &Cluster) -> Vec<Device> {
    cluster.devices().await.unwrap()
}

/// A traced function that runs the op between two others.
fn traced(cluster: &Cluster, way: &'static str) -> Function {
    cluster.function(move |t: &[Tensor]| {
        let x = (&t[0] + 1)?;
        Ok(vec![(convoke::op(&FAULTY, how(way), [&x])? * 2)?])
    })
}

async fn within<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, wait).await.unwrap()
}

/// Checks that an error names the op and the worker where it occurred.
fn check_site(e: &Error, worker: &str) {
    let site = e.site.as_ref().unwrap();
    assert_eq!(site.worker.as_deref(), Some(worker), "{e}");
    assert_eq!(site.op.as_deref(), Some("example.Faulty"), "{e}");
    let text = e.to_string();
    assert!(text.contains("tests/processes.rs:"), "{text}");
}

#[tokio::test]
async fn an_op_that_goes_wrong_fails_its_step_and_nothing_else() {
    let processes = cluster("faulty", &[&[]]);
    let client = processes.connect().await;
    let device = &devices(&client).await[0];
    let x = device.put(vec![1f32, 2.]).unwrap();
    let good = traced(&client, "");
    for (way, code, why) in [
        ("fail", Code::KernelFailed, "this op fails"),
        ("panic", Code::KernelPanicked, "this op panics"),
        ("allocate", Code::OutOfMemory, ""),
        ("shape", Code::KernelFailed, "its rule says f32[2]"),
    ] {
        let eager = convoke::op(&FAULTY, how(way), [&x]).unwrap();
        let dependent = (&eager + 1).unwrap();
        for (what, e) in [
            (
                "eager",
                within(eager.fetch::<Vec<f32>>()).await.unwrap_err(),
            ),
            (
                "dependent",
                within(dependent.fetch::<Vec<f32>>()).await.unwrap_err(),
            ),
            (
                "traced",
                within(traced(&client, way).call(std::slice::from_ref(&x)))
                    .await
                    .unwrap_err(),
            ),
        ] {
            assert_eq!(e.code, code, "{way}, {what}: {e}");
            assert!(e.message.contains(why), "{way}, {what}: {e}");
            check_site(&e, "w0");
        }
        let y = good.call(std::slice::from_ref(&x)).await.unwrap();
        assert_eq!(within(y[0].fetch::<Vec<f32>>()).await.unwrap(), [4., 6.]);
    }
    // An error of the op's rule is reported at the call.
    let e = convoke::op(&FAULTY, convoke::Attrs::default(), [&x]).unwrap_err();
    assert_eq!(e.code, Code::InvalidArgument, "{e}");
    client.shutdown().await;
}

#[tokio::test]
async fn nodes_are_planned_where_their_kernel_is_also_after_a_loss() {
    let mut processes = cluster("placed", &[&NONE, &[], &[], &OTHER]);
    let client = processes.connect().await;
    let all = devices(&client).await;
    let x = all[0].put(vec![1f32, 2.]).unwrap();
    let step = traced(&client, "");
    let call = async || -> Result<String, Error> {
        let y = within(step.call(std::slice::from_ref(&x))).await?.remove(0);
        assert_eq!(within(y.fetch::<Vec<f32>>()).await?, [4., 6.]);
        let plan = step.plan(std::slice::from_ref(&x)).await?;
        let parts = plan.parts.iter().filter(|p| p.name != "w0");
        Ok(parts.map(|p| p.name.clone()).collect::<Vec<_>>().join(" "))
    };
    let first = call().await.unwrap();
    assert!(["w1", "w2"].contains(&&*first), "{first}");
    let (lost, left) = if first == "w1" { (1, "w2") } else { (2, "w1") };
    processes.kill_worker(lost);
    assert_eq!(call().await.unwrap(), left);
    processes.kill_worker(3 - lost);
    let e = call().await.unwrap_err();
    assert_eq!(e.code, Code::UnsupportedOp, "{e}");
    let text = e.to_string();
    assert!(
        text.contains("no worker has a kernel of the op 'example.Faulty'"),
        "{text}"
    );
    assert!(
        text.contains("w0, w3") && text.contains("that of w3"),
        "{text}"
    );

    // A worker that joins later has the kernel, as `status` shows.
    processes.variables = vec![];
    processes.add_worker();
    await_member(&client, "w4", |m| m.state == MemberState::Alive).await;
    assert_eq!(call().await.unwrap(), "w4");
    let (token, address) = (processes.client_token(), &processes.address);
    let told = run(["status", "--connect", address, "--token-file", &token]).expect(0);
    let line = "w4 has custom ops: example.Faulty, example.SoftThreshold\n";
    assert!(told.stdout.contains(line), "{}", told.stdout);
    client.shutdown().await;
}

#[tokio::test]
async fn a_device_without_the_kernel_says_so_at_the_call() {
    let processes = cluster("lacks", &[&NONE, &OTHER, &[]]);
    let client = processes.connect().await;
    let all = devices(&client).await;
    let issue = |device: &Device| {
        let x = device.put(vec![1f32]).unwrap();
        convoke::op(&FAULTY, how(""), [&x])
    };
    let check = |i: usize, why: &str| {
        let e = convoke::with_device(&all[i], || issue(&all[2])).map(drop);
        let e = e.unwrap_err();
        assert_eq!(e.code, Code::UnsupportedOp, "{e}");
        let text = e.to_string();
        assert!(
            text.contains(why) && text.contains("one that has it: w2"),
            "{text}"
        );
        assert!(text.contains("tests/processes.rs:"), "{text}");
    };
    check(0, "worker w0 has no kernel of the op 'example.Faulty'");
    check(
        1,
        "worker w1 has another definition of the op 'example.Faulty'",
    );
    // Where nothing names a device, a device that has the kernel is chosen.
    for (i, why) in [
        (2, "4 of 4 operand bytes"),
        (0, "the fastest that has a kernel"),
    ] {
        let y = issue(&all[i]).unwrap();
        assert_eq!(within(y.fetch::<Vec<f32>>()).await.unwrap(), [1.]);
        assert_eq!(y.device().unwrap(), all[2]);
        assert!(y.explain().contains(why), "{}", y.explain());
    }
    let y = issue(&all[2]).unwrap();
    // In a trace, a device scope is refused at the op, and a pin when the function is planned.
    let function = |pin: bool| {
        let to = all[0].clone();
        client.function(move |t: &[Tensor]| {
            let op = || convoke::op(&FAULTY, how(""), [&t[0]]);
            Ok(vec![match pin {
                true => op()?.on(&to)?,
                false => convoke::with_device(&to, op)?,
            }])
        })
    };
    for (pin, why) in [
        (false, "worker w0 has no kernel"),
        (true, "is to run on worker w0"),
    ] {
        let f = function(pin);
        let e = within(f.call(std::slice::from_ref(&y))).await.unwrap_err();
        assert_eq!(e.code, Code::UnsupportedOp, "{e}");
        assert!(e.to_string().contains(why), "{e}");
    }
    client.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_op_that_hangs_wedges_its_worker() {
    let mut processes = cluster("hangs", &[&[], &[], &[]]);
    let client = processes.connect().await;
    let all = devices(&client).await;

    // A kernel that checks its cancel flag is cancelled with its call.
    let x = all[2].put(vec![1f32, 2.]).unwrap();
    let waiting = traced(&client, "wait");
    let operand = [x.clone()];
    let waiting = tokio::spawn(async move { waiting.call(&operand).await });
    in_kernel(&processes.scratch.path("w2")).await;
    waiting.abort();
    let y = within(traced(&client, "").call(&[x])).await.unwrap();
    assert_eq!(within(y[0].fetch::<Vec<f32>>()).await.unwrap(), [4., 6.]);

    // A kernel that does not check the flag ends with its worker, both in a step that ended and in a session that
    // ended.
    let x = all[0].put(vec![1f32, 2.]).unwrap();
    let hanging = traced(&client, "hang");
    let operand = [x.clone()];
    let first = tokio::spawn(async move { hanging.call(&operand).await });
    let other = processes.connect().await;
    let eager = devices(&other).await[1].put(vec![1f32]).unwrap();
    let eager = convoke::op(&FAULTY, how("hang"), [&eager]).unwrap();
    in_kernel(&processes.scratch.path("w0")).await;
    in_kernel(&processes.scratch.path("w1")).await;
    first.abort();
    drop(eager);
    other.shutdown().await;
    let wedged = |m: &convoke_common::rpc::MemberStatus| {
        m.state != MemberState::Alive && m.remark.contains("did not stop within 5s")
    };
    let status = await_member(&client, "w0", wedged).await;
    let remark = &status
        .members
        .iter()
        .find(|m| m.name == "w0")
        .unwrap()
        .remark;
    assert!(remark.contains("example.Faulty at"), "{remark}");
    for i in 0..2 {
        assert_eq!(processes.workers[i].take().unwrap().wait(), Some(1));
    }
    let gone = within(x.fetch::<Vec<f32>>()).await.unwrap_err();
    assert!(matches!(gone.code, Code::PeerLost | Code::Wedged), "{gone}");
    client.shutdown().await;
}

#[tokio::test]
async fn the_example_runs_on_workers_of_its_binary() {
    let processes = cluster("example", &[]);
    let (token, address) = (processes.path("tokens/worker/token"), &processes.address);
    // `custom-worker` takes the flags of `convoke worker`.
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_custom-worker"));
    let flags = [
        "--attached",
        "--json",
        "--log",
        "error",
        "--cache",
        "0",
        "--memory",
        "256MiB",
    ];
    command.args([
        "--join",
        address,
        "--token-file",
        &token,
        "--listen",
        ANYWHERE,
    ]);
    command.args(["--state-dir", &processes.path("custom"), "--name", "custom"]);
    command.args(flags).stdout(std::process::Stdio::piped());
    let worker = Daemon::spawn(&mut command);
    let ready: serde_json::Value = serde_json::from_str(&worker.line()).unwrap();
    assert_eq!(ready["name"], "custom");
    let client = processes.connect().await;
    within(solve::run(&client)).await.unwrap();
    client.shutdown().await;
    assert_eq!(worker.interrupt(), Some(0));
}
