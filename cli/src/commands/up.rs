//! `convoke up`: runs a cluster of processes on this machine until it is told to end.

use convoke_common::error::{Code, Error};
use futures::future::join_all;

use crate::args::{LogArgs, UpArgs};
use crate::process::children::{Process, stop};
use crate::process::processes::{Cluster, STOP_BOUND, start};
use crate::process::run_dir::RunDir;
use crate::process::signals::Signals;
use crate::text::failure::Failure;
use crate::text::output;

/// Starts the cluster, prints how to connect to it, waits for a signal and stops the processes.
pub async fn up(args: UpArgs, log: LogArgs, json: bool) -> Result<(), Failure> {
    let mut signals = Signals::hear()?;
    let run_dir = RunDir::make(args.run_dir.clone(), "up")
        .map_err(|e| e.advise("name a new folder with --run-dir DIR"))?;
    let mut processes = Vec::new();
    let started = signals
        .or(start(&args, &log, &run_dir.path, &mut processes))
        .await;
    let result = match started.and_then(|cluster| tell(&cluster, json)) {
        Ok(()) => watch(&mut signals, &mut processes).await,
        Err(e) => Err(e),
    };
    stop(processes, args.drain_bound + STOP_BOUND).await;
    result
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

/// Waits for a signal, and meanwhile restarts each worker that fails. The end of the coordinator is an error: without
/// it there is no cluster.
async fn watch(signals: &mut Signals, processes: &mut [Process]) -> Result<(), Failure> {
    let Some((coordinator, workers)) = processes.split_first_mut() else {
        return Err(Error::internal("a cluster without a coordinator").into());
    };
    let kept = async {
        join_all(workers.iter_mut().map(Process::keep)).await;
        // All workers have left, but workers started elsewhere may join.
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
