//! Exploring seeds: many runs, spread over processes, and one summary of them.
//!
//! A run is single-threaded, so batches of seeds run in processes of their own to use all cores. Each batch prints one
//! report per line.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::faults::Cells;
use crate::invariants::Violation;
use crate::run::{Report, run};
use crate::scenario::{Scenario, smaller};

/// Seeds of one batch: enough that the start of a process does not matter, few enough that the death of one costs
/// little.
const BATCH: u64 = 25;

/// The number of seeds from which every cell of the table has to be met.
pub const COMPLETE: u64 = 1000;

/// The number of seeds from which every fault has to have met a step.
pub const ROWS: u64 = 200;

/// The least share of calls that have to succeed. Nearly three quarters of them do.
const LEAST_OK: f64 = 0.6;

/// How many of the failing seeds are shrunk.
const SHRUNK: usize = 3;

/// How many runs the shrinking of one scenario may take.
const SHRINK_RUNS: usize = 200;

/// What an exploration found.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Summary {
    pub first: u64,
    pub seeds: u64,
    pub simulated_hours: f64,
    pub wall_minutes: f64,
    pub hours_per_minute: f64,
    pub steps: BTreeMap<String, u64>,
    pub calls: BTreeMap<String, u64>,
    pub cells: Cells,
    pub failures: Vec<Failure>,
}

/// A seed that violates an invariant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Failure {
    pub seed: u64,
    pub violations: Vec<Violation>,
    /// The smallest scenario found that violates one of the same invariants.
    pub shrunk: Option<Scenario>,
}

impl Summary {
    fn add(&mut self, report: Report) {
        self.seeds += 1;
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
        if !report.violations.is_empty() {
            self.failures.push(Failure {
                seed: report.seed,
                violations: report.violations,
                shrunk: None,
            });
        }
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

/// Runs seeds in `jobs` processes at a time.
#[allow(
    clippy::disallowed_methods,
    reason = "the simulator is the one that brings threads and time"
)]
pub fn explore(seeds: Range<u64>, jobs: usize) -> anyhow::Result<Summary> {
    let begun = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let summary = Mutex::new(Summary {
        first: seeds.start,
        ..Summary::default()
    });
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let from = next.fetch_add(BATCH, Ordering::Relaxed);
                    if from >= seeds.end {
                        return;
                    }
                    let take = |report: Report| {
                        let mut s = summary.lock().unwrap_or_else(PoisonError::into_inner);
                        s.add(report);
                        progress(&s, seeds.end - seeds.start, begun);
                    };
                    run_batch(from..(from + BATCH).min(seeds.end), take);
                }
            });
        }
    });
    let mut summary = summary.into_inner().unwrap_or_else(PoisonError::into_inner);
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
    summary.wall_minutes = begun.elapsed().as_secs_f64() / 60.;
    summary.hours_per_minute = summary.simulated_hours / summary.wall_minutes.max(1e-9);
    summary.failures.sort_by_key(|f| f.seed);
    for failure in summary.failures.iter_mut().take(SHRUNK) {
        failure.shrunk = Some(shrink(Scenario::draw(failure.seed), &failure.violations));
    }
    Ok(summary)
}

/// Shows the progress on stderr if it is a terminal.
fn progress(s: &Summary, of: u64, begun: Instant) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let minutes = begun.elapsed().as_secs_f64() / 60.;
    eprint!(
        "\r{} of {of} seeds, {:.2} simulated hours, {:.2} a minute, {} failed ",
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

/// Prints the summary as text.
impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} seeds from {}: {:.1} simulated hours in {:.1} minutes, {:.2} hours a minute",
            self.seeds, self.first, self.simulated_hours, self.wall_minutes, self.hours_per_minute
        )?;
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
        let empty = self.cells.empty();
        if !empty.is_empty() {
            let names: Vec<String> = empty
                .iter()
                .map(|(r, s)| format!("{} × {}", r.name(), s.name()))
                .collect();
            writeln!(f, "not met: {}", names.join(", "))?;
        }
        for failure in &self.failures {
            writeln!(f, "\nseed {} violates:", failure.seed)?;
            for v in &failure.violations {
                writeln!(f, "  {:>6} ms  {}: {}", v.at, v.invariant, v.what)?;
            }
            writeln!(
                f,
                "  replay: cargo run --release -p convoke-sims -- replay --seed {}",
                failure.seed
            )?;
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
            violations: vec![],
            shrunk: None,
        });
        assert!(!failing.is_good());
    }
}
