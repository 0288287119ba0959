//! The window of a step table, and what its status says, on one thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use convoke_common::rpc::RendezvousStatus;
use convoke_graph::Tensor;

use super::slot::{PublishOutcome, RegisterOutcome};
use super::table::{FenceReason, StepTable};

#[test]
fn window_moves_with_retirement() {
    let t = StepTable::new(2, 1);
    assert_eq!(t.admit(2), Err(FenceReason::Ahead));
    t.admit(0).unwrap();
    t.admit(1).unwrap();
    let s = t.slot(0, 0).unwrap();
    s.claim(0).unwrap();
    assert_eq!(
        s.publish(0, Ok(Tensor::scalar(1f32))),
        PublishOutcome::Stored
    );
    assert!(t.retire(0));
    assert!(!t.retire(0));
    assert_eq!(t.admit(0), Err(FenceReason::Stale));
    assert_eq!(t.slot(2, 0).unwrap().take(2), None);
    assert_eq!(t.slot(2, 9).err(), Some(FenceReason::NoSuchSlot));
    assert_eq!(t.open_steps(), 2);
    assert_eq!(t.admit(u64::MAX), Err(FenceReason::Ahead));
    assert!(t.is_open(2) && !t.is_open(2 | 1 << 63));
}

#[test]
fn the_status_says_what_steps_wait_for() {
    let t = StepTable::new(2, 3);
    let aborted = Arc::new(AtomicU64::new(0));
    t.count_aborts(aborted.clone());
    let check = |open_steps, waiting_receives, arriving_tensors, waiting_tensors, aborts| {
        let mut status = RendezvousStatus {
            aborts: aborted.load(Ordering::Relaxed),
            ..RendezvousStatus::default()
        };
        t.add_to(&mut status);
        let want = RendezvousStatus {
            leases: 0,
            open_steps,
            waiting_receives,
            arriving_tensors,
            waiting_tensors,
            aborts,
        };
        assert_eq!(status, want);
    };
    check(0, 0, 0, 0, 0);
    let slots = [0, 1, 2].map(|i| t.slot(0, i).unwrap());
    assert_eq!(slots[0].register(0), RegisterOutcome::Waiting);
    slots[1].claim(0).unwrap();
    check(1, 1, 1, 0, 0);
    let outcome = slots[1].publish(0, Ok(Tensor::scalar(1f32)));
    assert_eq!(outcome, PublishOutcome::Stored);
    check(1, 1, 0, 1, 0);
    t.admit(1).unwrap();
    t.abort(0);
    t.abort(5);
    check(2, 0, 0, 0, 1);
    t.retire(0);
    check(1, 0, 0, 0, 1);
}
