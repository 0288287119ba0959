//! `convoke bench`: measures this machine or a cluster, each measurement beside its floor, the least that could be
//! done.
//!
//! ```text
//! cold, floor::idle                  processes of their own                  cold_start, idle_rss
//! compile                            this process                            compile_*
//! exec, eager                        a cluster in this process               exec_*, call_local, eager_*
//! fan                                clusters of processes                  fan_out_*
//! remote, steps, transfers, devices  a cluster of processes, or --connect's  the rest
//! ```
//!
//! Invariants
//! 1. A measurement and its floor take turns in one run, with the same number of processes and threads.
//! 2. Every process that is started ends with this one, however that ends; nothing is left on disk.
//! 3. On a cluster that this command did not start, it measures only what any client can measure.

pub mod args;
mod catalogue;
mod cpu;
mod floor;
mod measure;
mod places;
mod report;
mod turns;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use convoke::{Cluster, Device, Embedded};

use self::args::BenchArgs;
use self::catalogue::{ALL, Bench, FANS, Selection, Setting, of_device};
use self::places::{OwnCluster, RemoteCluster};
use self::report::{Measurement, Report};
use self::turns::bounded;
use crate::args::{DeviceArgs, LogArgs, UpArgs};
use crate::commands::cluster::{connect, leave};
use crate::process::children::{Process, stop};
use crate::process::machine;
use crate::process::processes::{STOP_BOUND, start};
use crate::process::run_dir::RunDir;
use crate::process::signals::{Signals, end_anyway};
use crate::text::failure::Failure;
use crate::text::output;
use crate::text::progress::Progress;

pub use self::floor::run_part;

/// The number of workers of the cluster of processes.
const WORKERS: u32 = 2;
/// How long the workers' steps may go on at the end; none is running then.
const DRAIN_BOUND: Duration = Duration::from_secs(1);

/// Does the measurements and prints the report.
pub async fn bench(args: BenchArgs, log: LogArgs, json: bool) -> Result<(), Failure> {
    let wanted = Selection::of(&args.only, args.connect.is_some())?;
    let mut signals = Signals::hear()?;
    let mut run = Run {
        of: wanted.benches.len(),
        wanted,
        rounds: args.rounds,
        // Otherwise the children would log when they start and stop.
        log: LogArgs {
            log: log.log.or_else(|| Some("warn".into())),
            ..log
        },
        progress: Progress::new(),
        begun: 0,
        results: vec![],
    };
    match &args.connect {
        Some(address) => {
            let open = connect(address, args.token_file.as_deref());
            let work = async |c: &Cluster| run.remote(c, None).await;
            with_cluster(&mut signals, open, work).await?;
        }
        None => run.here(&mut signals).await?,
    }
    let report = run.report();
    match json {
        true => output::json(&report),
        false => output::print(&report.text()),
    }
}

/// Does `work` with the cluster that `open` opens, and leaves the cluster afterwards, also if the work failed. A second
/// signal drops the cluster and does not exit the process, whose files on disk must be removed first.
async fn with_cluster(
    signals: &mut Signals,
    open: impl Future<Output = Result<Cluster, Failure>>,
    work: impl AsyncFnOnce(&Cluster) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let cluster = signals.or(open).await?;
    let result = signals.or(work(&cluster)).await;
    let left = async {
        leave(cluster).await;
        Ok(())
    };
    signals.or(left).await.and(result)
}

/// The state of a run of `convoke bench`.
struct Run {
    wanted: Selection,
    rounds: u32,
    log: LogArgs,
    progress: Progress,
    /// The number of measurements that have begun, out of `of`.
    begun: usize,
    of: usize,
    results: Vec<Measurement>,
}

impl Run {
    /// Shows which measurement begins.
    fn begin(&mut self, name: &str) {
        self.begun += 1;
        let line = format!("{} of {}: {name}", self.begun, self.of);
        self.progress.at(line);
    }

    /// Does all wanted measurements on clusters that this command starts.
    async fn here(&mut self, signals: &mut Signals) -> Result<(), Failure> {
        let folder = RunDir::make(None, "bench")
            .map_err(|e| e.advise("set XDG_RUNTIME_DIR to a folder of this user's"))?;
        end_anyway(folder.path.clone())?;
        signals.or(self.alone(&folder.path)).await?;
        if !self.at(Setting::Embedded).is_empty() {
            measure::exec::register()?;
            let embedded = Embedded::new(1)
                .threads(1)
                .memory(machine::default_memory());
            let open = async { Ok(embedded.start().await?) };
            let work = async |c: &Cluster| self.embedded(c).await;
            with_cluster(signals, open, work).await?;
        }
        let needs_processes = |p| matches!(p, Setting::Local | Setting::Cluster(_));
        if !self.wanted.at(needs_processes).is_empty() || self.wanted.any_device() {
            self.processes(signals, &folder.path, None).await?;
        }
        for fan in FANS {
            if !self.at(Setting::Fan(fan)).is_empty() {
                self.processes(signals, &folder.path, Some(fan)).await?;
            }
        }
        Ok(())
    }

    fn at(&self, place: Setting) -> Vec<&'static Bench> {
        self.wanted.at(|p| p == place)
    }

    async fn alone(&mut self, folder: &Path) -> Result<(), Failure> {
        for bench in self.at(Setting::Alone) {
            self.begin(bench.name);
            let measured = places::alone(bench, folder, &self.log, self.rounds).await?;
            self.results.push(measured);
        }
        Ok(())
    }

    async fn embedded(&mut self, cluster: &Cluster) -> Result<(), Failure> {
        let device = cluster.device("w0")?;
        // Once a value has come back, the worker is linked; the link decides the path of later ops.
        bounded(device.put(0f32)?.fetch::<f32>()).await?;
        let x = device.put(1f32)?;
        for bench in self.at(Setting::Embedded) {
            self.begin(bench.name);
            let measured = places::embedded(bench, cluster, &x, self.rounds).await?;
            self.results.push(measured);
        }
        Ok(())
    }

    /// Does the measurements that need a cluster of processes: with `fan`, those of steps over that many workers;
    /// without, all others.
    async fn processes(
        &mut self,
        signals: &mut Signals,
        folder: &Path,
        fan: Option<u32>,
    ) -> Result<(), Failure> {
        let name = fan.map_or("pair".into(), |n| format!("fan-{n}"));
        let folder = folder.join(name);
        std::fs::create_dir(&folder).map_err(|e| Failure::io("cannot make a folder", &e))?;
        let mut processes = Vec::new();
        let done = self
            .on_processes(signals, &folder, fan, &mut processes)
            .await;
        stop(processes, DRAIN_BOUND + STOP_BOUND).await;
        done
    }

    /// Does the work of [`Run::processes`]. The started processes are pushed to `processes`, also if it fails.
    async fn on_processes(
        &mut self,
        signals: &mut Signals,
        folder: &Path,
        fan: Option<u32>,
        processes: &mut Vec<Process>,
    ) -> Result<(), Failure> {
        let up = UpArgs {
            workers: fan.unwrap_or(WORKERS),
            listen: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
            // One compute thread beside the network thread matches the threads of a relay's parties (invariant 1).
            threads: Some(1),
            memory: None,
            devices: DeviceArgs::default(),
            artifact_root: None,
            drain_bound: DRAIN_BOUND,
            run_dir: None,
        };
        let log = self.log.clone();
        let started = signals.or(start(&up, &log, folder, processes)).await?;
        let own = OwnCluster {
            processes,
            folder,
            log: &log,
        };
        let open = connect(&started.connect, Some(&started.client_token_file));
        let work = async |c: &Cluster| match fan {
            Some(workers) => self.fan(c, workers, &own).await,
            None => self.remote(c, Some(own)).await,
        };
        with_cluster(signals, open, work).await
    }

    /// Does the measurements of steps over `workers` workers.
    async fn fan(
        &mut self,
        cluster: &Cluster,
        workers: u32,
        own: &OwnCluster<'_>,
    ) -> Result<(), Failure> {
        let devices = bounded(cluster.devices()).await?;
        for bench in self.at(Setting::Fan(workers)) {
            self.begin(bench.name);
            let measured = places::fan(bench, cluster, &devices, own, self.rounds).await?;
            self.results.push(measured);
        }
        Ok(())
    }

    /// Does the measurements of a cluster of processes that fit its number of workers, and those of its devices.
    async fn remote(
        &mut self,
        cluster: &Cluster,
        own: Option<OwnCluster<'_>>,
    ) -> Result<(), Failure> {
        let devices = bounded(cluster.devices()).await?;
        let names: Vec<String> = devices.iter().map(Device::name).collect();
        let products = self.wanted.devices(&names)?;
        let mut workers = devices.clone();
        workers.dedup_by(|a, b| a.worker() == b.worker());
        let fits = |b: &&Bench| match b.place {
            Setting::Cluster(needed) => needed <= workers.len(),
            place => place == Setting::Local,
        };
        let wanted = self
            .wanted
            .at(|p| matches!(p, Setting::Local | Setting::Cluster(_)));
        let (mut fit, left): (Vec<&Bench>, Vec<&Bench>) = wanted.into_iter().partition(fits);
        for bench in &left {
            let line = format!("{} is left out: it needs more workers", bench.name);
            self.progress.note(&line);
        }
        self.of = self.of + products.len() - left.len();
        // Idle processes are measured before the cluster has done most of its work.
        fit.sort_by_key(|b| b.place != Setting::Local);
        let remote = RemoteCluster {
            cluster,
            workers,
            own,
            rounds: self.rounds,
        };
        for bench in fit {
            self.begin(bench.name);
            self.results.push(remote.measure(bench).await?);
        }
        for device in devices.iter().filter(|d| products.contains(&d.name())) {
            self.begin(&of_device(&device.name()));
            self.results.push(remote.device(device).await?);
        }
        Ok(())
    }

    /// Makes the report: results in the order of the catalogue, then those of devices.
    fn report(self) -> Report {
        let mut results = self.results;
        let place = |m: &Measurement| ALL.iter().position(|b| b.name == m.name());
        results.sort_by_key(|m| place(m).unwrap_or(ALL.len()));
        Report::new(results)
    }
}
