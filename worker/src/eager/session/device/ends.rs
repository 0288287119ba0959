//! What follows where the device has ended launches: their ops have ended, or failed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use convoke_common::error::Error;

use super::site;
use super::work::{FailedLaunch, LaunchedOp};
use crate::device::DeviceFailure;
use crate::eager::core::Failure;
use crate::eager::session::state::SessionState;
use crate::eager::session::{Session, gone};
use crate::health::wedge::Work;

impl Session {
    /// The device has ended all launches with numbers below `until`.
    pub(super) fn device_came(&self, until: u64) {
        let mut state = self.state();
        let later = state.work.launched.split_off(&until);
        let ended = std::mem::replace(&mut state.work.launched, later);
        let any = !ended.is_empty();
        for (number, mut op) in ended {
            state.work.ahead = state.work.ahead.saturating_sub(op.predicted);
            state.core.release(op.kept);
            let copied = op.copied.iter().filter_map(Weak::upgrade);
            let Some(failed) = op.step.failure().cloned() else {
                copied.for_each(|value| value.copied_in());
                state.core.launch_ended();
                continue;
            };
            copied.for_each(|value| value.not_copied_in());
            // Nothing more is told of what was taken back because the session ended.
            let taken_back = failed.error.is_none() && self.engine.gate.refusal().is_none();
            if taken_back && self.ended.load(Ordering::Relaxed) {
                continue;
            }
            let is_root = state.work.number_of(failed.node) == Some(number);
            let failure = match is_root {
                true => {
                    let failure = op.failure.take();
                    let failure = failure.unwrap_or_else(|| self.made(&state, &op, &failed));
                    let until = state.work.numbered;
                    state.work.failed.push(FailedLaunch {
                        number,
                        failure: failure.clone(),
                        until,
                    });
                    failure
                }
                false => {
                    let failure = self.failure_of(&mut state, &failed);
                    // Launches that are not known to have ended may have read this one's results.
                    let (root, until) = (state.work.number_of(failed.node), state.work.numbered);
                    let mut known = state.work.failed.iter_mut();
                    if let Some(known) = known.find(|known| Some(known.number) == root) {
                        known.until = until;
                    }
                    failure
                }
            };
            let made = op.made.iter().filter_map(Weak::upgrade);
            made.for_each(|value| value.fail(&failure));
            let outputs = op.prepared.outputs;
            let core = &mut state.core;
            core.launch_failed(op.first, outputs, &failure, is_root);
        }
        state.work.failed.retain(|failed| failed.until > until);
        let ended = any && state.work.launched.is_empty();
        if ended && self.ended.load(Ordering::Relaxed) {
            self.rests(&state);
        }
        self.settle(state);
        if ended {
            self.engine.gate.quiesced();
        }
    }

    /// Ends the watch over a session that has ended, once neither a thread nor the device works for it.
    pub(in super::super) fn rests(&self, state: &SessionState) {
        if !state.is_active() && state.work.is_idle() {
            self.engine.watch.quiesced(Work::Session(self.id));
        }
    }

    /// The failure of the launch that the device says has failed.
    pub(super) fn failure_of(
        &self,
        state: &mut SessionState,
        failed: &DeviceFailure,
    ) -> Arc<Failure> {
        let number = state.work.number_of(failed.node);
        let known = |f: &&FailedLaunch| Some(f.number) == number;
        if let Some(known) = state.work.failed.iter().find(known) {
            return known.failure.clone();
        }
        let launched = number.and_then(|number| state.work.launched.remove(&number));
        if let (Some(number), Some(mut op)) = (number, launched) {
            let failure = op.failure.take();
            let failure = failure.unwrap_or_else(|| self.made(state, &op, failed));
            op.failure = Some(failure.clone());
            state.work.launched.insert(number, op);
            return failure;
        }
        let error = match failed.error.clone() {
            Some(error) => self.engine.device_failed(error).at(self.engine.place()),
            None => self.taken_back(),
        };
        state.core.failure(error)
    }

    /// The error of an op that the device took back.
    fn taken_back(&self) -> Error {
        let refusal = self.engine.gate.refusal();
        refusal.map_or_else(gone, |refusal| self.engine.refused(refusal))
    }

    /// Makes the failure of a launched op.
    fn made(&self, state: &SessionState, op: &LaunchedOp, failed: &DeviceFailure) -> Arc<Failure> {
        let Some(error) = failed.error.clone() else {
            return state.core.failure(self.taken_back());
        };
        let error = self.engine.device_failed(error);
        let shapes = op.shapes.iter().map(Option::as_deref);
        let operands = op.prepared.signatures(shapes);
        let site = site(&op.prepared, state.place(op.prepared.origin), operands);
        state.core.failure(self.engine.placed(error, site))
    }
}
