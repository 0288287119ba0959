//! What is known after the coordinator was away, and who is waited for.

use super::super::leases::HELD;
use super::super::member::LONGEST_TEXT;
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
    let kept = |n: u8| (format!("w{n}"), vec![[n + 1; 32]]);
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
fn a_lease_that_is_brought_back_is_not_that_of_who_was_lost_over_it() {
    let mut rig = rig();
    let kept = |n: u8| (format!("w{n}"), vec![[n + 1; 32]]);
    rig.core.restore(rig.now, vec![kept(0), kept(1), kept(2)]);
    rig.core.register(rig.now, holder(0, 9)).unwrap();
    rig.core.register(rig.now, holder(1, 9)).unwrap();
    rig.core.closed(rig.now, ConnectionId(1), GONE);
    assert!(rig.core.leases().is_empty(), "it ended with w1");
    // A worker that is met only now holds it still, and then w1 is back.
    rig.core.register(rig.now, holder(2, 9)).unwrap();
    assert_eq!(rig.core.leases()[0].workers, ["w2"]);
    rig.commands();
    let mut back = holder(1, 9);
    back.connection = ConnectionId(5);
    rig.core.register(rig.now, back).unwrap();
    assert_eq!(rig.commands()[0], release_for(&[5], "w1", MISSED));
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
