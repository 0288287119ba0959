//! Relays messages of 4 bytes over plain quinn, with the endpoints and certificates of the product.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use convoke_common::admission::chain;
use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::{
    ClusterCa, PeerName, RevocationList, Role, TlsConfigs, dial, greet,
};
use convoke_common::world::quic::{RecvStream, SendStream};
use convoke_common::world::{Endpoint, EndpointOptions, NoCompute, World};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::Ask;
use crate::text::failure::Failure;

/// How long to wait for another party.
const WAIT: Duration = Duration::from_secs(30);
/// The message that goes round the ring.
type Message = [u8; 4];

/// Makes a new certificate authority, and saves it in a folder for the parties.
pub fn make_keys(folder: &Path) -> Result<()> {
    let world = world();
    Ok(ClusterCa::create(&world)?.save(world.store.as_ref(), folder)?)
}

fn world() -> World {
    World::real(Arc::new(NoCompute))
}

fn broken(e: &dyn std::error::Error) -> Error {
    let msg = format!("the relay is broken: {}", chain(e));
    Error::unreachable(None, msg)
}

/// Waits for work that depends on another party, and fails after [`WAIT`].
async fn within<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(WAIT, work).await.unwrap_or_else(|_| {
        let msg = format!("a party of the relay is not there after {WAIT:?}");
        Err(Error::unreachable(None, msg))
    })
}

/// Makes an endpoint with a worker's certificate, signed by the authority in the folder `keys`.
pub async fn endpoint(keys: &Path, name: &str) -> Result<Endpoint> {
    let world = world();
    let bad = |_| Error::new(Code::InvalidArgument, format!("'{name}' is no name"));
    let peer: PeerName = name.parse().map_err(bad)?;
    let none = || Error::new(Code::NotFound, format!("no keys in {}", keys.display()));
    let ca = ClusterCa::load(world.store.as_ref(), keys)?.ok_or_else(none)?;
    let identity = ca.issue_own(&world, Role::Worker, peer)?;
    let revoked = Arc::new(RevocationList::default());
    let tls = TlsConfigs::cluster(&identity, revoked, world.wall.clone())?;
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let options = EndpointOptions::default();
    Ok(world.net.endpoint(any, &tls, &options).await?)
}

/// Opens a stream to a party, which receives the other end of it from [`incoming`].
pub async fn outgoing(endpoint: &Endpoint, to: SocketAddr) -> Result<SendStream> {
    within(async {
        let dialled = dial(endpoint, to, Role::Worker, WAIT).await?;
        let opened = dialled.connection.open_bi().await;
        let (mut send, _) = opened.map_err(|e| broken(&e))?;
        // A stream exists for the peer once something was written to it.
        let sent = send.write_all(&Message::default()).await;
        sent.map_err(|e| broken(&e))?;
        Ok(send)
    })
    .await
}

/// Accepts the stream that a party opens with [`outgoing`].
pub async fn incoming(endpoint: &Endpoint) -> Result<RecvStream> {
    within(async {
        let closed = || Error::internal("an endpoint closed by itself");
        let dialled = endpoint.accept().await.ok_or_else(closed)?;
        let greeted = greet(dialled, WAIT).await.map_err(|e| broken(&e))?;
        let accepted = greeted.connection.accept_bi().await;
        let (_, mut recv) = accepted.map_err(|e| broken(&e))?;
        receive(&mut recv).await?;
        Ok(recv)
    })
    .await
}

async fn receive(from: &mut RecvStream) -> Result<Message> {
    let mut message = Message::default();
    let read = from.read_exact(&mut message).await;
    read.map_err(|e| broken(&e))?;
    Ok(message)
}

/// Passes on messages until a stream fails, which is no error here: the driver reports it, or has ended. A connection
/// whose peer is silent ends by itself.
pub async fn pass_on(endpoint: &Endpoint, to: SocketAddr) -> Result<()> {
    let mut from = incoming(endpoint).await?;
    let mut send = outgoing(endpoint, to).await?;
    while let Ok(message) = receive(&mut from).await {
        if send.write_all(&message).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// The driver of the ring in this process: it has a network thread of its own, as a client does.
pub struct Driver {
    pub address: oneshot::Receiver<Result<SocketAddr>>,
    /// Sends the address of the first party to the thread.
    pub first: oneshot::Sender<SocketAddr>,
    /// Receives whether the ring could be closed.
    pub linked: oneshot::Receiver<Result<()>>,
}

/// The state of the driver's thread: the other ends of the channels of [`Driver`].
struct Thread {
    keys: PathBuf,
    address: oneshot::Sender<Result<SocketAddr>>,
    first: oneshot::Receiver<SocketAddr>,
    linked: oneshot::Sender<Result<()>>,
    asked: mpsc::UnboundedReceiver<Ask>,
}

impl Driver {
    /// Starts the thread, which ends when all senders of `asked` are dropped.
    pub fn start(keys: &Path, asked: mpsc::UnboundedReceiver<Ask>) -> Result<Driver, Failure> {
        let failed = |e: std::io::Error| Failure::io("cannot start a network thread", &e);
        let (tell_address, address) = oneshot::channel();
        let (first, to_first) = oneshot::channel();
        let (tell_linked, linked) = oneshot::channel();
        let thread = Thread {
            keys: keys.to_owned(),
            address: tell_address,
            first: to_first,
            linked: tell_linked,
            asked,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        #[allow(clippy::disallowed_methods, reason = "a binary provides threads")]
        let started = std::thread::Builder::new()
            .name("convoke-relay".into())
            .spawn(move || runtime.block_on(thread.run()));
        started.map_err(failed)?;
        Ok(Driver {
            address,
            first,
            linked,
        })
    }
}

/// Waits for a message of the driver's thread.
pub async fn told<T>(told: oneshot::Receiver<Result<T>>) -> Result<T> {
    let gone = |_| Error::unreachable(None, "the relay's driver ended");
    within(async { told.await.map_err(gone)? }).await
}

impl Thread {
    // A send fails only if its receiver is gone; then nobody needs the answer.
    async fn run(mut self) {
        let endpoint = match endpoint(&self.keys, "driver").await {
            Ok(endpoint) => endpoint,
            Err(e) => return drop(self.address.send(Err(e))),
        };
        drop(self.address.send(Ok(endpoint.local_addr())));
        let Ok(first) = self.first.await else { return };
        let linked = async {
            let send = outgoing(&endpoint, first).await?;
            Ok((send, incoming(&endpoint).await?))
        };
        let (mut send, mut recv) = match linked.await {
            Ok(streams) => streams,
            Err(e) => return drop(self.linked.send(Err(e))),
        };
        drop(self.linked.send(Ok(())));
        while let Some(answer) = self.asked.recv().await {
            let round = async {
                let sent = send.write_all(&[7; 4]).await;
                sent.map_err(|e| broken(&e))?;
                receive(&mut recv).await?;
                Ok(())
            };
            drop(answer.send(round.await));
        }
    }
}
