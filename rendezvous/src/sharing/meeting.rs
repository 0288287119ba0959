//! How the two ends of a link meet, and how each then gives its segments to the other, which reads them.
//!
//! Invariants
//! 1. Each end gives segments over one socket and takes segments over one: a worker invites, and a client comes.
//! 2. If a socket breaks, the tensors that were to pass through it are sent over the wire.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use convoke_common::identity::Role;
use convoke_common::world::{Giver, Nonce, SegmentNotice, Taker, World};
use convoke_graph::segment::PeerSegment;

use super::lending::{Reach, SegmentUpdate};
use super::staging::{SLOT, SLOTS};
use super::{CarryResult, LinkSharing, locked};
use crate::frame::{Frame, SharingFrame};
use crate::lease::Peer;
use crate::link::Link;
use crate::remote::Remote;

/// The most segments of one peer that are mapped at once.
const MOST: usize = 4096;

impl LinkSharing {
    /// Invites the peer to take this end's segments, and, if it is a client, which has no socket, to bring its own.
    pub(crate) async fn invite(&self, world: &World, remote: &Remote) {
        let address = || self.memory.address().as_os_str().as_bytes().to_vec();
        let give = async {
            let nonce: Nonce = world.rng.bytes();
            let mut expected = self.memory.expect(nonce);
            let address = address();
            remote.send(&Frame::Sharing(SharingFrame::Meet { nonce, address }));
            let came = self.unless_apart(expected.came()).await;
            drop(expected);
            match came {
                Some(giver) => self.give(remote, giver).await,
                None => self.apart(),
            }
        };
        let take = async {
            if self.peer != Role::Client {
                return;
            }
            let nonce: Nonce = world.rng.bytes();
            let mut expected = self.memory.expect(nonce);
            let address = address();
            remote.send(&Frame::Sharing(SharingFrame::Bring { nonce, address }));
            let brought = self.unless_apart(expected.brought()).await;
            drop(expected);
            if let Some(taker) = brought {
                self.take(remote.peer(), taker).await;
            }
        };
        tokio::join!(give, take);
    }

    async fn unless_apart<T>(&self, met: impl Future<Output = Option<T>>) -> Option<T> {
        let mut reach = self.lending.reach.subscribe();
        tokio::select! {
            biased;
            met = met => met,
            _ = reach.wait_for(|r| *r == Reach::Apart) => None,
        }
    }

    /// Gives the peer this end's segments, for as long as the peer takes them.
    async fn give(&self, remote: &Remote, mut giver: Giver) {
        let Some(mut changes) = locked(&self.giving).take() else {
            return;
        };
        self.lending.reach.send_replace(Reach::Together);
        let tell = async {
            while let Some(change) = changes.recv().await {
                let carried = match self.tell(&mut giver, change).await {
                    Ok(carried) => carried,
                    Err(e) => {
                        tracing::warn!(peer = remote.peer().name, "it takes no shared memory: {e}");
                        changes.close();
                        self.lending.part()
                    }
                };
                carried.into_iter().for_each(|c| remote.carry(c));
            }
        };
        tokio::join!(tell, self.stage.run(&self.lending, remote));
    }

    async fn tell(
        &self,
        giver: &mut Giver,
        change: SegmentUpdate,
    ) -> std::io::Result<Vec<CarryResult>> {
        match change {
            SegmentUpdate::Give(segment) => {
                giver.give(&segment).await?;
                Ok(self.lending.given(segment.number()))
            }
            SegmentUpdate::Stage(segment, then) => {
                giver.give(&segment).await?;
                // The receiver is gone if the link has ended.
                let _ = then.send(());
                Ok(vec![])
            }
            SegmentUpdate::Forget(number) => {
                self.lending.forgotten(number);
                giver.forget(number).await?;
                Ok(vec![])
            }
        }
    }

    /// Keeps a segment that the peer gave; returns `false` if the peer gives too many, or too large ones.
    pub(super) fn keep(&self, number: u64, segment: PeerSegment) -> bool {
        let (most, longest) = match self.peer {
            Role::Client => (1, SLOTS * SLOT),
            _ => (MOST, usize::MAX),
        };
        let mut segments = locked(&self.segments);
        let room = segments.len() < most && segment.len() <= longest;
        if room {
            segments.insert(number, Arc::new(segment));
        }
        room
    }

    /// Takes the segments that the peer gives, until it gives no more.
    pub(super) async fn take(&self, peer: &Peer, mut taker: Taker) {
        loop {
            let told = match taker.next().await {
                Ok(told) => told,
                Err(e) => {
                    return tracing::debug!(peer = peer.name, "gives no more memory: {e}");
                }
            };
            match told {
                SegmentNotice::Given(number, segment) => {
                    if !self.keep(number, segment) || taker.has(number).await.is_err() {
                        return;
                    }
                }
                SegmentNotice::Forgotten(number) => {
                    locked(&self.segments).remove(&number);
                }
            }
        }
    }
}

/// Meets the peer, to take its segments.
pub(super) async fn meet(link: Arc<Link>, nonce: Nonce, address: Vec<u8>) {
    let Some(shared) = link.shared() else { return };
    let address = Path::new(OsStr::from_bytes(&address));
    match shared.memory.meet(address, &nonce).await {
        Ok(taker) => link.until_ended(shared.take(link.peer(), taker)).await,
        Err(e) => {
            tracing::debug!(peer = link.peer().name, "not on this host: {e}");
            link.send(Frame::Sharing(SharingFrame::Apart));
        }
    }
}

/// Meets the peer, to give it this end's segments.
pub(super) async fn bring(link: Arc<Link>, nonce: Nonce, address: Vec<u8>) {
    let Link::Remote(remote) = &*link else { return };
    let Some(shared) = remote.shared() else {
        return;
    };
    let address = Path::new(OsStr::from_bytes(&address));
    match shared.memory.bring(address, &nonce).await {
        Ok(giver) => link.until_ended(shared.give(remote, giver)).await,
        Err(_) => shared.apart(),
    }
}
