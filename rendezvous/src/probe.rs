//! Measuring a link: a few echoes, then a bulk transfer.
//!
//! ```text
//! asker: u32 length n | n bytes    (n = 0: ends)        answerer: n bytes back
//! ```

use std::time::Duration;

use convoke_common::error::{Error, Result};
use convoke_common::rpc::{StreamKind, open_stream};
use quinn::{Connection, RecvStream, SendStream};
use tokio::time::Instant;

/// The number of echoes; the shortest counts.
const ECHOES: usize = 5;
/// Bytes of the bulk transfer, enough to leave slow start on a local network.
const BULK: usize = 2 << 20;
/// The longest time that a probe may take.
const BOUND: Duration = Duration::from_secs(3);

/// Answers a prober until it ends the stream, or has taken longer than a probe may.
pub async fn serve(send: SendStream, recv: RecvStream) {
    // When the time is over the stream ends, which tells the prober enough.
    let _ = tokio::time::timeout(BOUND, echo(send, recv)).await;
}

async fn echo(mut send: SendStream, mut recv: RecvStream) {
    let mut buffer = Vec::new();
    loop {
        let mut head = [0; 4];
        if recv.read_exact(&mut head).await.is_err() {
            return;
        }
        let Some(len) = echoed(head) else { return };
        buffer.resize(len, 0);
        if recv.read_exact(&mut buffer).await.is_err() || send.write_all(&buffer).await.is_err() {
            return;
        }
    }
}

/// How many bytes to echo; `None` if the prober ends, or asks for more than may be echoed.
pub(crate) fn echoed(head: [u8; 4]) -> Option<usize> {
    let len = u32::from_le_bytes(head) as usize;
    (1..=BULK).contains(&len).then_some(len)
}

/// Measures the round trip time, and the bytes per second in one direction, taken as half of there and back.
pub async fn probe(connection: &Connection) -> Result<(Duration, f64)> {
    let measure = async {
        let (mut send, mut recv) = open_stream(connection, StreamKind::Probe).await?;
        let lost = |e: String| Error::unreachable(None, format!("probe failed: {e}"));
        let mut round_trip = Duration::MAX;
        for len in [8; ECHOES].into_iter().chain([BULK]) {
            let mut out = (len as u32).to_le_bytes().to_vec();
            out.resize(4 + len, 0);
            let start = Instant::now();
            let (sent, received) = tokio::join!(send.write_all(&out), async {
                recv.read_exact(&mut vec![0; len]).await
            });
            sent.map_err(|e| lost(e.to_string()))?;
            received.map_err(|e| lost(e.to_string()))?;
            let took = start.elapsed();
            if len == BULK {
                let seconds = took.saturating_sub(round_trip).as_secs_f64().max(1e-6);
                return Ok((round_trip, 2.0 * BULK as f64 / seconds));
            }
            round_trip = round_trip.min(took);
        }
        Err(Error::internal("the probe ended early"))
    };
    match tokio::time::timeout(BOUND, measure).await {
        Ok(r) => r,
        Err(_) => {
            let msg = "the peer did not answer a probe in time";
            Err(Error::unreachable(None, msg))
        }
    }
}
