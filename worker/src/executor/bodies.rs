//! Nodes whose functions are partitioned bodies: this worker drives their steps, and the node's results arrive later.
//!
//! ```text
//! operands ──> Runs ──iteration, branch──> Driver ──Start, feeds──> workers of the body ──results──┐
//!               ^ └── carried and collected values <───────────────────────────────────────────────┘
//!               └──> results of the node
//! ```
//! One task of the lease runs the functions of all nodes that are reached, and no thread waits for it. A step of a body has a lease of its own, with a
//! window as large as that of the lease around it, so that each step of this one has room for one of the body.
//!
//! Invariants
//! 1. The step does not quiesce before the functions of its nodes have ended; a step that ends cancels them, and so the
//!    step of the body that runs.
//! 2. A node fails with the error of its body's step, which names the worker and the inner node where they are known.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use convoke_common::error::{Code, Error};
use convoke_common::world::World;
use convoke_graph::Tensor;
use convoke_graph::dim::Bindings;
use convoke_graph::graph::Function;
use convoke_graph::ops::{self, Op};
use convoke_graph::program::{Axes, PARTITIONED};
use convoke_kernels::Exec;
use convoke_rendezvous::driver::Driver;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tracing::Instrument;

use super::Executor;
use super::partial::is_of_node;
use super::run::FollowUp;
use crate::cpu::{Inputs, KernelFailure, Operands, Outputs, Runs, Values, functions};

/// A partitioned body that this worker drives.
pub struct DrivenBody {
    /// Its number in the plan.
    pub number: u32,
    pub driver: Arc<Driver>,
    pub axes: Axes,
}

/// The bodies that the nodes of one program drive, and the task that does so.
pub struct DrivenBodies {
    bodies: Vec<DrivenBody>,
    /// Takes a future for each node that is reached.
    nodes: mpsc::Sender<BoxFuture<'static, ()>>,
}

impl DrivenBodies {
    /// The bodies of a program with this many steps in flight. Their task runs in `world` until this is dropped.
    pub fn new(world: &World, bodies: Vec<DrivenBody>, in_flight: u32) -> DrivenBodies {
        // A node has a body at least, and is reached once in a step.
        let room = bodies.len().saturating_mul(in_flight.max(1) as usize);
        let (nodes, reached) = mpsc::channel(room);
        world.spawn(run_all(reached));
        DrivenBodies { bodies, nodes }
    }
}

/// Runs what arrives, all at once, until nothing more can arrive.
async fn run_all(mut reached: mpsc::Receiver<BoxFuture<'static, ()>>) {
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            more = reached.recv() => match more {
                Some(node) => running.push(node),
                None => break,
            },
            Some(()) = running.next() => {}
        }
    }
    while running.next().await.is_some() {}
}

impl DrivenBody {
    /// Runs the body once, at the worker of this name, within a step whose axes have the sizes `around`.
    async fn run(
        &self,
        worker: &str,
        around: &Bindings,
        params: Values,
    ) -> Result<Values, KernelFailure> {
        let feeds = &self.driver.program().feeds;
        let mut sizes = Bindings::new();
        for (feed, t) in feeds.iter().zip(&params) {
            if feed.ty.dtype != t.dtype() || !Axes::unify(&feed.ty.shape, t.shape(), &mut sizes) {
                let (name, ty) = (&feed.name, &feed.ty);
                let msg = format!("'{name}' is {}, not {ty}", t.signature());
                return Err(KernelFailure::values(msg));
            }
        }
        let bounds = self.axes.bounds.iter();
        // An axis may stand in no operand alone.
        let size = |axis| sizes.get(axis).or_else(|| around.get(axis));
        let axes = bounds.map(|(axis, _)| size(axis).copied().unwrap_or(0));
        let made = self.driver.call(params.into_vec(), axes.collect(), None);
        made.await
            .map(Values::from_vec)
            .map_err(|e| within(e, worker).into())
    }
}

/// The error with which a node fails, made from the error of its body's step. An error that ends a participant of the
/// body is for the others the loss of that participant. `worker`, the body's driver, counts as the one that noticed it
/// where nobody else did.
fn within(mut error: Error, worker: &str) -> Error {
    error.stopped.clear();
    let ends = [Code::Wedged, Code::WorkerLeaving, Code::LeaseRetired];
    if ends.contains(&error.code) && error.site.as_ref().is_some_and(|s| s.worker.is_some()) {
        error.code = Code::PeerLost;
    }
    error.said_by(worker)
}

impl Executor {
    /// Gives the executor the bodies that nodes of its program drive.
    pub fn drive_bodies(&self, bodies: DrivenBodies) {
        let _ = self.bodies.set(bodies);
    }

    /// Begins to run the functions of a node of step `n`, which its thread interprets.
    pub(super) fn drive(&self, n: u64, node: u32, operands: &mut Operands<'_>) {
        let inputs: Inputs = (0..operands.len()).map(|i| operands.take(i)).collect();
        let (flag, cancel, span) = {
            let mut run = self.run(n);
            run.events += 1;
            (run.flag.clone(), run.cancel.clone(), run.span.clone())
        };
        let (Some(me), Some(lease), Some(driven)) =
            (self.me.upgrade(), self.lease(), self.bodies.get())
        else {
            let error = Error::internal("a node without its partitioned bodies");
            return self.answered(n, node, Err(error.into()));
        };
        let task = async move {
            // This keeps the lease: a step ends with `Done` even when its lease is released meanwhile.
            let _lease = lease;
            let ran = cancel.run_until_cancelled(me.run_functions(n, node, inputs, &flag));
            let ended = ran.await.unwrap_or(Err(KernelFailure::Cancelled));
            me.answered(n, node, ended);
        };
        if driven
            .nodes
            .try_send(Box::pin(task.instrument(span)))
            .is_err()
        {
            let error = Error::internal("more nodes are reached than there are");
            self.answered(n, node, Err(error.into()));
        }
    }

    async fn run_functions(
        &self,
        n: u64,
        node: u32,
        inputs: Inputs,
        flag: &AtomicBool,
    ) -> Result<Outputs, KernelFailure> {
        let node = &self.installed.nodes()[node as usize];
        let malformed = || Error::internal("a node without its partitioned bodies");
        let Some(Op::Control(op)) = ops::lookup(&node.op).map(|def| def.op) else {
            return Err(malformed().into());
        };
        let types = functions(op).iter();
        let types = types.map(|name| node.attrs.function(name).map(|f| &**f));
        let types: Option<Vec<&Function>> = types.collect();
        let types = types.ok_or_else(malformed)?;
        let results = types.first().map_or(0, |f| f.results.len());
        let runs = Runs::of(op, &node.attrs, inputs.len(), results);
        let runs = runs.map_err(|e| Error::internal(e.to_string()))?;
        let numbers = node.attrs.ints(PARTITIONED).unwrap_or_default();
        let all = self.bodies.get().map_or(&[][..], |driven| &driven.bodies);
        let find = |number: &i64| all.iter().find(|b| i64::from(b.number) == *number);
        let bodies: Option<Vec<&DrivenBody>> = numbers.iter().map(find).collect();
        let bodies = bodies.filter(|b| b.len() == types.len());
        let bodies = bodies.ok_or_else(malformed)?;
        let exec = || Exec::single(flag);
        let worker = &*self.engine.worker;
        let around = self.bindings(n).unwrap_or_default();
        let run = |function: usize, params: Values| bodies[function].run(worker, &around, params);
        runs.run(&types, inputs, exec, &self.pool, run).await
    }

    /// The functions of a node of step `n` have run, or will not. The step has not quiesced, since it counts the answer.
    fn answered(&self, n: u64, node: u32, ended: Result<Outputs, KernelFailure>) {
        let values = &self.installed.nodes()[node as usize].outputs;
        let ended: Result<Vec<Tensor>, _> = match ended {
            Ok(made) if made.len() < values.len() => {
                Err(Some(Error::internal("a body left results out")))
            }
            Ok(made) => Ok(made.into_iter().collect()),
            Err(KernelFailure::Error(error)) => Err(Some(error.at(self.site_of(node)))),
            Err(KernelFailure::Cancelled) => Err(None),
        };
        let mut after = FollowUp::default();
        let (mut lost, mut failed) = (None, None);
        {
            let mut run = self.run(n);
            run.events -= 1;
            if run.error.is_none() {
                let delivered: Vec<Result<Tensor, Arc<Error>>> = match ended {
                    Ok(made) => made.into_iter().map(Ok).collect(),
                    Err(Some(error)) if run.partial && is_of_node(&error) => {
                        let error = Arc::new(error);
                        lost = Some(error.clone());
                        values.iter().map(|_| Err(error.clone())).collect()
                    }
                    Err(error) => {
                        failed = error;
                        vec![]
                    }
                };
                for (value, delivered) in values.iter().zip(delivered) {
                    if run.came(&self.installed, Some(*value), delivered, &mut after) {
                        self.stir(n);
                    }
                }
            }
            run.settle(&mut after);
        }
        if let Some(error) = lost {
            self.note_first_failure(n, &error);
        }
        self.finish(n, after);
        if let Some(error) = failed {
            self.fail(n, error);
        }
    }
}
