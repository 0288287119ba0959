//! An entry of [`crate::fuzzing`] that needs what is private here: a worker and its peer on the same host, who gives it
//! files and then says of them, and of what it was lent itself, what it likes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use convoke_common::block::Block;
use convoke_common::fuzzing::{Scripted, taker};
use convoke_common::ids::StepKey;
use convoke_common::world::{NoCompute, World};
use convoke_common::{DType, Tensor};
use tokio_util::sync::CancellationToken;

use super::staging::SLOTS;
use super::{Reach, Shared};
use crate::frame::Sharing;
use crate::fuzzing::{LEASE, frames, hub, peer};
use crate::hub::{Hub, Refused};
use crate::link::{Link, Outgoing};
use crate::slot::Registered;

/// Tensors that the worker has lent.
const LENT: usize = 2;

/// A link's end that has lent, and how many of the tensors it has let go of.
struct Lender {
    shared: Shared,
    sent: Arc<AtomicUsize>,
}

fn lender() -> Option<Lender> {
    let roles = [0, 1].map(|ix| peer(ix).role);
    let shared = Shared::new(Arc::default(), roles, Arc::default())?;
    shared.reach.send_replace(Reach::Together);
    let sent = Arc::<AtomicUsize>::default();
    let tensor = Tensor::from_block(DType::U8, &[64], Block::shared(64)?);
    for slot in 0..LENT as u32 {
        let sent = sent.clone();
        // It waits until the peer has the segment.
        let waits = shared.lend(Outgoing {
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
    let given = shared.given(tensor.segment()?.0.number());
    (given.len() == LENT).then_some(Lender { shared, sent })
}

/// Reads what the peer has lent to the first steps.
fn read(hub: &Hub) {
    let Some(lease) = hub.lease(LEASE) else {
        return;
    };
    for n in 0..lease.table.in_flight() {
        if let Ok(slot) = lease.table.slot(n, 0)
            && let Registered::Ready(Ok(tensor)) = slot.register(n)
        {
            std::hint::black_box(tensor.bytes().to_vec());
        }
    }
}

/// A script for the socket, then the lane. What was lent is let go of once, by either end.
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
    shared.take(link.peer(), taker).await;
    drop(socket);
    let (mut borrowed, mut staged) = (0, 0);
    let accepted = frames(&hub, link.peer(), lane, |told| {
        let lent = matches!(told, Sharing::Lent { .. } | Sharing::Part { .. });
        borrowed += u64::from(lent);
        staged += u64::from(matches!(told, Sharing::Staged { .. }));
        shared.frame(&world, &hub, &link, told).is_ok()
    });
    shared.end();
    // What copies, a part a turn, and whom it was told to meet.
    for _ in 0..2 * SLOTS {
        tokio::task::yield_now().await;
    }
    read(&hub);
    // With its lease go the tensors. A hub like the peer's refuses what it is told of them, as here no link reads that.
    drop(hub);
    let returned = other.refused();
    let returned = returned.get(Refused::WrongTensor.name()).copied();
    // Of each that passes through it may have been told as well that it is not wanted.
    let expected = borrowed..=borrowed + staged;
    assert!(
        expected.contains(&returned.unwrap_or(0)),
        "loans returned to the peer: {returned:?} of {borrowed}"
    );
    let sent = lender.sent.load(Ordering::Relaxed);
    assert_eq!(sent, LENT, "loans that came back or ended");
    accepted
}
