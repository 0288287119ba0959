//! Membership and leases as a history, over real processes: clients, operators and faults act at the same time, in the
//! order of a seed, and what the coordinator answered must be explained by some order of what it was asked.
//!
//! The checker is that of the simulation ([`convoke_sims::history`]). It takes no time into account but the order in which
//! requests and answers were seen here, so its verdict depends on no speed.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

use crate::common;

use std::path::Path;

use common::cluster::Processes;
use common::functions::tanh_chain;
use common::waits::await_status;
use convoke::{Cluster, ClusterStatus, HostTensor as Tensor};
use convoke_common::ids::{Incarnation, LeaseId};
use convoke_common::rpc::MemberState;
use convoke_coordinator::admin::{AdminClient, socket_in};
use convoke_sims::draw::Draw;
use convoke_sims::history::{
    Answer, History, Listing, MemberRegister, Moment, Reply, Request, RequestId,
};
use tokio::task::JoinHandle;

const WORKERS: usize = 3;

/// How many models each client loads, how often the operator asks for something, and how many faults strike at
/// least.
const LOADS: u64 = 8;
const REQUESTS: usize = 50;
const FAULTS: usize = 8;

/// What the processes log, and what a worker's log says once it is registered.
const LOG: &str = "error,convoke::control_event=trace";
const REGISTERED: &str = "kind=\"registered\"";

fn name(i: usize) -> String {
    format!("w{i}")
}

/// Reads the status, for the history.
async fn read(cluster: &Cluster, history: &History) -> Option<ClusterStatus> {
    let read = history.begin(Request::Read);
    let status = cluster.status().await.ok()?;
    let listing = Listing::of(&status.members, &status.leases);
    history.end(read, Reply::Listing(listing));
    Some(status)
}

/// A client that loads, calls and unloads models, and reads the status in between. Returns how many leases a status listed
/// while the client had them.
async fn client(cluster: Cluster, history: History, number: u64) -> usize {
    let mut draw = Draw::new(number).fork("client");
    let mut listed = 0;
    for load in 0..LOADS {
        let model = format!("model-{number}-{load}");
        let mut function = tanh_chain(&[4], 3);
        function.name = model.as_str().into();
        let workers = draw.range(1, 2) as u32;
        let loaded = cluster.load_function(function, vec![]).workers(workers);
        // It may find fewer workers than it asks for, or no coordinator.
        let Ok(loaded) = loaded.await else { continue };
        if let Some(status) = read(&cluster, &history).await {
            for lease in status.leases.iter().filter(|l| l.model == model) {
                note_grant(&history, lease.lease, &lease.driver);
                listed += 1;
            }
        }
        let x = Tensor::from_slice(&[4], &[0.5f32; 4]).unwrap();
        if draw.chance(50) {
            // A call whose worker is killed is repeated on another lease.
            drop(loaded.call([("x", x)]).await);
            read(&cluster, &history).await;
        }
        let unload = history.begin(Request::Unload { model });
        if loaded.unload().await.is_ok() {
            history.end(unload, Reply::Made);
        }
        read(&cluster, &history).await;
    }
    listed
}

/// Notes that a client has a lease, which the status lists as this driver's. The client ends with the test.
fn note_grant(history: &History, lease: LeaseId, driver: &str) {
    let granted = history.begin(Request::Grant {
        lease,
        driver: driver.to_owned(),
        host: driver.to_owned(),
    });
    history.end(granted, Reply::Made);
}

/// An operator who takes names out of service, puts them back and tries to forget them.
async fn operator(admin: AdminClient, cluster: Cluster, history: History) {
    let mut draw = Draw::new(1).fork("operator");
    for _ in 0..REQUESTS {
        let name = name(draw.below(WORKERS as u64) as usize);
        match draw.below(9) {
            0 => drop(drain(&admin, &history, &name).await),
            1..=5 => drop(undrain(&admin, &history, &name).await),
            _ => {
                let asked = history.begin(Request::Forget { name: name.clone() });
                let answer = admin.forget(&name).await.map(|()| true);
                note_answer(&history, asked, &answer);
            }
        }
        read(&cluster, &history).await;
    }
    for i in 0..WORKERS {
        drop(undrain(&admin, &history, &name(i)).await);
    }
}

async fn drain(admin: &AdminClient, history: &History, name: &str) -> convoke::Result<bool> {
    // The worker finishes its steps and ends, and its leases with it.
    history.trouble(name);
    let asked = history.begin(Request::Drain { name: name.into() });
    let answer = admin.drain(name).await;
    note_answer(history, asked, &answer);
    answer
}

async fn undrain(admin: &AdminClient, history: &History, name: &str) -> convoke::Result<bool> {
    let asked = history.begin(Request::Undrain { name: name.into() });
    let answer = admin.undrain(name).await;
    note_answer(history, asked, &answer);
    answer
}

/// Notes an operator's answer. A coordinator that is killed meanwhile may have done what it was asked to.
fn note_answer(history: &History, asked: RequestId, answer: &convoke::Result<bool>) {
    let answer = match answer {
        Ok(said) => Answer::Done(*said),
        Err(e) => Answer::of_error(e.code),
    };
    if answer != Answer::Unknown {
        history.end(asked, Reply::Operator(answer));
    }
}

/// The processes, and what was asked of them.
struct Rig {
    processes: Processes,
    history: History,
}

impl Rig {
    fn start() -> Rig {
        let mut processes = Processes::prepare("history", "100MiB");
        processes.drain_bound("100ms");
        processes.log_to_files(LOG);
        processes.start_coordinator();
        Rig {
            processes,
            history: History::default(),
        }
    }

    /// Starts worker `i`, or replaces it, and learns its incarnation.
    fn start_worker(&mut self, i: usize) {
        let begun = self.history.moment();
        let name = name(i);
        self.history.begin(Request::Start { name: name.clone() });
        // It returns once the worker is registered.
        tokio::task::block_in_place(|| match i < self.processes.workers.len() {
            true => self.processes.start_worker(i),
            false => self.processes.add_worker(),
        });
        let ready = self.history.moment();
        let incarnation = self.incarnation(&name);
        self.note_process(&name, incarnation, begun, ready);
    }

    /// The incarnation of a worker's latest process, as its log has it once it is registered.
    fn incarnation(&self, name: &str) -> Incarnation {
        let log = self.processes.scratch.path(&format!("{name}.log"));
        let log = std::fs::read_to_string(log).unwrap();
        let registered = log.lines().rfind(|line| line.contains(REGISTERED)).unwrap();
        let (_, number) = registered.split_once("incarnation=").unwrap();
        Incarnation(number.split_whitespace().next().unwrap().parse().unwrap())
    }

    /// Notes a process that was registered when it was ready, registers again whenever it has lost the coordinator, and
    /// leaves when it is told to.
    fn note_process(&self, name: &str, incarnation: Incarnation, begun: Moment, ready: Moment) {
        let name = || name.to_owned();
        let (history, i) = (&self.history, incarnation);
        let request = |request| history.begin_at(begun, request);
        let registered = request(Request::Register {
            name: name(),
            incarnation: i,
        });
        history.end_at(ready, registered, Reply::Made);
        request(Request::Stay {
            name: name(),
            incarnation: i,
        });
        request(Request::Leave {
            name: name(),
            incarnation: i,
        });
    }

    fn kill_worker(&mut self, i: usize) {
        self.history.trouble(&name(i));
        self.processes.kill_worker(i);
    }

    fn restart_coordinator(&mut self) {
        let restart = self.history.begin(Request::Restart);
        self.processes.kill_coordinator();
        self.history.coordinator_ended();
        tokio::task::block_in_place(|| self.processes.start_coordinator());
        self.history.end(restart, Reply::Made);
    }

    fn admin(&self) -> AdminClient {
        AdminClient::new(&socket_in(Path::new(&self.processes.path("coordinator"))))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_the_coordinator_answers_has_an_order() {
    let mut rig = Rig::start();
    let history = rig.history.clone();
    let watcher = rig.processes.connect().await;
    for i in 0..WORKERS {
        rig.start_worker(i);
    }
    let cluster = rig.processes.connect().await;
    let operator = tokio::spawn(operator(rig.admin(), cluster, history.clone()));
    let mut clients = vec![];
    for number in 0..3 {
        let cluster = rig.processes.connect().await;
        clients.push(tokio::spawn(client(cluster, history.clone(), number)));
    }
    // Workers that were drained are started again as well, since a client may wait for them.
    for fault in 0.. {
        if fault >= FAULTS && clients.iter().all(JoinHandle::is_finished) {
            break;
        }
        match fault % 4 {
            3 => rig.restart_coordinator(),
            i => {
                rig.kill_worker(i);
                read(&watcher, &history).await;
                rig.start_worker(i);
            }
        }
        read(&watcher, &history).await;
    }
    let mut leases = 0;
    for client in clients {
        leases += client.await.unwrap();
    }
    assert!(leases > 0, "no status listed a lease");
    operator.await.unwrap();
    settle(&mut rig, &watcher).await;
    read(&watcher, &history).await.unwrap();
    let promises = MemberRegister {
        disk_is_sound: true,
        calendars_hold: true,
    };
    let violations = history.violations(promises);
    assert!(violations.is_empty(), "{violations:#?}");
}

/// Puts all names back into service, starts those that left, and waits until all are there and no lease is left.
async fn settle(rig: &mut Rig, cluster: &Cluster) {
    let admin = rig.admin();
    for i in 0..WORKERS {
        // It may have been forgotten, which puts it back into service as well.
        let serves = undrain(&admin, &rig.history, &name(i)).await;
        if !matches!(serves, Ok(true)) {
            rig.kill_worker(i);
            rig.start_worker(i);
        }
    }
    let settled = |s: &ClusterStatus| {
        let there = s.members.iter().filter(|m| m.state == MemberState::Alive);
        there.count() == WORKERS && s.leases.is_empty()
    };
    await_status(cluster, "all are there and no lease is left", settled).await;
}
