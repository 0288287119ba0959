//! Runs a cluster on a machine that is far too busy: no member may be given up.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use convoke::Retry;
use convoke_common::rpc::MemberState;

use crate::common::cluster::Processes;
use crate::load::{call, ring};

/// The argument of the process that keeps the machine busy.
pub const BURN: &str = "burn";
/// The number of busy threads for each core.
const THREADS: usize = 4;
/// The pause between steps, so that links are used without being the only load.
const PAUSE: Duration = Duration::from_millis(20);
/// The log filter with which processes report the end of a connection that they watch.
const FILTER: &str =
    "warn,convoke_coordinator::service::accept=info,convoke_rendezvous::link::remote=debug";
const LOSSES: [&str; 3] = ["lost contact", "connection ended", "link ended"];

/// The process that keeps the machine busy; dropping it kills the process.
struct Burner(Child);

impl Burner {
    fn start() -> Burner {
        let own = std::env::current_exe().unwrap();
        let burner = Command::new(own).arg(BURN).stdin(Stdio::piped()).spawn();
        Burner(burner.unwrap())
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        // This fails only if the process is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Keeps the machine busy until this process is killed, or the other end of its stdin is closed.
pub fn burn() -> bool {
    for seed in 0..THREADS * cores() {
        std::thread::spawn(move || {
            let mut x = seed as u64 | 1;
            loop {
                x = std::hint::black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1));
            }
        });
    }
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).is_ok()
}

/// The lines of the processes' logs that report a loss.
fn losses(processes: &Processes) -> Vec<String> {
    let names = ["coordinator", "w0", "w1", "w2"];
    let logs = names.map(|name| {
        let text = std::fs::read_to_string(processes.scratch.path(&format!("{name}.log"))).unwrap();
        let lines = text
            .lines()
            .filter(|l| LOSSES.iter().any(|loss| l.contains(loss)));
        lines.map(|l| format!("{name}: {l}")).collect::<Vec<_>>()
    });
    logs.concat()
}

/// Runs steps for `time` on the busy machine, and prints a row. Returns whether nothing was lost.
pub async fn run(time: Duration) -> bool {
    let mut processes = Processes::prepare("false-alarm", "1GiB");
    processes.log_to_files(FILTER);
    processes.start_coordinator();
    (0..3).for_each(|_| processes.add_worker());
    let cluster = processes.connect().await;
    let model = ring(&cluster).await.unwrap();
    let before = cluster.status().await.unwrap();
    let _burner = Burner::start();
    let (start, mut steps, mut longest, mut failed) =
        (Instant::now(), 0u64, Duration::ZERO, vec![]);
    while start.elapsed() < time && failed.len() < 10 {
        let began = Instant::now();
        match call(&model, Retry::Off).await {
            Ok(_) => steps += 1,
            Err(e) => failed.push(e.to_string()),
        }
        longest = longest.max(began.elapsed());
        tokio::time::sleep(PAUSE).await;
    }
    let lost = losses(&processes);
    let after = cluster.status().await.unwrap();
    let stayed = before.members.iter().zip(&after.members).all(|(b, a)| {
        b.incarnation == a.incarnation && a.state == MemberState::Alive && a.tripwire
    });
    let links: usize = after
        .members
        .iter()
        .flat_map(|m| &m.status)
        .map(|s| s.links.len())
        .sum();
    for line in failed.iter().chain(&lost) {
        eprintln!("{line}");
    }
    println!(
        "| time | busy threads | links at workers | steps | longest step | steps that failed | losses |\n\
         |---|---|---|---|---|---|---|\n\
         | {:.0} min | {} on {} cores | {links} | {steps} | {:.2} s | {} | {} |",
        start.elapsed().as_secs_f64() / 60.0,
        THREADS * cores(),
        cores(),
        longest.as_secs_f64(),
        failed.len(),
        lost.len()
    );
    cluster.shutdown().await;
    failed.is_empty() && lost.is_empty() && stayed && links == 9
}
