//! When leases end, and which members are informed.

use super::super::tables::leases::HELD;
use super::*;

#[test]
fn a_driver_that_returns_holds_no_more_than_it_may() {
    let mut rig = rig();
    let held = (0..=HELD as u64).map(LeaseId).collect();
    rig.core.resume(CLIENT, me(), held).unwrap();
    assert!(!rig.core.drivers.denies(&me(), LeaseId(0)));
    assert!(rig.core.drivers.denies(&me(), LeaseId(HELD as u64)));
}

/// The worker `wN` returns on another connection, with the same incarnation and these leases.
fn back(rig: &mut Rig, n: u64, connection: u64, leases: &[LeaseId]) {
    let mut back = newcomer(connection, &format!("w{n}"), n as u8 + 1, n + 1);
    let held = leases.iter().map(|lease| HeldLease {
        lease: *lease,
        model: "m".into(),
        driver: ("me".into(), Incarnation(9)),
    });
    back.register.leases = held.collect();
    rig.core.register(rig.now, back).unwrap();
}

#[test]
fn losing_sight_of_workers_and_driver_ends_nothing() {
    let mut rig = rig().workers(3).granted();
    rig.core.installed(LEASE).unwrap();
    for gone in [ConnectionId(0), ConnectionId(1), CLIENT] {
        rig.core.closed(rig.now, gone);
    }
    assert_eq!(
        rig.commands(),
        [
            gone("w0", false),
            Command::Population(2),
            gone("w1", false),
            Command::Population(1)
        ]
    );
    // The leases and the names are kept for any length of time.
    for _ in 0..3 {
        rig.now += Duration::from_secs(3600 * 24);
        rig.core.handle_timeout(rig.now);
    }
    assert_eq!(rig.core.leases()[0].workers, ["w0", "w1"]);
    let reserved = MembershipError::NameReserved {
        name: "w1".into(),
        leases: 1,
    };
    let name: convoke_common::identity::PeerName = "w1".parse().unwrap();
    assert_eq!(
        rig.core.claim(rig.now, Some(&name), None),
        Err(reserved.clone())
    );
    assert_eq!(rig.register(7, "w1", 77, 7), Err(reserved));
    // The worker itself joins again, since its certificate ended meanwhile.
    let own = Some([2; 32]);
    let claimed = rig.core.claim(rig.now, Some(&name), own);
    assert_eq!(claimed, Ok("w1".into()));
    rig.core.issued("w1", [78; 32], own);
    // When worker and driver return, no worker is told to drop anything.
    back(&mut rig, 1, 8, &[LEASE]);
    rig.core
        .resume(ConnectionId(92), me(), vec![LEASE])
        .unwrap();
    let told = rig.commands();
    let ended = |c: &Command| matches!(c, Command::Release { .. } | Command::Drain { .. });
    assert!(!told.iter().any(ended), "{told:?}");
    assert_eq!(rig.core.leases().len(), 1);
}

#[test]
fn who_was_out_of_reach_is_told_of_what_ended_until_it_confirms() {
    let mut rig = rig().workers(2).granted();
    rig.core.installed(LEASE).unwrap();
    rig.core.closed(rig.now, ConnectionId(1));
    rig.commands();
    assert_eq!(rig.core.release(CLIENT, LEASE), Ok(()));
    assert_eq!(rig.commands(), [release(&[0])]);
    assert!(rig.core.leases().is_empty());
    rig.core.dropped(ConnectionId(0), &[LEASE]);
    // The worker is told even if it reports no lease: an install may still have been under way.
    back(&mut rig, 1, 8, &[]);
    assert_eq!(rig.commands()[0], release(&[8]));
    rig.core.closed(rig.now, ConnectionId(8));
    rig.commands();
    back(&mut rig, 1, 9, &[LEASE]);
    assert_eq!(
        (rig.commands()[0].clone(), rig.core.leases.len()),
        (release(&[9]), 1)
    );
    rig.core.dropped(ConnectionId(9), &[LEASE]);
    assert_eq!(rig.core.leases.len(), 0);
    // A driver need not know that its lease ended.
    assert_eq!(rig.core.release(CLIENT, LEASE), Ok(()));
    assert_eq!(rig.commands(), []);
}

#[test]
fn what_nobody_holds_any_more_is_gone() {
    // The four ways: a worker confirmed; it dropped the lease while out of reach; it has another incarnation; it said
    // goodbye.
    for how in 0..4 {
        let mut rig = rig().workers(2).granted();
        rig.core.installed(LEASE).unwrap();
        for n in [0, 1] {
            assert_eq!(rig.core.leases.len(), 1, "{how}: w{n} still holds it");
            let at = ConnectionId(n);
            match how {
                0 => rig.core.dropped(at, &[LEASE]),
                1 => back(&mut rig, n, 8 + n, &[]),
                2 => drop(rig.register(8 + n, &format!("w{n}"), n as u8 + 1, 50 + n)),
                _ => rig.core.left(rig.now, at),
            }
        }
        assert_eq!(rig.core.leases.len(), 0, "{how}");
    }
}

#[test]
fn an_install_survives_that_a_worker_is_out_of_sight() {
    let mut rig = rig().workers(2).granted();
    rig.core.closed(rig.now, ConnectionId(1));
    assert_eq!(rig.commands(), [gone("w1", false), Command::Population(1)]);
    assert_eq!(rig.core.installed(LEASE), Ok(()));
    assert_eq!(rig.core.leases()[0].workers, ["w0", "w1"]);
}

#[test]
fn what_is_drained_out_of_reach_is_told_when_it_returns() {
    let mut rig = rig().workers(1);
    rig.core.closed(rig.now, ConnectionId(0));
    assert_eq!(rig.core.drain("w0"), Ok(false));
    rig.commands();
    back(&mut rig, 0, 8, &[]);
    let drain = Command::Drain {
        connection: ConnectionId(8),
    };
    assert_eq!(rig.commands()[0], drain);
}

#[test]
fn an_install_that_fails_is_taken_back_everywhere() {
    let mut rig = rig().workers(2).granted();
    rig.core.abandon(LEASE);
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
    rig.core.resume(other, somebody_else(), vec![]).unwrap();
    assert_eq!(rig.core.drivers.len(), 2);
    rig.core.left(rig.now, CLIENT);
    assert_eq!(rig.commands(), [release(&[0, 1])]);
    assert_eq!(
        rig.core.plan(rig.now, CLIENT, PLAN).unwrap_err(),
        MembershipError::NoSuchPlan
    );
    // Nobody waits for its return.
    assert_eq!(rig.core.drivers.len(), 1);
    assert_eq!(rig.core.poll_timeout(), None);
}

#[test]
fn a_worker_drops_what_it_holds_itself_whatever_the_incarnations_of_others() {
    let mut rig = rig();
    for n in [0, 1] {
        rig.core.register(rig.now, holder(n, 9)).unwrap();
    }
    rig.core.dropped(ConnectionId(0), &[LEASE]);
    assert_eq!(rig.core.leases()[0].workers, ["w1"]);
}

#[test]
fn a_client_whose_connection_broke_has_a_while_to_return() {
    let mut rig = rig().workers(2).granted();
    rig.core.installed(LEASE).unwrap();
    rig.core.closed(rig.now, CLIENT);
    assert_eq!(rig.commands(), []);
    rig.now += RETURN_BOUND - Duration::from_millis(1);
    rig.core.handle_timeout(rig.now);
    // The driver returns in time on another connection and keeps everything.
    let back = ConnectionId(92);
    rig.core.resume(back, me(), vec![LEASE]).unwrap();
    assert!(rig.core.plan(rig.now, back, PLAN).is_ok());
    rig.now += RETURN_BOUND;
    rig.core.handle_timeout(rig.now);
    assert_eq!((rig.commands(), rig.core.leases().len()), (vec![], 1));
    // The late end of the older connection has no effect.
    rig.core.closed(rig.now, CLIENT);
    rig.core.closed(rig.now, back);
    let due = rig.now + RETURN_BOUND;
    assert_eq!(rig.core.poll_timeout(), Some(due));
    rig.core.handle_timeout(due);
    // A driver that returns too late has lost its plans, but keeps its leases.
    let later = ConnectionId(93);
    rig.core.resume(later, me(), vec![LEASE]).unwrap();
    assert!(rig.core.plan(rig.now, later, PLAN).is_err());
    assert_eq!((rig.commands(), rig.core.leases().len()), (vec![], 1));
}

/// A later process of the client.
fn somebody_else() -> Driver {
    Driver {
        incarnation: Incarnation(10),
        ..me()
    }
}

#[test]
fn nobody_is_two_drivers_or_anothers() {
    let mut rig = rig().workers(2).granted();
    let other = somebody_else();
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
fn a_driver_holds_no_more_leases_than_it_may_name_when_it_returns() {
    let mut rig = rig().workers(2).granted();
    rig.core.installed(LEASE).unwrap();
    let grant = |rig: &mut Rig, n: u64| {
        let granted = rig.core.grant(rig.now, CLIENT, PLAN, LeaseId(n));
        granted.map(drop)
    };
    for n in 1..HELD as u64 {
        grant(&mut rig, 1000 + n).unwrap();
    }
    let refused = grant(&mut rig, 9000).unwrap_err();
    let error = convoke_common::Error::from(refused);
    assert_eq!(error.code, convoke_common::Code::Busy, "{error}");
    assert!(error.message.contains("1024 leases"), "{error}");
    assert_eq!(rig.core.leases().len(), HELD);
    // A lease counts until its workers have dropped it.
    rig.core.release(CLIENT, LEASE).unwrap();
    assert!(grant(&mut rig, 9000).is_err());
    for n in [0, 1] {
        rig.core.dropped(ConnectionId(n), &[LEASE]);
    }
    grant(&mut rig, 9000).unwrap();
}
