//! `convoke bench`: the form of its report, and that no process or file is left. Times are not checked.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

use crate::common;

use std::process::Child;
use std::time::{Duration, Instant};

use common::{Finished, Scratch, convoke, finish};
use serde_json::Value;

/// Most that one that is interrupted may take to be gone, with all that it started, on a loaded machine.
const AT_ONCE: Duration = Duration::from_secs(10);

/// A run whose files are in a folder of its own, so that what it leaves is known as its own.
struct Bench {
    scratch: Scratch,
    child: Child,
}

impl Bench {
    fn start(name: &str, args: &[&str]) -> Bench {
        let scratch = Scratch::new(name);
        let mut command = convoke(["bench"].iter().chain(args));
        let child = command.env("XDG_RUNTIME_DIR", &scratch.0).spawn().unwrap();
        Bench { scratch, child }
    }

    /// Interrupts it as Ctrl-C does. It stops at once: whatever it measures would take far longer than this.
    fn interrupt(self) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        let since = Instant::now();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        self.finish().expect(130);
        let took = since.elapsed();
        assert!(took < AT_ONCE, "{took:?}");
    }

    /// Waits for its end, after which there is neither a process of it nor a file.
    fn finish(self) -> Finished {
        let folder = self.scratch.0.display().to_string();
        let done = finish(self.child);
        // A killed process disappears a moment later.
        let end = Instant::now() + common::BOUND;
        while !processes(&folder).is_empty() {
            assert!(Instant::now() < end, "{:?}", processes(&folder));
            std::thread::sleep(Duration::from_millis(5));
        }
        let left: Vec<_> = std::fs::read_dir(&self.scratch.0).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        done
    }
}

/// Processes of this binary whose command line or variables mention `text`.
fn processes(text: &str) -> Vec<String> {
    let folders = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = folders.filter_map(|f| {
        let read = |name: &str| {
            let bytes = std::fs::read(f.path().join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        let line = read("cmdline");
        let ours = line.starts_with("convoke ") || line.contains("/convoke ");
        let mentions = line.contains(text) || read("environ").contains(text);
        (ours && mentions).then_some(line)
    });
    lines.collect()
}

/// Checks that a result has the documented form.
#[track_caller]
fn check(result: &Value, name: &str, unit: &str, floor: Option<&str>) {
    assert_eq!(
        (&result["name"], &result["unit"]),
        (&name.into(), &unit.into()),
        "{result}"
    );
    let number = |v: &Value| v.as_f64().unwrap_or_else(|| panic!("{result}"));
    assert!(
        number(&result["p50"]) > 0. && number(&result["p99"]) > 0.,
        "{result}"
    );
    assert!(result["n"].as_u64() > Some(0), "{result}");
    match floor {
        Some(floor) => {
            assert_eq!(result["floor"]["name"], floor, "{result}");
            let beside = number(&result["floor"]["p50"]);
            let ratio = number(&result["p50"]) / beside;
            assert!(
                (number(&result["ratio"]) / ratio - 1.).abs() < 1e-9,
                "{result}"
            );
        }
        None => assert!(
            result["floor"].is_null() && result["ratio"].is_null(),
            "{result}"
        ),
    }
}

#[test]
fn an_embedded_cluster_is_measured() {
    let args = [
        "--json",
        "--only",
        "eager_add_local",
        "--only",
        "call_local",
        "--rounds",
        "1",
    ];
    let done = Bench::start("bench-embedded", &args).finish().expect(0);
    let report = done.json();
    let machine = &report["machine"];
    assert_eq!(machine["version"], env!("CARGO_PKG_VERSION"));
    for text in ["cpu", "kernel"] {
        assert!(
            machine[text].as_str().is_some_and(|t| !t.is_empty()),
            "{machine}"
        );
    }
    for number in ["cores", "memory_bytes"] {
        assert!(machine[number].as_u64() > Some(0), "{machine}");
    }
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 2, "{report}");
    check(&results[0], "call_local", "us", None);
    check(&results[1], "eager_add_local", "ns/op", Some("ndarray"));
}

#[test]
fn a_cluster_of_processes_is_measured() {
    let args = [
        "--json",
        "--only",
        "step_two_workers",
        "--only",
        "remote_add_fetch",
        "--only",
        "fan_out_4_cpu",
        "--only",
        "fan_out_4_datagrams",
        "--rounds",
        "1",
    ];
    let done = Bench::start("bench-processes", &args).finish().expect(0);
    assert_eq!(done.stderr, "", "{done:?}");
    let report = done.json();
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 4, "{report}");
    check(
        &results[0],
        "remote_add_fetch",
        "us",
        Some("quinn ping-pong"),
    );
    check(&results[1], "step_two_workers", "us", Some("quinn relay"));
    check(&results[2], "fan_out_4_cpu", "us", None);
    check(&results[3], "fan_out_4_datagrams", "datagrams", None);
    // Four operands, three intermediate values and a result cross, each in a datagram of its own.
    assert!(results[3]["p50"].as_f64() >= Some(8.), "{report}");
}

#[test]
fn one_that_is_interrupted_leaves_nothing() {
    let args = ["--only", "step_two_workers", "--rounds", "100000"];
    let bench = Bench::start("bench-interrupted", &args);
    let folder = bench.scratch.0.display().to_string();
    // Wait until the floor's last party runs.
    let end = Instant::now() + common::BOUND;
    while !processes(&folder)
        .iter()
        .any(|line| line.contains("--name a"))
    {
        assert!(Instant::now() < end, "{:?}", processes(&folder));
        std::thread::sleep(Duration::from_millis(5));
    }
    bench.interrupt();
}

/// The seconds of CPU time that a process has used.
fn busy(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.
}

/// A measurement that keeps its thread busy does not notice the signal itself.
#[test]
fn one_that_keeps_its_thread_busy_is_interrupted_too() {
    let args = ["--only", "compile_1m", "--rounds", "100000"];
    let bench = Bench::start("bench-busy", &args);
    let end = Instant::now() + common::BOUND;
    while busy(bench.child.id()) < 0.5 {
        assert!(Instant::now() < end, "it does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    bench.interrupt();
}

#[test]
fn an_unknown_name_is_refused_with_all_names() {
    let done = Bench::start("bench-unknown", &["--only", "speed", "--json"]);
    let error = done.finish().expect(2).json();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("there is no measurement 'speed'; there are: "),
        "{message}"
    );
    for name in ["exec_null_chain", "idle_rss", "device_NAME_matmul"] {
        assert!(message.contains(name), "{message}");
    }
    let own = [
        "--only",
        "cold_start",
        "--connect",
        "127.0.0.1:1",
        "--token-file",
        "none",
    ];
    let done = Bench::start("bench-elsewhere", &own).finish().expect(2);
    assert!(
        done.stderr
            .contains("'cold_start' is not measured with --connect"),
        "{done:?}"
    );
}
