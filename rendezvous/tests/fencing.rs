//! A frame or tensor that comes from the wrong peer, at the wrong time or in the wrong form is refused and counted
//! under its reason, and is never delivered.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::sync::{Arc, Mutex};

use convoke_common::error::{Code, Error};
use convoke_common::grant::Participant;
use convoke_common::identity::Role;
use convoke_common::ids::{Incarnation, LeaseId, StepKey};
use convoke_common::memory::{Ledger, Pool, Purpose};
use convoke_common::telemetry::TraceIds;
use convoke_graph::dim::Dim;
use convoke_graph::graph::TensorType;
use convoke_graph::ids::ParticipantIx;
use convoke_graph::program::Axes;
use convoke_graph::{DType, Tensor};
use convoke_rendezvous::frame::{Frame, TensorHeader};
use convoke_rendezvous::step::slot::RegisterOutcome;
use convoke_rendezvous::{Hub, Lease, Link, Peer, RecvSpec, StepHandler};

const LEASE: LeaseId = LeaseId(5);
/// The number of steps in flight.
const K: u64 = 2;

/// A record of the messages to the lease's owner.
#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Log {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }
}

impl StepHandler for Log {
    fn start(&self, n: u64, _: Vec<i64>, _: TraceIds, _: bool) -> bool {
        let what = format!("start {n}");
        let first = !self.0.lock().unwrap().contains(&what);
        if first {
            self.note(what);
        }
        first
    }
    fn arrived(&self, n: u64, slot: u32) {
        self.note(format!("arrived {n}/{slot}"));
    }
    fn abort(&self, n: u64, _: Error, from: ParticipantIx) {
        self.note(format!("abort {n} from {from}"));
    }
    fn done(&self, n: u64, from: ParticipantIx) {
        self.note(format!("done {n} from {from}"));
    }
    fn released(&self) {}
    fn peer_lost(&self, _: ParticipantIx, _: &Error) {}
}

fn certified(role: Role, name: &str, incarnation: u64) -> Peer {
    Peer {
        role,
        name: name.into(),
        incarnation: Incarnation(incarnation),
    }
}

fn client(name: &str, incarnation: u64) -> Peer {
    certified(Role::Client, name, incarnation)
}

fn worker(name: &str, incarnation: u64) -> Peer {
    certified(Role::Worker, name, incarnation)
}

fn peer(name: &str, incarnation: u64) -> Peer {
    match name {
        "driver" => client(name, incarnation),
        _ => worker(name, incarnation),
    }
}

fn participant(peer: Peer) -> Participant {
    Participant {
        name: peer.name,
        incarnation: peer.incarnation,
        address: String::new(),
    }
}

/// A worker of a lease with two workers and a driver, or that driver.
struct Rig {
    hub: Arc<Hub>,
    lease: Arc<Lease>,
    log: Arc<Log>,
}

/// Slot 0 comes from the other worker, f32[2]; slot 1 from the driver, i64[n] with n up to 4.
fn rig(me: ParticipantIx) -> Rig {
    let peers = [peer("me", 1), peer("other", 2), peer("driver", 3)];
    let hub = Hub::new(peers[usize::from(me)].clone());
    let participants = peers.map(participant);
    let axes = Axes {
        bounds: vec![("n".into(), 4)],
    };
    let fixed = TensorType::fixed(DType::F32, &[2]);
    let dynamic = TensorType::new(DType::I64, vec![Dim::sym("n")]);
    let recvs = [(1, fixed), (2, dynamic)].map(|(from, ty)| RecvSpec { from, ty });
    let ledger = Ledger::new("me", 1 << 20);
    let pool = Pool::new(&ledger, Purpose::Leases, 1 << 16).unwrap();
    let log = Arc::<Log>::default();
    let lease = Arc::new(Lease::new(
        LEASE,
        me,
        participants.into(),
        axes,
        K as u32,
        recvs.into(),
        pool,
        log.clone(),
    ));
    hub.add_lease(lease.clone());
    Rig { hub, lease, log }
}

fn key(n: u64) -> StepKey {
    StepKey { lease: LEASE, n }
}

#[test]
fn an_abort_counts_while_its_lease_ends() {
    let r = rig(0);
    let aborts = || r.hub.status().aborts;
    for (n, ends) in [(0, false), (1, true), (2, false)] {
        if ends {
            assert!(r.hub.remove_lease(LEASE).is_some());
            assert_eq!(aborts(), n);
        }
        r.lease.table.admit(n).unwrap();
        r.lease.table.abort(n);
        assert_eq!(aborts(), n + 1);
        assert!(r.lease.table.retire(n));
    }
}

fn start(n: u64) -> Frame {
    Frame::Start {
        key: key(n),
        axes: vec![3],
        trace: Default::default(),
        partial: true,
    }
}

/// A frame which says that the tensors for these slots do not come.
fn failed(n: u64, slots: &[u32]) -> Frame {
    Frame::Failed {
        key: key(n),
        slots: slots.into(),
        error: Arc::new(Error::new(Code::KernelFailed, "boom")),
    }
}

fn abort(n: u64) -> Frame {
    Frame::Abort {
        key: key(n),
        error: Box::new(Error::new(Code::Cancelled, "over")),
    }
}

fn pair() -> Tensor {
    Tensor::from_slice(&[2], &[1f32, 2.]).unwrap()
}

fn ids(n: usize) -> Tensor {
    Tensor::from_slice(&[n], &vec![7i64; n]).unwrap()
}

/// A frame or tensor that arrives, and its sender.
enum Comes {
    Frame(Peer, Frame),
    Tensor(Peer, StepKey, u32, Tensor),
}

use Comes::{Frame as F, Tensor as T};

impl Rig {
    fn comes(&self, what: Comes) {
        match what {
            F(from, frame) => drop(self.hub.frame(&from, frame)),
            T(from, key, slot, tensor) => {
                let header = TensorHeader::of(key, slot, &tensor);
                self.hub.deliver(&from, &header, tensor);
            }
        }
    }

    /// Checks that `what` is refused once, under `name`; `told` is what the lease's owner is told of it.
    #[track_caller]
    fn check(&self, case: &str, what: Comes, name: &str, told: &[&str]) {
        let (before, heard) = (self.hub.refused(), self.log.0.lock().unwrap().len());
        self.comes(what);
        let mut expected = before;
        *expected.entry(name.to_owned()).or_default() += 1;
        assert_eq!(self.hub.refused(), expected, "{case}");
        assert_eq!(self.log.0.lock().unwrap()[heard..], *told, "{case}");
    }

    /// Checks that no value of step `n` is in a slot.
    #[track_caller]
    fn check_empty(&self, n: u64) {
        for slot in 0..2 {
            let found = self.lease.table.slot(n, slot).unwrap().register(n);
            assert!(matches!(found, RegisterOutcome::Waiting), "{n}/{slot}");
        }
    }
}

#[test]
fn a_driver_whose_lease_is_gone_is_told_so() {
    let (worker, driver) = (rig(0), rig(2));
    Link::join_local(&worker.hub, &driver.hub);
    let link = driver.hub.link(&worker.hub.me).unwrap();
    link.send(start(0));
    let told = || driver.log.0.lock().unwrap().clone();
    assert!(told().is_empty());
    assert!(worker.hub.remove_lease(LEASE).is_some());
    link.send(start(1));
    assert_eq!(told(), ["abort 1 from 0"]);
    assert_eq!(worker.hub.refused()["unknown_lease"], 1);
    // Only a start is answered.
    for frame in [abort(1), Frame::Release { lease: LEASE }] {
        assert!(worker.hub.frame(&driver.hub.me, frame).is_none());
    }
}

#[test]
fn a_worker_that_drives_a_body_is_told_over_its_link_to_itself_that_the_lease_is_gone() {
    let hub = Hub::new(peer("me", 1));
    let ledger = Ledger::new("me", 1 << 20);
    let pool = Pool::new(&ledger, Purpose::Leases, 1 << 16).unwrap();
    let participants = [peer("me", 1), peer("other", 2), peer("me", 1)].map(participant);
    // The part of the body that the worker runs, and the body's lease as its driver knows it.
    let [part, driver] = [(LEASE, 0), (LEASE.at_driver(), 2)].map(|(id, me)| {
        let log = Arc::<Log>::default();
        let lease = Lease::new(
            id,
            me,
            participants.clone().into(),
            Axes::default(),
            K as u32,
            vec![],
            pool.clone(),
            log.clone(),
        );
        hub.add_lease(Arc::new(lease.driven_by_worker()));
        log
    });
    let told = |log: &Log| log.0.lock().unwrap().clone();
    let link = Link::to_itself(&hub);
    link.send(start(0));
    assert_eq!(told(&part), ["start 0"]);
    assert!(hub.remove_lease(LEASE).is_some());
    link.send(start(1));
    assert_eq!(told(&part), ["start 0"]);
    assert_eq!(told(&driver), ["abort 1 from 0"]);
    assert_eq!(hub.refused(), [("unknown_lease".to_owned(), 1)].into());
}

#[test]
fn strangers_and_others_than_the_source_fill_no_edge() {
    let r = rig(0);
    let (other, driver) = (peer("other", 2), peer("driver", 3));
    for (case, what, name) in [
        (
            "a former incarnation",
            T(peer("other", 1), key(0), 0, pair()),
            "stranger",
        ),
        (
            "a later one",
            T(peer("other", 9), key(0), 0, pair()),
            "stranger",
        ),
        (
            "a client that is called as a worker",
            T(client("other", 2), key(0), 0, pair()),
            "stranger",
        ),
        (
            "no participant",
            T(peer("eve", 2), key(0), 0, pair()),
            "stranger",
        ),
        (
            "this very worker",
            T(peer("me", 1), key(0), 0, pair()),
            "wrong_source",
        ),
        (
            "the driver, for the other",
            T(driver.clone(), key(0), 0, pair()),
            "wrong_source",
        ),
        (
            "the other, for the driver",
            T(other.clone(), key(0), 1, ids(3)),
            "wrong_source",
        ),
        (
            "an edge that is not there",
            T(other.clone(), key(0), 9, pair()),
            "no_such_edge",
        ),
        (
            "a failure of the driver's edge, told by the other",
            F(other.clone(), failed(0, &[1])),
            "wrong_source",
        ),
        (
            "a failure of an edge that is not there",
            F(other.clone(), failed(0, &[9])),
            "no_such_edge",
        ),
        (
            "a failure told by a stranger",
            F(peer("eve", 2), failed(0, &[0])),
            "stranger",
        ),
        (
            "a failure of what the driver feeds",
            F(driver.clone(), failed(0, &[1])),
            "wrong_tensor",
        ),
        (
            "another lease",
            T(
                other.clone(),
                StepKey {
                    lease: LeaseId(6),
                    n: 0,
                },
                0,
                pair(),
            ),
            "unknown_lease",
        ),
        (
            "a start by a former driver",
            F(peer("driver", 1), start(0)),
            "stranger",
        ),
        (
            "a start by a worker that is called as the driver",
            F(worker("driver", 3), start(0)),
            "stranger",
        ),
        (
            "a start by a worker",
            F(other.clone(), start(0)),
            "not_driver",
        ),
        (
            "an abort by a stranger",
            F(peer("eve", 3), abort(0)),
            "stranger",
        ),
        (
            "done, told to a worker",
            F(other, Frame::Done { key: key(0) }),
            "not_driver",
        ),
        (
            "a tensor's head without one",
            F(driver, Frame::Tensor(TensorHeader::of(key(0), 1, &ids(3)))),
            "wrong_tensor",
        ),
    ] {
        r.check(case, what, name, &[]);
    }
    r.check_empty(0);
}

#[test]
fn frames_below_and_above_the_window_change_nothing() {
    let r = rig(0);
    let (other, driver) = (peer("other", 2), peer("driver", 3));
    r.comes(F(driver.clone(), start(0)));
    r.comes(T(other.clone(), key(0), 0, pair()));
    assert!(r.lease.table.retire(0));
    for (case, n, name) in [
        ("the step is over", 0, "stale_step"),
        ("one beyond the window", K + 1, "ahead_of_window"),
        ("far beyond it", 1 << 40, "ahead_of_window"),
        ("a number that no step has", u64::MAX, "ahead_of_window"),
    ] {
        r.check(case, T(other.clone(), key(n), 0, pair()), name, &[]);
        r.check(case, F(driver.clone(), start(n)), name, &[]);
        r.check(case, F(other.clone(), abort(n)), name, &[]);
        r.check(case, F(other.clone(), failed(n, &[0])), name, &[]);
    }
    // Frames inside the window are accepted, even before the step starts.
    r.comes(T(other, key(1), 0, pair()));
    r.comes(F(driver, start(K)));
    assert_eq!(*r.log.0.lock().unwrap(), ["start 0", "start 2"]);
    r.check_empty(K);
}

#[test]
fn a_step_takes_each_thing_once_and_nothing_after_its_end() {
    let r = rig(0);
    let (other, driver) = (peer("other", 2), peer("driver", 3));
    r.comes(F(driver.clone(), start(0)));
    r.check(
        "started twice",
        F(driver.clone(), start(0)),
        "duplicate",
        &[],
    );
    r.comes(T(other.clone(), key(0), 0, pair()));
    r.check(
        "sent twice",
        T(other.clone(), key(0), 0, pair()),
        "duplicate",
        &[],
    );
    let slot = r.lease.table.slot(0, 0).unwrap();
    assert!(matches!(slot.register(0), RegisterOutcome::Ready(_)));
    r.check(
        "sent again",
        T(other.clone(), key(0), 0, pair()),
        "duplicate",
        &[],
    );
    r.check(
        "failed after it was sent",
        F(other.clone(), failed(0, &[0])),
        "duplicate",
        &[],
    );
    r.lease.table.abort(0);
    r.check(
        "failed after the abort",
        F(other.clone(), failed(0, &[0])),
        "aborted_step",
        &[],
    );
    r.check(
        "after the abort",
        T(driver.clone(), key(0), 1, ids(3)),
        "aborted_step",
        &[],
    );
    assert!(r.lease.table.retire(0));
    r.check(
        "after the end",
        T(driver, key(0), 1, ids(3)),
        "stale_step",
        &[],
    );

    let r = rig(2);
    r.check(
        "done before the start",
        F(other.clone(), Frame::Done { key: key(0) }),
        "stale_step",
        &[],
    );
    r.lease.table.admit(0).unwrap();
    r.comes(F(other.clone(), Frame::Done { key: key(0) }));
    assert!(r.lease.table.retire(0));
    r.check(
        "done after the end",
        F(other, Frame::Done { key: key(0) }),
        "stale_step",
        &[],
    );
}

#[test]
fn an_error_in_the_place_of_a_tensor_meets_its_recv_once() {
    let r = rig(0);
    let other = peer("other", 2);
    let slot = r.lease.table.slot(0, 0).unwrap();
    // The error arrives before its recv is registered, and after.
    r.comes(F(other.clone(), failed(0, &[0])));
    let RegisterOutcome::Ready(Err(error)) = slot.register(0) else {
        panic!("nothing came");
    };
    assert_eq!(error.message, "boom");
    let later = r.lease.table.slot(1, 0).unwrap();
    assert_eq!(later.register(1), RegisterOutcome::Waiting);
    r.comes(F(other.clone(), failed(1, &[0])));
    assert_eq!(*r.log.0.lock().unwrap(), ["arrived 1/0"]);
    assert!(matches!(later.take(1), Some(Err(_))));
    for n in [0, 1] {
        r.check(
            "sent after it failed",
            T(other.clone(), key(n), 0, pair()),
            "duplicate",
            &[],
        );
    }
    // An error that was not taken is dropped with its step.
    r.lease.table.retire(0);
    r.comes(F(other, failed(K, &[0])));
    assert!(r.lease.table.retire(K) && r.lease.table.retire(1));
    assert_eq!(r.lease.table.open_steps(), 0);
}

#[test]
fn a_tensor_of_another_form_fails_its_step() {
    let other = || peer("other", 2);
    let driver = || peer("driver", 3);
    let floats = |shape: &[usize]| Tensor::zeros(DType::F32, shape).unwrap();
    for (case, what) in [
        ("dtype", T(other(), key(0), 0, ids(2))),
        ("rank", T(other(), key(0), 0, floats(&[2, 1]))),
        ("size", T(other(), key(0), 0, floats(&[3]))),
        ("beyond the axis' bound", T(driver(), key(0), 1, ids(5))),
    ] {
        let r = rig(0);
        r.check(case, what, "wrong_tensor", &["abort 0 from 0"]);
        r.check_empty(0);
    }
    let r = rig(0);
    r.lease.bind(0, &[3]).unwrap();
    let what = T(driver(), key(0), 1, ids(4));
    r.check(
        "not this step's axis",
        what,
        "wrong_tensor",
        &["abort 0 from 0"],
    );
    r.comes(T(driver(), key(1), 1, ids(4)));
    assert_eq!(r.hub.refused().len(), 1, "another step may have another");
}

#[test]
fn a_flood_of_frames_beyond_the_window_leaves_nothing_behind() {
    let r = rig(0);
    for n in 0..10_000 {
        r.comes(F(peer("driver", 3), start(K + n)));
        r.comes(F(peer("driver", 3), abort(K + n)));
    }
    assert_eq!(
        r.hub.refused(),
        [("ahead_of_window".to_owned(), 20_000)].into()
    );
    assert_eq!(
        (r.lease.table.open_steps(), r.log.0.lock().unwrap().len()),
        (0, 0)
    );
}
