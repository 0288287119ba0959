//! The flags of `convoke bench` and of the processes that it starts.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
#[command(after_long_help = super::catalogue::names())]
pub struct BenchArgs {
    /// Measure the cluster of the coordinator at this address [default: clusters started for the measurements, in this
    /// process and as processes of this machine]
    #[arg(long, value_name = "HOST:PORT", env = "CONVOKE_CONNECT")]
    pub connect: Option<String>,
    /// File with the client token that lets this command in
    #[arg(long, value_name = "FILE", env = "CONVOKE_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Measure this alone; may be repeated, the variable holds one
    #[arg(long, value_name = "NAME", env = "CONVOKE_ONLY")]
    pub only: Vec<String>,
    /// Turns of each measurement and its floor, besides a tenth as many that warm up; 20 take about two minutes in all
    #[arg(long, value_name = "N", env = "CONVOKE_ROUNDS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
}

/// Flags of a process that `bench` starts.
#[derive(Debug, Args)]
pub struct FloorArgs {
    /// The role of the process.
    #[arg(value_enum)]
    pub part: Helper,
    /// Folder with the certificate authority of the relay's parties.
    #[arg(long, hide = true)]
    pub keys: Option<PathBuf>,
    /// The process's name among the relay's parties.
    #[arg(long, hide = true, default_value = "party")]
    pub name: String,
    /// The address of the process that it sends to.
    #[arg(long, hide = true)]
    pub to: Option<SocketAddr>,
    /// Stop when stdin ends.
    #[arg(long, hide = true)]
    pub attached: bool,
}

/// The task of a process that `bench` starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Helper {
    /// Passes on messages of 4 bytes over quinn
    Relay,
    /// Sends back what it receives over TCP, or with `--to` is the sender
    Tcp,
    /// An embedded cluster that does nothing
    Idle,
}

impl Helper {
    /// The task's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Helper::Relay => "relay",
            Helper::Tcp => "tcp",
            Helper::Idle => "idle",
        }
    }
}
