//! The cluster that a command uses: embedded in this process, or remote.

use std::time::Duration;

use convoke::{Cluster, Embedded, Token};

use crate::args::ClusterArgs;
use crate::process::machine;
use crate::process::signals::{Signals, end_unnoticed};
use crate::text::failure::Failure;
use crate::text::output;

/// How long leaving or ending a cluster may take.
const SHUTDOWN_BOUND: Duration = Duration::from_secs(10);

/// Does `work` with the cluster, and leaves or ends the cluster afterwards, also if the work failed. A signal ends the
/// process from now on, also afterwards, while results are written.
pub async fn with_cluster<T>(
    args: &ClusterArgs,
    json: bool,
    work: impl AsyncFnOnce(&Cluster) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut signals = Signals::hear()?;
    end_unnoticed(json)?;
    let cluster = signals.or(open(args)).await?;
    let result = signals.or(work(&cluster)).await;
    signals.or_exit(json, leave(cluster)).await;
    result
}

/// Leaves a remote cluster, or ends an embedded one.
pub async fn leave(cluster: Cluster) {
    let left = tokio::time::timeout(SHUTDOWN_BOUND, cluster.shutdown());
    if left.await.is_err() {
        tracing::warn!("the cluster did not end within {SHUTDOWN_BOUND:?}");
    }
}

/// The exact number of workers that the plan must use, if the flags give one.
pub fn exactly(args: &ClusterArgs) -> Option<u32> {
    args.workers.or(args.local)
}

/// The flags that concern the workers of this process, as far as they are given.
fn unused(args: &ClusterArgs) -> Vec<&'static str> {
    let given = [
        ("--threads", args.threads.is_some()),
        ("--memory", args.memory.is_some()),
        ("--device", !args.devices.device.is_empty()),
        ("--device-memory", args.devices.device_memory.is_some()),
    ];
    let given = given.into_iter().filter(|(_, is)| *is);
    given.map(|(flag, _)| flag).collect()
}

async fn open(args: &ClusterArgs) -> Result<Cluster, Failure> {
    if let Some(address) = &args.connect {
        let unused = unused(args);
        if !unused.is_empty() {
            let verb = if unused.len() == 1 {
                "concerns"
            } else {
                "concern"
            };
            output::note(&format!(
                "{} {verb} only workers that this command starts, and those at {address} are there already",
                unused.join(", ")
            ));
        }
        return connect(address, args.token_file.as_deref()).await;
    }
    let workers = args.local.or(args.workers).unwrap_or(1);
    let threads = match args.threads {
        Some(t) => t as usize,
        None => (machine::cores() / workers as usize).max(1),
    };
    if args.local.is_none() {
        let s = if workers == 1 { "" } else { "s" };
        output::note(&format!(
            "using {workers} worker{s} in this process; --connect HOST:PORT uses a cluster"
        ));
    }
    let memory = match args.memory {
        Some(bytes) => bytes,
        None => machine::default_memory() / u64::from(workers),
    };
    machine::warn_beyond(memory.saturating_mul(workers.into()));
    let embedded = Embedded::new(workers as usize)
        .threads(threads)
        .memory(memory)
        .devices(args.devices.device.clone())
        .device_memory(args.devices.device_memory.unwrap_or(memory));
    Ok(embedded.start().await?)
}

/// Joins a cluster with the client token in a file.
pub async fn connect(
    address: &str,
    token_file: Option<&std::path::Path>,
) -> Result<Cluster, Failure> {
    let Some(file) = token_file else {
        let msg = "--connect needs --token-file FILE: a file with a client token, \
                   as `convoke token create --role client` prints it";
        return Err(Failure::Usage(msg.into()));
    };
    Ok(convoke::connect(address, Token::from_file(file)?).await?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        cluster: ClusterArgs,
    }

    #[test]
    fn flags_for_workers_of_this_process_are_named() {
        let check = |flags: &[&str], want: &[&str]| {
            let all = std::iter::once("convoke").chain(flags.iter().copied());
            let given = Flags::try_parse_from(all).unwrap();
            assert_eq!(unused(&given.cluster), want);
        };
        check(&["--connect", "a:1", "--token-file", "t"], &[]);
        let some = ["--device", "cpu,simgpu", "--threads", "2"];
        check(&some, &["--threads", "--device"]);
        check(
            &["--device-memory", "1GiB", "--memory", "2GiB"],
            &["--memory", "--device-memory"],
        );
    }
}
