//! Child processes, which run this same binary in other roles.
//!
//! Each child reads from a pipe that this process holds open, so the child notices the end of this process, however it
//! ends, and stops.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::error::{Code, Error};
use futures::future::join_all;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, timeout};

use crate::args::{LogArgs, LogFormat};
use crate::commands::daemon::Ready;
use crate::process::signals::Signals;
use crate::text::failure::Failure;

/// How long a child may take to say that it is ready.
const START_BOUND: Duration = Duration::from_secs(30);
/// The first and the longest pause before a failed child is restarted. A child that ran for longer than the longest
/// pause starts with the first one again.
const RESTART: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// A child process, which can be restarted.
pub struct Process {
    what: String,
    recipe: Recipe,
    child: Option<Child>,
    /// The pipe whose closing tells the child to stop. It is taken out of `child`, whose `wait` would close it.
    pipe: Option<ChildStdin>,
    /// The child's stdout, after the line that says that it is ready.
    says: Option<BufReader<ChildStdout>>,
    /// When the child was last ready.
    ready: Instant,
    /// The pause before the next restart.
    pause: Duration,
}

/// A function that makes the command that starts a child.
pub type Recipe = Arc<dyn Fn() -> Command + Send + Sync>;

/// Makes a command that runs this binary, without the `CONVOKE_` environment variables: they are meant for this
/// process.
pub fn own_binary() -> Command {
    let mut command = Command::new("/proc/self/exe");
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CONVOKE_") {
            command.env_remove(&name);
        }
    }
    command.arg0("convoke").kill_on_drop(true);
    command
}

/// Makes a command that runs this binary in a role, with stdin and stdout as pipes.
pub fn child(role: &str, log: &LogArgs) -> Command {
    let mut command = own_binary();
    command.args([role, "--attached", "--json"]);
    if let Some(filter) = &log.log {
        command.args(["--log", filter]);
    }
    if log.log_format == LogFormat::Json {
        command.args(["--log-format", "json"]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Starts a child and waits until it says that it is ready. The child is pushed to `processes` before it starts, so
/// that the caller stops it whatever happens.
pub async fn spawn(
    what: &str,
    recipe: Recipe,
    processes: &mut Vec<Process>,
) -> Result<Ready, Failure> {
    let process = processes.push_mut(Process {
        what: what.to_owned(),
        recipe,
        child: None,
        pipe: None,
        says: None,
        ready: Instant::now(),
        pause: RESTART.0,
    });
    process.start().await
}

impl Process {
    /// Starts the child, and waits until it says that it is ready.
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
        struct StartFailure {
            error: Error,
        }
        if let Ok(StartFailure { error }) = serde_json::from_str(&line) {
            return Err(error.into());
        }
        let ready = serde_json::from_str(&line);
        let ready = ready.map_err(|_| failed("it ended before it was ready"))?;
        self.says = Some(reader);
        self.ready = Instant::now();
        Ok(ready)
    }

    /// The child's process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref()?.id()
    }

    /// Describes the child for people, such as "worker w0".
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Sends a line to the child, and waits at most `bound` for the line that it answers with.
    pub async fn ask(&mut self, line: &str, bound: Duration) -> Result<String, Error> {
        let (Some(pipe), Some(says)) = (&mut self.pipe, &mut self.says) else {
            return Err(Error::internal("a child is asked that was not started"));
        };
        let mut answer = String::new();
        let asked = async {
            pipe.write_all(line.as_bytes()).await?;
            pipe.write_all(b"\n").await?;
            says.read_line(&mut answer).await
        };
        let what = &self.what;
        let failed = |why: String| Err(Error::new(Code::Io, format!("{what} {why}")));
        match timeout(bound, asked).await {
            Err(_) => failed(format!("does not answer within {bound:?}")),
            Ok(Err(e)) => failed(format!("cannot be asked: {e}")),
            Ok(Ok(0)) => failed("ended by itself".into()),
            Ok(Ok(_)) => Ok(answer),
        }
    }

    /// Waits for the child's end. Returns whether it exited with success, and describes its exit status.
    pub async fn ended(&mut self) -> (bool, String) {
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
            // An error means that the child is gone already.
            let _ = child.kill().await;
        }
    }

    /// Restarts the child until it is ready. The pauses between the tries double up to the longest of [`RESTART`].
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

    /// Restarts the child whenever it fails, as a service manager would, until it exits with success.
    pub async fn keep(&mut self) {
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

    /// Ends the child by closing its pipe, and kills it if it has not stopped after `bound`.
    async fn end(mut self, bound: Duration) {
        drop(self.pipe.take());
        if timeout(bound, self.ended()).await.is_err() {
            tracing::warn!("{} does not stop and is killed", self.what);
            self.kill().await;
        }
    }
}

/// Ends the processes, the first one after the others, each within `bound`. A signal meanwhile kills those that are
/// left.
pub async fn stop(processes: Vec<Process>, bound: Duration) {
    let mut signals = Signals::hear().ok();
    let mut processes = processes.into_iter();
    let first = processes.next();
    let all = async {
        // The first one is the coordinator, which must still be told that the workers leave.
        join_all(processes.map(|p| p.end(bound))).await;
        join_all(first.map(|p| p.end(bound))).await;
    };
    match &mut signals {
        Some(s) => {
            tokio::select! {
                biased;
                // The user asked twice: dropping the handles kills the processes that are left.
                () = s.wait() => {}
                () = all => {}
            }
        }
        None => all.await,
    }
}
