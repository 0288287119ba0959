//! A model checker runs every interleaving of threads that share a slot, a step table, the links of a hub, the queue of
//! a link, or the loans of shared memory. It compiles the files of `src` themselves over atomics, cells and locks of its
//! own, which stand under the names of `src/primitives.rs`.
//!
//! A model fails where a check of it does not hold in some interleaving, where two threads access a cell at once, and
//! where every thread that is left waits for another.

#![allow(clippy::unwrap_used)]

mod notify;
mod primitives;

// Only the table needs the largest step number.
#[allow(dead_code)]
#[path = "../../src/step/slot.rs"]
mod slot;

// Models need no status, and no counter of aborts.
#[allow(dead_code)]
#[path = "../../src/step/table.rs"]
mod table;

mod link;
mod remote;

mod eager {
    pub(crate) use convoke_rendezvous::eager::Batches;
}
mod frame {
    pub(crate) use convoke_rendezvous::frame::{Frame, SharingFrame, TensorHeader};
}
mod lease {
    pub(crate) use convoke_rendezvous::Peer;
}

// A model takes no list of all links.
#[allow(dead_code)]
#[path = "../../src/hub/links.rs"]
mod links;

#[path = "../../src/link/batches.rs"]
mod batches;

// Models send neither batches nor the end of a lane.
#[allow(dead_code)]
#[path = "../../src/link/remote/queue.rs"]
mod queue;

mod sharing;

mod batches_model;
mod links_model;
mod queue_model;
mod slot_model;
mod table_model;

use std::sync::atomic::Ordering;

/// Runs `check` under every interleaving with at most three forced switches.
fn model(check: impl Fn() + Sync + Send + 'static) {
    let check = std::sync::Arc::new(check);
    for every_order in [true, false] {
        let check = check.clone();
        explore(3, every_order, move || check());
    }
}

/// The same for threads that meet in locks, with at most `switches` forced switches.
fn model_of_locks(switches: usize, check: impl Fn() + Sync + Send + 'static) {
    explore(switches, false, check);
}

fn explore(switches: usize, every_order: bool, check: impl Fn() + Sync + Send + 'static) {
    // One model runs at a time, since the kind of loads is a setting of all threads.
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    primitives::EVERY_ORDER.store(every_order, Ordering::SeqCst);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(check);
}
