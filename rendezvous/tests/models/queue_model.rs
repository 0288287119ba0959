//! The queue of a link to another process: threads push, the lane's writer takes, the link ends.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

use convoke_common::ids::{LeaseId, StepKey};
use convoke_graph::Tensor;
use loom::thread;

use crate::link::Outgoing;
use crate::model_of_locks;
use crate::primitives::block_on;
use crate::queue::{Queue, QueueItem};

/// Pushes a tensor whose `sent` is counted, as a link does.
fn push_tensor(queue: &Arc<Queue>, sent: &Arc<AtomicUsize>) {
    let tensor = Tensor::scalar(1f32);
    let count = sent.clone();
    let sent = Box::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let held = queue.hold(tensor.byte_len(), sent);
    let lease = LeaseId(1);
    queue.push(QueueItem::Tensor(Outgoing {
        key: StepKey { lease, n: 0 },
        slot: 0,
        tensor,
        priority: 0,
        cancel: Default::default(),
        sent: Box::new(move || drop(held)),
    }));
}

#[test]
fn the_writer_takes_everything_in_order() {
    model_of_locks(3, || {
        let (queue, sent) = (Arc::<Queue>::default(), Arc::<AtomicUsize>::default());
        let frames = {
            let queue = queue.clone();
            thread::spawn(move || (1..=2).for_each(|n| queue.push(QueueItem::Frame(vec![n]))))
        };
        let tensor = {
            let (queue, sent) = (queue.clone(), sent.clone());
            thread::spawn(move || push_tensor(&queue, &sent))
        };
        let (mut batch, mut taken, mut tensors) = (VecDeque::new(), vec![], 0);
        while taken.len() + tensors < 3 {
            block_on(queue.take(&mut batch));
            for item in batch.drain(..) {
                match item {
                    QueueItem::Frame(bytes) => taken.extend(bytes),
                    QueueItem::Tensor(out) => {
                        tensors += 1;
                        out.let_go();
                    }
                    QueueItem::Batches(_) | QueueItem::End => panic!("nobody pushed that"),
                }
            }
        }
        frames.join().unwrap();
        tensor.join().unwrap();
        assert_eq!((taken, tensors), (vec![1, 2], 1));
        assert_eq!(sent.load(Ordering::Relaxed), 1);
        assert_eq!(queue.tensors.load(Ordering::Relaxed), 0, "bytes are left");
    });
}

#[test]
fn a_tensor_that_races_the_end_of_its_link_is_let_go_once() {
    model_of_locks(3, || {
        let (queue, sent) = (Arc::<Queue>::default(), Arc::<AtomicUsize>::default());
        let pusher = {
            let (queue, sent) = (queue.clone(), sent.clone());
            thread::spawn(move || (0..2).for_each(|_| push_tensor(&queue, &sent)))
        };
        let writer = {
            let queue = queue.clone();
            thread::spawn(move || {
                // The writer stops with the link, whatever it has taken.
                let mut batch = VecDeque::new();
                let mut context = Context::from_waker(Waker::noop());
                let _ = pin!(queue.take(&mut batch)).poll(&mut context);
                batch.into_iter().for_each(drop);
            })
        };
        queue.end().let_go();
        assert!(queue.is_ended());
        pusher.join().unwrap();
        writer.join().unwrap();
        assert_eq!(sent.load(Ordering::Relaxed), 2);
        assert_eq!(queue.tensors.load(Ordering::Relaxed), 0, "bytes are left");
    });
}
