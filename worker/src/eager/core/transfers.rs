//! Tensors that come from peers, after the client has announced them or before.

use std::sync::Arc;

use convoke_common::error::{Code, Error, Result};
use convoke_graph::{DType, Shape, Tensor};
use convoke_rendezvous::FrameRefusal;
use convoke_rendezvous::Peer;
use convoke_rendezvous::eager::wire::Report;
use convoke_rendezvous::frame::TensorHeader;
use tokio::sync::oneshot;

use super::failure::Failure;
use super::state::{Core, HandleResult, Id, MOST_EARLY};

/// A transfer that was announced and has not ended.
pub(super) struct ExpectedTransfer {
    from: Peer,
    id: Id,
    dtype: DType,
    shape: Option<Shape>,
    claimed: bool,
}

/// A transfer that came before its announcement.
pub(super) enum EarlyTransfer {
    /// The transfer's bytes are arriving.
    Claimed(DType, Shape),
    /// The tensor, and how often [`Core::age`] has found it unannounced.
    Here(Tensor, u32),
    Failed(Arc<Failure>),
    /// The sender's link is held up until the transfer is announced.
    Held(oneshot::Sender<()>),
}

impl Core {
    /// Announces a transfer: makes a handle that the peer's tensor fills.
    pub fn take(
        &mut self,
        from: Peer,
        transfer: u64,
        dtype: DType,
        shape: Option<Shape>,
        origin: u32,
    ) {
        let id = self.make(origin, 1);
        self.announced = self.announced.max(transfer.saturating_add(1));
        let early = self.early.remove(&(transfer, from.name.clone()));
        // Transfer numbers ascend: those below were for a session before this one, and a link that one of them holds up
        // may go on.
        self.early = self.early.split_off(&(self.announced, String::new()));
        let mut expected = ExpectedTransfer {
            from,
            id,
            dtype,
            shape,
            claimed: false,
        };
        match early.filter(|(peer, _)| *peer == expected.from) {
            Some((_, EarlyTransfer::Here(t, _))) => {
                let fits = expected.check(t.dtype(), t.shape());
                let fits = fits.map_err(|e| self.failure(e));
                let value = self.value_of(t);
                self.took(transfer, id, fits.map(|()| value));
            }
            Some((_, EarlyTransfer::Failed(error))) => self.took(transfer, id, Err(error)),
            Some((_, EarlyTransfer::Claimed(dtype, shape))) => {
                match expected.check(dtype, &shape) {
                    Ok(()) => {
                        expected.claimed = true;
                        self.expected.insert(transfer, expected);
                    }
                    Err(error) => self.took(transfer, id, Err(self.failure(error))),
                }
            }
            Some((_, EarlyTransfer::Held(go))) => {
                self.expected.insert(transfer, expected);
                // The link that waited may be gone.
                let _ = go.send(());
            }
            None => {
                self.expected.insert(transfer, expected);
            }
        }
    }

    fn took(&mut self, transfer: u64, id: Id, result: HandleResult) {
        self.resolved += 1;
        self.report(Report::Took { transfer });
        match &result {
            Ok(t) => {
                let (handle, shape) = (id, t.shape().into());
                self.report(Report::Shape { handle, shape });
            }
            Err(error) => self.tell_failure(id, error),
        }
        self.settle(id, result);
    }

    /// Returns `None` where a transfer is announced or its fate is known, so that its tensor may be read. Otherwise a
    /// receiver that is told when that is so.
    pub fn foreseen(&mut self, from: &Peer, transfer: u64) -> Option<oneshot::Receiver<()>> {
        if self.expected.contains_key(&transfer) || transfer < self.announced {
            return None;
        }
        let key = (transfer, from.name.clone());
        if self.early.len() >= MOST_EARLY || self.early.contains_key(&key) {
            return None;
        }
        let (go, held) = oneshot::channel();
        self.early
            .insert(key, (from.clone(), EarlyTransfer::Held(go)));
        Some(held)
    }

    /// Admits a transfer that begins to arrive.
    pub fn claim(&mut self, from: &Peer, h: &TensorHeader) -> Result<(), FrameRefusal> {
        let transfer = h.key.n;
        if let Some(expected) = self.expected.get_mut(&transfer) {
            if expected.from != *from {
                return Err(FrameRefusal::WrongSource);
            }
            if std::mem::replace(&mut expected.claimed, true) {
                return Err(FrameRefusal::Duplicate);
            }
            let fits = expected.check(h.dtype, &h.shape);
            return fits.map_err(|error| {
                self.end(from, transfer, Err(error));
                FrameRefusal::WrongTensor
            });
        }
        if transfer < self.announced {
            return Err(FrameRefusal::StaleStep);
        }
        let key = (transfer, from.name.clone());
        match self.early.get(&key) {
            Some((_, EarlyTransfer::Held(_))) => {}
            Some(_) => return Err(FrameRefusal::Duplicate),
            None if self.early.len() >= MOST_EARLY => return Err(FrameRefusal::AheadOfWindow),
            None => {}
        }
        let early = EarlyTransfer::Claimed(h.dtype, h.shape.clone());
        self.early.insert(key, (from.clone(), early));
        Ok(())
    }

    /// The error of a transfer that failed before it was announced.
    pub fn early_failure(&self, from: &Peer, transfer: u64) -> Option<Error> {
        match self.early.get(&(transfer, from.name.clone())) {
            Some((peer, EarlyTransfer::Failed(failure))) if peer == from => {
                Some(Error::clone(failure))
            }
            _ => None,
        }
    }

    /// Notes that a transfer failed before it was announced.
    pub fn fail_early(&mut self, from: &Peer, transfer: u64, error: Error) {
        let key = (transfer, from.name.clone());
        let failed = EarlyTransfer::Failed(self.failure(error));
        self.early.insert(key, (from.clone(), failed));
    }

    /// The place in the client's program that issued an announced transfer; 0 where the transfer is unknown.
    pub fn origin_of(&self, transfer: u64) -> u32 {
        let id = self.expected.get(&transfer).map(|e| e.id);
        id.and_then(|id| self.handles.get(&id))
            .map_or(0, |h| h.origin)
    }

    /// Ends a transfer, which has arrived or failed.
    pub fn end(&mut self, from: &Peer, transfer: u64, result: Result<Tensor>) {
        let settled = result.map_err(|e| self.failure(e));
        self.ended(from, transfer, settled);
    }

    fn ended(&mut self, from: &Peer, transfer: u64, result: Result<Tensor, Arc<Failure>>) {
        match self.expected.get(&transfer) {
            Some(expected) if expected.from == *from => {
                let id = expected.id;
                self.expected.remove(&transfer);
                let result = result.map(|tensor| self.value_of(tensor));
                self.took(transfer, id, result);
            }
            Some(_) => {}
            None if transfer < self.announced => {}
            None => {
                let key = (transfer, from.name.clone());
                if self.early.len() < MOST_EARLY || self.early.contains_key(&key) {
                    let early = match result {
                        Ok(t) => EarlyTransfer::Here(t, 0),
                        Err(e) => EarlyTransfer::Failed(e),
                    };
                    self.early.insert(key, (from.clone(), early));
                }
            }
        }
    }

    /// Whether a tensor waits for its announcement.
    pub fn has_early(&self) -> bool {
        let here = |early: &EarlyTransfer| matches!(early, EarlyTransfer::Here(..));
        self.early.values().any(|(_, early)| here(early))
    }

    /// Lets a period pass. A tensor that was not announced for `most` whole periods fails with `error`: its announcement may
    /// have been lost with the session before this one.
    pub fn age(&mut self, most: u32, error: &Error) {
        let failure = self.failure(error.clone());
        for (_, early) in self.early.values_mut() {
            if let EarlyTransfer::Here(_, periods) = early {
                *periods += 1;
                // The first of these periods had begun when the tensor came.
                if *periods > most {
                    *early = EarlyTransfer::Failed(failure.clone());
                }
            }
        }
    }

    /// Fails a transfer that does not come, as the client says.
    pub fn fail(&mut self, transfer: u64, error: Error) {
        let from = self.expected.get(&transfer).map(|e| e.from.clone());
        if let Some(from) = from {
            self.end(&from, transfer, Err(error));
        }
    }

    /// Fails the transfers that were to come from `peer`, because the link to it ended.
    pub fn lost(&mut self, peer: &Peer, error: &Error) {
        let failure = self.failure(error.clone());
        let of_peer = self.expected.iter().filter(|(_, e)| e.from == *peer);
        let transfers: Vec<u64> = of_peer.map(|(t, _)| *t).collect();
        for transfer in transfers {
            self.ended(peer, transfer, Err(failure.clone()));
        }
        for (from, early) in self.early.values_mut() {
            if from == peer && !matches!(early, EarlyTransfer::Here(..)) {
                *early = EarlyTransfer::Failed(failure.clone());
            }
        }
    }
}

impl ExpectedTransfer {
    fn check(&self, dtype: DType, shape: &[usize]) -> Result<()> {
        let fits = dtype == self.dtype && self.shape.as_ref().is_none_or(|s| s[..] == *shape);
        if fits {
            return Ok(());
        }
        let msg = format!(
            "{dtype}{shape:?} arrived where {}{:?} was announced",
            self.dtype,
            self.shape.as_deref().unwrap_or(&[])
        );
        Err(Error::new(Code::ProtocolViolation, msg))
    }
}
