//! Every bound of failure detection, in one place.
//!
//! The first two are promises; the others are chosen so that the promises hold, and the assertions at the end say how.

use std::time::Duration;

/// A promise: a peer whose process was killed counts as lost within this time, where TCP reaches it.
pub const PROCESS_KILLED: Duration = Duration::from_millis(300);

/// A promise: a peer whose host was stopped, powered off or cut off, in one direction or both, counts as lost within
/// this time, as does a killed process where TCP does not reach it.
pub const LOST: Duration = Duration::from_secs(3);

/// How often each end of a connection sends a datagram with its own counter and the last one seen from the peer.
pub const HEARTBEAT: Duration = Duration::from_millis(500);

/// A peer that has not echoed a counter for this long is lost. Three heartbeats in a row, there or back, may be lost
/// before a healthy peer is that late, and a path may hold packets for 1.5 s.
pub const UNECHOED: Duration = Duration::from_secs(2);

/// A process whose own timer fires this late was stopped itself, and knows nothing of its peers: it starts anew.
pub const LATE: Duration = Duration::from_secs(1);

/// Datagrams sent to a peer whose tripwire ended, to see whether it still lives.
pub const PROBES: u32 = 3;

/// How long each of them has for its answer. One whose timer fires later than this again does not count.
pub const PROBE_WAIT: Duration = Duration::from_millis(50);

/// Probes answered between two heartbeats; a peer has no reason to send more than a few.
pub const ANSWERS: u32 = 16;

/// After this long without a packet QUIC itself gives a connection up. A backstop for connections that nobody monitors.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

/// QUIC's own keep-alive, for connections that nobody monitors: a join that waits for its answer. Heartbeats come more
/// often, so that elsewhere it never fires.
pub const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// How long a tripwire may take to arm: a stream's first bytes, a TCP handshake with one packet lost, the nonce.
pub const ARMING: Duration = Duration::from_secs(3);

/// First and longest pause before a tripwire that ended, or could not be armed, is dialled again. One that stood for the
/// longest pause starts again at the first.
pub const REARM: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Nonces that a process expects on its TCP port at once: one for each connection that it accepts.
pub const EXPECTED: usize = 4096;

/// TCP connections that have not shown their nonce yet. When one more comes the oldest goes: an honest peer sends its
/// nonce with its first packet, so that a flood of idle connections only pushes out itself.
pub const UNNAMED: usize = 64;

/// How long a TCP connection may take to show its nonce.
pub const FIRST_BYTES: Duration = Duration::from_secs(1);

/// Pause after the system could not hand out a TCP connection, for want of file descriptors for instance.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const fn at_most(a: Duration, b: Duration) -> bool {
    a.as_nanos() <= b.as_nanos()
}

const _: () = {
    // All probes unanswered take half of the promise; the other half is the way to the caller.
    assert!(at_most(
        PROBE_WAIT.saturating_mul(2 * PROBES),
        PROCESS_KILLED
    ));
    // The first counter that a dead peer does not echo was sent at most one heartbeat after its death. As much again is
    // left for the timers and the way to the caller.
    assert!(at_most(
        UNECHOED.saturating_add(HEARTBEAT.saturating_mul(2)),
        LOST
    ));
    // A process that was late by less has not missed so many echoes that it would give up a healthy peer.
    assert!(at_most(LATE.saturating_add(HEARTBEAT), UNECHOED));
    assert!(at_most(IDLE_TIMEOUT, LOST));
    assert!(at_most(HEARTBEAT.saturating_mul(2), KEEP_ALIVE));
    assert!(at_most(KEEP_ALIVE.saturating_mul(3), IDLE_TIMEOUT));
};
