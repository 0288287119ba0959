//! The handle of a monitored connection, and why it ended.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use quinn::{Connection, ConnectionError, VarInt};
use tokio::sync::{Semaphore, mpsc};

use super::bounds::{IDLE_TIMEOUT, UNECHOED};
use crate::world::TcpConnection;

/// The close code of a connection whose peer was lost; only a peer that was lost in error ever sees it.
pub const CLOSE_LOST: VarInt = VarInt::from_u32(0x30);

/// How many characters of a peer's reason are shown at most.
const LONGEST_REASON: usize = 200;

/// Why a peer was given up as lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The peer's tripwire ended, and the peer answered no probe.
    ProcessEnded,
    /// The peer said on the tripwire that it closes the connection, and answered no probe: TCP reaches this process, and
    /// packets do not.
    GivenUp,
    /// The peer echoed no heartbeat: it was stopped or cut off, or this end could not be heard.
    NoAnswer,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::ProcessEnded => f.write_str("its process ended"),
            Verdict::GivenUp => {
                f.write_str("it gave the connection up, and its packets do not arrive")
            }
            Verdict::NoAnswer => write!(f, "no answer for {UNECHOED:?}"),
        }
    }
}

/// The handle of a monitored connection; clones share it.
#[derive(Debug, Clone)]
pub struct WatchedConnection {
    connection: Connection,
    shared: Arc<WatchedState>,
}

#[derive(Debug)]
struct WatchedState {
    verdict: OnceLock<Verdict>,
    armed: AtomicBool,
    tripwires: Tripwires,
}

/// Hands the tripwires that the peer dials to the monitor.
#[derive(Debug)]
pub(super) struct Tripwires {
    /// The way to the monitor.
    matched: mpsc::Sender<TripwireConnection>,
    /// Allows one announcement at a time.
    announcing: Semaphore,
}

/// A TCP connection that showed a nonce which was announced on a monitored connection.
pub(super) struct TripwireConnection(pub(super) Box<dyn TcpConnection>);

impl fmt::Debug for TripwireConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TripwireConnection").finish_non_exhaustive()
    }
}

impl Tripwires {
    pub(super) fn new() -> (Tripwires, mpsc::Receiver<TripwireConnection>) {
        let (matched, to_monitor) = mpsc::channel(1);
        let announcing = Semaphore::new(1);
        let tripwires = Tripwires {
            matched,
            announcing,
        };
        (tripwires, to_monitor)
    }

    pub(super) fn announcing(&self) -> &Semaphore {
        &self.announcing
    }

    /// Hands a tripwire to the monitor; `None` if the monitor has not even taken the previous one.
    pub(super) fn matched(&self, tcp: TripwireConnection) -> Option<()> {
        self.matched.try_send(tcp).ok()
    }
}

impl WatchedConnection {
    pub(super) fn new(
        connection: Connection,
    ) -> (WatchedConnection, mpsc::Receiver<TripwireConnection>) {
        let (tripwires, to_monitor) = Tripwires::new();
        let shared = Arc::new(WatchedState {
            verdict: OnceLock::new(),
            armed: AtomicBool::new(false),
            tripwires,
        });
        (WatchedConnection { connection, shared }, to_monitor)
    }

    /// The connection that is monitored.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Whether a tripwire stands: without one a killed process is noticed as slowly as a stopped one.
    pub fn tripwire(&self) -> bool {
        self.shared.armed.load(Ordering::Relaxed)
    }

    /// The monitor's verdict, if it gave the peer up.
    pub fn verdict(&self) -> Option<Verdict> {
        self.shared.verdict.get().copied()
    }

    /// Why the connection ended, in words that follow "lost contact with PEER: "; `None` while it is open, or if this
    /// process closed it for a reason of its own.
    pub fn ended(&self) -> Option<String> {
        let why = self.connection.close_reason()?;
        // The verdict is set before the connection is closed.
        if let Some(verdict) = self.verdict() {
            return Some(verdict.to_string());
        }
        match why {
            ConnectionError::LocallyClosed => None,
            ConnectionError::TimedOut => Some(format!("no packet for {IDLE_TIMEOUT:?}")),
            ConnectionError::ApplicationClosed(closed) => {
                let reason = words(&closed.reason);
                Some(match closed.error_code {
                    CLOSE_LOST => format!("it lost contact with this process first, {reason}"),
                    _ if reason.is_empty() => "it closed the connection".to_owned(),
                    _ => reason,
                })
            }
            other => Some(other.to_string()),
        }
    }

    /// Closes a connection that is of no use any more. A connection that has ended keeps its reason: a peer that expelled
    /// this process said so with it.
    pub fn give_up(&self, why: &str) {
        if self.connection.close_reason().is_none() {
            self.connection.close(CLOSE_LOST, why.as_bytes());
        }
    }

    pub(super) fn set_armed(&self, armed: bool) {
        self.shared.armed.store(armed, Ordering::Relaxed);
    }

    /// Gives the peer up as lost, and closes the connection.
    pub(super) fn lose(&self, verdict: Verdict) {
        // Setting it cannot fail, since the one monitor is the only caller.
        let _ = self.shared.verdict.set(verdict);
        self.connection
            .close(CLOSE_LOST, verdict.to_string().as_bytes());
    }

    pub(super) fn tripwires(&self) -> &Tripwires {
        &self.shared.tripwires
    }
}

/// A peer's reason as text without control characters, which could upset a terminal.
fn words(reason: &[u8]) -> String {
    let text = String::from_utf8_lossy(reason);
    let shown = text.chars().filter(|c| !c.is_control());
    shown.take(LONGEST_REASON).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_and_reasons_read_well() {
        assert_eq!(Verdict::ProcessEnded.to_string(), "its process ended");
        assert_eq!(Verdict::NoAnswer.to_string(), "no answer for 2s");
        assert_eq!(words(b"worker \x1b[31mleaving\n"), "worker [31mleaving");
        assert_eq!(words(&[b'a'; 5000]).len(), LONGEST_REASON);
        assert_eq!(words(b"\xff"), "\u{fffd}");
    }
}
