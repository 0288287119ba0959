//! Tensors are staged while the peer returns buffers, refuses a tensor, or is lost.

use std::cell::Cell;
use std::sync::Arc;

use convoke_graph::{DType, Tensor};
use loom::thread;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::SentTensor;
use super::buffers::{SLOT, SLOTS, STAGED};
use super::lending::{Lending, SegmentUpdate};
use super::staging::Stage;
use crate::frame::{Frame, SharingFrame};
use crate::link::Outgoing;
use crate::model_of_locks;
use crate::primitives::block_on;
use crate::remote::LaneSender;

/// The sending end of staging, and what its peer is told.
struct Sender {
    stage: Arc<Stage>,
    lending: Arc<Lending>,
    told: mpsc::UnboundedReceiver<Frame>,
    /// Cancelled when the link ends.
    ended: CancellationToken,
    /// The thread that stages.
    thread: thread::JoinHandle<()>,
}

impl Sender {
    /// Begins to stage; the peer takes every segment at once.
    fn new() -> Sender {
        let (changes, mut news) = mpsc::unbounded_channel();
        let (stage, lending) = (Arc::<Stage>::default(), Arc::new(Lending::new(changes)));
        let (ended, (lane, told)) = (CancellationToken::new(), LaneSender::new());
        let run = {
            let (stage, lending, ended) = (stage.clone(), lending.clone(), ended.clone());
            async move {
                let give = async {
                    while let Some(change) = news.recv().await {
                        if let SegmentUpdate::Stage(_, then) = change {
                            then.send(()).unwrap();
                        }
                    }
                };
                let both = async { tokio::join!(give, stage.run(&lending, &lane)) };
                ended.run_until_cancelled(both).await;
            }
        };
        Sender {
            stage,
            lending,
            told,
            ended,
            thread: thread::spawn(move || block_on(run)),
        }
    }

    /// Takes a buffer back, which is lent at most once at a time.
    fn returned(&self, loan: u64) {
        let slot = self.lending.returned(loan).unwrap();
        self.stage.free(slot.unwrap());
    }
}

/// A tensor of one piece.
fn piece(slot: u32) -> (SentTensor, Outgoing) {
    SentTensor::new(slot, Tensor::zeros(DType::U8, &[STAGED]).unwrap())
}

/// Returns each piece that is announced, until the last of `tensors` tensors is; returns the transfers announced.
fn read(sender: &mut Sender, tensors: usize) -> Vec<u64> {
    let mut transfers = vec![];
    while transfers.len() < tensors {
        match block_on(sender.told.recv()) {
            Some(Frame::Sharing(SharingFrame::Part { transfer, loan, .. })) => {
                transfers.push(transfer);
                sender.returned(loan);
            }
            Some(Frame::Sharing(SharingFrame::Staged { .. })) => {}
            other => panic!("{other:?}"),
        }
    }
    transfers
}

#[test]
fn tensors_that_are_added_at_any_time_cross_once() {
    model_of_locks(2, || {
        let mut sender = Sender::new();
        let [(first, one), (second, two)] = [0, 1].map(piece);
        assert!(sender.stage.add(one).is_none() && sender.stage.add(two).is_none());
        assert_eq!(read(&mut sender, 2), [0, 1]);
        block_on(sender.stage.crossed());
        assert_eq!((first.times(), second.times()), (1, 1));
        assert_eq!(sender.stage.state().free.len(), SLOTS, "a buffer is lost");
        sender.ended.cancel();
        sender.thread.join().unwrap();
        assert!(sender.stage.shut().is_empty());
    });
}

#[test]
fn whoever_waits_until_all_has_crossed_goes_on() {
    model_of_locks(2, || {
        let mut sender = Sender::new();
        let (sent, out) = piece(0);
        assert!(sender.stage.add(out).is_none());
        let waits = {
            let stage = sender.stage.clone();
            thread::spawn(move || block_on(stage.crossed()))
        };
        assert_eq!(read(&mut sender, 1), [0]);
        waits.join().unwrap();
        assert_eq!(sent.times(), 1);
        sender.ended.cancel();
        sender.thread.join().unwrap();
    });
}

#[test]
fn a_tensor_that_is_staged_while_its_link_ends_is_let_go_once() {
    model_of_locks(2, || {
        let mut sender = Sender::new();
        let (sent, out) = piece(0);
        assert!(sender.stage.add(out).is_none());
        let ender = {
            let (stage, lending) = (sender.stage.clone(), sender.lending.clone());
            let ended = sender.ended.clone();
            thread::spawn(move || {
                lending.end();
                stage.shut().into_iter().for_each(Outgoing::let_go);
                ended.cancel();
            })
        };
        // The peer may return a buffer of the lost link, of which nobody knows any more.
        while let Some(frame) = block_on(sender.told.recv()) {
            if let Frame::Sharing(SharingFrame::Part { loan, .. }) = frame
                && let Ok(Some(slot)) = sender.lending.returned(loan)
            {
                sender.stage.free(slot);
            }
        }
        ender.join().unwrap();
        sender.thread.join().unwrap();
        assert_eq!(sent.times(), 1);
    });
}

#[test]
fn a_tensor_that_is_added_while_its_link_ends_is_let_go_once() {
    model_of_locks(3, || {
        let stage = Arc::<Stage>::default();
        let [(first, one), (second, two)] = [0, 1].map(piece);
        let adders = [one, two].map(|out| {
            let stage = stage.clone();
            thread::spawn(move || stage.add(out).into_iter().for_each(Outgoing::let_go))
        });
        stage.shut().into_iter().for_each(Outgoing::let_go);
        adders.into_iter().for_each(|adder| adder.join().unwrap());
        assert_eq!((first.times(), second.times()), (1, 1));
    });
}

#[test]
fn the_buffers_of_a_tensor_that_the_peer_refuses_come_back() {
    model_of_locks(2, || {
        let mut sender = Sender::new();
        let two_pieces = Tensor::zeros(DType::U8, &[SLOT + 64]).unwrap();
        let (sent, out) = SentTensor::new(0, two_pieces);
        assert!(sender.stage.add(out).is_none());
        let Some(Frame::Sharing(SharingFrame::Staged { transfer, .. })) =
            block_on(sender.told.recv())
        else {
            panic!("a header comes first");
        };
        // The peer refuses the tensor, of which the second piece may not have been announced, but may be being copied.
        let cut = Cell::new(false);
        let stop = sender.stage.unwanted(transfer, |_| cut.set(true));
        assert!(stop.is_ok() && sent.times() == 1);
        for _ in 0..if cut.get() { 1 } else { 2 } {
            match block_on(sender.told.recv()) {
                Some(Frame::Sharing(SharingFrame::Part { loan, .. })) => sender.returned(loan),
                other => panic!("{other:?}"),
            }
        }
        block_on(sender.stage.crossed());
        assert_eq!(sender.stage.state().free.len(), SLOTS, "a buffer is lost");
        sender.ended.cancel();
        sender.thread.join().unwrap();
        assert!(sender.told.try_recv().is_err() && sent.times() == 1);
    });
}

#[test]
fn a_tensor_that_the_peer_does_not_expect_yet_crosses_when_it_asks_again() {
    model_of_locks(2, || {
        let mut sender = Sender::new();
        let (sent, out) = piece(0);
        assert!(sender.stage.add(out).is_none());
        let Some(Frame::Sharing(SharingFrame::Staged { transfer, .. })) =
            block_on(sender.told.recv())
        else {
            panic!("a header comes first");
        };
        // All of the tensor was announced, so nothing is cut; its piece comes back untaken.
        let held = sender.stage.hold(transfer, |_| panic!("it is cut"));
        assert!(held.is_ok());
        assert_eq!(read(&mut sender, 1), [transfer]);
        assert_eq!(sent.times(), 0, "it is held");
        let stage = sender.stage.clone();
        let asks = thread::spawn(move || stage.again(transfer).is_ok());
        assert_eq!(read(&mut sender, 1), [transfer + 1]);
        block_on(sender.stage.crossed());
        assert!(asks.join().unwrap() && sent.times() == 1);
        sender.ended.cancel();
        sender.thread.join().unwrap();
    });
}
