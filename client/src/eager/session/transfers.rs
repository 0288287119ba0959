//! Tensors on their way: from this client to a worker, from one worker to another, and back.

use std::panic::Location;
use std::sync::Arc;

use convoke_common::error::{Error, Result};
use convoke_common::ids::{LeaseId, StepKey};
use convoke_graph::Tensor as HostTensor;
use convoke_graph::{DType, Shape};
use convoke_rendezvous::eager::wire::{Command, INLINE};
use convoke_rendezvous::{Outgoing, Peer};

use super::super::PendingFetch;
use super::state::DialState;
use super::{LateShape, RoomRequest, WorkerSession};

/// How many tensors may be on their way to the worker from other workers.
pub(super) const MOVES: usize = 1000;
/// How many bytes of tensors may be on their way to the worker from this client; a single tensor may be larger.
pub(super) const PUTTING: u64 = 256 << 20;

impl WorkerSession {
    /// Puts a tensor on the worker. Returns the number of its handle.
    pub fn put(&self, tensor: &HostTensor, origin: &'static Location<'static>) -> Result<u64> {
        let owner = self.sessions()?.session.hub.me.incarnation;
        let bytes = tensor.byte_len() as u64;
        let mut guard = self.open(RoomRequest::Put(bytes, origin))?;
        let state = &mut *guard;
        let origin = state.origin(origin)?;
        let id = state.next;
        if tensor.byte_len() <= INLINE {
            let tensor = tensor.clone();
            state.command(&Command::Literal { tensor, origin })?;
        } else {
            let transfer = state.take(0, tensor.dtype(), Some(tensor.shape().into()), origin)?;
            self.room.put(bytes);
            let key = StepKey {
                lease: LeaseId::of_session(owner),
                n: transfer,
            };
            let me = self.me.clone();
            let out = Outgoing {
                key,
                slot: 0,
                tensor: tensor.clone(),
                priority: 0,
                cancel: self.sending.clone(),
                sent: Box::new(move || {
                    if let Some(me) = me.upgrade() {
                        me.room.put_ended(bytes, &me.state);
                    }
                }),
            };
            state.next += 1;
            state.live += 1;
            state.unresolved += 1;
            match &mut state.way {
                DialState::Dialling(then) => then.push(Box::new(move |link| link.send_tensor(out))),
                DialState::Up(link) => {
                    let link = link.clone();
                    self.flush(guard);
                    link.send_tensor(out);
                }
                DialState::Lost(_) => {}
            }
            return Ok(id);
        }
        state.next += 1;
        state.live += 1;
        state.unresolved += 1;
        self.flush(guard);
        Ok(id)
    }

    /// Announces a tensor from another worker. Returns the numbers of its handle and of the transfer.
    pub fn take(
        &self,
        from: &WorkerSession,
        dtype: DType,
        shape: Option<Shape>,
        late: Option<&LateShape>,
        origin: &'static Location<'static>,
    ) -> Result<(u64, u64)> {
        let mut guard = self.open(RoomRequest::Move(origin))?;
        let state = &mut *guard;
        let origin = state.origin(origin)?;
        let peer = state.name(&from.participant)?;
        let transfer = state.take(peer, dtype, shape, origin)?;
        state.moves.insert(transfer, from.peer.clone());
        let id = state.next;
        state.next += 1;
        state.live += 1;
        state.unresolved += 1;
        if let Some(late) = late {
            state.late.insert(id, Arc::downgrade(late));
        }
        self.flush(guard);
        Ok((id, transfer))
    }

    /// Runs `then` once the worker is linked: at once where it is, and never where the session is lost.
    pub fn when_linked(&self, then: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        match &mut state.way {
            DialState::Dialling(all) => all.push(Box::new(move |_| then())),
            DialState::Up(_) => {
                drop(state);
                then();
            }
            DialState::Lost(_) => {}
        }
    }

    /// Sends a handle's tensor to another worker, which has announced the transfer. Where there is no handle, or it
    /// cannot be sent, the transfer fails.
    pub fn give(&self, handle: Result<u64>, to: &WorkerSession, transfer: u64) {
        let given = self.usable().and_then(|mut guard| {
            let state = &mut *guard;
            let handle = handle?;
            let peer = state.name(&to.participant)?;
            let give = Command::Give {
                handle,
                peer,
                transfer,
            };
            state.command(&give)?;
            self.flush(guard);
            Ok(())
        });
        if let Err(error) = given {
            to.fail_move(transfer, error);
        }
    }

    /// Asks for a handle's tensor.
    pub fn fetch(&self, handle: u64) -> Result<PendingFetch> {
        let sessions = self.sessions()?;
        let fetching = sessions.expect(&self.peer);
        let mut guard = self.usable()?;
        let give = Command::Give {
            handle,
            peer: 0,
            transfer: fetching.transfer,
        };
        guard.command(&give)?;
        self.flush(guard);
        Ok(fetching)
    }

    /// Tells the worker that a move to it does not come.
    pub(in crate::eager) fn fail_move(&self, transfer: u64, error: Error) {
        let Ok(mut guard) = self.usable() else { return };
        if guard.moves.contains_key(&transfer) {
            let error = Box::new(error);
            let fail = Command::Fail { transfer, error };
            if let Err(e) = guard.command(&fail) {
                tracing::error!("{e}");
            }
            self.flush(guard);
        }
    }

    /// Tells the worker that moves from a lost worker do not come.
    pub(in crate::eager) fn source_lost(&self, source: &Peer, error: &Error) {
        let transfers: Vec<u64> = {
            let state = self.state();
            let from = state.moves.iter().filter(|(_, s)| *s == source);
            from.map(|(t, _)| *t).collect()
        };
        for transfer in transfers {
            self.fail_move(transfer, error.clone());
        }
    }
}
