//! `convoke status`: shows the state of a cluster, or checks its health.

mod text;
mod verdict;

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use convoke::{Cluster, ClusterStatus, Code, Error};
use convoke_coordinator::admin::{AdminClient, socket_in};
use serde::Serialize;

use crate::args::StatusArgs;
use crate::commands::cluster;
use crate::commands::token::coordinator_dir;
use crate::process::health;
use crate::process::machine;
use crate::process::signals::{Signals, end_unnoticed};
use crate::text::failure::Failure;
use crate::text::output;
use text::text;
use verdict::verdict;

/// Moves the cursor of a terminal to the first line, and clears the screen from there on.
const CLEAR: &str = "\u{1b}[H\u{1b}[J";

/// How long the coordinator may take to answer, as a person waits for it.
const BOUND: Duration = Duration::from_secs(10);

/// Shows the status of the cluster, or with `--health` checks whether all is well.
pub async fn status(args: StatusArgs, json: bool) -> Result<(), Failure> {
    let mut signals = Signals::hear()?;
    end_unnoticed(json)?;
    if args.health {
        let error = match signals.or(healthy(&args)).await {
            Ok(()) => None,
            Err(Failure::Error(e)) => Some(e),
            Err(other) => return Err(other),
        };
        return tell(error, json);
    }
    let source = signals.or(Source::of(&args)).await?;
    let shown = match args.watch {
        None => match signals.or(source.ask()).await {
            Ok(status) => show(&status, json),
            Err(e) => Err(e),
        },
        Some(period) => match signals.or(watch(&source, period, json)).await {
            // `--watch` ends by a signal, so that is no failure.
            Err(Failure::Interrupted) => Ok(()),
            ended => ended,
        },
    };
    source.end().await;
    shown
}

fn show(status: &ClusterStatus, json: bool) -> Result<(), Failure> {
    match json {
        true => output::json(status),
        false => output::print(&text(status)),
    }
}

/// Shows the cluster's status once per `period`. An error is shown, and the status is asked for again; with `json` the
/// first error ends the watch.
async fn watch(source: &Source, period: Duration, json: bool) -> Result<(), Failure> {
    let clear = !json && std::io::stdout().is_terminal();
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let status = source.ask().await;
        if clear {
            output::control(CLEAR)?;
        }
        match status {
            Ok(status) => show(&status, json)?,
            Err(Failure::Error(e)) if !json => output::print(&format!("no status: {e}"))?,
            Err(e) => return Err(e),
        }
    }
}

/// The output of `--health --json`.
#[derive(Serialize)]
struct Health {
    healthy: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Error>,
}

/// Reports the health by the exit code; the note on stderr is for people who want to know why.
fn tell(error: Option<Error>, json: bool) -> Result<(), Failure> {
    if let Some(e) = &error {
        output::note(&format!("unhealthy: {e}"));
    }
    let healthy = error.is_none();
    let told = match json {
        true => output::json(&Health { healthy, error }),
        false => Ok(()),
    };
    match healthy {
        true => told,
        false => Err(Failure::Silent),
    }
}

/// The source of the status.
enum Source {
    /// A coordinator, over the network.
    Network(Cluster),
    /// A coordinator on this machine, over its Unix socket: the user who runs it needs no token.
    Socket(AdminClient),
}

impl Source {
    async fn of(args: &StatusArgs) -> Result<Source, Failure> {
        if let Some(address) = &args.connect {
            let cluster = cluster::connect(address, args.token_file.as_deref()).await?;
            return Ok(Source::Network(cluster));
        }
        let dir = coordinator_dir(args.state_dir.clone())?;
        let socket = socket_in(&dir);
        if !socket.exists() {
            let msg = format!(
                "no coordinator of this user runs here with the state folder {}: give --connect HOST:PORT and \
                 --token-file FILE, or its --state-dir",
                dir.display()
            );
            return Err(Failure::Usage(msg));
        }
        machine::check_private(&dir)?;
        Ok(Source::Socket(AdminClient::new(&socket)))
    }

    async fn ask(&self) -> Result<ClusterStatus, Failure> {
        match self {
            Source::Socket(client) => Ok(client.status().await?),
            Source::Network(cluster) => match tokio::time::timeout(BOUND, cluster.status()).await {
                Ok(status) => Ok(status?),
                Err(_) => {
                    let msg = format!("the coordinator did not answer within {BOUND:?}");
                    Err(Error::unreachable(None, msg).into())
                }
            },
        }
    }

    async fn end(self) {
        if let Source::Network(cluster) = self {
            cluster.shutdown().await;
        }
    }
}

async fn healthy(args: &StatusArgs) -> Result<(), Failure> {
    if let (Some(dir), None) = (&args.state_dir, &args.connect) {
        return process(dir).await;
    }
    let source = Source::of(args).await?;
    let status = source.ask().await;
    source.end().await;
    Ok(verdict(&status?, args.member.as_deref())?)
}

/// Checks the health of the coordinator or worker process of this machine that has this state folder.
async fn process(dir: &Path) -> Result<(), Failure> {
    if health::is_worker(dir) {
        return Ok(health::ask(dir).await?);
    }
    let socket = socket_in(dir);
    if !socket.exists() {
        let msg = format!(
            "no coordinator and no worker runs with the state folder {}",
            dir.display()
        );
        return Err(Error::new(Code::NotFound, msg).into());
    }
    Ok(AdminClient::new(&socket).health().await?)
}
