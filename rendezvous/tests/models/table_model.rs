//! The window of a step table: steps open, are aborted and retire while frames of theirs, late ones included, arrive.

use std::sync::Arc;

use convoke_common::error::{Code, Error};
use loom::thread;

use crate::model;
use crate::slot::{PublishOutcome, RegisterOutcome};
use crate::table::{FenceReason, StepTable};

/// A delivery that counts how often it is held: by the test, and by the table or whoever took it.
#[derive(Clone)]
struct Counted(Arc<Error>);

impl Counted {
    fn new() -> Counted {
        Counted(Arc::new(Error::new(Code::Internal, "a delivery")))
    }

    fn check_dropped(&self) {
        assert_eq!(Arc::strong_count(&self.0), 1, "a value is left behind");
    }
}

/// The outcome of a frame that carries a value.
#[derive(Debug, PartialEq)]
enum Fill {
    Stored,
    Awaited,
    /// The slot refused the value.
    Refused,
    /// The window did not admit the step.
    Fenced(FenceReason),
}

/// Fills slot 0 of step `n`, as a frame does.
fn fill(table: &StepTable, n: u64, value: &Counted) -> Fill {
    let slot = match table.slot(n, 0) {
        Ok(slot) => slot,
        Err(why) => return Fill::Fenced(why),
    };
    match slot.claim(n) {
        Err(_) => Fill::Refused,
        Ok(()) => match slot.publish(n, Err(value.0.clone())) {
            PublishOutcome::Stored => Fill::Stored,
            PublishOutcome::Awaited => Fill::Awaited,
            PublishOutcome::Refused(_) => Fill::Refused,
        },
    }
}

/// A table of one slot, with room for one step.
fn table() -> Arc<StepTable> {
    Arc::new(StepTable::new(1, 1))
}

#[test]
fn frames_of_the_next_step_open_it_together() {
    model(|| {
        let table = table();
        let frames: Vec<_> = (0..2)
            .map(|_| {
                let table = table.clone();
                thread::spawn(move || table.admit(0))
            })
            .collect();
        assert_eq!(table.admit(0), Ok(()));
        for frame in frames {
            assert_eq!(frame.join().unwrap(), Ok(()), "the step is in the window");
        }
        assert!(table.is_open(0) && table.open_steps() == 1);
    });
}

#[test]
fn a_step_retires_once() {
    model(|| {
        let table = table();
        table.admit(0).unwrap();
        let other = {
            let table = table.clone();
            thread::spawn(move || table.retire(0))
        };
        let mine = table.retire(0);
        assert!(mine != other.join().unwrap(), "one call retires the step");
        assert_eq!(table.admit(0), Err(FenceReason::Stale));
        assert_eq!(table.admit(1), Ok(()));
    });
}

#[test]
fn a_late_frame_never_opens_a_step_again() {
    model(|| {
        let table = table();
        let late = {
            let table = table.clone();
            thread::spawn(move || table.admit(0))
        };
        table.admit(0).unwrap();
        assert!(table.retire(0));
        let (open, admitted) = (table.is_open(0), table.admit(1));
        late.join().unwrap().unwrap_or_else(|why| {
            assert_eq!(why, FenceReason::Stale);
        });
        assert!(!open && !table.is_open(0) && table.is_open(1));
        assert_eq!(admitted, Ok(()));
    });
}

#[test]
fn a_value_that_races_its_steps_retirement_reaches_no_later_step() {
    model(|| {
        let (table, value) = (table(), Counted::new());
        table.admit(0).unwrap();
        let late = {
            let (table, value) = (table.clone(), value.clone());
            thread::spawn(move || fill(&table, 0, &value))
        };
        assert!(table.retire(0));
        // The step after it begins at once, and its consumer comes before any value.
        let got = table.slot(1, 0).unwrap().register(1);
        assert_eq!(got, RegisterOutcome::Waiting, "the slot is at rest");
        let late = late.join().unwrap();
        assert_ne!(late, Fill::Awaited, "nobody waits for the former step");
        value.check_dropped();
        assert_eq!(fill(&table, 1, &value), Fill::Awaited);
        assert!(table.slot(1, 0).unwrap().take(1).is_some());
        value.check_dropped();
    });
}

#[test]
fn frames_of_the_next_step_find_its_slots_at_rest() {
    model(|| {
        let (table, value) = (table(), Counted::new());
        assert_eq!(fill(&table, 0, &value), Fill::Stored);
        let next = {
            let (table, value) = (table.clone(), value.clone());
            thread::spawn(move || fill(&table, 1, &value))
        };
        assert!(table.retire(0));
        // A frame that comes before the retirement is fenced, one that comes after it fills its slot.
        let taken = table.slot(1, 0).unwrap().take(1).is_some();
        let filled = next.join().unwrap();
        assert!(
            matches!(filled, Fill::Stored | Fill::Fenced(FenceReason::Ahead)),
            "{filled:?}"
        );
        assert!(!taken || filled == Fill::Stored);
        table.retire(1);
        value.check_dropped();
    });
}

#[test]
fn an_abort_that_races_a_receive_ends_it_one_way() {
    model(|| {
        let (table, value) = (table(), Counted::new());
        table.admit(0).unwrap();
        let aborter = {
            let table = table.clone();
            thread::spawn(move || table.abort(0))
        };
        let filler = {
            let (table, value) = (table.clone(), value.clone());
            thread::spawn(move || fill(&table, 0, &value))
        };
        let slot = table.slot(0, 0).unwrap();
        let registered = slot.register(0);
        let filled = filler.join().unwrap();
        let taken = filled == Fill::Awaited && slot.take(0).is_some();
        aborter.join().unwrap();
        match &registered {
            RegisterOutcome::Ready(_) => assert_eq!(filled, Fill::Stored),
            // A value that was announced and then not found was dropped by the abort, of which the step is told.
            RegisterOutcome::Waiting => assert!(matches!(filled, Fill::Awaited | Fill::Refused)),
            RegisterOutcome::Aborted => assert!(!taken),
        }
        drop(registered);
        // Nothing waits in the aborted step, and nothing is delivered to it any more.
        assert!(slot.take(0).is_none());
        assert_eq!(slot.register(0), RegisterOutcome::Aborted);
        value.check_dropped();
        assert!(table.retire(0));
    });
}

#[test]
fn an_abort_ends_a_receive_for_which_nothing_comes() {
    model(|| {
        let (table, value) = (table(), Counted::new());
        table.admit(0).unwrap();
        let aborter = {
            let table = table.clone();
            thread::spawn(move || table.abort(0))
        };
        let slot = table.slot(0, 0).unwrap();
        let registered = slot.register(0);
        assert!(matches!(
            registered,
            RegisterOutcome::Waiting | RegisterOutcome::Aborted
        ));
        aborter.join().unwrap();
        // The step is told of its abort; its slot takes neither a receive nor a value after that.
        assert_eq!(slot.register(0), RegisterOutcome::Aborted);
        assert_eq!(fill(&table, 0, &value), Fill::Refused);
        value.check_dropped();
    });
}

#[test]
fn a_late_abort_leaves_the_next_step_alone() {
    model(|| {
        let (table, value) = (table(), Counted::new());
        table.admit(0).unwrap();
        let late = {
            let table = table.clone();
            thread::spawn(move || table.abort(0))
        };
        assert!(table.retire(0));
        assert_eq!(fill(&table, 1, &value), Fill::Stored);
        late.join().unwrap();
        assert!(table.slot(1, 0).unwrap().take(1).is_some());
        value.check_dropped();
    });
}
