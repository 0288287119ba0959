//! What a worker serves on a connection: by role of the peer, by the first byte of a stream.

use std::sync::Arc;
use std::time::Duration;

use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::{Role, TokenId, peer_identity};
use convoke_common::ids::{LeaseId, PlanId};
use convoke_common::program::{Grant, Participant};
use convoke_common::rpc::{LinkReport, Progress, StreamKind, Worker, WorkerStatus};
use convoke_common::rpc_transport::{MAX_FRAME, serve_stream};
use convoke_common::world::quic::{Connection, RecvStream, SendStream};
use convoke_rendezvous::{probe, remote};
use tarpc::context::Context;

use crate::node::Node;

/// How long a peer may take to say what a new stream is.
const FIRST_BYTE_BOUND: Duration = Duration::from_secs(5);

/// Serves the streams that a peer of this role and name opens, until the connection ends.
pub fn serve_connection(node: &Arc<Node>, connection: Connection, role: Role, name: String) {
    let world = node.world.clone();
    let node = node.clone();
    world.spawn(async move {
        while let Ok((send, recv)) = connection.accept_bi().await {
            let (node, connection, name) = (node.clone(), connection.clone(), name.clone());
            node.world.clone().spawn(async move {
                if let Err(e) = serve_one(node, connection, role, &name, send, recv).await {
                    tracing::warn!(peer = name, "stream refused: {e}");
                }
            });
        }
    });
}

async fn serve_one(
    node: Arc<Node>,
    connection: Connection,
    role: Role,
    name: &str,
    send: SendStream,
    mut recv: RecvStream,
) -> Result<()> {
    let mut kind = [0];
    let read = tokio::time::timeout(FIRST_BYTE_BOUND, recv.read_exact(&mut kind)).await;
    if !matches!(read, Ok(Ok(()))) {
        return Err(Error::new(
            Code::ProtocolViolation,
            "a stream was opened and not used",
        ));
    }
    match (StreamKind::from_byte(kind[0]), role) {
        (Some(StreamKind::Worker), Role::Coordinator) => {
            serve_stream(send, recv, Service { node }.serve(), MAX_FRAME).await;
            Ok(())
        }
        (Some(StreamKind::Lane), Role::Worker | Role::Client) => {
            let world = node.world.clone();
            remote::accept_lane(&world, &node.hub, connection, name, send, recv)
                .await
                .map(drop)
        }
        (Some(StreamKind::Probe), _) => {
            probe::serve(send, recv).await;
            Ok(())
        }
        _ => {
            let msg = format!("a {role} may not open a stream of kind {}", kind[0]);
            Err(Error::new(Code::ProtocolViolation, msg))
        }
    }
}

#[derive(Clone)]
struct Service {
    node: Arc<Node>,
}

impl Worker for Service {
    async fn install(self, _: Context, grant: Grant) -> Result<()> {
        self.node.install(grant).await
    }

    async fn progress(self, _: Context, plan: PlanId) -> Result<Progress> {
        Ok(self.node.progress(plan))
    }

    async fn release(self, _: Context, lease: LeaseId, lost: Option<String>) -> Result<()> {
        self.node.release(lease, lost.as_deref());
        Ok(())
    }

    async fn probe(self, _: Context, peers: Vec<Participant>) -> Result<Vec<LinkReport>> {
        Ok(self.node.probe(peers).await)
    }

    async fn revoke(self, _: Context, token_ids: Vec<TokenId>) -> Result<()> {
        self.node.revoked.extend(token_ids);
        // New handshakes check the list; connections that stand are ended here.
        for link in self.node.hub.links() {
            let identity = link.connection().and_then(peer_identity);
            if identity.is_some_and(|i| self.node.revoked.contains(&i.token_id)) {
                link.close("its token was revoked");
            }
        }
        Ok(())
    }

    async fn status(self, _: Context) -> Result<WorkerStatus> {
        Ok(self.node.status())
    }
}
