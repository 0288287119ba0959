//! The stream server: serves the streams that a peer opens on a connection.
//!
//! ```text
//! stream ── a place is free ── first byte in time ── the service admits its kind ──> served
//!                                       '-------------------'-- no: counted and reset
//! ```
//!
//! Invariants
//! 1. A bounded number of a peer's streams is served at once; further ones wait, unread.
//! 2. Each stream that is not served is counted by reason, and both of its directions are ended.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use quinn::{Connection, RecvStream, SendStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{StreamKind, close};
use crate::counters::Counters;

/// How long a peer may take to send the first byte of a new stream, which states its kind.
const FIRST_BYTE_BOUND: Duration = Duration::from_secs(5);

/// The name that a refusal is counted under where the peer may not open a stream of this kind.
pub const FORBIDDEN: &str = "stream_forbidden";

/// Serves the streams of one peer.
pub trait StreamService: Send + Sync + 'static {
    /// Decides whether the peer may open a stream of this kind now; else returns the name that the refusal is counted
    /// under.
    fn admit(&self, kind: StreamKind) -> Result<(), &'static str>;

    /// Serves an admitted stream to its end. The first byte has been read.
    fn serve(
        self: Arc<Self>,
        kind: StreamKind,
        send: SendStream,
        recv: RecvStream,
    ) -> impl Future<Output = ()> + Send;
}

/// Serves the streams that the peer opens until the connection ends, `most` at once. Each is served in a task that
/// `spawn` starts, and which ends with the stream, and so with the connection.
pub async fn serve_streams<S: StreamService>(
    connection: &Connection,
    most: usize,
    spawn: impl Fn(BoxFuture<'static, ()>),
    refused: &Arc<Counters>,
    service: Arc<S>,
) {
    let places = Arc::new(Semaphore::new(most));
    while let Ok(place) = places.clone().acquire_owned().await {
        let Ok((send, recv)) = connection.accept_bi().await else {
            return;
        };
        let (service, refused) = (service.clone(), refused.clone());
        spawn(Box::pin(async move {
            let _place = place;
            serve_stream_of(service, &refused, send, recv).await;
        }));
    }
}

/// Serves one stream that a peer opened, or refuses it.
pub async fn serve_stream_of<S: StreamService>(
    service: Arc<S>,
    refused: &Counters,
    mut send: SendStream,
    mut recv: RecvStream,
) {
    let kind = kind_of(&mut recv).await;
    let admitted = kind.and_then(|kind| service.admit(kind).map(|()| kind));
    match admitted {
        Ok(kind) => service.serve(kind, send, recv).await,
        Err(reason) => {
            tracing::debug!(reason, "a stream was refused");
            refused.count(reason);
            // Both calls fail only where the peer has ended the stream itself.
            let _ = send.reset(close::REFUSED.into());
            let _ = recv.stop(close::REFUSED.into());
        }
    }
}

/// Reads the kind of a new stream; else returns the name that the refusal is counted under.
async fn kind_of(recv: &mut RecvStream) -> Result<StreamKind, &'static str> {
    let mut first = [0];
    match timeout(FIRST_BYTE_BOUND, recv.read_exact(&mut first)).await {
        Ok(Ok(())) => StreamKind::from_byte(first[0]).ok_or("stream_unknown"),
        _ => Err("stream_silent"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::identity::testing::rig;
    use crate::identity::{Role, dial, greet};

    /// Echoes one byte after the first, on streams of one kind, and notes how many streams it serves at once.
    #[derive(Default)]
    struct Echo {
        now: AtomicUsize,
        most: AtomicUsize,
    }

    impl StreamService for Echo {
        fn admit(&self, kind: StreamKind) -> Result<(), &'static str> {
            match kind {
                StreamKind::Probe => Ok(()),
                _ => Err(FORBIDDEN),
            }
        }

        async fn serve(self: Arc<Self>, _: StreamKind, mut send: SendStream, mut recv: RecvStream) {
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            let mut byte = [0];
            if recv.read_exact(&mut byte).await.is_ok() {
                // The peer may be gone.
                let _ = send.write_all(&byte).await;
                let _ = send.finish();
            }
            self.now.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Opens a stream, and sends these bytes; the result is what comes back, or `None` where the stream is reset.
    async fn answer(connection: &Connection, bytes: &[u8]) -> Option<Vec<u8>> {
        let (mut send, mut recv) = connection.open_bi().await.expect("open");
        // A stream that is reset meanwhile takes no more.
        let _ = send.write_all(bytes).await;
        let _ = send.finish();
        let read = timeout(FIRST_BYTE_BOUND * 2, recv.read_to_end(8)).await;
        read.expect("an answer in time").ok()
    }

    #[tokio::test]
    async fn streams_are_served_a_few_at_once_and_others_are_counted() {
        let rig = rig();
        let server = rig.member(Role::Coordinator).await;
        let peer = rig.member(Role::Worker).await;
        let (echo, refused) = (Arc::<Echo>::default(), Arc::<Counters>::default());
        let (addr, served, counts) = (server.local_addr(), echo.clone(), refused.clone());
        tokio::spawn(async move {
            let incoming = server.accept().await.expect("open");
            let greeted = greet(incoming, FIRST_BYTE_BOUND).await.expect("in");
            let spawn = |stream| drop(tokio::spawn(stream));
            serve_streams(&greeted.connection, 2, spawn, &counts, served).await;
        });
        let dialled = dial(&peer, addr, Role::Coordinator, FIRST_BYTE_BOUND).await;
        let connection = dialled.expect("dialled").connection;
        let (probe, artifact) = (StreamKind::Probe as u8, StreamKind::Artifact as u8);
        // Nine at once, of which three may not be opened: they get no answer, and take no place for long.
        let said = [vec![], vec![0xee, 1], vec![artifact, 1]];
        let wrong = said.iter().map(|bytes| answer(&connection, bytes));
        let right = (0..6u8).map(|i| {
            let connection = connection.clone();
            async move { answer(&connection, &[probe, i]).await }
        });
        let (wrong, right) = tokio::join!(
            futures::future::join_all(wrong),
            futures::future::join_all(right)
        );
        assert_eq!(wrong, [None, None, None]);
        let expected: Vec<_> = (0..6u8).map(|i| Some(vec![i])).collect();
        assert_eq!(right, expected);
        assert!(echo.most.load(Ordering::SeqCst) <= 2);
        let counted: Vec<_> = refused.counted().into_iter().collect();
        let one = |name: &str| (name.to_owned(), 1);
        assert_eq!(
            counted,
            [FORBIDDEN, "stream_silent", "stream_unknown"].map(one)
        );
    }
}
