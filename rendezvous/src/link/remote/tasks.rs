//! The tasks of a remote link, which begin and end together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use convoke_common::detection::WatchedConnection;
use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::Role;
use convoke_common::mutant;
use convoke_common::world::World;
use quinn::{RecvStream, SendStream};

use super::errors::{lane_error, refusal};
use super::lane::LANE_PRIORITY;
use super::link_end::Remote;
use super::reader::{LEFT, read_lane};
use super::streams::accept_streams;
use super::writer::write_lane;
use crate::hub::Hub;
use crate::lease::Peer;
use crate::link::Link;
use crate::sharing::LinkSharing;

/// Makes a link of a connection whose lane is greeted, adds it to the hub, and starts its tasks.
pub(super) fn run(
    world: &World,
    hub: &Arc<Hub>,
    watched: WatchedConnection,
    peer: Peer,
    send: SendStream,
    recv: RecvStream,
) -> Result<Arc<Link>> {
    // Frames about steps do not wait for the tensors of steps.
    send.set_priority(LANE_PRIORITY).map_err(lane_error)?;
    let (roles, received) = ([hub.me.role, peer.role], Arc::<AtomicU64>::default());
    let memory = world.shared.clone();
    let sharing = memory
        .and_then(|memory| LinkSharing::new(memory, roles, received.clone()))
        .map(Arc::new);
    let shared = sharing.as_ref().map(|sharing| sharing.sender().clone());
    let remote = Remote::new(peer, watched, received, shared);
    let link = Arc::new(Link::Remote(remote));
    if !hub.add_link(link.clone()) {
        let why = "somebody else is linked as this peer";
        link.close(why);
        return Err(Error::new(Code::Unauthorized, why));
    }
    let task = supervise(
        world.clone(),
        hub.clone(),
        link.clone(),
        sharing.clone(),
        send,
        recv,
    );
    world.spawn(task);
    if let Some(sharing) = sharing.filter(|_| hub.me.role == Role::Worker) {
        let (world, link) = (world.clone(), link.clone());
        world.clone().spawn(async move {
            if let Link::Remote(remote) = &*link {
                remote.until_ended(sharing.invite(&world, remote)).await;
            }
        });
    }
    Ok(link)
}

/// Owns the link's tasks: when one of them ends, all do.
async fn supervise(
    world: World,
    hub: Arc<Hub>,
    link: Arc<Link>,
    sharing: Option<Arc<LinkSharing>>,
    send: SendStream,
    recv: RecvStream,
) {
    let Link::Remote(remote) = &*link else { return };
    let why = tokio::select! {
        biased;
        e = read_lane(&world, &hub, &link, sharing.as_deref(), recv) => e,
        e = write_lane(&world, remote, send) => e,
        e = accept_streams(&world, &hub, &link, remote) => e,
        e = remote.connection().closed() => e.to_string(),
    };
    remote.left.store(why == LEFT, Ordering::Release);
    let unsent = remote.queue().end();
    // If the connection ended, its reason says more than the error of a task that noticed it.
    let why = remote.watched().ended().unwrap_or(why);
    // Closing the connection here replaces the peer's reason.
    if let Some(refused) = refusal(remote.watched(), &remote.peer().name) {
        let _ = remote.refused.set(Box::new(refused));
    }
    remote.close(&why);
    unsent.let_go();
    if let Some(sharing) = &sharing {
        sharing.end();
    }
    tracing::debug!(peer = remote.peer().name, why, "link ended");
    if !mutant!("lost-link-untold") {
        hub.link_lost(&link, &why);
    }
    remote.ended.cancel();
}
