//! How a link begins: both ends of its lane say hello, and a hello must agree with its sender's certificate.

use std::sync::Arc;
use std::time::Duration;

use convoke_common::detection::WatchedConnection;
use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::Role;
use convoke_common::ids::Incarnation;
use convoke_common::rpc::StreamKind;
use convoke_common::world::World;
use quinn::{RecvStream, SendStream, VarInt};

use super::errors::{lane_error, refusal};
use super::tasks::run;
use crate::hub::Hub;
use crate::lease::Peer;
use crate::link::Link;

/// How long a peer may take to say hello on a new lane.
const HELLO_BOUND: Duration = Duration::from_secs(5);
/// The length of a hello before the name, in bytes.
const HELLO_HEAD: usize = 10;
/// The longest peer name in a hello, in bytes.
const MAX_NAME: usize = 255;

/// Opens a lane on a connection that this process dialled, and adds the link to the hub. Only workers are dialled.
pub async fn dial_lane(
    world: &World,
    hub: &Arc<Hub>,
    watched: WatchedConnection,
    name: String,
) -> Result<Arc<Link>> {
    let hello = async {
        let (mut send, mut recv) = watched.connection().open_bi().await.map_err(lane_error)?;
        send.write_all(&[StreamKind::Lane as u8])
            .await
            .map_err(lane_error)?;
        write_hello(&mut send, &hub.me).await?;
        let peer = read_hello(&mut recv, Role::Worker).await?;
        Ok((send, recv, peer))
    };
    let linked = within(hello).await.and_then(|(send, recv, peer)| {
        check_name(&peer, &name)?;
        Ok((send, recv, peer))
    });
    match linked {
        Ok((send, recv, peer)) => run(world, hub, watched, peer, send, recv),
        Err(e) => {
            let refused = refusal(&watched, &name);
            // Its monitor would keep the connection up although nobody uses it.
            watched.connection().close(VarInt::from_u32(0), b"no lane");
            Err(match (refused, e.code) {
                (Some(refused), _) => refused,
                (None, Code::PeerLost) => Error::lost(name, e.message),
                (None, _) => e.about(&name),
            })
        }
    }
}

/// Answers a lane that the peer opened, and adds the link to the hub. `role` and `name` are those of the peer's
/// certificate.
pub async fn accept_lane(
    world: &World,
    hub: &Arc<Hub>,
    watched: WatchedConnection,
    role: Role,
    name: &str,
    mut send: SendStream,
    mut recv: RecvStream,
) -> Result<Arc<Link>> {
    let hello = async {
        let peer = read_hello(&mut recv, role).await?;
        check_name(&peer, name)?;
        write_hello(&mut send, &hub.me).await?;
        Ok(peer)
    };
    let peer = within(hello).await.map_err(|e| match role {
        Role::Worker => e.about(name),
        _ => e,
    })?;
    run(world, hub, watched, peer, send, recv)
}

async fn within<T>(f: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(HELLO_BOUND, f).await {
        Ok(r) => r,
        Err(_) => {
            let msg = "the peer did not answer on a new lane";
            Err(Error::unreachable(None, msg))
        }
    }
}

fn check_name(peer: &Peer, certified: &str) -> Result<()> {
    if peer.name == certified {
        return Ok(());
    }
    let msg = format!(
        "a peer certified as '{certified}' calls itself '{}'",
        peer.name
    );
    Err(Error::new(Code::Unauthorized, msg))
}

async fn write_hello(send: &mut SendStream, me: &Peer) -> Result<()> {
    let mut out = me.incarnation.0.to_le_bytes().to_vec();
    out.extend((me.name.len() as u16).to_le_bytes());
    out.extend(me.name.as_bytes());
    send.write_all(&out).await.map_err(lane_error)
}

async fn read_hello(recv: &mut RecvStream, role: Role) -> Result<Peer> {
    let mut head = [0; HELLO_HEAD];
    recv.read_exact(&mut head).await.map_err(lane_error)?;
    let (incarnation, len) = hello_head(head)?;
    let mut name = vec![0; len];
    recv.read_exact(&mut name).await.map_err(lane_error)?;
    hello_peer(role, incarnation, name)
}

/// Reads the incarnation and the length of the name from the first bytes of a hello.
pub(crate) fn hello_head(head: [u8; HELLO_HEAD]) -> Result<(Incarnation, usize)> {
    let [incarnation @ .., a, b] = head;
    let len = usize::from(u16::from_le_bytes([a, b]));
    if len > MAX_NAME {
        return Err(Error::new(
            Code::ProtocolViolation,
            "name in hello above the limit",
        ));
    }
    Ok((Incarnation(u64::from_le_bytes(incarnation)), len))
}

/// The peer that a hello names.
pub(crate) fn hello_peer(role: Role, incarnation: Incarnation, name: Vec<u8>) -> Result<Peer> {
    let name = String::from_utf8(name)
        .map_err(|_| Error::new(Code::ProtocolViolation, "name in hello is not UTF-8"))?;
    Ok(Peer {
        role,
        name,
        incarnation,
    })
}
