//! Measures how soon each fault is noticed and recovered from, in many rounds.
//!
//! Two models run brief steps without a pause while the fault happens. *Detection* is the time until the error of the
//! model whose steps are not run again, *recovery* that until the first result of the other model that was run again.

use std::time::Instant;

use convoke::graph::Function;
use convoke::{CallOptions, Cluster, Code, Model, Retry};
use convoke_common::rpc::{ClusterStatus, MemberState, MemberStatus, WorkerStatus};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::cluster::Processes;
use crate::common::functions::{product_chain, square};
use crate::common::kernels::{freeze, in_kernel};
use crate::common::waits::{await_member, await_status, is_free, live_steps};
use crate::common::{self, fixture};
use crate::load::{brief, call, input, until_again, until_error, until_planned};
use crate::rows::{Row, Sample};

/// The worker that suffers the faults.
const VICTIM: usize = 1;
const NAME: &str = "w1";

/// A cluster, and a client of it.
struct Rig {
    processes: Processes,
    cluster: Cluster,
}

/// Prints a row for each fault with `only` in its name. Returns whether every fault had the right cause.
pub async fn time(rounds: usize, only: &str) -> bool {
    let mut processes = Processes::prepare("timings", "1GiB");
    processes.drain_bound("100ms");
    processes.start_coordinator();
    (0..3).for_each(|_| processes.add_worker());
    let cluster = processes.connect().await;
    let mut rig = Rig { processes, cluster };
    println!("| fault | detection p50 | p99 | recovery p50 | p99 | n |\n|---|---|---|---|---|---|");
    let mut kept = true;
    macro_rules! fault {
        ($name:literal, $round:ident) => {
            if $name.contains(only) {
                let mut row = Row::default();
                for _ in 0..rounds {
                    match rig.$round().await {
                        Ok(sample) => row.add(sample),
                        Err(why) => {
                            eprintln!("{}: {why}", $name);
                            kept = false;
                        }
                    }
                }
                println!("{}", row.line($name));
            }
        };
    }
    fault!("worker killed (SIGKILL)", killed);
    fault!("worker stopped (SIGSTOP)", stopped);
    fault!(
        "worker killed and started again at its address at once",
        restarted
    );
    fault!(
        "worker told to end (SIGTERM), steps given 0.1 s",
        told_to_end
    );
    fault!("kernel that hangs", hung);
    fault!(
        "coordinator killed and started again at once",
        coordinator_restarted
    );
    fault!(
        "worker and coordinator killed, the latter started again at once",
        killed_with_coordinator
    );
    fault!("client killed", client_killed);
    fault!("client interrupted (Ctrl-C)", client_interrupted);
    rig.cluster.shutdown().await;
    kept
}

type Result<T, E = String> = std::result::Result<T, E>;

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

impl Rig {
    /// Waits until all processes are alive and all tripwires stand, so that each would notice the end of any other.
    async fn whole(&self) {
        let armed = |s: &WorkerStatus| s.links.iter().all(|l| l.tripwire);
        let whole = |m: &MemberStatus| {
            let armed = m.status.as_ref().is_some_and(armed);
            m.state == MemberState::Alive && m.tripwire && armed
        };
        await_status(&self.cluster, "all workers", |s| {
            s.members.len() == 3 && s.members.iter().all(whole)
        })
        .await;
    }

    /// Waits until the coordinator has recorded the victim's loss, so that a later return is not mistaken for its
    /// former life.
    async fn gone(&self) {
        let there = |m: &MemberStatus| m.name == NAME && m.state != MemberState::Lost;
        let gone = |s: &ClusterStatus| !s.members.iter().any(there);
        await_status(&self.cluster, NAME, gone).await;
    }

    /// Takes the victim away by `fault` during steps over all workers, and measures detection and recovery.
    async fn lose(&mut self, fault: impl FnOnce(&mut Processes)) -> Result<Sample> {
        let (off, _) = brief(&self.cluster).await.map_err(text)?;
        let (on, again) = brief(&self.cluster).await.map_err(text)?;
        call(&off, Retry::Off).await.map_err(text)?;
        call(&on, Retry::On).await.map_err(text)?;
        self.whole().await;
        let failing = tokio::spawn(async move { until_error(&off).await });
        let recovering = tokio::spawn(async move { until_again(&on, &again).await });
        // The fault comes in the middle of some step, not at the start of the first.
        await_member(&self.cluster, NAME, |m| {
            m.status.as_ref().is_some_and(|s| s.steps_done > 100)
        })
        .await;
        let from = Instant::now();
        fault(&mut self.processes);
        let (error, failed) = failing.await.map_err(text)?;
        let recovered = recovering.await.map_err(text)?.map_err(text)?;
        let about = error.site.as_ref().and_then(|s| s.worker.as_deref());
        if (error.code, about) != (Code::PeerLost, Some(NAME)) {
            return Err(format!("another cause: {error}"));
        }
        Ok(Sample {
            detected: Some(failed - from),
            recovered: Some(recovered - from),
        })
    }

    async fn killed(&mut self) -> Result<Sample> {
        let sample = self.lose(|p| p.kill_worker(VICTIM)).await;
        self.gone().await;
        self.processes.start_worker(VICTIM);
        sample
    }

    async fn stopped(&mut self) -> Result<Sample> {
        let stop = |p: &mut Processes| p.worker(VICTIM).signal(Signal::STOP);
        let sample = self.lose(stop).await;
        self.gone().await;
        self.processes.worker(VICTIM).signal(Signal::CONT);
        self.whole().await;
        sample
    }

    /// Recovery is the time until a new plan uses the restarted worker again.
    async fn restarted(&mut self) -> Result<Sample> {
        let mut from = Instant::now();
        let restart = |p: &mut Processes| {
            from = Instant::now();
            p.kill_worker(VICTIM);
            p.start_worker(VICTIM);
        };
        let sample = self.lose(restart).await?;
        let planned = until_planned(&self.cluster).await.map_err(text)?;
        Ok(Sample {
            recovered: Some(planned - from),
            ..sample
        })
    }

    /// The worker is told to end during a step that takes longer than its drain bound. Recovery is the time until the
    /// step has run elsewhere.
    async fn told_to_end(&mut self) -> Result<Sample> {
        self.whole().await;
        let f = product_chain(512, 400);
        let load = self.cluster.load_function(f.clone(), vec![]);
        let model = load.workers(3).await.map_err(text)?;
        let (off, on) = (begin(&model, &f, Retry::Off), begin(&model, &f, Retry::On));
        await_member(&self.cluster, NAME, |m| live_steps(m) == 2).await;
        let from = Instant::now();
        self.processes.worker(VICTIM).signal(Signal::TERM);
        let (failed, detected) = off.await.map_err(text)?;
        let (result, recovered) = on.await.map_err(text)?;
        let ended = self.processes.workers[VICTIM].take().map(|w| w.wait());
        self.processes.start_worker(VICTIM);
        let code = failed.as_ref().map_err(|e| e.code);
        if code != Err(Code::WorkerLeaving) || ended != Some(Some(0)) {
            return Err(format!("{failed:?}, and it ended with {ended:?}"));
        }
        result.map_err(text)?;
        Ok(Sample {
            detected: Some(detected - from),
            recovered: Some(recovered - from),
        })
    }

    /// A step is given up whose kernel goes on. Detection is the error of a later step on that worker, recovery the
    /// result of another that ran elsewhere.
    async fn hung(&mut self) -> Result<Sample> {
        self.whole().await;
        let f = square();
        let load = self.cluster.load_function(f.clone(), vec![]);
        let model = load.workers(1).in_flight(3).await.map_err(text)?;
        let call = |retry| begin(&model, &f, retry);
        let given_up = call(Retry::Off);
        let busy = |m: &MemberStatus| live_steps(m) > 0;
        let running = await_status(&self.cluster, "a step", |s| s.members.iter().any(busy)).await;
        let at = running.members.iter().position(busy).unwrap();
        in_kernel(&self.processes.scratch.path(&format!("w{at}"))).await;
        freeze(self.processes.worker(at).pid() as i32);
        let (off, on) = (call(Retry::Off), call(Retry::On));
        await_member(&self.cluster, &format!("w{at}"), |m| live_steps(m) == 3).await;
        let from = Instant::now();
        given_up.abort();
        let (failed, detected) = off.await.map_err(text)?;
        let (result, recovered) = on.await.map_err(text)?;
        let ended = self.processes.workers[at].take().map(|w| w.wait());
        self.processes.start_worker(at);
        let code = failed.as_ref().map_err(|e| e.code);
        if code != Err(Code::Wedged) || ended != Some(Some(1)) {
            return Err(format!("{failed:?}, and it ended with {ended:?}"));
        }
        result.map_err(text)?;
        Ok(Sample {
            detected: Some(detected - from),
            recovered: Some(recovered - from),
        })
    }

    /// Steps in flight must go on. Recovery is the time until there is a new plan over all workers.
    async fn coordinator_restarted(&mut self) -> Result<Sample> {
        let (model, _) = brief(&self.cluster).await.map_err(text)?;
        call(&model, Retry::Off).await.map_err(text)?;
        self.whole().await;
        let steps = tokio::spawn(async move { until_error(&model).await });
        let from = Instant::now();
        self.processes.kill_coordinator();
        self.processes.start_coordinator();
        let planned = until_planned(&self.cluster).await.map_err(text)?;
        if steps.is_finished() {
            let (error, _) = steps.await.map_err(text)?;
            return Err(format!("a step failed: {error}"));
        }
        steps.abort();
        self.free().await;
        Ok(Sample {
            detected: None,
            recovered: Some(planned - from),
        })
    }

    /// Recovery is the time until the coordinator is back and has planned for the survivors.
    async fn killed_with_coordinator(&mut self) -> Result<Sample> {
        let kill = |p: &mut Processes| {
            p.kill_worker(VICTIM);
            p.kill_coordinator();
            p.start_coordinator();
        };
        let sample = self.lose(kill).await;
        // The coordinator has not seen the victim since its restart, so it has no loss to record.
        self.processes.start_worker(VICTIM);
        sample
    }

    async fn client_killed(&mut self) -> Result<Sample> {
        self.client_ends(Signal::KILL).await
    }

    async fn client_interrupted(&mut self) -> Result<Sample> {
        self.client_ends(Signal::INT).await
    }

    /// Detection is the time until the workers have freed the client's memory; recovery is the time until its lease is
    /// gone.
    async fn client_ends(&mut self, signal: Signal) -> Result<Sample> {
        self.whole().await;
        let (model, arrays) = (fixture("digits/model.onnx"), fixture("digits/test.npz"));
        let mut client = common::convoke([
            "run",
            model.to_str().unwrap(),
            "--inputs",
            arrays.to_str().unwrap(),
            "--connect",
            &self.processes.address,
            "--token-file",
            &self.processes.client_token(),
            "--workers",
            "3",
            "--steps",
            "100000000",
        ])
        .spawn()
        .map_err(text)?;
        let runs = |m: &MemberStatus| {
            let runs =
                |s: &WorkerStatus| s.programs.len() == 1 && s.links.iter().all(|l| l.tripwire);
            m.status.as_ref().is_some_and(runs)
        };
        await_status(&self.cluster, "steps", |s| {
            s.members.iter().all(runs) && s.members.iter().any(|m| live_steps(m) > 0)
        })
        .await;
        let from = Instant::now();
        kill_process(Pid::from_child(&client), signal).map_err(text)?;
        client.wait().map_err(text)?;
        self.free_at_workers().await;
        let freed = Instant::now();
        self.free().await;
        Ok(Sample {
            detected: Some(freed - from),
            recovered: Some(from.elapsed()),
        })
    }

    async fn free_at_workers(&self) {
        await_status(&self.cluster, "nothing is left at workers", |s| {
            s.members.iter().all(is_free)
        })
        .await;
    }

    async fn free(&self) {
        await_status(&self.cluster, "nothing is left", |s| {
            s.leases.is_empty() && s.members.iter().all(is_free)
        })
        .await;
    }
}

/// Begins a call; the task returns its outcome and when it ended.
fn begin(
    model: &Model,
    f: &Function,
    retry: Retry,
) -> tokio::task::JoinHandle<(convoke::Result<()>, Instant)> {
    let (model, x) = (model.clone(), input(f));
    let options = CallOptions {
        retry,
        ..CallOptions::default()
    };
    tokio::spawn(async move {
        let called = model.call_with([("x", x)], options).await;
        (called.map(drop), Instant::now())
    })
}
