//! A slot's transitions, reuse included.

use std::sync::atomic::{AtomicUsize, Ordering};

use loom::sync::Arc;
use loom::thread;

use crate::model;
use crate::slot::{FillFailure, PublishOutcome, RegisterOutcome, Slot};

/// The number of living values, counted outside the model.
#[derive(Clone, Default)]
struct Alive(std::sync::Arc<AtomicUsize>);

/// A value of step `n`.
#[derive(Debug)]
struct Value {
    n: u64,
    alive: std::sync::Arc<AtomicUsize>,
}

impl Alive {
    fn value(&self, n: u64) -> Value {
        self.0.fetch_add(1, Ordering::SeqCst);
        let alive = self.0.clone();
        Value { n, alive }
    }

    fn check_none(&self) {
        assert_eq!(self.0.load(Ordering::SeqCst), 0, "a value is left behind");
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The outcome of a fill.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fill {
    Stored,
    Awaited,
    Refused,
    Unclaimed(FillFailure),
}

fn fill(slot: &Slot<Value>, n: u64, alive: &Alive) -> Fill {
    match slot.claim(n) {
        Err(why) => Fill::Unclaimed(why),
        Ok(()) => match slot.publish(n, alive.value(n)) {
            PublishOutcome::Stored => Fill::Stored,
            PublishOutcome::Awaited => Fill::Awaited,
            PublishOutcome::Refused(v) => {
                drop(v);
                Fill::Refused
            }
        },
    }
}

#[test]
fn a_recv_gets_its_value_or_a_word_about_it() {
    model(|| {
        let (slot, alive) = (Arc::new(Slot::default()), Alive::default());
        let (s, a) = (slot.clone(), alive.clone());
        let filler = thread::spawn(move || fill(&s, 5, &a));
        let got = slot.register(5);
        let filled = filler.join().unwrap();
        match got {
            RegisterOutcome::Ready(v) => {
                assert_eq!((v.n, filled), (5, Fill::Stored));
            }
            RegisterOutcome::Waiting => {
                // The publisher is told that a consumer waits.
                assert_eq!(filled, Fill::Awaited);
                assert_eq!(slot.take(5).unwrap().n, 5);
            }
            RegisterOutcome::Aborted => panic!("nobody aborted"),
        }
        assert!(slot.take(5).is_none());
        alive.check_none();
    });
}

#[test]
fn an_abort_leaves_no_recv_waiting_and_no_value_behind() {
    model(|| {
        let (slot, alive) = (Arc::new(Slot::default()), Alive::default());
        let (s, a) = (slot.clone(), alive.clone());
        let filler = thread::spawn(move || fill(&s, 1, &a));
        let s = slot.clone();
        let aborter = thread::spawn(move || s.abort(1));
        let got = slot.register(1);
        let filled = filler.join().unwrap();
        aborter.join().unwrap();
        if filled == Fill::Awaited {
            drop(slot.take(1));
        }
        drop(got);
        // After the sweep nothing starts any more.
        assert!(matches!(slot.register(1), RegisterOutcome::Aborted));
        assert_eq!(slot.claim(1), Err(FillFailure::Aborted));
        alive.check_none();
    });
}

#[test]
fn of_two_fillers_one_wins() {
    model(|| {
        let (slot, alive) = (Arc::new(Slot::default()), Alive::default());
        let fillers: Vec<_> = (0..2)
            .map(|_| {
                let (s, a) = (slot.clone(), alive.clone());
                thread::spawn(move || match s.claim(2) {
                    Ok(()) => Some(matches!(s.publish(2, a.value(2)), PublishOutcome::Awaited)),
                    Err(why) => {
                        assert_eq!(why, FillFailure::Duplicate);
                        None
                    }
                })
            })
            .collect();
        let got = slot.register(2);
        let won: Vec<bool> = fillers
            .into_iter()
            .filter_map(|f| f.join().unwrap())
            .collect();
        assert_eq!(won.len(), 1, "each edge carries one value per step");
        match got {
            RegisterOutcome::Ready(v) => assert!(!won[0] && v.n == 2),
            RegisterOutcome::Waiting => assert!(won[0] && slot.take(2).is_some()),
            RegisterOutcome::Aborted => panic!("nobody aborted"),
        }
        alive.check_none();
    });
}

#[test]
fn a_claim_given_back_can_be_taken_up_again() {
    model(|| {
        let (slot, alive) = (Arc::new(Slot::default()), Alive::default());
        slot.claim(0).unwrap();
        let s = slot.clone();
        let reset = thread::spawn(move || s.unclaim(0));
        let (s, a) = (slot.clone(), alive.clone());
        let filler = thread::spawn(move || fill(&s, 0, &a));
        let got = slot.register(0);
        reset.join().unwrap();
        let mut filled = filler.join().unwrap();
        if filled == Fill::Unclaimed(FillFailure::Duplicate) {
            // This fill came before the reset; the source's next stream finds the slot open.
            filled = fill(&slot, 0, &alive);
        }
        match got {
            RegisterOutcome::Ready(v) => assert_eq!((v.n, filled), (0, Fill::Stored)),
            RegisterOutcome::Waiting => {
                assert_eq!(filled, Fill::Awaited);
                assert!(slot.take(0).is_some());
            }
            RegisterOutcome::Aborted => panic!("nobody aborted"),
        }
        alive.check_none();
    });
}

#[test]
fn a_taker_and_an_abort_share_no_value() {
    model(|| {
        let (slot, alive) = (Arc::new(Slot::default()), Alive::default());
        assert!(matches!(slot.register(0), RegisterOutcome::Waiting));
        assert_eq!(fill(&slot, 0, &alive), Fill::Awaited);
        let s = slot.clone();
        let aborter = thread::spawn(move || s.abort(0));
        let s = slot.clone();
        let other = thread::spawn(move || s.take(0).is_some());
        let mine = slot.take(0).is_some();
        aborter.join().unwrap();
        assert!(
            !(mine && other.join().unwrap()),
            "one value was taken twice"
        );
        alive.check_none();
    });
}

#[test]
fn a_late_fill_never_reaches_the_next_step() {
    model(|| {
        let (slot, alive) = (Arc::new(Slot::default()), Alive::default());
        let (s, a) = (slot.clone(), alive.clone());
        let late = thread::spawn(move || {
            let filled = fill(&s, 0, &a);
            assert_ne!(filled, Fill::Awaited, "nobody waits for the former step");
        });
        // The former step ends unfilled; only its retirement admits frames of the next step.
        slot.abort(0);
        let (s, a) = (slot.clone(), alive.clone());
        let filler = thread::spawn(move || fill(&s, 3, &a));
        let got = slot.register(3);
        late.join().unwrap();
        let filled = filler.join().unwrap();
        match got {
            RegisterOutcome::Ready(v) => assert_eq!((v.n, filled), (3, Fill::Stored)),
            RegisterOutcome::Waiting => {
                assert_eq!(filled, Fill::Awaited);
                assert_eq!(slot.take(3).unwrap().n, 3);
            }
            RegisterOutcome::Aborted => panic!("the next step was not aborted"),
        }
        assert_eq!(slot.claim(0), Err(FillFailure::Stale));
        assert!(matches!(slot.register(0), RegisterOutcome::Aborted));
        alive.check_none();
    });
}

#[test]
fn a_late_abort_and_a_late_reset_leave_the_next_step_alone() {
    model(|| {
        let (slot, alive) = (Arc::new(Slot::default()), Alive::default());
        slot.claim(0).unwrap();
        slot.abort(0);
        let s = slot.clone();
        let late = thread::spawn(move || {
            s.unclaim(0);
            s.abort(0);
        });
        let (s, a) = (slot.clone(), alive.clone());
        let filler = thread::spawn(move || fill(&s, 1, &a));
        let got = slot.register(1);
        late.join().unwrap();
        let filled = filler.join().unwrap();
        let value = match got {
            RegisterOutcome::Ready(v) => v,
            RegisterOutcome::Waiting => {
                assert_eq!(filled, Fill::Awaited);
                slot.take(1).unwrap()
            }
            RegisterOutcome::Aborted => panic!("a late abort ended the next step"),
        };
        assert_eq!(value.n, 1);
        drop(value);
        alive.check_none();
    });
}

#[test]
fn the_cell_changes_hands_in_order() {
    model(|| {
        let (slot, alive) = (Arc::new(Slot::default()), Alive::default());
        assert_eq!(fill(&slot, 0, &alive), Fill::Stored);
        let s = slot.clone();
        let taker = thread::spawn(move || s.take(0).unwrap().n);
        // The next step finds the slot at rest, or is refused.
        match fill(&slot, 1, &alive) {
            Fill::Stored => assert_eq!(slot.take(1).unwrap().n, 1),
            other => assert_eq!(other, Fill::Unclaimed(FillFailure::Stale)),
        }
        assert_eq!(taker.join().unwrap(), 0);
        alive.check_none();
    });
}
