//! How the two ends of a link meet, and how each then gives its segments to the other, which reads them.
//!
//! Invariants
//! 1. Each end gives segments over one socket and takes segments over one: a worker invites, and a client comes.
//! 2. If a socket breaks, the tensors that were to pass through it are sent over the wire.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use convoke_common::world::{Nonce, SharedMemory, World};

use super::segments::PeerSegments;
use super::sender::SharingSender;
use crate::frame::{Frame, SharingFrame};
use crate::link::Link;
use crate::remote::Remote;

fn address(memory: &SharedMemory) -> Vec<u8> {
    memory.address().as_os_str().as_bytes().to_vec()
}

/// Invites the peer to take this end's segments.
pub(super) async fn invite_to_take(
    world: &World,
    memory: &Arc<SharedMemory>,
    sender: &SharingSender,
    remote: &Remote,
) {
    let nonce: Nonce = world.rng.bytes();
    let mut expected = memory.expect(nonce);
    let address = address(memory);
    let meet = SharingFrame::Meet { nonce, address };
    remote.lane().send(&Frame::Sharing(meet));
    let came = sender.unless_apart(expected.came()).await;
    drop(expected);
    match came {
        Some(giver) => sender.give(remote.peer(), remote.lane(), giver).await,
        None => sender.apart(),
    }
}

/// Invites a client, which has no socket, to bring its segments.
pub(super) async fn invite_to_bring(
    world: &World,
    memory: &Arc<SharedMemory>,
    sender: &SharingSender,
    segments: &PeerSegments,
    remote: &Remote,
) {
    let nonce: Nonce = world.rng.bytes();
    let mut expected = memory.expect(nonce);
    let address = address(memory);
    let bring = SharingFrame::Bring { nonce, address };
    remote.lane().send(&Frame::Sharing(bring));
    let brought = sender.unless_apart(expected.brought()).await;
    drop(expected);
    if let Some(taker) = brought {
        segments.take(remote.peer(), taker).await;
    }
}

/// Meets the peer, to take its segments.
pub(super) async fn meet(
    link: Arc<Link>,
    memory: Arc<SharedMemory>,
    segments: Arc<PeerSegments>,
    nonce: Nonce,
    address: Vec<u8>,
) {
    let Link::Remote(remote) = &*link else { return };
    let address = Path::new(OsStr::from_bytes(&address));
    match memory.meet(address, &nonce).await {
        Ok(taker) => {
            let take = segments.take(remote.peer(), taker);
            remote.until_ended(take).await;
        }
        Err(e) => {
            tracing::debug!(peer = remote.peer().name, "not on this host: {e}");
            remote.lane().send(&Frame::Sharing(SharingFrame::Apart));
        }
    }
}

/// Meets the peer, to give it this end's segments.
pub(super) async fn bring(
    link: Arc<Link>,
    memory: Arc<SharedMemory>,
    sender: Arc<SharingSender>,
    nonce: Nonce,
    address: Vec<u8>,
) {
    let Link::Remote(remote) = &*link else { return };
    let address = Path::new(OsStr::from_bytes(&address));
    match memory.bring(address, &nonce).await {
        Ok(giver) => {
            let give = sender.give(remote.peer(), remote.lane(), giver);
            remote.until_ended(give).await;
        }
        Err(_) => sender.apart(),
    }
}
