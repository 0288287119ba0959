//! Measures what joining, resting, planning and stepping cost as clusters grow, without faults: the packets of all
//! hosts, simulated time, and how long one core works for all processes.
//!
//! ```text
//! join ── all workers are registered ── rest ── nobody asks ── load ── a branch on each worker ── steps, one by one
//! ```

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use convoke_graph::graph::{Attrs, Function, Node, RunsAt, TensorType, ValueId};
use convoke_graph::{DType, Tensor};

use crate::cluster::{Cluster, Setup, Task};

/// How long a phase may take, in simulated time.
const BOUND: Duration = Duration::from_secs(600);
/// How long the cluster runs after the joins, until its links have been measured.
const SETTLE: Duration = Duration::from_secs(10);
/// How long the cluster rests.
const REST: Duration = Duration::from_secs(10);
/// The number of steps, one after the other.
const STEPS: usize = 20;

/// The cost of one phase.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    pub packets: f64,
    /// Simulated milliseconds, with a resolution of 1 ms.
    pub simulated: f64,
    /// Milliseconds of real time on this machine.
    pub real: f64,
}

/// The costs of a cluster of one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    pub workers: u16,
    /// The cost from the start of the first process until all workers are registered and their links measured.
    pub join: Cost,
    /// The cost of one second in which nobody asks for anything.
    pub rest: Cost,
    /// The cost of planning and installing a function with a branch on each worker.
    pub load: Cost,
    /// The cost of one step of that function.
    pub step: Cost,
}

/// Measures a cluster of this many workers.
pub fn measure(workers: u16) -> Result<Row> {
    let mut cluster = Cluster::new(Setup {
        workers,
        ..Setup::default()
    });
    let join = phase(&mut cluster, |c| {
        ensure!(c.settle(BOUND), "not all workers joined: {:?}", c.ends());
        c.run_for(SETTLE);
        Ok(())
    })?;
    let rest = phase(&mut cluster, |c| {
        c.run_for(REST);
        Ok(())
    })?;
    let mut model = None;
    let load = phase(&mut cluster, |c| {
        let function = fan_out(workers);
        let loading = c.on_client(0, move |client| async move {
            let mut builder = client
                .load_function(function, vec![])
                .workers(u32::from(workers))
                .pin("sum", "w0");
            for i in 0..workers {
                builder = builder.pin(format!("branch{i}"), format!("w{i}"));
            }
            builder.await
        });
        model = Some(finish(c, loading)??);
        Ok(())
    })?;
    let model = model.context("a model was loaded")?;
    let steps = phase(&mut cluster, |c| {
        let calling = c.on_client(0, move |_| async move {
            for _ in 0..STEPS {
                let inputs = (0..workers).map(|i| (format!("x{i}"), Tensor::scalar(4f32)));
                model.call(inputs).await?;
            }
            Ok::<_, convoke::Error>(())
        });
        Ok(finish(c, calling)??)
    })?;
    ensure!(cluster.panics().is_empty(), "{:?}", cluster.panics());
    Ok(Row {
        workers,
        join,
        rest: rest.over(REST.as_secs_f64()),
        load,
        step: steps.over(STEPS as f64),
    })
}

impl Cost {
    fn over(self, parts: f64) -> Cost {
        Cost {
            packets: self.packets / parts,
            simulated: self.simulated / parts,
            real: self.real / parts,
        }
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "what a machine takes to simulate"
)]
fn phase(cluster: &mut Cluster, work: impl FnOnce(&mut Cluster) -> Result<()>) -> Result<Cost> {
    let (at, before, begun) = (cluster.elapsed(), cluster.trace().packets(), Instant::now());
    work(cluster)?;
    let after = cluster.trace().packets();
    Ok(Cost {
        packets: (after.sent - before.sent) as f64,
        simulated: (cluster.elapsed() - at).as_secs_f64() * 1e3,
        real: begun.elapsed().as_secs_f64() * 1e3,
    })
}

fn finish<T>(cluster: &mut Cluster, task: Task<T>) -> Result<T> {
    let over = cluster.run_until(BOUND, |_| task.is_over());
    ensure!(over, "a call has not ended in {BOUND:?}");
    task.take().context("the client's process ended")
}

/// Builds y = sqrt(x0) + sqrt(x1) + …
fn fan_out(branches: u16) -> Function {
    let mut f = Function {
        name: "fan out".into(),
        ..Function::default()
    };
    let value = |f: &mut Function, name| f.add_value(name, TensorType::fixed(DType::F32, &[]));
    let mut roots = Vec::new();
    for i in 0..branches {
        let (x, root) = (
            value(&mut f, format!("x{i}")),
            value(&mut f, format!("root{i}")),
        );
        f.params.push(x);
        f.nodes
            .push(node(&format!("branch{i}"), "Sqrt", &[x], root));
        roots.push(root);
    }
    let y = value(&mut f, "y".into());
    f.nodes.push(node("sum", "Sum", &roots, y));
    f.results = vec![("y".into(), y)];
    f
}

fn node(name: &str, op: &str, inputs: &[ValueId], output: ValueId) -> Node {
    Node {
        name: name.into(),
        op: op.into(),
        attrs: Attrs::default(),
        inputs: inputs.iter().map(|v| Some(*v)).collect(),
        outputs: vec![output],
        runs_at: RunsAt::Step,
    }
}

/// The header of a table of [`Row`]s.
pub const HEAD: &str = "workers  join: packets  real ms  rest: packets/s  real ms/s  load: packets  sim ms  real ms  step: packets  sim ms  real ms";

impl fmt::Display for Row {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row {
            workers,
            join,
            rest,
            load,
            step,
        } = self;
        write!(
            out,
            "{workers:7}  {:13.0}  {:7.0}  {:15.0}  {:9.1}  {:13.0}  {:6.0}  {:7.1}  {:13.1}  {:6.1}  {:7.2}",
            join.packets,
            join.real,
            rest.packets,
            rest.real,
            load.packets,
            load.simulated,
            load.real,
            step.packets,
            step.simulated,
            step.real,
        )
    }
}
