//! Measures the cost before and between work: how long a run takes from cold, and what an idle cluster uses.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use convoke::HostTensor;
use convoke::numpy::write_npz;
use convoke_common::error::{Code, Error, Result};
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use crate::args::LogArgs;
use crate::bench::report::Baseline;
use crate::bench::turns::{Samples, beside, millis};
use crate::bench::{cpu, floor};
use crate::process::children::{Process, own_binary};
use crate::text::failure::Failure;

/// How long one run of a command may take.
const BOUND: Duration = Duration::from_secs(60);
/// How long processes settle before they count as idle.
const SETTLE: Duration = Duration::from_millis(500);
/// How long an idle cluster is watched for each turn, and the least and the most in all.
const WATCH: (Duration, Duration, Duration) = (
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(60),
);

/// The floor of a cold start: the same binary, which only prints its version.
pub const FLOOR: Baseline = Baseline {
    name: "convoke --version",
    usual: None,
};

/// `fixtures/bench/one_op.onnx`: y = sqrt(x), a scalar in and a scalar out.
const MODEL: &[u8] = b"\x08\x08\x3a\x37\x0a\x13\x0a\x01x\x12\x01y\x1a\x05first\x22\x04Sqrt\x12\x06one_op\
    \x5a\x0b\x0a\x01x\x12\x06\x0a\x04\x08\x01\x12\x00\x62\x0b\x0a\x01y\x12\x06\x0a\x04\x08\x01\x12\x00\
    \x42\x04\x0a\x00\x10\x11";

/// Runs a command; returns the milliseconds from exec to exit.
async fn run(mut command: Command) -> Result<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let start = Instant::now();
    let done = timeout(BOUND, command.output()).await;
    let took = millis(start.elapsed());
    let failed = |why: String| Err(Error::new(Code::Io, format!("a run from cold {why}")));
    match done {
        Err(_) => failed(format!("has not ended in {BOUND:?}")),
        Ok(Err(e)) => failed(format!("cannot be started: {e}")),
        Ok(Ok(done)) if done.status.success() => Ok(took),
        Ok(Ok(done)) => failed(String::from_utf8_lossy(&done.stderr).into_owned()),
    }
}

/// Measures `convoke run` of a model of one op on an embedded worker, in milliseconds; its files are written to
/// `folder`.
pub async fn starts(folder: &Path, rounds: u32) -> Result<(Samples, Samples)> {
    let (model, inputs) = (folder.join("model.onnx"), folder.join("inputs.npz"));
    let written = std::fs::write(&model, MODEL);
    written.map_err(|e| Error::new(Code::Io, format!("cannot write {}: {e}", model.display())))?;
    write_npz(&inputs, &[("x".into(), HostTensor::scalar(4f32))])?;
    let work = async || {
        let mut command = own_binary();
        command.arg("run").arg(&model).arg("--inputs").arg(&inputs);
        Ok(vec![run(command).await?])
    };
    let floor = async || {
        let mut command = own_binary();
        command.arg("--version");
        Ok(vec![run(command).await?])
    };
    beside(rounds, work, floor).await
}

/// Measures the resident memory of a process with an idle embedded cluster, in MiB.
pub async fn memory(log: &LogArgs) -> Result<Samples, Failure> {
    let parties = floor::idle(log).await?;
    sleep(SETTLE).await;
    let pid = parties.first().and_then(Process::pid);
    let resident = pid.and_then(|pid| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        resident(&status)
    });
    floor::end(parties).await;
    let none = || Error::new(Code::Io, "the memory of a child cannot be read");
    Ok(Samples::of(resident.ok_or_else(none)?))
}

/// Parses the resident memory out of the text of /proc/PID/status, in MiB.
fn resident(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib / 1024.)
}

/// Measures how much of a core the busiest of an idle cluster's processes uses, in percent.
pub async fn busy(processes: &[Process], rounds: u32) -> Result<Samples> {
    sleep(SETTLE).await;
    let (start, before) = (Instant::now(), cpu::taken(processes)?);
    sleep((WATCH.0 * rounds).clamp(WATCH.1, WATCH.2)).await;
    let (took, after) = (start.elapsed().as_secs_f64(), cpu::taken(processes)?);
    let each = before.iter().zip(&after);
    let parts = each.map(|(before, after)| (after - before) / took * 100.);
    Ok(Samples::of(parts.fold(0., f64::max)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_the_fixture() {
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/bench/one_op.onnx");
        assert_eq!(std::fs::read(fixture).unwrap(), MODEL);
    }

    #[test]
    fn memory_is_read_from_proc() {
        assert_eq!(resident("VmPeak:\t 9 kB\nVmRSS:\t  2048 kB\n"), Some(2.));
        assert_eq!(resident("VmPeak:\t 9 kB\n"), None);
    }
}
