//! A cluster of real processes: `up`, `run --connect` and `status`; nothing is left after Ctrl-C.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

use crate::common;

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Instant;

use common::{Daemon, Scratch, fixture, run};
use convoke_common::rpc::{ClusterStatus, MemberState};
use rustix::process::Signal;

/// Processes of this binary whose command line mentions `text`.
fn processes(text: &str) -> Vec<String> {
    let folders = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = folders.filter_map(|f| {
        let line = std::fs::read(f.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        (line.contains(text) && line.contains("--attached")).then_some(line)
    });
    lines.collect()
}

fn up(run_dir: &Path, workers: &str) -> (Daemon, serde_json::Value) {
    let daemon = Daemon::start([
        "up".as_ref(),
        "--workers".as_ref(),
        workers.as_ref(),
        "--listen".as_ref(),
        "127.0.0.1:0".as_ref(),
        "--threads".as_ref(),
        "1".as_ref(),
        "--memory".as_ref(),
        "1GiB".as_ref(),
        "--run-dir".as_ref(),
        run_dir.as_os_str(),
        "--json".as_ref(),
        "--log".as_ref(),
        "warn".as_ref(),
    ]);
    let ready = serde_json::from_str(&daemon.line()).unwrap();
    (daemon, ready)
}

#[test]
fn a_cluster_runs_tells_its_status_and_leaves_nothing() {
    let scratch = Scratch::new("up");
    let run_dir = scratch.path("run");
    let (daemon, ready) = up(&run_dir, "3");
    assert_eq!(ready["workers"], serde_json::json!(["w0", "w1", "w2"]));
    let address = ready["connect"].as_str().unwrap();
    let token = ready["client_token_file"].as_str().unwrap();
    let state = ready["state_dir"].as_str().unwrap();
    assert_eq!(processes(run_dir.to_str().unwrap()).len(), 4);
    let secret = std::fs::read_to_string(token).unwrap();
    assert!(processes(secret.trim()).is_empty());

    let (model, inputs) = (fixture("digits/model.onnx"), fixture("digits/test.npz"));
    let r = run([
        "run",
        model.to_str().unwrap(),
        "--inputs",
        inputs.to_str().unwrap(),
        "--connect",
        address,
        "--token-file",
        token,
        "--workers",
        "3",
        "--verify",
        "--json",
    ])
    .expect(0)
    .json();
    assert_eq!(r["workers"].as_array().unwrap().len(), 3, "{r}");
    assert_eq!(r["verify"]["bits_equal"], true, "{r}");

    let s = run([
        "status",
        "--connect",
        address,
        "--token-file",
        token,
        "--json",
    ])
    .expect(0)
    .json();
    let members = s["members"].as_array().unwrap();
    assert_eq!(members.len(), 3, "{s}");
    for m in members {
        assert_eq!(m["state"], "alive", "{s}");
        assert!(m["status"]["steps_done"].as_u64() > Some(0), "{s}");
        assert_eq!(m["status"]["live_steps"], 0, "{s}");
        for link in m["status"]["links"].as_array().unwrap() {
            assert_eq!(link["path"], "shm", "{s}");
        }
    }
    check_memory(&r, &s);
    // A worker that joins measures its links to the others, which takes some time.
    await_status(&ready, |s| {
        let links = s["links"].as_array().unwrap();
        let measured = |l: &serde_json::Value| l["bandwidth_bytes_per_second"].as_f64() > Some(0.);
        !links.is_empty() && links.iter().all(measured)
    });
    assert_eq!(s["relayed_weight_bytes"], 0);
    let text = run(["status", "--connect", address, "--token-file", token])
        .expect(0)
        .stdout;
    assert!(text.contains("3 of 3 workers alive"), "{text}");
    let head = text.lines().find(|l| l.contains("BANDWIDTH"));
    assert!(head.is_some() && text.contains("iB/s"), "{text}");

    run(["status", "--health", "--state-dir", state]).expect(0);
    let worker = run_dir.join("w0");
    run([
        "status",
        "--health",
        "--state-dir",
        worker.to_str().unwrap(),
    ])
    .expect(0);
    run([
        "status",
        "--health",
        "--connect",
        address,
        "--token-file",
        token,
        "--member",
        "w1",
    ])
    .expect(0);
    let none = run([
        "status",
        "--health",
        "--connect",
        address,
        "--token-file",
        token,
        "--member",
        "w9",
    ])
    .expect(1);
    assert_eq!(none.stderr, "unhealthy: there is no worker w9\n");

    let made = run([
        "token",
        "create",
        "--role",
        "client",
        "--ttl",
        "1h",
        "--state-dir",
        state,
    ])
    .expect(0);
    assert!(made.stdout.starts_with("convoke1-c-") && made.stdout.lines().count() == 1);

    let code = daemon.interrupt();
    assert_eq!(code, Some(0));
    assert!(!run_dir.exists());
    assert_eq!(processes(run_dir.to_str().unwrap()), Vec::<String>::new());
    let gone = run(["status", "--health", "--state-dir", state]).expect(1);
    assert_eq!(
        gone.stderr,
        format!("unhealthy: no coordinator and no worker runs with the state folder {state}\n")
    );
}

#[test]
fn children_end_with_a_parent_that_is_killed() {
    let scratch = Scratch::new("killed");
    let run_dir = scratch.path("run");
    let (daemon, ready) = up(&run_dir, "1");
    let socket = run_dir.join("w0/worker.sock");
    assert!(socket.exists());
    daemon.signal(Signal::KILL);
    // The worker removes its socket, and the coordinator its own, when they end.
    let admin = Path::new(ready["state_dir"].as_str().unwrap()).join("admin.sock");
    let end = Instant::now() + common::BOUND;
    while socket.exists() || admin.exists() || !processes(run_dir.to_str().unwrap()).is_empty() {
        assert!(
            Instant::now() < end,
            "{:?}",
            processes(run_dir.to_str().unwrap())
        );
        std::thread::yield_now();
    }
    // The keys are left, and the next cluster at the same place removes them.
    assert!(run_dir.join("tokens").exists());
    let (daemon, _) = up(&run_dir, "1");
    assert_eq!(daemon.interrupt(), Some(0));
    assert!(!run_dir.exists());
}

#[test]
fn a_cluster_that_cannot_start_leaves_nothing() {
    let scratch = Scratch::new("taken");
    let run_dir = scratch.path("run");
    let holder = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let listen = holder.local_addr().unwrap().to_string();
    let dir = run_dir.to_str().unwrap();
    let failed = run([
        "up",
        "--workers",
        "1",
        "--listen",
        &listen,
        "--run-dir",
        dir,
        "--json",
    ])
    .expect(1);
    assert_eq!(
        failed.json()["error"]["code"],
        "address_in_use",
        "{failed:#?}"
    );
    assert!(!run_dir.exists());
    assert!(processes(dir).is_empty());
}

/// Checks that each worker process, which ran its part of a model and nothing else, peaked as predicted, apart from its
/// base footprint.
#[track_caller]
fn check_memory(run: &serde_json::Value, status: &serde_json::Value) {
    // Buffers that the transport may hold or not, in both directions; links are measured as well. Code that runs for
    // the first time becomes resident, too, and a build without optimisation has megabytes of it.
    const NOISE: f64 = (if cfg!(debug_assertions) { 12 } else { 8 } << 20) as f64;
    for part in run["workers"].as_array().unwrap() {
        let members = status["members"].as_array().unwrap();
        let member = members.iter().find(|m| m["name"] == part["name"]).unwrap();
        let account = &member["status"];
        let bytes = |v: &serde_json::Value| v.as_f64().unwrap();
        let base = bytes(&account["memory_used_bytes"]["base"]);
        let measured = bytes(&account["resident_peak_bytes"]) - base;
        let predicted = bytes(&part["peak_bytes"]);
        let tolerance = (0.15 * predicted).max(NOISE);
        assert!(
            (measured - predicted).abs() <= tolerance,
            "{measured} bytes above {base}, predicted {predicted}: {part} {account}"
        );
    }
}

/// Makes a command that uses the cluster that `up` has announced.
fn using<'a>(ready: &'a serde_json::Value, args: &[&'a str]) -> Command {
    let text = |field: &str| ready[field].as_str().unwrap();
    let (address, token) = (text("connect"), text("client_token_file"));
    let cluster = ["--connect", address, "--token-file", token, "--json"];
    common::convoke(args.iter().copied().chain(cluster))
}

fn status(ready: &serde_json::Value) -> serde_json::Value {
    let status = using(ready, &["status"]).spawn().unwrap();
    common::finish(status).expect(0).json()
}

/// Runs `steps` steps of the digits model over three workers.
fn digits(ready: &serde_json::Value, steps: &str) -> Child {
    let (model, inputs) = (fixture("digits/model.onnx"), fixture("digits/test.npz"));
    let (model, inputs) = (model.to_str().unwrap(), inputs.to_str().unwrap());
    let args = [
        "run",
        model,
        "--inputs",
        inputs,
        "--workers",
        "3",
        "--steps",
        steps,
    ];
    using(ready, &args).spawn().unwrap()
}

/// Asks for the status until it is as wanted, within a bound.
#[track_caller]
fn await_status(ready: &serde_json::Value, wanted: impl Fn(&serde_json::Value) -> bool) {
    let end = Instant::now() + common::BOUND;
    loop {
        let s = status(ready);
        if wanted(&s) {
            return;
        }
        assert!(Instant::now() < end, "{s}");
    }
}

/// Whether the second worker has done steps.
fn is_running(s: &serde_json::Value) -> bool {
    s["members"][1]["status"]["steps_done"].as_u64() > Some(0)
}

/// Sends a signal to the child process with this state folder.
fn signal(state_dir: &Path, signal: Signal) {
    let folders = std::fs::read_dir("/proc").unwrap().flatten();
    let found = folders.filter_map(|f| {
        let line = std::fs::read(f.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let folder = format!("--state-dir {} ", state_dir.display());
        let is = line.contains("--attached") && line.contains(&folder);
        is.then(|| f.file_name().to_str()?.parse::<i32>().ok())?
    });
    let pid = rustix::process::Pid::from_raw(found.last().unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Kills the child process with this state folder.
fn kill(state_dir: &Path) {
    signal(state_dir, Signal::KILL);
}

#[test]
fn workers_and_coordinator_are_watched_while_a_worker_cannot_be_started() {
    let scratch = Scratch::new("watched");
    let run_dir = scratch.path("run");
    let (daemon, ready) = up(&run_dir, "2");
    let token = Path::new(ready["worker_token_file"].as_str().unwrap());
    let secret = std::fs::read(token).unwrap();
    std::fs::remove_file(token).unwrap();
    let state = |s: &serde_json::Value, i: usize| s["members"][i]["state"].clone();
    let incarnation = |s: &serde_json::Value| s["members"][1]["incarnation"].clone();
    kill(&run_dir.join("w0"));
    await_status(&ready, |s| state(s, 0) == "lost");
    // The second worker, too, is restarted once that is possible.
    let before = incarnation(&status(&ready));
    kill(&run_dir.join("w1"));
    await_status(&ready, |s| state(s, 1) == "lost");
    std::fs::write(token, secret).unwrap();
    await_status(&ready, |s| {
        state(s, 0) == "alive" && state(s, 1) == "alive" && incarnation(s) != before
    });

    std::fs::remove_file(token).unwrap();
    kill(&run_dir.join("w0"));
    await_status(&ready, |s| state(s, 0) == "lost");
    kill(&run_dir.join("coordinator"));
    assert_eq!(daemon.wait(), Some(1));
    assert!(processes(run_dir.to_str().unwrap()).is_empty());
    assert!(!run_dir.exists());
}

/// A worker's cells in the table of members, by column, gathered from all parts of the table, each of which has a head.
fn row(text: &str, worker: &str) -> BTreeMap<String, String> {
    let cells = |line: &str| -> Vec<String> {
        let cells = line.split("  ").map(str::trim);
        cells.filter(|c| !c.is_empty()).map(Into::into).collect()
    };
    let table = text.lines().skip(1).take_while(|l| l.starts_with("  "));
    let (mut head, mut row) = (vec![], BTreeMap::new());
    for line in table.map(cells) {
        match &*line[0] {
            "WORKER" => head = line,
            name if name == worker => row.extend(head.iter().cloned().zip(line)),
            _ => {}
        }
    }
    row
}

#[test]
fn status_tells_when_each_member_was_seen_and_what_was_refused() {
    let scratch = Scratch::new("seen");
    let run_dir = scratch.path("run");
    let (daemon, ready) = up(&run_dir, "2");
    // A stranger opens TCP connections, which look like tripwires that no member announced.
    let before: ClusterStatus = serde_json::from_value(status(&ready)).unwrap();
    for address in [
        ready["connect"].as_str().unwrap(),
        &before.members[1].address,
    ] {
        drop(TcpStream::connect(address).unwrap());
    }
    signal(&run_dir.join("w0"), Signal::STOP);
    await_status(&ready, |s| {
        let [lost, serving] = [0, 1].map(|i| &s["members"][i]);
        let one = |refused: &serde_json::Value| refused["tripwire_unknown"] == 1;
        let seen = lost["last_seen_ms"].as_u64();
        lost["state"] == "lost"
            && seen > Some(1000)
            && one(&s["refused"])
            && one(&serving["status"]["refused"])
    });
    let asked = Instant::now();
    let told: ClusterStatus = serde_json::from_value(status(&ready)).unwrap();
    let text = |field: &str| ready[field].as_str().unwrap();
    let (address, token) = (text("connect"), text("client_token_file"));
    let text = run(["status", "--connect", address, "--token-file", token])
        .expect(0)
        .stdout;
    let passed = asked.elapsed().as_millis() as u64;
    for by in ["the coordinator", "w1"] {
        let line = format!("refused by {by}: 1 tripwire_unknown\n");
        assert!(text.contains(&line), "{text}");
    }
    for (m, was) in told.members.iter().zip(&before.members) {
        let row = row(&text, &m.name);
        assert_eq!(m.incarnation, was.incarnation);
        assert_eq!(row["INCARNATION"], m.incarnation.to_string(), "{text}");
        // A worker that answers is seen whenever somebody asks.
        let (state, least) = match m.state {
            MemberState::Lost => ("lost", m.last_seen_ms),
            _ => ("alive", 0),
        };
        assert!(row["STATE"].starts_with(state), "{text}");
        assert!(m.last_seen_ms <= least + passed, "{m:?}");
        let seen = row["LAST SEEN"].strip_suffix(" s ago");
        let seen: u64 = seen.and_then(|s| s.parse().ok()).unwrap();
        let possible = least / 1000..=(least + passed) / 1000;
        assert!(possible.contains(&seen), "{possible:?}: {text}");
    }
    signal(&run_dir.join("w0"), Signal::CONT);
    assert_eq!(daemon.interrupt(), Some(0));
}

#[test]
fn a_killed_worker_comes_back() {
    let scratch = Scratch::new("kill");
    let run_dir = scratch.path("run");
    let (daemon, ready) = up(&run_dir, "3");
    let first = status(&ready)["members"][1]["incarnation"].clone();
    kill(&run_dir.join("w1"));
    // The worker may be back before anybody looks.
    await_status(&ready, |s| {
        let w1 = &s["members"][1];
        w1["state"] == "lost" || w1["incarnation"] != first
    });
    // The next run waits for the third worker, which is restarted.
    let again = common::finish(digits(&ready, "1")).expect(0).json();
    assert_eq!(again["workers"].as_array().unwrap().len(), 3, "{again}");
    assert_eq!(daemon.interrupt(), Some(0));
    assert!(!run_dir.exists());
}

#[test]
fn ctrl_c_ends_a_run_and_leaves_nothing_running() {
    let scratch = Scratch::new("interrupt");
    let (daemon, ready) = up(&scratch.path("run"), "3");
    let long = digits(&ready, "1000000");
    await_status(&ready, |s| {
        is_running(s) && s["leases"].as_array().is_some_and(|l| l.len() == 1)
    });
    let pid = rustix::process::Pid::from_raw(long.id() as i32).unwrap();
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    let ended = common::finish(long).expect(130);
    assert_eq!(ended.json()["error"]["code"], "cancelled", "{ended:?}");
    let nothing = |list: &serde_json::Value| list.as_array().is_some_and(Vec::is_empty);
    let free = |m: &serde_json::Value| {
        let w = &m["status"];
        w["live_steps"] == 0 && nothing(&w["programs"]) && w["memory_used_bytes"]["steps"] == 0
    };
    await_status(&ready, |s| {
        nothing(&s["leases"]) && s["members"].as_array().unwrap().iter().all(free)
    });
    // The cluster still works.
    common::finish(digits(&ready, "2")).expect(0);
    assert_eq!(daemon.interrupt(), Some(0));
}
