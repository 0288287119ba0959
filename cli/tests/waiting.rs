//! A worker that cannot reach its coordinator, or that others could not reach, says so and waits.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use crate::common;

use std::fs::File;

use common::cluster::Processes;
use common::waits::await_that;
use common::{Daemon, run};
use rustix::process::Signal;

/// Starts a worker as an operator does; it logs to `NAME.log`.
fn start_worker(processes: &Processes, name: &str, join: &str, more: &[&str]) -> Daemon {
    let log = File::create(processes.scratch.path(&format!("{name}.log"))).unwrap();
    let args = [
        "worker",
        "--join",
        join,
        "--token-file",
        &processes.path("tokens/worker/token"),
        "--name",
        name,
        "--threads",
        "1",
        "--memory",
        "100MiB",
        "--cache",
        "0",
        "--state-dir",
        &processes.path(name),
    ];
    Daemon::logging(args.iter().chain(more), log)
}

fn log(processes: &Processes, name: &str) -> String {
    std::fs::read_to_string(processes.scratch.path(name)).unwrap_or_default()
}

fn health(processes: &Processes) -> (bool, String) {
    let asked = run(["status", "--health", "--state-dir", &processes.path("w0")]);
    (asked.code == Some(0), asked.stderr)
}

/// The rest of the line behind these words.
fn cause<'a>(text: &'a str, words: &str) -> &'a str {
    let (_, cause) = text.split_once(words).unwrap_or_else(|| panic!("{text}"));
    cause.lines().next().unwrap()
}

/// Why the worker w0 cannot return, as its log says it.
fn told(processes: &Processes) -> String {
    let log = log(processes, "w0.log");
    let line = cause(&log, "and tries again: ");
    line.split("; next line in").next().unwrap().to_owned()
}

#[tokio::test]
async fn a_worker_waits_for_its_coordinator() {
    let mut processes = Processes::prepare("waiting", "100MiB");
    // The coordinator leaves its token files when it ends.
    processes.start_coordinator();
    processes.kill_coordinator();
    let worker = start_worker(&processes, "w0", &processes.address, &[]);
    await_that("it says that it waits", async || {
        log(&processes, "w0.log").contains("waits for the coordinator at")
    })
    .await;
    let (well, why) = health(&processes);
    assert!(
        !well && why.contains("no contact with the coordinator"),
        "{why}"
    );
    processes.start_coordinator();
    assert!(worker.line().contains("worker w0 joined"));
    assert!(health(&processes).0);
    // The worker logged once for all its tries.
    assert_eq!(log(&processes, "w0.log").matches("waits for").count(), 1);

    processes.kill_coordinator();
    await_that("it says that it cannot return", async || {
        log(&processes, "w0.log").contains("cannot return to its cluster")
    })
    .await;
    // The cause is the one that its health knows.
    await_that("its health says why", async || {
        let (well, why) = health(&processes);
        !well && cause(&why, "no contact with the coordinator: ") == told(&processes)
    })
    .await;
    processes.start_coordinator();
    await_that("it is back", async || health(&processes).0).await;
    assert_eq!(
        log(&processes, "w0.log").matches("cannot return").count(),
        1
    );
    assert_eq!(worker.interrupt(), Some(0));
}

#[tokio::test]
async fn a_worker_that_waits_ends_when_it_is_told_to() {
    let mut processes = Processes::prepare("waiting-ends", "100MiB");
    processes.start_coordinator();
    processes.kill_coordinator();
    let worker = start_worker(&processes, "w0", &processes.address, &[]);
    await_that("it says that it waits", async || {
        log(&processes, "w0.log").contains("waits for the coordinator at")
    })
    .await;
    worker.signal(Signal::TERM);
    worker.wait();
}

#[tokio::test]
async fn an_address_that_other_machines_cannot_reach_is_warned_of() {
    let mut processes = Processes::prepare("loopback", "100MiB");
    processes.log_to_files("warn");
    processes.start_coordinator();
    processes.add_worker();
    assert_eq!(log(&processes, "coordinator.log"), "");
    let more = ["--advertise", "192.0.2.77:7071"];
    let _far = start_worker(&processes, "far", &processes.address, &more);
    for name in ["coordinator.log", "far.log"] {
        await_that("it is warned of", async || {
            log(&processes, name)
                .contains("cannot reach: have it join by an address of its network")
        })
        .await;
    }
}
