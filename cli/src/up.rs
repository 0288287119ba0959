//! `convoke up`: a cluster of processes on this machine.
//!
//! The children are this same binary. They hold the other end of a pipe to this process, so that they end with it,
//! however it ends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::error::{Code, Error};
use convoke_common::identity::Role;
use convoke_coordinator::token_file;
use futures::future::join_all;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, timeout};

use crate::args::{LogArgs, LogFormat, UpArgs};
use crate::daemon::Ready;
use crate::failure::Failure;
use crate::signals::Signals;
use crate::{machine, output};

/// How long a child may take to say that it is ready.
const START_BOUND: Duration = Duration::from_secs(30);
/// How long one may take to stop beyond the time that its steps have; more than it gives itself.
const STOP_BOUND: Duration = Duration::from_secs(12);
/// First and longest pause before a worker that ended is started again; one that lasted longer begins anew.
const RESTART: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// The run folder, removed with everything in it.
struct RunDir(PathBuf);

impl RunDir {
    fn make(given: Option<PathBuf>) -> Result<RunDir, Failure> {
        use std::os::unix::fs::DirBuilderExt;
        let path = given.unwrap_or_else(|| {
            let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
            let base = base.filter(|b| b.is_dir());
            let base = base.unwrap_or_else(std::env::temp_dir);
            base.join(format!("convoke-up-{}", std::process::id()))
        });
        // Not recursive: a folder that is there already is somebody's, and would be removed at the end.
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| {
            let msg = format!("cannot make the folder {}: {e}", path.display());
            Error::new(Code::Io, msg).advise("name a new folder with --run-dir DIR")
        })?;
        Ok(RunDir(path))
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!("cannot remove {}: {e}", self.0.display());
        }
    }
}

/// A child process, started again and again.
struct Process {
    what: String,
    recipe: Recipe,
    child: Option<Child>,
    /// The pipe whose end tells it to stop. Kept out of `child`, which closes its own before it waits.
    pipe: Option<ChildStdin>,
    /// When it was ready.
    ready: Instant,
    /// Before it is started again.
    pause: Duration,
}

/// Makes the command that starts a child.
type Recipe = Arc<dyn Fn() -> Command + Send + Sync>;

#[derive(Serialize)]
struct Cluster {
    connect: String,
    client_token_file: PathBuf,
    worker_token_file: PathBuf,
    state_dir: PathBuf,
    workers: Vec<String>,
}

/// Starts, tells how to connect, waits, stops.
pub async fn up(args: UpArgs, log: LogArgs, json: bool) -> Result<(), Failure> {
    let mut signals = Signals::hear()?;
    let run_dir = RunDir::make(args.run_dir.clone())?;
    let mut processes = Vec::new();
    let started = signals
        .or(start(&args, &log, &run_dir.0, &mut processes))
        .await;
    let result = match started.and_then(|cluster| tell(&cluster, json)) {
        Ok(()) => watch(&mut signals, &mut processes).await,
        Err(e) => Err(e),
    };
    stop(processes, args.drain_bound + STOP_BOUND).await;
    result
}

async fn start(
    args: &UpArgs,
    log: &LogArgs,
    run_dir: &Path,
    processes: &mut Vec<Process>,
) -> Result<Cluster, Failure> {
    let (state_dir, tokens) = (run_dir.join("coordinator"), run_dir.join("tokens"));
    let recipe: Recipe = {
        let (args, log) = (args.clone(), log.clone());
        let (state_dir, tokens) = (state_dir.clone(), tokens.clone());
        Arc::new(move || {
            let mut command = child("coordinator", &log);
            command.arg("--listen").arg(args.listen.to_string());
            command.arg("--state-dir").arg(&state_dir);
            command.arg("--token-dir").arg(&tokens);
            command
        })
    };
    let coordinator = spawn("the coordinator", recipe, processes).await?;
    let worker_token_file = token_file(&tokens, Role::Worker);
    let threads = args
        .threads
        .unwrap_or_else(|| (machine::cores() as u32 / args.workers).max(1));
    let memory = args
        .memory
        .unwrap_or_else(|| machine::default_memory() / u64::from(args.workers));
    let connect = reachable(&coordinator.listen);
    let mut workers = Vec::new();
    for i in 0..args.workers {
        let name = format!("w{i}");
        let what = format!("worker {name}");
        let folder = run_dir.join(&name);
        let (args, log, connect) = (args.clone(), log.clone(), connect.clone());
        let token_file = worker_token_file.clone();
        let recipe: Recipe = Arc::new(move || {
            let mut command = child("worker", &log);
            command.arg("--join").arg(&connect);
            command.arg("--token-file").arg(&token_file);
            command.arg("--name").arg(&name);
            command.arg("--state-dir").arg(&folder);
            command.arg("--cache-dir").arg(folder.join("chunks"));
            command.arg("--threads").arg(threads.to_string());
            command.arg("--memory").arg(memory.to_string());
            let listen = SocketAddr::new(args.listen.ip(), 0);
            command.arg("--listen").arg(listen.to_string());
            let bound = format!("{}ms", args.drain_bound.as_millis());
            command.arg("--drain-bound").arg(bound);
            if let Some(root) = &args.artifact_root {
                command.arg("--artifact-root").arg(root);
            }
            command
        });
        workers.push(spawn(&what, recipe, processes).await?.name);
    }
    Ok(Cluster {
        connect,
        client_token_file: token_file(&tokens, Role::Client),
        worker_token_file,
        state_dir,
        workers,
    })
}

/// An address of this machine for one that listens at all of them.
fn reachable(listen: &str) -> String {
    match listen.parse::<SocketAddr>() {
        Ok(a) if a.ip().is_unspecified() => {
            let ip: IpAddr = match a.is_ipv4() {
                true => Ipv4Addr::LOCALHOST.into(),
                false => Ipv6Addr::LOCALHOST.into(),
            };
            SocketAddr::new(ip, a.port()).to_string()
        }
        _ => listen.to_owned(),
    }
}

/// This binary in a role; variables that are meant for this command do not reach it.
fn child(role: &str, log: &LogArgs) -> Command {
    let mut command = Command::new("/proc/self/exe");
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CONVOKE_") {
            command.env_remove(&name);
        }
    }
    command.arg0("convoke");
    command.args([role, "--attached", "--json"]);
    if let Some(filter) = &log.log {
        command.args(["--log", filter]);
    }
    if log.log_format == LogFormat::Json {
        command.args(["--log-format", "json"]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.kill_on_drop(true);
    command
}

/// Starts a child and waits until it says that it is ready. Among `processes` at once, it is stopped whatever happens.
async fn spawn(what: &str, recipe: Recipe, processes: &mut Vec<Process>) -> Result<Ready, Failure> {
    let process = processes.push_mut(Process {
        what: what.to_owned(),
        recipe,
        child: None,
        pipe: None,
        ready: Instant::now(),
        pause: RESTART.0,
    });
    process.start().await
}

impl Process {
    /// Starts it, and waits until it says that it is ready.
    async fn start(&mut self) -> Result<Ready, Failure> {
        let what = &self.what;
        let mut child = (self.recipe)()
            .spawn()
            .map_err(|e| Failure::io(&format!("cannot start {what}"), &e))?;
        let stdout = child.stdout.take();
        self.pipe = child.stdin.take();
        self.child = Some(child);
        let Some(stdout) = stdout else {
            return Err(Error::internal("a child without stdout").into());
        };
        let mut line = String::new();
        let mut reader = BufReader::new(stdout);
        let read = timeout(START_BOUND, reader.read_line(&mut line)).await;
        let failed = |why: &str| {
            let e = Error::new(Code::Io, format!("{what} did not start: {why}"));
            Failure::Error(e)
        };
        match read {
            Err(_) => return Err(failed("it is not ready after 30 s")),
            Ok(Err(e)) => return Err(failed(&e.to_string())),
            Ok(Ok(_)) => {}
        }
        #[derive(serde::Deserialize)]
        struct Failed {
            error: Error,
        }
        if let Ok(Failed { error }) = serde_json::from_str(&line) {
            return Err(error.into());
        }
        let ready = serde_json::from_str(&line);
        let ready = ready.map_err(|_| failed("it ended before it was ready"))?;
        self.ready = Instant::now();
        Ok(ready)
    }

    /// Waits for its end: whether that was as it was told, and how it was.
    async fn ended(&mut self) -> (bool, String) {
        let ended = match &mut self.child {
            Some(child) => child.wait().await,
            None => return (false, "it did not start".into()),
        };
        let left = ended.as_ref().is_ok_and(|s| s.success());
        (
            left,
            ended.map_or_else(|e| e.to_string(), |s| s.to_string()),
        )
    }

    async fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            // It is gone already otherwise.
            let _ = child.kill().await;
        }
    }

    /// Starts it again until it is ready, after pauses that grow while it does not last.
    async fn restart(&mut self) {
        if self.ready.elapsed() > RESTART.1 {
            self.pause = RESTART.0;
        }
        loop {
            tokio::time::sleep(self.pause).await;
            self.pause = (self.pause * 2).min(RESTART.1);
            match self.start().await {
                Ok(_) => return,
                Err(Failure::Error(e)) => {
                    tracing::warn!("{} did not start again: {e}", self.what);
                }
                Err(_) => tracing::warn!("{} did not start again", self.what),
            }
            self.kill().await;
        }
    }

    /// Starts it again whenever it fails, as a service manager would, until it ends as it was told.
    async fn keep(&mut self) {
        loop {
            let (left, how) = self.ended().await;
            let what = &self.what;
            if left {
                tracing::warn!("{what} has left as it was told, and is not started again");
                return;
            }
            tracing::warn!("{what} ended by itself ({how}); it is started again");
            self.restart().await;
        }
    }

    /// Ends it; the end of the pipe is what tells it to.
    async fn end(mut self, bound: Duration) {
        drop(self.pipe.take());
        if timeout(bound, self.ended()).await.is_err() {
            tracing::warn!("{} does not stop and is killed", self.what);
            self.kill().await;
        }
    }
}

fn tell(c: &Cluster, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(c);
    }
    let (client, worker) = (c.client_token_file.display(), c.worker_token_file.display());
    output::print(&format!(
        "cluster of {} workers ({}) at {address}\n\n  \
         convoke run MODEL.onnx --inputs IN.npz --connect {address} --token-file {client}\n  \
         convoke status --connect {address} --token-file {client}\n  \
         convoke worker --join {address} --token-file {worker} --name NAME\n  \
         convoke token list --state-dir {state}\n\n\
         Ctrl-C stops it and removes its files.",
        c.workers.len(),
        c.workers.join(", "),
        address = c.connect,
        state = c.state_dir.display()
    ))
}

/// Waits for a signal, and keeps the workers meanwhile, each by itself. Without the coordinator there is nothing to go
/// on with.
async fn watch(signals: &mut Signals, processes: &mut [Process]) -> Result<(), Failure> {
    let Some((coordinator, workers)) = processes.split_first_mut() else {
        return Err(Error::internal("a cluster without a coordinator").into());
    };
    let kept = async {
        join_all(workers.iter_mut().map(Process::keep)).await;
        // All have left; others may join.
        std::future::pending().await
    };
    let (_, how) = tokio::select! {
        biased;
        () = signals.wait() => return Ok(()),
        ended = coordinator.ended() => ended,
        ended = kept => ended,
    };
    let msg = format!("the coordinator ended by itself: {how}");
    let e = Error::new(Code::PeerLost, msg);
    Err(e
        .advise("its log above says why; the workers are stopped")
        .into())
}

async fn stop(processes: Vec<Process>, bound: Duration) {
    let mut signals = Signals::hear().ok();
    let mut processes = processes.into_iter();
    let coordinator = processes.next();
    let all = async {
        // Workers first: the coordinator still hears that they leave.
        join_all(processes.map(|p| p.end(bound))).await;
        join_all(coordinator.map(|p| p.end(bound))).await;
    };
    match &mut signals {
        Some(s) => {
            tokio::select! {
                biased;
                // Asked twice: what is left is killed when its handle is dropped.
                () = s.wait() => {}
                () = all => {}
            }
        }
        None => all.await,
    }
}
