//! A model checker runs every interleaving of threads that issue, put, free and donate eager tensors. It compiles the
//! files of `src` themselves over atomics and locks of its own, which stand under the names of `src/primitives.rs`.
//!
//! A model fails where a check of it does not hold in some interleaving, and where every thread that is left waits for
//! another.

#![allow(clippy::unwrap_used)]

// Sessions notify everybody who waits.
#[allow(dead_code)]
#[path = "../../../rendezvous/tests/models/notify.rs"]
mod notify;
mod primitives;

#[path = "../../src/tensor/donation.rs"]
mod donation;
#[path = "../../src/eager/room.rs"]
mod room;
#[path = "../../src/eager/told.rs"]
mod told;

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use donation::Donation;
use loom::thread;
use primitives::{Mutex, block_on};
use room::Room;
use told::ToldHandle;

/// Runs `check` under every interleaving with at most three forced switches.
fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

/// A session's bounds: no op may be unresolved, and no byte on its way, before more is issued.
#[derive(Default)]
struct Session {
    unresolved: Mutex<u64>,
    room: Room,
}

impl Session {
    /// A session with an op and a put on their way.
    fn full() -> Arc<Session> {
        let session = Arc::<Session>::default();
        *session.unresolved.lock().unwrap() = 1;
        session.room.put(8);
        session
    }

    fn has_room(&self, unresolved: u64) -> bool {
        unresolved == 0 && self.room.putting() == 0
    }

    /// Ends the op and the put, each on a thread of its own.
    fn relieve(self: &Arc<Session>) -> [thread::JoinHandle<()>; 2] {
        let [report, sent] = [self.clone(), self.clone()];
        [
            thread::spawn(move || {
                *report.unresolved.lock().unwrap() -= 1;
                report.room.tell();
            }),
            thread::spawn(move || sent.room.put_ended(8, &sent.unresolved)),
        ]
    }
}

#[test]
fn a_thread_that_waits_for_room_goes_on_once_there_is_room() {
    model(|| {
        let session = Session::full();
        let threads = session.relieve();
        let mut unresolved = session.unresolved.lock().unwrap();
        while !session.has_room(*unresolved) {
            unresolved = session.room.wait(unresolved);
        }
        drop(unresolved);
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn a_task_that_waits_for_room_goes_on_once_there_is_room() {
    model(|| {
        let session = Session::full();
        let threads = session.relieve();
        block_on(session.room.until(|| {
            let unresolved = session.unresolved.lock().unwrap();
            session.has_room(*unresolved).then_some(())
        }));
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

/// The worker's end of a value's handle.
#[derive(Default)]
struct Worker {
    told: AtomicU64,
    freed: AtomicU64,
}

impl Worker {
    fn tell(&self) -> Result<u64, ()> {
        Ok(self.told.fetch_add(1, Ordering::Relaxed))
    }

    fn free(&self, handle: &ToldHandle) {
        if handle.take().is_some() {
            self.freed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_handle_that_is_told_is_freed_once() {
    model(|| {
        let (handle, worker) = (Arc::<ToldHandle>::default(), Arc::<Worker>::default());
        // An op takes the value as its operand, and another one does so too, while a call that kept the value frees it.
        let issuers = [(); 2].map(|()| {
            let (handle, worker) = (handle.clone(), worker.clone());
            thread::spawn(move || handle.told(|| worker.tell()).unwrap())
        });
        worker.free(&handle);
        for issuer in issuers {
            assert_eq!(issuer.join().unwrap(), 0, "the worker is told once");
        }
        // The last owner frees what was told since.
        let mut handle = Arc::into_inner(handle).unwrap();
        assert!(handle.was_told());
        worker.free(&handle);
        assert_eq!(worker.told.load(Ordering::Relaxed), 1);
        assert_eq!(worker.freed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_handle_that_two_threads_free_is_freed_once() {
    model(|| {
        let (handle, worker) = (Arc::<ToldHandle>::default(), Arc::<Worker>::default());
        handle.told(|| worker.tell()).unwrap();
        let other = {
            let (handle, worker) = (handle.clone(), worker.clone());
            thread::spawn(move || worker.free(&handle))
        };
        worker.free(&handle);
        other.join().unwrap();
        assert_eq!(worker.freed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn of_calls_that_take_a_tensor_at_once_one_has_it() {
    model(|| {
        let donation = Arc::new(Donation::none());
        let calls = [(); 2].map(|()| {
            let donation = donation.clone();
            thread::spawn(move || {
                let promised = donation.given().is_none() && donation.promise();
                if promised {
                    assert!(donation.given().is_none(), "it was given before");
                    donation.give(Location::caller());
                    donation.withdraw();
                }
                promised
            })
        });
        let promised = calls.map(|call| call.join().unwrap());
        assert_eq!(promised.into_iter().filter(|p| *p).count(), 1);
        assert!(donation.given().is_some() && !donation.promise());
    });
}

#[test]
fn a_promise_that_is_withdrawn_lets_another_call_have_the_tensor() {
    model(|| {
        let donation = Arc::new(Donation::none());
        let fails = {
            let donation = donation.clone();
            thread::spawn(move || {
                if donation.promise() {
                    donation.withdraw();
                }
            })
        };
        let mine = donation.promise();
        if mine {
            donation.give(Location::caller());
        }
        fails.join().unwrap();
        assert_eq!(donation.given().is_some(), mine);
        assert_eq!(donation.promise(), !mine, "the tensor is lost");
    });
}
