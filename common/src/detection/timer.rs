//! Timers that decide whether a peer lives, why a step failed, or how long somebody is waited for. `tracing` events tell
//! when each of them runs, so that a simulation can say which faults met which timers. Nothing subscribes to them in
//! production unless `--log` names their target: an event that is off costs a load and a branch.

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// The target of the events. Each has the timer's name as `timer`, and `runs`: whether the timer was armed, or is over.
pub const TARGET: &str = "convoke::timer";

/// The purpose of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TimerKind {
    /// A heartbeat waits for its echo.
    Silence,
    /// A probe of a peer whose tripwire ended waits for its answer.
    Probe,
    /// A consequence waits for its cause, at a driver or, while a lease is installed, at the coordinator.
    Cause,
    /// The error of a lost participant waits for the losses of others.
    Losses,
    /// A driver waits until everybody has quiesced a failed step.
    Quiesce,
    /// A worker waits for a kernel whose step has ended.
    Wedge,
    /// A call has a deadline, and waits for its lease, for room at a worker or for its step.
    Deadline,
    /// Somebody waits for the coordinator, for a client or for workers that were lost, or for workers that have yet to free a
    /// lease.
    Return,
    /// A worker that leaves lets its steps finish.
    Drain,
}

impl TimerKind {
    /// Every kind, in order.
    pub const ALL: [TimerKind; 9] = [
        TimerKind::Silence,
        TimerKind::Probe,
        TimerKind::Cause,
        TimerKind::Losses,
        TimerKind::Quiesce,
        TimerKind::Wedge,
        TimerKind::Deadline,
        TimerKind::Return,
        TimerKind::Drain,
    ];

    /// The kind's name in events and tables.
    pub fn name(self) -> &'static str {
        match self {
            TimerKind::Silence => "silence",
            TimerKind::Probe => "probe",
            TimerKind::Cause => "cause",
            TimerKind::Losses => "losses",
            TimerKind::Quiesce => "quiesce",
            TimerKind::Wedge => "wedge",
            TimerKind::Deadline => "deadline",
            TimerKind::Return => "return",
            TimerKind::Drain => "drain",
        }
    }

    /// The kind with this name.
    pub fn named(name: &str) -> Option<TimerKind> {
        TimerKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A timer that runs from when it is made until it is dropped, whether it has fired by then or not. `T` is how its owner
/// counts time.
#[derive(Debug, PartialEq, Eq)]
pub struct Timer<T = Instant> {
    kind: TimerKind,
    due: T,
}

impl<T: Copy> Timer<T> {
    /// Arms a timer that fires at `due`.
    pub fn arm(kind: TimerKind, due: T) -> Timer<T> {
        tracing::trace!(target: TARGET, timer = kind.name(), runs = true);
        Timer { kind, due }
    }

    /// When the timer fires.
    pub fn due(&self) -> T {
        self.due
    }
}

impl<T> Drop for Timer<T> {
    fn drop(&mut self) {
        tracing::trace!(target: TARGET, timer = self.kind.name(), runs = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names_of_their_own() {
        for kind in TimerKind::ALL {
            assert_eq!(TimerKind::named(kind.name()), Some(kind));
        }
        assert_eq!(TimerKind::named("none"), None);
    }
}
