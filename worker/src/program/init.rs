//! One node of a program's init part, run on the compute threads while its lease is installed.
//!
//! A cancelled install stops its kernel as an aborted step does: a node that no thread has yet never runs, a running
//! kernel sees the flag, and one that does not stop is watched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use convoke_common::error::{Code, Error, Result, Site};
use convoke_common::ids::LeaseId;
use convoke_common::memory::Pool;
use convoke_common::world::Share;
use convoke_graph::Tensor;
use convoke_graph::program::Program;
use convoke_kernels::Exec;
use tokio::sync::oneshot;

use crate::compute::Crew;
use crate::cpu::{Inputs, KernelFailure, Launch, Operands, Outputs, caught};
use crate::executor::Engine;
use crate::health::wedge::{RETURNS, WEDGED, Work};
use crate::program::installed::{kernel, site};

/// Why a node does not run at all.
const BUSY: &str = "the compute threads take no further work";

/// The state of a node's run, shared without locks between its thread and the install that waits for it.
#[derive(Default)]
struct Progress {
    cancelled: AtomicBool,
    began: AtomicBool,
    over: AtomicBool,
}

/// The thread's side of a run: its drop marks the run as over, whatever happens.
struct EndGuard {
    engine: Arc<Engine>,
    progress: Arc<Progress>,
    lease: LeaseId,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.progress.over.store(true, Ordering::SeqCst);
        self.engine.watch.quiesced(Work::Init(self.lease));
    }
}

/// The waiting side of a run: a drop before the answer cancels the run.
struct WaiterGuard {
    engine: Arc<Engine>,
    progress: Arc<Progress>,
    lease: LeaseId,
    place: Site,
    answered: bool,
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let p = &self.progress;
        p.cancelled.store(true, Ordering::SeqCst);
        if !p.began.load(Ordering::SeqCst) || p.over.load(Ordering::SeqCst) {
            return;
        }
        let name = self.place.node.as_deref().unwrap_or("?");
        let msg = format!(
            "worker {} is wedged: init node '{name}' did not stop within {WEDGED:?} after its install was cancelled",
            self.engine.worker
        );
        let error = Error::new(Code::Wedged, msg)
            .advise(RETURNS)
            .at(self.place.clone());
        let progress = p.clone();
        let look = move || (!progress.over.load(Ordering::SeqCst)).then_some(error);
        self.engine
            .watch
            .ended(Work::Init(self.lease), Box::new(look));
    }
}

/// Runs init node `index` on the compute threads, and waits for its results.
pub async fn run(
    engine: &Arc<Engine>,
    share: &Share,
    program: &Arc<Program>,
    index: usize,
    inputs: Inputs,
    weights: &Pool,
) -> Result<Outputs> {
    let (lease, node) = (share.lease(), &program.nodes[index]);
    let kernel = kernel(program, node)?;
    let names: Vec<String> = inputs.iter().flatten().map(Tensor::signature).collect();
    let place = Site {
        worker: Some(engine.worker.clone()),
        host: Some(engine.host.clone()),
        device: Some(engine.device_name.clone()),
        ..site(node, names)
    };
    let progress = Arc::<Progress>::default();
    let mut waiting = WaiterGuard {
        engine: engine.clone(),
        progress: progress.clone(),
        lease,
        place: place.clone(),
        answered: false,
    };
    let (done, result) = oneshot::channel();
    let (beginning, running) = (progress.clone(), engine.clone());
    let (pool, name, function) = (weights.clone(), node.name.clone(), program.function);
    let begin = Box::new(move || {
        let wanted = !beginning.cancelled.load(Ordering::SeqCst);
        beginning.began.store(wanted, Ordering::SeqCst);
        wanted
    });
    let job = Box::new(move || {
        let over = EndGuard {
            engine: running,
            progress,
            lease,
        };
        let (engine, flag) = (&over.engine, &over.progress.cancelled);
        if flag.load(Ordering::SeqCst) {
            return;
        }
        let crew = Crew::current();
        let exec = match &crew {
            Some(crew) => crew.exec(flag),
            None => Exec::single(flag),
        };
        let noted = engine.note(&function, &name);
        let launched = caught(|| {
            engine.compute.launching(&function, &name);
            let mut inputs = inputs;
            kernel.launch(&mut Launch {
                inputs: Operands::given(&mut inputs),
                sizes: None,
                exec,
                pool: &pool,
            })
        });
        drop(noted);
        // The kernel's pool goes first, so that a cancelled install has freed its weights before its run counts as
        // over.
        drop(pool);
        // The receiver is gone where the install was cancelled.
        drop(done.send(launched));
    });
    if engine.compute.submit_begun(share, 0, begin, job).is_err() {
        return Err(Error::new(Code::Busy, BUSY));
    }
    let result = result.await;
    waiting.answered = true;
    match result {
        Ok(Ok(outputs)) => Ok(outputs),
        Ok(Err(KernelFailure::Error(e))) => Err((*e).at(place)),
        Ok(Err(KernelFailure::Cancelled)) => {
            Err(Error::new(Code::Cancelled, "the install was cancelled").at(place))
        }
        // Compute was closed before the job ran.
        Err(_) => Err(Error::new(Code::Busy, BUSY).at(place)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use convoke_common::memory::{Ledger, Purpose};
    use convoke_common::world::{AccountId, Begin, Compute, Job, RefusedJob};
    use convoke_graph::DType;
    use convoke_graph::graph::{Attrs, TensorType, Value};
    use convoke_graph::ids::FunctionId;
    use convoke_graph::program::{NUMERICS_PROFILE, ProgramNode};
    use futures::FutureExt;

    use super::*;

    /// A compute pool that holds jobs, begun or not, until a test runs them.
    #[derive(Default)]
    struct ManualCompute {
        begins: bool,
        jobs: Mutex<Vec<Job>>,
    }

    impl Compute for ManualCompute {
        fn threads(&self) -> usize {
            1
        }
        fn speed(&self) -> (f64, f64) {
            (1.0, 1.0)
        }
        fn submit(&self, _: &Share, _: i64, job: Job) -> Result<(), RefusedJob> {
            self.jobs.lock().unwrap().push(job);
            Ok(())
        }
        fn submit_begun(
            &self,
            share: &Share,
            priority: i64,
            begin: Begin,
            job: Job,
        ) -> Result<(), RefusedJob> {
            if self.begins {
                begin();
            }
            self.submit(share, priority, job)
        }
    }

    fn program() -> Arc<Program> {
        let value = |name: &str| Value {
            name: name.into(),
            ty: TensorType::fixed(DType::F32, &[1]),
        };
        let node = ProgramNode {
            name: "pack".into(),
            op: "Neg".into(),
            attrs: Attrs::default(),
            inputs: vec![0],
            outputs: vec![1],
            priority: 0,
            cost: 0,
        };
        Arc::new(Program {
            name: "m".into(),
            function: FunctionId::default(),
            profile: NUMERICS_PROFILE.into(),
            values: vec![value("x"), value("y")],
            literals: vec![],
            artifacts: vec![],
            nodes: vec![node],
            init_nodes: 1,
            recvs: vec![],
            sends: vec![],
        })
    }

    /// Cancels an install before or after a thread has its job, and runs the job `ms` milliseconds later.
    async fn check(begins: bool, ms: u64, wedges: bool) {
        let compute = Arc::new(ManualCompute {
            begins,
            ..ManualCompute::default()
        });
        let engine = Arc::new(Engine::new("w0", "here", compute.clone(), None));
        let pool = Pool::new(&Ledger::new("w0", 1 << 20), Purpose::Weights, 0).unwrap();
        let inputs = Inputs::from_iter([Some(Tensor::scalar(1f32))]);
        let program = program();
        let share = Share::new(AccountId::named("c"), LeaseId(3));
        let run = run(&engine, &share, &program, 0, inputs, &pool);
        assert!(run.now_or_never().is_none());
        let wedged = tokio::time::timeout(Duration::from_millis(ms), engine.watch.wedged()).await;
        let wedged = wedged.ok().map(|e| e.message);
        assert_eq!(wedged.is_some(), wedges, "{wedged:?}");
        assert!(wedged.is_none_or(|m| m.contains("init node 'pack'")));
        compute.jobs.lock().unwrap().pop().unwrap()();
        assert!(engine.watch.is_empty());
        assert_eq!(pool.live_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_install_wedges_only_where_a_kernel_goes_on() {
        check(true, 4900, false).await;
        check(true, 5100, true).await;
        check(false, 60_000, false).await;
    }
}
