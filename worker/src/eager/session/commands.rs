//! The commands of the client: each is executed as it is read from a batch.

use std::sync::Arc;

use convoke_common::error::{Code, Error, Result, Site};
use convoke_common::memory::Reservation;
use convoke_graph::ops::OpError;
use convoke_rendezvous::eager::wire::{Command, Definition, MOST_ACCOUNTS, Operand, Reader};
use smallvec::SmallVec;

use super::super::core::Failure;
use super::super::prepared::PreparedOp;
use super::device::SessionDevice;
use super::state::{ChargedEntry, DefinedOp, NamedPeer, Refusal, SessionState};
use super::{DELIVERY, PUT, Session, TO};

/// Most bytes of a value within an op that are not counted: all ops under way can have as many.
const UNCOUNTED: usize = 1 << 10;
/// Bytes that a kept command takes in memory: [`KEPT`], and its length [`IN_MEMORY`] times, since its contents are
/// taken apart and copied by kernels.
const KEPT: u64 = 2 << 10;
const IN_MEMORY: u64 = 8;

impl Session {
    /// Executes a batch of commands; fails where it cannot be understood.
    pub fn batch(&self, batch: &[u8]) -> Result<()> {
        let mut state = self.state();
        state.heard = true;
        let mut left = DELIVERY;
        let mut reader = Reader::new(batch);
        while !reader.is_empty() {
            let next = state.core.next();
            let before = reader.remaining();
            match reader.command(next)? {
                Command::Run(index) => {
                    let defined = state.ops.get(&index).ok_or_else(no_such_op)?;
                    let defined = defined.value.clone();
                    let count = match &defined {
                        DefinedOp::Ready(prepared) => prepared.operands(),
                        DefinedOp::Refused(refusal) => refusal.operands,
                    };
                    let mut operands: SmallVec<[Operand<'static>; 4]> = SmallVec::new();
                    let mut full = None;
                    for _ in 0..count {
                        operands.push(match reader.operand(next)? {
                            Operand::Value(t) if t.byte_len() > UNCOUNTED => match self.own(&t) {
                                Ok(own) => Operand::Value(own),
                                Err(error) => {
                                    full = Some(error);
                                    Operand::Absent
                                }
                            },
                            other => other,
                        });
                    }
                    match defined {
                        DefinedOp::Ready(prepared) => {
                            match full {
                                None => state.core.run(prepared, operands),
                                Some(e) => {
                                    let e =
                                        self.issued(&state, e, prepared.op.name, prepared.origin);
                                    let e = state.core.failure(e);
                                    state.core.refuse(prepared.origin, prepared.outputs, e);
                                }
                            }
                            self.run_brief(&mut state, &mut left);
                        }
                        DefinedOp::Refused(r) => {
                            state.core.refuse(r.origin, r.outputs, r.error.clone());
                        }
                    }
                }
                command => {
                    let written = before - reader.remaining();
                    self.obey(&mut state, command, written)?;
                }
            }
            state.core.check_bounds()?;
            let needed = state.core.footprint();
            let books = state.books.as_mut();
            books.map_or(Ok(()), |books| books.cover(needed))?;
        }
        self.settle(state);
        Ok(())
    }

    /// Executes any command other than the run of an op.
    fn obey(&self, state: &mut SessionState, command: Command, written: usize) -> Result<()> {
        match command {
            Command::Define(d) => {
                let index = d.index;
                // The former definition is dropped first, which makes room for the new one.
                state.ops.remove(&index);
                let op = d.op.clone();
                let (value, charge) = match self.charge(written) {
                    Ok(charge) => (self.define(state, d), Some(charge)),
                    Err(error) => {
                        let error = self.issued(state, error, &op, d.origin);
                        (refusal(&d, state.core.failure(error)), None)
                    }
                };
                let _charge = charge;
                state.ops.insert(index, ChargedEntry { value, _charge });
            }
            Command::Run(_) => {}
            Command::Begin { first } => state.core.begin(first)?,
            Command::Free(id) => state.core.free(id),
            Command::Give {
                handle,
                peer,
                transfer,
            } => state.core.give(handle, peer, transfer),
            Command::Take {
                peer,
                transfer,
                dtype,
                shape,
                origin,
            } => {
                let from = self.peer(state, peer)?;
                let failed = state.core.early_failure(&from, transfer);
                if let Some(failed) = failed {
                    let op = if peer == 0 { PUT } else { TO };
                    let located = self.issued(state, failed, op, origin);
                    state.core.fail_early(&from, transfer, located);
                }
                state.core.take(from, transfer, dtype, shape, origin);
            }
            Command::Reserve { origin } => state.core.reserve(origin),
            Command::Abandon(id) => state.core.abandon(id),
            Command::Literal { tensor, origin } => match self.own(&tensor) {
                Ok(own) => state.core.literal(own, origin),
                Err(error) => {
                    let error = self.issued(state, error, PUT, origin);
                    let error = state.core.failure(error);
                    state.core.refuse(origin, 1, error);
                }
            },
            Command::Peer { index, participant } => {
                let charge = self.charge(written)?;
                state
                    .peers
                    .insert(index, NamedPeer::new(participant, charge));
            }
            Command::Fail { transfer, error } => state.core.fail(transfer, *error),
            Command::Account { request } => {
                if state.asked.len() >= MOST_ACCOUNTS {
                    let msg = "more accounts are asked for than are given at once";
                    return Err(Error::new(Code::ProtocolViolation, msg));
                }
                state.asked.push(request);
            }
            Command::Origin { index, place } => {
                let _charge = Some(self.charge(written)?);
                let value = place.into();
                state.origins.insert(index, ChargedEntry { value, _charge });
            }
        }
        Ok(())
    }

    /// Reserves the memory that a command of `written` bytes leaves behind.
    fn charge(&self, written: usize) -> Result<Reservation> {
        let bytes = KEPT + (written as u64).saturating_mul(IN_MEMORY);
        self.records.reserve(bytes)
    }

    fn define(&self, state: &SessionState, d: Definition) -> DefinedOp {
        let asked = d.clone();
        let refused = |e: OpError| {
            let error = Error::new(Code::UnsupportedOp, e.to_string()).at(Site {
                op: Some(asked.op.clone()),
                origin: state.place(asked.origin),
                ..self.engine.place()
            });
            refusal(&asked, state.core.failure(error))
        };
        let device = self.device.as_ref().map(SessionDevice::device);
        let prepared = match PreparedOp::new(d, device) {
            Ok(prepared) => prepared,
            Err(error) => return refused(error),
        };
        let opened = match prepared.device {
            Some(_) => self.open_queue(),
            None => Ok(()),
        };
        match opened {
            Ok(()) => DefinedOp::Ready(Arc::new(prepared)),
            Err(error) => {
                let error = self.issued(state, error, &asked.op, asked.origin);
                refusal(&asked, state.core.failure(error))
            }
        }
    }
}

/// The definition of an op that is refused whenever it is run.
fn refusal(d: &Definition, error: Arc<Failure>) -> DefinedOp {
    DefinedOp::Refused(Arc::new(Refusal {
        operands: d.operands.len(),
        outputs: usize::from(d.outputs),
        origin: d.origin,
        error,
    }))
}

fn no_such_op() -> Error {
    Error::new(Code::ProtocolViolation, "no such prepared op")
}
