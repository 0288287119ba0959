//! The events of a step that come from outside: its start, tensors, aborts, and the loss of peers.

use std::sync::Arc;

use convoke_common::error::Error;
use convoke_common::ids::StepKey;
use convoke_common::telemetry::{self, TraceIds};
use convoke_graph::ids::ParticipantIx;
use convoke_rendezvous::step::slot::RegisterOutcome;
use convoke_rendezvous::{StepHandler, step_event};

use super::Executor;
use super::run::{FollowUp, Phase};

impl StepHandler for Executor {
    fn start(&self, n: u64, axes: Vec<i64>, trace: TraceIds, partial: bool) -> bool {
        let Some(lease) = self.lease() else {
            return true;
        };
        let (mut after, mut unexpected) = (FollowUp::default(), None);
        {
            let mut run = self.run(n);
            if run.n != n || run.phase != Phase::Waiting {
                return false;
            }
            let x = &self.installed;
            let key = StepKey { lease: lease.id, n };
            let span = tracing::debug_span!(
                "step",
                %key,
                worker = %self.engine.worker,
                otel.status_code = tracing::field::Empty,
                otel.status_description = tracing::field::Empty,
            );
            telemetry::set_parent(&span, trace);
            run.span = span;
            step_event!("start", key);
            (run.phase, run.partial) = (Phase::Running, partial);
            run.device = self.device_step(&run.flag);
            run.unsent = vec![0; self.links.len()];
            self.engine.gate.started();
            if run.error.is_some() {
                // A peer aborted the step before the driver's `Start` arrived.
                run.settle(&mut after);
            } else if let Err(e) = self.usable(&lease).and_then(|()| lease.bind(n, &axes)) {
                let e = e.at(self.place());
                self.stop(&lease, &mut run, e.clone(), lease.me);
                after.tell = Some(e);
                run.settle(&mut after);
            } else {
                run.start(x, &mut after);
                run.sending += x.constant_sends.len();
                after.sends.extend_from_slice(&x.constant_sends);
                for (slot, recv) in x.program.recvs.iter().enumerate() {
                    if let Ok(s) = lease.table.slot(n, slot as u32)
                        && let RegisterOutcome::Ready(delivered) = s.register(n)
                    {
                        match delivered {
                            Err(error) if !partial => unexpected = Some(error),
                            delivered => {
                                if delivered.is_ok() {
                                    step_event!("taken", key, slot = slot as u32);
                                }
                                run.came(x, Some(recv.value), delivered, &mut after);
                            }
                        }
                    }
                }
                run.settle(&mut after);
            }
        }
        self.finish(n, after);
        if let Some(error) = unexpected {
            self.fail(n, Arc::unwrap_or_clone(error));
        }
        true
    }

    fn arrived(&self, n: u64, slot: u32) {
        let Some(lease) = self.lease() else { return };
        let mut after = FollowUp::default();
        {
            let mut run = self.run(n);
            if run.n != n || run.phase != Phase::Running || run.error.is_some() {
                return;
            }
            let taken = lease.table.slot(n, slot).ok().and_then(|s| s.take(n));
            let delivered = match taken {
                None => return,
                Some(Err(error)) if !run.partial => {
                    // The sender takes the step for one that is not partial: the tensor does not come.
                    drop(run);
                    return self.fail(n, Arc::unwrap_or_clone(error));
                }
                Some(delivered) => delivered,
            };
            if delivered.is_ok() {
                step_event!("taken", StepKey { lease: lease.id, n }, slot = slot);
            }
            let value = Some(self.installed.program.recvs[slot as usize].value);
            if run.came(&self.installed, value, delivered, &mut after) {
                self.stir(n);
            }
            run.settle(&mut after);
        }
        self.finish(n, after);
    }

    fn abort(&self, n: u64, error: Error, from: ParticipantIx) {
        let Some(lease) = self.lease() else { return };
        if from == lease.me {
            return self.fail(n, error.at(self.place()));
        }
        let mut after = FollowUp::default();
        {
            let mut run = self.run(n);
            if run.n != n || run.error.is_some() {
                return;
            }
            step_event!(
                "abort",
                StepKey { lease: lease.id, n },
                code = error.code.name()
            );
            self.waited(&run, &error);
            self.stop(&lease, &mut run, error, from);
            lease.table.abort(n);
            run.settle(&mut after);
            self.watch(&mut run, &after);
        }
        self.finish(n, after);
        self.recall();
    }

    fn done(&self, n: u64, from: ParticipantIx) {
        tracing::warn!(n, from, "a worker was told that a step is done");
    }

    fn released(&self) {
        (self.driver_gone)();
    }

    fn peer_lost(&self, peer: ParticipantIx, error: &Error) {
        let Some(lease) = self.lease() else { return };
        let link = self.links.get(usize::from(peer)).and_then(Option::as_ref);
        // The link that ended may have been a second one to the same peer.
        if link.is_some_and(|l| !l.is_closed()) {
            return;
        }
        self.abort_all(error);
        if peer == lease.driver() {
            (self.driver_gone)();
        }
    }
}
