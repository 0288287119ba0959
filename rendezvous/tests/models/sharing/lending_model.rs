//! Tensors are lent while the peer takes a segment, parts, returns a loan, or is lost.

use std::sync::Arc;

use convoke_graph::block::Block;
use convoke_graph::segment::Segment;
use convoke_graph::{DType, Tensor};
use loom::thread;
use tokio::sync::mpsc;

use super::SentTensor;
use super::lending::{Lending, Reach, SegmentUpdate};
use crate::frame::{Frame, SharingFrame};
use crate::link::{CarryResult, Outgoing};
use crate::model_of_locks;
use crate::primitives::block_on;

/// An end of a link whose peer reads its segments, and a tensor in a segment.
struct Lender {
    lending: Arc<Lending>,
    news: mpsc::UnboundedReceiver<SegmentUpdate>,
    tensor: Tensor,
}

impl Lender {
    fn new() -> Lender {
        let (changes, news) = mpsc::unbounded_channel();
        let lending = Arc::new(Lending::new(changes));
        lending.reach.send_replace(Reach::Together);
        let tensor = Tensor::from_block(DType::U8, &[64], Block::shared(64).unwrap());
        Lender {
            lending,
            news,
            tensor,
        }
    }

    /// An end whose peer has the segment.
    fn given() -> Lender {
        let lender = Lender::new();
        assert!(lender.lending.given(lender.segment().number()).is_empty());
        lender
    }

    fn segment(&self) -> Arc<Segment> {
        self.tensor.segment().unwrap().0.clone()
    }

    /// Lends the tensor, in `slot`, on another thread.
    fn lend(&self, slot: u32) -> (SentTensor, thread::JoinHandle<Option<CarryResult>>) {
        let (sent, out) = SentTensor::new(slot, self.tensor.clone());
        let (lending, segment) = (self.lending.clone(), self.segment());
        let lend = move || lending.lend(segment, 0, out);
        (sent, thread::spawn(lend))
    }
}

/// Takes the news that the segment is to be given.
async fn told_of_segment(news: &mut mpsc::UnboundedReceiver<SegmentUpdate>) -> Arc<Segment> {
    match news.recv().await {
        Some(SegmentUpdate::Give(segment)) => segment,
        _ => panic!("a segment is given first"),
    }
}

/// The number of the loan of a tensor that was lent.
fn loan(carried: CarryResult) -> u64 {
    match carried {
        Ok(Frame::Sharing(SharingFrame::Lent { loan, .. })) => loan,
        _ => panic!("it was not lent"),
    }
}

fn on_the_wire(carried: CarryResult) -> Outgoing {
    match carried {
        Ok(_) => panic!("it was lent"),
        Err(out) => out,
    }
}

#[test]
fn tensors_that_wait_for_their_segment_are_lent_once_and_returned_once() {
    model_of_locks(3, || {
        let mut lender = Lender::new();
        let [(first, one), (second, other)] = [0, 1].map(|slot| lender.lend(slot));
        let segment = block_on(told_of_segment(&mut lender.news));
        let mut carried = lender.lending.given(segment.number());
        carried.extend(one.join().unwrap());
        carried.extend(other.join().unwrap());
        let loans: Vec<u64> = carried.into_iter().map(loan).collect();
        assert!(loans.len() == 2 && loans[0] != loans[1], "{loans:?}");
        assert_eq!((first.times(), second.times()), (0, 0), "they are lent");
        // Two frames say that the same tensor is returned: the second one breaks the protocol.
        let returns = {
            let lending = lender.lending.clone();
            let twice = loans[0];
            thread::spawn(move || lending.returned(twice).is_ok())
        };
        let mine = lender.lending.returned(loans[0]).is_ok();
        assert!(mine != returns.join().unwrap(), "a loan is returned once");
        assert!(lender.lending.returned(loans[1]).is_ok());
        assert_eq!((first.times(), second.times()), (1, 1));
        assert!(lender.news.try_recv().is_err(), "a segment is given once");
    });
}

#[test]
fn no_tensor_waits_for_a_peer_that_takes_no_segments() {
    model_of_locks(3, || {
        let lender = Lender::new();
        let [(first, one), (second, other)] = [0, 1].map(|slot| lender.lend(slot));
        let mut wire = lender.lending.part();
        wire.extend(one.join().unwrap());
        wire.extend(other.join().unwrap());
        assert_eq!(wire.len(), 2, "a tensor waits for nobody");
        wire.into_iter().map(on_the_wire).for_each(Outgoing::let_go);
        lender.lending.end();
        assert_eq!((first.times(), second.times()), (1, 1));
    });
}

#[test]
fn the_end_of_a_link_ends_every_loan_once() {
    model_of_locks(3, || {
        let lender = Lender::given();
        let (lent, out) = SentTensor::new(0, lender.tensor.clone());
        let loan = loan(lender.lending.lend(lender.segment(), 0, out).unwrap());
        let (lending, late) = (lender.lending.clone(), lender.lend(1));
        let returns = thread::spawn(move || lending.returned(loan).is_ok());
        lender.lending.end();
        returns.join().unwrap();
        assert_eq!(lent.times(), 1, "returned, or ended with the link");
        let (sent, late) = late;
        // A tensor that comes after the end is refused, and nobody holds one that came before.
        if let Some(Err(out)) = late.join().unwrap() {
            assert_eq!(sent.times(), 0);
            out.let_go();
        }
        assert_eq!(sent.times(), 1);
    });
}

#[test]
fn a_segment_that_is_given_while_the_link_ends_holds_no_tensor() {
    model_of_locks(3, || {
        let lender = Lender::new();
        let (sent, lends) = lender.lend(0);
        let giver = {
            let (lending, segment) = (lender.lending.clone(), lender.segment());
            thread::spawn(move || lending.given(segment.number()))
        };
        lender.lending.end();
        let mut carried = giver.join().unwrap();
        carried.extend(lends.join().unwrap());
        carried
            .into_iter()
            .filter_map(Result::err)
            .for_each(Outgoing::let_go);
        // The peer may have had the segment before any tensor of it came: then that tensor was lent, and its loan ended.
        assert_eq!(sent.times(), 1);
    });
}
