//! Fetching artifact chunks from a client over a link's connection.
//!
//! ```text
//! request  = artifact id 32 bytes | first chunk u64 | count u32
//! reply    = per chunk: length u32 (0: not available) | bytes
//! ```
//! The worker that asks verifies every chunk against the hash that it already has; no reply is trusted. It may have
//! many requests under way; they share the connection in the order in which they were made, behind the tensors of
//! steps.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use convoke_common::error::{Code, Error, Result};
use convoke_common::rpc::StreamKind;
use convoke_common::world::World;
use convoke_graph::artifact::{ArtifactId, ArtifactMeta, CHUNK};
use quinn::{Connection, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncReadExt};

/// The most chunks in one request: 64 MiB.
pub const MAX_COUNT: u32 = 64;
/// The length of a request, in bytes.
pub(crate) const REQUEST: usize = 44;

/// A source of the chunks of the artifacts that a client serves.
pub trait ArtifactSource: Send + Sync {
    /// Returns the bytes of chunk `index`. It may block: it is called off the network thread.
    fn chunk(&self, id: ArtifactId, index: u64) -> Result<Bytes>;
}

/// Answers one request for chunks.
pub async fn serve(
    world: World,
    source: Arc<dyn ArtifactSource>,
    mut send: SendStream,
    mut recv: RecvStream,
) {
    let mut request = [0; REQUEST];
    if recv.read_exact(&mut request).await.is_err() {
        return;
    }
    let Some((id, chunks)) = parse(&request) else {
        return;
    };
    // Chunks that were requested first are needed first. Setting the priority fails only on a closed stream, as the
    // writes will.
    let _ = send.set_priority(priority(send.id().index()));
    for index in chunks {
        let source = source.clone();
        let (done, read) = tokio::sync::oneshot::channel();
        world.store.run_blocking(Box::new(move || {
            let _ = done.send(source.chunk(id, index));
        }));
        let Ok(read) = read.await else { return };
        let chunk = match read {
            Ok(c) => c,
            Err(e) => {
                let what = format!("cannot serve chunk {index} of artifact {id}: {e}");
                match e.code {
                    // The load that needed it has ended, and the worker has not been told yet.
                    Code::NotFound => tracing::debug!("{what}"),
                    _ => tracing::warn!("{what}"),
                }
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

/// The artifact and the chunks that a request asks for; `None` if they are more than [`MAX_COUNT`].
pub(crate) fn parse(request: &[u8; REQUEST]) -> Option<(ArtifactId, Range<u64>)> {
    let (id, rest) = request.split_first_chunk()?;
    let (first, count) = rest.split_first_chunk()?;
    let first = u64::from_le_bytes(*first);
    let count = u32::from_le_bytes(count.try_into().ok()?).min(MAX_COUNT);
    let end = first.saturating_add(u64::from(count));
    Some((ArtifactId(*id), first..end))
}

/// The priority of a stream: streams of one connection are numbered as they are opened, and earlier ones go first.
fn priority(stream: u64) -> i32 {
    -i32::try_from(stream).unwrap_or(i32::MAX)
}

/// The replies to a request: chunks on their way from a client.
pub struct Replies<R = RecvStream> {
    recv: R,
    id: ArtifactId,
    next: u64,
}

/// Asks for chunks, at most [`MAX_COUNT`]; [`Replies::next`] reads them in order. The caller decides how long to wait:
/// a client serves requests one after the other, in the order in which they were made.
pub async fn request(
    connection: &Connection,
    meta: &ArtifactMeta,
    chunks: Range<u64>,
) -> Result<Replies> {
    let (mut send, recv) = connection.open_bi().await.map_err(lost)?;
    let count = chunks.end.saturating_sub(chunks.start);
    let mut request = vec![StreamKind::Artifact as u8];
    request.extend(meta.id.0);
    request.extend(chunks.start.to_le_bytes());
    request.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
    send.write_all(&request).await.map_err(lost)?;
    // This fails only on a stream that was finished before.
    let _ = send.finish();
    Ok(Replies::new(recv, meta.id, chunks.start))
}

impl<R: AsyncRead + Unpin> Replies<R> {
    /// The replies to a request for chunks from `next` on.
    pub(crate) fn new(recv: R, id: ArtifactId, next: u64) -> Replies<R> {
        Replies { recv, id, next }
    }

    /// Reads the next chunk into `buffer`, which must have room for [`CHUNK`] bytes, and returns its length. The chunk
    /// is not verified.
    pub async fn next(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let mut head = [0; 4];
        self.recv.read_exact(&mut head).await.map_err(lost)?;
        let len = u32::from_le_bytes(head) as usize;
        if len == 0 {
            let msg = format!(
                "the client cannot read chunk {} of artifact {}",
                self.next, self.id
            );
            return Err(Error::new(Code::Io, msg)
                .advise("check that the model's files are still there and unchanged"));
        }
        let Some(bytes) = buffer.get_mut(..len).filter(|_| len as u64 <= CHUNK) else {
            let msg = "a chunk is longer than 1 MiB";
            return Err(Error::new(Code::ProtocolViolation, msg));
        };
        self.recv.read_exact(bytes).await.map_err(lost)?;
        self.next += 1;
        Ok(len)
    }
}

fn lost(e: impl std::fmt::Display) -> Error {
    let msg = format!("fetching weights from the client failed: {e}");
    Error::new(Code::PeerLost, msg)
}
