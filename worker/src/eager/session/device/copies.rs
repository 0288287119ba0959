//! Copies of values from the device to the host: for ops that run there, and for what leaves the worker.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use convoke_common::error::{Error, Result};
use convoke_graph::Tensor;
use smallvec::SmallVec;

use super::work::{BroughtCallback, HostCopy, SessionDevice, node_of};
use crate::device::DeviceFailure;
use crate::eager::core::{Failure, Run};
use crate::eager::session::Session;
use crate::eager::value::{DeviceValue, Value};

impl Session {
    /// Lets an op wait for copies of these operands on the host.
    pub(super) fn await_copies(&self, device: &SessionDevice, run: Run, missing: &[usize]) {
        let first = run.first;
        let values = missing.iter().map(|i| run.value(*i).cloned());
        let values: SmallVec<[_; 4]> = values.collect();
        let op = self.state().core.await_copies(run, missing.len());
        for (operand, value) in missing.iter().copied().zip(values) {
            let Some(value) = value else { continue };
            let then = move |me: &Session, copied| {
                let mut state = me.state();
                state.core.copied(op, first, operand, copied);
                me.settle(state);
            };
            self.copy_out(device, value, true, Box::new(then));
        }
    }

    /// Calls `then` with a value in the host's memory, or with the failure of the launch that should have made it; perhaps
    /// before this returns.
    pub(in super::super) fn bring(
        &self,
        value: Value,
        then: impl FnOnce(&Session, Result<Tensor, Arc<Failure>>) + Send + 'static,
    ) {
        match (value, &self.device) {
            (Value::Host(tensor), _) => then(self, Ok(tensor)),
            (Value::Device(value), Some(device)) => {
                self.copy_out(device, value, false, Box::new(then));
            }
            (Value::Device(_), None) => {}
        }
    }

    /// The same for a value of a device; `is_read` says whether an op on the host reads it. Of a value that several ask for
    /// at once one copy is made.
    fn copy_out(
        &self,
        device: &SessionDevice,
        value: Arc<DeviceValue>,
        is_read: bool,
        then: BroughtCallback,
    ) {
        let mut state = self.state();
        if let Some(failure) = value.failure() {
            drop(state);
            return then(self, Err(failure));
        }
        if let Some(tensor) = value.host() {
            drop(state);
            // A step that the tensor is donated to may overwrite it.
            drop(value);
            return then(self, Ok(tensor));
        }
        let under_way = value.copying();
        if let Some(copy) = under_way.and_then(|number| state.work.copies.get_mut(&number)) {
            copy.is_read |= is_read;
            copy.then.push(then);
            return;
        }
        if value.device().is_none() || device.queue.get().is_none() {
            let error = Error::internal("a value lies in no memory").at(self.engine.place());
            let failure = state.core.failure(error);
            drop(state);
            return then(self, Err(failure));
        }
        let number = state.work.number();
        value.copies_out(number);
        let copy = HostCopy {
            bytes: value.byte_len() as u64,
            value,
            is_read,
            then: SmallVec::from_iter([then]),
        };
        state.work.copies.insert(number, copy);
        state.work.waiting.push_back(number);
        drop(state);
        self.begin_copies(device);
    }

    /// Begins copies to the host as long as few enough bytes are under way.
    fn begin_copies(&self, device: &SessionDevice) {
        let (Some(queue), Some(me)) = (device.queue.get(), self.me.upgrade()) else {
            return;
        };
        // A copy may end while it begins, and lets further ones begin: here, and not deep within that call.
        if std::mem::replace(&mut self.state().work.begins, true) {
            return;
        }
        loop {
            let mut state = self.state();
            let Some(number) = state.work.next_copy() else {
                state.work.begins = false;
                return;
            };
            let copy = state.work.copies.get(&number);
            let tensor = copy.and_then(|copy| copy.value.device());
            drop(state);
            let Some(tensor) = tensor else {
                let error = Some(Error::internal("a value left the device"));
                let node = node_of(number);
                self.copied(number, Err(Arc::new(DeviceFailure { node, error })));
                continue;
            };
            // A worker that leaves lets the copy end, and the session stays until then.
            self.engine.gate.started();
            let me = me.clone();
            let copied = Box::new(move |copied| {
                me.copied(number, copied);
                me.engine.gate.quiesced();
            });
            queue.copy_out(&device.copies, node_of(number), tensor, &self.pool, copied);
        }
    }

    /// A copy to the host has ended.
    fn copied(&self, number: u64, copied: Result<Tensor, Arc<DeviceFailure>>) {
        let mut state = self.state();
        let Some(copy) = state.work.copies.remove(&number) else {
            return drop(state);
        };
        state.work.copying = state.work.copying.saturating_sub(copy.bytes);
        state.work.under_way = state.work.under_way.saturating_sub(1);
        // A session that has ended hands nothing on, see [`Session::launch`].
        if self.ended.load(Ordering::Relaxed) {
            self.rests(&state);
            return drop(state);
        }
        let HostCopy {
            value,
            is_read,
            mut then,
            ..
        } = copy;
        let copied = copied.map_err(|failed| match value.failure() {
            Some(known) => known,
            None => self.failure_of(&mut state, &failed),
        });
        value.copied_out(copied.as_ref().ok(), is_read);
        drop(state);
        drop(value);
        // The last one may have the tensor alone.
        let last = then.pop();
        then.into_iter().for_each(|then| then(self, copied.clone()));
        if let Some(last) = last {
            last(self, copied);
        }
        if let Some(device) = &self.device {
            self.begin_copies(device);
        }
    }
}
