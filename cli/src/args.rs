//! The command line. Each flag can also be given as an environment variable, which the flag overrides.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{FalseyValueParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use convoke::DeviceId;

use crate::bench::args::{BenchArgs, FloorArgs};
use crate::text::budget::BudgetArgs;
use crate::text::values::{Ttl, parse_duration, parse_period, parse_size, parse_ttl};

mod model;

pub use model::{
    CheckArgs, ClusterArgs, DeviceArgs, GenerateArgs, InputArgs, LoadArgs, ModelArgs, PlanArgs,
    RetryWhen, RunArgs,
};

const EXAMPLES: &str = "\
Examples:
  # On three workers inside this process, compared with one worker and with the expected results in the file:
  convoke run model.onnx --inputs in.npz --local 3 --verify

  # A cluster of processes on this machine; it prints how to connect:
  convoke up --workers 3

  # A cluster of machines:
  convoke coordinator --listen 0.0.0.0:7070
  convoke token create --role worker --ttl 24h --out worker.token
  convoke worker --join coordinator.example:7070 --token-file worker.token --memory 8GiB
  convoke token create --role client --ttl 24h --out client.token
  convoke run model.onnx --inputs in.npz --outputs out.npz --connect coordinator.example:7070 --token-file client.token

Each flag can be given as a CONVOKE_* variable. OTEL_EXPORTER_OTLP_ENDPOINT exports traces.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.";

const RUN_EXAMPLES: &str = "\
Examples:
  convoke run model.onnx --inputs in.npz                            # one worker in this process
  convoke run model.onnx --inputs in.npz --local 3 --verify         # three, and compare the bits with one
  convoke run model.onnx --input ids=ids.npy --input mask=mask.npy --outputs out.npz
  convoke run model.onnx --inputs in.npz --connect 10.0.0.1:7070 --token-file client.token --workers 3 --steps 100
  convoke run model.onnx --inputs in.npz --weights model.safetensors --dim seq=512 --pin '/encoder/layer.0/*=w0'

Arrays named expected/NAME in the inputs file are not fed: --verify compares output NAME with them.";

const GENERATE_EXAMPLES: &str = "\
Examples:
  convoke generate model.onnx --prompt 'Once upon a time'           # one worker in this process
  convoke generate model.onnx --prompt 'Once upon a time' --local 3 --max-tokens 256
  convoke generate onnx/model.onnx --prompt-file letter.txt --temperature 0.8 --top-p 0.95 --seed 7
  convoke generate model.onnx --tokenizer tokenizer.json --prompt-file - --stop '<|im_end|>' \\
      --connect 10.0.0.1:7070 --token-file client.token --workers 3

The model is one that was exported for generation, with caches (past_key_values.N.key and present.N.key) or without.
Text comes on stdout as it is generated. The same seed gives the same text on any number of workers, and also where a
worker is lost meanwhile.";

/// The environment variable of `--json`.
const JSON: &str = "CONVOKE_JSON";

/// Makes the devices of many machines act as one: splits an ONNX model over workers, with the same bits as on one.
#[derive(Debug, Parser)]
#[command(name = "convoke", version, after_long_help = EXAMPLES, max_term_width = 110, propagate_version = false)]
pub struct Cli {
    /// Print one JSON value on stdout, errors included; coordinator, worker and up print one per line: when they are
    /// ready, and for the error that ends them; status --watch prints one per look
    #[arg(long, global = true, env = JSON, value_parser = FalseyValueParser::new())]
    pub json: bool,
    #[command(flatten)]
    pub log: LogArgs,
    #[command(subcommand)]
    pub command: Command,
}

/// Whether `--json` is among the arguments, or its variable is set. Works for arguments that cannot be parsed.
pub fn wants_json(arguments: &[OsString]) -> bool {
    let by_variable = |value: OsString| {
        let parsed = FalseyValueParser::new().parse_ref(&Cli::command(), None, &value);
        parsed.unwrap_or(false)
    };
    arguments.iter().any(|a| a == "--json") || std::env::var_os(JSON).is_some_and(by_variable)
}

/// Flags of the log on stderr.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// The least level that is logged: off, error, warn, info, debug, trace, or a filter like convoke_worker=debug
    /// [default: warn; of coordinator, worker and up: info]
    #[arg(long, global = true, value_name = "FILTER", env = "CONVOKE_LOG")]
    pub log: Option<String>,
    /// Form of the log
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, env = "CONVOKE_LOG_FORMAT")]
    pub log_format: LogFormat,
}

/// The form of the log, as `--log-format` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object per line
    Json,
}

#[derive(Debug, Subcommand)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one, for the life of the process"
)]
pub enum Command {
    /// Run a model
    #[command(after_long_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Continue a text with a language model
    #[command(after_long_help = GENERATE_EXAMPLES)]
    Generate(GenerateArgs),
    /// Show which worker would run which nodes, without loading anything
    Plan(PlanArgs),
    /// Say whether a model runs, how much it takes and what is not supported, without a cluster
    Check(CheckArgs),
    /// Show members, memory, links, programs and live steps
    Status(StatusArgs),
    /// Start a cluster of processes on this machine, until Ctrl-C
    Up(UpArgs),
    /// Measure this machine, or a cluster, beside floors: the least that the same work could take
    Bench(BenchArgs),
    /// A process that `bench` starts
    #[command(hide = true)]
    BenchPart(FloorArgs),
    /// Be the coordinator of a cluster, until stopped
    Coordinator(CoordinatorArgs),
    /// Be a worker of a cluster, until stopped
    Worker(WorkerArgs),
    /// Make, list and revoke join tokens; on the coordinator's machine
    #[command(subcommand)]
    Token(TokenCommand),
    /// Take a worker out of service: it finishes its steps and ends, and none is planned on it until `undrain`; on the
    /// coordinator's machine
    Drain(DrainArgs),
    /// Let a drained worker serve again; on the coordinator's machine
    Undrain(DrainArgs),
    /// Nodes that killed workers; on the coordinator's machine
    #[command(subcommand)]
    Quarantine(QuarantineCommand),
    /// The cluster's certificate authority; on the coordinator's machine
    #[command(subcommand)]
    Ca(crate::commands::backup::CaCommand),
    /// Forget a worker that is gone: its name is free, and `status` does not show it; on the coordinator's machine
    Forget(DrainArgs),
    /// Copy the coordinator's state and certificate authority into a file, whether it runs or not; on its machine. The
    /// file holds the authority's private key
    Backup(crate::commands::backup::BackupArgs),
    /// Make a coordinator's state folder from a backup. Tokens that were revoked since the backup are valid again:
    /// revoke them once more
    Restore(crate::commands::backup::BackupArgs),
}

impl Command {
    /// The subcommand's name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Run(_) => "run",
            Command::Generate(_) => "generate",
            Command::Plan(_) => "plan",
            Command::Check(_) => "check",
            Command::Status(_) => "status",
            Command::Up(_) => "up",
            Command::Bench(_) => "bench",
            Command::BenchPart(_) => "bench-part",
            Command::Coordinator(_) => "coordinator",
            Command::Worker(_) => "worker",
            Command::Token(_) => "token",
            Command::Drain(_) => "drain",
            Command::Undrain(_) => "undrain",
            Command::Quarantine(_) => "quarantine",
            Command::Ca(_) => "ca",
            Command::Forget(_) => "forget",
            Command::Backup(_) => "backup",
            Command::Restore(_) => "restore",
        }
    }

    /// Whether the command runs until it is stopped.
    pub fn is_daemon(&self) -> bool {
        matches!(
            self,
            Command::Up(_) | Command::Coordinator(_) | Command::Worker(_)
        )
    }

    /// The flags that choose the command's cluster, if it has them.
    pub fn cluster_mut(&mut self) -> Option<&mut ClusterArgs> {
        match self {
            Command::Run(a) => Some(&mut a.cluster),
            Command::Generate(a) => Some(&mut a.cluster),
            Command::Plan(a) => Some(&mut a.cluster),
            _ => None,
        }
    }
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Ask the coordinator at this address
    #[arg(long, value_name = "HOST:PORT", env = "CONVOKE_CONNECT")]
    pub connect: Option<String>,
    /// File with a client token
    #[arg(long, value_name = "FILE", env = "CONVOKE_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Report by the exit code alone, and with --json as {"healthy": BOOL}, whether all is well: with --state-dir, in
    /// the coordinator or worker process of this machine that has this folder; else in the cluster, where no worker may
    /// be lost
    #[arg(long, env = "CONVOKE_HEALTH", value_parser = FalseyValueParser::new())]
    pub health: bool,
    /// State folder of a coordinator on this machine, which is asked without a token; for --health of a worker, too
    #[arg(long, value_name = "DIR", env = "CONVOKE_STATE_DIR")]
    pub state_dir: Option<PathBuf>,
    /// With --health of a cluster: check this worker alone, which must be there
    #[arg(long, value_name = "NAME", env = "CONVOKE_MEMBER")]
    pub member: Option<String>,
    /// Show it again every 2 s, or as often as this says, until Ctrl-C
    #[arg(long, value_name = "PERIOD", env = "CONVOKE_WATCH", num_args = 0..=1, default_missing_value = "2s", require_equals = true,
          value_parser = parse_period, conflicts_with = "health")]
    pub watch: Option<Duration>,
}

#[derive(Debug, Clone, Args)]
pub struct UpArgs {
    /// Worker processes
    #[arg(long, value_name = "N", env = "CONVOKE_WORKERS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,
    /// Where the coordinator listens; port 0 lets the system choose
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "CONVOKE_LISTEN",
        default_value = "127.0.0.1:7070"
    )]
    pub listen: SocketAddr,
    /// Compute threads of each worker [default: an equal share of the cores]
    #[arg(long, value_name = "T", env = "CONVOKE_THREADS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Memory of each worker [default: an equal share of 80 % of the machine's or the container's]
    #[arg(long, value_name = "SIZE", env = "CONVOKE_MEMORY", value_parser = parse_size)]
    pub memory: Option<u64>,
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// Folder whose model files the workers may read themselves
    #[arg(long, value_name = "DIR", env = "CONVOKE_ARTIFACT_ROOT")]
    pub artifact_root: Option<PathBuf>,
    /// How long running steps may go on once a worker is told to end; the rest takes at most 2 s more
    #[arg(long, value_name = "TIME", env = "CONVOKE_DRAIN_BOUND", default_value = "8s", value_parser = parse_duration)]
    pub drain_bound: Duration,
    /// Folder for the cluster's state, removed at the end; it may exist only where a killed `up` left it
    /// [default: a new one in XDG_RUNTIME_DIR or /tmp]
    #[arg(long, value_name = "DIR", env = "CONVOKE_RUN_DIR")]
    pub run_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct CoordinatorArgs {
    /// Where to listen, UDP and TCP; port 0 lets the system choose
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "CONVOKE_LISTEN",
        default_value = "0.0.0.0:7070"
    )]
    pub listen: SocketAddr,
    /// Folder for the certificate authority, tokens and names [default: ~/.local/state/convoke/coordinator]
    #[arg(long, value_name = "DIR", env = "CONVOKE_STATE_DIR")]
    pub state_dir: Option<PathBuf>,
    /// Leave tokens without expiry at worker/token and client/token in this folder
    #[arg(long, value_name = "DIR", env = "CONVOKE_TOKEN_DIR")]
    pub token_dir: Option<PathBuf>,
    /// Stop when stdin ends.
    #[arg(long, hide = true)]
    pub attached: bool,
}

#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// The coordinator
    #[arg(long, value_name = "HOST:PORT", env = "CONVOKE_JOIN")]
    pub join: String,
    /// File with a worker token
    #[arg(long, value_name = "FILE", env = "CONVOKE_TOKEN_FILE")]
    pub token_file: PathBuf,
    /// Memory of the whole process [default: 80 % of the machine's or the container's]
    #[arg(long, value_name = "SIZE", env = "CONVOKE_MEMORY", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// The worker's device: cpu, cuda:0, an NVIDIA GPU, or simgpu, a simulated one
    #[arg(
        long,
        value_name = "DEVICE",
        env = "CONVOKE_DEVICE",
        default_value = "cpu"
    )]
    pub device: DeviceId,
    /// Memory of a device that is not a CPU [default: as --memory]
    #[arg(long, value_name = "SIZE", env = "CONVOKE_DEVICE_MEMORY", value_parser = parse_size)]
    pub device_memory: Option<u64>,
    /// Compute threads [default: all cores]
    #[arg(long, value_name = "T", env = "CONVOKE_THREADS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Name in the cluster [default: the one it had, else given by the coordinator: w0, w1, …]
    #[arg(long, value_name = "NAME", env = "CONVOKE_NAME")]
    pub name: Option<String>,
    /// Folder whose model files may be read, where a client names one beneath its own --artifact-root
    #[arg(long, value_name = "DIR", env = "CONVOKE_ARTIFACT_ROOT")]
    pub artifact_root: Option<PathBuf>,
    /// Where to listen; port 0 lets the system choose
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "CONVOKE_LISTEN",
        default_value = "0.0.0.0:0"
    )]
    pub listen: SocketAddr,
    /// Address that others reach this worker at [default: the one that the coordinator sees]
    #[arg(long, value_name = "HOST:PORT", env = "CONVOKE_ADVERTISE")]
    pub advertise: Option<String>,
    /// Folder for the identity [default: ~/.local/state/convoke/worker, or worker-NAME]
    #[arg(long, value_name = "DIR", env = "CONVOKE_STATE_DIR")]
    pub state_dir: Option<PathBuf>,
    /// Folder of state folders: the identity is kept in the first of DIR/1, DIR/2, … that no other worker uses, so that
    /// workers that are started alike keep theirs. --state-dir then holds what lives as long as the process
    #[arg(
        long,
        value_name = "DIR",
        env = "CONVOKE_STATE_POOL",
        requires = "state_dir"
    )]
    pub state_pool: Option<PathBuf>,
    /// Folder for weights that were loaded before, which workers of one user may share
    /// [default: ~/.cache/convoke/chunks]
    #[arg(long, value_name = "DIR", env = "CONVOKE_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Largest size of the --cache-dir folder; 0 for no cache
    #[arg(long, value_name = "SIZE", env = "CONVOKE_CACHE", default_value = "4GiB", value_parser = parse_size)]
    pub cache: u64,
    /// How long running steps may go on once the worker is told to end; the rest takes at most 2 s more
    #[arg(long, value_name = "TIME", env = "CONVOKE_DRAIN_BOUND", default_value = "8s", value_parser = parse_duration)]
    pub drain_bound: Duration,
    /// Stop when stdin ends.
    #[arg(long, hide = true)]
    pub attached: bool,
}

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a join token and print it: one line, with which any number of members can join until it expires
    Create {
        /// The role of members that join with it
        #[arg(long, value_enum, env = "CONVOKE_ROLE")]
        role: TokenRole,
        /// How long one can join with it (30m, 24h, 7d, never). Whoever has joined stays a member after that: bound
        /// that with --member-ttl, or end it with `token revoke`
        #[arg(long, value_name = "TIME", env = "CONVOKE_TTL", default_value = "24h", value_parser = parse_ttl)]
        ttl: Ttl,
        /// How long a member that joined with it may stay; it must join again after that [default: never]
        #[arg(long, value_name = "TIME", env = "CONVOKE_MEMBER_TTL", default_value = "never", hide_default_value = true, value_parser = parse_ttl)]
        member_ttl: Ttl,
        /// Write the token to this file, which only you can read (mode 0600), instead of printing it
        #[arg(long, value_name = "FILE", env = "CONVOKE_OUT")]
        out: Option<PathBuf>,
        #[command(flatten)]
        budget: BudgetArgs,
        #[command(flatten)]
        at: AdminArgs,
    },
    /// List all tokens, without their secrets
    List {
        #[command(flatten)]
        at: AdminArgs,
    },
    /// Revoke a token, and the certificates of all members that joined with it
    Revoke {
        /// The token's id, as `token list` shows it
        id: String,
        #[command(flatten)]
        at: AdminArgs,
    },
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// The worker's name, as `status` shows it
    pub name: String,
    #[command(flatten)]
    pub at: AdminArgs,
}

#[derive(Debug, Subcommand)]
pub enum QuarantineCommand {
    /// Let a node run again although workers died in it
    Lift {
        /// The node's name, as `status` shows it
        node: String,
        #[command(flatten)]
        at: AdminArgs,
    },
}

/// Flags that choose the coordinator.
#[derive(Debug, Args)]
pub struct AdminArgs {
    /// The coordinator's --state-dir [default: ~/.local/state/convoke/coordinator]
    #[arg(long, value_name = "DIR", env = "CONVOKE_STATE_DIR")]
    pub state_dir: Option<PathBuf>,
}

/// The role in which a token lets members join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TokenRole {
    /// Offers its devices
    Worker,
    /// Runs models
    Client,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_flag_with_an_optional_value_leaves_what_follows_alone() {
        let cli = Cli::try_parse_from(["convoke", "run", "--wait", "model.onnx"]).unwrap();
        let Command::Run(run) = cli.command else {
            panic!("another command");
        };
        assert_eq!(run.wait, Some(Duration::from_secs(600)));
        assert_eq!(run.model.load.model, PathBuf::from("model.onnx"));
    }

    #[test]
    fn every_flag_has_a_variable() {
        fn check(command: &clap::Command) {
            for a in command.get_arguments() {
                let built_in = matches!(a.get_id().as_str(), "help" | "version");
                if a.is_positional() || a.is_hide_set() || built_in {
                    continue;
                }
                let long = a.get_long().expect("long").replace('-', "_").to_uppercase();
                let expected = format!("CONVOKE_{long}");
                let env = a.get_env().and_then(|e| e.to_str());
                assert_eq!(env, Some(expected.as_str()), "{}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
