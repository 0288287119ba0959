//! The output of `convoke status` on the coordinator's machine and from elsewhere.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use crate::common;

use common::cluster::Processes;
use common::waits::await_that;
use common::{Daemon, Finished, convoke, finish, fixture, run};

/// Asks the coordinator for its status through its Unix socket.
fn here(processes: &Processes, more: &[&str]) -> Finished {
    let folder = processes.path("coordinator");
    run(["status", "--state-dir", &folder].iter().chain(more))
}

/// Asks the coordinator for its status over the network, with a token.
fn from_afar(processes: &Processes, more: &[&str]) -> Finished {
    let token = processes.client_token();
    let args = [
        "status",
        "--connect",
        &processes.address,
        "--token-file",
        &token,
    ];
    run(args.iter().chain(more))
}

#[tokio::test]
async fn the_coordinators_machine_needs_no_token() {
    let processes = Processes::start("status", 3, "200MiB");
    // A run makes programs, links and budgets that `status` can show.
    let (model, inputs) = (fixture("digits/model.onnx"), fixture("digits/test.npz"));
    let args = [
        "run",
        model.to_str().unwrap(),
        "--inputs",
        inputs.to_str().unwrap(),
        "--workers",
        "3",
        "--steps",
        "1000000",
        "--connect",
        &processes.address,
        "--token-file",
        &processes.client_token(),
    ];
    let client = Daemon::start(args);
    await_that("it has a program", async || {
        let status = here(&processes, &["--json"]).expect(0).json();
        !status["leases"].as_array().unwrap().is_empty()
    })
    .await;
    let status = here(&processes, &["--json"]).expect(0).json();
    let member = &status["members"][0];
    for (id, prefix) in [
        (&member["incarnation"], "inc-"),
        (&member["status"]["incarnation"], "inc-"),
        (&status["leases"][0]["lease"], "lease-"),
    ] {
        assert!(id.as_str().unwrap().starts_with(prefix), "{status}");
    }
    let text = here(&processes, &[]).expect(0).stdout;
    let shown = member["incarnation"].as_str().unwrap();
    let version = member["version"].as_str().unwrap();
    let last = text.lines().find(|l| l.contains(shown)).expect("its row");
    assert!(last.ends_with(version), "{text}");
    assert!(text.contains("3 of 3 workers alive, 1 programs"), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}\n{text}");
    }
    assert_eq!(from_afar(&processes, &["--health"]).code, Some(0));
    assert_eq!(client.interrupt(), Some(130));
}

#[tokio::test]
async fn it_is_shown_again_until_somebody_has_seen_enough() {
    let processes = Processes::start("watch", 1, "100MiB");
    let folder = processes.path("coordinator");
    let watch = Daemon::start(["status", "--state-dir", &folder, "--json", "--watch=100ms"]);
    for _ in 0..3 {
        let status: serde_json::Value = serde_json::from_str(&watch.line()).unwrap();
        assert_eq!(status["members"][0]["name"], "w0");
    }
    assert_eq!(watch.interrupt(), Some(0));
    let refused = here(&processes, &["--watch=1ms"]).expect(2);
    assert!(refused.stderr.contains("at least 100ms"), "{refused:?}");
}

#[tokio::test]
async fn a_lost_worker_is_no_health_of_the_cluster() {
    let mut processes = Processes::start("health", 2, "100MiB");
    assert_eq!(from_afar(&processes, &["--health"]).code, Some(0));
    processes.kill_worker(1);
    await_that("the cluster is not well", async || {
        let asked = from_afar(&processes, &["--health"]);
        asked.code == Some(1) && asked.stderr.contains("worker w1 is lost")
    })
    .await;
    // The coordinator's process and the other worker are healthy.
    assert_eq!(here(&processes, &["--health"]).code, Some(0));
    // Without a folder or an address it is the cluster again, of the coordinator in the folder that it has by default.
    let states = processes.scratch.path("states");
    let default = states.join("convoke/coordinator");
    let health = || {
        let mut command = convoke(["status", "--health"]);
        finish(command.env("XDG_STATE_HOME", &states).spawn().unwrap())
    };
    health().expect(2);
    std::fs::create_dir_all(default.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(processes.path("coordinator"), &default).unwrap();
    let asked = health().expect(1);
    assert!(asked.stderr.contains("worker w1 is lost"), "{asked:?}");
    assert_eq!(
        from_afar(&processes, &["--health", "--member", "w0"]).code,
        Some(0)
    );
    let json = from_afar(&processes, &["--health", "--json"])
        .expect(1)
        .json();
    assert_eq!(json["error"]["code"], "peer_lost");
}
