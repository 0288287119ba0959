//! One kernel of a step, and what its failure is called.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;

use convoke_common::error::{Code, Error};
use convoke_common::{DType, Shape, mutant};
use convoke_kernels::Exec;

use super::Executor;
use crate::cpu::{Inputs, KernelFailure, Launch, Outputs};
use crate::installed::site;

impl Executor {
    /// Runs one kernel. `Err(None)`: cancelled.
    pub(super) fn launch(
        &self,
        node: u32,
        inputs: Inputs,
        flag: &AtomicBool,
    ) -> Result<Outputs, Option<Error>> {
        let exec = match &self.engine.threads {
            Some(pool) if !self.brief => Exec::pooled(pool, flag),
            _ => Exec::single(flag),
        };
        let blamed = (node as usize).saturating_sub(usize::from(mutant!("wrong-node-blamed")));
        let describe = |inputs: &[String]| site(&self.installed.nodes()[blamed], inputs.to_vec());
        let operands: Vec<Option<(DType, Shape)>> = inputs
            .iter()
            .map(|t| t.as_ref().map(|t| (t.dtype(), t.shape().into())))
            .collect();
        let kernel = &self.installed.kernels[node as usize];
        let results = self.installed.nodes()[node as usize].outputs.len();
        let name = &self.installed.nodes()[node as usize].name;
        let _noted = self.engine.note(&self.installed.program.function, name);
        let launch = Launch {
            inputs,
            exec,
            pool: &self.pool,
        };
        let result = catch_unwind(AssertUnwindSafe(|| {
            self.engine.compute.launching(name);
            kernel.launch(launch)
        }));
        let error = match result {
            Ok(Ok(outputs)) if outputs.len() >= results => return Ok(outputs),
            Ok(Ok(_)) => Error::internal("a kernel left results out"),
            Ok(Err(KernelFailure::Cancelled)) => return Err(None),
            Ok(Err(KernelFailure::Error(e))) => e,
            Err(panic) => {
                let why = panic
                    .downcast_ref::<&str>()
                    .map(|s| s.to_string())
                    .or_else(|| panic.downcast_ref::<String>().cloned())
                    .unwrap_or_else(|| "no message".into());
                Error::new(Code::KernelPanicked, format!("the kernel panicked: {why}"))
            }
        };
        let names: Vec<String> = operands
            .iter()
            .flatten()
            .map(|(d, s)| format!("{d}{:?}", s.as_slice()))
            .collect();
        let mut place = self.place();
        let node = describe(&names);
        place.node = node.node;
        place.op = node.op;
        place.operands = node.operands;
        Err(Some(error.at(place)))
    }
}
