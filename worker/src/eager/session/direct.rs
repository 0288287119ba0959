//! Brief ops of a client in this process, run on the client's thread: with the session's kernels, memory and refusals,
//! but without handles.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use convoke_common::ids::LeaseId;
use convoke_graph::graph::Attrs;
use convoke_graph::{DType, Outputs, Tensor, ops};
use convoke_kernels::Exec;
use convoke_rendezvous::eager::DirectSession;
use convoke_rendezvous::eager::direct::{DirectFunction, DirectOp};
use convoke_rendezvous::eager::wire::Definition;

use super::super::prepared::PreparedOp;
use super::Session;
use crate::cpu::{Launch, Operands, caught};
use crate::executor::NO_FUNCTION;

struct Op {
    session: Weak<Session>,
    prepared: PreparedOp,
}

impl Session {
    fn serves(&self) -> bool {
        self.engine.gate.refusal().is_none() && !self.ended.load(Ordering::Relaxed)
    }
}

impl DirectSession for Session {
    fn resolve(
        &self,
        op: &str,
        attrs: &Attrs,
        operands: &[Option<DType>],
        outputs: u8,
    ) -> Option<Arc<dyn DirectOp>> {
        // The time of a custom op or of a loop is unknown, and a device runs its ops itself.
        if self.device.is_some() || ops::is_custom(op) || attrs.functions().next().is_some() {
            return None;
        }
        let definition = Definition {
            index: 0,
            op: op.to_owned(),
            attrs: attrs.clone(),
            operands: operands.to_vec(),
            outputs,
            report: false,
            origin: 0,
        };
        Some(Arc::new(Op {
            session: self.me.clone(),
            prepared: PreparedOp::new(definition, None).ok()?,
        }))
    }

    fn value(&self, handle: u64) -> Option<Tensor> {
        self.state().core.value(handle)
    }

    fn own(&self, value: &Tensor) -> Option<Tensor> {
        match self.device.is_none() && self.serves() {
            true => Session::own(self, value).ok(),
            false => None,
        }
    }

    fn function(&self, lease: LeaseId) -> Option<Arc<dyn DirectFunction>> {
        self.worker.upgrade()?.function(lease, &self.me.upgrade()?)
    }

    fn handles(&self) -> Arc<AtomicU64> {
        self.direct.clone()
    }
}

impl DirectOp for Op {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Option<Outputs> {
        let session = self.session.upgrade()?;
        let (engine, prepared) = (&session.engine, &self.prepared);
        if !session.serves() {
            return None;
        }
        prepared.with_seen(inputs, |seen| {
            let brief = seen.predicted <= engine.compute.brief();
            if !brief || !engine.compute.admits(&session.share, seen.predicted) {
                return None;
            }
            // After a failure the client issues the op to the session, where it fails the same way and is reported.
            let made = caught(|| {
                engine.compute.launching(&NO_FUNCTION, prepared.op.name);
                prepared.kernel.launch(&mut Launch {
                    inputs: Operands::shown(inputs),
                    sizes: seen.sizes.as_ref(),
                    exec: Exec::single(&session.ended),
                    pool: &session.pool,
                })
            });
            let made = made.ok()?;
            (made.len() >= prepared.outputs).then_some(made)
        })
    }
}
