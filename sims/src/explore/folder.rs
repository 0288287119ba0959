//! A folder for the failures of an exploration: a scenario for each, and what it violates.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::{Failure, Source};

/// The folder, made where it is missing.
#[derive(Debug)]
pub struct FailureFolder(PathBuf);

impl FailureFolder {
    /// Opens the folder.
    pub fn open(path: &Path) -> anyhow::Result<FailureFolder> {
        std::fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(FailureFolder(path.to_owned()))
    }

    fn file(&self, failure: &Failure, kind: &str) -> PathBuf {
        let what = match failure.source {
            Source::Seeds(kind) => format!("{}-seed", kind.name()),
            Source::Aimed(cell) => {
                let cell = format!("aimed-{}", cell.name());
                cell.replace(" × ", "-").replace(' ', "-")
            }
        };
        self.0.join(format!("{what}-{}.{kind}", failure.seed))
    }

    /// Writes a failure: its scenario, the shrunken one once there is one, and a text with the commands that repeat it. It
    /// replaces what was written of the same run before.
    pub fn write(&self, failure: &Failure) -> anyhow::Result<()> {
        let shrunk = failure.shrunk.clone();
        let scenario = shrunk.unwrap_or_else(|| failure.scenario());
        let path = self.file(failure, "json");
        std::fs::write(&path, serde_json::to_string(&scenario)?)?;
        let text = format!(
            "{failure}  the scenario: cargo run --release -p convoke-sims -- replay --scenario {}\n",
            path.display()
        );
        Ok(std::fs::write(self.file(failure, "txt"), text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoke_common::detection::timer::TimerKind;

    use crate::explore::Cell;
    use crate::faults::{Row, StepState};
    use crate::invariants::Violation;
    use crate::scenario::{Scenario, ScenarioKind};

    #[test]
    fn a_failure_can_be_repeated_from_its_files() {
        let path = std::env::temp_dir().join(format!("convoke-failures-{}", std::process::id()));
        let folder = FailureFolder::open(&path).unwrap();
        let mut failure = Failure {
            seed: 7,
            source: Source::Seeds(ScenarioKind::Plain),
            violations: vec![Violation {
                invariant: "results are right".into(),
                at: 12,
                what: "one is not".into(),
            }],
            shrunk: None,
        };
        let read = || {
            let scenario = std::fs::read_to_string(path.join("plain-seed-7.json")).unwrap();
            let text = std::fs::read_to_string(path.join("plain-seed-7.txt")).unwrap();
            (serde_json::from_str::<Scenario>(&scenario).unwrap(), text)
        };
        folder.write(&failure).unwrap();
        let (scenario, text) = read();
        assert_eq!(scenario, Scenario::draw(7));
        assert!(text.contains("one is not") && text.contains("replay --kind plain --seed 7"));
        let mut smaller = Scenario::draw(7);
        smaller.faults.clear();
        failure.shrunk = Some(smaller.clone());
        folder.write(&failure).unwrap();
        let (scenario, text) = read();
        assert_eq!(scenario, smaller);
        assert!(text.contains("seed-7.json"));
        // Scenarios that aim at different cells have the same numbers.
        failure.shrunk = None;
        let cells = [
            (StepState::Abort, None),
            (StepState::Retire, None),
            (StepState::Retire, Some(TimerKind::Probe)),
        ];
        let cells = cells.map(|(state, timer)| Cell {
            row: Row::CrashWorker,
            state,
            timer,
        });
        for cell in cells {
            failure.source = Source::Aimed(cell);
            folder.write(&failure).unwrap();
        }
        let names = [
            "worker-crashes-abort",
            "worker-crashes-retire",
            "probe-worker-crashes-retire",
        ];
        for (cell, name) in cells.into_iter().zip(names) {
            let file = path.join(format!("aimed-{name}-7.json"));
            let scenario = std::fs::read_to_string(file).unwrap();
            let scenario: Scenario = serde_json::from_str(&scenario).unwrap();
            assert_eq!(scenario, Source::Aimed(cell).scenario(7));
        }
        std::fs::remove_dir_all(path).unwrap();
    }
}
