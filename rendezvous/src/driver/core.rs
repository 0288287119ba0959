//! What a driver decides: a plain state machine over the steps in flight of one lease.
//!
//! ```text
//! Running --every result arrived--> Resolved(ok) --every participant done--> retired
//!    |---primary error-----------> Resolved(err) ----------^
//!    '---secondary error---> Suspect --primary error, or every participant done--> Resolved(err)
//! ```
//!
//! Invariants
//! 1. A step resolves exactly once, and retires exactly once, after it resolved.
//! 2. The first primary error is the root cause; a consequence is reported only when no cause came.
//! 3. After an error every participant that has not sent it is told to abort, once.
//! 4. Once a participant is lost, has dropped the lease or cannot reach another, no further step runs:
//!    links are bound to the lease, so it cannot recover.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use convoke_common::error::{Code, Error};
use convoke_common::ids::ParticipantIx;

/// What happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// The caller starts step `n`, which waits for `results` tensors.
    Begin { n: u64, results: usize },
    /// A result is there.
    Arrived { n: u64 },
    /// A participant failed the step, or the caller gave up (`from: None`).
    Failed {
        n: u64,
        from: Option<ParticipantIx>,
        error: Error,
    },
    /// A participant has quiesced the step.
    Done { n: u64, from: ParticipantIx },
    /// A participant is gone.
    Lost { peer: ParticipantIx, error: Error },
    /// The lease is given up: every step fails, and later ones as well.
    Closed { error: Error },
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Send `Start` to every participant, then the feeds.
    Start { n: u64 },
    /// Send `Abort` to every participant but `except`, and sweep the own slots.
    Abort {
        n: u64,
        error: Error,
        except: Option<ParticipantIx>,
    },
    /// The step succeeded or its cause is known: tell the caller.
    Resolve { n: u64, result: Result<(), Error> },
    /// The step failed by consequence; its cause may still come.
    Suspect { n: u64, error: Error },
    /// Nothing of the step is left anywhere.
    Retire { n: u64 },
}

#[derive(Debug)]
enum State {
    Running { missing: usize },
    Suspect { error: Error },
    Resolved,
}

#[derive(Debug)]
struct Step {
    state: State,
    failed: bool,
    quiescing: BTreeSet<ParticipantIx>,
}

/// The decisions of one lease's driver.
#[derive(Debug)]
pub struct Core {
    workers: ParticipantIx,
    names: Vec<String>,
    steps: BTreeMap<u64, Step>,
    lost: BTreeSet<ParticipantIx>,
    broken: Option<Error>,
    commands: VecDeque<Command>,
}

impl Core {
    /// A driver of the workers with these names.
    pub fn new(names: Vec<String>) -> Core {
        Core {
            workers: names.len() as ParticipantIx,
            names,
            steps: BTreeMap::new(),
            lost: BTreeSet::new(),
            broken: None,
            commands: VecDeque::new(),
        }
    }

    /// Takes an event.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Begin { n, results } => self.begin(n, results),
            Event::Arrived { n } => self.arrived(n),
            Event::Failed { n, from, error } => {
                match (from, error.code) {
                    // It dropped the lease, and will say nothing more of any step.
                    (Some(w), Code::LeaseRetired) => return self.lost(w, error),
                    (Some(_), Code::PeerLost | Code::WorkerLeaving) => {
                        self.broken.get_or_insert_with(|| error.clone());
                    }
                    _ => {}
                }
                self.failed(n, from, error);
            }
            Event::Done { n, from } => self.done(n, from),
            Event::Lost { peer, error } => self.lost(peer, error),
            Event::Closed { error } => {
                for n in self.steps.keys().copied().collect::<Vec<_>>() {
                    self.failed(n, None, error.clone());
                }
                self.broken.get_or_insert(error);
            }
        }
    }

    fn lost(&mut self, peer: ParticipantIx, error: Error) {
        if peer >= self.workers || !self.lost.insert(peer) {
            return;
        }
        self.broken.get_or_insert_with(|| error.clone());
        for n in self.steps.keys().copied().collect::<Vec<_>>() {
            self.failed(n, Some(peer), error.clone());
            self.done(n, peer);
        }
    }

    /// The next thing to do.
    pub fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// Steps that are not retired.
    pub fn live_steps(&self) -> usize {
        self.steps.len()
    }

    /// Participants that have yet to quiesce a step that failed.
    pub fn unquiesced(&self, n: u64) -> Vec<ParticipantIx> {
        let step = self.steps.get(&n).filter(|s| s.failed);
        step.map_or(vec![], |s| s.quiescing.iter().copied().collect())
    }

    /// Why no further step can succeed, where none can.
    pub fn broken(&self) -> Option<&Error> {
        self.broken.as_ref()
    }

    fn begin(&mut self, n: u64, results: usize) {
        let quiescing: BTreeSet<_> = (0..self.workers)
            .filter(|w| !self.lost.contains(w))
            .collect();
        if let Some(error) = self.broken().cloned() {
            // The living ones learn of the step all the same, so that every window moves alike.
            self.steps.insert(
                n,
                Step {
                    state: State::Resolved,
                    failed: true,
                    quiescing,
                },
            );
            self.commands.push_back(Command::Start { n });
            self.commands.push_back(Command::Abort {
                n,
                error: error.clone(),
                except: None,
            });
            self.commands.push_back(Command::Resolve {
                n,
                result: Err(error),
            });
            return self.settle(n);
        }
        self.steps.insert(
            n,
            Step {
                state: State::Running { missing: results },
                failed: false,
                quiescing,
            },
        );
        self.commands.push_back(Command::Start { n });
        if results == 0 {
            self.finish(n);
        }
    }

    fn arrived(&mut self, n: u64) {
        let Some(Step {
            state: State::Running { missing },
            ..
        }) = self.steps.get_mut(&n)
        else {
            return;
        };
        *missing -= 1;
        if *missing == 0 {
            self.finish(n);
        }
    }

    fn finish(&mut self, n: u64) {
        if let Some(s) = self.steps.get_mut(&n) {
            s.state = State::Resolved;
            self.commands
                .push_back(Command::Resolve { n, result: Ok(()) });
            self.settle(n);
        }
    }

    fn failed(&mut self, n: u64, from: Option<ParticipantIx>, error: Error) {
        let Some(step) = self.steps.get_mut(&n) else {
            return;
        };
        let first = matches!(step.state, State::Running { .. });
        if first {
            step.failed = true;
            self.commands.push_back(Command::Abort {
                n,
                error: error.clone(),
                except: from,
            });
        }
        // The caller's own word is final: nobody waits for a cause of it.
        let is_cause = from.is_none() || !error.code.is_secondary();
        match (&step.state, is_cause) {
            (State::Running { .. } | State::Suspect { .. }, true) => {
                step.state = State::Resolved;
                let error = self.with_stopped(error, from);
                self.commands.push_back(Command::Resolve {
                    n,
                    result: Err(error),
                });
            }
            (State::Running { .. }, false) => {
                let error = self.with_stopped(error, from);
                if let Some(step) = self.steps.get_mut(&n) {
                    step.state = State::Suspect {
                        error: error.clone(),
                    };
                }
                self.commands.push_back(Command::Suspect { n, error });
            }
            _ => {}
        }
        self.settle(n);
    }

    fn with_stopped(&self, mut error: Error, from: Option<ParticipantIx>) -> Error {
        let others = (0..self.workers).filter(|w| Some(*w) != from);
        error.stopped = others.map(|w| self.names[usize::from(w)].clone()).collect();
        error
    }

    fn done(&mut self, n: u64, from: ParticipantIx) {
        if let Some(step) = self.steps.get_mut(&n) {
            step.quiescing.remove(&from);
            self.settle(n);
        }
    }

    /// Retires a step that resolved and has quiesced everywhere.
    fn settle(&mut self, n: u64) {
        let Some(step) = self.steps.get_mut(&n) else {
            return;
        };
        if !step.quiescing.is_empty() {
            return;
        }
        if let State::Suspect { error } = &step.state {
            // Everybody who could have sent a cause has spoken.
            let result = Err(error.clone());
            self.commands.push_back(Command::Resolve { n, result });
            step.state = State::Resolved;
        }
        if matches!(step.state, State::Resolved) {
            self.steps.remove(&n);
            self.commands.push_back(Command::Retire { n });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(events: Vec<Event>, want: &str) {
        let mut core = Core::new(vec!["a".into(), "b".into()]);
        let mut got = Vec::new();
        for e in events {
            core.apply(e);
            while let Some(c) = core.next_command() {
                got.push(match c {
                    Command::Start { n } => format!("start {n}"),
                    Command::Abort { n, except, .. } => format!("abort {n} except {except:?}"),
                    Command::Resolve { n, result: Ok(()) } => format!("ok {n}"),
                    Command::Resolve { n, result: Err(e) } => {
                        format!("err {n} {} stopped {:?}", e.message, e.stopped)
                    }
                    Command::Suspect { n, error } => format!("suspect {n} {}", error.message),
                    Command::Retire { n } => format!("retire {n}"),
                });
            }
        }
        assert_eq!(got.join("; "), want);
    }

    fn begin() -> Event {
        Event::Begin { n: 0, results: 1 }
    }
    fn done(from: u16) -> Event {
        Event::Done { n: 0, from }
    }
    fn failed(from: u16, code: Code, m: &str) -> Event {
        Event::Failed {
            n: 0,
            from: Some(from),
            error: Error::new(code, m),
        }
    }

    #[test]
    fn success_resolves_before_it_retires() {
        check(
            vec![begin(), done(0), Event::Arrived { n: 0 }, done(1)],
            "start 0; ok 0; retire 0",
        );
        check(
            vec![begin(), done(0), done(1), Event::Arrived { n: 0 }],
            "start 0; ok 0; retire 0",
        );
    }

    #[test]
    fn first_primary_error_is_the_cause() {
        check(
            vec![
                begin(),
                failed(1, Code::KernelFailed, "boom"),
                failed(0, Code::KernelFailed, "later"),
                done(0),
                done(1),
            ],
            "start 0; abort 0 except Some(1); err 0 boom stopped [\"a\"]; retire 0",
        );
    }

    #[test]
    fn a_consequence_waits_for_its_cause() {
        check(
            vec![
                begin(),
                failed(0, Code::PeerLost, "lost b"),
                failed(1, Code::KernelFailed, "boom"),
                done(0),
                done(1),
            ],
            "start 0; abort 0 except Some(0); suspect 0 lost b; err 0 boom stopped [\"a\"]; retire 0",
        );
        check(
            vec![
                begin(),
                failed(0, Code::PeerLost, "lost b"),
                done(0),
                done(1),
            ],
            "start 0; abort 0 except Some(0); suspect 0 lost b; err 0 lost b stopped [\"b\"]; retire 0",
        );
    }

    #[test]
    fn a_lost_participant_ends_this_and_later_steps() {
        let lost = Event::Lost {
            peer: 1,
            error: Error::new(Code::PeerLost, "lost b"),
        };
        check(
            vec![begin(), lost, done(0), Event::Begin { n: 1, results: 1 }],
            "start 0; abort 0 except Some(1); suspect 0 lost b; err 0 lost b stopped [\"a\"]; retire 0; \
             start 1; abort 1 except None; err 1 lost b stopped []",
        );
    }

    #[test]
    fn a_dropped_lease_ends_every_step_and_those_to_come() {
        let retired = || Error::new(Code::LeaseRetired, "gone");
        check(
            vec![
                begin(),
                Event::Begin { n: 1, results: 1 },
                failed(1, Code::LeaseRetired, "gone"),
                done(0),
                Event::Done { n: 1, from: 0 },
                Event::Begin { n: 2, results: 1 },
            ],
            "start 0; start 1; abort 0 except Some(1); suspect 0 gone; abort 1 except Some(1); suspect 1 gone; \
             err 0 gone stopped [\"a\"]; retire 0; err 1 gone stopped [\"a\"]; retire 1; \
             start 2; abort 2 except None; err 2 gone stopped []",
        );
        check(
            vec![
                begin(),
                Event::Closed { error: retired() },
                Event::Begin { n: 1, results: 1 },
            ],
            "start 0; abort 0 except None; err 0 gone stopped [\"a\", \"b\"]; \
             start 1; abort 1 except None; err 1 gone stopped []",
        );
    }

    #[test]
    fn a_worker_cut_off_from_another_breaks_the_lease() {
        check(
            vec![
                begin(),
                failed(0, Code::PeerLost, "lost b"),
                done(0),
                done(1),
                Event::Begin { n: 1, results: 1 },
            ],
            "start 0; abort 0 except Some(0); suspect 0 lost b; err 0 lost b stopped [\"b\"]; retire 0; \
             start 1; abort 1 except None; err 1 lost b stopped []",
        );
    }

    #[test]
    fn the_callers_word_is_final() {
        let error = Error::new(Code::Cancelled, "dropped");
        check(
            vec![
                begin(),
                Event::Failed {
                    n: 0,
                    from: None,
                    error,
                },
                done(0),
                done(1),
            ],
            "start 0; abort 0 except None; err 0 dropped stopped [\"a\", \"b\"]; retire 0",
        );
    }
}
