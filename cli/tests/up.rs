//! A cluster of real processes: `up`, `run --connect`, `status`, and what is left after Ctrl-C.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

mod common;

use std::path::Path;

use common::{Daemon, Scratch, fixture, run};

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
        assert_eq!(m["alive"], true, "{s}");
        assert!(m["status"]["steps_done"].as_u64() > Some(0), "{s}");
        assert_eq!(m["status"]["live_steps"], 0, "{s}");
    }
    assert_eq!(s["weight_bytes_relayed"], 0);
    let text = run(["status", "--connect", address, "--token-file", token])
        .expect(0)
        .stdout;
    assert!(text.contains("3 of 3 workers there"), "{text}");

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
    daemon.signal(rustix::process::Signal::KILL);
    // The worker removes its socket, and the coordinator its own, when they end.
    let admin = Path::new(ready["state_dir"].as_str().unwrap()).join("admin.sock");
    let end = std::time::Instant::now() + common::BOUND;
    while socket.exists() || admin.exists() || !processes(run_dir.to_str().unwrap()).is_empty() {
        assert!(
            std::time::Instant::now() < end,
            "{:?}",
            processes(run_dir.to_str().unwrap())
        );
        std::thread::yield_now();
    }
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

#[test]
fn a_killed_worker_is_named_and_comes_back() {
    let scratch = Scratch::new("kill");
    let run_dir = scratch.path("run");
    let (daemon, ready) = up(&run_dir, "3");
    let address = ready["connect"].as_str().unwrap();
    let token = ready["client_token_file"].as_str().unwrap();
    let (model, inputs) = (fixture("digits/model.onnx"), fixture("digits/test.npz"));
    let digits = |steps: &str| {
        let (model, inputs) = (model.to_str().unwrap(), inputs.to_str().unwrap());
        common::convoke([
            "run",
            model,
            "--inputs",
            inputs,
            "--connect",
            address,
            "--token-file",
            token,
            "--workers",
            "3",
            "--steps",
            steps,
            "--json",
        ])
        .spawn()
        .unwrap()
    };
    let long = digits("1000000");
    let w1 = run_dir.join("w1");
    let pid = |dir: &Path| {
        let folders = std::fs::read_dir("/proc").unwrap().flatten();
        let found = folders.filter_map(|f| {
            let line = std::fs::read(f.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let is = line.contains("--attached") && line.contains(&format!("{} ", dir.display()));
            is.then(|| f.file_name().to_str()?.parse::<i32>().ok())?
        });
        found.last().unwrap()
    };
    let status = || {
        let s = [
            "status",
            "--connect",
            address,
            "--token-file",
            token,
            "--json",
        ];
        run(s).expect(0).json()
    };
    let end = std::time::Instant::now() + common::BOUND;
    while status()["members"][1]["status"]["steps_done"]
        .as_u64()
        .unwrap_or(0)
        == 0
    {
        assert!(std::time::Instant::now() < end, "no step was done");
    }
    let pid = rustix::process::Pid::from_raw(pid(&w1)).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let failed = common::finish(long).expect(1).json();
    assert_eq!(failed["error"]["code"], "peer_lost", "{failed}");
    let message = failed["error"]["message"].as_str().unwrap();
    assert!(message.contains("w1"), "{message}");
    // The next run waits for the third worker, which is started again.
    let again = common::finish(digits("1")).expect(0).json();
    assert_eq!(again["workers"].as_array().unwrap().len(), 3, "{again}");
    assert_eq!(daemon.interrupt(), Some(0));
    assert!(!run_dir.exists());
}
