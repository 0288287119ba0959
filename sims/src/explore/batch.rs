//! Batches of runs, each in a process of its own: a run that dies takes no other one along.

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Command, Stdio};

use convoke_common::detection::timer::TimerKind;
use serde::{Deserialize, Serialize};

use super::AIMED;
use crate::faults::{Row, StepState};
use crate::invariants::Violation;
use crate::run::{Report, run};
use crate::scenario::{Scenario, ScenarioKind};

/// A fault and the state of a step in which it strikes, while a timer runs where the cell is one of the table of timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    pub row: Row,
    pub state: StepState,
    pub timer: Option<TimerKind>,
}

impl Cell {
    /// The cell's name in messages.
    pub fn name(self) -> String {
        let timer = self.timer.map(|timer| format!("{} × ", timer.name()));
        let (timer, row) = (timer.unwrap_or_default(), self.row.name());
        format!("{timer}{row} × {}", self.state.name())
    }

    /// Whether a run met it.
    fn is_met(self, report: &Report) -> bool {
        let hits = match self.timer {
            None => report.cells.get(self.row, self.state),
            Some(timer) => report.timers.get(timer, self.row, self.state),
        };
        hits > 0
    }
}

/// What a number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Source {
    /// The seed of a scenario of this kind.
    Seeds(ScenarioKind),
    /// The number of a scenario that aims at this cell of the table.
    Aimed(Cell),
}

impl Source {
    /// The scenario with this number.
    pub fn scenario(self, number: u64) -> Scenario {
        match self {
            Source::Seeds(kind) => Scenario::of_kind(kind, number),
            Source::Aimed(cell) => Scenario::aimed(cell.row, cell.state, cell.timer, number),
        }
    }

    fn aim(self) -> Option<Cell> {
        match self {
            Source::Seeds(_) => None,
            Source::Aimed(cell) => Some(cell),
        }
    }
}

/// The name of the violation that a run has died.
pub(super) const LIVES: &str = "the simulator lives";

/// Runs that follow one another in one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// What the numbers stand for. Scenarios that aim at a cell are run until one meets it.
    pub source: Source,
    pub numbers: Range<u64>,
}

impl Batch {
    pub(super) fn of_seeds(kind: ScenarioKind, numbers: Range<u64>) -> Batch {
        Batch {
            source: Source::Seeds(kind),
            numbers,
        }
    }

    /// All scenarios that aim at a cell.
    pub(super) fn aimed(cell: Cell) -> Batch {
        Batch {
            source: Source::Aimed(cell),
            numbers: 0..AIMED,
        }
    }

    /// Takes the run out of the batch that a report is about.
    fn pass(&mut self, report: &Report) {
        let met = self.source.aim().is_some_and(|cell| cell.is_met(report));
        self.numbers.start = match met {
            true => self.numbers.end,
            false => report.seed.saturating_add(1),
        };
    }

    /// Runs the batch in this process, and prints a report of each run as a line of JSON.
    pub fn run(mut self) -> anyhow::Result<()> {
        let out = std::io::stdout();
        while !self.numbers.is_empty() {
            let number = self.numbers.start;
            let report = run(&self.source.scenario(number), None);
            writeln!(out.lock(), "{}", serde_json::to_string(&report)?)?;
            self.pass(&report);
        }
        Ok(())
    }

    /// Runs the batch in a process of its own. If that process dies, the run that it was at is reported as a failure,
    /// and another process runs the rest.
    pub(super) fn run_apart(mut self, mut take: impl FnMut(Report)) {
        while !self.numbers.is_empty() {
            let rest = self.clone();
            let why = match rest.run_child(|report| {
                self.pass(&report);
                take(report);
            }) {
                Ok(()) if self.numbers.is_empty() => return,
                Ok(()) => "the simulator ended early".to_owned(),
                Err(e) => format!("the simulator died: {e:#}"),
            };
            let violation = Violation {
                invariant: LIVES.into(),
                at: 0,
                what: why,
            };
            let report = Report {
                seed: self.numbers.start,
                violations: vec![violation],
                ..Report::default()
            };
            self.pass(&report);
            take(report);
        }
    }

    fn run_child(&self, mut take: impl FnMut(Report)) -> anyhow::Result<()> {
        let Range { start, end } = self.numbers;
        let source = serde_json::to_string(&self.source)?;
        let args = ["batch", &start.to_string(), &end.to_string(), &source];
        let mut child = Command::new(std::env::current_exe()?)
            .args(args)
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aimed_scenarios_end_with_the_one_that_meets_the_cell() {
        let cell = Cell {
            row: Row::Hang,
            state: StepState::Abort,
            timer: None,
        };
        let mut aimed = Batch::aimed(cell);
        let mut seeds = Batch::of_seeds(ScenarioKind::Plain, 0..AIMED);
        let mut report = Report {
            seed: 3,
            ..Report::default()
        };
        for batch in [&mut aimed, &mut seeds] {
            batch.pass(&report);
            assert_eq!(batch.numbers, 4..AIMED);
        }
        report.cells.hit(cell.row, cell.state);
        let with_timer = Cell {
            timer: Some(TimerKind::Probe),
            ..cell
        };
        assert!(!with_timer.is_met(&report));
        aimed.pass(&report);
        seeds.pass(&report);
        assert!(aimed.numbers.is_empty() && !seeds.numbers.is_empty());
    }
}
