//! Batches of eager work that several threads announce on one local link.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use crate::batches::LocalBatches;
use crate::eager::Batches;
use crate::model_of_locks;
use crate::primitives::Mutex;

/// A source that is announced when it has something and was not announced since it was asked, as a session is.
#[derive(Default)]
struct Source(Mutex<Unsent>);

#[derive(Default)]
struct Unsent {
    bytes: Vec<u8>,
    announced: bool,
}

impl Batches for Source {
    fn take(&self, out: &mut Vec<u8>) {
        let mut unsent = self.0.lock().unwrap();
        unsent.announced = false;
        out.append(&mut unsent.bytes);
    }
}

/// The end to which batches are delivered. No lock guards it: the checker reports two deliveries at once.
struct Receiver {
    link: LocalBatches,
    delivered: UnsafeCell<Vec<u8>>,
    source: Arc<Source>,
}

// SAFETY: `delivered` is accessed by the one call that delivers, and after all threads have ended.
unsafe impl Sync for Receiver {}
// SAFETY: as above.
unsafe impl Send for Receiver {}

/// A byte whose delivery makes the receiving thread send another one.
const ASKS: u8 = 9;
const ANSWER: u8 = 10;

impl Receiver {
    fn new() -> Arc<Receiver> {
        Arc::new(Receiver {
            link: LocalBatches::default(),
            delivered: UnsafeCell::new(vec![]),
            source: Arc::default(),
        })
    }

    fn send(&self, byte: u8) {
        let announce = {
            let mut unsent = self.source.0.lock().unwrap();
            unsent.bytes.push(byte);
            !std::mem::replace(&mut unsent.announced, true)
        };
        if announce {
            let source: Arc<dyn Batches> = self.source.clone();
            self.link.announce(&source, |source| self.deliver(source));
        }
    }

    fn deliver(&self, source: &dyn Batches) {
        let mut batch = Vec::new();
        source.take(&mut batch);
        self.delivered.with_mut(|delivered| {
            // SAFETY: one call at a time delivers, which the checker verifies.
            let delivered = unsafe { &mut *delivered };
            delivered.extend(&batch);
        });
        if batch.contains(&ASKS) {
            self.send(ANSWER);
        }
    }

    fn delivered(&self) -> Vec<u8> {
        // SAFETY: all other threads have ended.
        self.delivered
            .with(|delivered| unsafe { (*delivered).clone() })
    }
}

#[test]
fn every_batch_is_delivered_in_order_by_one_thread_at_a_time() {
    model_of_locks(3, || {
        let receiver = Receiver::new();
        let threads: Vec<_> = [[1, 2], [3, 4]]
            .map(|sent| {
                let receiver = receiver.clone();
                thread::spawn(move || sent.into_iter().for_each(|byte| receiver.send(byte)))
            })
            .into();
        threads.into_iter().for_each(|t| t.join().unwrap());
        let delivered = receiver.delivered();
        for of in [1..=2, 3..=4] {
            let order: Vec<u8> = delivered
                .iter()
                .copied()
                .filter(|b| of.contains(b))
                .collect();
            assert!(order.iter().copied().eq(of), "{delivered:?}");
        }
    });
}

#[test]
fn a_batch_that_is_sent_during_a_delivery_is_delivered() {
    model_of_locks(3, || {
        let receiver = Receiver::new();
        let other = {
            let receiver = receiver.clone();
            thread::spawn(move || receiver.send(ASKS))
        };
        receiver.send(1);
        other.join().unwrap();
        let mut delivered = receiver.delivered();
        delivered.sort_unstable();
        assert_eq!(delivered, [1, ASKS, ANSWER]);
    });
}
