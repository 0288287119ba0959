//! One kernel, and what its failure is called.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;

use convoke_common::error::{Code, Error, Site};
use convoke_common::{DType, Shape, mutant};
use convoke_kernels::Exec;
use smallvec::SmallVec;

use super::{Engine, Executor};
use crate::cpu::{Inputs, Kernel, KernelFailure, Launch, Outputs};

/// Signatures of operands, for errors.
type Given = SmallVec<[Option<(DType, Shape)>; 2]>;

impl Engine {
    /// Runs a kernel, which is to give at least `results`. `Err(None)`: cancelled. `site` says where a failure was, but
    /// for the worker and the operands.
    pub(crate) fn launch(
        &self,
        kernel: &dyn Kernel,
        name: &str,
        results: usize,
        launch: Launch<'_>,
        site: impl FnOnce() -> Site,
    ) -> Result<Outputs, Option<Error>> {
        let operands: Given = launch
            .inputs
            .iter()
            .map(|t| t.as_ref().map(|t| (t.dtype(), t.shape().into())))
            .collect();
        let result = catch_unwind(AssertUnwindSafe(|| {
            self.compute.launching(name);
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
        let signature = |(d, s): &(DType, Shape)| format!("{d}{:?}", s.as_slice());
        let operands = operands.iter().flatten().map(signature).collect();
        let place = Site {
            operands,
            ..self.place()
        };
        let site = site();
        Err(Some(error.at(Site {
            node: site.node,
            op: site.op,
            origin: site.origin,
            ..place
        })))
    }

    /// Where this worker's errors are.
    pub(crate) fn place(&self) -> Site {
        Site {
            worker: Some(self.worker.clone()),
            host: Some(self.host.clone()),
            device: Some("cpu:0".into()),
            ..Site::default()
        }
    }
}

impl Executor {
    /// Runs one kernel of a step. `Err(None)`: cancelled.
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
        let launched = &self.installed.nodes()[node as usize];
        let _noted = self
            .engine
            .note(&self.installed.program.function, &launched.name);
        let launch = Launch {
            inputs,
            exec,
            pool: &self.pool,
        };
        let site = || {
            let blamed = (node as usize).saturating_sub(usize::from(mutant!("wrong-node-blamed")));
            crate::installed::site(&self.installed.nodes()[blamed], vec![])
        };
        let kernel = &*self.installed.kernels[node as usize];
        let results = launched.outputs.len();
        self.engine
            .launch(kernel, &launched.name, results, launch, site)
    }
}
