//! A remote link: one QUIC connection, an ordered lane on a bidirectional stream, and a unidirectional
//! stream per large tensor.
//!
//! ```text
//! send ──> queue ──> lane writer task ──> lane       (frames, tensors up to LANE_LIMIT)
//!                          └──> stream task ──> uni  (header, raw bytes)
//! lane reader task, stream acceptor task ──> hub
//! ```
//!
//! Invariants
//! 1. The queue holds what the steps in flight may send and no more: senders are bounded by their lease.
//! 2. Payloads are never copied on the way out, and are received straight into their tensor.
//! 3. When any task ends, the connection closes and the hub is told once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use convoke_common::Tensor;
use convoke_common::error::{Code, Error, Result};
use convoke_common::ids::Incarnation;
use convoke_common::rpc::StreamKind;
use convoke_common::world::World;
use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::sync::{Notify, Semaphore};

use crate::frame::{Frame, HEAD, LANE_LIMIT, MAX_BODY, TensorHeader};
use crate::hub::{Hub, Refused};
use crate::lease::Peer;
use crate::link::{Link, Outgoing, Sent};

/// How long a peer may take to say hello on a new lane.
const HELLO_BOUND: Duration = Duration::from_secs(5);
/// Tensor streams being written at once per link; more would only share the same bandwidth.
const STREAMS: usize = 16;
/// Longest peer name in a hello.
const MAX_NAME: usize = 255;

enum Out {
    Frame(Vec<u8>),
    Tensor(Outgoing),
}

struct Queue {
    items: Mutex<VecDeque<Out>>,
    filled: Notify,
}

/// See the module.
pub struct Remote {
    peer: Peer,
    connection: Connection,
    queue: Arc<Queue>,
    closed: Arc<AtomicBool>,
}

impl Remote {
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn close(&self, why: &str) {
        self.connection.close(VarInt::from_u32(0), why.as_bytes());
    }

    fn push(&self, out: Out) {
        let mut q = self
            .queue
            .items
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.is_closed() {
            drop(q);
            if let Out::Tensor(t) = out {
                (t.sent)();
            }
            return;
        }
        q.push_back(out);
        drop(q);
        self.queue.filled.notify_one();
    }

    pub(crate) fn send(&self, frame: &Frame) {
        let mut bytes = Vec::with_capacity(128);
        frame.encode(&mut bytes);
        self.push(Out::Frame(bytes));
    }

    pub(crate) fn send_tensor(&self, mut out: Outgoing) {
        // Whatever task holds the tensor when the link ends: dropping it tells as well.
        let told = OnDrop(Some(out.sent));
        out.sent = Box::new(move || drop(told));
        self.push(Out::Tensor(out));
    }
}

/// Tells, called or dropped, once.
struct OnDrop(Option<Sent>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(sent) = self.0.take() {
            sent();
        }
    }
}

/// Opens the lane on a connection that we dialled, and links.
pub async fn dial_lane(
    world: &World,
    hub: &Arc<Hub>,
    connection: Connection,
    name: String,
) -> Result<Arc<Link>> {
    let hello = async {
        let (mut send, mut recv) = connection.open_bi().await.map_err(lane_error)?;
        send.write_all(&[StreamKind::Lane as u8])
            .await
            .map_err(lane_error)?;
        write_hello(&mut send, &hub.me).await?;
        let peer = read_hello(&mut recv).await?;
        Ok((send, recv, peer))
    };
    let (send, recv, peer) = within(hello).await?;
    check_name(&peer, &name)?;
    Ok(run(world, hub, connection, peer, send, recv))
}

/// Answers a lane that the peer opened, and links. `name` is what its certificate says.
pub async fn accept_lane(
    world: &World,
    hub: &Arc<Hub>,
    connection: Connection,
    name: &str,
    mut send: SendStream,
    mut recv: RecvStream,
) -> Result<Arc<Link>> {
    let hello = async {
        let peer = read_hello(&mut recv).await?;
        check_name(&peer, name)?;
        write_hello(&mut send, &hub.me).await?;
        Ok(peer)
    };
    let peer = within(hello).await?;
    Ok(run(world, hub, connection, peer, send, recv))
}

async fn within<T>(f: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(HELLO_BOUND, f).await {
        Ok(r) => r,
        Err(_) => Err(Error::new(
            Code::Unreachable,
            "the peer did not answer on a new lane",
        )),
    }
}

fn lane_error(e: impl std::fmt::Display) -> Error {
    Error::new(Code::PeerLost, format!("lane: {e}"))
}

fn check_name(peer: &Peer, certified: &str) -> Result<()> {
    if peer.name == certified {
        return Ok(());
    }
    let msg = format!(
        "a peer certified as '{certified}' calls itself '{}'",
        peer.name
    );
    Err(Error::new(Code::Unauthorized, msg))
}

async fn write_hello(send: &mut SendStream, me: &Peer) -> Result<()> {
    let mut out = me.incarnation.0.to_le_bytes().to_vec();
    out.extend((me.name.len() as u16).to_le_bytes());
    out.extend(me.name.as_bytes());
    send.write_all(&out).await.map_err(lane_error)
}

async fn read_hello(recv: &mut RecvStream) -> Result<Peer> {
    let mut head = [0; 10];
    recv.read_exact(&mut head).await.map_err(lane_error)?;
    let [i @ .., a, b] = head;
    let len = usize::from(u16::from_le_bytes([a, b]));
    if len > MAX_NAME {
        return Err(Error::new(
            Code::ProtocolViolation,
            "name in hello above the limit",
        ));
    }
    let mut name = vec![0; len];
    recv.read_exact(&mut name).await.map_err(lane_error)?;
    let name = String::from_utf8(name)
        .map_err(|_| Error::new(Code::ProtocolViolation, "name in hello is not UTF-8"))?;
    Ok(Peer {
        name,
        incarnation: Incarnation(u64::from_le_bytes(i)),
    })
}

fn run(
    world: &World,
    hub: &Arc<Hub>,
    connection: Connection,
    peer: Peer,
    send: SendStream,
    recv: RecvStream,
) -> Arc<Link> {
    let queue = Arc::new(Queue {
        items: Mutex::default(),
        filled: Notify::new(),
    });
    let closed = Arc::new(AtomicBool::new(false));
    let remote = Remote {
        peer,
        connection,
        queue,
        closed,
    };
    let link = Arc::new(Link::Remote(remote));
    hub.add_link(link.clone());
    let task = supervise(world.clone(), hub.clone(), link.clone(), send, recv);
    world.spawn(task);
    link
}

/// Owns the link's tasks: when one ends, all do.
async fn supervise(
    world: World,
    hub: Arc<Hub>,
    link: Arc<Link>,
    send: SendStream,
    recv: RecvStream,
) {
    let Link::Remote(remote) = &*link else { return };
    let why = tokio::select! {
        biased;
        e = read_lane(&hub, &remote.peer, recv) => e,
        e = write_lane(&world, remote, send) => e,
        e = accept_streams(&world, &hub, remote) => e,
        e = remote.connection.closed() => e.to_string(),
    };
    let left: Vec<Out> = {
        let mut q = remote
            .queue
            .items
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        remote.closed.store(true, Ordering::Release);
        q.drain(..).collect()
    };
    remote.connection.close(VarInt::from_u32(0), b"link ended");
    for out in left {
        if let Out::Tensor(t) = out {
            (t.sent)();
        }
    }
    tracing::debug!(peer = remote.peer.name, why, "link ended");
    hub.link_lost(&link, &why);
}

async fn read_lane(hub: &Hub, from: &Peer, mut recv: RecvStream) -> String {
    let mut body = Vec::new();
    loop {
        let mut head = [0; HEAD];
        if let Err(e) = recv.read_exact(&mut head).await {
            return e.to_string();
        }
        let (kind, len) = match Frame::head(&head) {
            Ok(x) => x,
            Err(e) => return e.to_string(),
        };
        body.resize(len, 0);
        if let Err(e) = recv.read_exact(&mut body).await {
            return e.to_string();
        }
        match Frame::decode(kind, &body) {
            Ok((Frame::Tensor(h), payload)) => match hub.begin(from, &h) {
                Ok(mut incoming) => {
                    incoming.bytes_mut().copy_from_slice(payload);
                    finish(hub, incoming);
                }
                Err(why) => hub.count(why),
            },
            Ok((frame, _)) => hub.frame(from, frame),
            Err(e) => return e.to_string(),
        }
    }
}

fn finish(hub: &Hub, incoming: crate::hub::Incoming) {
    if let Err(why) = incoming.finish() {
        hub.count(why);
    }
}

async fn write_lane(world: &World, remote: &Remote, mut send: SendStream) -> String {
    let streams = Arc::new(Semaphore::new(STREAMS));
    let mut batch: VecDeque<Out> = VecDeque::new();
    let mut bytes = Vec::new();
    loop {
        {
            let mut q = remote
                .queue
                .items
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut *q, &mut batch);
        }
        if batch.is_empty() {
            remote.queue.filled.notified().await;
            continue;
        }
        let mut written = Vec::new();
        for out in batch.drain(..) {
            match out {
                Out::Frame(f) => bytes.extend(f),
                Out::Tensor(t) if t.cancel.is_cancelled() => (t.sent)(),
                Out::Tensor(t) if t.tensor.byte_len() <= LANE_LIMIT => {
                    Frame::Tensor(TensorHeader::of(t.key, t.slot, &t.tensor)).encode(&mut bytes);
                    bytes.extend_from_slice(t.tensor.bytes());
                    written.push(t.sent);
                }
                Out::Tensor(t) => {
                    world.spawn(send_stream(remote.connection.clone(), streams.clone(), t));
                }
            }
            // Many small tensors must not pile up unsent behind one another.
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
        written.into_iter().for_each(|sent| sent());
    }
}

/// Lets [`Bytes`] hold a tensor's buffer.
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
        // Streams share the connection by priority: the critical path first.
        let _ = stream.set_priority(priority.min(i32::MAX as u64) as i32);
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
            r = done => { r?; stream.finish().ok() }
        }
    };
    // A failed write means that the connection is ending, which the supervisor reports.
    let _ = write.await;
    sent();
}

async fn accept_streams(world: &World, hub: &Arc<Hub>, remote: &Remote) -> String {
    loop {
        match remote.connection.accept_uni().await {
            Ok(stream) => {
                world.spawn(receive_stream(hub.clone(), remote.peer.clone(), stream));
            }
            Err(e) => return e.to_string(),
        }
    }
}

async fn receive_stream(hub: Arc<Hub>, from: Peer, mut stream: RecvStream) {
    let header = async {
        let mut fixed = [0; TensorHeader::FIXED];
        stream.read_exact(&mut fixed).await.ok()?;
        let mut all = fixed.to_vec();
        all.resize(
            TensorHeader::FIXED + TensorHeader::rank(&fixed).ok()? * 8 + 8,
            0,
        );
        stream
            .read_exact(&mut all[TensorHeader::FIXED..])
            .await
            .ok()?;
        TensorHeader::decode_all(&all).ok()
    };
    let Some(h) = header.await else {
        return hub.count(Refused::WrongTensor);
    };
    match hub.begin(&from, &h) {
        Ok(mut incoming) => {
            // A reset or a lost connection gives the claim back; the abort that caused it comes by lane.
            if stream.read_exact(incoming.bytes_mut()).await.is_ok() {
                finish(&hub, incoming);
            }
        }
        Err(why) => {
            hub.count(why);
            let _ = stream.stop(VarInt::from_u32(1));
        }
    }
}
