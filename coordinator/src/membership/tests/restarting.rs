//! Tests of a restart: what a restarted coordinator knows, and which workers it waits for.

use super::super::tables::leases::HELD;
use super::super::tables::offer::LONGEST_TEXT;
use super::*;

#[test]
fn what_a_worker_holds_is_taken_over_or_dropped() {
    let held = |lease, model: &str, driver: &str| HeldLease {
        lease: LeaseId(lease),
        model: model.into(),
        driver: (driver.into(), Incarnation(9)),
    };
    let mut rig = rig();
    let mut other = newcomer(1, "w1", 2, 7);
    other.register.leases = vec![held(4, "m", "another")];
    rig.core.register(rig.now, other).unwrap();
    rig.commands();
    let mut worker = newcomer(0, "w0", 1, 7);
    let long = "x".repeat(LONGEST_TEXT + 1);
    let odd = [
        held(1, &long, "me"),
        held(2, "m", "a\nb"),
        held(4, "m", "me"),
    ];
    let many = (0..HELD as u64).map(|n| held(10 + n, "m", "me"));
    worker.register.leases = odd
        .into_iter()
        .chain(many)
        .chain([held(3, "m", "me")])
        .collect();
    rig.core.register(rig.now, worker).unwrap();
    assert_eq!(dropped(&mut rig), [1, 2, 4, 3].map(LeaseId));
    assert_eq!(rig.core.leases().len(), HELD + 1);
}

#[test]
fn workers_known_before_a_restart_are_waited_for() {
    let mut rig = rig();
    assert_eq!(rig.core.returning(rig.now), None);
    rig.core.restore(rig.now, vec![kept(0), kept(1)]);
    let until = rig.now + RETURN_BOUND;
    rig.register(0, "w0", 1, 1).unwrap();
    assert_eq!(rig.core.returning(rig.now), Some(until));
    assert_eq!(rig.core.returning(until), None, "not for ever");
    let of_w1 = rig.core.status(until).remove(1);
    assert_eq!(
        (&*of_w1.name, of_w1.state),
        ("w1", convoke_common::rpc::MemberState::Lost)
    );
    assert!(of_w1.remark.contains("since the coordinator was started"));
    rig.register(1, "w1", 2, 2).unwrap();
    assert_eq!(rig.core.returning(rig.now), None);
}

#[test]
fn a_restarted_coordinator_learns_of_leases_from_those_who_hold_them() {
    let mut rig = rig();
    rig.core.restore(rig.now, vec![kept(0), kept(1), kept(2)]);
    rig.core.register(rig.now, holder(0, 9)).unwrap();
    rig.core.register(rig.now, holder(1, 9)).unwrap();
    // A worker that later reports another driver for the lease is not believed.
    rig.core.register(rig.now, holder(2, 10)).unwrap();
    let known = rig.core.leases();
    assert_eq!(
        (known.len(), &known[0].workers[..]),
        (1, &["w0".to_owned(), "w1".to_owned()][..])
    );
    rig.commands();
    // The driver returns in time and releases its lease.
    rig.now += RETURN_BOUND;
    rig.core.handle_timeout(rig.now);
    rig.core.resume(CLIENT, me(), vec![LEASE]).unwrap();
    assert_eq!(rig.core.release(CLIENT, LEASE), Ok(()));
    assert_eq!(rig.commands(), [release(&[0, 1])]);
    // A worker that returns only now is told at once.
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
fn drivers_that_do_not_find_a_restarted_coordinator_keep_their_leases() {
    let mut rig = rig();
    rig.core.register(rig.now, holder(0, 9)).unwrap();
    rig.commands();
    rig.now += Duration::from_secs(3600);
    rig.core.handle_timeout(rig.now);
    assert_eq!((rig.commands(), rig.core.leases().len()), (vec![], 1));
}

#[test]
fn a_worker_back_on_another_connection_keeps_its_leases() {
    let mut rig = rig().workers(2).granted();
    rig.core.installed(LEASE).unwrap();
    let mut back = newcomer(5, "w0", 1, 1);
    back.register.leases = holder(0, 9).register.leases;
    rig.core.register(rig.now, back).unwrap();
    let close = Command::Close {
        connection: ConnectionId(0),
        code: close::LOST,
        reason: "back on another connection",
    };
    assert_eq!(rig.commands()[0], close);
    assert_eq!(rig.core.leases().len(), 1);
    rig.core.closed(rig.now, ConnectionId(0));
    assert_eq!(rig.core.release(CLIENT, LEASE), Ok(()));
    assert_eq!(rig.commands(), [release(&[5, 1])]);
}

#[test]
fn who_left_is_not_lost_and_who_died_is_forgotten_after_a_day() {
    let day = Duration::from_secs(86_400);
    let mut rig = rig();
    let was_gone = |n, left, ago| KeptMember {
        gone: Some(Absence { ago, left }),
        ..kept(n)
    };
    let half = day / 2;
    let members = vec![kept(0), was_gone(1, true, half), was_gone(2, false, half)];
    rig.core.restore(rig.now, members);
    let names = |rig: &Rig| -> Vec<String> {
        rig.core
            .status(rig.now)
            .into_iter()
            .map(|m| m.name)
            .collect()
    };
    assert_eq!(names(&rig), ["w0", "w2"]);
    // Workers that were gone before the restart are not waited for, but their names are kept for them.
    rig.register(0, "w0", 1, 1).unwrap();
    assert_eq!(rig.core.returning(rig.now), None);
    assert_eq!(rig.core.claim(rig.now, None, None), Ok("w3".into()));
    rig.commands();
    rig.now += half;
    rig.core.handle_timeout(rig.now);
    let forget = |name: &str| Command::Forget { name: name.into() };
    assert_eq!(rig.commands(), ["w1", "w2"].map(forget));
    assert_eq!(names(&rig), ["w0"]);
}

#[test]
fn a_name_is_forgotten_on_demand_but_not_that_of_who_is_there() {
    let mut rig = rig().workers(2).granted();
    rig.core.installed(LEASE).unwrap();
    let there = MembershipError::StillThere { name: "w0".into() };
    assert_eq!(rig.core.forget_gone("w0"), Err(there));
    rig.core.closed(rig.now, ConnectionId(0));
    let holds = MembershipError::HoldsLeases { name: "w0".into() };
    assert_eq!(rig.core.forget_gone("w0"), Err(holds));
    rig.core.release(CLIENT, LEASE).unwrap();
    rig.commands();
    assert_eq!(rig.core.forget_gone("w0"), Ok(()));
    assert_eq!(rig.commands(), [Command::Forget { name: "w0".into() }]);
    let nobody = MembershipError::NoSuchWorker { name: "w0".into() };
    assert_eq!(rig.core.forget_gone("w0"), Err(nobody));
    // The worker's certificate is still accepted.
    rig.register(5, "w0", 1, 3).unwrap();
    assert_eq!(rig.core.serving(), 2);
}

/// The size of everything that a core keeps, as text. Numbers in it have as many digits in each round of a test.
fn kept_bytes(rig: &Rig) -> usize {
    format!("{:?}", rig.core).len()
}

/// Restarts the worker `w0`: its next process registers, is granted a lease of a function of its own, and is lost.
fn restart(rig: &mut Rig, round: u64) {
    let connection = 10_000 + round;
    rig.register(connection, "w0", 1, 20_000 + round).unwrap();
    let mut function = [0; 32];
    function[..8].copy_from_slice(&round.to_le_bytes());
    let plan = Plan {
        model: "m".into(),
        function: FunctionId(function),
        token: TokenId::direct(),
        parts: vec![part(1)],
        participants: vec![
            participant("w0", 20_000 + round, connection),
            participant("me", 9, 0),
        ],
        bodies: vec![],
        axes: Axes::default(),
        in_flight: 1,
    };
    rig.core
        .keep_plan(rig.now, CLIENT, PLAN, Arc::new(plan), None, true);
    let lease = LeaseId(30_000 + round);
    rig.core.grant(rig.now, CLIENT, PLAN, lease).unwrap();
    rig.core.installed(lease).unwrap();
    rig.core.closed(rig.now, ConnectionId(connection));
    rig.core.release(CLIENT, lease).unwrap();
    rig.commands();
}

#[test]
fn a_thousand_restarts_of_a_worker_leave_no_record_behind() {
    let mut rig = rig();
    rig.core.resume(CLIENT, me(), vec![]).unwrap();
    (0..20).for_each(|round| restart(&mut rig, round));
    let few = kept_bytes(&rig);
    (20..1020).for_each(|round| restart(&mut rig, round));
    let many = kept_bytes(&rig);
    // A function's id is printed as its bytes, whose numbers of digits differ a little.
    assert!(many.abs_diff(few) < 100, "{few} bytes, then {many}");
}
