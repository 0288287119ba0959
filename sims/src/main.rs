//! Explores seeds, and replays one.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use convoke_sims::explore::{batch, explore, shrink};
use convoke_sims::run::run;
use convoke_sims::scale;
use convoke_sims::scenario::Scenario;
use tracing::Level;

/// Runs production code in simulation, under faults.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: What,
}

#[derive(Subcommand)]
enum What {
    /// Runs many seeds; exit code 1 where one violates an invariant; where over 200 seeds or more a fault met no step or
    /// few calls succeed; or where a cell of the table fault × step state stays empty over 1,000 seeds or more.
    Explore {
        /// How many.
        #[arg(long, default_value_t = 200)]
        seeds: u64,
        /// The first one.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Processes at a time; by default one a core.
        #[arg(long)]
        jobs: Option<usize>,
        /// Prints the account as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Runs one seed, or a scenario from a file; exit code 1 where it violates an invariant.
    Replay {
        #[arg(long, required_unless_present = "scenario")]
        seed: Option<u64>,
        /// A scenario as JSON.
        #[arg(long)]
        scenario: Option<PathBuf>,
        /// Prints the log of all processes up to this level (error, warn, info, debug, trace).
        #[arg(long)]
        log: Option<Level>,
        /// Finds a smaller scenario that violates the same.
        #[arg(long)]
        shrink: bool,
    },
    /// Measures what joining, resting, planning and stepping cost as clusters grow, without a fault.
    Scale {
        /// Sizes of clusters.
        #[arg(long, value_delimiter = ',', default_values_t = [2u16, 5, 10, 20, 50, 100])]
        workers: Vec<u16>,
    },
    /// Runs the seeds from FROM until before TO, and prints one report per line.
    #[command(hide = true)]
    Batch { from: u64, to: u64 },
}

fn main() -> anyhow::Result<ExitCode> {
    match Args::parse().command {
        What::Explore {
            seeds,
            from,
            jobs,
            json,
        } => {
            let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
            let summary = explore(from..from.saturating_add(seeds), jobs.unwrap_or(cores))?;
            match json {
                true => println!("{}", serde_json::to_string_pretty(&summary)?),
                false => println!("{summary}"),
            }
            Ok(ExitCode::from(u8::from(!summary.is_good())))
        }
        What::Replay {
            seed,
            scenario,
            log,
            shrink: smaller,
        } => {
            let scenario = match scenario {
                Some(path) => {
                    let text = std::fs::read_to_string(&path);
                    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
                    serde_json::from_str(&text).context("not a scenario")?
                }
                None => Scenario::draw(seed.unwrap_or_default()),
            };
            println!("{}", serde_json::to_string_pretty(&scenario)?);
            let report = run(&scenario, log);
            println!("{}", serde_json::to_string_pretty(&report)?);
            if smaller && !report.violations.is_empty() {
                let shrunk = shrink(scenario, &report.violations);
                println!("shrunken: {}", serde_json::to_string(&shrunk)?);
            }
            Ok(ExitCode::from(u8::from(!report.violations.is_empty())))
        }
        What::Scale { workers } => {
            println!("{}", scale::HEAD);
            for n in workers {
                println!("{}", scale::measure(n)?);
            }
            Ok(ExitCode::SUCCESS)
        }
        What::Batch { from, to } => {
            batch(from..to)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
