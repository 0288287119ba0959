//! Slots: every meeting of a send and a recv, in order and in a race.

#![allow(clippy::disallowed_methods, reason = "a race needs threads of its own")]

use convoke_rendezvous::step::slot::{FillFailure, PublishOutcome, RegisterOutcome, Slot};

#[test]
fn value_before_and_after_the_recv() {
    let s = Slot::default();
    s.claim(0).unwrap();
    assert_eq!(s.publish(0, 7), PublishOutcome::Stored);
    assert_eq!(s.register(0), RegisterOutcome::Ready(7));
    assert_eq!(s.register(1), RegisterOutcome::Waiting);
    s.claim(1).unwrap();
    assert_eq!(s.publish(1, 8), PublishOutcome::Awaited);
    assert_eq!(s.take(1), Some(8));
    assert_eq!(s.take(1), None);
}

#[test]
fn second_and_late_fills_are_refused() {
    let s = Slot::default();
    s.claim(3).unwrap();
    assert_eq!(s.claim(3), Err(FillFailure::Duplicate));
    assert_eq!(s.publish(3, 1), PublishOutcome::Stored);
    assert_eq!(s.claim(3), Err(FillFailure::Duplicate));
    s.abort(3);
    assert_eq!(s.claim(3), Err(FillFailure::Aborted));
    assert_eq!(s.claim(2), Err(FillFailure::Stale));
    assert_eq!(s.register(3), RegisterOutcome::Aborted);
    s.claim(4).unwrap();
}

#[test]
fn a_step_that_is_not_at_rest_keeps_the_next_one_out() {
    let s = Slot::default();
    s.claim(0).unwrap();
    assert_eq!(s.claim(1), Err(FillFailure::Stale));
    assert_eq!(s.register(1), RegisterOutcome::Aborted);
    assert_eq!(s.publish(0, 7), PublishOutcome::Stored);
    assert_eq!(s.claim(1), Err(FillFailure::Stale));
    assert_eq!(s.take(0), Some(7));
    s.claim(1).unwrap();
}

#[test]
fn abort_during_a_fill_gives_the_value_back() {
    let s = Slot::default();
    assert_eq!(s.register(0), RegisterOutcome::Waiting);
    s.claim(0).unwrap();
    s.abort(0);
    assert_eq!(s.publish(0, "late"), PublishOutcome::Refused("late"));
    s.claim(1).unwrap();
    s.unclaim(1);
    assert_eq!(s.register(1), RegisterOutcome::Waiting);
}

#[test]
fn racing_fill_abort_and_register_never_lose_a_value() {
    for n in 0..2000u64 {
        let s = std::sync::Arc::new(Slot::default());
        let value = std::sync::Arc::new(());
        let (f, a) = (s.clone(), s.clone());
        let v = value.clone();
        let fill = std::thread::spawn(move || match f.claim(n) {
            Ok(()) => matches!(f.publish(n, v), PublishOutcome::Awaited),
            Err(_) => false,
        });
        let abort = std::thread::spawn(move || a.abort(n));
        let got = s.register(n);
        let told = fill.join().unwrap();
        abort.join().unwrap();
        if told {
            drop(s.take(n));
        }
        drop(got);
        s.abort(n);
        assert_eq!(
            std::sync::Arc::strong_count(&value),
            1,
            "value leaked in round {n}"
        );
    }
}
