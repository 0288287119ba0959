//! Compiles the copy with all of its mutants: those that do not compile are taken out, until the rest does.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::mutate::Mutant;
use crate::tree::Tree;

/// Most times that the copy is compiled anew without mutants that do not compile.
const ROUNDS: usize = 12;

/// The result of a compilation: the mutants, and the binary of the unit tests of each package.
pub struct Compiled {
    pub mutants: Vec<Mutant>,
    pub binaries: BTreeMap<String, PathBuf>,
    /// How many mutants did not compile.
    pub refused: usize,
}

/// An error of the compiler: the lines that it points at, those of them that are the place of the error, and its text.
struct Refusal {
    lines: Vec<(String, usize)>,
    primary: Vec<(String, usize)>,
    text: String,
}

pub fn compile(tree: &Tree, files: &[String], packages: &BTreeSet<&str>) -> Result<Compiled> {
    // A mutant that did not compile before does not compile now, unless its name changed.
    let known = tree.copy.join("../refused");
    let kept = std::fs::read_to_string(&known).unwrap_or_default();
    let mut skipped: BTreeSet<String> = kept.lines().map(str::to_owned).collect();
    for _ in 0..ROUNDS {
        let mutants = tree.write(files, &skipped)?;
        let (binaries, refusals) = build(tree, packages)?;
        if refusals.is_empty() {
            let of_files = |key: &&String| files.iter().any(|f| key.starts_with(f.as_str()));
            let refused = skipped.iter().filter(of_files).count();
            // Only now: where the repository itself does not compile, mutants were taken out that are right.
            let lines: Vec<&str> = skipped.iter().map(String::as_str).collect();
            std::fs::write(&known, lines.join("\n"))?;
            return Ok(Compiled {
                mutants,
                binaries,
                refused,
            });
        }
        let before = skipped.len();
        for refusal in &refusals {
            let on = |lines: &[(String, usize)]| {
                let guilty = |m: &&Mutant| lines.contains(&(m.file.clone(), m.line));
                let keys = mutants.iter().filter(guilty).map(|m| m.key.clone());
                keys.collect::<Vec<_>>()
            };
            let guilty = match on(&refusal.primary) {
                none if none.is_empty() => on(&refusal.lines),
                guilty => guilty,
            };
            skipped.extend(guilty);
        }
        if skipped.len() == before {
            bail!("the copy does not compile:\n{}", refusals[0].text);
        }
        eprintln!("{} mutants do not compile", skipped.len());
    }
    bail!("after {ROUNDS} rounds some mutants still do not compile")
}

fn build(
    tree: &Tree,
    packages: &BTreeSet<&str>,
) -> Result<(BTreeMap<String, PathBuf>, Vec<Refusal>)> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--lib", "--no-run", "--quiet"]);
    cargo.args(["--message-format", "json"]);
    // Otherwise the crates of the copy and of the repository would take each other's place.
    cargo.args([
        "--config",
        "profile.dev.package.convoke-common.codegen-units=15",
    ]);
    cargo.arg("--target-dir").arg(tree.root.join("target"));
    for package in packages {
        cargo.args(["-p", package]);
    }
    cargo.envs([
        ("CARGO_INCREMENTAL", "0"),
        ("CARGO_PROFILE_DEV_DEBUG", "false"),
        ("CARGO_PROFILE_DEV_STRIP", "debuginfo"),
    ]);
    cargo.current_dir(&tree.copy).stdout(Stdio::piped());
    let mut child = cargo.spawn().context("cargo cannot be started")?;
    let out = child.stdout.take().context("cargo has an output")?;
    let (mut binaries, mut refusals) = (BTreeMap::new(), vec![]);
    for line in BufReader::new(out).lines() {
        let Ok(said) = serde_json::from_str::<Value>(&line?) else {
            continue;
        };
        let test = said["profile"]["test"].as_bool() == Some(true);
        if let Some(executable) = said["executable"].as_str().filter(|_| test) {
            let name = said["target"]["name"].as_str().unwrap_or_default();
            binaries.insert(name.replace('_', "-"), executable.into());
        }
        let message = &said["message"];
        if message["level"] == "error" {
            let text = message["rendered"].as_str().unwrap_or_default().to_owned();
            let lines = lines_of(message, false);
            let primary = lines_of(message, true);
            // The last error only counts the others.
            if !lines.is_empty() {
                refusals.push(Refusal {
                    lines,
                    primary,
                    text,
                });
            }
        }
    }
    let ended = child.wait()?;
    if !ended.success() && refusals.is_empty() {
        bail!("cargo failed");
    }
    Ok((binaries, refusals))
}

/// The lines that an error points at; with `primary`, those alone that are its place.
fn lines_of(message: &Value, primary: bool) -> Vec<(String, usize)> {
    let mut lines = vec![];
    let spans = message["spans"].as_array().into_iter().flatten();
    let mut spans: Vec<&Value> = spans
        .filter(|span| !primary || span["is_primary"] == true)
        .collect();
    while let Some(span) = spans.pop() {
        let file = span["file_name"].as_str().unwrap_or_default();
        let number = |key: &str| span[key].as_u64().unwrap_or(0) as usize;
        let all = number("line_start")..=number("line_end");
        lines.extend(all.map(|line| (file.to_owned(), line)));
        let outer = &span["expansion"]["span"];
        spans.extend(outer.is_object().then_some(outer));
    }
    lines
}
