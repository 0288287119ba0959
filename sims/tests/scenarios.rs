//! A seed determines a whole scenario and everything that results from it. Scenarios that once broke a promise are kept in
//! `tests/scenarios`.

use std::path::Path;
use std::process::Command;

use convoke_sims::run::{Report, run};
use convoke_sims::scenario::Scenario;

/// Returns the reports of the seeds from `from` up to, but not including, `to`, made by another process.
fn elsewhere(from: u64, to: u64) -> Vec<Report> {
    let output = Command::new(env!("CARGO_BIN_EXE_convoke-sims"))
        .args(["batch", &from.to_string(), &to.to_string()])
        .arg(r#"{"Seeds":"Plain"}"#)
        .output()
        .expect("started");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("JSON");
    let reports = text
        .lines()
        .map(|l| serde_json::from_str(l).expect("a report"));
    reports.collect()
}

#[test]
fn a_seed_gives_one_report_in_one_process_and_in_another() {
    let (from, to) = (2, 4);
    let here = || -> Vec<Report> {
        let scenarios = (from..to).map(Scenario::draw);
        scenarios.map(|s| run(&s, None)).collect()
    };
    let first = here();
    assert!(first.iter().all(|r| r.violations.is_empty()), "{first:?}");
    assert_eq!(here(), first, "in one process");
    assert_eq!(elsewhere(from, to), first, "in two processes");
    assert_ne!(first[0].hash, first[1].hash);
}

#[test]
fn scenarios_that_broke_a_promise_break_none() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a file");
        let scenario: Scenario = serde_json::from_str(&text).expect("a scenario");
        let report = run(&scenario, None);
        let steps: u64 = report.steps.values().sum();
        assert!(
            report.violations.is_empty() && steps > 0,
            "{}: {report:?}",
            path.display()
        );
        count += 1;
    }
    assert!(count >= 4, "{count} scenarios");
}
