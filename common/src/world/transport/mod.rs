//! Every limit and timer of the QUIC transport, in one place.

mod congestion;

use std::sync::Arc;
use std::time::Duration;

use quinn::{Connection, MtuDiscoveryConfig, TransportConfig, VarInt};

use self::congestion::LossTolerant;
use super::NetError;
use crate::detection::bounds::{IDLE_TIMEOUT, KEEP_ALIVE};

/// How many bidirectional streams a member may open, for control calls, lanes and artifacts: few are needed, and a
/// flood is refused.
const MAX_BIDI_STREAMS: u32 = 1024;

/// How many tensors a member may send at once, on one stream each; further ones wait until one was read. quinn keeps
/// the memory in which it ordered a stream's packets for later streams, once for each allowed stream: with thousands,
/// each would come to hold what its most crowded moment took, and a process would grow for tens of thousands of steps.
/// With few, tensors of an eager session that are not announced yet, which may wait for seconds, would keep others from
/// arriving.
const MAX_UNI_STREAMS: u32 = 256;

/// The first guess of the round trip, used until one is measured: a lost first packet is sent again after three times
/// this. QUIC's own default of 333 ms is meant for the open internet.
const INITIAL_RTT: Duration = Duration::from_millis(100);

/// The largest packets, where the path carries them. quinn hands the kernel up to 10 packets in one call, and one call
/// carries at most 65 507 bytes: 6500 is the most that fits, and from 6551 upwards calls fail and large transfers stall.
/// Measured on two cores over loopback, one stream of 64 MiB: 0.97 GB/s at 1452, 1.85 at 3500, 2.7 at 6500.
pub(super) const HIGHEST_MTU: u16 = 6500;

/// The packet size that every path must carry, and at which probing starts on all paths except loopback.
const MINIMUM_MTU: u16 = 1200;

/// Bytes that may be sent before the first acknowledgement. Peers share a machine room more often than they meet over
/// the open internet, so this is far above QUIC's 14 720: one small tensor is sent whole.
const INITIAL_CONGESTION_WINDOW: u64 = 256 << 10;

/// A packet counts as lost when a later one was acknowledged and this many round trips have passed since it was sent.
/// QUIC's own 9/8 takes packets for lost that vary by an eighth of a round trip; this lets them vary by half of one, and
/// resends what was lost half a round trip later than QUIC would at the earliest.
const LOST_AFTER: f32 = 1.5;

/// A packet never counts as lost because of how many later ones were acknowledged. QUIC's own three mistake each path
/// that reorders for one that loses: with 2 ms of jitter on 15 ms, every tenth packet was taken for lost.
const LOST_AFTER_PACKETS: u32 = u32::MAX;

/// Bytes of datagrams that may wait in each direction, which are the heartbeats of [`crate::detection`]: about fifty,
/// each counted with its overhead. The oldest is dropped first, and says the least.
const DATAGRAM_BUFFER: usize = 4 << 10;

/// Bytes that a peer without a certificate may send ahead of its reader, on all of its streams together. A join takes a
/// sixteenth of that.
const STRANGER_WINDOW: u32 = 64 << 10;

/// The streams that a peer without a certificate may have open: one for its greeting, and one for its join.
const STRANGER_STREAMS: u32 = 2;

/// Bytes that a member may send ahead of its readers until it is known what its connection carries, see
/// [`Members`](crate::members::Members).
pub const FIRST_WINDOW: u32 = 256 << 10;

/// The streams that a member may open until then: its lane, its tripwire, probes and calls.
const FIRST_STREAMS: u32 = 16;

/// The settings that differ between deployments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointOptions {
    /// Bytes that a peer may send on one stream ahead of its reader.
    pub stream_window: u32,
    /// Bytes that a peer may send on one connection ahead of its readers: this bounds how much one link can make this
    /// process hold. All streams of the connection share the bound, so a reader that stops takes from the others.
    pub connection_window: u32,
    /// Bytes on one connection that may be unacknowledged or wait to be sent.
    pub send_window: u32,
    /// Whether a connection without a packet for [`IDLE_TIMEOUT`] ends.
    pub ends_when_idle: bool,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        Self {
            stream_window: 16 << 20,
            connection_window: 64 << 20,
            send_window: 64 << 20,
            ends_when_idle: true,
        }
    }
}

/// The end of a connection that this process has; it decides when the peer is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// A dialler has verified its peer before it reads a byte.
    Dials,
    /// A listener learns who dials at the end of the handshake, or never: it grants next to nothing before, and more by
    /// [`welcome`] and [`Members`](crate::members::Members).
    Listens,
}

/// Grants a known peer the streams and bytes that a member needs to state the purpose of its connection.
pub fn welcome(connection: &Connection) {
    connection.set_receive_window(VarInt::from_u32(FIRST_WINDOW));
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(FIRST_STREAMS));
}

/// Grants a member all the streams that one may have.
pub fn admit_all_streams(connection: &Connection) {
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(MAX_BIDI_STREAMS));
    connection.set_max_concurrent_uni_streams(VarInt::from_u32(MAX_UNI_STREAMS));
}

/// The transport settings towards a peer on this machine (`loopback`) or on another one.
pub(super) fn transport(
    options: &EndpointOptions,
    side: Side,
    loopback: bool,
) -> Result<Arc<TransportConfig>, NetError> {
    let idle = IDLE_TIMEOUT.try_into().map_err(|_| NetError::Setting {
        what: "the idle timeout is out of range".to_owned(),
    })?;
    let initial_mtu = match loopback {
        true => HIGHEST_MTU,
        false => MINIMUM_MTU,
    };
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(HIGHEST_MTU);
    let congestion = LossTolerant::new(INITIAL_CONGESTION_WINDOW);

    let (window, bidi, uni) = match side {
        Side::Dials => (options.connection_window, MAX_BIDI_STREAMS, MAX_UNI_STREAMS),
        // The connection's window also bounds each stream's window, which cannot be changed later.
        Side::Listens => (STRANGER_WINDOW, STRANGER_STREAMS, 0),
    };

    let mut config = TransportConfig::default();
    config
        .max_idle_timeout(options.ends_when_idle.then_some(idle))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_concurrent_bidi_streams(VarInt::from_u32(bidi))
        .max_concurrent_uni_streams(VarInt::from_u32(uni))
        .stream_receive_window(VarInt::from_u32(options.stream_window))
        .receive_window(VarInt::from_u32(window))
        .send_window(u64::from(options.send_window))
        .initial_rtt(INITIAL_RTT)
        .time_threshold(LOST_AFTER)
        .packet_threshold(LOST_AFTER_PACKETS)
        .initial_mtu(initial_mtu)
        .mtu_discovery_config(Some(discovery))
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER))
        .datagram_send_buffer_size(DATAGRAM_BUFFER)
        .congestion_controller_factory(Arc::new(congestion));
    Ok(Arc::new(config))
}
