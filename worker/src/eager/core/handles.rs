//! Handles: they are made, resolve once, are sent and are dropped.

use convoke_common::error::{Code, Error};
use convoke_graph::Tensor;
use smallvec::SmallVec;

use super::state::{Core, Effect, Handle, HandleResult, HandleState, Id, Waiter};

/// Bytes of a send that waits for its tensor.
const GIVE: u64 = 64;

impl Core {
    /// Makes this many handles, and returns the number of the first.
    pub(super) fn make(&mut self, origin: u32, count: usize) -> Id {
        let first = self.next;
        for id in first..first + count as u64 {
            let (waiters, dropped) = (SmallVec::new(), false);
            let state = HandleState::Pending { waiters, dropped };
            self.handles.insert(id, Handle { state, origin });
        }
        self.next += count as u64;
        if !self.ahead.is_empty() {
            self.catch_up(first);
        }
        first
    }

    /// Resolves a handle, and all that fails with it. There is no recursion, since chains are long.
    pub(super) fn settle(&mut self, id: Id, settled: HandleResult) {
        let mut todo: Vec<(Id, HandleResult)> = vec![(id, settled)];
        while let Some((id, settled)) = todo.pop() {
            let Some(handle) = self.handles.get_mut(&id) else {
                continue;
            };
            let state = match &settled {
                Ok(value) => HandleState::Ready(value.clone()),
                Err(e) => HandleState::Failed(e.clone()),
            };
            let HandleState::Pending { waiters, dropped } =
                std::mem::replace(&mut handle.state, state)
            else {
                continue;
            };
            if dropped {
                self.handles.remove(&id);
            }
            for waiter in waiters {
                match waiter {
                    Waiter::Give { peer, transfer } => {
                        self.kept -= GIVE;
                        let effect = match &settled {
                            Ok(value) => Effect::Send {
                                peer,
                                transfer,
                                value: value.clone(),
                                counted: self.on_its_way(),
                            },
                            Err(error) => Effect::Abort {
                                peer,
                                transfer,
                                error: error.clone(),
                            },
                        };
                        self.effects.push_back(effect);
                    }
                    Waiter::Step(then) => {
                        let settled = settled.clone().map_err(|e| e.error.clone());
                        self.effects.push_back(Effect::Step(then, settled));
                    }
                    Waiter::Run { op, first, operand } => {
                        // An op that has failed by another operand is gone from its entry.
                        let waits = self.waiting.get(op).is_some_and(|w| w.run.first == first);
                        if waits {
                            self.operand(op, operand, &settled, &mut todo);
                        }
                    }
                }
            }
        }
    }

    /// Makes a handle of a value that came with a command.
    pub fn literal(&mut self, tensor: Tensor, origin: u32) {
        let id = self.make(origin, 1);
        self.resolved += 1;
        let value = self.value_of(tensor);
        self.settle(id, Ok(value));
    }

    /// Drops a handle for the client.
    pub fn free(&mut self, id: Id) {
        match self.handles.get_mut(&id).map(|h| &mut h.state) {
            Some(HandleState::Pending { dropped, .. }) => *dropped = true,
            _ => drop(self.handles.remove(&id)),
        }
    }

    /// Sends a handle's tensor to a peer, now or once it is there.
    pub fn give(&mut self, id: Id, peer: u32, transfer: u64) {
        let error = match self.handles.get_mut(&id).map(|h| &mut h.state) {
            Some(HandleState::Pending { waiters, .. }) => {
                self.kept += GIVE;
                return waiters.push(Waiter::Give { peer, transfer });
            }
            Some(HandleState::Ready(value)) => {
                let value = value.clone();
                let counted = self.on_its_way();
                return self.effects.push_back(Effect::Send {
                    peer,
                    transfer,
                    value,
                    counted,
                });
            }
            Some(HandleState::Failed(error)) => error.clone(),
            None => self.failure(unknown(id)),
        };
        self.effects.push_back(Effect::Abort {
            peer,
            transfer,
            error,
        });
    }
}

/// The error of a handle that is not there.
pub(super) fn unknown(id: Id) -> Error {
    let msg = format!("handle {id} is not there: it was dropped, or is of another session");
    Error::new(Code::NotFound, msg)
}
