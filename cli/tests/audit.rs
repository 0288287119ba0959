//! The coordinator's audit file says who was let in, who was refused and what was revoked.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use crate::common;

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use common::cluster::Processes;
use common::run;
use convoke_common::admission::join;
use convoke_common::identity::{JoinToken, Role};
use convoke_common::world::{NoCompute, World};
use serde_json::Value;

fn file(processes: &Processes) -> PathBuf {
    processes.scratch.path("coordinator/audit.log")
}

/// Reads the audit file, once all earlier events are written.
fn read(processes: &Processes) -> String {
    let state = processes.path("coordinator");
    run(["status", "--health", "--state-dir", &state]).expect(0);
    std::fs::read_to_string(file(processes)).unwrap()
}

fn lines(text: &str) -> Vec<Value> {
    let line = |l: &str| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"));
    text.lines().map(line).collect()
}

#[track_caller]
fn check(lines: &[Value], expected: Value) {
    let expected = expected.as_object().unwrap();
    let is = |l: &&Value| expected.iter().all(|(key, value)| l[key] == *value);
    let found: Vec<&Value> = lines.iter().filter(is).collect();
    let [line] = found[..] else {
        panic!("{expected:?}: {found:?} of {lines:#?}")
    };
    let address = line
        .get("address")
        .map(|a| a.as_str().unwrap().parse::<SocketAddr>());
    let owners = ["token_created", "token_revoked"].contains(&line["event"].as_str().unwrap());
    match address {
        Some(address) => assert!(address.unwrap().ip().is_loopback() && !owners, "{line}"),
        None => assert!(owners, "{line}"),
    }
}

#[tokio::test]
async fn joins_refusals_and_revocations_are_recorded_without_secrets() {
    let mut processes = Processes::prepare("audit", "200MiB");
    processes.log_to_files("info");
    processes.start_coordinator();
    processes.add_worker();
    let world = World::real(Arc::new(NoCompute));
    let state = processes.path("coordinator");
    let token = |path: &str| JoinToken::from_file(world.store.as_ref(), path.as_ref()).unwrap();
    let worker = token(&processes.path("tokens/worker/token"));
    let made = ["token", "create", "--role", "client", "--state-dir", &state];
    let client: JoinToken = run(made).expect(0).stdout.trim().parse().unwrap();
    let forged = JoinToken {
        secret: worker.secret.clone(),
        ..client.clone()
    };
    let refused = join(
        &world,
        &processes.address,
        &forged,
        Role::Client,
        "intruder",
    )
    .await;
    assert!(refused.is_err());
    run(["token", "revoke", client.id.as_str(), "--state-dir", &state]).expect(0);

    let mode = std::fs::metadata(file(&processes))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = read(&processes);
    let told = lines(&text);
    let (of_worker, of_client) = (worker.id.as_str(), client.id.as_str());
    for event in ["joined", "registered"] {
        let member = serde_json::json!({
            "event": event, "role": "worker", "name": "w0", "token": of_worker
        });
        check(&told, member);
    }
    let refusal = serde_json::json!({
        "event": "join_refused", "role": "client", "name": "intruder", "token": of_client,
        "code": "unauthorized", "cause": "the join token is unknown here", "others": 0
    });
    check(&told, refusal);
    for event in ["token_created", "token_revoked"] {
        check(
            &told,
            serde_json::json!({"event": event, "token": of_client}),
        );
    }
    // The log for people says the same.
    let log = std::fs::read_to_string(processes.scratch.path("coordinator.log")).unwrap();
    for (what, token) in [
        ("joined", of_worker),
        ("worker registered", of_worker),
        ("a join was refused", of_client),
    ] {
        let line = log.lines().find(|l| l.contains(what)).unwrap();
        let token = format!("token={token}");
        let named = line.contains(&token) && line.contains(" address=127.");
        assert!(named, "{line}");
    }
    let text = text + &log;
    for token in [&worker, &client] {
        let line = token.to_string();
        let secret = line.split('-').nth(3).unwrap();
        assert!(secret.len() == 32 && !text.contains(secret), "{text}");
    }

    // The process is killed while it writes a line, and goes on with the next.
    processes.kill_coordinator();
    let mut log = std::fs::File::options()
        .append(true)
        .open(file(&processes))
        .unwrap();
    log.write_all(b"{\"time\":\"20").unwrap();
    processes.start_coordinator();
    let again = read(&processes);
    let end: Vec<&str> = again.lines().skip(told.len()).collect();
    assert_eq!(end[0], "{\"time\":\"20");
    let started: Value = serde_json::from_str(end[1]).unwrap();
    assert_eq!(started["event"], "started");
}
