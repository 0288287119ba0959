//! The writer of a lane, and the tasks that write large tensors to streams of their own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use convoke_common::world::World;
use convoke_graph::Tensor;
use quinn::{Connection, SendStream, VarInt};
use tokio::sync::Semaphore;

use super::lane::LANE_PRIORITY;
use super::link_end::Remote;
use super::queue::QueueItem;
use crate::frame::{Frame, LANE_LIMIT, MAX_BODY, TensorHeader};
use crate::link::Outgoing;

/// How many tensor streams a link writes at once; more would only share the same bandwidth.
const STREAMS: usize = 16;

/// Sends what is queued, until the lane ends; returns why.
pub(super) async fn write_lane(world: &World, remote: &Remote, mut send: SendStream) -> String {
    let streams = Arc::new(Semaphore::new(STREAMS));
    let mut batch: VecDeque<QueueItem> = VecDeque::new();
    let mut bytes = Vec::new();
    loop {
        remote.queue().take(&mut batch).await;
        let mut written = Vec::new();
        let (mut frames, mut last) = (0, false);
        for out in batch.drain(..) {
            match out {
                QueueItem::End => last = true,
                QueueItem::Frame(f) => {
                    frames += f.len();
                    bytes.extend(f);
                }
                QueueItem::Batches(source) => source.take(&mut bytes),
                QueueItem::Tensor(t) if t.cancel.is_cancelled() => (t.sent)(),
                QueueItem::Tensor(t) if t.tensor.byte_len() <= LANE_LIMIT => {
                    Frame::Tensor(TensorHeader::of(t.key, t.slot, &t.tensor)).encode(&mut bytes);
                    bytes.extend_from_slice(t.tensor.bytes());
                    written.push(t.sent);
                }
                QueueItem::Tensor(t) => {
                    let sending = send_stream(remote.connection().clone(), streams.clone(), t);
                    world.spawn(remote.sending.track_future(sending));
                }
            }
            // Many small tensors must not pile up in the buffer unsent.
            if bytes.len() > MAX_BODY {
                if let Err(e) = send.write_all(&bytes).await {
                    return e.to_string();
                }
                bytes.clear();
            }
        }
        if let Err(e) = send.write_all(&bytes).await {
            return e.to_string();
        }
        bytes.clear();
        bytes.shrink_to(MAX_BODY);
        remote.queue().frames.fetch_sub(frames, Ordering::Relaxed);
        written.into_iter().for_each(|sent| sent());
        if last {
            return end_lane(remote, send).await;
        }
    }
}

/// Ends the lane after the peer has acknowledged everything that was sent.
async fn end_lane(remote: &Remote, mut send: SendStream) -> String {
    remote.sending.close();
    remote.sending.wait().await;
    if send.finish().is_ok() {
        // An error means that the connection has ended, which has the same effect.
        let _ = send.stopped().await;
    }
    "this end left".into()
}

/// A tensor whose buffer [`Bytes`] can own.
struct Payload(Tensor);
impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

async fn send_stream(connection: Connection, streams: Arc<Semaphore>, out: Outgoing) {
    let Outgoing {
        key,
        slot,
        tensor,
        priority,
        cancel,
        sent,
    } = out;
    let opened = async {
        let permit = streams.acquire().await.ok()?;
        Some((permit, connection.open_uni().await.ok()?))
    };
    let write = async {
        let (_permit, mut stream) = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            r = opened => r,
        }?;
        // Streams share the connection by priority: tensors of the critical path first.
        let _ = stream.set_priority(priority.min(LANE_PRIORITY as u64 - 1) as i32);
        let mut header = Vec::with_capacity(96);
        TensorHeader::of(key, slot, &tensor).encode(&mut header);
        let done = async {
            stream.write_all(&header).await.ok()?;
            stream
                .write_chunk(Bytes::from_owner(Payload(tensor)))
                .await
                .ok()?;
            Some(())
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => { let _ = stream.reset(VarInt::from_u32(1)); None }
            r = done => { r?; stream.finish().ok()?; Some(stream) }
        }
    };
    // A failed write means that the connection ends, which the supervisor reports.
    let written = write.await;
    sent();
    if let Some(stream) = written {
        // Ending a link in an orderly way waits until each stream was acknowledged or refused, or the connection ended.
        let _ = stream.stopped().await;
    }
}
