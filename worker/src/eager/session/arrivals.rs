//! Tensors that arrive for the session, from its client and from other workers.

use convoke_common::error::{Error, Result};
use convoke_graph::Tensor;
use convoke_rendezvous::frame::TensorHeader;
use convoke_rendezvous::{FrameRefusal, Peer};
use tokio::sync::oneshot;

use super::{DELIVERY, PUT, Session, TO};

impl Session {
    /// Admits a tensor that begins to arrive.
    pub fn claim(&self, from: &Peer, h: &TensorHeader) -> Result<(), FrameRefusal> {
        let mut state = self.state();
        let claimed = state.core.claim(from, h);
        self.settle(state);
        claimed
    }

    /// Allocates the tensor that the arriving bytes are written to.
    pub fn buffer(&self, h: &TensorHeader) -> Result<Tensor> {
        let tensor = self.pool.sized(h.dtype, &h.shape, h.bytes);
        tensor.map_err(|e| e.at(self.engine.place()))
    }

    /// Takes over a tensor of a client in this process without a copy, counted as one of the session's.
    pub fn adopt(&self, tensor: Tensor) -> Result<Tensor> {
        let adopted = self.pool.adopt(tensor);
        adopted.map_err(|e| e.at(self.engine.place()))
    }

    /// See [`convoke_rendezvous::eager::EagerService::foreseen`].
    pub fn foreseen(&self, from: &Peer, n: u64) -> Option<oneshot::Receiver<()>> {
        self.state().core.foreseen(from, n)
    }

    /// Ends a transfer, which has arrived or failed.
    pub fn arrived(&self, from: &Peer, n: u64, result: Result<Tensor>) {
        let mut state = self.state();
        let op = if *from == self.owner { PUT } else { TO };
        let origin = state.core.origin_of(n);
        let result = result.map_err(|e| self.issued(&state, e, op, origin));
        state.core.end(from, n, result);
        let early = state.core.has_early();
        let mut left = DELIVERY;
        self.run_brief(&mut state, &mut left);
        self.settle(state);
        if early {
            self.early.notify_one();
        }
    }

    /// Lets a period pass, see [`Core::age`](super::super::core::Core::age). Returns whether a tensor still waits for
    /// its announcement. A period in which commands came does not count: the announcement may be behind others on a slow
    /// link.
    pub fn age(&self, periods: u32, error: &Error) -> bool {
        let error = error.clone().at(self.engine.place());
        let mut state = self.state();
        if !std::mem::take(&mut state.heard) {
            state.core.age(periods, &error);
        }
        state.core.has_early()
    }
}
