//! The operator of a cluster sees failed steps, although their callers say nothing.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use crate::common;

use common::cluster::Processes;
use common::run;
use common::waits::await_that;
use convoke::{Attrs, Code, Operand, Tensor};

fn gathered(x: &Tensor, at: &Tensor) -> convoke::Result<Tensor> {
    let operands = [Operand::Tensor(x), Operand::Tensor(at)];
    convoke::issue("Gather", Attrs::default(), &operands, 1).map(|mut made| made.remove(0))
}

fn check_line(log: &str, of: &str) {
    let lines: Vec<&str> = log
        .lines()
        .filter(|l| l.contains("a step failed"))
        .collect();
    let [line] = lines[..] else {
        panic!("{of}: {lines:?} of {log}")
    };
    for part in [
        "step=lease-",
        "function=",
        "op=Gather",
        "node=",
        "worker=w1",
        "client=client-",
        "token=",
        "code=kernel_failed",
        "cause=",
    ] {
        assert!(line.contains(part), "{of}: no {part} in {line}");
    }
}

#[tokio::test]
async fn a_failed_step_is_seen_without_its_caller() {
    let mut processes = Processes::prepare("failed-steps", "200MiB");
    processes.log_to_files("warn");
    processes.start_coordinator();
    (0..2).for_each(|_| processes.add_worker());
    let cluster = processes.connect().await;
    let device = cluster.device("w1").unwrap();
    let x = device.put([1f32, 2.]).unwrap();
    let good = device.put([1i64]).unwrap();
    let bad = device.put([9i64]).unwrap();
    let f = cluster.function(|t| Ok(vec![gathered(&t[0], &t[1])?]));
    f.call(&[x.clone(), good]).await.unwrap();
    let made = f.call(&[x, bad]).await;
    let error = match made {
        Err(e) => e,
        Ok(made) => made[0].fetch::<Vec<f32>>().await.unwrap_err(),
    };
    assert_eq!(error.code, Code::KernelFailed, "{error}");

    let read = |name: &str| {
        let path = processes.scratch.path(&format!("{name}.log"));
        std::fs::read_to_string(path).unwrap_or_default()
    };
    await_that("the coordinator says it", async || {
        read("coordinator").contains("a step failed")
    })
    .await;
    check_line(&read("coordinator"), "coordinator");
    check_line(&read("w1"), "w1");
    assert!(!read("w0").contains("a step failed"));
    let status = run([
        "status",
        "--connect",
        &processes.address,
        "--token-file",
        &processes.client_token(),
    ])
    .expect(0)
    .stdout;
    assert!(
        status.contains("steps failed at w1: 1 kernel_failed"),
        "{status}"
    );
    cluster.shutdown().await;
}
