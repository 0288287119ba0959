//! Formats the status of a cluster for people.

use std::collections::BTreeMap;

use convoke::ClusterStatus;
use convoke_common::device_spec::device_name;
use convoke_common::memory::Purpose;
use convoke_common::rpc::{
    LeaseStatus, LinkStatus, MemberState, MemberStatus, ProgramStoreStatus, QuarantineStatus,
    RendezvousStatus, WeightsStatus, WorkerStatus,
};
use convoke_common::world::ComputeUse;

use crate::text::budget;
use crate::text::output;
use crate::text::values::{bytes, nanos};

/// Formats the status as tables and lines.
pub fn text(s: &ClusterStatus) -> String {
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
            "THREADS",
            "LIVE STEPS",
            "DONE",
            "HANDLES",
            "HOST",
            "ADDRESS",
            "MEMORY",
            "OF",
            "PEAK",
            "RESIDENT",
            "PEAK RSS",
            "INCARNATION",
            "VERSION",
        ];
        let right = [3, 4, 5, 6, 9, 10, 11, 12, 13];
        text.push_str(&output::table(&head, &right, &rows));
    }
    if !s.leases.is_empty() {
        text.push_str("programs\n");
        let row = |l: &LeaseStatus| vec![l.lease.to_string(), l.model.clone(), l.driver.clone()];
        let rows: Vec<Vec<String>> = s.leases.iter().map(row).collect();
        text.push_str(&output::table(&["LEASE", "MODEL", "DRIVER"], &[], &rows));
        text.push_str("their parts\n");
        let rows: Vec<Vec<String>> = s.leases.iter().flat_map(|l| parts(s, l)).collect();
        let head = ["LEASE", "WORKER", "NODES", "WEIGHTS"];
        text.push_str(&output::table(&head, &[2, 3], &rows));
    }
    let links: Vec<Vec<String>> = s.members.iter().flat_map(|m| links(s, m)).collect();
    if !links.is_empty() {
        text.push_str("links\n");
        let head = [
            "WORKER",
            "PEER",
            "PATH",
            "ROUND TRIP",
            "BANDWIDTH",
            "SENT",
            "RECEIVED",
            "QUEUED",
            "ADDRESS",
        ];
        text.push_str(&output::table(&head, &[3, 4, 5, 6, 7], &links));
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
    if let Some(why) = &s.state_failure {
        text.push_str(&format!("the coordinator cannot write its state: {why}\n"));
    }
    text.push_str(&refused("the coordinator", &s.refused));
    for m in &s.members {
        let Some(w) = &m.status else { continue };
        text.push_str(&refused(&m.name, &w.refused));
        text.push_str(&failed(&m.name, &w.steps_failed));
        let from = [
            (w.loaded.shared_path, "a shared path"),
            (w.loaded.cache, "its cache"),
            (w.loaded.clients, "clients"),
        ];
        let from = from.iter().filter(|(size, _)| *size > 0);
        let from: Vec<String> = from
            .map(|(size, place)| format!("{} from {place}", bytes(*size)))
            .collect();
        if !from.is_empty() {
            let from = from.join(", ");
            text.push_str(&format!("weights loaded by {}: {from}\n", m.name));
        }
        text.push_str(&rendezvous(&m.name, &w.rendezvous));
        text.push_str(&weights(&m.name, &w.weights));
        text.push_str(&programs(&m.name, &w.program_store));
    }
    let own = s.members.iter().filter(|m| !m.device.is_cpu());
    own.for_each(|m| text.push_str(&device(m)));
    text.push_str(&format!(
        "through the coordinator: {} received, {} sent, {} of weights\n",
        bytes(s.bytes_received),
        bytes(s.bytes_sent),
        bytes(s.weight_bytes_relayed)
    ));
    output::folded(&text)
}

fn refused(by: &str, reasons: &BTreeMap<String, u64>) -> String {
    if reasons.is_empty() {
        return String::new();
    }
    let reasons: Vec<String> = reasons.iter().map(|(r, n)| format!("{n} {r}")).collect();
    format!("refused by {by}: {}\n", reasons.join(", "))
}

fn rendezvous(at: &str, status: &RendezvousStatus) -> String {
    let RendezvousStatus {
        leases,
        open_steps,
        waiting_receives,
        arriving_tensors,
        waiting_tensors,
        aborts,
    } = status;
    if (*leases, *aborts) == (0, 0) {
        return String::new();
    }
    format!(
        "rendezvous at {at}: leases {leases}, steps {open_steps}; waiting: receives {waiting_receives}, tensors \
         {waiting_tensors}; arriving {arriving_tensors}; aborts {aborts}\n"
    )
}

fn weights(of: &str, held: &WeightsStatus) -> String {
    if held.held_bytes == 0 {
        return String::new();
    }
    let [all, shared, unused] = [held.held_bytes, held.shared_bytes, held.unused_bytes].map(bytes);
    format!("weights held by {of}: {all}; {shared} shared, {unused} unused\n")
}

/// A line about a device that is not the host itself.
fn device(m: &MemberStatus) -> String {
    let memory = m.status.as_ref().and_then(|w| w.device_memory.as_ref());
    let memory = match memory {
        None => format!("{} offered", bytes(m.device_memory)),
        Some(memory) => {
            let used = memory.used.values();
            let used = used.fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
            let [used, all, peak] = [used, memory.budget, memory.peak].map(bytes);
            format!("{used} of {all} used, {peak} at most")
        }
    };
    let name = device_name(&m.name, &m.device);
    let (flops, bandwidth) = (m.flops / 1e9, bytes(m.memory_bandwidth as u64));
    let profile = &m.device_profile;
    format!("device {name}: {memory}; {flops:.1} GFLOP/s, {bandwidth}/s; numerics {profile}\n")
}

fn programs(of: &str, store: &ProgramStoreStatus) -> String {
    if store.held == 0 {
        return String::new();
    }
    let ProgramStoreStatus { held, unused, .. } = store;
    let [bytes, received] = [store.held_bytes, store.received_bytes].map(bytes);
    format!("programs kept by {of}: {held} of {bytes}; {unused} unused, {received} received\n")
}

fn failed(at: &str, codes: &BTreeMap<String, u64>) -> String {
    if codes.is_empty() {
        return String::new();
    }
    let codes: Vec<String> = codes.iter().map(|(c, n)| format!("{n} {c}")).collect();
    format!("steps failed at {at}: {}\n", codes.join(", "))
}

/// Makes a row for each worker of a lease: the number of its nodes and its bytes of weights.
fn parts(s: &ClusterStatus, l: &LeaseStatus) -> Vec<Vec<String>> {
    let row = |worker: &String| {
        let account = s.members.iter().find(|m| m.name == *worker);
        let account = account.and_then(|m| m.status.as_ref());
        let program = account.and_then(|w| w.programs.iter().find(|p| p.lease == l.lease));
        let (nodes, weights) = match program {
            Some(p) => (p.nodes.to_string(), bytes(p.weights_bytes)),
            None => ("-".into(), "-".into()),
        };
        vec![l.lease.to_string(), worker.clone(), nodes, weights]
    };
    l.workers.iter().map(row).collect()
}

fn member(m: &MemberStatus) -> Vec<String> {
    let of = |f: &dyn Fn(&WorkerStatus) -> String| m.status.as_ref().map_or("-".into(), f);
    // Weights that nobody uses, and memory that is kept, are freed where memory is needed.
    let used = |w: &WorkerStatus| {
        let used = w.memory_used.iter();
        let free = [Purpose::UnusedWeights, Purpose::Kept];
        let used = used.filter(|(purpose, _)| !free.contains(purpose));
        used.fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes))
    };
    vec![
        m.name.clone(),
        state(m).into(),
        ago(m.last_seen_ms),
        m.threads.to_string(),
        of(&|w| w.live_steps.to_string()),
        of(&|w| w.steps_done.to_string()),
        of(&|w| format!("{}, {}", w.live_handles, bytes(w.handle_bytes))),
        m.host.clone(),
        m.address.clone(),
        of(&|w| bytes(used(w))),
        bytes(m.status.as_ref().map_or(m.memory, |w| w.memory_budget)),
        of(&|w| bytes(w.memory_peak)),
        of(&|w| bytes(w.resident)),
        of(&|w| bytes(w.resident_peak)),
        m.incarnation.to_string(),
        version(m),
    ]
}

/// The release that a member runs; nothing is known of one that was not there since the coordinator was started.
fn version(m: &MemberStatus) -> String {
    match m.version.as_str() {
        "" => "-".into(),
        version => version.into(),
    }
}

/// Where it is in its life.
pub fn state(m: &MemberStatus) -> &'static str {
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

pub fn ago(ms: u64) -> String {
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
        let (fresh, paused) = (u.waiting, u.paused);
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

/// The measured bandwidth from one member to another; if there is none, that of the other direction.
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
            nanos(l.round_trip),
            bandwidth(s, &m.name, &l.peer),
            bytes(l.sent),
            bytes(l.received),
            bytes(l.queued_bytes),
            l.address.clone(),
        ]
    };
    links.map(row).collect()
}
