//! Exploring seeds: many runs, spread over processes, and one summary of them.
//!
//! A run is single-threaded, so batches of seeds run in processes of their own to use all cores. Each batch prints one
//! report per line.

mod batch;
mod folder;
mod seeds;
mod table;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::faults::{Cells, StepState, TimerCells, is_of_swarms};
use crate::invariants::Violation;
use crate::run::{Report, run};
use crate::scenario::{Scenario, ScenarioKind, smaller};

pub use batch::{Batch, Cell, Source};
pub use folder::FailureFolder;
pub use seeds::{CorpusEntry, SeedPlan, duration, fresh_from, read_corpus};
pub use table::write_table;

/// The number of seeds from which every cell of the table fault × step state has to be met.
pub const COMPLETE: u64 = 1000;

/// The number of seeds from which every fault has to have met a step, most calls have to succeed, and scenarios aim at the
/// cells that no seed met.
pub const ROWS: u64 = 200;

/// The least share of calls that have to succeed. Nearly three quarters of them do.
const LEAST_OK: f64 = 0.6;

/// The least share of the calls of swarms that have to succeed. Of the calls of ten swarms, 65 to 85 % do.
const LEAST_OK_OF_SWARMS: f64 = 0.5;

/// The number of calls of swarms from which their share is judged. About eight swarms make as many.
const ENOUGH_OF_SWARMS: u64 = 200;

/// How many of the failures are shrunk where they are only printed, and where they are written to a folder.
const SHRUNK: (usize, usize) = (3, 50);

/// The most scenarios that aim at a cell that no seed met.
const AIMED: u64 = 12;

/// How many runs the shrinking of one scenario may take.
const SHRINK_RUNS: usize = 200;

/// What an exploration found.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Summary {
    pub seeds: u64,
    /// The seeds by the kind of scenario that they drew.
    pub kinds: BTreeMap<String, KindCounts>,
    /// The fresh seeds among them: for each kind, the arguments that explore them again.
    pub fresh: Vec<String>,
    /// How many scenarios aimed at cells of the table that no seed had met.
    pub aimed: u64,
    pub simulated_hours: f64,
    pub wall_minutes: f64,
    pub hours_per_minute: f64,
    pub steps: BTreeMap<String, u64>,
    pub calls: BTreeMap<String, u64>,
    /// What the seeds met.
    pub cells: Cells,
    /// What the aimed scenarios met.
    pub aimed_cells: Cells,
    /// What the seeds and the aimed scenarios met while timers ran.
    pub timers: TimerCells,
    /// Whether scenarios aim at the cells with a timer, too.
    pub aims_at_timers: bool,
    pub failures: Vec<Failure>,
}

/// The counts of the explored seeds of one kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KindCounts {
    pub seeds: u64,
    pub simulated_hours: f64,
    pub calls: u64,
    /// The calls that succeeded.
    pub ok: u64,
    /// The seeds that broke an invariant.
    pub failed: u64,
}

/// A seed, or an aimed scenario, that violates an invariant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Failure {
    /// The seed, or the number of the aimed scenario.
    pub seed: u64,
    pub source: Source,
    pub violations: Vec<Violation>,
    /// The smallest scenario found that violates one of the same invariants.
    pub shrunk: Option<Scenario>,
}

impl KindCounts {
    /// The share of the calls that succeeded.
    fn share_of_ok(&self) -> f64 {
        self.ok as f64 / (self.calls as f64).max(1.)
    }
}

impl Summary {
    /// Adds the report of a seed, or of a scenario that aimed at a cell. The latter counts neither in what seeds met nor
    /// in how calls ended: it is made for one cell.
    fn add(&mut self, source: Source, report: Report) {
        self.timers.add(&report.timers);
        match source {
            Source::Aimed(_) => {
                self.aimed += 1;
                self.aimed_cells.add(&report.cells);
            }
            Source::Seeds(kind) => {
                let hours = report.simulated as f64 / 3.6e6;
                let of_kind = self.kinds.entry(kind.name().to_owned()).or_default();
                of_kind.seeds += 1;
                of_kind.simulated_hours += hours;
                of_kind.calls += report.calls.values().sum::<u64>();
                of_kind.ok += report.calls.get("ok").copied().unwrap_or(0);
                of_kind.failed += u64::from(!report.violations.is_empty());
                self.seeds += 1;
                self.simulated_hours += hours;
                add_counts(&mut self.steps, report.steps);
                add_counts(&mut self.calls, report.calls);
                self.cells.add(&report.cells);
            }
        }
        if !report.violations.is_empty() {
            self.failures.push(Failure {
                seed: report.seed,
                source,
                violations: report.violations,
                shrunk: None,
            });
        }
    }

    /// The cells that neither a seed nor an aimed scenario met; those with a timer where scenarios aim at them.
    fn not_met(&self) -> Vec<Cell> {
        let mut all = self.cells.clone();
        all.add(&self.aimed_cells);
        let mut cells = cells_of(&all);
        if self.aims_at_timers {
            cells.extend(cells_with_timers(&self.timers));
        }
        cells
    }

    /// The cells that scenarios aim at, after the seeds.
    fn to_aim_at(&self) -> Vec<Cell> {
        match self.seeds {
            ROWS.. => {
                let mut cells = cells_of(&self.cells);
                if self.aims_at_timers {
                    cells.extend(cells_with_timers(&self.timers));
                }
                cells
            }
            _ => vec![],
        }
    }

    /// Whether nothing was violated and, given enough seeds, these met every fault, or every cell, and most calls
    /// succeeded, those of swarms by themselves as well. Where next to nothing succeeds, the invariants check next to
    /// nothing.
    pub fn is_good(&self) -> bool {
        // Plain seeds draw no rows of swarms, and explorations need not have others.
        let rows = self.seeds < ROWS || self.cells.empty_rows().into_iter().all(is_of_swarms);
        let mut empty = self.cells.empty().into_iter();
        let cells = self.seeds < COMPLETE || empty.all(|(row, _)| is_of_swarms(row));
        let calls = self.seeds < ROWS || self.share_of_ok() >= LEAST_OK;
        let most =
            |n: &KindCounts| n.calls < ENOUGH_OF_SWARMS || n.share_of_ok() >= LEAST_OK_OF_SWARMS;
        let swarms = self.kinds.get(ScenarioKind::Swarm.name()).is_none_or(most);
        self.failures.is_empty() && rows && cells && calls && swarms
    }

    /// Sorts the failures, and shrinks the first of them. A run that died is not repeated in this process.
    fn shrink(&mut self, folder: Option<&FailureFolder>) {
        self.failures.sort_by_key(|f| (f.source, f.seed));
        let most = match folder {
            None => SHRUNK.0,
            Some(_) => SHRUNK.1,
        };
        let lived = |f: &&mut Failure| f.violations.iter().all(|v| v.invariant != batch::LIVES);
        for failure in self.failures.iter_mut().filter(lived).take(most) {
            failure.shrunk = Some(shrink(failure.scenario(), &failure.violations));
            if let Some(folder) = folder {
                keep(folder, failure);
            }
        }
    }

    /// The share of all calls that succeeded.
    fn share_of_ok(&self) -> f64 {
        let ok = self.calls.get("ok").copied().unwrap_or(0);
        ok as f64 / (self.calls.values().sum::<u64>() as f64).max(1.)
    }
}

/// The empty cells of the table fault × step state.
fn cells_of(cells: &Cells) -> Vec<Cell> {
    let timer = None;
    let empty = cells.empty().into_iter();
    empty
        .map(|(row, state)| Cell { row, state, timer })
        .collect()
}

/// The empty cells of the table timer × fault × step state.
fn cells_with_timers(timers: &TimerCells) -> Vec<Cell> {
    let cell = |(timer, row, state)| Cell {
        row,
        state,
        timer: Some(timer),
    };
    timers.empty().into_iter().map(cell).collect()
}

/// Adds the counts of a run by outcome.
fn add_counts(all: &mut BTreeMap<String, u64>, one: BTreeMap<String, u64>) {
    for (outcome, n) in one {
        *all.entry(outcome).or_default() += n;
    }
}

impl Failure {
    /// The scenario that was run.
    fn scenario(&self) -> Scenario {
        self.source.scenario(self.seed)
    }
}

/// Runs the seeds of a plan in `jobs` processes at a time, then scenarios that aim at the cells that no seed met. Failures
/// are written to `folder`, or else to stderr, as they are found, and again once they are shrunk.
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
    let summary = Mutex::new(Summary {
        aims_at_timers: plan.timers,
        ..Summary::default()
    });
    let take = |source, report| {
        let mut s = lock(&summary);
        let known = s.failures.len();
        s.add(source, report);
        progress(&s, begun);
        for failure in &s.failures[known..] {
            match folder {
                None => eprint!("{failure}"),
                Some(folder) => keep(folder, failure),
            }
        }
    };
    let batches = Mutex::new(plan.batches());
    let next = || {
        let batch = lock(&batches).next(begun.elapsed());
        batch.map(|(kind, seeds)| Batch::of_seeds(kind, seeds))
    };
    run_all(jobs, next, take);
    let cells = {
        let mut s = lock(&summary);
        s.wall_minutes = begun.elapsed().as_secs_f64() / 60.;
        s.hours_per_minute = s.simulated_hours / s.wall_minutes.max(1e-9);
        s.to_aim_at()
    };
    let cells = Mutex::new(cells.into_iter());
    // A scenario that aims at one cell may meet others, at which no further one aims.
    let next = || {
        let open = lock(&summary).not_met();
        let cell = lock(&cells).find(|cell| open.contains(cell));
        cell.map(Batch::aimed)
    };
    run_all(jobs, next, take);
    let mut summary = summary.into_inner().unwrap_or_else(PoisonError::into_inner);
    let ends = lock(&batches).fresh_ends();
    for (kind, first) in &plan.fresh {
        let count = ends.get(kind).map_or(0, |end| end.saturating_sub(*first));
        // The turn of this kind never came.
        if count == 0 {
            continue;
        }
        let kind = kind.name();
        let again = format!("--kind {kind} --from {first} --seeds {count}");
        summary.fresh.push(again);
    }
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
    summary.shrink(folder);
    Ok(summary)
}

/// Runs batches in `jobs` processes at a time, and takes the report of each run with the cell that it aimed at.
#[allow(
    clippy::disallowed_methods,
    reason = "the simulator is the one that brings threads and time"
)]
fn run_all(
    jobs: usize,
    next: impl Fn() -> Option<Batch> + Sync,
    take: impl Fn(Source, Report) + Sync,
) {
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(batch) = next() {
                    let source = batch.source;
                    batch.run_apart(|report| take(source, report));
                }
            });
        }
    });
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a failure to the folder. An exploration goes on without it where that fails.
fn keep(folder: &FailureFolder, failure: &Failure) {
    if let Err(e) = folder.write(failure) {
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

/// Prints what the run violates, and the command that replays a seed.
impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.source {
            Source::Seeds(kind) => writeln!(f, "{} seed {} violates:", kind.name(), self.seed)?,
            Source::Aimed(cell) => {
                let cell = cell.name();
                writeln!(f, "scenario {} aimed at {cell} violates:", self.seed)?;
            }
        }
        for v in &self.violations {
            writeln!(f, "  {:>6} ms  {}: {}", v.at, v.invariant, v.what)?;
        }
        match self.source {
            Source::Seeds(kind) => {
                let replay = "cargo run --release -p convoke-sims -- replay";
                let kind = kind.name();
                writeln!(f, "  replay: {replay} --kind {kind} --seed {}", self.seed)
            }
            Source::Aimed(_) => Ok(()),
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
        for (kind, n) in &self.kinds {
            let share = 100. * n.share_of_ok();
            writeln!(
                f,
                "{kind}: {} seeds, {:.2} simulated hours, {} calls, {share:.0} % ok, {} failed",
                n.seeds, n.simulated_hours, n.calls, n.failed
            )?;
        }
        for fresh in &self.fresh {
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
        let states = StepState::ALL.map(StepState::name).join(", ");
        writeln!(f, "while timers ran, by step state ({states}):\n")?;
        writeln!(f, "{}", self.timers)?;
        if self.aimed > 0 {
            let what = "scenarios aimed at cells that no seed had met";
            writeln!(f, "{} {what}", self.aimed)?;
        }
        let empty = self.not_met();
        if !empty.is_empty() {
            let names: Vec<String> = empty.into_iter().map(Cell::name).collect();
            writeln!(f, "not met: {}", names.join(", "))?;
        }
        for failure in &self.failures {
            write!(f, "\n{failure}")?;
            let is_aimed = matches!(failure.source, Source::Aimed(_));
            let aimed = is_aimed.then(|| failure.scenario());
            let shown = match &failure.shrunk {
                Some(shrunk) => Some(("shrunken", shrunk)),
                None => aimed.as_ref().map(|s| ("the scenario", s)),
            };
            if let Some((what, scenario)) = shown {
                let text = serde_json::to_string(scenario).map_err(|_| std::fmt::Error)?;
                writeln!(f, "  {what}, for replay --scenario FILE: {text}")?;
            }
        }
        writeln!(
            f,
            "\n{} of {} runs failed",
            self.failures.len(),
            self.seeds + self.aimed
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Row;

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
            source: Source::Seeds(ScenarioKind::Plain),
            violations: vec![],
            shrunk: None,
        });
        assert!(!failing.is_good());
    }

    #[test]
    fn swarms_whose_calls_fail_are_not_made_up_for_by_other_seeds() {
        let good = |calls, ok| {
            let mut account = account(200, None, 90);
            let swarms = KindCounts {
                calls,
                ok,
                ..KindCounts::default()
            };
            let kind = ScenarioKind::Swarm.name().to_owned();
            account.kinds.insert(kind, swarms);
            account.is_good()
        };
        assert!(good(200, 100) && !good(200, 99));
        assert!(good(199, 0), "too few to tell");
    }

    #[test]
    fn scenarios_aim_at_cells_with_timers_where_that_is_asked() {
        let mut summary = account(ROWS, None, 70);
        let with_timers = |cells: Vec<Cell>| cells.iter().any(|cell| cell.timer.is_some());
        let found = |s: &Summary| (with_timers(s.to_aim_at()), with_timers(s.not_met()));
        assert_eq!(found(&summary), (false, false));
        assert!(!summary.to_aim_at().is_empty());
        summary.aims_at_timers = true;
        assert_eq!(found(&summary), (true, true));
        summary.seeds = ROWS - 1;
        assert!(summary.to_aim_at().is_empty());
    }

    #[test]
    fn aimed_scenarios_count_neither_as_seeds_nor_as_calls() {
        let mut summary = account(200, Some(Row::Hang), 70);
        let cell = Cell {
            row: Row::Hang,
            state: StepState::Abort,
            timer: None,
        };
        let mut report = Report {
            calls: [("kernel_failed".to_owned(), 1000)].into(),
            ..Report::default()
        };
        report.cells.hit(cell.row, cell.state);
        report.violations.push(Violation {
            invariant: "results are right".into(),
            at: 1,
            what: "one is not".into(),
        });
        summary.add(Source::Aimed(cell), report);
        assert_eq!((summary.seeds, summary.aimed), (200, 1));
        assert!(summary.share_of_ok() > LEAST_OK);
        assert!(!summary.not_met().contains(&cell));
        assert_eq!(summary.cells.empty_rows(), [Row::Hang]);
        assert_eq!(
            summary.failures[0].scenario(),
            Source::Aimed(cell).scenario(0)
        );
    }
}
