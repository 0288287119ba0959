//! Runs a mixed load on four workers while processes are killed, stopped, told to end and restarted: every call ends in
//! time, with the right bits or with a cause that is one of the faults; nothing is left at the end; client and workers
//! need no more memory late than early.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use convoke::graph::Function;
use convoke::{CallOptions, Cluster, Code, HostTensor as Tensor, Model, Outputs};
use convoke_common::rpc::{ClusterStatus, MemberState};
use rustix::process::Signal;

use crate::common::cluster::Processes;
use crate::common::functions::{product_chain, tanh_chain};
use crate::common::usage::Usage;
use crate::common::waits::{await_status, is_free};
use crate::load::input;

const WORKERS: usize = 4;
/// The deadline of a call.
const DEADLINE: Duration = Duration::from_secs(30);
/// How long after its deadline a call may take to end.
const GRACE: Duration = Duration::from_secs(10);
/// The number of calls of a model before it is loaded anew.
const CALLS: u64 = 50;

/// The bytes by which a process may be larger late than early, since its load differs from look to look.
const GROWTH: u64 = 8 << 20;

/// A generator of pseudo-random numbers, which are the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// The events of a run.
#[derive(Default)]
struct Tally {
    calls: BTreeMap<String, u64>,
    faults: BTreeMap<&'static str, u64>,
    longest: Duration,
    violations: Vec<String>,
}

type SharedTally = Arc<Mutex<Tally>>;

/// Whether a call or a load may end with this code while machines come and go.
fn is_fault(code: Code) -> bool {
    use Code::{
        Cancelled, ClusterTooSmall, DeadlineExceeded, NoWorkers, PeerLost, Unreachable, Wedged,
        WorkerLeaving,
    };
    matches!(
        code,
        Cancelled
            | ClusterTooSmall
            | DeadlineExceeded
            | NoWorkers
            | PeerLost
            | Unreachable
            | Wedged
            | WorkerLeaving
    )
}

fn note(told: &SharedTally, code: Result<(), Code>, text: &str) {
    let mut tally = told.lock().unwrap();
    let name = code.map_or_else(|c| c.name(), |()| "ok".into());
    *tally.calls.entry(name).or_default() += 1;
    if code.is_err_and(|c| !is_fault(c)) {
        tally.violations.push(text.to_owned());
    }
}

/// Calls a model once; in one of ten cases, drops the call early.
async fn use_model(
    model: &Model,
    x: &Tensor,
    right: &mut Option<Outputs>,
    draw: &mut Draw,
    told: &SharedTally,
) {
    let options = CallOptions {
        deadline: Some(DEADLINE),
        ..CallOptions::default()
    };
    let began = Instant::now();
    let call = model.call_with([("x", x.clone())], options);
    let dropped_after = match draw.below(10) {
        0 => Duration::from_millis(draw.below(20)),
        _ => DEADLINE + GRACE,
    };
    let outcome = tokio::time::timeout(dropped_after, call).await;
    let took = began.elapsed();
    match outcome {
        Err(_) if dropped_after > DEADLINE => {
            let text = format!("a call had not ended after {took:?}");
            told.lock().unwrap().violations.push(text);
        }
        Err(_) => note(told, Err(Code::Cancelled), ""),
        Ok(Err(e)) => note(told, Err(e.code), &e.to_string()),
        Ok(Ok(out)) => {
            note(told, Ok(()), "");
            if *right.get_or_insert_with(|| out.clone()) != out {
                told.lock()
                    .unwrap()
                    .violations
                    .push("a result has other bits".into());
            }
        }
    }
    let mut tally = told.lock().unwrap();
    tally.longest = tally.longest.max(took);
}

/// Loads and calls a function again and again, until `end` is set.
async fn caller(cluster: Cluster, f: Function, seed: u64, end: Arc<AtomicBool>, told: SharedTally) {
    let (x, mut right, mut draw) = (input(&f), None, Draw(seed));
    while !end.load(Ordering::Relaxed) {
        let workers = 1 + draw.below(WORKERS as u64 - 1) as u32;
        let load = cluster.load_function(f.clone(), vec![]).workers(workers);
        match load.await {
            Ok(model) => {
                for _ in 0..CALLS {
                    if !end.load(Ordering::Relaxed) {
                        use_model(&model, &x, &mut right, &mut draw, &told).await;
                    }
                }
                if let Err(e) = model.unload().await {
                    note(&told, Err(e.code), &e.to_string());
                }
            }
            Err(e) => {
                note(&told, Err(e.code), &e.to_string());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Makes one fault happen, and ends it.
async fn strike(processes: &mut Processes, draw: &mut Draw, told: &SharedTally) {
    let victim = draw.below(WORKERS as u64) as usize;
    let pause = Duration::from_millis(draw.below(4000));
    let what = match draw.below(8) {
        0..=2 => {
            processes.kill_worker(victim);
            tokio::time::sleep(pause).await;
            processes.start_worker(victim);
            "worker killed"
        }
        3 | 4 => {
            processes.worker(victim).signal(Signal::STOP);
            tokio::time::sleep(pause).await;
            processes.worker(victim).signal(Signal::CONT);
            "worker stopped for up to 4 s"
        }
        5 | 6 => {
            let worker = processes.workers[victim].take().unwrap();
            worker.signal(Signal::TERM);
            if worker.wait() != Some(0) {
                told.lock()
                    .unwrap()
                    .violations
                    .push(format!("w{victim} did not end well"));
            }
            processes.start_worker(victim);
            "worker told to end"
        }
        _ => {
            processes.kill_coordinator();
            tokio::time::sleep(pause / 2).await;
            processes.start_coordinator();
            "coordinator killed"
        }
    };
    *told.lock().unwrap().faults.entry(what).or_default() += 1;
}

fn is_at_rest(s: &ClusterStatus) -> bool {
    let alive = |m: &convoke_common::rpc::MemberStatus| m.state == MemberState::Alive && is_free(m);
    s.leases.is_empty() && s.members.len() == WORKERS && s.members.iter().all(alive)
}

/// The largest usage of a process that was seen between 10 % and 40 % of the time, and in the last 30 %.
#[derive(Default)]
struct PeakUsage {
    early: Option<Usage>,
    late: Option<Usage>,
}

impl PeakUsage {
    /// Records the usage of a process when the fraction `part` of the time is over.
    fn look(&mut self, pid: u32, part: f64) {
        let most = match part {
            // At first, everything is used for the first time, and the process still grows.
            ..0.1 => return,
            ..0.4 => &mut self.early,
            ..0.7 => return,
            _ => &mut self.late,
        };
        let now = Usage::of(pid);
        *most = Some(most.map_or(now, |m| Usage {
            memory: m.memory.max(now.memory),
            files: m.files.max(now.files),
        }));
    }

    /// Whether the process grew beyond the bound; a run too short to tell counts as no growth.
    fn grew(&self) -> bool {
        let both = self.early.zip(self.late);
        both.is_some_and(|(early, late)| late.memory > early.memory + GROWTH)
    }
}

impl std::fmt::Display for PeakUsage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |u: &Option<Usage>| u.map_or("?".into(), |u| u.to_string());
        write!(f, "{}; {}", text(&self.early), text(&self.late))
    }
}

/// The usage of the client, and the largest of any worker.
#[derive(Default)]
struct Memory {
    client: PeakUsage,
    workers: PeakUsage,
}

impl Memory {
    fn look(&mut self, processes: &Processes, part: f64) {
        self.client.look(std::process::id(), part);
        for i in 0..WORKERS {
            self.workers.look(processes.worker(i).pid(), part);
        }
    }

    fn violations(&self) -> Vec<String> {
        let all = [("the client", &self.client), ("a worker", &self.workers)];
        let grew = all.into_iter().filter(|(_, held)| held.grew());
        grew.map(|(who, held)| format!("the memory of {who} grew: {held}"))
            .collect()
    }
}

/// Runs the load and the faults for `time`, and prints the tally. Returns whether nothing was violated.
pub async fn run(time: Duration) -> bool {
    let mut processes = Processes::start("soak", WORKERS, "1GiB");
    let cluster = processes.connect().await;
    let functions = [
        tanh_chain(&[64], 12),
        tanh_chain(&[256, 1024], 8),
        product_chain(128, 40),
        product_chain(384, 30),
    ];
    let (told, end) = (SharedTally::default(), Arc::new(AtomicBool::new(false)));
    let callers: Vec<_> = functions
        .into_iter()
        .enumerate()
        .map(|(i, f)| {
            tokio::spawn(caller(
                cluster.clone(),
                f,
                i as u64,
                end.clone(),
                told.clone(),
            ))
        })
        .collect();
    let (start, mut draw, mut memory) = (Instant::now(), Draw(7), Memory::default());
    while start.elapsed() < time && told.lock().unwrap().violations.is_empty() {
        tokio::time::sleep(Duration::from_millis(2000 + draw.below(4000))).await;
        let part = start.elapsed().as_secs_f64() / time.as_secs_f64();
        memory.look(&processes, part);
        strike(&mut processes, &mut draw, &told).await;
    }
    end.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    await_status(&cluster, "nothing is left", is_at_rest).await;
    let mut tally = std::mem::take(&mut *told.lock().unwrap());
    tally.violations.extend(memory.violations());
    report(&tally, start.elapsed(), &memory);
    cluster.shutdown().await;
    tally.violations.is_empty()
}

fn report(tally: &Tally, time: Duration, memory: &Memory) {
    let list = |all: Vec<String>| all.join(", ");
    let calls = list(
        tally
            .calls
            .iter()
            .map(|(c, n)| format!("{n} {c}"))
            .collect(),
    );
    let faults = list(
        tally
            .faults
            .iter()
            .map(|(f, n)| format!("{n} × {f}"))
            .collect(),
    );
    println!(
        "| time | faults | calls | longest call | client in the first, the last third | workers, the most that one held | violations |\n\
         |---|---|---|---|---|---|---|\n\
         | {:.0} min | {faults} | {calls} | {:.1} s | {} | {} | {} |",
        time.as_secs_f64() / 60.0,
        tally.longest.as_secs_f64(),
        memory.client,
        memory.workers,
        tally.violations.len()
    );
    for violation in &tally.violations {
        eprintln!("{violation}");
    }
}
