//! The table timer × fault × step state: which timers ran while a fault met a step in a state.

use std::collections::{BTreeMap, BTreeSet};

use convoke_common::detection::timer::TimerKind;
use serde::{Deserialize, Serialize};

use super::{Cells, Row, StepState};
use crate::event_log::RunningTimers;
use crate::steps::{Key, Steps};

/// Whether a timer counts while a step is in this state. While a lease is installed its driver is not known yet, and these
/// timers are those of drivers. A worker that drives a partitioned body of another lease has them for that one alone.
fn counts_in(timer: TimerKind, state: StepState) -> bool {
    let of_drivers = [TimerKind::Losses, TimerKind::Quiesce, TimerKind::Deadline];
    state != StepState::Prepare || !of_drivers.contains(&timer)
}

/// How often each fault met a step in each state while a timer of each kind ran at a participant of the step, or at the
/// coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerCells(BTreeMap<TimerKind, Cells>);

impl TimerCells {
    /// Counts one hit.
    pub fn hit(&mut self, timer: TimerKind, row: Row, state: StepState) {
        self.0.entry(timer).or_default().hit(row, state);
    }

    /// How often a fault met a step in this state while this timer ran.
    pub fn get(&self, timer: TimerKind, row: Row, state: StepState) -> u64 {
        self.0.get(&timer).map_or(0, |cells| cells.get(row, state))
    }

    /// Adds the hits of another run.
    pub fn add(&mut self, other: &TimerCells) {
        for (timer, cells) in &other.0 {
            self.0.entry(*timer).or_default().add(cells);
        }
    }

    /// The combinations of timer, fault and step state that were never met, of those that count.
    pub fn empty(&self) -> Vec<(TimerKind, Row, StepState)> {
        let none = Cells::default();
        let of = |timer: TimerKind| {
            let cells = self.0.get(&timer).unwrap_or(&none);
            let empty = cells.empty().into_iter();
            let possible = empty.filter(move |(_, s)| counts_in(timer, *s));
            possible.map(move |(r, s)| (timer, r, s))
        };
        TimerKind::ALL.into_iter().flat_map(of).collect()
    }
}

/// Prints the table as Markdown: a row for each fault and a column for each timer, whose cells have the counts by step
/// state, and a dash for a state in which the timer does not count.
impl std::fmt::Display for TimerCells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "| fault |")?;
        TimerKind::ALL
            .iter()
            .try_for_each(|timer| write!(f, " {} |", timer.name()))?;
        write!(f, "\n|---|{}", "---|".repeat(TimerKind::ALL.len()))?;
        for row in Row::ALL {
            write!(f, "\n| {} |", row.name())?;
            for timer in TimerKind::ALL {
                let counts = StepState::ALL.map(|s| match counts_in(timer, s) {
                    true => self.get(timer, row, s).to_string(),
                    false => "-".to_owned(),
                });
                write!(f, " {} |", counts.join(" "))?;
            }
        }
        writeln!(f)
    }
}

/// What a fault has met already, in a state alone and with each timer.
pub type Met = BTreeSet<(Key, StepState, Option<TimerKind>)>;

/// What the faults of a run have met.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub cells: Cells,
    pub timers: TimerCells,
}

impl Tally {
    /// Counts the steps that a fault meets in these states, each once in a state, and once in a state with a timer.
    pub fn count(
        &mut self,
        row: Row,
        met: &mut Met,
        states: &[(Key, StepState)],
        steps: &Steps,
        running: &RunningTimers,
    ) {
        for (key, state) in states {
            if met.insert((*key, *state, None)) {
                self.cells.hit(row, *state);
            }
            let timers = steps.timers(key.0, running).into_iter();
            for timer in timers.filter(|timer| counts_in(*timer, *state)) {
                if met.insert((*key, *state, Some(timer))) {
                    self.timers.hit(timer, row, *state);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_timer_and_tells_what_is_missing() {
        let mut cells = TimerCells::default();
        cells.hit(TimerKind::Probe, Row::Hang, StepState::Abort);
        let mut sum = cells.clone();
        sum.add(&cells);
        assert_eq!(sum.get(TimerKind::Probe, Row::Hang, StepState::Abort), 2);
        assert_eq!(sum.get(TimerKind::Cause, Row::Hang, StepState::Abort), 0);
        assert_eq!(
            sum.empty().len(),
            (TimerKind::ALL.len() * StepState::ALL.len() - 3) * Row::ALL.len() - 1
        );
        assert!(
            sum.empty()
                .iter()
                .all(|(timer, _, s)| counts_in(*timer, *s))
        );
        let hangs = "| kernel hangs | 0 0 0 0 0 0 | 0 0 0 0 2 0 | 0 0 0 0 0 0 | - 0 0 0 0 0 |";
        assert!(sum.to_string().contains(hangs), "{sum}");
    }

    #[test]
    fn a_step_counts_once_in_a_state_and_once_with_each_timer() {
        let (mut tally, mut met) = (Tally::default(), Met::new());
        let steps = Steps::default();
        let states = [((1, 1), StepState::Start)];
        let none = RunningTimers::default();
        let probe = RunningTimers::of(crate::world::Host::Coordinator, TimerKind::Probe);
        for running in [&none, &probe, &probe] {
            tally.count(Row::Loss, &mut met, &states, &steps, running);
        }
        assert_eq!(tally.cells.get(Row::Loss, StepState::Start), 1);
        let probed = tally
            .timers
            .get(TimerKind::Probe, Row::Loss, StepState::Start);
        assert_eq!(probed, 1);
        let installs = [((1, 0), StepState::Prepare)];
        let deadline = RunningTimers::of(crate::world::Host::Coordinator, TimerKind::Deadline);
        tally.count(Row::Loss, &mut met, &installs, &steps, &deadline);
        let (timer, state) = (TimerKind::Deadline, StepState::Prepare);
        assert_eq!(tally.timers.get(timer, Row::Loss, state), 0);
        assert_eq!(tally.cells.get(Row::Loss, state), 1);
    }
}
