//! Exploring seeds: many runs, spread over processes, and one summary of them.
//!
//! A run is single-threaded, so batches of seeds run in processes of their own to use all cores. Each batch prints one
//! report per line.

mod folder;
mod seeds;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::faults::Cells;
use crate::invariants::Violation;
use crate::run::{Report, run};
use crate::scenario::{Scenario, smaller};

pub use folder::FailureFolder;
pub use seeds::{SeedPlan, duration, fresh_from, read_corpus};

/// The number of seeds from which every cell of the table has to be met.
pub const COMPLETE: u64 = 1000;

/// The number of seeds from which every fault has to have met a step.
pub const ROWS: u64 = 200;

/// The least share of calls that have to succeed. Nearly three quarters of them do.
const LEAST_OK: f64 = 0.6;

/// How many of the failing seeds are shrunk where they are only printed, and where they are written to a folder.
const SHRUNK: (usize, usize) = (3, 50);

/// How many scenarios aim at a cell that no seed met.
const AIMED: u64 = 12;

/// How many runs the shrinking of one scenario may take.
const SHRINK_RUNS: usize = 200;

/// What an exploration found.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Summary {
    pub seeds: u64,
    /// The fresh seeds among them, as the arguments that explore them again.
    pub fresh: Option<String>,
    /// How many scenarios aimed at cells of the table that no seed had met.
    pub aimed: u64,
    pub simulated_hours: f64,
    pub wall_minutes: f64,
    pub hours_per_minute: f64,
    pub steps: BTreeMap<String, u64>,
    pub calls: BTreeMap<String, u64>,
    pub cells: Cells,
    pub failures: Vec<Failure>,
}

/// A seed, or an aimed scenario, that violates an invariant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Failure {
    /// The seed, or the number of the aimed scenario.
    pub seed: u64,
    /// The cell of the table that the scenario aimed at; `None` for a seed.
    pub aimed_at: Option<String>,
    pub violations: Vec<Violation>,
    /// The smallest scenario found that violates one of the same invariants.
    pub shrunk: Option<Scenario>,
}

impl Summary {
    /// Adds the report of a seed.
    fn add(&mut self, report: Report) {
        self.seeds += 1;
        let seed = report.seed;
        let violations = self.count(report);
        if !violations.is_empty() {
            self.failures.push(Failure {
                seed,
                aimed_at: None,
                violations,
                shrunk: None,
            });
        }
    }

    /// Runs scenarios that aim at the cells that no seed met, until each is met or its scenarios are used up.
    fn aim(&mut self) {
        for (row, state) in self.cells.empty() {
            for number in 0..AIMED {
                if self.cells.get(row, state) > 0 {
                    break;
                }
                let scenario = Scenario::aimed(row, state, number);
                self.aimed += 1;
                let violations = self.count(run(&scenario, None));
                if !violations.is_empty() {
                    self.failures.push(Failure {
                        seed: number,
                        aimed_at: Some(format!("{} × {}", row.name(), state.name())),
                        shrunk: Some(shrink(scenario, &violations)),
                        violations,
                    });
                }
            }
        }
    }

    /// Counts what a run did and met, and returns what it violated.
    fn count(&mut self, report: Report) -> Vec<Violation> {
        self.simulated_hours += report.simulated as f64 / 3.6e6;
        for (all, one) in [
            (&mut self.steps, report.steps),
            (&mut self.calls, report.calls),
        ] {
            for (outcome, n) in one {
                *all.entry(outcome).or_default() += n;
            }
        }
        self.cells.add(&report.cells);
        report.violations
    }

    /// Whether nothing was violated and, given enough seeds, every fault met a step and most calls succeeded. Where
    /// next to nothing succeeds, the invariants check next to nothing.
    pub fn is_good(&self) -> bool {
        let rows = self.seeds < ROWS || self.cells.empty_rows().is_empty();
        let cells = self.seeds < COMPLETE || self.cells.empty().is_empty();
        let calls = self.seeds < ROWS || self.share_of_ok() >= LEAST_OK;
        self.failures.is_empty() && rows && cells && calls
    }

    /// The share of all calls that succeeded.
    fn share_of_ok(&self) -> f64 {
        let ok = self.calls.get("ok").copied().unwrap_or(0);
        ok as f64 / (self.calls.values().sum::<u64>() as f64).max(1.)
    }
}

/// Runs seeds in this process, and prints a report of each as a line of JSON.
pub fn batch(seeds: Range<u64>) -> anyhow::Result<()> {
    let out = std::io::stdout();
    for seed in seeds {
        let line = serde_json::to_string(&run(&Scenario::draw(seed), None))?;
        writeln!(out.lock(), "{line}")?;
    }
    Ok(())
}

/// Runs the seeds of a plan in `jobs` processes at a time. Failures are written to `folder` as they are found, and again
/// once they are shrunk.
#[allow(
    clippy::disallowed_methods,
    reason = "the simulator is the one that brings threads and time"
)]
pub fn explore(
    plan: &SeedPlan,
    jobs: usize,
    folder: Option<&FailureFolder>,
) -> anyhow::Result<Summary> {
    let begun = Instant::now();
    let batches = Mutex::new(plan.batches());
    let summary = Mutex::new(Summary::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                let next = || lock(&batches).next(begun.elapsed());
                while let Some(batch) = next() {
                    run_batch(batch, |report| {
                        let mut s = lock(&summary);
                        let known = s.failures.len();
                        s.add(report);
                        progress(&s, begun);
                        s.failures[known..].iter().for_each(|f| keep(folder, f));
                    });
                }
            });
        }
    });
    let mut summary = summary.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(first) = plan.fresh {
        let known = plan.corpus.len() as u64 + (plan.range.end - plan.range.start);
        let count = summary.seeds.saturating_sub(known);
        summary.fresh = Some(format!("--from {first} --seeds {count}"));
    }
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
    summary.wall_minutes = begun.elapsed().as_secs_f64() / 60.;
    summary.hours_per_minute = summary.simulated_hours / summary.wall_minutes.max(1e-9);
    summary.failures.sort_by_key(|f| f.seed);
    let most = match folder {
        None => SHRUNK.0,
        Some(_) => SHRUNK.1,
    };
    if summary.seeds >= ROWS {
        let known = summary.failures.len();
        summary.aim();
        summary.failures[known..]
            .iter()
            .for_each(|f| keep(folder, f));
    }
    let drawn = summary.failures.iter_mut().filter(|f| f.shrunk.is_none());
    for failure in drawn.take(most) {
        failure.shrunk = Some(shrink(Scenario::draw(failure.seed), &failure.violations));
        keep(folder, failure);
    }
    Ok(summary)
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a failure to the folder, if there is one. An exploration goes on without it where that fails.
fn keep(folder: Option<&FailureFolder>, failure: &Failure) {
    if let Some(Err(e)) = folder.map(|f| f.write(failure)) {
        eprintln!("cannot write the failure of seed {}: {e:#}", failure.seed);
    }
}

/// Shows the progress on stderr if it is a terminal.
fn progress(s: &Summary, begun: Instant) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let minutes = begun.elapsed().as_secs_f64() / 60.;
    eprint!(
        "\r{} seeds, {:.2} simulated hours, {:.2} a minute, {} failed ",
        s.seeds,
        s.simulated_hours,
        s.simulated_hours / minutes.max(1e-9),
        s.failures.len()
    );
}

/// Runs a batch in a process of its own. If that process dies, the seed that it was running is reported as a failure,
/// and another process runs the rest.
fn run_batch(seeds: Range<u64>, mut take: impl FnMut(Report)) {
    let mut at = seeds.start;
    while at < seeds.end {
        let why = match run_child(at..seeds.end, |report| {
            at = report.seed + 1;
            take(report);
        }) {
            Ok(()) if at >= seeds.end => return,
            Ok(()) => "the simulator ended early".to_owned(),
            Err(e) => format!("the simulator died: {e:#}"),
        };
        let mut report = Report {
            seed: at,
            ..Report::default()
        };
        report.violations.push(Violation {
            invariant: "the simulator lives".into(),
            at: 0,
            what: why,
        });
        take(report);
        at += 1;
    }
}

fn run_child(seeds: Range<u64>, mut take: impl FnMut(Report)) -> anyhow::Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["batch", &seeds.start.to_string(), &seeds.end.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).lines() {
            take(serde_json::from_str(&line?)?);
        }
    }
    let status = child.wait()?;
    anyhow::ensure!(status.success(), "{status}");
    Ok(())
}

/// Finds a scenario that violates one of the same invariants and from which nothing can be left out. Returns the best
/// one so far after `SHRINK_RUNS` runs.
pub fn shrink(scenario: Scenario, violations: &[Violation]) -> Scenario {
    let names: Vec<&str> = violations.iter().map(|v| v.invariant.as_str()).collect();
    let mut runs = 0;
    let mut fails = |s: &Scenario| {
        runs += 1;
        let report = run(s, None);
        let same = |v: &Violation| names.contains(&v.invariant.as_str());
        (runs < SHRINK_RUNS).then(|| report.violations.iter().any(same))
    };
    let mut best = scenario;
    'again: loop {
        for candidate in smaller(&best) {
            match fails(&candidate) {
                None => return best,
                Some(false) => {}
                Some(true) => {
                    best = candidate;
                    continue 'again;
                }
            }
        }
        return best;
    }
}

/// Prints what the seed violates, and the command that replays it.
impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.aimed_at {
            None => writeln!(f, "seed {} violates:", self.seed)?,
            Some(cell) => writeln!(f, "scenario {} aimed at {cell} violates:", self.seed)?,
        }
        for v in &self.violations {
            writeln!(f, "  {:>6} ms  {}: {}", v.at, v.invariant, v.what)?;
        }
        match self.aimed_at {
            None => {
                let replay = "cargo run --release -p convoke-sims -- replay";
                writeln!(f, "  replay: {replay} --seed {}", self.seed)
            }
            Some(_) => Ok(()),
        }
    }
}

/// Prints the summary as text.
impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} seeds: {:.1} simulated hours in {:.1} minutes, {:.2} hours a minute",
            self.seeds, self.simulated_hours, self.wall_minutes, self.hours_per_minute
        )?;
        if let Some(fresh) = &self.fresh {
            writeln!(
                f,
                "fresh ones among them: cargo run --release -p convoke-sims -- explore {fresh}"
            )?;
        }
        let list = |all: &BTreeMap<String, u64>| {
            let parts: Vec<String> = all.iter().map(|(k, n)| format!("{k} {n}")).collect();
            parts.join(", ")
        };
        writeln!(f, "steps by outcome: {}", list(&self.steps))?;
        writeln!(
            f,
            "calls by outcome: {}; {:.0} % ok\n",
            list(&self.calls),
            100. * self.share_of_ok()
        )?;
        writeln!(f, "{}", self.cells)?;
        if self.aimed > 0 {
            let what = "scenarios aimed at cells that no seed had met";
            writeln!(f, "{} {what}", self.aimed)?;
        }
        let empty = self.cells.empty();
        if !empty.is_empty() {
            let names: Vec<String> = empty
                .iter()
                .map(|(r, s)| format!("{} × {}", r.name(), s.name()))
                .collect();
            writeln!(f, "not met: {}", names.join(", "))?;
        }
        for failure in &self.failures {
            write!(f, "\n{failure}")?;
            if let Some(shrunk) = &failure.shrunk {
                let text = serde_json::to_string(shrunk).map_err(|_| std::fmt::Error)?;
                writeln!(f, "  shrunken, for replay --scenario FILE: {text}")?;
            }
        }
        writeln!(
            f,
            "\n{} of {} seeds failed",
            self.failures.len(),
            self.seeds
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{Row, StepState};

    /// A summary of `seeds` seeds in which every fault except `unmet` met a step, and `ok` of 100 calls succeeded.
    fn account(seeds: u64, unmet: Option<Row>, ok: u64) -> Summary {
        let mut cells = Cells::default();
        for row in Row::ALL.into_iter().filter(|r| Some(*r) != unmet) {
            cells.hit(row, StepState::Waiting);
        }
        let calls = [("ok", ok), ("peer_lost", 100 - ok)];
        Summary {
            seeds,
            cells,
            calls: calls.map(|(code, n)| (code.to_owned(), n)).into(),
            ..Summary::default()
        }
    }

    #[test]
    fn an_account_is_good_where_it_has_looked_at_something() {
        let check = |seeds, unmet, ok, good| {
            let account = account(seeds, unmet, ok);
            assert_eq!(account.is_good(), good, "{seeds} {unmet:?} {ok}");
        };
        check(200, None, 70, true);
        check(200, Some(Row::Hang), 70, false);
        check(200, None, 50, false);
        check(100, Some(Row::Hang), 50, true);
        // With this many seeds, every cell has to be met.
        check(1000, None, 70, false);
        let mut failing = account(200, None, 70);
        failing.failures.push(Failure {
            seed: 3,
            aimed_at: None,
            violations: vec![],
            shrunk: None,
        });
        assert!(!failing.is_good());
    }
}
