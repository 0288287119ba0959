//! When everything has come to rest, nothing is left: no lease at any process, no live step, no program, no entry of a
//! table, no task of a call, no queue, and no byte of memory except each process's own. Once the clients have gone,
//! nothing of theirs is left: no plan, no session, no link.

use std::time::Duration;

use convoke_common::identity::Role;
use convoke_common::ids::LeaseId;
use convoke_common::memory::{Purpose, TokenHolding};
use convoke_common::rpc::{LeaseStatus, WorkerStatus};

use crate::cluster::{Cluster, Host, Task};
use crate::invariants::invariant::{Findings, Invariant, Stage};
use crate::invariants::view::View;
use crate::steps::{Key, Lease, Step, Steps};

pub(in crate::invariants) struct AtRest;

/// Lists everything that workers and clients still hold. For what the coordinator holds, see [`of_coordinator`].
pub fn left_over(cluster: &Cluster) -> Vec<String> {
    let mut left = Vec::new();
    for host in cluster.hosts() {
        if let Host::Worker(i) = host
            && let Some(worker) = cluster.worker(i)
        {
            of_worker(host, &worker.status(), &mut left);
            // What a connection may send ahead is charged as long as it stands.
            let connected = Purpose::Buffers;
            of_tokens(
                host,
                &worker.ledger().holdings(),
                Some(connected),
                &mut left,
            );
            of_tables(host, worker.tables(), &["sessions"], &mut left);
        }
        if let Host::Client(i) = host
            && let Some(client) = cluster.client(i)
        {
            of_tables(host, client.tables(), &[], &mut left);
        }
        let Some(hub) = cluster.hub(host) else {
            continue;
        };
        for lease in hub.leases() {
            left.push(format!("{host}: {}", lease.id));
        }
        for link in hub.links() {
            let waits = link.status().queued_bytes;
            if waits > 0 {
                let peer = &link.peer().name;
                left.push(format!("{host}: {waits} bytes wait for {peer}"));
            }
        }
    }
    left
}

/// The steps that have begun and not retired. The steps of a partitioned body end with the lease around it: they count only
/// while the body's driver still holds its end of the body's lease.
pub fn unretired<'a>(
    cluster: &'a Cluster,
    steps: &'a Steps,
) -> impl Iterator<Item = (&'a Key, &'a Step)> {
    steps.live().filter(|((id, _), _)| {
        let lease = steps.leases.get(id).filter(|l| l.is_of_body());
        let driver = lease.and_then(Lease::driver);
        driver.is_none_or(|driver| {
            let hub = cluster.hub(driver);
            hub.is_some_and(|hub| hub.lease(LeaseId(*id).at_driver()).is_some())
        })
    })
}

/// The tasks of an idle worker: its main function, six of its own, and three of its connection to the coordinator.
const OF_WORKER: usize = 10;

/// The tasks of an idle coordinator: its main function, and six of its own.
const OF_COORDINATOR: usize = 7;

/// The tasks of an idle connection: one owns it, one watches it, and one listens to it.
const OF_CONNECTION: usize = 3;

/// Lists what is left of clients after all of them have gone.
pub fn deserted(cluster: &Cluster) -> Vec<String> {
    let mut left = Vec::new();
    let mut workers = 0;
    for host in cluster.hosts() {
        let Host::Worker(i) = host else { continue };
        let Some(worker) = cluster.worker(i) else {
            continue;
        };
        workers += 1;
        of_tables(host, worker.tables(), &[], &mut left);
        of_tokens(host, &worker.ledger().holdings(), None, &mut left);
        let links = worker.hub().links();
        for link in &links {
            let peer = link.peer();
            if peer.role == Role::Client {
                left.push(format!("{host}: a link to {}", peer.name));
            }
        }
        let tasks = OF_WORKER + OF_CONNECTION * links.len();
        of_tasks(cluster, host, tasks, &mut left);
    }
    let tasks = OF_COORDINATOR + OF_CONNECTION * workers;
    of_tasks(cluster, Host::Coordinator, tasks, &mut left);
    left
}

/// Checks the number of a host's tasks. Streams are counted with them, since a task reads or writes each stream.
fn of_tasks(cluster: &Cluster, host: Host, expected: usize, left: &mut Vec<String>) {
    let there = cluster.tasks(host);
    if there != expected {
        left.push(format!("{host}: {there} tasks, not {expected}"));
    }
}

/// Lists the memory that tokens are charged with, except for the purpose `may`.
fn of_tokens(host: Host, holdings: &[TokenHolding], may: Option<Purpose>, left: &mut Vec<String>) {
    for holding in holdings {
        let used = holding.used.iter().filter(|(p, _)| Some(**p) != may);
        let has: u64 = used.map(|(_, bytes)| bytes).sum();
        if has > 0 {
            left.push(format!("{host}: {has} bytes of token {}", holding.token));
        }
    }
}

/// Lists the tables that are not empty, except those named in `may`.
fn of_tables(host: Host, tables: Vec<(&str, usize)>, may: &[&str], left: &mut Vec<String>) {
    for (name, len) in tables {
        if len > 0 && !may.contains(&name) {
            left.push(format!("{host}: {len} {name}"));
        }
    }
}

fn of_worker(host: Host, status: &WorkerStatus, left: &mut Vec<String>) {
    for p in &status.programs {
        left.push(format!(
            "{host}: program {} of {} under {}",
            p.name, p.driver, p.lease
        ));
    }
    if status.live_steps > 0 {
        left.push(format!("{host}: {} live steps", status.live_steps));
    }
    if status.live_handles > 0 {
        left.push(format!("{host}: {} live handles", status.live_handles));
    }
    for (account, bytes) in &status.memory_used {
        // Memory of the first two accounts is held for the worker's life, and the others until it is needed.
        let lasting = matches!(
            account,
            Purpose::Base | Purpose::Buffers | Purpose::UnusedWeights | Purpose::Kept
        );
        if *bytes > 0 && !lasting {
            left.push(format!("{host}: {bytes} bytes of {account:?}"));
        }
    }
    let device = status.device_memory.iter().flat_map(|memory| &memory.used);
    for (account, bytes) in device.filter(|(_, bytes)| **bytes > 0) {
        left.push(format!(
            "{host}: {bytes} bytes of {account:?} on its device"
        ));
    }
}

/// Asks the coordinator what it still holds for clients. `deserted` says that the clients have gone.
pub fn of_coordinator(cluster: &Cluster, deserted: bool) -> Task<Vec<String>> {
    // A worker that is away confirms no release, so the coordinator may keep its leases until its name is forgotten.
    let workers = cluster.hosts().into_iter();
    let workers = workers.filter(|h| matches!(h, Host::Worker(_)));
    let gone: Vec<String> = workers
        .filter(|h| !cluster.is_running(*h))
        .map(|h| h.to_string())
        .collect();
    cluster.on_coordinator(move |c| async move {
        let mut left = Vec::new();
        let mut may = vec![];
        if !deserted {
            may.extend(["plans", "drivers"]);
        }
        if !gone.is_empty() {
            may.extend(["leases", "unconfirmed releases"]);
        }
        match (c.known().await, c.tables().await) {
            (Ok((_, leases)), Ok(tables)) => {
                let held = |l: &LeaseStatus| !l.workers.iter().all(|w| gone.contains(w));
                for lease in leases.into_iter().filter(held) {
                    left.push(format!("{}: {}", Host::Coordinator, lease.lease));
                }
                of_tables(Host::Coordinator, tables, &may, &mut left);
            }
            (Err(e), _) | (_, Err(e)) => left.push(format!("{}: {e}", Host::Coordinator)),
        }
        left
    })
}

impl Invariant for AtRest {
    fn name(&self) -> &'static str {
        "nothing is left at rest"
    }

    fn at(&mut self, stage: Stage, view: &View<'_>, found: &mut Findings) {
        let left = match stage {
            Stage::Rest => left_over(view.cluster),
            Stage::Deserted => deserted(view.cluster),
            Stage::Ready | Stage::Back | Stage::Over => return,
        };
        let known = view.coordinators.iter().cloned();
        for what in left.into_iter().chain(known) {
            found.say(what);
        }
        for ((lease, n), step) in unretired(view.cluster, view.steps) {
            let begun = step.begun.first().map_or(0, Duration::as_millis);
            found.say(format!(
                "step {lease:x}#{n}, begun at {begun} ms, has not retired"
            ));
        }
    }
}
