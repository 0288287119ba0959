//! How much of each worker is free, as plans, leases and reports come and go.

use std::collections::BTreeSet;

use convoke_common::memory::{Purpose, TokenHolding};
use convoke_common::rpc::{MemoryReport, MemoryUse};
use convoke_graph::program::ConstantId;

use super::super::tables::plans::HELD_FOR;
use super::*;

const MIB: u64 = 1 << 20;

fn token(text: &str) -> TokenId {
    text.parse().unwrap()
}

/// A report of MiB by purpose, all of which the holders of one token have.
fn used(token: &TokenId, used: &[(Purpose, u64)]) -> MemoryUse {
    let used: BTreeMap<Purpose, u64> = used.iter().map(|(p, mib)| (*p, mib * MIB)).collect();
    MemoryUse {
        used: used.clone(),
        holdings: vec![TokenHolding {
            token: token.clone(),
            member: "other".into(),
            limit: 1 << 30,
            used,
        }],
    }
}

impl Rig {
    /// Checks how many MiB of each worker are taken from the view of a token's holders.
    #[track_caller]
    fn taken(&self, token: &TokenId, expected: [u64; 2]) {
        let model = self.model_for(token, &[]);
        let taken = model.workers.iter().map(|w| (w.offered() - w.free()) / MIB);
        assert_eq!(taken.collect::<Vec<_>>(), expected);
    }

    /// A worker reports how much of its host's memory is in use.
    fn report(&mut self, worker: u64, host: MemoryUse) {
        let device = MemoryUse::default();
        self.report_both(worker, MemoryReport { host, device });
    }

    fn report_both(&mut self, worker: u64, used: MemoryReport) {
        let (_, asked) = self.core.to_report(&[]);
        self.core.reported_memory(ConnectionId(worker), asked, used);
    }
}

#[test]
fn a_lease_counts_from_its_plan_until_its_end() {
    let me = TokenId::direct();
    let mut rig = rig().workers(2).granted();
    rig.taken(&me, [1, 2]);
    // A report that was asked for before the install was over may lack the lease.
    let (_, asked) = rig.core.to_report(&[]);
    rig.core.installed(LEASE).unwrap();
    for worker in [0, 1] {
        rig.core
            .reported_memory(ConnectionId(worker), asked, MemoryReport::default());
    }
    rig.taken(&me, [1, 2]);
    // A later report tells how much of it is in use, and how much other memory is.
    let reported = [
        (Purpose::Leases, 1),
        (Purpose::Handles, 5),
        (Purpose::Base, 9),
    ];
    rig.report(1, used(&me, &reported));
    rig.taken(&me, [1, 6]);
    // A report above the plan shows the memory that running steps take for the moment.
    let reported = [(Purpose::Leases, 4), (Purpose::Weights, 4)];
    rig.report(1, used(&me, &reported));
    rig.taken(&me, [1, 2]);
    let freed = rig.core.freed();
    rig.core.release(CLIENT, LEASE).unwrap();
    rig.taken(&me, [0, 0]);
    assert_ne!(rig.core.freed(), freed);
}

#[test]
fn a_plan_counts_until_it_is_granted_or_was_not_for_long() {
    let me = TokenId::direct();
    let mut rig = rig().workers(2).granted();
    let plan = rig.core.plan(rig.now, CLIENT, PLAN).unwrap().plan;
    let keep = |rig: &mut Rig, id, installs| {
        let plan = plan.clone();
        rig.core
            .keep_plan(rig.now, CLIENT, PlanId(id), plan, None, installs);
    };
    // A plan that is only shown takes nothing, and a newer one of the same function takes the place of the former.
    keep(&mut rig, 50, false);
    rig.taken(&me, [1, 2]);
    keep(&mut rig, 51, true);
    keep(&mut rig, 52, true);
    rig.taken(&me, [2, 4]);
    rig.core
        .grant(rig.now, CLIENT, PlanId(52), LeaseId(70))
        .unwrap();
    rig.taken(&me, [2, 4]);
    rig.core.abandon(LeaseId(70));
    rig.taken(&me, [1, 2]);
    keep(&mut rig, 53, true);
    rig.taken(&me, [2, 4]);
    rig.now += HELD_FOR;
    rig.taken(&me, [1, 2]);
}

#[test]
fn a_token_has_no_more_than_its_budget_and_who_has_what_is_known() {
    let (a, b) = (token("aaaa"), token("bbbb"));
    let mut rig = rig().workers(2);
    // By default the holders of a token may have 96 % of a worker.
    let offered = (1 << 30) / MIB;
    rig.report(0, used(&a, &[(Purpose::Handles, 900)]));
    let free = |rig: &Rig, token: &TokenId| rig.model_for(token, &[]).workers[0].free() / MIB;
    assert_eq!(free(&rig, &a), offered * 96 / 100 - 900);
    assert_eq!(free(&rig, &b), offered - 900);
    let model = rig.model_for(&b, &[]);
    let holder = &model.workers[0].host.holders[0];
    assert_eq!(
        (&*holder.token, &*holder.member, holder.bytes),
        ("aaaa", "other", 900 * MIB)
    );
    assert!(model.workers[1].host.holders.is_empty() && model.is_taken());
    // The next process of the worker has reported nothing yet.
    rig.core.closed(rig.now, ConnectionId(0));
    rig.register(5, "w0", 1, 50).unwrap();
    assert_eq!(free(&rig, &b), offered * 96 / 100);
}

#[test]
fn what_a_former_coordinator_granted_is_known_from_reports() {
    let me = TokenId::direct();
    let mut rig = rig().workers(1);
    rig.core.register(rig.now, holder(1, 9)).unwrap();
    rig.taken(&me, [0, 0]);
    rig.report(1, used(&token("aaaa"), &[(Purpose::Weights, 30)]));
    rig.taken(&me, [0, 30]);
}

#[test]
fn a_worker_without_room_is_full_for_that_token_until_it_frees_memory() {
    let (me, other) = (TokenId::direct(), token("aaaa"));
    let mut rig = rig().workers(2).granted();
    let full =
        |rig: &Rig, token: &TokenId| rig.model_for(token, &[]).workers[1].host.free < 2 * MIB;
    rig.core.had_no_room(rig.now, LEASE, "w1");
    assert!(full(&rig, &me) && !full(&rig, &other));
    // A part that needs less may still be placed there.
    assert_eq!(rig.model_for(&me, &[]).workers[1].host.free, 2 * MIB - 1);
    rig.now += Duration::from_secs(5);
    assert!(!full(&rig, &me));
    // The coordinator learns only the lease's need of that worker.
    rig.core.had_no_room(rig.now, LEASE, "nobody");
    rig.core.had_no_room(rig.now, LeaseId(1), "w1");
    assert!(!full(&rig, &me));
    rig.core.installed(LEASE).unwrap();
    rig.core.had_no_room(rig.now, LEASE, "w1");
    rig.core.dropped(ConnectionId(1), &[LeaseId(1)]);
    assert!(full(&rig, &me));
    rig.core.dropped(ConnectionId(1), &[LEASE]);
    assert!(!full(&rig, &me));
}

#[test]
fn leases_share_constants_whichever_function_they_are_of() {
    let me = TokenId::direct();
    let mut rig = rig().workers(2).granted();
    let plan = rig.core.plan(rig.now, CLIENT, PLAN).unwrap().plan;
    let id = |n: u8| ConstantId([n; 32]);
    // Each constant has 10 MiB.
    let part = |all: u64, constants: &[u8]| PlanPart {
        needed: PartMemory {
            host: MemoryNeed::new(
                all * MIB,
                constants.iter().map(|n| (id(*n), 10 * MIB)).collect(),
            ),
            device: MemoryNeed::default(),
        },
        ..super::part(1)
    };
    rig.core.abandon(LEASE);
    let lease = |rig: &mut Rig, n: u64, token: &str, constants: &[u8]| {
        let plan = Plan {
            model: "m".into(),
            function: FunctionId([n as u8; 32]),
            token: token.parse().unwrap(),
            parts: vec![part(30, constants), part(7, &[])],
            participants: plan.participants.clone(),
            bodies: vec![],
            axes: Axes::default(),
            in_flight: 1,
        };
        let id = PlanId(100 + n);
        rig.core
            .keep_plan(rig.now, CLIENT, id, Arc::new(plan), None, true);
        rig.core.grant(rig.now, CLIENT, id, LeaseId(n)).unwrap();
    };
    lease(&mut rig, 20, "aaaa", &[1, 2]);
    rig.taken(&me, [30, 7]);
    lease(&mut rig, 21, "bbbb", &[1, 2]);
    rig.taken(&me, [40, 14]);
    // One of these two is there.
    lease(&mut rig, 22, "bbbb", &[2, 3]);
    rig.taken(&me, [60, 21]);
    // The budget of a token is charged in full, also for what others loaded.
    let of = |rig: &Rig, token: &str| {
        let worker = rig
            .model_for(&token.parse().unwrap(), &[])
            .workers
            .remove(0)
            .host;
        let ids = |all: &BTreeSet<ConstantId>| all.iter().map(|id| id.0[0]).collect::<Vec<u8>>();
        let constants = [&worker.constants.all, &worker.constants.own];
        (
            (worker.offered - worker.budget) / MIB,
            constants.map(|c| ids(c)),
        )
    };
    assert_eq!(of(&rig, "aaaa"), (30, [vec![1, 2, 3], vec![1, 2]]));
    assert_eq!(of(&rig, "bbbb"), (50, [vec![1, 2, 3], vec![1, 2, 3]]));
    assert_eq!(of(&rig, "cccc"), (0, [vec![1, 2, 3], vec![]]));
    // Where a worker had no room, nothing is believed to be there.
    rig.core.had_no_room(rig.now, LeaseId(20), "w0");
    assert_eq!(of(&rig, "aaaa").1, [Vec::<u8>::new(), vec![]]);
    rig.core.abandon(LeaseId(20));
    rig.core.dropped(ConnectionId(0), &[LeaseId(20)]);
    rig.now += Duration::from_secs(5);
    rig.taken(&me, [50, 14]);
    assert_eq!(of(&rig, "aaaa"), (0, [vec![1, 2, 3], vec![]]));
}

#[test]
fn a_worker_that_leaves_may_have_made_room() {
    let mut rig = rig().workers(2);
    let freed = rig.core.freed();
    rig.core.left(rig.now, ConnectionId(0));
    assert_ne!(rig.core.freed(), freed);
}

#[test]
fn of_a_long_report_the_beginning_is_kept() {
    let mut rig = rig().workers(1);
    let holding = |n: usize| TokenHolding {
        token: token(&format!("{n:08x}")),
        member: "m".repeat(1 << 10),
        limit: 0,
        used: [(Purpose::Handles, MIB)].into(),
    };
    let report = MemoryUse {
        used: BTreeMap::new(),
        holdings: (0..5000).map(holding).collect(),
    };
    rig.report(0, report);
    let holders = rig.model(&[]).workers.remove(0).host.holders;
    assert_eq!(holders.len(), 4096);
    assert!(holders.iter().all(|holder| holder.member.len() == 256));
}

/// What is free in MiB of the first worker for a token's holders: of its host, and of its device.
fn free_of(rig: &Rig, token: &TokenId) -> Vec<u64> {
    let worker = rig.model_for(token, &[]).workers.remove(0);
    worker.memories().map(|m| m.usable() / MIB).collect()
}

/// Gives a worker a device with 100 MiB of its own.
fn with_device(mut newcomer: Newcomer) -> Newcomer {
    newcomer.register.device = "simgpu:0".parse().unwrap();
    newcomer.register.device_memory = 100 * MIB;
    newcomer
}

#[test]
fn host_and_device_are_reckoned_apart_as_reported() {
    let (me, other) = (token("aaaa"), token("bbbb"));
    let mut rig = rig();
    rig.core
        .register(rig.now, with_device(holder(0, 9)))
        .unwrap();
    // By default the holders of a token may have 96 % of each.
    assert_eq!(free_of(&rig, &me), [983, 96]);
    let report = MemoryReport {
        host: used(&me, &[(Purpose::Handles, 500)]),
        device: used(&me, &[(Purpose::Leases, 60)]),
    };
    rig.report_both(0, report);
    assert_eq!(free_of(&rig, &me), [483, 36]);
    assert_eq!(free_of(&rig, &other), [524, 40]);
    let worker = rig.model_for(&other, &[]).workers.remove(0);
    let holders = worker.memories().map(|m| m.holders[0].bytes / MIB);
    assert_eq!(holders.collect::<Vec<_>>(), [500, 60]);
}

#[test]
fn host_and_device_are_reckoned_apart_as_planned() {
    let me = TokenId::direct();
    let mut rig = rig();
    let first = with_device(newcomer(0, "w0", 1, 1));
    rig.core.register(rig.now, first).unwrap();
    rig.register(1, "w1", 2, 2).unwrap();
    rig.commands();
    let mut rig = rig.granted();
    // The lease of the rig needs nothing of the device.
    assert_eq!(free_of(&rig, &me), [1023, 100]);
    let plan = rig.core.plan(rig.now, CLIENT, PLAN).unwrap().plan;
    let shared = BTreeMap::from([(ConstantId([1; 32]), 10 * MIB)]);
    let lease = |rig: &mut Rig, n: u64| {
        let first = PlanPart {
            needed: PartMemory {
                host: MemoryNeed::new(50 * MIB, shared.clone()),
                device: MemoryNeed::new(30 * MIB, shared.clone()),
            },
            ..super::part(1)
        };
        let plan = Plan {
            model: "m".into(),
            function: FunctionId([n as u8; 32]),
            token: me.clone(),
            parts: vec![first, super::part(1)],
            participants: plan.participants.clone(),
            bodies: vec![],
            axes: Axes::default(),
            in_flight: 1,
        };
        let id = PlanId(100 + n);
        rig.core
            .keep_plan(rig.now, CLIENT, id, Arc::new(plan), None, true);
        rig.core.grant(rig.now, CLIENT, id, LeaseId(n)).unwrap();
    };
    lease(&mut rig, 20);
    assert_eq!(free_of(&rig, &me), [973, 70]);
    // The constant is there once in each of the two.
    lease(&mut rig, 21);
    assert_eq!(free_of(&rig, &me), [933, 50]);
    // A worker that had no room is full by either memory.
    rig.core.had_no_room(rig.now, LeaseId(20), "w0");
    assert_eq!(free_of(&rig, &me), [49, 29]);
    rig.core.memory_freed(Some("w0"));
    rig.core.had_no_room(rig.now, LEASE, "w0");
    assert_eq!(free_of(&rig, &me), [0, 50]);
}
