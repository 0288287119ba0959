//! Arming a tripwire, from both ends; see [the module above](super).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use quinn::{Connection, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::bounds::{ARMING, EXPECTED};
use super::watched::{Matched, Tripwires, Watched};
use crate::rpc::{StreamKind, open_stream};
use crate::world::{BoxFuture, NetError, TcpConnection, World};

/// Length of a nonce: nobody guesses one while it is expected.
pub(super) const NONCE: usize = 16;

/// Names one tripwire, once.
pub(super) type Nonce = [u8; NONCE];

const REFUSED: u8 = 0;
const EXPECTING: u8 = 1;
const ARMED: u8 = 2;

/// The nonces that this process expects on its TCP port.
#[derive(Default)]
pub(super) struct Expected(Mutex<BTreeMap<Nonce, oneshot::Sender<Matched>>>);

/// Takes a nonce back when its stream's task ends.
pub(super) struct Announced<'a> {
    table: &'a Expected,
    nonce: Nonce,
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.table.entries().remove(&self.nonce);
    }
}

impl Expected {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<Nonce, oneshot::Sender<Matched>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn announce(
        &self,
        nonce: Nonce,
    ) -> Option<(Announced<'_>, oneshot::Receiver<Matched>)> {
        let mut entries = self.entries();
        if entries.len() >= EXPECTED || entries.contains_key(&nonce) {
            return None;
        }
        let (matched, arrival) = oneshot::channel();
        entries.insert(nonce, matched);
        Some((Announced { table: self, nonce }, arrival))
    }

    /// Hands over a TCP connection that showed a nonce; whether it was expected. A nonce counts once.
    pub(super) fn show(&self, nonce: &Nonce, tcp: Box<dyn TcpConnection>) -> bool {
        let announced = self.entries().remove(nonce);
        announced.is_some_and(|arrival| arrival.send(Matched(tcp)).is_ok())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries().len()
    }
}

/// The dialler's end: announces a nonce, dials, shows it. `None` where that did not work, for whatever reason: it is
/// tried again.
pub(super) async fn arm(world: World, connection: Connection) -> Option<Box<dyn TcpConnection>> {
    let exchange = async {
        let opened = open_stream(&connection, StreamKind::Tripwire).await;
        let (send, recv) = opened.ok()?;
        let dial = world.net.tcp_connect(connection.remote_address());
        announce(&world.rng.bytes(), send, recv, dial).await
    };
    timeout(ARMING, exchange).await.ok().flatten()
}

/// Announces a nonce on a stream, and shows it on what `dial` connects to once the peer expects it.
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
    // Whatever answers at that port is not the peer before the peer says so itself.
    recv.read_exact(&mut answer).await.ok()?;
    (answer == [ARMED]).then_some(tcp)
}

/// The acceptor's end: expects the nonce on the TCP port, and hands what shows it to the monitor.
pub(super) async fn expect(
    table: Option<&Expected>,
    watched: &Watched,
    send: SendStream,
    recv: RecvStream,
) {
    let exchange = answer(table, watched.tripwires(), send, recv);
    // An end that does not go through with it arms nothing; dropping the stream tells it so. A connection that is closed
    // is watched no more.
    tokio::select! {
        biased;
        _ = watched.connection().closed() => {}
        _ = timeout(ARMING, exchange) => {}
    }
}

/// Answers what [`announce`] says.
pub(super) async fn answer(
    table: Option<&Expected>,
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
