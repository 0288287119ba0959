//! The decisions of one end of a monitored connection: whether the peer lives, when to probe it, when to dial its
//! tripwire. Pure: events in, commands out, time is an argument.
//!
//! Invariants
//! 1. [`Command::Lose`] comes at most once, and is the last command.
//! 2. The end of a tripwire alone, announced or not, is no loss: only a probe that is not echoed, or silence, is.
//! 3. A timer that fires late never counts against the peer.
//! 4. The state of the core is bounded by the constants in `bounds`, whatever the peer sends.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::Verdict;
use super::bounds::{ANSWERS, HEARTBEAT, LATE, PROBE_WAIT, PROBES, REARM, UNECHOED};
use super::datagram::{Datagram, Kind};
use crate::actor;
use crate::detection::timer::{Timer, TimerKind};
use crate::mutant;

/// An event at this end of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The peer sent a datagram.
    Datagram(Datagram),
    /// A tripwire was armed.
    Armed,
    /// The tripwire that [`Command::Arm`] asked for could not be armed.
    Unarmed,
    /// The tripwire ended.
    Tripped,
    /// The peer said on the tripwire that it closes the connection. The tripwire counts as ended.
    Closing,
    /// Time passed, and nothing else happened.
    Tick,
}

/// A command to the monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Send a datagram.
    Send(Datagram),
    /// Dial the peer's tripwire, and report [`Event::Armed`] or [`Event::Unarmed`].
    Arm,
    /// Count a datagram that the peer must not send.
    Refuse,
    /// Close the connection, because the peer is lost.
    Lose(Verdict),
}

/// The probes that wait for an echo.
#[derive(Debug)]
struct Round {
    /// The counter of all probes of the round: an echo of it, or of a later one, proves that the peer lived after the
    /// tripwire ended.
    counter: u64,
    unanswered: u32,
    /// Why the peer counts as lost if no probe is answered.
    verdict: Verdict,
    /// Fires when the latest probe counts as unanswered.
    timer: Timer,
}

#[derive(Debug)]
enum Tripwire {
    /// The tripwire is down; an end that dials it does so at `at`.
    Down {
        at: Option<Instant>,
    },
    Arming,
    Standing {
        since: Instant,
    },
}

/// The decisions of one end of a monitored connection, as state without I/O.
#[derive(Debug)]
pub struct Core {
    dials: bool,
    /// Whether a peer that echoes nothing counts as lost.
    minds_silence: bool,
    /// The highest counter that this end sent.
    counter: u64,
    /// The highest counter that the peer sent.
    seen: u64,
    /// Heartbeats that were not echoed yet, the oldest first, and when the peer counts as lost for each.
    unechoed: VecDeque<(u64, Timer)>,
    heartbeat: Instant,
    /// How many probes are still answered before the next heartbeat.
    answers: u32,
    round: Option<Round>,
    tripwire: Tripwire,
    /// The pause before the next attempt to arm.
    pause: Duration,
    lost: bool,
    commands: VecDeque<Command>,
}

impl actor::Core for Core {
    type Command = Command;

    fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }
}

impl Core {
    /// The core for one end of a new connection. `dials` says whether this end dials the tripwire.
    pub fn new(now: Instant, dials: bool) -> Core {
        Core {
            dials,
            minds_silence: true,
            counter: 0,
            seen: 0,
            unechoed: VecDeque::new(),
            heartbeat: now,
            answers: 0,
            round: None,
            tripwire: Tripwire::Down {
                at: dials.then_some(now),
            },
            pause: REARM.0,
            lost: false,
            commands: VecDeque::new(),
        }
    }

    /// From now on no peer is lost because it is silent.
    pub fn excuse_silence(&mut self) {
        self.minds_silence = false;
        self.unechoed.clear();
    }

    /// Takes an event, and does whatever is due at `now`.
    pub fn apply(&mut self, now: Instant, event: Event) {
        if self.lost {
            return;
        }
        if self.due() + LATE < now && !mutant!("late-timer-counts") {
            self.restart(now);
        }
        match event {
            Event::Datagram(datagram) => self.datagram(now, datagram),
            Event::Armed => self.tripwire = Tripwire::Standing { since: now },
            Event::Unarmed => self.rearm(now),
            Event::Tripped => self.tripped(now, Verdict::ProcessEnded),
            Event::Closing => self.tripped(now, Verdict::GivenUp),
            Event::Tick => {}
        }
        self.advance(now);
    }

    /// When [`Core::apply`] must be called at the latest; `None` once the peer is lost.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (!self.lost).then(|| self.due())
    }

    fn due(&self) -> Instant {
        let silence = self.unechoed.front().map(|(_, timer)| timer.due());
        let probe = self.round.as_ref().map(|r| r.timer.due());
        let arm = match self.tripwire {
            Tripwire::Down { at } => at,
            Tripwire::Arming | Tripwire::Standing { .. } => None,
        };
        let others = [silence, probe, arm].into_iter().flatten();
        others.fold(self.heartbeat, Instant::min)
    }

    /// Forgets what this end waits for after this process was stopped: the answers may have arrived unread.
    fn restart(&mut self, now: Instant) {
        self.unechoed.clear();
        self.heartbeat = now;
    }

    fn probe(&mut self, now: Instant, verdict: Verdict) {
        self.counter += 1;
        self.round = Some(Round {
            counter: self.counter,
            unanswered: 0,
            verdict,
            timer: Timer::arm(TimerKind::Probe, now + PROBE_WAIT),
        });
        self.send(Kind::Probe, self.counter);
    }

    fn datagram(&mut self, now: Instant, datagram: Datagram) {
        let Datagram {
            kind,
            counter,
            seen,
        } = datagram;
        if seen > self.counter {
            // The peer echoed a counter that was never sent.
            return self.commands.push_back(Command::Refuse);
        }
        self.seen = self.seen.max(counter);
        while self.unechoed.front().is_some_and(|(c, _)| *c <= seen) {
            self.unechoed.pop_front();
        }
        if self.round.as_ref().is_some_and(|r| r.counter <= seen) {
            self.round = None;
            if matches!(self.tripwire, Tripwire::Down { at: None }) {
                self.rearm(now);
            }
        }
        if kind == Kind::Heartbeat {
            return;
        }
        match self.answers.checked_sub(1) {
            // The answer carries no new counter, so it is not echoed itself.
            Some(left) => {
                self.answers = left;
                self.send(Kind::Heartbeat, self.counter);
            }
            None => self.commands.push_back(Command::Refuse),
        }
    }

    fn tripped(&mut self, now: Instant, verdict: Verdict) {
        if let Tripwire::Standing { since } = self.tripwire
            && since + REARM.1 <= now
        {
            self.pause = REARM.0;
        }
        self.tripwire = Tripwire::Down { at: None };
        match &mut self.round {
            Some(round) => round.verdict = verdict,
            None => self.probe(now, verdict),
        }
    }

    fn rearm(&mut self, now: Instant) {
        let at = self.dials.then(|| now + self.pause);
        self.tripwire = Tripwire::Down { at };
        self.pause = (self.pause * 2).min(REARM.1);
    }

    fn send(&mut self, kind: Kind, counter: u64) {
        let seen = self.seen;
        self.commands.push_back(Command::Send(Datagram {
            kind,
            counter,
            seen,
        }));
    }

    fn lose(&mut self, verdict: Verdict) {
        self.lost = true;
        self.commands.push_back(Command::Lose(verdict));
    }

    fn advance(&mut self, now: Instant) {
        let early = if mutant!("silence-hastened") { 2 } else { 0 };
        let silent = |(_, timer): &(u64, Timer)| timer.due() <= now + UNECHOED / 3 * early;
        if self.unechoed.front().is_some_and(silent) {
            return self.lose(Verdict::NoAnswer);
        }
        if let Some(round) = self.round.as_mut().filter(|r| r.timer.due() <= now) {
            // If the timer was late, the answer may have arrived unread while this process was held up.
            if now <= round.timer.due() + PROBE_WAIT {
                round.unanswered += 1;
            }
            if round.unanswered == PROBES {
                let verdict = round.verdict;
                return self.lose(verdict);
            }
            round.timer = Timer::arm(TimerKind::Probe, now + PROBE_WAIT);
            let counter = round.counter;
            self.send(Kind::Probe, counter);
        }
        if self.heartbeat <= now {
            self.counter += 1;
            if self.minds_silence {
                let timer = Timer::arm(TimerKind::Silence, now + UNECHOED);
                self.unechoed.push_back((self.counter, timer));
            }
            self.heartbeat = now + HEARTBEAT;
            self.answers = ANSWERS;
            self.send(Kind::Heartbeat, self.counter);
        }
        if matches!(self.tripwire, Tripwire::Down { at: Some(at) } if at <= now) {
            self.tripwire = Tripwire::Arming;
            self.commands.push_back(Command::Arm);
        }
    }
}

#[cfg(test)]
mod tests;
