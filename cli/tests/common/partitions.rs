//! Cuts the coordinator off from its members while steps run, which do not need it.
//!
//! ```text
//! client ──> relay ──> coordinator <── relay <── worker      client <══ links ══> workers <══ links ══> workers
//! ```
//!
//! Each member reaches the coordinator through a relay of its own, which drops packets on command: this cuts the member
//! off from the coordinator alone, and needs no privileges. Relays carry UDP only, so there are no tripwires.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use convoke::{CallOptions, Cluster, HostTensor as Tensor, Model, Outputs, Retry};
use convoke_common::rpc::{MemberState, RETURN_BOUND};
use rustix::process::Signal;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

use super::BOUND;
use super::cluster::Processes;
use super::functions::tanh_chain;
use super::waits::{await_status, is_free};

/// The number of elements of the tensor that steps pass on.
const SIZE: usize = 64;
const WORKERS: usize = 3;

/// How long steps are watched after a cut was healed: one second more than members have to return, as a lease that the
/// cut ends must end within that time.
const AFTERWARDS: Duration = RETURN_BOUND.saturating_add(Duration::from_secs(1));

/// The members that are cut off from the coordinator, or another reason why they cannot reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// All members are cut off.
    Everybody,
    /// The coordinator's process is stopped (SIGSTOP).
    Stopped,
    /// The client that runs the steps is cut off.
    Client,
    /// One worker of three is cut off.
    Worker,
}

impl Cut {
    pub const ALL: [Cut; 4] = [Cut::Everybody, Cut::Stopped, Cut::Client, Cut::Worker];
}

/// The relay between one member and the coordinator.
struct Relay {
    address: String,
    cut: Arc<AtomicBool>,
    _tasks: JoinSet<()>,
}

impl Relay {
    async fn to(coordinator: SocketAddr) -> Relay {
        let outside = Arc::new(UdpSocket::bind((coordinator.ip(), 0)).await.unwrap());
        let address = outside.local_addr().unwrap().to_string();
        let cut = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        tasks.spawn(relay(outside, coordinator, cut.clone()));
        Relay {
            address,
            cut,
            _tasks: tasks,
        }
    }

    fn set_cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::Relaxed);
    }
}

/// Passes packets on, in both directions, unless the relay is cut. For each socket of the member, the relay has one
/// towards the coordinator.
async fn relay(outside: Arc<UdpSocket>, coordinator: SocketAddr, cut: Arc<AtomicBool>) {
    let mut ways = BTreeMap::<SocketAddr, Arc<UdpSocket>>::new();
    let mut back = JoinSet::new();
    let mut packet = vec![0; 1 << 16];
    loop {
        // An error belongs to an earlier packet: nobody listens at the address to which it was sent.
        let Ok((len, from)) = outside.recv_from(&mut packet).await else {
            continue;
        };
        if cut.load(Ordering::Relaxed) {
            continue;
        }
        let way = match ways.get(&from) {
            Some(way) => way.clone(),
            None => {
                // The coordinator takes the host that it sees for that of the member.
                let way = Arc::new(UdpSocket::bind((coordinator.ip(), 0)).await.unwrap());
                way.connect(coordinator).await.unwrap();
                ways.insert(from, way.clone());
                back.spawn(answers(way.clone(), outside.clone(), from, cut.clone()));
                way
            }
        };
        let _ = way.send(&packet[..len]).await;
    }
}

async fn answers(
    way: Arc<UdpSocket>,
    outside: Arc<UdpSocket>,
    to: SocketAddr,
    cut: Arc<AtomicBool>,
) {
    let mut packet = vec![0; 1 << 16];
    loop {
        let Ok(len) = way.recv(&mut packet).await else {
            continue;
        };
        if !cut.load(Ordering::Relaxed) {
            let _ = outside.send_to(&packet[..len], to).await;
        }
    }
}

/// The outcomes of the steps so far.
#[derive(Default)]
struct Tally {
    done: AtomicU64,
    /// When each failed step ended, and with which error.
    failed: Mutex<Vec<(Instant, String)>>,
}

/// A cluster whose coordinator can be cut off, and a client that runs steps over three workers without a pause.
pub struct Rig {
    processes: Processes,
    relays: Vec<Relay>,
    cluster: Cluster,
    model: Model,
    expected: Outputs,
    tally: Arc<Tally>,
    _steps: JoinSet<()>,
}

/// The outcomes of the steps around one cut.
#[derive(Debug)]
pub struct Round {
    pub steps: u64,
    /// The error of each failed step, and how long after the beginning of the cut it came.
    pub failed: Vec<String>,
}

async fn load(cluster: &Cluster) -> convoke::Result<Model> {
    let load = cluster.load_function(tanh_chain(&[SIZE], 6), vec![]);
    let mut load = load.workers(WORKERS as u32).retry(Retry::Off);
    // The pins give each worker a cut edge to each other.
    for i in 1..=6 {
        load = load.pin(format!("Tanh_{i}"), format!("w{}", i % WORKERS));
    }
    load.await
}

async fn step(model: &Model) -> convoke::Result<Outputs> {
    let x = Tensor::from_slice(&[SIZE], &[0.5f32; SIZE]).unwrap();
    let options = CallOptions {
        retry: Retry::Off,
        ..CallOptions::default()
    };
    model.call_with([("x", x)], options).await
}

/// Runs steps without a pause, until the task is ended. The call after a failed one plans anew, so that each loss of a
/// lease counts once.
async fn steps(model: Model, expected: Outputs, tally: Arc<Tally>) {
    loop {
        match step(&model).await {
            Ok(outputs) => {
                assert!(outputs == expected, "other bits than before the cuts");
                tally.done.fetch_add(1, Ordering::Relaxed);
            }
            Err(e) => {
                let text = format!("{}: {e}", e.code.name());
                tally.failed.lock().unwrap().push((Instant::now(), text));
                // While a worker is away, plans are refused at once; the pause keeps such errors few.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

impl Rig {
    pub async fn start(name: &str) -> Rig {
        let mut processes = Processes::prepare(name, "1GiB");
        processes.start_coordinator();
        let coordinator: SocketAddr = processes.address.parse().unwrap();
        let mut relays = vec![];
        for i in 0..WORKERS {
            relays.push(Relay::to(coordinator).await);
            processes.join_through(i, &relays[i].address);
            tokio::task::block_in_place(|| processes.add_worker());
        }
        relays.push(Relay::to(coordinator).await);
        let cluster = processes.connect_through(&relays[WORKERS].address).await;
        let model = load(&cluster).await.unwrap();
        let expected = step(&model).await.unwrap();
        let tally = Arc::<Tally>::default();
        let mut running = JoinSet::new();
        running.spawn(steps(model.clone(), expected.clone(), tally.clone()));
        Rig {
            processes,
            relays,
            cluster,
            model,
            expected,
            tally,
            _steps: running,
        }
    }

    fn strike(&self, cut: Cut, on: bool) {
        let relays = match cut {
            Cut::Everybody => &self.relays[..],
            Cut::Client => &self.relays[WORKERS..],
            Cut::Worker => &self.relays[1..2],
            Cut::Stopped => {
                let signal = if on { Signal::STOP } else { Signal::CONT };
                let coordinator = self.processes.coordinator.as_ref();
                return coordinator.unwrap().signal(signal);
            }
        };
        relays.iter().for_each(|r| r.set_cut(on));
    }

    /// Cuts the coordinator off for `time` while steps run, and watches the steps until the members are back and a
    /// while longer. Then checks that a model can be loaded again, and that its end leaves only the lease of the steps.
    pub async fn round(&mut self, cut: Cut, time: Duration) -> Round {
        let before = self.tally.done.load(Ordering::Relaxed);
        let begun = Instant::now();
        self.strike(cut, true);
        tokio::time::sleep(time).await;
        self.strike(cut, false);
        tokio::time::sleep(AFTERWARDS).await;
        let there = |s: &convoke::ClusterStatus| {
            let alive = |m: &&convoke_common::rpc::MemberStatus| m.state == MemberState::Alive;
            s.members.iter().filter(alive).count() == WORKERS && s.leases.len() == 1
        };
        await_status(&self.cluster, "members and lease are back", there).await;
        let round = async {
            let next = load(&self.cluster).await?;
            assert!(
                step(&next).await? == self.expected,
                "other bits in a new plan"
            );
            next.unload().await
        };
        let new = tokio::time::timeout(BOUND, round).await.expect("an end");
        let failed = std::mem::take(&mut *self.tally.failed.lock().unwrap());
        let failed = failed.into_iter();
        let failed = failed.map(|(at, e)| {
            let after = at.saturating_duration_since(begun).as_secs_f64();
            format!("{after:.1} s after the begin of the cut, a step: {e}")
        });
        let new = new.err().map(|e| format!("after the cut, a load: {e}"));
        Round {
            steps: self.tally.done.load(Ordering::Relaxed) - before,
            failed: failed.chain(new).collect(),
        }
    }

    /// Ends the steps, and checks that nothing of them is left.
    pub async fn end(self) {
        let Rig {
            cluster,
            model,
            _steps: steps,
            ..
        } = self;
        drop(steps);
        model.unload().await.unwrap();
        let free =
            |s: &convoke::ClusterStatus| s.leases.is_empty() && s.members.iter().all(is_free);
        await_status(&cluster, "nothing is left", free).await;
        cluster.shutdown().await;
    }
}
