//! The TCP port for tripwires: accepts connections, reads a nonce from each, and hands on those whose nonce is
//! expected.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::io::AsyncReadExt;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::bounds::{ACCEPT_PAUSE, FIRST_BYTES, UNNAMED};
use super::tripwire::{ExpectedNonces, NONCE};
use super::{BAD_TRIPWIRE, DetectorState};
use crate::world::{TcpAcceptor, TcpConnection};

/// Accepts connections for ever. Dropping the future closes all connections that have not shown their nonce.
pub(super) async fn run(shared: &Arc<DetectorState>, acceptor: Box<dyn TcpAcceptor>) {
    let mut unnamed = FuturesUnordered::new();
    // The keys count up, so that the oldest connection is the first.
    let mut evict: BTreeMap<u64, CancellationToken> = BTreeMap::new();
    let mut last = 0u64;
    loop {
        let accepted = tokio::select! {
            biased;
            Some(number) = unnamed.next() => {
                evict.remove(&number);
                continue;
            }
            accepted = acceptor.accept() => accepted,
        };
        let tcp = match accepted {
            Ok((tcp, _)) => tcp,
            Err(error) => {
                tracing::debug!(%error, "no TCP connection could be taken");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if evict.len() >= UNNAMED
            && let Some((_, oldest)) = evict.pop_first()
        {
            oldest.cancel();
        }
        last += 1;
        let (number, evicted) = (last, CancellationToken::new());
        evict.insert(number, evicted.clone());
        let shared = shared.clone();
        unnamed.push(async move {
            let expected = evicted
                .run_until_cancelled(name(shared.expected.as_ref(), tcp))
                .await;
            if expected != Some(true) {
                shared.refused.count(BAD_TRIPWIRE);
            }
            number
        });
    }
}

/// Reads a connection's nonce and hands the connection on; returns whether an expected nonce came in time.
pub(super) async fn name(table: Option<&ExpectedNonces>, mut tcp: Box<dyn TcpConnection>) -> bool {
    let mut nonce = [0; NONCE];
    let read = timeout(FIRST_BYTES, tcp.read_exact(&mut nonce)).await;
    matches!(read, Ok(Ok(_))) && table.is_some_and(|t| t.show(&nonce, tcp))
}
