//! `convoke coordinator` and `convoke worker`: the long-running roles.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::admission::chain;
use convoke_common::error::{Code, Error};
use convoke_common::identity::{JoinToken, Role};
use convoke_common::telemetry::LineLimit;
use convoke_common::world::{NoCompute, World};
use convoke_coordinator::{Coordinator, CoordinatorConfig};
use convoke_worker::{BlackBox, END_BOUND, Threads, Worker, WorkerConfig};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::args::{CoordinatorArgs, WorkerArgs};
use crate::process::folders::StateFolder;
use crate::process::health::Health;
use crate::process::machine;
use crate::process::signals::Signals;
use crate::process::watchdog;
use crate::text::failure::Failure;
use crate::text::output;
use crate::text::values::bytes;

/// How long a coordinator may take to shut down.
const SHUTDOWN_BOUND: Duration = Duration::from_secs(10);

/// The line that a coordinator or worker prints on stdout with `--json` once other processes can reach it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ready {
    /// The member's name in the cluster.
    pub name: String,
    /// The address at which the process listens.
    pub listen: String,
}

/// Waits for Ctrl-C or SIGTERM; a child process (`attached`) also waits for the end of its parent.
pub async fn stopped(signals: &mut Signals, attached: bool) -> Result<(), Failure> {
    if !attached {
        signals.wait().await;
        return Ok(());
    }
    let (tell, parent_gone) = oneshot::channel();
    let read = move || {
        // The parent sends nothing: the read returns when the parent's end of the pipe closes, however the parent died.
        let mut stdin = std::io::stdin();
        while matches!(stdin.read(&mut [0; 64]), Ok(n) if n > 0) {}
        // The receiver is gone if a signal came first.
        let _ = tell.send(());
    };
    #[allow(clippy::disallowed_methods, reason = "a binary provides threads")]
    let thread = std::thread::Builder::new()
        .name("convoke-parent".into())
        .spawn(read);
    thread.map_err(|e| Failure::io("cannot start a thread", &e))?;
    tokio::select! {
        biased;
        () = signals.wait() => {}
        _ = parent_gone => {}
    }
    Ok(())
}

/// Runs a coordinator until it is stopped.
pub async fn coordinator(args: CoordinatorArgs, json: bool) -> Result<(), Failure> {
    let mut signals = Signals::hear()?;
    let state_dir = crate::commands::token::coordinator_dir(args.state_dir)?;
    let config = CoordinatorConfig {
        listen: args.listen,
        state_dir: Some(state_dir.clone()),
        run_dir: Some(state_dir.clone()),
        token_dir: args.token_dir.clone(),
    };
    let world = World::real(Arc::new(NoCompute));
    let running = signals
        .or(async { Ok(Coordinator::start(world, config).await?) })
        .await?;
    let listen = running.addr().to_string();
    if json {
        let name = "coordinator".into();
        output::json(&Ready { name, listen })?;
    } else {
        let mut text = format!(
            "coordinator listens at {listen} (UDP and TCP), state in {}\n",
            state_dir.display()
        );
        match &args.token_dir {
            Some(dir) => text.push_str(&format!("tokens in {}\n", dir.display())),
            None => text.push_str(
                "make tokens with `convoke token create --role worker` and `--role client`\n",
            ),
        }
        output::print(&text)?;
    }
    stopped(&mut signals, args.attached).await?;
    tracing::info!("stopping");
    signals
        .or_exit(json, running.shutdown(SHUTDOWN_BOUND))
        .await;
    Ok(())
}

fn token(world: &World, file: &std::path::Path) -> Result<JoinToken, Failure> {
    let failed = |why: String| {
        let msg = format!("token file {}: {why}", file.display());
        Error::new(Code::Unauthorized, msg)
            .advise("make one with `convoke token create --role worker`")
    };
    let token = JoinToken::from_file(world.store.as_ref(), file);
    let token = token.map_err(|e| failed(chain(&e)))?;
    if token.role != Role::Worker {
        let why = format!("the token is for a {}, not for a worker", token.role);
        return Err(failed(why).into());
    }
    Ok(token)
}

/// A worker's wait for a coordinator that is not there yet.
struct Wait {
    tries: u32,
    /// Why the last try failed.
    why: Option<Error>,
    lines: LineLimit,
}

impl Default for Wait {
    fn default() -> Wait {
        Wait {
            tries: 0,
            why: None,
            lines: LineLimit::new(1, Self::SAY_AGAIN),
        }
    }
}

impl Wait {
    /// The pause before the second try, and the longest pause between later tries.
    const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
    const SAY_AGAIN: Duration = Duration::from_secs(300);

    /// Says at once, and then seldom, that a try failed.
    fn tell(&mut self, join: &str, why: Error, now: Instant) {
        self.tries += 1;
        if self.lines.admit(now).is_some() {
            tracing::warn!("waits for the coordinator at {join}: {why}");
        }
        self.why = Some(why);
    }

    fn reason(&self) -> Error {
        let joining = || Error::unreachable(None, "the worker has not joined yet");
        self.why.clone().unwrap_or_else(joining)
    }

    fn pause(&self) -> Duration {
        (Self::PAUSE.0 * (1 << self.tries.min(8))).min(Self::PAUSE.1)
    }
}

/// Runs a worker until it is stopped.
pub async fn worker(args: WorkerArgs, json: bool) -> Result<(), Failure> {
    let mut signals = Signals::hear()?;
    let state_dir = match (args.state_dir, &args.name) {
        (Some(dir), _) => dir,
        (None, Some(name)) => machine::state_dir(&format!("worker-{name}"))?,
        (None, None) => machine::state_dir("worker")?,
    };
    let cache_dir = match (args.cache_dir, args.cache) {
        (_, 0) => None,
        (Some(dir), _) => Some(dir),
        (None, _) => Some(machine::cache_dir("chunks")?),
    };
    let threads = args.threads.map_or_else(machine::cores, |t| t as usize);
    let pool = Threads::start("convoke", threads)
        .map_err(|e| Failure::io("cannot start compute threads", &e))?;
    let world = World::real(Arc::new(pool.clone()));
    let memory = args.memory.unwrap_or_else(machine::default_memory);
    machine::warn_beyond(memory);
    if let Some(root) = &args.artifact_root {
        machine::readable_folder("--artifact-root", root)?;
    }
    // The folder is claimed before the identity in it is used: two processes must not share an identity.
    let health = Health::claim(&state_dir).await?;
    let state = match &args.state_pool {
        Some(pool) => StateFolder::of_pool(world.store.as_ref(), pool)?,
        None => StateFolder::of_its_own(&state_dir),
    };
    let attached = args.attached;
    let config = || {
        Ok::<_, Failure>(WorkerConfig {
            name: args.name.clone(),
            join: args.join.clone(),
            token: token(&world, &args.token_file)?,
            state_dir: Some(state.path.clone()),
            run_dir: Some(state_dir.clone()),
            cache_dir: cache_dir.clone(),
            cache_bytes: args.cache,
            artifact_root: args.artifact_root.clone(),
            device: args.device.clone(),
            device_memory: args.device_memory.unwrap_or(memory),
            memory,
            sharers: 1,
            listen: args.listen,
            advertise: args.advertise.clone(),
            host: machine::hostname(),
            black_box: Some(BlackBox::open(&state.path)),
        })
    };
    let mut wait = Wait::default();
    let running = loop {
        let start = async { Ok(Worker::start(world.clone(), config()?, Some(&pool)).await?) };
        let answering = async {
            tokio::select! {
                biased;
                started = start => started,
                never = health.answer(|| Some(wait.reason())) => match never {},
            }
        };
        match signals.or(answering).await {
            Err(Failure::Error(e)) if e.code == Code::Unreachable && !attached => {
                wait.tell(&args.join, e, Instant::now());
                let answering = health.answer(|| Some(wait.reason()));
                // Health queries are answered until the pause is over.
                let pause = async {
                    let _ = timeout(wait.pause(), answering).await;
                    Ok(())
                };
                signals.or(pause).await?;
            }
            started => break started?,
        }
    };
    let (name, listen) = (running.name().to_owned(), running.addr().to_string());
    if json {
        output::json(&Ready { name, listen })?;
    } else {
        output::print(&format!(
            "worker {name} joined {}, listens at {listen}, offers {} and {threads} threads",
            args.join,
            bytes(memory)
        ))?;
    }
    let watchdog = watchdog::start()?;
    let ended = tokio::select! {
        biased;
        done = stopped(&mut signals, attached) => done.map(|()| None)?,
        () = running.told_to_leave() => None,
        () = watchdog => None,
        never = health.answer(|| running.coordinator_lost()) => match never {},
        e = running.wedged() => Some(e),
        e = running.expelled() => Some(e),
    };
    tracing::info!("stopping");
    let end = async {
        match &ended {
            None => running.drain(args.drain_bound).await,
            Some(_) => {
                running.shutdown(END_BOUND).await;
                None
            }
        }
    };
    // A worker that drains counts as healthy.
    let answering = async {
        tokio::select! {
            biased;
            unfinished = end => unfinished,
            never = health.answer(|| None) => match never {},
        }
    };
    let unfinished = signals.or_exit(json, answering).await;
    match ended.or(unfinished) {
        None => Ok(()),
        Some(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_worker_that_waits_says_so_at_once_and_then_seldom() {
        let lines = Arc::<AtomicUsize>::default();
        let written = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || {
            written.fetch_add(1, Ordering::Relaxed);
            std::io::sink()
        });
        let _log = tracing::subscriber::set_default(subscriber.finish());
        let (mut wait, start) = (Wait::default(), Instant::now());
        let mut waited = Duration::ZERO;
        while waited < Wait::SAY_AGAIN * 3 {
            let why = Error::unreachable(None, format!("nobody after {waited:?}"));
            wait.tell("10.0.0.1:7070", why.clone(), start + waited);
            assert_eq!(wait.reason(), why);
            // A line begins a period, and the next one comes with the first try after it.
            let periods = waited.as_secs() / Wait::SAY_AGAIN.as_secs();
            let late = waited.as_secs() % Wait::SAY_AGAIN.as_secs() < 10;
            let said = lines.load(Ordering::Relaxed) as u64;
            assert!(
                said == periods + 1 || late && said == periods,
                "{said} after {waited:?}"
            );
            waited += wait.pause();
        }
        assert!(wait.tries > 400 && wait.pause() == Wait::PAUSE.1);
    }
}
