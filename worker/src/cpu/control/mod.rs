//! Control flow: kernels that run functions on the calling thread; the kernels within may use all threads.
//!
//! Invariants
//! 1. A function is checked, its kernels are resolved, and it is lowered once, when the op is resolved ([`body`]).
//! 2. The cancel flag is checked before each run of a function and between two of its kernels, so that a loop without end
//!    can be stopped.
//! 3. A value is moved at its last use, so that a carried tensor may be overwritten.

mod body;
mod collect;
mod runs;

use std::future::ready;
use std::sync::Arc;

use convoke_common::Error;
use convoke_graph::graph::{Attrs, Function};
use convoke_graph::ops::{self, ControlOp, OpError};
use convoke_graph::program::PARTITIONED;
use convoke_graph::{DType, Outputs};
use futures::FutureExt;
use smallvec::SmallVec;

use body::Body;
pub(crate) use runs::{Runs, Values, functions};

use super::kernel::{Inputs, Kernel, KernelFailure, Launch};

/// The kernel of a control-flow op.
pub(super) fn find(
    op: ControlOp,
    attrs: &Attrs,
    operands: &[Option<DType>],
) -> Result<Arc<dyn Kernel>, OpError> {
    if attrs.get(PARTITIONED).is_some() {
        return Ok(Arc::new(Partitioned));
    }
    let reason = |name: &str| OpError::Attr {
        attr: name.into(),
        reason: "is required".into(),
    };
    let body = |name: &&str| Body::new(attrs.function(name).ok_or_else(|| reason(name))?);
    ops::check_bodies(attrs)?;
    let bodies: Vec<Body> = functions(op).iter().map(body).collect::<Result<_, _>>()?;
    let first = bodies.first().ok_or_else(|| reason("body"))?;
    let results = first.function().results.len();
    let mut runs = Runs::of(op, attrs, operands.len(), results)?;
    match &mut runs {
        Runs::If => {
            for branch in &bodies {
                branch.takes(operands.len().saturating_sub(1))?;
            }
            if bodies.iter().any(|b| b.function().results.len() != results) {
                return Err(OpError::shape(
                    "the branches yield different numbers of results",
                ));
            }
        }
        Runs::Loop { carried, counts } => {
            first.takes(operands.len())?;
            first.yields(1 + *carried)?;
            *counts = first.reads(0);
        }
        Runs::Scan { carried, .. } => {
            first.takes(operands.len())?;
            first.yields(*carried)?;
        }
    }
    Ok(Arc::new(Control { runs, bodies }))
}

/// A node of control flow whose functions this worker runs.
struct Control {
    runs: Runs,
    /// The functions, by number.
    bodies: Vec<Body>,
}

impl Kernel for Control {
    fn launch(&self, launch: &mut Launch<'_>) -> Result<Outputs, KernelFailure> {
        let (exec, pool) = (launch.exec, launch.pool);
        let inputs = &mut launch.inputs;
        let inputs: Inputs = (0..inputs.len()).map(|i| inputs.take(i)).collect();
        let types: SmallVec<[&Function; 2]> = self.bodies.iter().map(Body::function).collect();
        let mut registers = vec![];
        let run = |function: usize, params: Values| {
            let body = &self.bodies[function];
            ready(body.run(params, &mut registers, exec, pool))
        };
        let ran = self.runs.run(&types, inputs, || exec, pool, run);
        // On this path the future that runs a function is ready at once, because the function runs on the calling
        // thread.
        let waits = || Error::internal("a kernel of control flow waits");
        ran.now_or_never().ok_or_else(waits)?
    }
}

/// A node whose functions several workers run. Its executor drives them; it launches nothing.
struct Partitioned;

impl Kernel for Partitioned {
    fn launch(&self, _: &mut Launch<'_>) -> Result<Outputs, KernelFailure> {
        Err(Error::internal("a partitioned body within a kernel").into())
    }
}
