//! When leases end, and whom that is told.

use super::super::leases::HELD;
use convoke_common::Error;

use super::*;

#[test]
fn a_driver_that_returns_holds_no_more_than_it_may() {
    let mut rig = rig();
    let held = (0..=HELD as u64).map(LeaseId).collect();
    rig.core.resume(CLIENT, me(), held).unwrap();
    assert!(!rig.core.drivers.denies(&me(), LeaseId(0)));
    assert!(rig.core.drivers.denies(&me(), LeaseId(HELD as u64)));
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
    assert_eq!(rig.commands()[0], release_for(&[8], "w1", MISSED));
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
    let error = Error::from(rig.core.installed(LEASE).unwrap_err());
    assert!(
        error
            .message
            .ends_with("worker 'w1' was lost: no answer for 2s"),
        "{error}"
    );
    assert_eq!(error.site.unwrap().worker.as_deref(), Some("w1"));
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
