//! The simulator's command line: explores many seeds, replays one seed, measures how costs grow with the cluster.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args as Arguments, Parser, Subcommand};
use convoke_sims::explore::{
    Batch, FailureFolder, SeedPlan, Source, duration, explore, fresh_from, read_corpus, shrink,
    write_table,
};
use convoke_sims::run::run;
use convoke_sims::scale;
use convoke_sims::scenario::{Scenario, ScenarioKind};
use tracing::Level;

/// Runs production code in simulation, under faults.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Subcommand)]
enum SimCommand {
    /// Runs many seeds and, from 200 on, scenarios that aim at the cells of the table fault × step state that no seed met.
    /// The exit code is 1 if a run violates an invariant; if, over 200 seeds or more, a fault met no step or few calls
    /// succeeded; or if, over 1,000 seeds or more, no seed met a cell of the table. Operations, which only swarms have, need
    /// not be met.
    Explore(Exploration),
    /// Runs one seed, or a scenario from a file. The exit code is 1 if it violates an invariant.
    Replay {
        #[arg(long, required_unless_present = "scenario")]
        seed: Option<u64>,
        /// How the seed draws its scenario.
        #[arg(long, value_enum, default_value_t)]
        kind: ScenarioKind,
        /// A file with a scenario as JSON.
        #[arg(long)]
        scenario: Option<PathBuf>,
        /// Prints the log of all processes up to this level (error, warn, info, debug, trace).
        #[arg(long)]
        log: Option<Level>,
        /// Finds a smaller scenario that violates the same invariant.
        #[arg(long)]
        shrink: bool,
    },
    /// Measures what joining, resting, planning and stepping cost as clusters grow, without a fault.
    Scale {
        /// The numbers of workers to measure, one cluster for each.
        #[arg(long, value_delimiter = ',', default_values_t = [2u16, 5, 10, 20, 50, 100])]
        workers: Vec<u16>,
    },
    /// Runs the seeds from FROM up to, but not including, TO and prints one report per line.
    #[command(hide = true)]
    Batch {
        from: u64,
        to: u64,
        /// What the numbers stand for, as JSON.
        source: String,
    },
}

#[derive(Arguments)]
struct Exploration {
    /// How many seeds to run from `--from` on; 200 unless told, or as many as there is time for where `--for` stands without
    /// `--fresh`.
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// How seeds draw their scenarios, those of a corpus aside, which says so itself. Unless told, the range draws plain ones,
    /// and fresh seeds draw every kind in turn.
    #[arg(long, value_enum)]
    kind: Option<ScenarioKind>,
    /// A file of seeds to run before the others, one a line.
    #[arg(long)]
    corpus: Option<PathBuf>,
    /// After the others, seeds that follow from this text, such as the hash of a commit, until `--for` is over.
    #[arg(long, requires = "lasts")]
    fresh: Option<String>,
    /// How long to begin seeds, such as `90s`, `10m` or `8h`: fresh ones from when all others have begun, and without
    /// `--fresh` all of them from the start.
    #[arg(long = "for", id = "lasts", value_name = "DURATION", value_parser = duration)]
    lasts: Option<Duration>,
    /// A folder for the failures: for each run a scenario, shrunken at the end, and the commands that repeat it.
    #[arg(long)]
    failures: Option<PathBuf>,
    /// Processes that run seeds at the same time; by default one for each core.
    #[arg(long)]
    jobs: Option<usize>,
    /// A manual whose tables of faults get the counts of this exploration. From 200 seeds on, scenarios then also aim at the
    /// cells of the table timer × fault × step state that nothing met.
    #[arg(long)]
    table: Option<PathBuf>,
    /// Prints the summary as JSON.
    #[arg(long)]
    json: bool,
}

impl Exploration {
    fn plan(&self) -> anyhow::Result<SeedPlan> {
        let count = match (self.seeds, self.lasts, &self.fresh) {
            (Some(count), ..) => count,
            (None, Some(_), None) => u64::MAX,
            (None, ..) => 200,
        };
        let corpus = self.corpus.as_deref().map(read_corpus).transpose()?;
        let kinds = match &self.kind {
            Some(kind) => std::slice::from_ref(kind),
            None => &ScenarioKind::ALL,
        };
        let fresh = self.fresh.as_deref().map(fresh_from).into_iter();
        Ok(SeedPlan {
            corpus: corpus.unwrap_or_default(),
            kind: self.kind.unwrap_or_default(),
            range: self.from..self.from.saturating_add(count),
            fresh: fresh
                .flat_map(|from| kinds.iter().map(move |kind| (*kind, from)))
                .collect(),
            lasts: self.lasts,
            timers: self.table.is_some(),
        })
    }

    fn run(&self) -> anyhow::Result<ExitCode> {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let folder = self
            .failures
            .as_deref()
            .map(FailureFolder::open)
            .transpose()?;
        let jobs = self.jobs.unwrap_or(cores);
        let summary = explore(&self.plan()?, jobs, folder.as_ref())?;
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&summary)?),
            false => println!("{summary}"),
        }
        if let Some(manual) = &self.table {
            write_table(manual, &summary)?;
        }
        Ok(ExitCode::from(u8::from(!summary.is_good())))
    }
}

fn main() -> anyhow::Result<ExitCode> {
    match Args::parse().command {
        SimCommand::Explore(exploration) => exploration.run(),
        SimCommand::Replay {
            seed,
            kind,
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
                None => Scenario::of_kind(kind, seed.unwrap_or_default()),
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
        SimCommand::Scale { workers } => {
            println!("{}", scale::HEAD);
            for n in workers {
                println!("{}", scale::measure(n)?);
            }
            Ok(ExitCode::SUCCESS)
        }
        SimCommand::Batch { from, to, source } => {
            let source: Source = serde_json::from_str(&source).context("not a source")?;
            let numbers = from..to;
            Batch { source, numbers }.run()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
