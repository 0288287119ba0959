//! Hunts for mutants: runs the simulator with a defect built in, and without it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output};

use convoke_sims::explore::Source;
use convoke_sims::invariants::Violation;
use convoke_sims::run::Report;
use convoke_sims::scenario::{Scenario, ScenarioKind};

/// The number of seeds to try for each mutant.
const TRIES: usize = 60;

/// The scenarios that a mutant is looked for in.
#[derive(Clone, Copy)]
pub enum Shows {
    /// The scenarios of seeds for which this function is true.
    Seeds(fn(&Scenario) -> bool),
    /// A scenario of its own, with a name, since few seeds draw one like it.
    In(&'static str, fn() -> Scenario),
    /// A unit test, by its file and name, since simulation does not come where the defect is. A test
    /// beside it proves that it fails with the mutant.
    UnitTest(&'static str, &'static str),
}

/// A defect, what it does, the checkers that should catch it, and the scenarios in which it shows.
pub struct Mutant {
    pub name: &'static str,
    pub defect: &'static str,
    pub caught_by: &'static [&'static str],
    pub shows: Shows,
}

pub const fn mutant(
    name: &'static str,
    defect: &'static str,
    caught_by: &'static [&'static str],
    shows: fn(&Scenario) -> bool,
) -> Mutant {
    mutant_in(name, defect, caught_by, Shows::Seeds(shows))
}

pub const fn mutant_in(
    name: &'static str,
    defect: &'static str,
    caught_by: &'static [&'static str],
    shows: Shows,
) -> Mutant {
    Mutant {
        name,
        defect,
        caught_by,
        shows,
    }
}

/// The output of the simulator, with a mutant or without one.
fn output(mutant: Option<&str>, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_convoke-sims"));
    command.args(args);
    command.env_remove("CONVOKE_MUTANT");
    command.envs(mutant.map(|name| ("CONVOKE_MUTANT", name)));
    command.output().expect("started")
}

/// The simulator's report of one seed.
fn report(mutant: Option<&str>, seed: u64) -> Report {
    let (from, to) = (seed.to_string(), (seed + 1).to_string());
    let source = serde_json::to_string(&Source::Seeds(ScenarioKind::Plain)).expect("JSON");
    let output = output(mutant, &["batch", &from, &to, &source]);
    assert!(
        output.status.success(),
        "{mutant:?}, seed {seed}: {output:?}"
    );
    serde_json::from_slice(&output.stdout).expect("a report")
}

/// A file with a scenario that the simulator can read; it is removed when this is dropped.
pub struct Written(PathBuf);

impl Written {
    pub fn new(name: &str, scenario: &str) -> Written {
        let name = format!("convoke-{name}-{}.json", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, scenario).expect("written");
        Written(path)
    }

    /// The arguments that make the simulator replay this scenario.
    pub fn replay(&self) -> [&str; 3] {
        ["replay", "--scenario", self.0.to_str().expect("text")]
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The simulator's report of a scenario. The simulator prints it after the scenario itself.
fn report_of(mutant: Option<&str>, written: &Written) -> Report {
    let output = output(mutant, &written.replay());
    let documents = serde_json::Deserializer::from_slice(&output.stdout);
    let mut documents = documents.into_iter::<serde_json::Value>();
    let report = documents.nth(1).expect("a report").expect("JSON");
    serde_json::from_value(report).expect("a report")
}

impl Mutant {
    /// Tries seeds until one kills the mutant, or tries the mutant's own scenario. Returns a line of the table, or why
    /// the mutant was not killed.
    pub fn hunt(&self) -> Result<String, String> {
        let shows = match self.shows {
            Shows::Seeds(shows) => shows,
            Shows::In(name, scenario) => {
                let scenario = serde_json::to_string(&scenario()).expect("JSON");
                let written = Written::new(self.name, &scenario);
                let runs = |mutant: Option<&str>| report_of(mutant, &written);
                let caught = self.catches(&runs(Some(self.name)));
                return self.killed(name, 1, &caught?, &runs(None));
            }
            Shows::UnitTest(_, test) => {
                return Ok(format!(
                    "| {} | {} | unit test | `{test}` | |",
                    self.name, self.defect
                ));
            }
        };
        let seeds = (0..).filter(|seed| shows(&Scenario::draw(*seed)));
        let mut others = BTreeSet::new();
        for (tried, seed) in seeds.take(TRIES).enumerate() {
            match self.catches(&report(Some(self.name), seed)) {
                Ok(caught) => {
                    let (name, without) = (seed.to_string(), report(None, seed));
                    return self.killed(&name, tried + 1, &caught, &without);
                }
                Err(other) => others.insert(other),
            };
        }
        Err(others.into_iter().collect::<Vec<_>>().join("\n"))
    }

    /// Returns the checker that caught the mutant, which has to be one of those that should.
    fn catches(&self, report: &Report) -> Result<String, String> {
        let meant = |v: &&Violation| self.caught_by.contains(&v.invariant.as_str());
        let others = || {
            let others = report.violations.iter().map(|v| v.invariant.as_str());
            let others: BTreeSet<&str> = others.collect();
            format!("{} lives; others catch it: {others:?}", self.name)
        };
        let caught = report.violations.iter().find(meant);
        caught.map(|v| v.invariant.clone()).ok_or_else(others)
    }

    /// Returns the line of the table for a mutant that this scenario killed, provided that the scenario passes without
    /// the mutant.
    fn killed(
        &self,
        scenario: &str,
        tried: usize,
        invariant: &str,
        without: &Report,
    ) -> Result<String, String> {
        match without.violations.is_empty() {
            true => Ok(format!(
                "| {} | {} | {invariant} | {scenario} | {tried} |",
                self.name, self.defect
            )),
            false => Err(format!(
                "{}: {scenario} fails without it as well: {:?}",
                self.name, without.violations
            )),
        }
    }
}

/// The exit code and the output of `convoke-sims` when it runs with a mutant.
pub fn simulator(mutant: &str, args: &[&str]) -> (Option<i32>, String) {
    let output = output(Some(mutant), args);
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}
