//! Turns of the staging task, without a peer.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use convoke_common::ids::StepKey;
use convoke_graph::{DType, Tensor};
use tokio_util::sync::CancellationToken;

use super::buffers::{OPEN, SLOT, SLOTS, StagingBuffer};
use super::staging::{Stage, Turn};
use crate::frame::SharingFrame;
use crate::fuzzing::LEASE;
use crate::link::Outgoing;

fn stage() -> Stage {
    let stage = Stage::default();
    stage.change(|state| state.free.extend(0..SLOTS));
    stage
}

/// Stages a tensor of this many buffers; returns how often `sent` was called for it.
fn add(stage: &Stage, priority: u64, slots: usize) -> (Arc<AtomicUsize>, CancellationToken) {
    let (sent, cancel) = (Arc::<AtomicUsize>::default(), CancellationToken::new());
    let count = sent.clone();
    let out = Outgoing {
        key: StepKey { lease: LEASE, n: 0 },
        slot: 0,
        tensor: Tensor::zeros(DType::U8, &[slots * SLOT]).unwrap(),
        priority,
        cancel: cancel.clone(),
        sent: Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }),
    };
    assert!(stage.add(out).is_none());
    (sent, cancel)
}

/// Copies and announces the next piece; returns its buffer and the frames.
fn next(stage: &Stage) -> Option<(StagingBuffer, Vec<SharingFrame>)> {
    let turn = stage.state().turn()?;
    let Turn::Copy(chunk) = turn else {
        panic!("cancelled");
    };
    let (slot, said) = (RefCell::new(None), RefCell::new(vec![]));
    let part = |lent| {
        slot.replace(Some(lent));
        SharingFrame::Apart
    };
    stage.tell(chunk, SLOT, part, |told| said.borrow_mut().push(told));
    Some((slot.into_inner()?, said.into_inner()))
}

fn check_next(stage: &Stage, transfer: u64, begins: bool) -> StagingBuffer {
    let (slot, said) = next(stage).expect("a slot");
    let header = matches!(said[0], SharingFrame::Staged { .. });
    assert_eq!((slot.transfer, header), (transfer, begins));
    slot
}

#[test]
fn the_most_urgent_goes_first_and_others_in_order() {
    let stage = stage();
    for priority in [0, 5, 5] {
        add(&stage, priority, 2);
    }
    check_next(&stage, 1, true);
    // The order holds also while another tensor is under way.
    add(&stage, 9, 1);
    let told = [(3, true), (1, false), (2, true), (2, false), (0, true)];
    for (transfer, begins) in told {
        check_next(&stage, transfer, begins);
    }
}

#[test]
fn no_more_are_told_than_there_are_slots_and_a_peer_may_have_open() {
    let stage = stage();
    add(&stage, 0, SLOTS + 1);
    let mut slots: Vec<_> = (0..SLOTS)
        .map(|at| check_next(&stage, 0, at == 0))
        .collect();
    assert!(next(&stage).is_none());
    stage.free(slots.remove(0));
    slots.push(check_next(&stage, 0, false));
    slots.into_iter().for_each(|slot| stage.free(slot));

    let most = OPEN as u64;
    for transfer in 1..=most {
        add(&stage, transfer, 3);
        stage.free(check_next(&stage, transfer, true));
    }
    // The next tensor, although more urgent, waits until one of them is announced entirely.
    add(&stage, most + 1, 1);
    for _ in 1..3 {
        stage.free(check_next(&stage, most, false));
    }
    check_next(&stage, most + 1, true);
}

#[test]
fn one_is_sent_once_the_peer_has_begun_and_all_is_told() {
    let stage = stage();
    let (sent, _) = add(&stage, 0, 2);
    let check = |times| assert_eq!(sent.load(Ordering::Relaxed), times);
    let first = check_next(&stage, 0, true);
    let last = check_next(&stage, 0, false);
    check(0);
    stage.free(first);
    check(1);
    assert!(!stage.state().is_idle());
    stage.free(last);
    assert!(stage.state().is_idle());
    stage.shut();
    check(1);
}

#[test]
fn one_that_comes_too_early_is_told_again_from_its_start() {
    let stage = stage();
    let (sent, _) = add(&stage, 0, 2);
    let first = check_next(&stage, 0, true);
    let said = RefCell::new(vec![]);
    let hold = |transfer| stage.hold(transfer, |told| said.borrow_mut().push(told));
    hold(0).unwrap();
    assert_eq!(said.take(), [SharingFrame::Cut { transfer: 0 }]);
    stage.free(first);
    assert!(next(&stage).is_none(), "it is held");
    stage.again(0).unwrap();
    for begins in [true, false] {
        stage.free(check_next(&stage, 1, begins));
    }
    assert_eq!(sent.load(Ordering::Relaxed), 1);
    // A frame about an unknown transfer, which may have been cancelled, changes nothing.
    hold(1).unwrap();
    stage.again(0).unwrap();
    assert_eq!(said.take(), []);
    // A frame about a transfer that was not announced, or that has begun, is refused.
    add(&stage, 0, 2);
    assert!(hold(2).is_err() && stage.again(2).is_err());
    stage.free(check_next(&stage, 2, true));
    assert!(hold(2).is_err());
    check_next(&stage, 2, false);
}

#[test]
fn one_that_is_cancelled_takes_no_slot() {
    let stage = stage();
    let (_, cancel) = add(&stage, 0, 2);
    check_next(&stage, 0, true);
    cancel.cancel();
    let turn = stage.state().turn();
    let Some(Turn::Cancelled(0, crossing)) = turn else {
        panic!("it goes on");
    };
    assert!(crossing.is_open());
    assert!(next(&stage).is_none());
}

#[test]
fn one_that_is_refused_goes_no_further() {
    let stage = stage();
    let (sent, _) = add(&stage, 0, 2);
    let said = RefCell::new(vec![]);
    let unwanted = |transfer| stage.unwanted(transfer, |told| said.borrow_mut().push(told));
    assert!(unwanted(0).is_err(), "it was not told");
    let slot = check_next(&stage, 0, true);
    unwanted(0).unwrap();
    assert_eq!(said.take(), [SharingFrame::Cut { transfer: 0 }]);
    assert_eq!(sent.load(Ordering::Relaxed), 1);
    assert!(next(&stage).is_none());
    stage.free(slot);
    assert!(stage.state().is_idle());
    // A frame about a transfer that is over is still allowed.
    unwanted(0).unwrap();
    assert_eq!(said.take(), []);
}

#[test]
fn a_buffer_whose_tensor_is_refused_during_the_copy_is_free_again() {
    let stage = stage();
    add(&stage, 0, 2);
    let first = check_next(&stage, 0, true);
    let turn = stage.state().turn();
    let Some(Turn::Copy(chunk)) = turn else {
        panic!("it does not go on");
    };
    stage.unwanted(0, drop).unwrap();
    stage.tell(chunk, SLOT, |_| panic!("told"), |_| panic!("told"));
    stage.free(first);
    assert!(stage.state().is_idle());
    add(&stage, 0, SLOTS);
    for at in 0..SLOTS {
        check_next(&stage, 1, at == 0);
    }
}

#[test]
fn a_buffer_that_stays_lent_is_noticed() {
    convoke_common::mutant_is_killed!(
        "staging-buffer-lost",
        a_buffer_whose_tensor_is_refused_during_the_copy_is_free_again
    );
}
