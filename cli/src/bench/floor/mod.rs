//! The floors of measurements: child processes that do the least that could be done, and how this process drives them.
//!
//! ```text
//! Relay  this thread -> driver's thread -> a [-> b] -> driver's thread -> this thread      over quinn
//! Tcp    this thread -> sender <-> echo                                                    over TCP
//! ```

mod part;
mod quic;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::error::{Code, Error, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::args::Helper;
use super::turns::{bounded, micros};
use crate::args::LogArgs;
use crate::process::children::{Process, Recipe, child, spawn, stop};
use crate::text::failure::Failure;

pub use part::run as run_part;

/// How long a party may take to stop; no party has work to finish.
const STOP_BOUND: Duration = Duration::from_secs(5);
/// How long one request to send bytes to and fro may take.
const ASK_BOUND: Duration = Duration::from_secs(60);

/// Starts a child process of a floor, and returns the address at which it listens.
async fn party(
    part: Helper,
    flags: Vec<String>,
    log: &LogArgs,
    parties: &mut Vec<Process>,
) -> Result<String, Failure> {
    let (log, name) = (log.clone(), part.name());
    let recipe: Recipe = Arc::new(move || {
        let mut command = child("bench-part", &log);
        command.arg(name).args(&flags);
        command
    });
    let what = format!("the floor's process '{name}'");
    Ok(spawn(&what, recipe, parties).await?.listen)
}

/// Starts a process with an embedded cluster that does nothing.
pub async fn idle(log: &LogArgs) -> Result<Vec<Process>, Failure> {
    let mut parties = Vec::new();
    party(Helper::Idle, vec![], log, &mut parties).await?;
    Ok(parties)
}

/// Ends the processes of a floor.
pub async fn end(parties: Vec<Process>) {
    stop(parties, STOP_BOUND).await;
}

fn address(listen: &str) -> Result<SocketAddr> {
    let bad = |_| Error::internal(format!("a party listens at '{listen}'"));
    listen.parse().map_err(bad)
}

/// A request for one round of the relay: where its result is sent.
type Ask = oneshot::Sender<Result<()>>;

/// A ring of processes in which a message goes round; it starts and ends in a thread of this process, the driver.
pub struct Relay {
    ask: mpsc::UnboundedSender<Ask>,
    parties: Vec<Process>,
}

impl Relay {
    /// Starts a driver and the parties with these names. Their keys are written to `keys`, a folder that only this user
    /// can read.
    pub async fn start(names: &[&str], keys: &Path, log: &LogArgs) -> Result<Relay, Failure> {
        quic::make_keys(keys)?;
        let (ask, asked) = mpsc::unbounded_channel();
        let driver = quic::Driver::start(keys, asked)?;
        let mut parties = Vec::new();
        // The ring is closed through the driver, so its address is needed first and its first hop last.
        let mut next = quic::told(driver.address).await?;
        for &name in names.iter().rev() {
            let (to, keys) = (next.to_string(), keys.display().to_string());
            let flags = ["--name", name, "--to", &to, "--keys", &keys];
            let flags = flags.map(String::from).into();
            let listen = party(Helper::Relay, flags, log, &mut parties).await?;
            next = address(&listen)?;
        }
        // This fails only if the driver is gone, which the next line reports.
        let _ = driver.first.send(next);
        quic::told(driver.linked).await?;
        Ok(Relay { ask, parties })
    }

    async fn round(&self) -> Result<()> {
        let gone = || Error::unreachable(None, "the relay's driver ended");
        let (answer, answered) = oneshot::channel();
        self.ask.send(answer).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    /// Runs rounds, each from this thread and back to it, and returns their times in microseconds; none without a
    /// relay.
    pub async fn times(relay: Option<&Relay>, rounds: usize) -> Result<Vec<f64>> {
        let Some(relay) = relay else {
            return Ok(vec![]);
        };
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let start = Instant::now();
            relay.round().await?;
            times.push(micros(start.elapsed()));
        }
        Ok(times)
    }

    /// Ends its processes.
    pub async fn end(self) {
        drop(self.ask);
        end(self.parties).await;
    }
}

/// Two processes that send bytes to and fro.
pub struct Tcp {
    parties: Vec<Process>,
}

impl Tcp {
    /// Starts both processes.
    pub async fn start(log: &LogArgs) -> Result<Tcp, Failure> {
        let mut parties = Vec::new();
        let echo = party(Helper::Tcp, vec![], log, &mut parties).await?;
        let to = vec!["--to".to_owned(), echo];
        party(Helper::Tcp, to, log, &mut parties).await?;
        Ok(Tcp { parties })
    }

    /// Sends `bytes` bytes to and fro `rounds` times; returns the seconds that one direction took in each round.
    pub async fn thrown(&mut self, bytes: usize, rounds: usize) -> Result<Vec<f64>> {
        let none = || Error::internal("a floor without a sender");
        let sender = self.parties.last_mut().ok_or_else(none)?;
        let line = format!("{bytes} {rounds}");
        let answer = bounded(sender.ask(&line, ASK_BOUND)).await?;
        serde_json::from_str(&answer)
            .map_err(|e| Error::new(Code::Io, format!("the floor's times cannot be read: {e}")))
    }

    /// Ends its processes.
    pub async fn end(self) {
        end(self.parties).await;
    }
}
