//! Failure detection: whether the peer of a connection still lives.
//!
//! ```text
//! QUIC datagrams   {kind, own counter, last seen}  every 500 ms, both ways     -> stopped, cut off, half-open: 3 s
//! TCP tripwire     held open in silence; its end is a hint                     -> killed process: 0.3 s
//!                  -> three QUIC probes in 150 ms, none answered               -> lost
//! ```
//!
//! For each of its connections to members, a process runs a monitor of its [`Detector`]: a [core](Core) that decides,
//! and one task that owns the core, the connection's datagrams and the tripwire. Newcomers are not monitored.
//!
//! The tripwire is a TCP connection to the port number at which the connection was dialled. The dialler of the
//! connection announces a nonce on a [`Tripwire`](crate::rpc::StreamKind::Tripwire) stream, dials TCP and sends the
//! nonce there; the acceptor matches the nonce to the connection and confirms it on the stream:
//!
//! ```text
//! dialler: kind | 16 bytes nonce                    TCP: 16 bytes nonce, once
//! acceptor:        1 expected (0 refused)                                      2 armed
//! either, later:                                    TCP: 1 byte, before a process that lives ends its tripwire
//! ```
//!
//! That last byte only chooses the words of a loss: where packets are dropped and TCP is not, the end that gives up first
//! is not taken for a process that ended.
//!
//! Invariants
//! 1. A lost connection has its [`Verdict`] set before it is closed: whoever sees it end can say why.
//! 2. An end judges for itself only. The coordinator alone decides who is a member.
//! 3. Nothing on TCP can end a connection: no forged reset, no stolen nonce and no flood. Where TCP does not reach the
//!    peer, detection is slower, and `status` says so.
//! 4. The [`bounds`] limit what a peer, or a stranger on the TCP port, can make a process keep.

pub mod bounds;
mod core;
pub(crate) mod datagram;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod listener;
mod monitor;
pub mod timer;
mod tripwire;
mod watched;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use quinn::{Connection, RecvStream, SendStream};

use crate::admission::chain;
use crate::counters::Counters;
use crate::identity::TlsConfigs;
use crate::world::{BoxFuture, Endpoint, EndpointOptions, NetError, World};

pub use self::core::{Command, Core, Event};
pub use datagram::{Datagram, Kind};
pub use watched::{CLOSE_LOST, Verdict, WatchedConnection};

use tripwire::ExpectedNonces;

/// The failure detection of one process, which its monitored connections share; clones are handles.
#[derive(Clone)]
pub struct Detector(Arc<DetectorState>);

struct DetectorState {
    world: World,
    /// The nonces that diallers announced; absent if this process has no TCP port.
    expected: Option<ExpectedNonces>,
    refused: Counters,
}

/// The reason for counting a datagram of an unknown kind or length, an echo of what was never sent, or a probe too
/// many.
const BAD_DATAGRAM: &str = "datagram_unknown";

/// The reason for counting a TCP connection that showed no expected nonce.
const BAD_TRIPWIRE: &str = "tripwire_unknown";

impl Detector {
    /// The detector of a process that only dials.
    pub fn dialling(world: World) -> Detector {
        Detector::new(world, None)
    }

    /// The detector of a process that listens, with its endpoint at `bind`, and the endless task that accepts TCP
    /// connections at the same port number. Without TCP a killed process is noticed more slowly, which is no reason not
    /// to start.
    pub async fn listening(
        world: &World,
        bind: SocketAddr,
        tls: &TlsConfigs,
        options: &EndpointOptions,
    ) -> Result<(Endpoint, Detector, BoxFuture<'static, ()>), NetError> {
        let net = &world.net;
        // If any port will do, one that is free for TCP is chosen: few UDP ports are in use anywhere.
        let mut acceptor = match bind.port() {
            0 => net.tcp_listen(bind).await.ok(),
            _ => None,
        };
        let at = acceptor.as_ref().map_or(bind, |a| a.local_addr());
        let endpoint = match net.endpoint(at, tls, options).await {
            Err(NetError::PortTaken { .. }) if at != bind => {
                acceptor = None;
                net.endpoint(bind, tls, options).await?
            }
            endpoint => endpoint?,
        };
        if acceptor.is_none() {
            acceptor = match net.tcp_listen(endpoint.local_addr()).await {
                Ok(acceptor) => Some(acceptor),
                Err(error) => {
                    tracing::warn!(
                        "peers will notice the end of this process within {:?} instead of {:?}: {}",
                        bounds::LOST,
                        bounds::PROCESS_KILLED,
                        chain(&error)
                    );
                    None
                }
            };
        }
        let expected = acceptor.is_some().then(ExpectedNonces::default);
        let detector = Detector::new(world.clone(), expected);
        let shared = detector.0.clone();
        let listen = async move {
            match acceptor {
                Some(acceptor) => listener::run(&shared, acceptor).await,
                None => std::future::pending().await,
            }
        };
        Ok((endpoint, detector, Box::pin(listen)))
    }

    fn new(world: World, expected: Option<ExpectedNonces>) -> Detector {
        Detector(Arc::new(DetectorState {
            world,
            expected,
            refused: Counters::default(),
        }))
    }

    /// Starts monitoring a connection: returns its handle, and the monitor's task, which ends with the connection.
    pub fn monitor(&self, connection: Connection) -> (WatchedConnection, BoxFuture<'static, ()>) {
        let (watched, armed) = WatchedConnection::new(connection);
        let run = monitor::run(self.0.clone(), watched.clone(), armed);
        (watched, Box::pin(run))
    }

    /// Like [`Detector::monitor`], but also spawns the monitor's task.
    pub fn watch(&self, connection: Connection) -> WatchedConnection {
        let (watched, monitor) = self.monitor(connection);
        self.0.world.spawn(monitor);
        watched
    }

    /// Answers a stream on which the peer of a monitored connection announces its tripwire; `recv` starts after the
    /// kind.
    pub async fn expect_tripwire(
        &self,
        watched: &WatchedConnection,
        send: SendStream,
        recv: RecvStream,
    ) {
        tripwire::expect(self.0.expected.as_ref(), watched, send, recv).await;
    }

    /// How often something was refused, by reason.
    pub fn refused(&self) -> BTreeMap<String, u64> {
        self.0.refused.counted()
    }
}
