//! The decisions of a driver: a plain state machine over the steps in flight of one lease.
//!
//! ```text
//! Running --every result arrived--> Resolved --every participant quiet--> retired
//!    |---cause------------------------> ^
//!    |---consequence---> Suspect -------|  a cause, everybody quiet, or no cause within CAUSE_BOUND
//!    '---a lost participant-> CollectingLosses -> Resolved, once everybody is quiet or lost, at a request of the
//!                                          caller, or when LOSS_GRACE is over
//! ```
//!
//! A *cause* is a primary error, the caller's own request to end the step, or a participant that the driver itself has
//! lost. A *consequence* is a statement of one participant about another: that it lost contact with it, or that its
//! lease is gone.
//!
//! Invariants
//! 1. A step resolves exactly once, and retires exactly once, after it resolved.
//! 2. The caller gets the first cause; a consequence is reported only if no cause came. Causes that come later are
//!    attached; those that come within [`LOSS_GRACE`] of a loss are part of its error, so that the caller learns of
//!    every participant that died with the first.
//! 3. After an error every participant that has not sent it is told to abort, once.
//! 4. Once a participant is lost, has dropped the lease, leaves, is wedged or cannot reach another, no further step
//!    runs: links are bound to the lease, so it cannot recover.
//! 5. A participant that does not quiesce a failed step is given up after [`QUIESCE_BOUND`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use convoke_common::actor;
use convoke_common::detection::bounds::PROCESS_KILLED;
use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::error::{Code, Error};
use convoke_common::mutant;
use convoke_graph::ids::ParticipantIx;
use tokio::time::Instant;

/// How long a consequence waits for its cause while the driver sees nothing wrong with the participant that it blames:
/// all processes with a link to a killed process notice within this time of its death.
pub const CAUSE_BOUND: Duration = PROCESS_KILLED;

/// How long a participant may take to quiesce a failed step: the five seconds after which it declares itself wedged,
/// and the time in which that report arrives. Kernels notice within milliseconds that they are cancelled.
pub const QUIESCE_BOUND: Duration = Duration::from_millis(5500);

/// How long the error of a lost participant waits for the losses of others that died with it. It waits only while a
/// participant has neither quiesced the step nor been lost: those that live quiesce within milliseconds.
pub const LOSS_GRACE: Duration = Duration::from_millis(100);

/// The most errors that are attached to a step's cause, since many may fail at once.
const MOST_ATTACHED: usize = 8;

/// An event at the driver.
#[derive(Debug, Clone)]
pub enum Event {
    /// The caller starts step `n`, which waits for `results` tensors.
    Begin { n: u64, results: usize },
    /// A result of step `n` arrived.
    Arrived { n: u64 },
    /// A participant failed the step, or the caller gave up (`from: None`).
    Failed {
        n: u64,
        from: Option<ParticipantIx>,
        error: Error,
    },
    /// A participant has quiesced the step.
    Done { n: u64, from: ParticipantIx },
    /// The link to a participant ended.
    Lost { peer: ParticipantIx, error: Error },
    /// The lease is closed: every step fails, those that begin later too.
    Closed { error: Error },
}

/// A command to the shell.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Send `Start` to every participant, then the feeds.
    Start { n: u64 },
    /// Send `Abort` to every participant except `except`, and sweep the driver's own slots.
    Abort {
        n: u64,
        error: Error,
        except: Option<ParticipantIx>,
    },
    /// Tell the caller that the step succeeded, or why it failed.
    Resolve { n: u64, result: Result<(), Error> },
    /// Add another cause to the error of a failed step, if the caller has not taken that error yet.
    Attach { n: u64, error: Error },
    /// Forget the step: nothing of it is left at any participant.
    Retire { n: u64 },
}

/// The error of a step that the caller has not got yet.
#[derive(Debug)]
struct HeldError {
    error: Error,
    from: Option<ParticipantIx>,
    /// The participant that the error reports as gone.
    blamed: Option<ParticipantIx>,
    /// Fires when the caller gets it at the latest.
    until: Timer,
}

#[derive(Debug)]
enum StepPhase {
    Running {
        missing: usize,
    },
    /// A consequence waits for its cause.
    Suspect(HeldError),
    /// The driver learns which participants were lost together with the first.
    CollectingLosses(HeldError),
    Resolved,
}

#[derive(Debug)]
struct Step {
    state: StepPhase,
    /// The participants that may still run something of the step.
    quiescing: BTreeSet<ParticipantIx>,
    failed: bool,
    /// Fires when the participants that have not quiesced the step are given up; absent while the step runs, or if it
    /// succeeded and the driver is not closed.
    overdue: Option<Timer>,
    /// The participants that the step's cause and the errors attached to it are about.
    culprits: BTreeSet<ParticipantIx>,
    /// How many errors are attached to the step's cause.
    attached: usize,
}

/// Why no further step runs.
#[derive(Debug)]
struct LeaseFailure {
    from: Option<ParticipantIx>,
    error: Error,
    cause: bool,
}

/// The decisions of one lease's driver.
#[derive(Debug)]
pub struct Core {
    workers: ParticipantIx,
    names: Vec<String>,
    steps: BTreeMap<u64, Step>,
    /// The participants whose links ended.
    lost: BTreeSet<ParticipantIx>,
    /// The participants that say nothing more about any step.
    silent: BTreeSet<ParticipantIx>,
    /// The participants that no new plan should use.
    unusable: BTreeSet<ParticipantIx>,
    broken: Option<LeaseFailure>,
    commands: VecDeque<Command>,
}

impl actor::Core for Core {
    type Command = Command;

    fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }
}

impl Core {
    /// A core for the driver of the workers with these names.
    pub fn new(names: Vec<String>) -> Core {
        Core {
            workers: names.len() as ParticipantIx,
            names,
            steps: BTreeMap::new(),
            lost: BTreeSet::new(),
            silent: BTreeSet::new(),
            unusable: BTreeSet::new(),
            broken: None,
            commands: VecDeque::new(),
        }
    }

    /// Takes an event; the commands that follow from it are returned by [`actor::Core::next_command`].
    pub fn apply(&mut self, now: Instant, event: Event) {
        match event {
            Event::Begin { n, results } => self.begin(now, n, results),
            Event::Arrived { n } => self.arrived(n),
            Event::Failed { n, from, error } => match from {
                Some(w) => self.reported(now, n, w, error),
                None => self.failed(now, n, None, error, None),
            },
            Event::Done { n, from } => self.done(n, from),
            Event::Lost { peer, error } => self.lost(now, peer, error),
            Event::Closed { error } => self.closed(now, &error),
        }
    }

    /// When [`Core::handle_timeout`] is to be called; `None` if nothing waits for a time.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = |s: &Step| match &s.state {
            StepPhase::Suspect(held) | StepPhase::CollectingLosses(held) => Some(held.until.due()),
            _ => s.overdue.as_ref().map(Timer::due),
        };
        self.steps.values().filter_map(due).min()
    }

    /// Ends every wait whose time is over: for a cause, or for a participant that does not quiesce.
    pub fn handle_timeout(&mut self, now: Instant) {
        for n in self.live() {
            let Some(step) = self.steps.get(&n) else {
                continue;
            };
            match &step.state {
                StepPhase::Suspect(s) if s.until.due() <= now => self.convict(n),
                StepPhase::CollectingLosses(l) if l.until.due() <= now => {
                    self.report_losses(n);
                    self.settle(n);
                }
                StepPhase::Resolved if step.overdue.as_ref().is_some_and(|t| t.due() <= now) => {
                    let late: Vec<_> = step.quiescing.iter().copied().collect();
                    for peer in late {
                        let msg = format!("{} did not stop a step that ended", self.name(peer));
                        let error = Error::new(Code::Wedged, msg).advise("restart this worker");
                        self.unusable.insert(peer);
                        self.give_up(now, peer, &self.of(peer, error));
                    }
                }
                _ => {}
            }
        }
    }

    /// How many steps have not retired.
    pub fn live_steps(&self) -> usize {
        self.steps.len()
    }

    /// The participants that have not quiesced step `n`.
    pub fn unfinished(&self, n: u64) -> Vec<ParticipantIx> {
        let step = self.steps.get(&n);
        step.map_or(vec![], |s| s.quiescing.iter().copied().collect())
    }

    /// Why no further step can succeed; `None` while steps can.
    pub fn broken(&self) -> Option<Error> {
        let LeaseFailure { from, error, cause } = self.broken.as_ref()?;
        let reporter = from.filter(|from| !cause && self.blamed(*from, error).is_some());
        Some(self.told_by(reporter, error.clone()))
    }

    /// Whether no further step can succeed.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// The loss of a participant that another one, `reporter`, has noticed: the driver itself sees nothing wrong with
    /// it.
    fn told_by(&self, reporter: Option<ParticipantIx>, error: Error) -> Error {
        match reporter.filter(|from| *from < self.workers) {
            Some(from) => error.said_by(self.name(from)),
            None => error,
        }
    }

    /// Participants that a plan in place of this one should not use: lost, leaving, wedged, or out of another one's
    /// reach.
    pub fn unusable(&self) -> impl Iterator<Item = ParticipantIx> {
        self.unusable.iter().copied()
    }

    fn live(&self) -> Vec<u64> {
        self.steps.keys().copied().collect()
    }

    fn name(&self, w: ParticipantIx) -> &str {
        self.names.get(usize::from(w)).map_or("?", |n| n.as_str())
    }

    /// Adds the participant's name to an error.
    fn of(&self, w: ParticipantIx, error: Error) -> Error {
        error.at(convoke_common::Site {
            worker: Some(self.name(w).to_owned()),
            ..Default::default()
        })
    }

    /// The other participant whose loss a participant's error reports; `None` for errors of another kind.
    fn blamed(&self, from: ParticipantIx, error: &Error) -> Option<ParticipantIx> {
        named(&self.names, error).filter(|ix| *ix != from)
    }

    /// The participants that an error and the errors attached to it are about; `about` is that of the error itself
    /// where it does not say so.
    fn culprits(&self, about: Option<ParticipantIx>, error: &Error) -> BTreeSet<ParticipantIx> {
        let first = about.or_else(|| named(&self.names, error));
        let attached = error.attached.iter();
        let attached = attached.filter_map(|e| named(&self.names, e));
        first.into_iter().chain(attached).collect()
    }

    fn breaks(&mut self, from: Option<ParticipantIx>, error: &Error, cause: bool) {
        match &mut self.broken {
            Some(b) if b.cause || !cause => {
                // A participant that was lost as well. The caller's own end of the lease only repeats what the driver
                // knows.
                let told = b.error.attached.iter();
                let mut told = told.filter_map(|e| named(&self.names, e)).map(Some);
                let another = cause && error.code == Code::PeerLost && from.is_some();
                let another = another && b.from != from && told.all(|ix| ix != from);
                if another && b.error.attached.len() < MOST_ATTACHED {
                    b.error.attached.push(error.clone());
                }
            }
            _ => {
                self.broken = Some(LeaseFailure {
                    from,
                    error: error.clone(),
                    cause,
                });
            }
        }
    }

    /// Takes a participant's report that it failed the step.
    fn reported(&mut self, now: Instant, n: u64, from: ParticipantIx, error: Error) {
        match error.code {
            // The participant will say nothing more about any step. The end of its lease explains nothing, so the error
            // only names the participant at which it ended.
            Code::LeaseRetired => {
                let msg = format!("{} no longer holds the lease", self.name(from));
                let error = self.of(from, Error::new(Code::PeerLost, msg));
                self.give_up(now, from, &error);
            }
            Code::Wedged => {
                self.unusable.insert(from);
                self.give_up(now, from, &error);
            }
            Code::WorkerLeaving => {
                self.unusable.insert(from);
                self.breaks(Some(from), &error, true);
                self.failed(now, n, Some(from), error, Some(from));
            }
            Code::PeerLost => {
                self.breaks(Some(from), &error, false);
                self.failed(now, n, Some(from), error, Some(from));
            }
            _ => self.failed(now, n, Some(from), error, Some(from)),
        }
    }

    fn lost(&mut self, now: Instant, peer: ParticipantIx, error: Error) {
        if peer < self.workers && self.lost.insert(peer) {
            self.unusable.insert(peer);
            let error = self.of(peer, error);
            self.give_up(now, peer, &error);
        }
    }

    /// Gives up a participant, from which nothing more is expected: every step fails.
    fn give_up(&mut self, now: Instant, peer: ParticipantIx, error: &Error) {
        self.silent.insert(peer);
        self.breaks(Some(peer), error, self.is_cause(Some(peer), error));
        for n in self.live() {
            self.failed(now, n, Some(peer), error.clone(), Some(peer));
            self.done(n, peer);
        }
    }

    /// Fails every step; one that has succeeded is waited for no longer than the others.
    fn closed(&mut self, now: Instant, error: &Error) {
        for n in self.live() {
            self.failed(now, n, None, error.clone(), None);
            if let Some(step) = self.steps.get_mut(&n) {
                step.overdue.get_or_insert_with(|| quiesces(now));
            }
        }
        self.breaks(None, error, true);
    }

    fn begin(&mut self, now: Instant, n: u64, results: usize) {
        let silent = &self.silent;
        let quiescing = (0..self.workers).filter(|w| !silent.contains(w)).collect();
        self.steps.insert(
            n,
            Step {
                state: StepPhase::Running { missing: results },
                quiescing,
                failed: false,
                overdue: None,
                culprits: BTreeSet::new(),
                attached: 0,
            },
        );
        self.commands.push_back(Command::Start { n });
        if let Some(broken) = &self.broken {
            // The workers learn of the step nevertheless, so that their windows move alike.
            let (from, error) = (broken.from, broken.error.clone());
            self.failed(now, n, from, error, None);
            // The losses that were known before the step are part of the error.
            self.report_losses(n);
            self.settle(n);
        } else if results == 0 {
            self.finish(n);
        }
    }

    fn arrived(&mut self, n: u64) {
        let Some(Step {
            state: StepPhase::Running { missing },
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
            s.state = StepPhase::Resolved;
            self.commands
                .push_back(Command::Resolve { n, result: Ok(()) });
            self.settle(n);
        }
    }

    fn is_cause(&self, from: Option<ParticipantIx>, error: &Error) -> bool {
        // A request of the caller is final, and so is a loss that the driver itself sees.
        let Some(from) = from else { return true };
        let about = self.blamed(from, error).unwrap_or(from);
        !error.code.is_secondary() || error.code == Code::PeerLost && self.lost.contains(&about)
    }

    /// Ends a step with an error, wherever the error is from; all participants except `except` are told to abort.
    fn failed(
        &mut self,
        now: Instant,
        n: u64,
        from: Option<ParticipantIx>,
        error: Error,
        except: Option<ParticipantIx>,
    ) {
        let cause = self.is_cause(from, &error);
        let blamed = from.and_then(|w| self.blamed(w, &error));
        let culprits = self.culprits(blamed.or(from), &error);
        let Some(step) = self.steps.get_mut(&n) else {
            return;
        };
        if let StepPhase::Running { .. } = step.state {
            step.failed = true;
            step.overdue = Some(quiesces(now));
            let error = error.clone();
            self.commands.push_back(Command::Abort { n, error, except });
        }
        match &step.state {
            StepPhase::Running { .. } if !cause => {
                step.state = StepPhase::Suspect(HeldError {
                    error,
                    from,
                    blamed,
                    until: Timer::arm(TimerKind::Cause, now + CAUSE_BOUND),
                });
            }
            StepPhase::Running { .. } | StepPhase::Suspect(_) if cause => {
                match error.code == Code::PeerLost && from.is_some() {
                    true => {
                        step.culprits = culprits;
                        step.attached = error.attached.len();
                        step.state = StepPhase::CollectingLosses(HeldError {
                            error,
                            from,
                            blamed,
                            until: Timer::arm(TimerKind::Losses, now + LOSS_GRACE),
                        });
                    }
                    false => self.resolve(n, from, blamed, error),
                }
            }
            // The caller waits no longer.
            StepPhase::CollectingLosses(_) if from.is_none() => self.report_losses(n),
            // Two participants each say that the other is gone: no third one is to blame.
            StepPhase::Suspect(s) if s.from.is_some() && s.from == blamed && s.blamed == from => {
                self.convict(n);
            }
            StepPhase::CollectingLosses(_) | StepPhase::Resolved if cause => {
                self.attach(n, from, blamed, error)
            }
            _ => {}
        }
        self.settle(n);
    }

    /// Resolves a step that a lost participant ended.
    fn report_losses(&mut self, n: u64) {
        if let Some(Step {
            state: StepPhase::CollectingLosses(l),
            ..
        }) = self.steps.get(&n)
        {
            let (from, blamed, error) = (l.from, l.blamed, l.error.clone());
            self.resolve(n, from, blamed, error);
        }
    }

    /// Attaches another cause to a step that has failed already.
    fn attach(
        &mut self,
        n: u64,
        from: Option<ParticipantIx>,
        blamed: Option<ParticipantIx>,
        error: Error,
    ) {
        let Some(step) = self.steps.get_mut(&n) else {
            return;
        };
        // A request of the caller is not attached, nor another error about the same participant.
        let Some(about) = blamed.or(from) else { return };
        if !step.failed || step.attached >= MOST_ATTACHED || !step.culprits.insert(about) {
            return;
        }
        step.attached += 1;
        match &mut step.state {
            StepPhase::CollectingLosses(l) => l.error.attached.push(error),
            _ => self.commands.push_back(Command::Attach { n, error }),
        }
    }

    fn resolve(
        &mut self,
        n: u64,
        from: Option<ParticipantIx>,
        blamed: Option<ParticipantIx>,
        mut error: Error,
    ) {
        let Some(step) = self.steps.get(&n) else {
            return;
        };
        let mut culprits = self.culprits(blamed.or(from), &error);
        culprits.extend(&step.culprits);
        let gone = |w: &ParticipantIx| self.lost.contains(w) || culprits.contains(w);
        let stopped = (0..self.workers).filter(|w| !gone(w));
        error.stopped = stopped.map(|w| self.name(w).to_owned()).collect();
        if let Some(step) = self.steps.get_mut(&n) {
            step.state = StepPhase::Resolved;
            step.culprits = culprits;
            step.attached = error.attached.len();
            let result = Err(error);
            self.commands.push_back(Command::Resolve { n, result });
        }
    }

    /// Resolves a step with its consequence, since no cause came.
    fn convict(&mut self, n: u64) {
        let Some(Step {
            state: StepPhase::Suspect(s),
            ..
        }) = self.steps.get(&n)
        else {
            return;
        };
        let (from, blamed) = (s.from, s.blamed);
        let error = self.told_by(from.filter(|_| blamed.is_some()), s.error.clone());
        if from.is_some() {
            self.unusable.extend(blamed);
        }
        self.resolve(n, from, blamed, error);
    }

    fn done(&mut self, n: u64, from: ParticipantIx) {
        if let Some(step) = self.steps.get_mut(&n) {
            step.quiescing.remove(&from);
            self.settle(n);
        }
    }

    /// Retires a step that resolved and has quiesced everywhere.
    fn settle(&mut self, n: u64) {
        let Some(step) = self.steps.get(&n) else {
            return;
        };
        let early = matches!(step.state, StepPhase::Resolved) && mutant!("slot-reused-early");
        if !step.quiescing.is_empty() && !early {
            return;
        }
        if let StepPhase::Suspect(_) = step.state {
            // All participants that could have sent a cause have quiesced.
            self.convict(n);
        }
        self.report_losses(n);
        if let Some(step) = self.steps.get(&n)
            && matches!(step.state, StepPhase::Resolved)
        {
            self.steps.remove(&n);
            self.commands.push_back(Command::Retire { n });
        }
    }
}

/// The timer of the participants that have not quiesced a step that ended now.
fn quiesces(now: Instant) -> Timer {
    Timer::arm(TimerKind::Quiesce, now + QUIESCE_BOUND)
}

/// The participant whose loss an error reports.
fn named(names: &[String], error: &Error) -> Option<ParticipantIx> {
    if error.code != Code::PeerLost {
        return None;
    }
    let name = error.site.as_ref()?.worker.as_ref()?;
    let ix = names.iter().position(|n| n == name)?;
    Some(ix as ParticipantIx)
}

#[cfg(test)]
mod tests;
