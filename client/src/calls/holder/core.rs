//! The lease of a function, from the first call that needs one until the function is dropped: a plain state machine,
//! without locks, I/O and clock.
//!
//! ```text
//! Absent ─asked─> Planning ─planned─> Live ─asked for more─> Draining ─its calls left─> Releasing ─released─> Planning
//!   ^                │                 │ │                                                ^
//!   ├ failed or left ┘                 │ └─ asked for more, and broken or not called ─────┘
//!   └─left─ Unloading <─unloaded───────┘
//!
//! Draining  ─ left or unloaded ─> Live          Releasing ─ left or failed ─> Live, or released after an unload ─> Absent
//! ```
//!
//! A lease that is asked for *more* does not hold the sizes of a call, or is broken.
//!
//! A *caller* asks for the lease. It is answered at once where the lease serves it. Otherwise something has to be done
//! first, and one caller at a time does it: that caller has the *turn* and is given *tasks*, and the others wait in the
//! order in which they came. Whoever unloads the function is a caller, too.
//!
//! Invariants
//! 1. Nobody waits while the function has no lease or a live one: somebody has the turn.
//! 2. A caller that leaves passes its turn on to the next one, at the point that it has reached.
//! 3. A lease that works is released between calls with a permit only, unless the function is unloaded or dropped.
//! 4. A failure ends the turn, and is told to those that would have failed in the same way: they asked before the turn
//!    began, for the same sizes and without the same workers, and would not wait for longer. Everybody else has a turn
//!    of its own, so that a failed plan is tried anew.
//! 5. At most [`MOST_ORDERS`](super::interface::MOST_ORDERS) orders are on their way to a caller.
//! 6. A lease leaves the core by [`Command::Discard`], to whoever unloads the function, or with the core.
//! 7. The core takes any event at any time: one that fits no turn changes nothing, and drops the lease that it brings.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use convoke_common::actor;
use convoke_graph::dim::Bindings;
use rustc_hash::FxHashSet;

use super::interface::{
    CallerId, Command, Event, InstalledLease, Order, Predecessor, Refusal, Request, Task,
};

/// A lease, and the callers that may call it.
struct CalledLease<L> {
    lease: L,
    callers: FxHashSet<CallerId>,
}

/// The turn of a caller that asked for a lease.
struct Turn<C> {
    id: CallerId,
    request: Request,
    caller: C,
    /// The caller that asked last when the turn began.
    latest: CallerId,
    /// Whether the function was unloaded meanwhile: the caller was told so, and is about to leave.
    revoked: bool,
}

enum State<L, C> {
    Absent,
    Planning(Turn<C>),
    Live(CalledLease<L>),
    /// The calls of a lease end, so that it can be replaced.
    Draining(CalledLease<L>, Turn<C>),
    /// A lease is released, and is to be replaced.
    Releasing(CalledLease<L>, Turn<C>),
    /// This caller releases the lease, since it unloads the function.
    Unloading(CallerId),
}

struct Waiter<C> {
    id: CallerId,
    /// What the caller needs of a lease; nothing where it unloads the function.
    request: Option<Request>,
    caller: C,
}

impl<C> Turn<C> {
    /// Whether a failure of this turn is also that of a caller that waits.
    fn fails(&self, waiter: &Waiter<C>) -> bool {
        let (mine, Some(other)) = (&self.request, &waiter.request) else {
            return false;
        };
        // How long a turn waits for an absent coordinator depends on its deadline.
        let as_long = match (mine.deadline, other.deadline) {
            (None, None) => true,
            (Some(mine), Some(other)) => other <= mine,
            _ => false,
        };
        waiter.id <= self.latest
            && as_long
            && mine.sizes == other.sizes
            && mine.avoid == other.avoid
    }
}

/// The lease of a function.
pub(crate) struct Core<L, F, C> {
    state: State<L, C>,
    /// Those that wait, in the order in which they came.
    waiting: VecDeque<Waiter<C>>,
    /// What the lease that was released last leaves to the next one; nothing where that failed, or where nobody is left
    /// who needs it.
    predecessor: Predecessor,
    next: CallerId,
    commands: VecDeque<Command<L, F, C>>,
}

impl<L, F, C> Default for Core<L, F, C> {
    fn default() -> Self {
        Core {
            state: State::Absent,
            waiting: VecDeque::new(),
            predecessor: Predecessor::default(),
            next: 0,
            commands: VecDeque::new(),
        }
    }
}

impl<L, F, C> actor::Core for Core<L, F, C> {
    type Command = Command<L, F, C>;

    fn next_command(&mut self) -> Option<Self::Command> {
        self.commands.pop_front()
    }
}

impl<L: InstalledLease, F: Clone, C: Clone> Core<L, F, C> {
    /// The number of a new caller.
    pub(crate) fn newcomer(&mut self) -> CallerId {
        self.next += 1;
        self.next
    }

    /// The lease, until it is released for another or for good.
    pub(crate) fn lease(&self) -> Option<&L> {
        match &self.state {
            State::Live(live) | State::Draining(live, _) | State::Releasing(live, _) => {
                Some(&live.lease)
            }
            State::Absent | State::Planning(_) | State::Unloading(_) => None,
        }
    }

    /// Lets a new caller call the lease, if the lease serves it at once. It says [`Event::Left`] afterwards.
    pub(crate) fn enter(&mut self, sizes: &Bindings) -> Option<(CallerId, L)> {
        match &mut self.state {
            State::Live(live) if live.lease.holds(sizes) => {
                self.next += 1;
                live.callers.insert(self.next);
                Some((self.next, live.lease.clone()))
            }
            _ => None,
        }
    }

    /// Takes an event.
    pub(crate) fn apply(&mut self, event: Event<L, F, C>) {
        match event {
            Event::Asked {
                id,
                request,
                caller,
            } => self.waiting.push_back(Waiter {
                id,
                request: Some(request),
                caller,
            }),
            Event::Unloaded { id, caller } => self.unloaded(id, caller),
            Event::Left { id } => self.left(id),
            Event::Released { id, outcome } => self.released(id, outcome),
            Event::Planned { id, outcome } => self.planned(id, outcome),
        }
        self.serve();
    }

    fn unloaded(&mut self, id: CallerId, caller: C) {
        let mut unloaders = VecDeque::new();
        for waiter in std::mem::take(&mut self.waiting) {
            match waiter.request {
                Some(_) => self.answer(waiter.caller, Err(Refusal::Unloaded)),
                None => unloaders.push_back(waiter),
            }
        }
        self.waiting = unloaders;
        self.waiting.push_back(Waiter {
            id,
            request: None,
            caller,
        });
        self.state = match std::mem::replace(&mut self.state, State::Absent) {
            // Nothing has begun that would have to end first.
            State::Draining(live, turn) => {
                self.answer(turn.caller, Err(Refusal::Unloaded));
                State::Live(live)
            }
            State::Planning(turn) => State::Planning(self.revoke(turn)),
            State::Releasing(live, turn) => State::Releasing(live, self.revoke(turn)),
            other => other,
        };
    }

    fn left(&mut self, id: CallerId) {
        if let State::Live(live) | State::Draining(live, _) | State::Releasing(live, _) =
            &mut self.state
            && live.callers.remove(&id)
            && let State::Live(_) | State::Releasing(..) = self.state
        {
            return;
        }
        self.state = match std::mem::replace(&mut self.state, State::Absent) {
            State::Draining(live, turn) | State::Releasing(live, turn) if turn.id == id => {
                State::Live(live)
            }
            State::Draining(live, turn) if live.callers.is_empty() => self.release(live, turn),
            State::Planning(turn) if turn.id == id => State::Absent,
            State::Unloading(unloader) if unloader == id => State::Absent,
            other => other,
        };
        self.waiting.retain(|waiter| waiter.id != id);
    }

    fn released(&mut self, id: CallerId, outcome: Result<Predecessor, F>) {
        self.state = match std::mem::replace(&mut self.state, State::Absent) {
            State::Releasing(live, turn) if turn.id == id => match outcome {
                Ok(predecessor) => {
                    self.predecessor = predecessor;
                    self.commands.push_back(Command::Discard(live.lease));
                    match turn.revoked {
                        true => State::Absent,
                        false => self.plan(turn),
                    }
                }
                Err(failure) => {
                    self.failed(turn, failure);
                    State::Live(live)
                }
            },
            other => other,
        };
    }

    fn planned(&mut self, id: CallerId, outcome: Result<L, F>) {
        self.state = match (std::mem::replace(&mut self.state, State::Absent), outcome) {
            (State::Planning(turn), Ok(lease)) if turn.id == id => {
                let callers = FxHashSet::default();
                let mut live = CalledLease { lease, callers };
                if !turn.revoked {
                    self.grant(&mut live, id, turn.caller);
                }
                State::Live(live)
            }
            (State::Planning(turn), Err(failure)) if turn.id == id => {
                self.predecessor = Predecessor::default();
                self.failed(turn, failure);
                State::Absent
            }
            (other, outcome) => {
                self.commands.extend(outcome.ok().map(Command::Discard));
                other
            }
        };
    }

    /// Serves those that wait, until somebody has the turn.
    fn serve(&mut self) {
        while let State::Absent | State::Live(_) = self.state
            && let Some(waiter) = self.waiting.pop_front()
        {
            let Waiter {
                id,
                request,
                caller,
            } = waiter;
            let state = std::mem::replace(&mut self.state, State::Absent);
            self.state = match (state, request) {
                (State::Live(live), None) => {
                    self.predecessor = Predecessor::default();
                    self.task(caller, Task::Release(live.lease));
                    State::Unloading(id)
                }
                (other, None) => {
                    self.predecessor = Predecessor::default();
                    self.answer(caller, Err(Refusal::Unloaded));
                    other
                }
                (State::Live(mut live), Some(request)) if live.lease.holds(&request.sizes) => {
                    self.grant(&mut live, id, caller);
                    State::Live(live)
                }
                (state, Some(request)) => {
                    let turn = Turn {
                        id,
                        request,
                        caller,
                        latest: self.next,
                        revoked: false,
                    };
                    match state {
                        // Calls of a broken lease end by themselves, and where nobody calls the lease there is nothing
                        // to wait for.
                        State::Live(live) if live.callers.is_empty() || live.lease.is_broken() => {
                            self.release(live, turn)
                        }
                        State::Live(live) => State::Draining(live, turn),
                        _ => self.plan(turn),
                    }
                }
            };
        }
        if let State::Absent | State::Live(_) = self.state {
            self.predecessor = Predecessor::default();
        }
    }

    /// Lets the caller that has the turn release the lease.
    fn release(&mut self, live: CalledLease<L>, turn: Turn<C>) -> State<L, C> {
        self.task(turn.caller.clone(), Task::Release(live.lease.clone()));
        State::Releasing(live, turn)
    }

    /// Lets the caller that has the turn plan and install a lease.
    fn plan(&mut self, turn: Turn<C>) -> State<L, C> {
        self.task(turn.caller.clone(), Task::Plan(self.predecessor.clone()));
        State::Planning(turn)
    }

    /// Tells the caller that has the turn that the function was unloaded.
    fn revoke(&mut self, mut turn: Turn<C>) -> Turn<C> {
        if !std::mem::replace(&mut turn.revoked, true) {
            self.answer(turn.caller.clone(), Err(Refusal::Unloaded));
        }
        turn
    }

    /// Ends a turn with a failure.
    fn failed(&mut self, turn: Turn<C>, failure: F) {
        for waiter in std::mem::take(&mut self.waiting) {
            match turn.fails(&waiter) {
                true => self.answer(waiter.caller, Err(Refusal::Failed(failure.clone()))),
                false => self.waiting.push_back(waiter),
            }
        }
        if !turn.revoked {
            self.answer(turn.caller, Err(Refusal::Failed(failure)));
        }
    }

    fn grant(&mut self, live: &mut CalledLease<L>, id: CallerId, caller: C) {
        live.callers.insert(id);
        self.answer(caller, Ok(live.lease.clone()));
    }

    fn answer(&mut self, caller: C, answer: Result<L, Refusal<F>>) {
        let order = Order::Answer(answer);
        self.commands.push_back(Command::Tell(caller, order));
    }

    fn task(&mut self, caller: C, task: Task<L>) {
        let order = Order::Task(task);
        self.commands.push_back(Command::Tell(caller, order));
    }
}
