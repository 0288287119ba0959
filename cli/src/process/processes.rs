//! A cluster of processes on this machine: a coordinator and workers, in a folder that is removed when they end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use convoke_common::identity::Role;
use convoke_coordinator::token_file;
use serde::Serialize;

use crate::args::{LogArgs, UpArgs};
use crate::process::children::{Process, Recipe, child, spawn};
use crate::process::machine;
use crate::text::failure::Failure;

/// How long a process may take to stop, beyond the drain bound of its steps. It exceeds the bound that the process sets
/// for itself.
pub const STOP_BOUND: Duration = Duration::from_secs(12);

/// The facts that a user needs to use the cluster: addresses, token files and names.
#[derive(Serialize)]
pub struct Cluster {
    pub connect: String,
    pub client_token_file: PathBuf,
    pub worker_token_file: PathBuf,
    pub state_dir: PathBuf,
    pub workers: Vec<String>,
}

/// Starts the cluster. Its processes are pushed to `processes`, the coordinator first, also if a later one fails to
/// start.
pub async fn start(
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
    if args.workers > 1 {
        // A single worker logs this warning itself.
        machine::warn_beyond(memory.saturating_mul(args.workers.into()));
    }
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
            if let Some(turn) = (i as usize).checked_rem(args.devices.device.len()) {
                command
                    .arg("--device")
                    .arg(args.devices.device[turn].to_string());
            }
            if let Some(bytes) = args.devices.device_memory {
                command.arg("--device-memory").arg(bytes.to_string());
            }
            let listen = SocketAddr::new(args.listen.ip(), 0);
            command.arg("--listen").arg(listen.to_string());
            let bound = format!("{}ms", args.drain_bound.as_secs_f64() * 1e3);
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

/// Replaces an unspecified address, such as `0.0.0.0`, by the loopback address with the same port.
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
