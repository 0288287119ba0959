//! Artifact chunks, asked of a client over a link's connection.
//!
//! ```text
//! request  = artifact id 32 bytes | first chunk u64 | count u32
//! reply    = per chunk: length u32 (0: not available) | bytes
//! ```
//! The asker verifies every chunk against the hash that it already has; nothing here is trusted.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use convoke_common::artifact::{ArtifactId, ArtifactMeta, CHUNK};
use convoke_common::error::{Code, Error, Result};
use convoke_common::rpc::StreamKind;
use convoke_common::world::World;
use quinn::{Connection, RecvStream, SendStream};

/// Most chunks in one request: 64 MiB.
pub const MAX_COUNT: u32 = 64;

/// Longest wait for one chunk of a client whose connection lives: its disk may be slow.
const CHUNK_BOUND: Duration = Duration::from_secs(60);

/// Reads chunks of the artifacts that a client serves.
pub trait ArtifactSource: Send + Sync {
    /// The bytes of chunk `index`. Blocking is fine: it is called off the network thread.
    fn chunk(&self, id: ArtifactId, index: u64) -> Result<Bytes>;
}

/// Answers one request.
pub async fn serve(
    world: World,
    source: Arc<dyn ArtifactSource>,
    mut send: SendStream,
    mut recv: RecvStream,
) {
    let mut request = [0; 44];
    if recv.read_exact(&mut request).await.is_err() {
        return;
    }
    let (Ok(id), Ok(first), Ok(count)) = (
        request[..32].try_into(),
        request[32..40].try_into(),
        request[40..].try_into(),
    ) else {
        return;
    };
    let (id, first) = (ArtifactId(id), u64::from_le_bytes(first));
    let count = u32::from_le_bytes(count).min(MAX_COUNT);
    for index in first..first.saturating_add(u64::from(count)) {
        let source = source.clone();
        let (done, read) = tokio::sync::oneshot::channel();
        world.store.run_blocking(Box::new(move || {
            let _ = done.send(source.chunk(id, index));
        }));
        let Ok(read) = read.await else { return };
        let chunk = match read {
            Ok(c) => c,
            Err(e) => {
                tracing::warn!("cannot serve chunk {index} of artifact {id}: {e}");
                Bytes::new()
            }
        };
        let head = (chunk.len() as u32).to_le_bytes();
        if send.write_all(&head).await.is_err() || send.write_chunk(chunk).await.is_err() {
            return;
        }
    }
    let _ = send.finish();
}

/// Fetches `count` chunks from `first` and hands each, verified, to `take`.
pub async fn fetch(
    connection: &Connection,
    meta: &ArtifactMeta,
    first: u64,
    count: u32,
    mut take: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let lost = |e: &dyn std::fmt::Display| {
        Error::new(
            Code::PeerLost,
            format!("fetching weights from the client failed: {e}"),
        )
    };
    let late = || lost(&format!("no answer within {CHUNK_BOUND:?}"));
    let opened = tokio::time::timeout(CHUNK_BOUND, connection.open_bi()).await;
    let (mut send, mut recv) = opened.map_err(|_| late())?.map_err(|e| lost(&e))?;
    let mut request = vec![StreamKind::Artifact as u8];
    request.extend(meta.id.0);
    request.extend(first.to_le_bytes());
    request.extend(count.min(MAX_COUNT).to_le_bytes());
    send.write_all(&request).await.map_err(|e| lost(&e))?;
    let _ = send.finish();
    let mut buffer = Vec::new();
    for index in first..first + u64::from(count.min(MAX_COUNT)) {
        let mut head = [0; 4];
        let read = tokio::time::timeout(CHUNK_BOUND, recv.read_exact(&mut head)).await;
        read.map_err(|_| late())?.map_err(|e| lost(&e))?;
        let len = u64::from(u32::from_le_bytes(head));
        if len == 0 {
            let msg = format!(
                "the client cannot read chunk {index} of artifact {}",
                meta.id
            );
            return Err(Error::new(Code::Io, msg)
                .advise("check that the model's files are still there and unchanged"));
        }
        if len > CHUNK {
            return Err(Error::new(
                Code::ProtocolViolation,
                "a chunk is longer than 1 MiB",
            ));
        }
        buffer.resize(len as usize, 0);
        let read = tokio::time::timeout(CHUNK_BOUND, recv.read_exact(&mut buffer)).await;
        read.map_err(|_| late())?.map_err(|e| lost(&e))?;
        meta.check_chunk(index, &buffer)
            .map_err(|e| Error::new(Code::CorruptArtifact, e.to_string()))?;
        take(index, &buffer)?;
    }
    Ok(())
}
