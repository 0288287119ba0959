//! Every bound of failure detection, in one place.
//!
//! The first two are promises; the others are chosen so that the promises hold, as the assertions at the end explain.

use std::time::Duration;

/// A promise: a peer whose process was killed counts as lost within this time if TCP reaches its host.
pub const PROCESS_KILLED: Duration = Duration::from_millis(300);

/// A promise: a peer whose host was stopped, powered off or cut off, in one direction or both, counts as lost within
/// this time. So does a peer whose process was killed where TCP does not reach its host.
pub const LOST: Duration = Duration::from_secs(3);

/// How often each end of a connection sends a datagram with its own counter and the last one seen from the peer.
pub const HEARTBEAT: Duration = Duration::from_millis(500);

/// A peer that has not echoed a counter for this long is lost. A healthy peer is that late only if more than three
/// heartbeats in a row are lost, there or back, and a path may hold packets for 1.5 s.
pub const UNECHOED: Duration = Duration::from_secs(2);

/// A process whose own timer fires this late was itself stopped, and knows nothing of its peers: it starts its waits
/// anew.
pub const LATE: Duration = Duration::from_secs(1);

/// How many datagrams are sent to a peer whose tripwire ended, to learn whether the peer still lives.
pub const PROBES: u32 = 3;

/// How long each probe waits for its answer. A probe whose timer fires later than twice this does not count.
pub const PROBE_WAIT: Duration = Duration::from_millis(50);

/// How many probes are answered between two heartbeats; a peer has no reason to send more than a few.
pub const ANSWERS: u32 = 16;

/// After this long without a packet QUIC itself gives up a connection: a backstop for connections that nobody monitors.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

/// QUIC's own keep-alive, for connections that nobody monitors, such as a join that waits for its answer. Monitored
/// connections send heartbeats more often, so that the keep-alive never fires on them.
pub const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// How long arming a tripwire may take: a stream's first bytes, a TCP handshake with one packet lost, and the nonce.
pub const ARMING: Duration = Duration::from_secs(3);

/// The first and the longest pause before a tripwire that ended, or could not be armed, is dialled again. A tripwire
/// that stood for at least the longest pause starts again with the first.
pub const REARM: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// How many nonces a process expects on its TCP port at once: one for each connection that it accepts.
pub const EXPECTED: usize = 4096;

/// How many TCP connections may be open that have not shown their nonce. A further one pushes out the oldest: an honest
/// peer sends its nonce with its first packet, so a flood of idle connections only pushes out itself.
pub const UNNAMED: usize = 64;

/// How long a TCP connection may take to show its nonce.
pub const FIRST_BYTES: Duration = Duration::from_secs(1);

/// The pause after the system failed to accept a TCP connection, for want of file descriptors for instance.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const fn at_most(a: Duration, b: Duration) -> bool {
    a.as_nanos() <= b.as_nanos()
}

const _: () = {
    // All probes unanswered take half of the promised time; the other half is for reporting the loss to the caller.
    assert!(at_most(
        PROBE_WAIT.saturating_mul(2 * PROBES),
        PROCESS_KILLED
    ));
    // The first counter that a dead peer does not echo was sent at most one heartbeat after its death. Another
    // heartbeat's time is left for the timers and for reporting the loss to the caller.
    assert!(at_most(
        UNECHOED.saturating_add(HEARTBEAT.saturating_mul(2)),
        LOST
    ));
    // A process that was late by less than this has not missed so many echoes that it would give up a healthy peer.
    assert!(at_most(LATE.saturating_add(HEARTBEAT), UNECHOED));
    assert!(at_most(IDLE_TIMEOUT, LOST));
    assert!(at_most(HEARTBEAT.saturating_mul(2), KEEP_ALIVE));
    assert!(at_most(KEEP_ALIVE.saturating_mul(3), IDLE_TIMEOUT));
};
