//! Transfers from peers: announced before, while and after they come, and some that are never announced.

use convoke_common::ids::{LeaseId, StepKey};
use convoke_graph::Shape;
use convoke_rendezvous::FrameRefusal;
use convoke_rendezvous::frame::TensorHeader;

use super::*;
use crate::eager::core::MOST_EARLY;

fn header(n: u64, value: &Tensor) -> TensorHeader {
    let lease = LeaseId::of_session(Incarnation(7));
    TensorHeader::of(StepKey { lease, n }, 0, value)
}

/// An event of transfer 5, which carries the f32[] 2 from `w1`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Event {
    Take,
    /// The transfer is announced as f32[3].
    TakeOther,
    Claim,
    Arrive,
    Break,
    /// The link to `w1` ends.
    Lose,
    /// The client says that the transfer does not come.
    Fail,
    Free,
}
use Event::*;

impl Bench {
    fn event(&mut self, event: Event) -> Result<(), FrameRefusal> {
        let (from, value) = (peer("w1"), tensor(2.));
        match event {
            Take => self.core.take(from, 5, DType::F32, Some(Shape::new()), 1),
            TakeOther => {
                let shape = Shape::from_slice(&[3]);
                self.core.take(from, 5, DType::F32, Some(shape), 1);
            }
            Claim => return self.core.claim(&from, &header(5, &value)),
            Arrive => self.core.end(&from, 5, Ok(value)),
            Break => self.core.end(&from, 5, Err(boom())),
            Lose => self.core.lost(&from, &Error::lost("w1", "gone")),
            Fail => self.core.fail(5, boom()),
            Free => self.core.free(0),
        }
        Ok(())
    }
}

/// Checks that in any order of events the handle resolves to `want`, and the client is told once that the transfer
/// ended.
#[track_caller]
fn check(events: &[Event], want: Result<f32, Code>) {
    let mut b = Bench::new();
    for event in events {
        assert_eq!(b.event(*event), Ok(()), "{event:?} of {events:?}");
    }
    match want {
        Ok(value) => b.check_value(0, value),
        Err(code) => b.check_code(0, code),
    }
    let reports = b.core.reports();
    let ended = |r: &&Report| matches!(r, Report::Took { transfer: 5 } | Report::Resolved(1));
    assert_eq!(reports.iter().filter(ended).count(), 2, "{reports:?}");
    let shapes = reports.iter().filter(|r| matches!(r, Report::Shape { .. }));
    assert_eq!(shapes.count(), usize::from(want.is_ok()));
    // Events that come later belong to no known transfer.
    assert_eq!(b.event(Claim), Err(FrameRefusal::StaleStep));
    for event in [Arrive, Break, Lose, Fail] {
        b.event(event).unwrap();
    }
    assert!(!b.core.has_reports(), "{events:?}");
    b.core.free(0);
    assert_eq!(b.core.handles(), 0);
}

#[test]
fn a_transfer_may_come_before_it_is_announced() {
    check(&[Take, Claim, Arrive], Ok(2.));
    check(&[Claim, Take, Arrive], Ok(2.));
    check(&[Claim, Arrive, Take], Ok(2.));
    check(&[Take, Fail], Err(Code::KernelFailed));
    check(&[Take, Claim, Fail], Err(Code::KernelFailed));
    check(&[Take, Claim, Break], Err(Code::KernelFailed));
    check(&[Claim, Take, Break], Err(Code::KernelFailed));
    check(&[Claim, Break, Take], Err(Code::KernelFailed));
    check(&[Break, Take], Err(Code::KernelFailed));
    check(&[Take, Break], Err(Code::KernelFailed));
    check(&[Take, Lose], Err(Code::PeerLost));
    check(&[Take, Claim, Lose], Err(Code::PeerLost));
    check(&[Claim, Take, Lose], Err(Code::PeerLost));
    check(&[Claim, Lose, Take], Err(Code::PeerLost));
    // The tensor has arrived before the link ends.
    check(&[Claim, Arrive, Lose, Take], Ok(2.));
    // The tensor is not the one that was announced.
    check(&[Claim, TakeOther], Err(Code::ProtocolViolation));
    check(&[Claim, Arrive, TakeOther], Err(Code::ProtocolViolation));
}

#[test]
fn a_handle_that_is_dropped_still_takes_its_tensor() {
    let mut b = Bench::new();
    for event in [Take, Free, Claim, Arrive] {
        b.event(event).unwrap();
    }
    assert_eq!(b.core.handles(), 0);
    let reports = b.core.reports();
    assert!(reports.contains(&Report::Took { transfer: 5 }));
    assert_eq!(reports.last(), Some(&Report::Resolved(1)));
}

#[test]
fn a_tensor_of_another_kind_fails_its_handle() {
    let mut b = Bench::new();
    b.event(TakeOther).unwrap();
    assert_eq!(b.event(Claim), Err(FrameRefusal::WrongTensor));
    b.check_code(0, Code::ProtocolViolation);
    assert_eq!(b.event(Claim), Err(FrameRefusal::StaleStep));
    // A transfer may be announced with any shape, but with one dtype.
    b.core.take(peer("w1"), 6, DType::F32, None, 1);
    let ints = Tensor::scalar(1i64);
    let claimed = b.core.claim(&peer("w1"), &header(6, &ints));
    assert_eq!(claimed, Err(FrameRefusal::WrongTensor));
}

#[test]
fn a_transfer_is_of_one_source_and_comes_once() {
    let (w1, other) = (peer("w1"), peer("w2"));
    let mut reborn = w1.clone();
    reborn.incarnation = Incarnation(2);
    let h = header(5, &tensor(2.));
    for announced_first in [true, false] {
        let mut b = Bench::new();
        if announced_first {
            b.event(Take).unwrap();
            for stranger in [&other, &reborn] {
                assert_eq!(b.core.claim(stranger, &h), Err(FrameRefusal::WrongSource));
                b.core.end(stranger, 5, Ok(tensor(9.)));
                b.core.lost(stranger, &boom());
            }
            b.event(Claim).unwrap();
        } else {
            // Two peers may number a transfer 5: the announcement says whose is meant.
            b.core.claim(&other, &h).unwrap();
            b.core.end(&other, 5, Ok(tensor(9.)));
            b.event(Claim).unwrap();
            assert_eq!(b.event(Claim), Err(FrameRefusal::Duplicate));
            b.event(Take).unwrap();
        }
        assert_eq!(
            b.event(Claim),
            Err(FrameRefusal::Duplicate),
            "{announced_first}"
        );
        assert!(b.asked(0).is_none());
        b.event(Arrive).unwrap();
        b.check_value(0, 2.);
    }
    // A tensor from a former incarnation of a peer is not taken for that of the new one.
    let mut b = Bench::new();
    b.core.claim(&reborn, &h).unwrap();
    b.core.end(&reborn, 5, Ok(tensor(9.)));
    b.event(Take).unwrap();
    assert!(b.asked(0).is_none());
    b.event(Claim).unwrap();
    b.event(Arrive).unwrap();
    b.check_value(0, 2.);
}

#[test]
fn a_stream_is_held_until_its_transfer_is_announced() {
    let w1 = peer("w1");
    let mut b = Bench::new();
    let mut held = b.core.foreseen(&w1, 5).unwrap();
    assert!(held.try_recv().is_err());
    b.event(Take).unwrap();
    assert_eq!(held.try_recv(), Ok(()));
    b.event(Claim).unwrap();
    b.event(Arrive).unwrap();
    b.check_value(0, 2.);
    // A link is not held up where the transfer is announced, or over.
    b.core.take(w1.clone(), 7, DType::F32, None, 1);
    for transfer in [7, 5, 6] {
        assert!(b.core.foreseen(&w1, transfer).is_none(), "{transfer}");
    }
    // A link that is held up goes on where the link or the session ends.
    let mut lost = b.core.foreseen(&w1, 8).unwrap();
    let mut ended = b.core.foreseen(&peer("w2"), 8).unwrap();
    b.core.lost(&w1, &Error::lost("w1", "gone"));
    assert!(lost.try_recv().is_err() && lost.is_terminated());
    assert!(!ended.is_terminated());
    drop(b);
    assert!(ended.try_recv().is_err() && ended.is_terminated());
}

#[test]
fn what_is_not_announced_is_bounded() {
    let w1 = peer("w1");
    let mut b = Bench::new();
    let most = MOST_EARLY as u64;
    for n in 0..most {
        match n % 3 {
            0 => drop(b.core.foreseen(&w1, n).unwrap()),
            1 => b.core.claim(&w1, &header(n, &tensor(n as f32))).unwrap(),
            _ => b.core.end(&w1, n, Err(boom())),
        }
    }
    assert!(b.core.foreseen(&w1, most).is_none());
    let beyond = header(most, &tensor(0.));
    assert_eq!(b.core.claim(&w1, &beyond), Err(FrameRefusal::AheadOfWindow));
    b.core.end(&w1, most, Err(boom()));
    // Early transfers that have a place go on, and leave the place when they are announced.
    b.core.end(&w1, 1, Ok(tensor(1.)));
    for n in 0..3 {
        b.core.take(w1.clone(), n, DType::F32, None, 1);
    }
    b.check_value(1, 1.);
    b.check_code(2, Code::KernelFailed);
    assert!(b.asked(0).is_none());
    b.core.claim(&w1, &beyond).unwrap();
}

#[test]
fn what_nobody_announces_is_given_up_in_time() {
    let mut b = Bench::new();
    let from = peer("w1");
    let gone = Error::lost("w1", "not announced");
    b.event(Claim).unwrap();
    b.event(Arrive).unwrap();
    for _ in 0..3 {
        b.core.age(3, &gone);
        assert!(b.core.has_early());
    }
    // Another one that has come since waits as long.
    b.core.end(&from, 6, Ok(tensor(6.)));
    b.core.age(3, &gone);
    assert!(b.core.has_early());
    b.core.take(from.clone(), 5, DType::F32, None, 1);
    b.check_code(0, Code::PeerLost);
    b.core.take(from.clone(), 6, DType::F32, None, 1);
    b.check_value(1, 6.);
    assert!(!b.core.has_early());
    // The wait does not concern transfers that are announced and have not come.
    b.core.take(from.clone(), 7, DType::F32, None, 1);
    (0..9).for_each(|_| b.core.age(3, &gone));
    b.core.end(&from, 7, Ok(tensor(7.)));
    b.check_value(2, 7.);
}
