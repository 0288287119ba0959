//! A remote link: one QUIC connection with an ordered lane on a bidirectional stream, and a unidirectional stream for
//! each large tensor.
//!
//! ```text
//! send ──> queue ──> lane writer task ──> lane       (frames, tensors up to LANE_LIMIT)
//!                          └──> stream task ──> uni  (header, raw bytes)
//!       └─> shared memory, on one host: frames say where the bytes lie
//! lane reader task, stream acceptor task ──> hub
//! ```
//!
//! Invariants
//! 1. The queue holds no more than the steps in flight may send: each sends an edge once, and does not retire before
//!    the link has released its tensor. The bytes of frames are bounded as well: a peer that does not read them loses
//!    the link.
//! 2. Payloads are not copied on their way to a stream, and are received straight into their tensor.
//! 3. When any task ends, the connection is closed and the hub is told once, with the reason; if the peer was lost, the
//!    reason is that of failure detection.
//! 4. A tensor whose sender stalls fails its step: nothing waits for ever for bytes that do not arrive.

mod dialler;
mod greeting;
mod queue;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use convoke_common::detection::WatchedConnection;
use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::{PeerIdentity, Role, peer_identity};
use convoke_common::mutant;
use convoke_common::rpc::close;
use convoke_common::world::World;
use convoke_graph::Tensor;
use quinn::{Connection, ConnectionError, ReadExactError, RecvStream, SendStream, VarInt};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::eager::Batches;
use crate::frame::{EAGER, Frame, HEAD, LANE_LIMIT, MAX_BODY, SharingFrame, TensorHeader};
use crate::hub::{FrameRefusal, Hub};
use crate::lease::Peer;
use crate::link::{Link, Outgoing};
use crate::sharing::{CarryResult, LinkSharing};

pub use dialler::Dialler;
use greeting::lane_error;
pub use greeting::{accept_lane, dial_lane};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use greeting::{hello_head, hello_peer};
use queue::{Queue, QueueItem};

/// How many tensor streams a link writes at once; more would only share the same bandwidth.
const STREAMS: usize = 16;
/// The priority of the lane, above that of every tensor: the end of a step does not wait for another step's bytes.
const LANE_PRIORITY: i32 = i32::MAX;
/// How many bytes of frames may wait for the peer to read them: far more than the steps in the windows of all leases of
/// a link can send, so that only a peer which does not read reaches this bound.
const FRAMES_QUEUED: usize = 16 << 20;
/// The interval at which arriving tensors are checked for progress.
pub const STALL_BOUND: Duration = Duration::from_secs(10);
/// The least number of bytes that must arrive within [`STALL_BOUND`], of any tensor on the link: streams share the link
/// by priority, so a healthy tensor may have to wait while others arrive.
pub const LEAST_BYTES: u64 = 64 << 10;
/// The reason of a link that the peer ended in an orderly way.
const LEFT: &str = "it ended the link";

/// One end of a remote link.
pub struct Remote {
    peer: Peer,
    /// The identity in the peer's certificate.
    identity: Option<PeerIdentity>,
    watched: WatchedConnection,
    queue: Arc<Queue>,
    /// Whether the peer ended the link in an orderly way.
    left: AtomicBool,
    /// Cancelled when the link has ended, for tasks that wait for that.
    ended: CancellationToken,
    /// Why the link ended, if the peer refused what was asked of it.
    refused: OnceLock<Box<Error>>,
    /// Bytes of tensors that arrived by streams and through shared memory.
    received: Arc<AtomicU64>,
    /// Tasks that send tensors which the peer has not acknowledged.
    sending: TaskTracker,
    /// The shared memory of the link, if the peer may be on this host.
    shared: Option<Box<LinkSharing>>,
}

impl Remote {
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) fn identity(&self) -> Option<&PeerIdentity> {
        self.identity.as_ref()
    }

    pub(crate) fn shared(&self) -> Option<&LinkSharing> {
        self.shared.as_deref()
    }

    pub(crate) fn left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    pub(crate) fn refusal(&self) -> Option<Error> {
        self.refused.get().map(|refused| (**refused).clone())
    }

    pub(crate) fn watched(&self) -> &WatchedConnection {
        &self.watched
    }

    pub(crate) fn connection(&self) -> &Connection {
        self.watched.connection()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.queue.is_ended()
    }

    pub(crate) fn close(&self, why: &str) {
        self.connection().close(VarInt::from_u32(0), why.as_bytes());
    }

    /// Bytes of frames that wait to be sent, and of tensors that the link holds.
    pub(crate) fn queued_bytes(&self) -> u64 {
        let (frames, tensors) = (&self.queue.frames, &self.queue.tensors);
        (frames.load(Ordering::Relaxed) + tensors.load(Ordering::Relaxed)) as u64
    }

    /// Ends the link once the peer has received everything that was sent, and returns then. The caller bounds the wait.
    pub(crate) async fn finish(&self) {
        if let Some(shared) = &self.shared {
            self.until_ended(shared.crossed()).await;
        }
        self.queue.push(QueueItem::End);
        self.ended.cancelled().await;
    }

    fn hear(
        &self,
        world: &World,
        hub: &Arc<Hub>,
        link: &Arc<Link>,
        told: SharingFrame,
    ) -> Result<()> {
        match (&self.shared, told) {
            (Some(shared), told) => shared.frame(world, hub, link, told),
            (None, SharingFrame::Meet { .. }) => {
                self.send(&Frame::Sharing(SharingFrame::Apart));
                Ok(())
            }
            (None, SharingFrame::Bring { .. }) => Ok(()),
            (None, _) => Err(Error::new(
                Code::ProtocolViolation,
                "no memory is shared on this link",
            )),
        }
    }

    /// Runs `task` until it ends, or the link does.
    pub(crate) async fn until_ended(&self, task: impl Future<Output = ()>) {
        self.ended.run_until_cancelled(task).await;
    }

    pub(crate) fn send(&self, frame: &Frame) {
        let mut bytes = Vec::with_capacity(128);
        frame.encode(&mut bytes);
        let more = bytes.len();
        if self.queue.frames.fetch_add(more, Ordering::Relaxed) + more > FRAMES_QUEUED {
            self.close("the peer does not read what it is told");
        }
        self.queue.push(QueueItem::Frame(bytes));
    }

    pub(crate) fn ready(&self, source: Arc<dyn Batches>) {
        self.queue.push(QueueItem::Batches(source));
    }

    pub(crate) fn send_tensor(&self, mut out: Outgoing) {
        let bytes = out.tensor.byte_len();
        // Any task may hold the tensor when the link ends: dropping this value reports the release as well.
        let told = self.queue.hold(bytes, out.sent);
        out.sent = Box::new(move || drop(told));
        let large = bytes > LANE_LIMIT;
        let carried = match self.shared.as_ref().filter(|_| large) {
            Some(shared) => shared.lend(out),
            None => Some(Err(out)),
        };
        if let Some(carried) = carried {
            self.carry(carried);
        }
    }

    pub(crate) fn carry(&self, carried: CarryResult) {
        match carried {
            Ok(frame) => self.send(&frame),
            Err(out) => self.queue.push(QueueItem::Tensor(out)),
        }
    }
}

fn run(
    world: &World,
    hub: &Arc<Hub>,
    watched: WatchedConnection,
    peer: Peer,
    send: SendStream,
    recv: RecvStream,
) -> Result<Arc<Link>> {
    // Frames about steps do not wait for the tensors of steps.
    send.set_priority(LANE_PRIORITY).map_err(lane_error)?;
    let (roles, received) = ([hub.me.role, peer.role], Arc::<AtomicU64>::default());
    let memory = world.shared.clone();
    let shared = memory
        .and_then(|memory| LinkSharing::new(memory, roles, received.clone()))
        .map(Box::new);
    let invites = hub.me.role == Role::Worker && shared.is_some();
    let remote = Remote {
        peer,
        identity: peer_identity(watched.connection()),
        watched,
        queue: Arc::default(),
        left: AtomicBool::new(false),
        ended: CancellationToken::new(),
        refused: OnceLock::new(),
        received,
        sending: TaskTracker::new(),
        shared,
    };
    let link = Arc::new(Link::Remote(remote));
    if !hub.add_link(link.clone()) {
        let why = "somebody else is linked as this peer";
        link.close(why);
        return Err(Error::new(Code::Unauthorized, why));
    }
    let task = supervise(world.clone(), hub.clone(), link.clone(), send, recv);
    world.spawn(task);
    if invites {
        let (world, link) = (world.clone(), link.clone());
        world.clone().spawn(async move {
            if let Link::Remote(remote) = &*link
                && let Some(shared) = &remote.shared
            {
                remote.until_ended(shared.invite(&world, remote)).await;
            }
        });
    }
    Ok(link)
}

/// Owns the link's tasks: when one of them ends, all do.
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
        e = read_lane(&world, &hub, &link, remote, recv) => e,
        e = write_lane(&world, remote, send) => e,
        e = accept_streams(&world, &hub, &link, remote) => e,
        e = remote.connection().closed() => e.to_string(),
    };
    remote.left.store(why == LEFT, Ordering::Release);
    let unsent = remote.queue.end();
    // If the connection ended, its reason says more than the error of a task that noticed it.
    let why = remote.watched.ended().unwrap_or(why);
    // Closing the connection here replaces the peer's reason.
    if let Some(refused) = refusal(&remote.watched, &remote.peer.name) {
        let _ = remote.refused.set(Box::new(refused));
    }
    remote
        .connection()
        .close(VarInt::from_u32(0), why.as_bytes());
    unsent.let_go();
    if let Some(shared) = &remote.shared {
        shared.end();
    }
    tracing::debug!(peer = remote.peer.name, why, "link ended");
    if !mutant!("lost-link-untold") {
        hub.link_lost(&link, &why);
    }
    remote.ended.cancel();
}

async fn read_lane(
    world: &World,
    hub: &Arc<Hub>,
    link: &Arc<Link>,
    remote: &Remote,
    mut recv: RecvStream,
) -> String {
    let mut body = Vec::new();
    loop {
        let mut head = [0; HEAD];
        match recv.read_exact(&mut head).await {
            Ok(()) => {}
            Err(ReadExactError::FinishedEarly(0)) => return LEFT.into(),
            Err(e) => return e.to_string(),
        }
        let (kind, len) = match Frame::head(&head) {
            Ok(x) => x,
            Err(e) => return malformed(hub, &e),
        };
        body.resize(len, 0);
        if let Err(e) = recv.read_exact(&mut body).await {
            return e.to_string();
        }
        let taken =
            take_frame(hub, &remote.peer, Some(link), kind, &body).and_then(|told| match told {
                Some(told) => remote.hear(world, hub, link, told),
                None => Ok(()),
            });
        if let Err(e) = taken {
            refuse(remote, &e);
            return malformed(hub, &e);
        }
        if kind == EAGER {
            // One batch may hold thousands of ops, and the next may have arrived already: heartbeats and other tasks
            // run first.
            tokio::task::yield_now().await;
        }
    }
}

/// Takes one frame of a lane, and returns its message about shared memory, if it is one, which concerns the link
/// itself. Fails if the frame is malformed.
pub(crate) fn take_frame(
    hub: &Hub,
    from: &Peer,
    over: Option<&Arc<Link>>,
    kind: u8,
    body: &[u8],
) -> Result<Option<SharingFrame>> {
    if kind == EAGER {
        hub.batch(from, over, body)?;
        return Ok(None);
    }
    match Frame::decode(kind, body)? {
        (Frame::Tensor(h), payload) => match hub.begin(from, &h) {
            Ok(mut incoming) => {
                incoming.bytes_mut().copy_from_slice(payload);
                finish(hub, incoming);
            }
            Err(why) => hub.count(why),
        },
        (Frame::Sharing(told), _) => return Ok(Some(told)),
        (frame, _) => hub.frame(from, frame),
    }
    Ok(None)
}

/// Counts a malformed frame. The link then ends, since the frames after it cannot be told apart.
fn malformed(hub: &Hub, e: &Error) -> String {
    hub.count(FrameRefusal::Malformed);
    e.to_string()
}

/// Closes the connection with a reason that the peer shows, if `e` says that the peer exceeds a limit; does nothing for
/// any other error.
fn refuse(remote: &Remote, e: &Error) {
    let code = match e.code {
        Code::OutOfMemory => close::NO_MEMORY,
        Code::Busy => close::REFUSED,
        _ => return,
    };
    remote.connection().close(code.into(), e.message.as_bytes());
}

/// Why the peer closed the connection, where it refused what was asked of it.
fn refusal(watched: &WatchedConnection, name: &str) -> Option<Error> {
    let why = watched.connection().close_reason()?;
    let ConnectionError::ApplicationClosed(closed) = &why else {
        return None;
    };
    let code = match u32::try_from(closed.error_code.into_inner()).ok()? {
        close::NO_MEMORY => Code::OutOfMemory,
        close::REFUSED => Code::Busy,
        _ => return None,
    };
    let msg = format!("{name} refused the connection: {}", watched.ended()?);
    Some(refused(code, name, msg))
}

/// The error of a worker that refused a connection.
pub(crate) fn refused(code: Code, name: &str, message: String) -> Error {
    let error = Error::new(code, message).about(name);
    error.advise("`convoke status` says what each token has")
}

fn finish(hub: &Hub, incoming: crate::hub::Incoming) {
    if let Err(why) = incoming.finish() {
        hub.count(why);
    }
}

async fn write_lane(world: &World, remote: &Remote, mut send: SendStream) -> String {
    let streams = Arc::new(Semaphore::new(STREAMS));
    let mut batch: VecDeque<QueueItem> = VecDeque::new();
    let mut bytes = Vec::new();
    loop {
        remote.queue.take(&mut batch).await;
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
        remote.queue.frames.fetch_sub(frames, Ordering::Relaxed);
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

async fn accept_streams(
    world: &World,
    hub: &Arc<Hub>,
    link: &Arc<Link>,
    remote: &Remote,
) -> String {
    loop {
        match remote.connection().accept_uni().await {
            Ok(stream) => {
                world.spawn(receive_stream(hub.clone(), link.clone(), stream));
            }
            Err(e) => return e.to_string(),
        }
    }
}

/// Why a tensor did not arrive.
enum ArrivalFailure {
    /// The stream was reset, or the connection was lost.
    Ended,
    /// The sender stalled.
    Stalled,
}

/// Returns when too few bytes of tensors arrive over a link; `link` counts those bytes.
pub(crate) async fn stalled(link: &AtomicU64) {
    let mut before = link.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(STALL_BOUND).await;
        let now = link.load(Ordering::Relaxed);
        if now - before < LEAST_BYTES {
            return;
        }
        before = now;
    }
}

/// Fills `out` from the stream; fails if the stream ends or the sender stalls.
async fn fill(
    stream: &mut RecvStream,
    out: &mut [u8],
    link: &AtomicU64,
) -> Result<(), ArrivalFailure> {
    let stalled = stalled(link);
    tokio::pin!(stalled);
    let mut at = 0;
    while at < out.len() {
        tokio::select! {
            biased;
            read = stream.read(&mut out[at..]) => match read {
                Ok(Some(n)) => {
                    at += n;
                    link.fetch_add(n as u64, Ordering::Relaxed);
                }
                Ok(None) | Err(_) => return Err(ArrivalFailure::Ended),
            },
            () = &mut stalled => return Err(ArrivalFailure::Stalled),
        }
    }
    Ok(())
}

async fn read_header(
    stream: &mut RecvStream,
    link: &AtomicU64,
) -> Result<TensorHeader, FrameRefusal> {
    let missing = |m| match m {
        ArrivalFailure::Ended => FrameRefusal::Malformed,
        ArrivalFailure::Stalled => FrameRefusal::Stalled,
    };
    let mut fixed = [0; TensorHeader::FIXED];
    fill(stream, &mut fixed, link).await.map_err(missing)?;
    let rank = TensorHeader::rank(&fixed).map_err(|_| FrameRefusal::Malformed)?;
    let mut all = fixed.to_vec();
    all.resize(TensorHeader::FIXED + rank * 8 + 8, 0);
    let rest = fill(stream, &mut all[TensorHeader::FIXED..], link);
    rest.await.map_err(missing)?;
    TensorHeader::decode_all(&all).map_err(|_| FrameRefusal::Malformed)
}

async fn receive_stream(hub: Arc<Hub>, link: Arc<Link>, mut stream: RecvStream) {
    let Link::Remote(remote) = &*link else { return };
    let received = async {
        let h = read_header(&mut stream, &remote.received).await?;
        hub.foreseen(&remote.peer, &h).await?;
        let mut incoming = hub.begin(&remote.peer, &h)?;
        match fill(&mut stream, incoming.bytes_mut(), &remote.received).await {
            Ok(()) => incoming.finish(),
            // Dropping `incoming` gives the claim back; the abort that caused the reset arrives on the lane.
            Err(ArrivalFailure::Ended) => Ok(()),
            Err(ArrivalFailure::Stalled) => {
                incoming.stalled(&remote.peer, STALL_BOUND);
                Err(FrameRefusal::Stalled)
            }
        }
    };
    if let Err(why) = received.await {
        hub.count(why);
        let _ = stream.stop(VarInt::from_u32(1));
    }
}
