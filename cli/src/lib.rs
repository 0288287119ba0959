//! `convoke`: runs a model on many machines as if they were one. It is a library, so that a binary with custom ops can
//! offer the same commands.
//!
//! ```text
//! args ──> run, generate, plan, status ──> convoke (client library) ──> embedded or remote cluster
//!      ──> up, bench ──> child processes of this same binary
//!      ──> coordinator, worker ──> the long-running roles
//!      ──> token, drain, quarantine ──> the coordinator's own Unix socket
//! ```
//!
//! Invariants
//! 1. Results go to stdout and everything else to stderr; with `--json` stdout holds exactly one JSON value. The
//!    long-running roles and `up` print one value per line: one when they are ready, and one for the error that ends
//!    them. `status --watch` prints one value per look, and one for the error that ends it.
//! 2. Exit codes: 0, 1 failed, 2 usage, 130 interrupted.
//! 3. No secret is taken from, or written to, an argument list or a log.
//! 4. Each process runs its network I/O on the one thread of [`tokio`]'s current-thread runtime; kernels run on other
//!    threads.

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("Convoke runs on Linux on x86-64 and aarch64; other platforms are not supported.");

// The product binary must not be built with mutants.
const _: () = assert!(!convoke_common::mutant::BUILT_IN);

mod args;
mod bench;
mod commands;
mod process;
mod telemetry;
mod text;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use args::{Cli, Command};
use commands::{backup, check, daemon, drain, generate, plan, run, status, token, up};
use process::allocator;
use text::failure::{self, Failure};
use tracing::Instrument;

/// Runs the command line of this process; a binary's `main` calls it. Custom ops that were registered before the call
/// are available in the workers of this process and in those that `up` starts.
pub fn main() -> ExitCode {
    run_with(std::env::args_os().collect())
}

/// Like [`main`], for a binary that is only a worker: it takes the flags of `convoke worker`.
pub fn worker_main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    arguments.insert(arguments.len().min(1), "worker".into());
    run_with(arguments)
}

fn run_with(arguments: Vec<OsString>) -> ExitCode {
    allocator::keep_nothing_large();
    let wants_json = args::wants_json(&arguments);
    let mut cli = match parse(&arguments) {
        Ok(cli) => cli,
        Err(e) => return failure::usage(&e, wants_json),
    };
    let json = cli.json;
    #[cfg(feature = "cuda")]
    if let Err(e) = convoke_cuda::register() {
        return Failure::from(e).report(json);
    }
    if let Some(cluster) = cli.command.cluster_mut()
        && let Err(e) = cluster.settle()
    {
        return e.report(json);
    }
    let telemetry = match telemetry::start(&cli.log, &cli.command) {
        Ok(t) => t,
        Err(e) => return e.report(json),
    };
    let code = match work(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => e.report(json),
    };
    telemetry.finish();
    code
}

fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches_from(arguments)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let Some((_, m)) = matches.subcommand()
        && let Some(cluster) = cli.command.cluster_mut()
    {
        cluster.note_sources(m);
    }
    Ok(cli)
}

fn work(cli: Cli) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::io("cannot start the network thread", &e))?;
    let json = cli.json;
    let span = telemetry::command_span(&cli.command);
    let work = async {
        match cli.command {
            Command::Run(a) => run::run(a, json).await,
            Command::Generate(a) => generate::generate(a, json).await,
            Command::Plan(a) => plan::plan(a, json).await,
            Command::Check(a) => check::check(a, json),
            Command::Status(a) => status::status(a, json).await,
            Command::Up(a) => up::up(a, cli.log, json).await,
            Command::Bench(a) => bench::bench(a, cli.log, json).await,
            Command::BenchPart(a) => bench::run_part(a).await,
            Command::Coordinator(a) => daemon::coordinator(a, json).await,
            Command::Worker(a) => daemon::worker(a, json).await,
            Command::Token(a) => token::token(a, json).await,
            Command::Drain(a) => drain::drain(a, json).await,
            Command::Undrain(a) => drain::undrain(a, json).await,
            Command::Quarantine(a) => drain::quarantine(a, json).await,
            Command::Ca(a) => backup::ca(a, json).await,
            Command::Forget(a) => drain::forget(a, json).await,
            Command::Backup(a) => backup::backup(a, json).await,
            Command::Restore(a) => backup::restore(a, json),
        }
    };
    let result = runtime.block_on(work.instrument(span));
    // A blocking read that hangs must not keep the process from ending.
    runtime.shutdown_background();
    result
}
