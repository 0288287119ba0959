//! An entry of [`crate::fuzzing`] that needs private items of this module: a worker, and a peer on the same host that
//! gives it files and then says anything about them and about the tensors that the worker lent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use convoke_common::fuzzing::{Scripted, taker};
use convoke_common::ids::StepKey;
use convoke_common::world::{NoCompute, World};
use convoke_graph::block::Block;
use convoke_graph::{DType, Tensor};
use tokio_util::sync::CancellationToken;

use super::LinkSharing;
use super::buffers::SLOTS;
use super::lending::Reach;
use crate::frame::SharingFrame;
use crate::fuzzing::{LEASE, frames, hub, peer};
use crate::hub::Hub;
use crate::link::{Link, Outgoing};
use crate::refusal::FrameRefusal;
use crate::step::slot::RegisterOutcome;

/// How many tensors the worker has lent.
const LENT: usize = 2;

/// The end of a link that has lent tensors, and how many of them it has released.
struct Lender {
    shared: LinkSharing,
    sent: Arc<AtomicUsize>,
}

fn lender() -> Option<Lender> {
    let roles = [0, 1].map(|ix| peer(ix).role);
    let shared = LinkSharing::new(Arc::default(), roles, Arc::default())?;
    shared.sender.lending.reach.send_replace(Reach::Together);
    let sent = Arc::<AtomicUsize>::default();
    let tensor = Tensor::from_block(DType::U8, &[64], Block::shared(64)?);
    for slot in 0..LENT as u32 {
        let sent = sent.clone();
        // The tensor waits until the peer has its segment.
        let waits = shared.sender.lend(Outgoing {
            key: StepKey { lease: LEASE, n: 0 },
            slot,
            tensor: tensor.clone(),
            priority: 0,
            cancel: CancellationToken::new(),
            sent: Box::new(move || {
                sent.fetch_add(1, Ordering::Relaxed);
            }),
        });
        assert!(waits.is_none(), "lent before it was given");
    }
    let given = shared.sender.lending.given(tensor.segment()?.0.number());
    (given.len() == LENT).then_some(Lender { shared, sent })
}

/// Reads the tensors that the peer has lent to the first steps.
fn read(hub: &Hub) {
    let Some(lease) = hub.lease(LEASE) else {
        return;
    };
    for n in 0..lease.table.in_flight() {
        if let Ok(slot) = lease.table.slot(n, 0)
            && let RegisterOutcome::Ready(Ok(tensor)) = slot.register(n)
        {
            std::hint::black_box(tensor.bytes().to_vec());
        }
    }
}

/// Runs a script for the socket, then a lane. Every tensor that was lent is released once, by either end.
pub(crate) async fn entry(input: &[u8]) -> bool {
    let (Some(hub), Some(lender)) = (hub(), lender()) else {
        return false;
    };
    let Some((
        Scripted {
            taker,
            peer: socket,
        },
        lane,
    )) = taker(input)
    else {
        return false;
    };
    let other = Hub::new(peer(1));
    Link::join_local(&hub, &other);
    let Some(link) = hub.link(&other.me) else {
        return false;
    };
    let (world, shared) = (World::real(Arc::new(NoCompute)), &lender.shared);
    shared.segments.take(link.peer(), taker).await;
    drop(socket);
    let (mut borrowed, mut staged) = (0, 0);
    let accepted = frames(&hub, link.peer(), lane, |told| {
        let lent = matches!(told, SharingFrame::Lent { .. } | SharingFrame::Part { .. });
        borrowed += u64::from(lent);
        staged += u64::from(matches!(told, SharingFrame::Staged { .. }));
        shared.frame(&world, &hub, &link, told).is_ok()
    });
    shared.end();
    // The tasks run now: those that copy, one piece a turn, and those that were told to meet a peer.
    for _ in 0..2 * SLOTS {
        tokio::task::yield_now().await;
    }
    read(&hub);
    // Dropping the hub drops the lease and its tensors, which returns their loans. Here no link reads these frames, so
    // the other hub counts them as refused.
    drop(hub);
    let returned = other.refused();
    let returned = returned.get(FrameRefusal::WrongTensor.name()).copied();
    // For each staged tensor the peer may also have been told that the tensor is unwanted.
    let expected = borrowed..=borrowed + staged;
    assert!(
        expected.contains(&returned.unwrap_or(0)),
        "loans returned to the peer: {returned:?} of {borrowed}"
    );
    let sent = lender.sent.load(Ordering::Relaxed);
    assert_eq!(sent, LENT, "loans that came back or ended");
    accepted
}
