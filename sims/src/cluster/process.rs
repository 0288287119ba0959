//! The processes that run on the hosts; each runs production code as the binary does.
//!
//! ```text
//! start ──> production object ──> serves, and does what a scenario sends by mail ──> asked to stop: shuts down
//!                                                                         └──> ends by itself: the supervisor's turn
//! ```

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convoke_common::admission::chain;
use convoke_common::device_spec::DeviceId;
use convoke_common::identity::{Budget, JoinToken, Role};
use convoke_common::world::{BoxFuture, FileMode};
use convoke_coordinator::{Coordinator, CoordinatorConfig, token_file};
use convoke_worker::{BlackBox, END_BOUND, Worker, WorkerConfig};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::task::Task;
use super::tokens::Tokens;
use crate::world::{Host, Machine, STATE, Sockets};

/// A running coordinator.
pub type CoordinatorHandle = Arc<convoke_coordinator::RunningCoordinator>;
/// A running worker.
pub type WorkerHandle = Arc<convoke_worker::RunningWorker>;
/// A client's connection to the cluster.
pub type ClientHandle = convoke::Cluster;

/// The address at which the coordinator listens.
pub(super) const ADDRESS: &str = "coordinator:7070";

/// How long a process may take to stop after it was asked to; the command line grants the same time.
pub(super) const SHUTDOWN_BOUND: Duration = Duration::from_secs(10);

/// How long a worker that leaves lets its running steps continue.
const DRAIN_BOUND: Duration = Duration::from_secs(5);

/// A pause in which tasks notice that the main function dropped their owner.
const LAST_MOMENT: Duration = Duration::from_millis(1);

/// How long a client pauses between attempts to connect.
const RECONNECT: Duration = Duration::from_millis(200);

/// How and why a process ended.
pub(super) struct End {
    pub why: String,
    /// Whether the process had been asked to stop.
    pub wanted: bool,
    /// Tasks that the process left behind, without those in `hung`.
    pub tasks: usize,
    /// Compute threads whose kernel does not return. They end with the process, and so are not counted as left behind.
    hung: usize,
}

/// The state of a process that does not depend on its role.
pub(super) struct Process {
    pub machine: Arc<Machine>,
    state: Mutex<ProcessState>,
}

#[derive(Default)]
struct ProcessState {
    ready: bool,
    /// Whether its main function has returned.
    over: bool,
    stop: CancellationToken,
    end: Option<End>,
}

impl Process {
    fn state(&self) -> MutexGuard<'_, ProcessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_ready(&self) -> bool {
        self.state().ready
    }

    pub fn take_end(&self) -> Option<End> {
        let mut state = self.state();
        match state.over {
            true => state.end.take(),
            false => None,
        }
    }

    /// Notes that the main function has returned, and counts the tasks that are left although their owners were
    /// dropped.
    fn over(&self) {
        let mut state = self.state();
        state.over = true;
        if let Some(end) = &mut state.end {
            end.tasks = self.machine.gate.tasks().saturating_sub(end.hung);
        }
    }

    /// Asks the process to stop.
    pub fn stop(&self) {
        self.state().stop.cancel();
    }

    pub fn is_asked_to_stop(&self) -> bool {
        self.state().stop.is_cancelled()
    }

    fn end(&self, why: impl Into<String>, wanted: bool) {
        self.end_with(why.into(), wanted, 0);
    }

    fn end_with(&self, why: String, wanted: bool, hung: usize) {
        self.state().end = Some(End {
            why,
            wanted,
            tasks: 0,
            hung,
        });
    }
}

type Job<H> = Box<dyn FnOnce(H) -> BoxFuture<'static, ()> + Send>;

struct Mail<H> {
    handle: Option<H>,
    post: Option<mpsc::UnboundedSender<Job<H>>>,
}

/// A host together with the process that it runs; `H` is the handle of that kind of process.
pub(super) struct Site<H> {
    process: Arc<Process>,
    mail: Arc<Mutex<Mail<H>>>,
}

/// Closes a process's sockets when it is dropped, which is when the process ends.
struct Open(Arc<Sockets>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The process's side of a [`Site`].
pub(super) struct Inner<H> {
    process: Arc<Process>,
    mail: Arc<Mutex<Mail<H>>>,
    jobs: mpsc::UnboundedReceiver<Job<H>>,
    stop: CancellationToken,
}

impl<H: Clone + Send + 'static> Site<H> {
    pub fn new(machine: Arc<Machine>) -> Site<H> {
        Site {
            process: Arc::new(Process {
                machine,
                state: Mutex::default(),
            }),
            mail: Arc::new(Mutex::new(Mail {
                handle: None,
                post: None,
            })),
        }
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    fn mail(&self) -> MutexGuard<'_, Mail<H>> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn handle(&self) -> Option<H> {
        self.mail().handle.clone()
    }

    /// Drops the handle and the mailbox of a process that is about to end, and resets its state.
    pub fn clear(&self) {
        let (handle, post) = {
            let mut mail = self.mail();
            (mail.handle.take(), mail.post.take())
        };
        // They are dropped outside the lock: their destructors may lock it again.
        drop((handle, post));
        *self.process.state() = ProcessState::default();
    }

    pub fn send<T, F>(&self, work: impl FnOnce(H) -> F + Send + 'static) -> Task<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (tell, task) = Task::new();
        let job: Job<H> = Box::new(move |handle| {
            let work = work(handle);
            Box::pin(async move {
                // The scenario may have dropped the task.
                let _ = tell.send(work.await);
            })
        });
        if let Some(post) = &self.mail().post {
            // If sending fails, the process has just ended: the task is lost with its job.
            let _ = post.send(job);
        }
        task
    }

    /// Makes `main` the process that runs on this host.
    pub fn install<F>(
        &self,
        sim: &mut turmoil::Sim<'static>,
        main: impl Fn(Inner<H>) -> F + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let (process, mail) = (self.process.clone(), self.mail.clone());
        let name = process.machine.host.name();
        sim.host(name, move || {
            let (post, jobs) = mpsc::unbounded_channel();
            mail.lock().unwrap_or_else(PoisonError::into_inner).post = Some(post);
            let inner = Inner {
                stop: process.state().stop.clone(),
                process: process.clone(),
                mail: mail.clone(),
                jobs,
            };
            let process = process.clone();
            let main = process.machine.gate.wrap(Box::pin(main(inner)));
            let open = Open(process.machine.sockets.clone());
            async move {
                let _open = open;
                main.await;
                tokio::time::sleep(LAST_MOMENT).await;
                process.over();
                // A host's main task never returns: only the supervisor ends it.
                std::future::pending::<turmoil::Result>().await
            }
        });
    }
}

impl<H: Clone + Send + 'static> Inner<H> {
    fn publish(&self, handle: Option<H>) {
        self.process.state().ready = handle.is_some();
        let mut mail = self.mail.lock().unwrap_or_else(PoisonError::into_inner);
        mail.handle = handle;
    }

    /// Serves until the process is asked to stop (`None`) or ends by itself. No job is left running when this returns.
    async fn serve<T>(&mut self, handle: H, ended: impl Future<Output = T>) -> Option<T> {
        self.publish(Some(handle.clone()));
        let mut running: Vec<JoinHandle<()>> = Vec::new();
        tokio::pin!(ended);
        let why = loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break None,
                why = &mut ended => break Some(why),
                Some(job) = self.jobs.recv() => {
                    running.retain(|r| !r.is_finished());
                    let job = job(handle.clone());
                    running.push(self.process.machine.gate.spawn(job));
                }
            }
        };
        self.publish(None);
        for job in running {
            job.abort();
            // An error says that the job was aborted, or that it panicked, which the panic hook has recorded.
            let _ = job.await;
        }
        why
    }
}

/// Runs the coordinator's process, whose owner also makes a token for each host in `own`.
pub(super) async fn coordinator(
    mut p: Inner<CoordinatorHandle>,
    tokens: Tokens,
    own: BTreeMap<Host, Budget>,
) {
    let world = p.process.machine.boot();
    let token_dir = PathBuf::from("/tokens");
    let config = CoordinatorConfig {
        listen: ([0, 0, 0, 0], 7070).into(),
        state_dir: Some(STATE.into()),
        run_dir: None,
        token_dir: Some(token_dir.clone()),
    };
    // This also makes the root folder, which a real disk always has.
    let root = world.store.create_dir(&token_dir, FileMode::Shared);
    let started = match root {
        Ok(()) => Coordinator::start(world.clone(), config).await,
        Err(e) => return p.process.end(chain(&e), false),
    };
    let running = match started {
        Ok(running) => Arc::new(running),
        Err(e) => return p.process.end(e.to_string(), false),
    };
    let left = |role| JoinToken::from_file(world.store.as_ref(), &token_file(&token_dir, role));
    for (host, budget) in own {
        if tokens.own(host).is_some() {
            continue;
        }
        if let Err(e) = tokens.make(&running, host, None, budget).await {
            return p.process.end(e.to_string(), false);
        }
    }
    match (left(Role::Worker), left(Role::Client)) {
        (Ok(worker), Ok(client)) => tokens.give(worker, client),
        (Err(e), _) | (_, Err(e)) => return p.process.end(e.to_string(), false),
    }
    p.serve(running.clone(), std::future::pending::<()>()).await;
    if let Some(running) = Arc::into_inner(running) {
        running.shutdown(SHUTDOWN_BOUND).await;
    }
    p.process.end("stopped", true);
}

/// Runs a worker's process.
pub(super) async fn worker(
    mut p: Inner<WorkerHandle>,
    tokens: Tokens,
    memory: u64,
    simgpu: bool,
    cache: u64,
) {
    let machine = p.process.machine.clone();
    let world = machine.boot();
    let Some(token) = tokens.wait(machine.host).await else {
        return;
    };
    let device = ["cpu:0", "simgpu:0"][usize::from(simgpu)].parse::<DeviceId>();
    let device = match device {
        Ok(device) => device,
        Err(e) => return p.process.end(e.to_string(), false),
    };
    let config = WorkerConfig {
        name: Some(machine.member_name()),
        join: ADDRESS.into(),
        token,
        state_dir: Some(STATE.into()),
        run_dir: None,
        cache_dir: (cache > 0).then(|| "/cache".into()),
        cache_bytes: cache,
        artifact_root: None,
        device,
        device_memory: memory,
        memory,
        sharers: 1,
        listen: ([0, 0, 0, 0], 7071).into(),
        advertise: None,
        host: machine.host.name(),
        black_box: Some(BlackBox::of_deaths(machine.take_deaths())),
    };
    let running = match Worker::start(world, config, None).await {
        Ok(running) => Arc::new(running),
        Err(e) => return p.process.end(e.to_string(), false),
    };
    let ended = {
        let running = running.clone();
        async move {
            tokio::select! {
                biased;
                () = running.told_to_leave() => None,
                e = running.wedged() => Some(e.to_string()),
                e = running.expelled() => Some(e.to_string()),
            }
        }
    };
    match p.serve(running.clone(), ended).await.flatten() {
        None => match running.drain(DRAIN_BOUND).await {
            None => p.process.end("stopped", true),
            Some(why) => p.process.end_with(why.to_string(), true, 1),
        },
        Some(why) => {
            running.shutdown(END_BOUND).await;
            p.process.end(why, false);
        }
    }
}

/// Runs a client's process.
pub(super) async fn client(mut p: Inner<ClientHandle>, tokens: Tokens) {
    let world = p.process.machine.boot();
    let Some(token) = tokens.wait(p.process.machine.host).await else {
        return;
    };
    let cluster = loop {
        let token = match token.to_string().parse::<convoke::Token>() {
            Ok(token) => token,
            Err(e) => return p.process.end(e.to_string(), false),
        };
        match convoke::connect_in(world.clone(), ADDRESS, token, Some(STATE.into())).await {
            Ok(cluster) => break cluster,
            Err(e) => tracing::debug!("cannot connect: {e}"),
        }
        tokio::time::sleep(RECONNECT).await;
    };
    p.serve(cluster.clone(), std::future::pending::<()>()).await;
    cluster.shutdown().await;
    p.process.end("stopped", true);
}
