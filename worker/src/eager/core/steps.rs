//! The requests of steps for handles: a step reads some and fills others, perhaps before the session has made them.

use std::sync::Arc;

use convoke_common::error::{Code, Error, Result};
use convoke_graph::Tensor;
use convoke_rendezvous::eager::wire::Report;
use smallvec::SmallVec;

use super::handles::unknown;
use super::state::{Core, Effect, HandleState, HandleUse, Id, MOST_EARLY, TensorCallback, Waiter};

impl Core {
    /// Numbers the session's handles from `first` on.
    pub fn begin(&mut self, first: Id) -> Result<()> {
        if self.next > 0 {
            let msg = "a session begins twice";
            return Err(Error::new(Code::ProtocolViolation, msg));
        }
        self.next = first;
        // Handles below `first` belonged to the session before, which was lost: steps that want them fail.
        let later = self.ahead.split_off(&first);
        let lost = std::mem::replace(&mut self.ahead, later);
        for (id, ahead) in lost {
            self.wanted -= ahead.len();
            for each in ahead {
                if let HandleUse::Lend(_, then) = each {
                    let gone = Err(Arc::new(unknown(id)));
                    self.effects.push_back(Effect::Step(then, gone));
                }
            }
        }
        Ok(())
    }

    /// Serves the requests of steps for handles that are made now.
    pub(super) fn catch_up(&mut self, first: Id) {
        let later = self.ahead.split_off(&self.next);
        let due = std::mem::replace(&mut self.ahead, later);
        self.wanted -= due.values().map(SmallVec::len).sum::<usize>();
        for (id, ahead) in due.into_iter().filter(|(id, _)| *id >= first) {
            for each in ahead {
                match each {
                    HandleUse::Lend(donate, then) => self.lend(id, donate, then),
                    HandleUse::Fill(tensor) => drop(self.fill(id, tensor)),
                }
            }
        }
    }

    /// Keeps a step's request for a handle that is not made yet; returns it where too many are kept already.
    fn foresee(&mut self, id: Id, ahead: HandleUse) -> Result<(), HandleUse> {
        let known = self.ahead.get(&id).into_iter().flatten();
        let filled = known.filter(|a| matches!(a, HandleUse::Fill(_))).count() > 0;
        if self.wanted >= MOST_EARLY || filled && matches!(ahead, HandleUse::Fill(_)) {
            return Err(ahead);
        }
        self.wanted += 1;
        self.ahead.entry(id).or_default().push(ahead);
        Ok(())
    }

    /// Makes a handle that a step will fill.
    pub fn reserve(&mut self, origin: u32) {
        self.make(origin, 1);
    }

    /// Gives up a reserved handle, which no step fills.
    pub fn abandon(&mut self, id: Id) {
        self.free(id);
        if self.handles.contains_key(&id) {
            self.resolved += 1;
            let error = Error::new(Code::Cancelled, "the step that was to fill it failed");
            self.settle(id, Err(self.failure(error)));
        }
    }

    /// Fills a reserved handle with a step's tensor; false where the handle does not wait for one.
    pub fn fill(&mut self, id: Id, tensor: Tensor) -> bool {
        if id >= self.next {
            return self.foresee(id, HandleUse::Fill(tensor)).is_ok();
        }
        let state = self.handles.get(&id).map(|h| &h.state);
        let waits = matches!(state, Some(HandleState::Pending { .. }));
        if waits {
            self.resolved += 1;
            let (handle, shape) = (id, tensor.shape().into());
            self.report(Report::Shape { handle, shape });
            let value = self.value_of(tensor);
            self.settle(id, Ok(value));
        }
        waits
    }

    /// Lends a handle's tensor to a step, now or once it is there. A donated tensor is the step's alone, unless an op
    /// that was issued before still reads it.
    pub fn lend(&mut self, id: Id, donate: bool, then: TensorCallback) {
        let then = match id >= self.next {
            false => then,
            true => match self.foresee(id, HandleUse::Lend(donate, then)) {
                Err(HandleUse::Lend(_, then)) => then,
                _ => return,
            },
        };
        let settled = match self.handles.get_mut(&id).map(|h| &mut h.state) {
            Some(HandleState::Pending { waiters, dropped }) => {
                *dropped |= donate;
                return waiters.push(Waiter::Step(then));
            }
            Some(HandleState::Ready(value)) => Ok(value.clone()),
            Some(HandleState::Failed(failure)) => Err(failure.error.clone()),
            None => Err(Arc::new(unknown(id))),
        };
        if donate {
            self.handles.remove(&id);
        }
        self.effects.push_back(Effect::Step(then, settled));
    }
}
