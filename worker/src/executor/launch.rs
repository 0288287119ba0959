//! The launch of one kernel, and the errors that a failed launch gives.

use convoke_common::error::{Error, Site};
use convoke_common::mutant;
use convoke_graph::{Dim, Tensor};
use convoke_kernels::Exec;

use super::{Engine, Executor, NO_FUNCTION};
use crate::cpu::{Kernel, Launch, OperandPlace, Operands, Outputs, Register, caught, launch_error};

impl Engine {
    /// Runs a kernel outside of steps, which must give at least `results` outputs. Fails with `None` where the launch
    /// was cancelled. `site` is the place of a failure, without the worker.
    pub(crate) fn launch(
        &self,
        kernel: &dyn Kernel,
        name: &str,
        results: usize,
        launch: &mut Launch<'_>,
        site: impl FnOnce() -> Site,
    ) -> Result<Outputs, Option<Error>> {
        // The results are written in place, as each move of them costs an op of the eager path several instructions.
        let mut made = Outputs::new();
        let launched = caught(|| {
            self.compute.launching(&NO_FUNCTION, name);
            made = kernel.launch(launch)?;
            Ok(())
        });
        if launched.is_ok() && made.len() >= results {
            return Ok(made);
        }
        let error = launch_error(launched).ok_or(None)?;
        Err(Some(self.placed(error, site())))
    }

    pub(crate) fn placed(&self, error: Error, site: Site) -> Error {
        error.at(Site {
            node: site.node,
            op: site.op,
            origin: site.origin,
            operands: site.operands,
            ..self.place()
        })
    }

    /// The place of this worker's errors: its name, host and device.
    pub(crate) fn place(&self) -> Site {
        Site {
            worker: Some(self.worker.clone()),
            host: Some(self.host.clone()),
            device: Some(self.device_name.clone()),
            ..Site::default()
        }
    }

    /// The error of work that this worker does not take, for `refusal`. It is apart from the paths of ops and steps, which are short.
    #[cold]
    #[inline(never)]
    pub(crate) fn refused(&self, refusal: &Error) -> Error {
        refusal.clone().at(self.place())
    }
}

impl Executor {
    /// Runs the kernel of one instruction. Fails with `None` where the step was cancelled.
    pub(super) fn launch(
        &self,
        n: u64,
        i: u32,
        registers: &mut [Register],
        exec: Exec<'_>,
    ) -> Result<Outputs, Option<Box<Error>>> {
        let (engine, x) = (&*self.engine, &*self.installed);
        let code = &x.code;
        let name = |node: &u32| &*x.nodes()[*node as usize].name;
        let noted = engine.black_box.as_ref();
        let noted = noted.map(|b| b.note(&x.program.function, name(&code.instr(i).node)));
        let mut launch = Launch {
            inputs: Operands::at(code.operands(i), registers, &code.constants),
            sizes: code.sizes(i),
            exec,
            pool: &self.pool,
        };
        let launched = caught(|| {
            if engine.hears_launches {
                let function = &x.program.function;
                let members = code.members(i).iter();
                members.for_each(|m| engine.compute.launching(function, name(m)));
            }
            code.kernel(i).launch(&mut launch)
        });
        drop(noted);
        match launched {
            Ok(made) if made.len() >= code.results(i).len() => Ok(made),
            failed => {
                let error = launch_error(failed).ok_or(None)?;
                Err(Some(Box::new(self.failed(n, i, registers, error))))
            }
        }
    }

    /// The error of a kernel's failure, with its node and the types of its operands.
    #[cold]
    pub(super) fn failed(&self, n: u64, i: u32, registers: &[Register], error: Error) -> Error {
        let x = &*self.installed;
        let node = x.code.instr(i).node as usize;
        let blamed = node.saturating_sub(usize::from(mutant!("wrong-node-blamed")));
        let fused = x.code.members(i).len() > 1;
        let mut operands = Vec::new();
        for (at, slot) in x.code.operands(i).iter().enumerate() {
            let there = match slot.place() {
                OperandPlace::Nothing => continue,
                OperandPlace::Constant(c) => x.code.constants.get(c as usize),
                OperandPlace::Read(r) | OperandPlace::Last(r) => {
                    registers.get(r as usize).and_then(Option::as_ref)
                }
            };
            // The kernel has taken and overwritten the operand that is missing; it was of the declared type.
            let declared = x.nodes()[node].inputs.get(at).filter(|_| !fused);
            let declared = || Some(self.declared(n, *declared?));
            operands.extend(there.map(Tensor::signature).or_else(declared));
        }
        let site = crate::program::installed::site(&x.nodes()[blamed], operands);
        self.engine.placed(error, site)
    }

    /// The declared type of a value, with the sizes of a step as far as they are known.
    pub(super) fn declared(&self, n: u64, value: u32) -> String {
        let Some(value) = self.installed.program.values.get(value as usize) else {
            return String::new();
        };
        let mut ty = value.ty.clone();
        if let Some(b) = self.lease().and_then(|l| l.bindings(n)) {
            for d in &mut ty.shape {
                if let Some(size) = d.eval(&b) {
                    *d = Dim::Const(size);
                }
            }
        }
        ty.to_string()
    }
}
