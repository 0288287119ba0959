//! turmoil's UDP as a socket for quinn, with a network in between that loses, doubles, damages and delays packets.
//!
//! The sender draws the fate of each packet and writes the packet's delay in front of it. The receiver removes that
//! prefix and delivers the packet when it is due, so that a packet stays on its way even if its sender ends.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::time::{Instant, Sleep, sleep_until};

use super::disk::Disk;
use super::gate::Gate;
use super::wire::Wires;
use crate::draw::Draw;
use crate::event_log::EventLog;

/// Bytes in front of each packet, which hold its delay in milliseconds.
const PREFIX: usize = 2;

/// The size of the longest packet that a socket takes, in bytes.
const LONGEST: usize = 1 << 16;

type ReadableFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

struct Inbox {
    readable: Option<ReadableFuture>,
    /// Packets that are not due yet, by the time at which they are due and by the order of their arrival.
    early: BTreeMap<(Instant, u64), (Vec<u8>, SocketAddr)>,
    arrivals: u64,
    timer: Option<Pin<Box<Sleep>>>,
    buffer: Vec<u8>,
}

/// The sockets of a host's process. They can be closed while other code still holds them, as the operating system does
/// when a process ends.
#[derive(Default)]
pub struct Sockets(Mutex<Vec<Weak<SimUdp>>>);

impl Sockets {
    fn all(&self) -> MutexGuard<'_, Vec<Weak<SimUdp>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, socket: &Arc<SimUdp>) {
        let mut all = self.all();
        all.retain(|s| s.strong_count() > 0);
        all.push(Arc::downgrade(socket));
    }

    /// Closes all sockets. Call it where turmoil knows which host they belong to.
    pub fn close(&self) {
        for socket in self.all().drain(..).filter_map(|s| s.upgrade()) {
            socket.inbox().readable = None;
            socket
                .io
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
        }
    }
}

/// A UDP socket of a simulated host.
pub(super) struct SimUdp {
    /// turmoil's socket, or `None` once it is closed.
    io: Mutex<Option<Arc<turmoil::net::UdpSocket>>>,
    bound: SocketAddr,
    me: IpAddr,
    gate: Arc<Gate>,
    disk: Arc<Disk>,
    wires: Arc<Wires>,
    trace: EventLog,
    draw: Mutex<Draw>,
    inbox: Mutex<Inbox>,
}

impl fmt::Debug for SimUdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimUdp({} of {})", self.bound, self.gate.host())
    }
}

impl SimUdp {
    pub(super) async fn bind(
        addr: SocketAddr,
        me: IpAddr,
        gate: Arc<Gate>,
        disk: Arc<Disk>,
        wires: Arc<Wires>,
        trace: EventLog,
        draw: Draw,
    ) -> io::Result<Arc<SimUdp>> {
        let io = Arc::new(turmoil::net::UdpSocket::bind(addr).await?);
        let bound = io.local_addr()?;
        Ok(Arc::new(SimUdp {
            io: Mutex::new(Some(io)),
            bound,
            me,
            gate,
            disk,
            wires,
            trace,
            draw: Mutex::new(draw),
            inbox: Mutex::new(Inbox {
                readable: None,
                early: BTreeMap::new(),
                arrivals: 0,
                timer: None,
                buffer: vec![0; LONGEST],
            }),
        }))
    }

    fn io(&self) -> io::Result<Arc<turmoil::net::UdpSocket>> {
        let io = self.io.lock().unwrap_or_else(PoisonError::into_inner);
        io.clone().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self) -> MutexGuard<'_, Draw> {
        self.draw.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a packet once, twice or not at all, as the wire to its destination decides.
    fn emit(&self, packet: &[u8], to: SocketAddr) {
        let Ok(io) = self.io() else { return };
        if self.disk.is_dark() {
            return;
        }
        let wire = self.wires.get(self.me, to.ip().to_canonical());
        let mut draw = self.draw();
        let mut of_a_million = |rate: u32| draw.below(1_000_000) < u64::from(rate);
        let lost = of_a_million(wire.loss);
        let copies = 1 + u64::from(of_a_million(wire.duplicate));
        let corrupt = of_a_million(wire.corrupt);
        self.trace
            .packet(self.gate.host(), to, packet.len(), !lost, copies, corrupt);
        if lost {
            return;
        }
        for _ in 0..copies {
            let (least, most) = wire.delay;
            let delay = draw.range(u64::from(least), u64::from(most.max(least))) as u16;
            let mut bytes = Vec::with_capacity(PREFIX + packet.len());
            bytes.extend(delay.to_le_bytes());
            bytes.extend_from_slice(packet);
            if corrupt && !packet.is_empty() {
                let bit = draw.below(packet.len() as u64 * 8) as usize;
                bytes[PREFIX + bit / 8] ^= 1 << (bit % 8);
            }
            // A host that is down takes no packets and reports no error.
            let _ = io.try_send_to(&bytes, to);
        }
    }
}

/// A poller that is always ready, since sending never waits.
#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Inbox {
    /// Moves the packets that have arrived from the socket to `early`. When it returns, the socket is empty and will
    /// wake the task when more packets arrive.
    fn poll_arrivals(
        &mut self,
        io: &Arc<turmoil::net::UdpSocket>,
        cx: &mut Context<'_>,
    ) -> io::Result<()> {
        loop {
            // This future holds turmoil's lock on the socket while it is pending.
            if let Some(readable) = &mut self.readable {
                match readable.as_mut().poll(cx) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(result) => {
                        self.readable = None;
                        result?;
                    }
                }
            }
            match io.try_recv_from(&mut self.buffer) {
                Ok((length, from)) => self.keep(length, from),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let io = io.clone();
                    self.readable = Some(Box::pin(async move { io.readable().await }));
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn keep(&mut self, length: usize, from: SocketAddr) {
        let [a, b, packet @ ..] = &self.buffer[..length] else {
            return;
        };
        let delay = Duration::from_millis(u64::from(u16::from_le_bytes([*a, *b])));
        self.arrivals += 1;
        let key = (Instant::now() + delay, self.arrivals);
        self.early.insert(key, (packet.to_vec(), from));
    }

    /// Waits for the next packet that is due, and returns it with its source.
    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<(Vec<u8>, SocketAddr)> {
        loop {
            let Some(first) = self.early.first_entry() else {
                self.timer = None;
                return Poll::Pending;
            };
            let due = first.key().0;
            if due <= Instant::now() {
                return Poll::Ready(first.remove());
            }
            let timer = match &mut self.timer {
                Some(timer) if timer.deadline() == due => timer,
                timer => timer.insert(Box::pin(sleep_until(due))),
            };
            ready!(timer.as_mut().poll(cx));
        }
    }
}

impl AsyncUdpSocket for SimUdp {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        // A call sends one packet, since this socket offers no segmentation.
        self.emit(transmit.contents, transmit.destination);
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let io = self.io()?;
        let mut inbox = self.inbox();
        if let Err(e) = inbox.poll_arrivals(&io, cx) {
            return Poll::Ready(Err(e));
        }
        let (packet, from) = ready!(inbox.poll_due(cx));
        let (Some(buffer), Some(meta)) = (bufs.first_mut(), meta.first_mut()) else {
            return Poll::Ready(Ok(0));
        };
        let length = packet.len().min(buffer.len());
        buffer[..length].copy_from_slice(&packet[..length]);
        *meta = RecvMeta {
            addr: from,
            len: length,
            stride: length,
            ecn: None,
            dst_ip: None,
        };
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.bound)
    }
}
