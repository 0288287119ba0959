//! `convoke status`.

use std::collections::BTreeMap;
use std::path::Path;

use convoke::{Cluster, ClusterStatus, Code, Error};
use convoke_common::rpc::{
    ComputeUse, LinkStatus, MemberState, MemberStatus, QuarantineStatus, WorkerStatus,
};
use convoke_coordinator::admin::{Client, socket_in};
use serde::Serialize;

use crate::args::StatusArgs;
use crate::failure::Failure;
use crate::signals::Signals;
use crate::values::{bytes, nanos};
use crate::{budget, cluster, health, output};

/// Shows the cluster, or says whether all is well.
pub async fn status(args: StatusArgs, json: bool) -> Result<(), Failure> {
    let mut signals = Signals::hear()?;
    if args.health {
        let error = match signals.or(healthy(&args)).await {
            Ok(()) => None,
            Err(Failure::Error(e)) => Some(e),
            Err(other) => return Err(other),
        };
        return tell(error, json);
    }
    let Some(address) = &args.connect else {
        let msg = "status needs --connect HOST:PORT and --token-file FILE";
        return Err(Failure::Usage(msg.into()));
    };
    let status = signals.or(ask(address, args.token_file.as_deref())).await?;
    match json {
        true => output::json(&status),
        false => output::print(&text(&status)),
    }
}

/// How it is, as `--json` has it.
#[derive(Serialize)]
struct Health {
    healthy: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Error>,
}

/// The exit code is the answer; the rest is for whoever looks why.
fn tell(error: Option<Error>, json: bool) -> Result<(), Failure> {
    if let Some(e) = &error {
        output::note(&format!("unhealthy: {e}"));
    }
    let healthy = error.is_none();
    let told = match json {
        true => output::json(&Health { healthy, error }),
        false => Ok(()),
    };
    match healthy {
        true => told,
        false => Err(Failure::Silent),
    }
}

async fn ask(address: &str, token_file: Option<&Path>) -> Result<ClusterStatus, Failure> {
    let cluster: Cluster = cluster::connect(address, token_file).await?;
    let status = cluster.status().await;
    cluster.shutdown().await;
    Ok(status?)
}

async fn healthy(args: &StatusArgs) -> Result<(), Failure> {
    if let Some(dir) = &args.state_dir {
        if health::is_worker(dir) {
            return Ok(health::ask(dir).await?);
        }
        let socket = socket_in(dir);
        if !socket.exists() {
            let msg = format!(
                "no coordinator and no worker runs with the state folder {}",
                dir.display()
            );
            return Err(Error::new(Code::NotFound, msg).into());
        }
        Client::new(&socket).health().await?;
        return Ok(());
    }
    let Some(address) = &args.connect else {
        let msg =
            "status --health needs --state-dir DIR, or --connect HOST:PORT and --token-file FILE";
        return Err(Failure::Usage(msg.into()));
    };
    let status = ask(address, args.token_file.as_deref()).await?;
    let Some(wanted) = &args.member else {
        return Ok(());
    };
    let found = status.members.iter().find(|m| m.name == *wanted);
    match found {
        Some(m) if m.state == MemberState::Alive && m.status.is_some() => Ok(()),
        Some(m) => {
            let seen = ago(m.last_seen_ms);
            let msg = format!("worker {wanted} is {}, last seen {seen}", state(m));
            Err(Error::new(Code::PeerLost, msg).into())
        }
        None => Err(Error::new(Code::NotFound, format!("there is no worker {wanted}")).into()),
    }
}

fn text(s: &ClusterStatus) -> String {
    let serving = |m: &&MemberStatus| m.state == MemberState::Alive;
    let alive = s.members.iter().filter(serving).count();
    let mut text = format!(
        "convoke {}, numerics {}: {alive} of {} workers alive, {} programs\n",
        s.version,
        s.profile,
        s.members.len(),
        s.leases.len()
    );
    if !s.members.is_empty() {
        let rows: Vec<Vec<String>> = s.members.iter().map(member).collect();
        let head = [
            "WORKER",
            "STATE",
            "LAST SEEN",
            "HOST",
            "ADDRESS",
            "THREADS",
            "MEMORY",
            "PEAK",
            "RESIDENT",
            "PEAK RSS",
            "STEPS",
            "HANDLES",
            "INCARNATION",
        ];
        text.push_str(&output::table(&head, &[5, 6, 7, 8, 9, 10, 11], &rows));
    }
    if !s.leases.is_empty() {
        text.push_str("programs\n");
        let row = |l: &convoke_common::rpc::LeaseStatus| {
            let nodes = |w: &String| nodes_at(s, w, l.lease);
            let parts: Vec<String> = l.workers.iter().map(nodes).collect();
            vec![
                l.lease.to_string(),
                l.model.clone(),
                l.driver.clone(),
                parts.join(", "),
            ]
        };
        let rows: Vec<Vec<String>> = s.leases.iter().map(row).collect();
        text.push_str(&output::table(
            &["LEASE", "MODEL", "DRIVER", "WORKERS"],
            &[],
            &rows,
        ));
    }
    let links: Vec<Vec<String>> = s.members.iter().flat_map(|m| links(s, m)).collect();
    if !links.is_empty() {
        text.push_str("links\n");
        let head = [
            "WORKER",
            "PEER",
            "PATH",
            "ADDRESS",
            "ROUND TRIP",
            "BANDWIDTH",
            "SENT",
            "RECEIVED",
            "QUEUED",
        ];
        text.push_str(&output::table(&head, &[4, 5, 6, 7, 8], &links));
    }
    let workers = s.members.iter().filter_map(|m| {
        let w = m.status.as_ref()?;
        Some((&*m.name, &*w.holdings, &*w.connections))
    });
    let coordinator = ("the coordinator", &*s.holdings, &*s.connections);
    text.push_str(&budget::table(workers.chain([coordinator])));
    let turns: Vec<Vec<String>> = s.members.iter().flat_map(|m| turns(s, m)).collect();
    if !turns.is_empty() {
        text.push_str("compute\n");
        let head = [
            "WORKER", "CLIENT", "LEASE", "MODEL", "TURN", "WAITING", "BEHIND",
        ];
        text.push_str(&output::table(&head, &[5], &turns));
    }
    if !s.quarantine.is_empty() {
        text.push_str("nodes in which workers died\n");
        let rows: Vec<Vec<String>> = s.quarantine.iter().map(quarantined).collect();
        let head = ["NODE", "FUNCTION", "STATE", "DEATHS"];
        text.push_str(&output::table(&head, &[], &rows));
    }
    for m in s.members.iter().filter(|m| !m.ops.is_empty()) {
        let ops: Vec<&str> = m.ops.iter().map(|op| &*op.name).collect();
        text.push_str(&format!("{} has custom ops: {}\n", m.name, ops.join(", ")));
    }
    for m in s.members.iter().filter(|m| !m.remark.is_empty()) {
        text.push_str(&format!("{}: {}\n", m.name, m.remark));
    }
    text.push_str(&refused("the coordinator", &s.refused));
    for m in &s.members {
        let Some(w) = &m.status else { continue };
        text.push_str(&refused(&m.name, &w.refused));
        let [path, cache, client] = w.loaded;
        if path + cache + client > 0 {
            text.push_str(&format!(
                "weights loaded by {}: {} from a shared path, {} from its cache, {} from clients\n",
                m.name,
                bytes(path),
                bytes(cache),
                bytes(client)
            ));
        }
    }
    text.push_str(&format!(
        "through the coordinator: {} received, {} sent, {} of weights\n",
        bytes(s.bytes_received),
        bytes(s.bytes_sent),
        bytes(s.weight_bytes_relayed)
    ));
    text
}

fn refused(by: &str, reasons: &BTreeMap<String, u64>) -> String {
    if reasons.is_empty() {
        return String::new();
    }
    let reasons: Vec<String> = reasons.iter().map(|(r, n)| format!("{n} {r}")).collect();
    format!("refused by {by}: {}\n", reasons.join(", "))
}

fn nodes_at(s: &ClusterStatus, worker: &str, lease: convoke_common::ids::LeaseId) -> String {
    let account = s.members.iter().find(|m| m.name == worker);
    let account = account.and_then(|m| m.status.as_ref());
    let program = account.and_then(|w| w.programs.iter().find(|p| p.lease == lease));
    match program {
        Some(p) => format!("{worker} ({} nodes, {})", p.nodes, bytes(p.weights_bytes)),
        None => worker.to_owned(),
    }
}

fn member(m: &MemberStatus) -> Vec<String> {
    let of = |f: &dyn Fn(&WorkerStatus) -> String| m.status.as_ref().map_or("-".into(), f);
    let used = |w: &WorkerStatus| {
        w.memory_used
            .values()
            .fold(0u64, |a, b| a.saturating_add(*b))
    };
    vec![
        m.name.clone(),
        state(m).into(),
        ago(m.last_seen_ms),
        m.host.clone(),
        m.address.clone(),
        m.threads.to_string(),
        match &m.status {
            Some(w) => format!("{} of {}", bytes(used(w)), bytes(w.memory_budget)),
            None => bytes(m.memory),
        },
        of(&|w| bytes(w.memory_peak)),
        of(&|w| bytes(w.resident)),
        of(&|w| bytes(w.resident_peak)),
        of(&|w| format!("{} live, {} done", w.live_steps, w.steps_done)),
        of(&|w| format!("{}, {}", w.live_handles, bytes(w.handle_bytes))),
        m.incarnation.to_string(),
    ]
}

/// Where it is in its life.
fn state(m: &MemberStatus) -> &'static str {
    match (m.state, &m.status) {
        (MemberState::Alive, Some(_)) if m.tripwire => "alive",
        (MemberState::Alive, Some(_)) => "alive, tcp blocked",
        (MemberState::Alive, None) => "silent",
        (MemberState::Leaving, _) => "leaving",
        (MemberState::Drained, _) => "drained",
        (MemberState::Wedged, _) => "wedged",
        (MemberState::Lost, _) => "lost",
    }
}

fn quarantined(q: &QuarantineStatus) -> Vec<String> {
    let death = |d: &convoke_common::rpc::DeathStatus| {
        format!(
            "{} {} {}",
            d.worker,
            d.signal,
            ago(d.age.saturating_mul(1000))
        )
    };
    let deaths: Vec<String> = q.deaths.iter().map(death).collect();
    let state = if q.refused { "refused" } else { "suspect" };
    vec![
        q.node.clone(),
        q.function.to_string(),
        state.into(),
        deaths.join(", "),
    ]
}

fn ago(ms: u64) -> String {
    match ms / 1000 {
        s @ 0..=119 => format!("{s} s ago"),
        s => format!("{} min ago", s / 60),
    }
}

/// Lists the clients whose jobs a worker runs, and those that wait, in the order in which they wait.
fn turns(s: &ClusterStatus, m: &MemberStatus) -> Vec<Vec<String>> {
    let all = m.status.as_ref().map_or(&[][..], |w| &w.compute);
    let running = all.iter().find(|u| u.runs);
    let row = |u: &ComputeUse| {
        let model = s.leases.iter().find(|l| l.lease == u.lease);
        let [fresh, paused] = u.waiting;
        let since = format!("{:.1} s", u.since_ms as f64 / 1e3);
        let turn = match (u.runs, fresh + paused) {
            (true, 0) => format!("runs for {since}"),
            (true, _) => format!("runs, others wait for {since}"),
            (false, _) => format!("waits for {since}"),
        };
        let behind = running.filter(|r| r.lease != u.lease);
        vec![
            m.name.clone(),
            u.member.clone(),
            u.lease.to_string(),
            model.map_or_else(|| "-".into(), |l| l.model.clone()),
            turn,
            match paused {
                0 => fresh.to_string(),
                _ => format!("{fresh}, {paused} begun"),
            },
            behind.map_or_else(|| "-".into(), |r| format!("{} of {}", r.lease, r.member)),
        ]
    };
    all.iter().map(row).collect()
}

fn path(l: &LinkStatus) -> String {
    match l.path.as_str() {
        "local" => "local".into(),
        path if !l.tripwire => format!("{path}, tcp blocked"),
        path => path.into(),
    }
}

/// As it was measured, in this direction or the other.
fn bandwidth(s: &ClusterStatus, from: &str, to: &str) -> String {
    let of = |from: &str, to: &str| s.links.iter().find(|l| l.from == from && l.to == to);
    match of(from, to).or_else(|| of(to, from)) {
        Some(link) => format!("{}/s", bytes(link.bandwidth as u64)),
        None => "-".into(),
    }
}

fn links(s: &ClusterStatus, m: &MemberStatus) -> Vec<Vec<String>> {
    let links = m.status.iter().flat_map(|w| &w.links);
    let row = |l: &LinkStatus| {
        vec![
            m.name.clone(),
            l.peer.clone(),
            path(l),
            l.address.clone(),
            nanos(l.round_trip),
            bandwidth(s, &m.name, &l.peer),
            bytes(l.sent),
            bytes(l.received),
            bytes(l.queued_bytes),
        ]
    };
    links.map(row).collect()
}
