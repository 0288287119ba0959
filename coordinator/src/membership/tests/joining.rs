//! Tests of joining: which member a newcomer becomes, and what the core then knows of it.

use convoke_common::rpc::MeasuredLink;
use convoke_graph::DType;
use convoke_graph::ops::{CustomOp, OpDTypes};

use super::super::tables::offer::Offer;
use super::*;

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
        ("threads", (|r| r.threads = 0) as fn(&mut Registration)),
        ("speed", |r| r.host_speed.flops = f64::NAN),
        ("CPU of another speed", |r| r.device_speed.flops *= 2.0),
        ("list of ops", |r| {
            let one = |op: &str| (op.to_owned(), [DType::F32].into_iter().collect());
            let list = ["b", "a"]
                .map(one)
                .map(|(op, dtypes)| OpDTypes { op, dtypes });
            r.kernels.host = KernelSet::Only(list.into());
        }),
        ("CPU with other ops", |r| {
            r.kernels.device = KernelSet::only([]);
        }),
        ("CPU with other memory", |r| r.device_memory += 1),
        ("speed", |r| r.device_speed.memory_bandwidth = -1.0),
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
    assert_eq!(rig.commands(), [close, probe, Command::Population(2)]);
    // Only the driver can release what the other worker holds.
    assert_eq!(rig.core.leases()[0].workers, ["w1"]);
    // The end of the old connection no longer concerns the worker.
    rig.core.closed(rig.now, ConnectionId(0));
    assert_eq!((rig.commands(), rig.core.serving()), (vec![], 2));
    // The process that was superseded does not come back, and learns why.
    let superseded = MembershipError::Superseded { name: "w0".into() };
    assert_eq!(rig.register(6, "w0", 1, 1), Err(superseded));
    let close = Command::Close {
        connection: ConnectionId(6),
        code: close::REPLACED,
        reason: "replaced by a newer process",
    };
    assert_eq!((rig.commands(), rig.core.serving()), (vec![close], 2));
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
    assert_eq!(rig.core.claim(rig.now, Some(&name), None), Err(taken));
    rig.core.closed(rig.now, ConnectionId(0));
    assert_eq!(rig.commands(), [gone("w0", false), Command::Population(0)]);
    assert_eq!(rig.core.claim(rig.now, Some(&name), None), Ok("w0".into()));
    // The name is reserved for a moment.
    let taken = MembershipError::NameTaken {
        name: "w0".into(),
        holder: None,
    };
    assert_eq!(rig.core.claim(rig.now, Some(&name), None), Err(taken));
    rig.core.issued("w0", [9; 32], None);
    assert_eq!(rig.commands(), [keep("w0", &[9])]);
    rig.register(5, "w0", 9, 9).unwrap();
    assert_eq!(rig.commands(), [keep("w0", &[9]), Command::Population(1)]);
}

#[test]
fn a_name_that_was_just_given_away_waits_for_its_newcomer() {
    let mut rig = rig().workers(1);
    rig.core.closed(rig.now, ConnectionId(0));
    let name: convoke_common::identity::PeerName = "w0".parse().unwrap();
    rig.core.claim(rig.now, Some(&name), None).unwrap();
    // Until the newcomer has its certificate, that of the former holder is the one that holds the name.
    assert!(rig.core.holds(ConnectionId(5), "w0", [1; 32]));
    rig.core.issued("w0", [9; 32], None);
    rig.commands();
    assert!(!rig.core.holds(ConnectionId(5), "w0", [1; 32]));
    assert!(!rig.core.holds(ConnectionId(5), "w7", [9; 32]));
    let taken = MembershipError::NameTaken {
        name: "w0".into(),
        holder: None,
    };
    assert_eq!(rig.register(5, "w0", 1, 1), Err(taken));
    assert_eq!(rig.commands(), []);
    rig.register(6, "w0", 9, 9).unwrap();
    // Two renewals later the certificate of the connection is the one before the last, and holds the name all the same.
    rig.core.renewed(ConnectionId(6), [10; 32]);
    rig.core.renewed(ConnectionId(6), [11; 32]);
    assert!(rig.core.holds(ConnectionId(6), "w0", [9; 32]));
    assert!(!rig.core.holds(ConnectionId(7), "w0", [9; 32]));
    // A newcomer that does not register in time loses its claim.
    rig.core.closed(rig.now, ConnectionId(6));
    rig.core.claim(rig.now, Some(&name), None).unwrap();
    rig.now += Duration::from_secs(11);
    rig.register(8, "w0", 1, 12).unwrap();
}

#[test]
fn who_had_a_certificate_that_holds_a_name_gets_the_name_again() {
    let mut rig = rig().workers(1);
    let name: convoke_common::identity::PeerName = "w0".parse().unwrap();
    // The coordinator has not noticed yet that the worker's old connection ended.
    let taken = |claimed| matches!(claimed, Err(MembershipError::NameTaken { .. }));
    assert!(taken(rig.core.claim(rig.now, Some(&name), Some([9; 32]))));
    let own = rig.core.status(rig.now).len() as u8;
    assert_eq!(
        rig.core.claim(rig.now, Some(&name), Some([own; 32])),
        Ok("w0".into())
    );
    rig.core.issued("w0", [8; 32], Some([own; 32]));
    assert_eq!(rig.commands(), [keep("w0", &[own, 8])]);
    rig.register(5, "w0", 8, 1).unwrap();
    assert_eq!(rig.core.serving(), 1);
}

#[test]
fn unnamed_workers_get_the_lowest_free_name() {
    let mut rig = rig().workers(2);
    assert_eq!(rig.core.claim(rig.now, None, None), Ok("w2".into()));
    assert_eq!(rig.core.claim(rig.now, None, None), Ok("w3".into()));
    // The names of lost workers are kept for a day.
    rig.core.closed(rig.now, ConnectionId(0));
    assert_eq!(rig.core.claim(rig.now, None, None), Ok("w4".into()));
    rig.commands();
    rig.now += Duration::from_secs(86_400);
    assert!(rig.core.poll_timeout().is_some_and(|t| t <= rig.now));
    rig.core.handle_timeout(rig.now);
    let forget = |name: &str| Command::Forget { name: name.into() };
    assert_eq!(rig.commands(), ["w0", "w2", "w3", "w4"].map(forget));
    assert_eq!(rig.core.claim(rig.now, None, None), Ok("w0".into()));
}

#[test]
fn renewed_and_restored_holders_are_known() {
    let mut rig = rig();
    rig.core.restore(rig.now, vec![kept(0)]);
    assert_eq!(rig.core.claim(rig.now, None, None), Ok("w1".into()));
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
fn who_is_avoided_is_an_incarnation() {
    let mut rig = rig().workers(2);
    let names = |rig: &Rig, avoid: &[(String, Incarnation)]| {
        let model = rig.model(avoid);
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
    let told = MeasuredLink {
        from: "w0".into(),
        to: "w1".into(),
        latency: 40_000,
        bandwidth: 5e9,
    };
    assert_eq!(rig.core.links(), [told]);
    let model = rig.model(&[]);
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
    // A new process with this name may be on another network, so the old measurements are dropped.
    rig.register(7, "w1", 2, 70).unwrap();
    assert_eq!(rig.model(&[]).link(0, 1), crate::place::ASSUMED_LINK);
}

#[test]
fn custom_ops_have_names_of_custom_ops() {
    let check = |names: &[&str], fits: bool| {
        let mut register = newcomer(1, "w1", 1, 7).register;
        let op = |name: &&str| CustomOp {
            name: name.to_string(),
            fingerprint: 1,
        };
        register.ops = names.iter().map(op).collect();
        let offer = Offer::check("w1", "host:1".into(), register);
        assert_eq!(offer.is_ok(), fits, "{names:?}");
        if let Ok(offer) = offer {
            assert!(offer.ops.is_sorted() && offer.ops.len() == names.len());
        }
    };
    check(&[], true);
    check(&["b.C", "a.B"], true);
    check(&["a.B", "Relu"], false);
    check(&["a.B\n"], false);
    check(&["a.B"; 1025], false);
}
