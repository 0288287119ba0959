//! Arming a tripwire, at both ends; the [module above](super) draws the exchange.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use quinn::{Connection, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::bounds::{ARMING, EXPECTED};
use super::watched::{TripwireConnection, Tripwires, WatchedConnection};
use crate::rpc::{StreamKind, open_stream};
use crate::world::{BoxFuture, NetError, TcpConnection, World};

/// Bytes of a nonce, so many that nobody guesses one while it is expected.
pub(super) const NONCE: usize = 16;

/// The name of one tripwire, used once.
pub(super) type Nonce = [u8; NONCE];

const REFUSED: u8 = 0;
const EXPECTING: u8 = 1;
const ARMED: u8 = 2;

/// The nonces that this process expects on its TCP port.
#[derive(Default)]
pub(super) struct ExpectedNonces(Mutex<BTreeMap<Nonce, oneshot::Sender<TripwireConnection>>>);

/// An announced nonce; dropping it, as the stream's task ends, takes the nonce back.
pub(super) struct NonceGuard<'a> {
    table: &'a ExpectedNonces,
    nonce: Nonce,
}

impl Drop for NonceGuard<'_> {
    fn drop(&mut self) {
        self.table.entries().remove(&self.nonce);
    }
}

impl ExpectedNonces {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<Nonce, oneshot::Sender<TripwireConnection>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn announce(
        &self,
        nonce: Nonce,
    ) -> Option<(NonceGuard<'_>, oneshot::Receiver<TripwireConnection>)> {
        let mut entries = self.entries();
        if entries.len() >= EXPECTED || entries.contains_key(&nonce) {
            return None;
        }
        let (matched, arrival) = oneshot::channel();
        entries.insert(nonce, matched);
        Some((NonceGuard { table: self, nonce }, arrival))
    }

    /// Hands over a TCP connection that showed a nonce; returns whether the nonce was expected. A nonce counts once.
    pub(super) fn show(&self, nonce: &Nonce, tcp: Box<dyn TcpConnection>) -> bool {
        let announced = self.entries().remove(nonce);
        announced.is_some_and(|arrival| arrival.send(TripwireConnection(tcp)).is_ok())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries().len()
    }
}

/// The dialler's end: announces a nonce, dials TCP and shows it there. `None` if that failed, for whatever reason; the
/// core tries again later.
pub(super) async fn arm(world: World, connection: Connection) -> Option<Box<dyn TcpConnection>> {
    let exchange = async {
        let opened = open_stream(&connection, StreamKind::Tripwire).await;
        let (send, recv) = opened.ok()?;
        let dial = world.net.tcp_connect(connection.remote_address());
        announce(&world.rng.bytes(), send, recv, dial).await
    };
    timeout(ARMING, exchange).await.ok().flatten()
}

/// Announces a nonce on a stream, and shows it on the connection of `dial` once the peer expects it.
pub(super) async fn announce(
    nonce: &Nonce,
    mut send: impl AsyncWrite + Unpin,
    mut recv: impl AsyncRead + Unpin,
    dial: BoxFuture<'_, Result<Box<dyn TcpConnection>, NetError>>,
) -> Option<Box<dyn TcpConnection>> {
    send.write_all(nonce).await.ok()?;
    let mut answer = [0];
    recv.read_exact(&mut answer).await.ok()?;
    if answer != [EXPECTING] {
        return None;
    }
    let mut tcp = dial.await.ok()?;
    tcp.write_all(nonce).await.ok()?;
    // Any program may answer at that port; only the peer's answer on the stream shows that it is the peer.
    recv.read_exact(&mut answer).await.ok()?;
    (answer == [ARMED]).then_some(tcp)
}

/// The acceptor's end: expects the nonce on the TCP port, and hands the connection that shows it to the monitor.
pub(super) async fn expect(
    table: Option<&ExpectedNonces>,
    watched: &WatchedConnection,
    send: SendStream,
    recv: RecvStream,
) {
    let exchange = answer(table, watched.tripwires(), send, recv);
    // A dialler that does not complete the exchange arms nothing; dropping the stream tells it so. A closed connection
    // is no longer monitored.
    tokio::select! {
        biased;
        _ = watched.connection().closed() => {}
        _ = timeout(ARMING, exchange) => {}
    }
}

/// Answers what [`announce`] sends.
pub(super) async fn answer(
    table: Option<&ExpectedNonces>,
    tripwires: &Tripwires,
    mut send: impl AsyncWrite + Unpin,
    mut recv: impl AsyncRead + Unpin,
) -> Option<()> {
    let mut nonce = [0; NONCE];
    recv.read_exact(&mut nonce).await.ok()?;
    let one = tripwires.announcing().try_acquire();
    let announced = match (&one, table) {
        (Ok(_), Some(table)) => table.announce(nonce),
        _ => None,
    };
    let Some((_announced, arrival)) = announced else {
        return send.write_all(&[REFUSED]).await.ok();
    };
    send.write_all(&[EXPECTING]).await.ok()?;
    tripwires.matched(arrival.await.ok()?)?;
    send.write_all(&[ARMED]).await.ok()
}
