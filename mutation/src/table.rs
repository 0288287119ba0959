//! The committed table: how many mutants of each area die, and each that does not, with the reason.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use crate::areas::{AREAS, area_of};
use crate::mutate::Mutant;
use crate::unit_tests::Verdict;

const BEGIN: &str = "<!-- table of mutants: .ci/mutation --table -->";
const END: &str = "<!-- end of the table of mutants -->";

/// How many mutants of an area were judged, and became what.
#[derive(Default)]
struct Counts {
    killed: usize,
    survived: usize,
    unreached: usize,
}

/// The mutants that were judged, in tables by area and by survivor; `reasons` are those that are known, and `others` survivors of
/// earlier runs.
fn tables(
    judged: &[(&Mutant, Verdict)],
    reasons: &BTreeMap<String, String>,
    others: &[&str],
) -> String {
    let mut areas: BTreeMap<&str, Counts> = BTreeMap::new();
    for (mutant, verdict) in judged {
        let area = area_of(&mutant.file).map_or("none", |a| a.name);
        let counts = areas.entry(area).or_default();
        match verdict {
            Verdict::Killed => counts.killed += 1,
            Verdict::Survived => counts.survived += 1,
            Verdict::Unreached => counts.unreached += 1,
        }
    }
    let mut text = String::from(
        "| area | mutants | killed | survived | no unit test reaches it | of those reached, killed |\n|---|---:|---:|---:|---:|---:|\n",
    );
    let mut sum = Counts::default();
    let row = |name: &str, c: &Counts| {
        let (reached, all) = (c.killed + c.survived, c.killed + c.survived + c.unreached);
        let part = 100.0 * c.killed as f64 / reached.max(1) as f64;
        format!(
            "| {name} | {all} | {} | {} | {} | {part:.0} % |\n",
            c.killed, c.survived, c.unreached
        )
    };
    for area in AREAS.iter().map(|a| a.name) {
        if let Some(counts) = areas.get(area) {
            text += &row(area, counts);
            sum.killed += counts.killed;
            sum.survived += counts.survived;
            sum.unreached += counts.unreached;
        }
    }
    text += &row("**all**", &sum);
    text += "\n| survivor | reason |\n|---|---|\n";
    let mut survivors: Vec<&str> = judged
        .iter()
        .filter(|(_, v)| *v == Verdict::Survived)
        .map(|(m, _)| m.key.as_str())
        .chain(others.iter().copied())
        .collect();
    survivors.sort_unstable();
    for key in survivors {
        let reason = reasons.get(key).map_or("", String::as_str);
        let _ = writeln!(text, "| {key} | {reason} |");
    }
    text
}

/// Whether the first cell of a row names a mutant, and not an area.
fn is_key(cell: &str) -> bool {
    cell.split_once(' ')
        .is_some_and(|(file, _)| file.ends_with(".rs"))
}

/// The reasons that a table gives, by mutant.
pub fn reasons(file: &Path) -> Result<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let table = text.split_once(BEGIN).map_or("", |(_, rest)| rest);
    let rows = table.lines().filter_map(|line| {
        let row = line.strip_prefix("| ")?.strip_suffix(" |")?;
        let (key, reason) = row.rsplit_once(" | ")?;
        Some((key.to_owned(), reason.to_owned()))
    });
    Ok(rows.collect())
}

/// Whether a reason is none yet.
pub fn is_open(reason: &str) -> bool {
    reason.is_empty() || reason.starts_with("Open:")
}

/// Writes the tables into a manual, in place of the former ones. Their reasons are kept, and so are their survivors that were not
/// judged, unless they are no mutants of the `compiled` files any more.
pub fn write(file: &Path, judged: &[(&Mutant, Verdict)], compiled: &[Mutant]) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let (head, rest) = text.split_once(BEGIN).context("the manual has no table")?;
    let (_, tail) = rest.split_once(END).context("the table does not end")?;
    let reasons = reasons(file)?;
    let was_judged = |key: &str| judged.iter().any(|(m, _)| m.key == key);
    let is_gone = |key: &str| {
        let of_file = |m: &Mutant| key.starts_with(&format!("{} ", m.file));
        compiled.iter().any(of_file) && !compiled.iter().any(|m| m.key == key)
    };
    let keys = reasons.keys().map(String::as_str);
    let others: Vec<&str> = keys
        .filter(|key| is_key(key) && !was_judged(key) && !is_gone(key))
        .collect();
    let tables = tables(judged, &reasons, &others);
    std::fs::write(file, format!("{head}{BEGIN}\n\n{tables}\n{END}{tail}"))?;
    Ok(())
}

pub fn print(judged: &[(&Mutant, Verdict)], reasons: &BTreeMap<String, String>) {
    print!("{}", tables(judged, reasons, &[]));
}
