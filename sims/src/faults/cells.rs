//! The table fault × step state: which faults met steps in which states.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A kind of fault, as a row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Row {
    Loss,
    Delay,
    Reorder,
    Duplicate,
    Corrupt,
    Cut,
    OneWay,
    CrashWorker,
    CrashCoordinator,
    CrashClient,
    Pause,
    Slow,
    OutOfMemory,
    Refuse,
    KernelError,
    Panic,
    Hang,
    Clock,
    Forge,
    DiskFull,
    DiskFails,
    DiskSlow,
    DiskFlips,
    Revoke,
    Days,
    Hoard,
    Flood,
    Drain,
    Forget,
    Deadly,
    Expire,
}

impl Row {
    /// Every row, in order.
    pub const ALL: [Row; 31] = [
        Row::Loss,
        Row::Delay,
        Row::Reorder,
        Row::Duplicate,
        Row::Corrupt,
        Row::Cut,
        Row::OneWay,
        Row::CrashWorker,
        Row::CrashCoordinator,
        Row::CrashClient,
        Row::Pause,
        Row::Slow,
        Row::OutOfMemory,
        Row::Refuse,
        Row::KernelError,
        Row::Panic,
        Row::Hang,
        Row::Clock,
        Row::Forge,
        Row::DiskFull,
        Row::DiskFails,
        Row::DiskSlow,
        Row::DiskFlips,
        Row::Revoke,
        Row::Days,
        Row::Hoard,
        Row::Flood,
        Row::Drain,
        Row::Forget,
        Row::Deadly,
        Row::Expire,
    ];

    /// The name of the row in the table.
    pub fn name(self) -> &'static str {
        match self {
            Row::Loss => "packets lost",
            Row::Delay => "packets delayed",
            Row::Reorder => "packets reordered",
            Row::Duplicate => "packets duplicated",
            Row::Corrupt => "packets corrupted",
            Row::Cut => "cut off",
            Row::OneWay => "cut off one way",
            Row::CrashWorker => "worker crashes",
            Row::CrashCoordinator => "coordinator crashes",
            Row::CrashClient => "client crashes",
            Row::Pause => "process stopped",
            Row::Slow => "slow worker",
            Row::OutOfMemory => "out of memory",
            Row::Refuse => "compute queue full",
            Row::KernelError => "kernel error",
            Row::Panic => "kernel panics",
            Row::Hang => "kernel hangs",
            Row::Clock => "calendar jumps",
            Row::Forge => "frames forged",
            Row::DiskFull => "disk full",
            Row::DiskFails => "disk fails",
            Row::DiskSlow => "disk slow",
            Row::DiskFlips => "disk flips bits",
            Row::Revoke => "token revoked",
            Row::Days => "weeks pass",
            Row::Hoard => "memory hoarded",
            Row::Flood => "compute flooded",
            Row::Drain => "worker drained",
            Row::Forget => "worker forgotten",
            Row::Deadly => "node kills process",
            Row::Expire => "token expires",
        }
    }
}

/// The state of a step, or of the install before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StepState {
    /// A worker installs its part of the lease.
    Prepare,
    /// The driver has begun the step, but a participant has not started it yet.
    Start,
    /// A participant has started the step and waits for operands or for its kernels.
    Waiting,
    /// A tensor of the step is under way and not yet in its slot.
    Filling,
    /// A participant has failed the step, but its caller does not know yet.
    Abort,
    /// The caller has the outcome, but not everybody has quiesced the step.
    Retire,
}

impl StepState {
    /// Every state, in order.
    pub const ALL: [StepState; 6] = [
        StepState::Prepare,
        StepState::Start,
        StepState::Waiting,
        StepState::Filling,
        StepState::Abort,
        StepState::Retire,
    ];

    /// The name of the column in the table.
    pub fn name(self) -> &'static str {
        match self {
            StepState::Prepare => "prepare",
            StepState::Start => "start",
            StepState::Waiting => "waiting",
            StepState::Filling => "filling",
            StepState::Abort => "abort",
            StepState::Retire => "retire",
        }
    }
}

/// How often each fault met a step in each state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cells(BTreeMap<Row, BTreeMap<StepState, u64>>);

impl Cells {
    /// Counts one hit.
    pub fn hit(&mut self, row: Row, state: StepState) {
        *self.0.entry(row).or_default().entry(state).or_default() += 1;
    }

    /// How often a fault met a step in this state.
    pub fn get(&self, row: Row, state: StepState) -> u64 {
        let row = self.0.get(&row);
        row.and_then(|r| r.get(&state)).copied().unwrap_or(0)
    }

    /// Adds the hits of another run.
    pub fn add(&mut self, other: &Cells) {
        for (row, states) in &other.0 {
            for (state, n) in states {
                *self.0.entry(*row).or_default().entry(*state).or_default() += n;
            }
        }
    }

    /// The faults that met no step at all.
    pub fn empty_rows(&self) -> Vec<Row> {
        let empty = |r: &Row| StepState::ALL.iter().all(|s| self.get(*r, *s) == 0);
        Row::ALL.into_iter().filter(empty).collect()
    }

    /// The combinations of fault and step state that were never met.
    pub fn empty(&self) -> Vec<(Row, StepState)> {
        let all = Row::ALL
            .into_iter()
            .flat_map(|r| StepState::ALL.map(|s| (r, s)));
        all.filter(|(r, s)| self.get(*r, *s) == 0).collect()
    }
}

/// Prints the table as Markdown.
impl std::fmt::Display for Cells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "| {:<20} |", "fault")?;
        StepState::ALL
            .iter()
            .try_for_each(|s| write!(f, " {:>8} |", s.name()))?;
        write!(f, "\n|{}|", "-".repeat(22))?;
        StepState::ALL
            .iter()
            .try_for_each(|_| write!(f, "{}:|", "-".repeat(9)))?;
        for row in Row::ALL {
            write!(f, "\n| {:<20} |", row.name())?;
            StepState::ALL
                .iter()
                .try_for_each(|s| write!(f, " {:>8} |", self.get(row, *s)))?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_tells_what_is_missing() {
        let mut cells = Cells::default();
        cells.hit(Row::Hang, StepState::Abort);
        let mut sum = cells.clone();
        sum.add(&cells);
        assert_eq!(sum.get(Row::Hang, StepState::Abort), 2);
        assert_eq!(sum.empty().len(), 31 * 6 - 1);
        assert_eq!(sum.empty_rows().len(), 31 - 1);
        assert!(sum.to_string().contains(
            "| kernel hangs         |        0 |        0 |        0 |        0 |        2 |"
        ));
    }
}
