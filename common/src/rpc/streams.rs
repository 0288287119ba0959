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
