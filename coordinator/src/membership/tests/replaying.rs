//! A history of events is all that a core depends on: replayed from its bytes, it gives the same state and the same
//! commands, and no event of it is superfluous.

use std::collections::BTreeSet;

use convoke_common::identity::PeerName;
use convoke_common::rpc::{Death, LinkReport, MemoryReport};
use convoke_common::{Code, Error};
use convoke_graph::codec;

use super::*;

/// When the deaths of the history are reported and read, in seconds since 1970.
const TODAY: u64 = 1_700_000_000;

/// The state and the commands that a core made of a history.
#[derive(Debug, PartialEq)]
struct Outcome {
    commands: Vec<Command>,
    /// The status of workers, links, leases and nodes, as text.
    status: String,
    due: Option<Moment>,
    /// Everything that the core keeps, as text.
    state: String,
}

/// A core whose inputs and commands are written down.
struct Recorder {
    core: Membership,
    now: Moment,
    history: Vec<(Moment, Event)>,
    commands: Vec<Command>,
}

impl Recorder {
    fn new() -> Recorder {
        Recorder {
            core: Membership::new("p1"),
            now: Moment::START,
            history: vec![],
            commands: vec![],
        }
    }

    /// Applies an input one second after the one before.
    fn apply<I: Input>(&mut self, input: I) -> I::Answer {
        self.now += Duration::from_secs(1);
        self.history.push((self.now, input.clone().into()));
        let answer = self.core.apply(self.now, input);
        self.commands.extend(self.core.commands());
        answer
    }

    fn outcome(self) -> Outcome {
        let core = self.core;
        let members = core.status(self.now);
        let status = (members, core.links(), core.leases(), core.quarantine(TODAY));
        Outcome {
            commands: self.commands,
            status: format!("{status:?}"),
            due: core.poll_timeout(),
            state: format!("{core:?}"),
        }
    }

    /// Keeps a plan of the client over `w0` and `w1` with these incarnations.
    fn keep(&mut self, owner: ConnectionId, id: PlanId, incarnations: [u64; 2]) {
        let [w0, w1] = incarnations;
        let plan = Plan {
            participants: vec![
                participant("w0", w0, 0),
                participant("w1", w1, 1),
                participant("me", 9, 0),
            ],
            ..plan()
        };
        self.apply(events::KeptPlan {
            owner,
            id,
            plan: Arc::new(plan),
            charge: None,
            installs: true,
        });
    }

    fn request(&mut self, driver: ConnectionId, plan: PlanId, lease: LeaseId) {
        let request = events::InstallRequest {
            driver,
            plan,
            lease,
        };
        self.apply(request).unwrap();
    }

    /// The worker `wN` registers as its next process. Its former one died in a node, if `died` names its incarnation.
    fn restarted(&mut self, n: u64, connection: ConnectionId, died: Option<u64>) {
        let mut next = newcomer(connection.0, &format!("w{n}"), n as u8 + 1, connection.0);
        next.at = TODAY;
        next.register.deaths = Vec::from_iter(died.map(|incarnation| Death {
            incarnation: Incarnation(incarnation),
            signal: 11,
            function: FUNCTION,
            node: "n".into(),
        }));
        self.apply(next).unwrap();
    }
}

fn replay(history: &[(Moment, Event)], end: Moment) -> Outcome {
    let mut replayed = Recorder::new();
    for (now, event) in history {
        replayed.core.apply(*now, event.clone());
        let commands = replayed.core.commands().into_iter();
        replayed.commands.extend(commands);
    }
    replayed.now = end;
    replayed.outcome()
}

/// Workers join, are told apart, measure links, are lost, return, leave and are forgotten; clients plan, install,
/// release and leave; a node is quarantined.
fn history() -> Recorder {
    let [w0, w1, w2] = [0, 1, 2].map(ConnectionId);
    let [next_w0, next_w1] = [10, 11].map(ConnectionId);
    let you = ConnectionId(91);
    let lease = |n: u64| LeaseId(LEASE.0 + n);
    let mut r = Recorder::new();
    r.apply(events::Restoration {
        members: vec![kept(0)],
        drained: vec!["w9".into()],
        deaths: vec![],
    });
    let wanted: PeerName = "w1".parse().unwrap();
    let claim = events::NameClaim {
        wanted: Some(wanted),
        former: None,
    };
    assert_eq!(r.apply(claim), Ok("w1".into()));
    r.apply(events::IssuedCertificate {
        name: "w1".into(),
        fingerprint: [2; 32],
        former: None,
    });
    for n in 0..3 {
        let name = format!("w{n}");
        r.apply(newcomer(n, &name, n as u8 + 1, n + 1)).unwrap();
    }

    // The client abandons an install of its plan, releases what the next one granted, and sees the third fail.
    r.apply(events::Resumption {
        connection: CLIENT,
        driver: me(),
        held: vec![],
    })
    .unwrap();
    r.keep(CLIENT, PLAN, [1, 2]);
    r.request(CLIENT, PLAN, lease(1));
    r.apply(events::PlanAbandonment {
        driver: CLIENT,
        plan: PLAN,
    });
    let (connection, leases) = (w0, vec![lease(1)]);
    r.apply(events::LeaseDrop { connection, leases });
    r.request(CLIENT, PLAN, lease(2));
    r.apply(events::InstallSuccess { lease: lease(2) }).unwrap();
    r.apply(events::LeaseRelease {
        driver: CLIENT,
        lease: lease(2),
    })
    .unwrap();
    r.request(CLIENT, PLAN, lease(3));
    r.apply(events::InstallFailure { lease: lease(3) });

    // One worker leaves as it said, and is forgotten.
    r.apply(events::Departure { connection: w2 });
    r.apply(events::Goodbye { connection: w2 });
    r.apply(events::ForgottenName { name: "w2".into() })
        .unwrap();

    // Both others die in a node, which is quarantined until the owner lifts that.
    r.apply(events::Disconnection { connection: w0 });
    r.restarted(0, next_w0, Some(1));
    r.apply(events::Wedge {
        connection: w1,
        why: Error::new(Code::Wedged, "node 'n' did not stop"),
    });
    r.apply(events::Disconnection { connection: w1 });
    r.restarted(1, next_w1, Some(2));
    assert!(r.core.admit(&FUNCTION).is_err());
    assert_eq!(r.apply(events::QuarantineLift { node: "n".into() }), Ok(1));

    // Another client has a plan for their next processes, and takes part until the end; the first one is lost.
    let driver = Driver {
        name: "you".into(),
        ..me()
    };
    let connection = you;
    r.apply(events::Introduction { connection, driver })
        .unwrap();
    r.keep(you, PlanId(1), [10, 11]);
    r.keep(you, PlanId(2), [10, 11]);
    r.request(you, PlanId(2), lease(4));
    r.apply(events::RoomRefusal {
        lease: lease(4),
        worker: "w1".into(),
    });
    r.keep(you, PlanId(3), [10, 11]);
    r.apply(events::PlanUse {
        owner: you,
        id: PlanId(1),
    })
    .unwrap();
    // The plan of the lease has not been used for the longest time.
    assert!(r.apply(events::PlanEviction { owner: you }));
    r.apply(events::Disconnection { connection: CLIENT });
    r.now += RETURN_BOUND;
    r.apply(events::Timeout {});

    r.apply(events::LinkReports {
        connection: next_w0,
        reports: vec![LinkReport {
            peer: "w1".into(),
            round_trip: 20_000,
            bandwidth: 1e9,
            failure: None,
        }],
    });
    let (_, asked) = r.core.to_report(&[]);
    r.apply(events::MemoryReports {
        asked,
        reports: vec![(next_w0, MemoryReport::default())],
    });
    r.apply(events::RenewedCertificate {
        connection: next_w1,
        fingerprint: [7; 32],
    });
    assert_eq!(r.apply(events::Drain { name: "w1".into() }), Ok(true));
    assert_eq!(r.apply(events::Undrain { name: "w9".into() }), Ok(false));
    r.apply(events::SignOfLife {
        connection: next_w0,
    });
    r
}

#[test]
fn a_history_that_is_replayed_from_its_bytes_gives_the_same_state_and_commands() {
    let recorded = history();
    let (end, bytes) = (recorded.now, codec::encode(&recorded.history).unwrap());
    let decoded: Vec<(Moment, Event)> = codec::decode(&bytes).unwrap();
    let outcome = recorded.outcome();
    assert!(outcome.commands.len() > 20);
    assert_eq!(replay(&decoded, end), outcome);
    let superfluous = (0..decoded.len()).filter(|left_out| {
        let mut rest = decoded.clone();
        rest.remove(*left_out);
        replay(&rest, end) == outcome
    });
    let superfluous: Vec<_> = superfluous.map(|at| &decoded[at]).collect();
    assert!(superfluous.is_empty(), "{superfluous:?}");
}

#[test]
fn the_history_has_events_of_all_kinds() {
    let name = |event: &Event| {
        let shown = format!("{event:?}");
        shown.split_once('(').unwrap().0.to_owned()
    };
    let history = history().history;
    let seen: BTreeSet<String> = history.iter().map(|(_, event)| name(event)).collect();
    let all = events::NAMES.iter().map(|name| (*name).to_owned());
    assert_eq!(seen, all.collect());
}
