use std::sync::Arc;
use std::time::Duration;

use convoke_common::ids::{FunctionId, Incarnation, LeaseId, PlanId};
use convoke_common::program::Axes;
use convoke_common::rpc::{HeldLease, Loss, RETURN_BOUND, Register};

use super::*;

const CLIENT: ConnectionId = ConnectionId(90);
/// Why a connection ended.
const GONE: &str = "no answer for 2s";
pub(super) const LEASE: LeaseId = LeaseId(7);
const PLAN: PlanId = PlanId(5);
const FUNCTION: FunctionId = FunctionId([3; 32]);

/// A core with a clock that tests move by hand.
pub(super) struct Rig {
    pub(super) core: Membership,
    pub(super) now: Instant,
}

pub(super) fn rig() -> Rig {
    Rig {
        core: Membership::new("p1"),
        now: Instant::now(),
    }
}

fn newcomer(connection: u64, name: &str, key: u8, incarnation: u64) -> Newcomer {
    Newcomer {
        connection: ConnectionId(connection),
        name: name.into(),
        fingerprint: [key; 32],
        address: format!("host:{connection}"),
        register: Register {
            incarnation: Incarnation(incarnation),
            advertise: String::new(),
            host: "host".into(),
            profile: "p1".into(),
            threads: 2,
            memory: 1 << 30,
            window: 8 << 20,
            flops: 1e9,
            memory_bandwidth: 1e9,
            leases: vec![],
            deaths: vec![],
        },
        at: 0,
    }
}

/// The worker `wN` on connection N, which holds a lease of this life of the client.
fn holder(n: u64, driver: u64) -> Newcomer {
    let mut worker = newcomer(n, &format!("w{n}"), n as u8 + 1, 7);
    worker.register.leases.push(HeldLease {
        lease: LEASE,
        model: "m".into(),
        driver: ("me".into(), Incarnation(driver)),
    });
    worker
}

fn participant(name: &str, incarnation: u64, connection: u64) -> Participant {
    let address = if connection == 0 {
        String::new()
    } else {
        format!("host:{connection}")
    };
    Participant {
        name: name.into(),
        incarnation: Incarnation(incarnation),
        address,
    }
}

impl Rig {
    pub(super) fn commands(&mut self) -> Vec<Command> {
        std::iter::from_fn(|| self.core.next_command()).collect()
    }

    pub(super) fn register(
        &mut self,
        connection: u64,
        name: &str,
        key: u8,
        incarnation: u64,
    ) -> Result<Vec<Participant>, MembershipError> {
        self.core
            .register(self.now, newcomer(connection, name, key, incarnation))
    }

    /// `w0`, `w1`, … on connections 0, 1, … with keys and incarnations of the same number plus one.
    pub(super) fn workers(mut self, count: u64) -> Rig {
        for n in 0..count {
            self.register(n, &format!("w{n}"), n as u8 + 1, n + 1)
                .unwrap();
        }
        self.commands();
        self
    }

    /// A plan over `w0` and `w1` of the client, granted.
    pub(super) fn granted(mut self) -> Rig {
        let plan = Plan {
            model: "m".into(),
            function: FUNCTION,
            parts: vec![(Arc::new(program()), 1), (Arc::new(program()), 2)],
            participants: vec![
                participant("w0", 1, 0),
                participant("w1", 2, 1),
                participant("me", 9, 0),
            ],
            axes: Axes::default(),
            in_flight: 1,
        };
        self.core.resume(CLIENT, me(), vec![]).unwrap();
        self.core.keep_plan(self.now, CLIENT, PLAN, Arc::new(plan));
        let granted = self.core.grant(self.now, CLIENT, PLAN, LEASE).unwrap();
        assert_eq!(granted.connections, [ConnectionId(0), ConnectionId(1)]);
        assert_eq!(self.commands(), []);
        self
    }
}

/// The client.
fn me() -> Driver {
    Driver {
        name: "me".into(),
        incarnation: Incarnation(9),
    }
}

fn program() -> convoke_common::program::Program {
    convoke_common::program::Program {
        name: "m".into(),
        function: FUNCTION,
        profile: "p1".into(),
        values: vec![],
        literals: vec![],
        artifacts: vec![],
        nodes: vec![],
        init_nodes: 0,
        recvs: vec![],
        sends: vec![],
    }
}

fn keep(name: &str, keys: &[u8]) -> Command {
    Command::Keep {
        name: name.into(),
        fingerprints: keys.iter().map(|k| [*k; 32]).collect(),
    }
}

fn release(at: &[u64]) -> Command {
    Command::Release {
        lease: LEASE,
        at: at.iter().map(|c| ConnectionId(*c)).collect(),
        lost: None,
    }
}

pub(super) fn release_for(at: &[u64], worker: &str, why: &str) -> Command {
    Command::Release {
        lease: LEASE,
        at: at.iter().map(|c| ConnectionId(*c)).collect(),
        lost: Some(Loss {
            worker: worker.into(),
            why: why.into(),
        }),
    }
}

#[test]
fn a_newcomer_probes_those_who_are_there() {
    let mut rig = rig();
    assert_eq!(rig.register(0, "a", 1, 1), Ok(vec![]));
    assert_eq!(rig.commands(), [keep("a", &[1]), Command::Population(1)]);
    let peers = vec![Participant {
        address: "host:0".into(),
        ..participant("a", 1, 0)
    }];
    assert_eq!(rig.register(1, "b", 2, 2), Ok(peers.clone()));
    let probe = Command::Probe {
        connection: ConnectionId(1),
        peers,
    };
    assert_eq!(
        rig.commands(),
        [keep("b", &[2]), probe, Command::Population(2)]
    );
}

#[test]
fn a_profile_that_differs_is_refused_by_both_names() {
    let mut rig = rig();
    let mut other = newcomer(0, "a", 1, 1);
    other.register.profile = "p2".into();
    let error = rig.core.register(rig.now, other).unwrap_err().to_string();
    assert!(
        error.contains("'p1'") && error.contains("'p2'") && error.contains("'a'"),
        "{error}"
    );
    for (what, spoil) in [
        ("threads", (|r| r.threads = 0) as fn(&mut Register)),
        ("speed", |r| r.flops = f64::NAN),
        ("speed", |r| r.memory_bandwidth = -1.0),
        ("host name", |r| r.host = "x\x1b[2J".into()),
        ("host name", |r| r.host = "x".repeat(300)),
    ] {
        let mut bad = newcomer(0, "a", 1, 1);
        spoil(&mut bad.register);
        let error = rig.core.register(rig.now, bad).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    assert_eq!((rig.commands(), rig.core.serving()), (vec![], 0));
}

#[test]
fn the_same_holder_returns_as_a_new_incarnation() {
    let mut rig = rig().workers(2).granted();
    rig.core.installed(LEASE).unwrap();
    rig.register(5, "w0", 1, 77).unwrap();
    let close = Command::Close {
        connection: ConnectionId(0),
        code: close::REPLACED,
        reason: "replaced by a newer process",
    };
    let probe = Command::Probe {
        connection: ConnectionId(5),
        peers: vec![participant("w1", 2, 1)],
    };
    assert_eq!(
        rig.commands(),
        [
            release_for(&[1], "w0", "replaced by a newer process"),
            close,
            probe,
            Command::Population(2)
        ]
    );
    // The old connection's end is no longer that of a worker.
    rig.core.closed(rig.now, ConnectionId(0), GONE);
    assert_eq!((rig.commands(), rig.core.serving()), (vec![], 2));
    assert!(rig.core.leases().is_empty());
}

#[test]
fn a_living_holder_keeps_its_name_from_others() {
    let mut rig = rig().workers(1);
    let taken = MembershipError::NameTaken {
        name: "w0".into(),
        holder: Some(ConnectionId(0)),
    };
    assert_eq!(rig.register(5, "w0", 9, 9), Err(taken.clone()));
    let name: convoke_common::identity::PeerName = "w0".parse().unwrap();
    assert_eq!(rig.core.claim(rig.now, Some(&name)), Err(taken));
    rig.core.closed(rig.now, ConnectionId(0), GONE);
    assert_eq!(rig.commands(), [Command::Population(0)]);
    assert_eq!(rig.core.claim(rig.now, Some(&name)), Ok("w0".into()));
    // Reserved for a moment.
    let taken = MembershipError::NameTaken {
        name: "w0".into(),
        holder: None,
    };
    assert_eq!(rig.core.claim(rig.now, Some(&name)), Err(taken));
    rig.core.issued("w0", [9; 32]);
    assert_eq!(rig.commands(), [keep("w0", &[9])]);
    rig.register(5, "w0", 9, 9).unwrap();
    assert_eq!(rig.commands(), [Command::Population(1)]);
}

#[test]
fn unnamed_workers_get_the_lowest_free_name() {
    let mut rig = rig().workers(2);
    assert_eq!(rig.core.claim(rig.now, None), Ok("w2".into()));
    assert_eq!(rig.core.claim(rig.now, None), Ok("w3".into()));
    // The lost keep theirs for an hour.
    rig.core.closed(rig.now, ConnectionId(0), GONE);
    assert_eq!(rig.core.claim(rig.now, None), Ok("w4".into()));
    rig.commands();
    rig.now += Duration::from_secs(3600);
    assert!(rig.core.poll_timeout().is_some_and(|t| t <= rig.now));
    rig.core.handle_timeout(rig.now);
    let forget = |name: &str| Command::Forget { name: name.into() };
    assert_eq!(rig.commands(), ["w0", "w2", "w3", "w4"].map(forget));
    assert_eq!(rig.core.claim(rig.now, None), Ok("w0".into()));
}

#[test]
fn renewed_and_restored_holders_are_known() {
    let mut rig = rig();
    rig.core
        .restore(rig.now, vec![("w0".into(), vec![[1; 32]])]);
    assert_eq!(rig.core.claim(rig.now, None), Ok("w1".into()));
    rig.register(0, "w0", 1, 1).unwrap();
    rig.commands();
    rig.core.renewed(ConnectionId(0), [2; 32]);
    rig.core.renewed(ConnectionId(0), [3; 32]);
    assert_eq!(rig.commands(), [keep("w0", &[1, 2]), keep("w0", &[2, 3])]);
    rig.register(1, "w0", 3, 2).unwrap();
    assert!(matches!(
        rig.register(2, "w0", 1, 3),
        Err(MembershipError::NameTaken { .. })
    ));
}

#[test]
fn workers_known_before_a_restart_are_waited_for() {
    let mut rig = rig();
    assert_eq!(rig.core.returning(rig.now), None);
    let kept = |n: u8| (format!("w{n}"), vec![[n + 1; 32]]);
    rig.core.restore(rig.now, vec![kept(0), kept(1)]);
    let until = rig.now + RETURN_BOUND;
    rig.register(0, "w0", 1, 1).unwrap();
    assert_eq!(rig.core.returning(rig.now), Some(until));
    assert_eq!(rig.core.returning(until), None, "not for ever");
    rig.register(1, "w1", 2, 2).unwrap();
    assert_eq!(rig.core.returning(rig.now), None);
}

#[test]
fn a_restarted_coordinator_learns_of_leases_from_those_who_hold_them() {
    let mut rig = rig();
    let kept = |n: u8| (format!("w{n}"), vec![[n + 1; 32]]);
    rig.core.restore(rig.now, vec![kept(0), kept(1), kept(2)]);
    rig.core.register(rig.now, holder(0, 9)).unwrap();
    rig.core.register(rig.now, holder(1, 9)).unwrap();
    // Whoever says otherwise later is not believed.
    rig.core.register(rig.now, holder(2, 10)).unwrap();
    let known = rig.core.leases();
    assert_eq!(
        (known.len(), &known[0].workers[..]),
        (1, &["w0".to_owned(), "w1".to_owned()][..])
    );
    rig.commands();
    // Its driver is back in time, and done.
    rig.now += RETURN_BOUND;
    rig.core.handle_timeout(rig.now);
    rig.core.resume(CLIENT, me(), vec![LEASE]).unwrap();
    assert_eq!(rig.core.release(CLIENT, LEASE), Ok(()));
    assert_eq!(rig.commands(), [release(&[0, 1])]);
    // Who returns only now is told at once.
    rig.core.restore(rig.now, vec![kept(3)]);
    rig.core.register(rig.now, holder(3, 9)).unwrap();
    assert_eq!(rig.commands()[0], release(&[3]));
    assert!(rig.core.leases().is_empty());
}

#[test]
fn a_lease_that_its_driver_never_heard_of_ends() {
    let mut rig = rig();
    rig.core.register(rig.now, holder(0, 9)).unwrap();
    rig.commands();
    rig.core.resume(CLIENT, me(), vec![]).unwrap();
    assert_eq!(rig.commands(), [release(&[0])]);
    assert!(rig.core.leases().is_empty());
}

#[test]
fn drivers_that_do_not_find_a_restarted_coordinator_lose_their_leases() {
    let mut rig = rig();
    let mut worker = holder(0, 9);
    rig.core.register(rig.now, worker.clone()).unwrap();
    rig.commands();
    let due = rig.core.poll_timeout().unwrap();
    assert!(due > rig.now + 5 * RETURN_BOUND);
    rig.now = due;
    rig.core.handle_timeout(due);
    assert_eq!(rig.commands(), [release(&[0])]);
    // One that comes back later with a lease that has ended is told by what it missed, and not believed again.
    worker.connection = ConnectionId(1);
    rig.core.register(rig.now, worker).unwrap();
    assert!(rig.core.leases().is_empty());
}

#[test]
fn a_worker_back_on_another_connection_keeps_its_leases() {
    let mut rig = rig().workers(2).granted();
    rig.core.installed(LEASE).unwrap();
    rig.register(5, "w0", 1, 1).unwrap();
    let close = Command::Close {
        connection: ConnectionId(0),
        code: close::LOST,
        reason: "back on another connection",
    };
    assert_eq!(rig.commands()[0], close);
    assert_eq!(rig.core.leases().len(), 1);
    rig.core.closed(rig.now, ConnectionId(0), GONE);
    assert_eq!(rig.core.release(CLIENT, LEASE), Ok(()));
    assert_eq!(rig.commands(), [release(&[5, 1])]);
}

#[test]
fn who_took_the_coordinator_for_lost_has_a_while_to_return() {
    let away = "it lost contact with this process first";
    let mut rig = rig().workers(2).granted();
    rig.core.installed(LEASE).unwrap();
    for n in [0, 1] {
        rig.core.parted(rig.now, ConnectionId(n), away);
    }
    let until = rig.now + RETURN_BOUND;
    assert_eq!(rig.core.poll_timeout(), Some(until));
    assert_eq!((rig.core.leases().len(), rig.core.serving()), (1, 0));
    rig.commands();
    let mut back = newcomer(5, "w0", 1, 1);
    back.register.leases = holder(0, 9).register.leases;
    rig.core.register(rig.now, back).unwrap();
    assert_eq!(rig.core.serving(), 1);
    rig.commands();
    // The other one does not.
    rig.core.handle_timeout(until - Duration::from_millis(1));
    assert_eq!(rig.commands(), []);
    rig.core.handle_timeout(until);
    assert_eq!(rig.commands(), [release_for(&[5], "w1", away)]);
}

#[test]
fn losing_a_worker_retires_its_leases() {
    let mut rig = rig().workers(3).granted();
    rig.core.installed(LEASE).unwrap();
    assert_eq!(rig.core.leases()[0].workers, ["w0", "w1"]);
    rig.core.closed(rig.now, ConnectionId(1), GONE);
    assert_eq!(
        rig.commands(),
        [release_for(&[0], "w1", GONE), Command::Population(2)]
    );
    // The process was there all the time and comes back: it hears of what it missed.
    let mut back = newcomer(8, "w1", 2, 2);
    back.register.leases = holder(1, 9).register.leases;
    rig.core.register(rig.now, back).unwrap();
    assert_eq!(rig.commands()[0], release(&[8]));
    // Its driver need not know that it ended.
    assert_eq!(rig.core.release(CLIENT, LEASE), Ok(()));
    assert_eq!(rig.commands(), []);
}

#[test]
fn losing_a_worker_during_install_fails_the_install() {
    let mut rig = rig().workers(2).granted();
    rig.core.closed(rig.now, ConnectionId(1), GONE);
    assert_eq!(
        rig.commands(),
        [release_for(&[0], "w1", GONE), Command::Population(1)]
    );
    assert!(rig.core.leases().is_empty());
    let error = rig.core.installed(LEASE).unwrap_err().to_string();
    assert!(
        error.ends_with("worker 'w1' was lost: no answer for 2s"),
        "{error}"
    );
    // A worker may have acknowledged after the first release reached it.
    assert_eq!(rig.commands(), [release(&[0])]);
}

#[test]
fn an_install_that_fails_is_taken_back_everywhere() {
    let mut rig = rig().workers(2).granted();
    assert_eq!(rig.core.abandon(LEASE), None);
    assert_eq!(rig.commands(), [release(&[0, 1])]);
    assert!(rig.core.leases().is_empty());
}

#[test]
fn a_client_that_leaves_takes_its_leases_and_plans_along() {
    let mut rig = rig().workers(2).granted();
    rig.core.installed(LEASE).unwrap();
    let other = ConnectionId(91);
    assert_eq!(
        rig.core.release(other, LEASE),
        Err(MembershipError::NotDriver { lease: LEASE })
    );
    assert_eq!(
        rig.core.plan(rig.now, other, PLAN).unwrap_err(),
        MembershipError::NoSuchPlan
    );
    rig.core.left(rig.now, CLIENT, GONE);
    assert_eq!(rig.commands(), [release(&[0, 1])]);
    assert_eq!(
        rig.core.plan(rig.now, CLIENT, PLAN).unwrap_err(),
        MembershipError::NoSuchPlan
    );
}

#[test]
fn a_client_whose_connection_broke_has_a_while_to_return() {
    let mut rig = rig().workers(2).granted();
    rig.core.installed(LEASE).unwrap();
    rig.core.closed(rig.now, CLIENT, GONE);
    assert_eq!(rig.commands(), []);
    rig.now += RETURN_BOUND - Duration::from_millis(1);
    rig.core.handle_timeout(rig.now);
    // Back in time, on another connection: all is as it was.
    let back = ConnectionId(92);
    rig.core.resume(back, me(), vec![LEASE]).unwrap();
    assert!(rig.core.plan(rig.now, back, PLAN).is_ok());
    rig.now += RETURN_BOUND;
    rig.core.handle_timeout(rig.now);
    assert_eq!((rig.commands(), rig.core.leases().len()), (vec![], 1));
    // An older connection that ends after all is nobody's.
    rig.core.closed(rig.now, CLIENT, GONE);
    rig.core.closed(rig.now, back, GONE);
    let due = rig.now + RETURN_BOUND;
    assert_eq!(rig.core.poll_timeout(), Some(due));
    rig.core.handle_timeout(due);
    assert_eq!(rig.commands(), [release(&[0, 1])]);
    assert!(rig.core.leases().is_empty());
}

#[test]
fn nobody_is_two_drivers_or_anothers() {
    let mut rig = rig().workers(2).granted();
    let other = Driver {
        incarnation: Incarnation(10),
        ..me()
    };
    let twice = rig.core.resume(CLIENT, other.clone(), vec![]);
    assert_eq!(
        twice,
        Err(MembershipError::SecondDriver { name: "me".into() })
    );
    let another = ConnectionId(92);
    rig.core.resume(another, other, vec![]).unwrap();
    assert_eq!(
        rig.core.release(another, LEASE),
        Err(MembershipError::NotDriver { lease: LEASE })
    );
}

#[test]
fn who_is_avoided_is_an_incarnation() {
    let mut rig = rig().workers(2);
    let names = |rig: &Rig, avoid: &[(String, Incarnation)]| {
        let model = rig.core.model(avoid);
        let names = model.workers.iter().map(|w| w.name.clone());
        names.collect::<Vec<_>>()
    };
    let lost = [("w0".to_owned(), Incarnation(1))];
    assert_eq!(names(&rig, &[]), ["w0", "w1"]);
    assert_eq!(names(&rig, &lost), ["w1"]);
    rig.register(5, "w0", 1, 50).unwrap();
    assert_eq!(names(&rig, &lost), ["w0", "w1"]);
}

#[test]
fn a_plan_is_for_the_workers_it_was_made_for() {
    let mut rig = rig().workers(2).granted();
    let what = |rig: &mut Rig| {
        rig.core
            .grant(rig.now, CLIENT, PLAN, LeaseId(8))
            .unwrap_err()
    };
    rig.register(5, "w0", 1, 50).unwrap();
    let outdated = |worker: &str, what| MembershipError::PlanOutdated {
        worker: worker.into(),
        what,
    };
    assert_eq!(what(&mut rig), outdated("w0", "was restarted"));
    rig.core.closed(rig.now, ConnectionId(5), GONE);
    assert_eq!(what(&mut rig), outdated("w0", "was lost"));
    rig.now += Duration::from_secs(600);
    assert_eq!(what(&mut rig), MembershipError::NoSuchPlan);
}

#[test]
fn plans_are_bounded() {
    let mut rig = rig().workers(2).granted();
    for n in 0..64 {
        rig.now += Duration::from_millis(1);
        let plan = rig.core.plan(rig.now, CLIENT, PLAN).map(|g| g.plan);
        let plan = plan.unwrap_or_else(|_| panic!("{n}: what is used stays"));
        rig.core.keep_plan(rig.now, CLIENT, PlanId(100 + n), plan);
    }
    assert!(rig.core.plan(rig.now, CLIENT, PlanId(100)).is_err());
    assert!(rig.core.plan(rig.now, CLIENT, PlanId(163)).is_ok());
}

#[test]
fn links_are_what_was_measured() {
    let mut rig = rig().workers(3);
    let report = |peer: &str, bandwidth: f64, failure: Option<&str>| LinkReport {
        peer: peer.into(),
        round_trip: 80_000,
        bandwidth,
        failure: failure.map(Into::into),
    };
    let reports = [
        report("w1", 5e9, None),
        report("w2", 0.0, Some("cut")),
        report("w0", 1.0, None),
        report("nobody", 1.0, None),
    ];
    rig.core.reported(rig.now, ConnectionId(0), &reports);
    rig.core
        .reported(rig.now, ConnectionId(1), &[report("w2", f64::NAN, None)]);
    rig.core
        .reported(rig.now, CLIENT, &[report("w2", 1.0, None)]);
    let model = rig.core.model(&[]);
    let of = |from, to| {
        (
            model.link(from, to).latency_ns,
            model.link(from, to).bandwidth,
        )
    };
    assert_eq!(of(0, 1), (40_000, 5e9));
    assert_eq!(
        of(1, 0),
        (40_000, 5e9),
        "unmeasured from there: as from here"
    );
    assert_eq!(
        model.link(0, 2),
        crate::place::ASSUMED_LINK,
        "a failed probe is no measurement"
    );
    assert_eq!(model.link(1, 2), crate::place::ASSUMED_LINK);
    // Another process behind the name may be on another network.
    rig.register(7, "w1", 2, 70).unwrap();
    assert_eq!(rig.core.model(&[]).link(0, 1), crate::place::ASSUMED_LINK);
}
