//! Mutation testing: builds many small defects into the code at once, each behind a switch, and says which of them the
//! unit tests notice. See `docs/internals/mutation.md`.

#![allow(
    clippy::disallowed_methods,
    reason = "it runs processes against the clock, in no world but the system's"
)]

mod areas;
mod compile;
mod mutate;
mod table;
mod tree;
mod unit_tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;

use areas::{AREAS, area_of, package_folder};
use mutate::Mutant;
use unit_tests::{Binary, Test, Verdict, each};

#[derive(Parser)]
#[command(about = "Says which small defects the unit tests notice")]
struct Args {
    /// Source files to look at, from the repository's root; without any, all of the areas
    files: Vec<String>,
    /// Look at the files that differ from this commit
    #[arg(long, value_name = "COMMIT", conflicts_with = "files")]
    changed: Option<String>,
    /// Look at this area alone; may be given several times
    #[arg(long)]
    area: Vec<String>,
    /// Judge at most this many mutants, drawn by a hash of their names
    #[arg(long)]
    sample: Option<usize>,
    /// Begin with no further mutant after this many seconds of judging
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 300)]
    bound: u64,
    /// The manual with the committed table; a survivor that it gives no reason for is a failure
    #[arg(long, default_value = "docs/internals/mutation.md")]
    manual: PathBuf,
    /// Write the tables into the manual, and keep its reasons
    #[arg(long)]
    table: bool,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let root = std::env::current_dir()?;
    let files = files(&args)?;
    if files.is_empty() {
        println!("no file of an area is concerned");
        return Ok(ExitCode::SUCCESS);
    }
    let packages: BTreeSet<&str> = files
        .iter()
        .filter_map(|f| Some(area_of(f)?.package))
        .collect();
    let mut folders = BTreeMap::new();
    for file in &files {
        if let (Some(area), Some(folder)) = (area_of(file), package_folder(file)) {
            folders.insert(area.package, folder.to_owned());
        }
    }
    let begun = Instant::now();
    let tree = tree::Tree::new(&root)?;
    let compiled = compile::compile(&tree, &files, &packages)?;
    eprintln!("compiled in {:?}", begun.elapsed());

    let begun = Instant::now();
    let scratch = root.join("target/mutation");
    let mut binaries: BTreeMap<&str, (Binary, Vec<Test>)> = BTreeMap::new();
    for package in &packages {
        let path = compiled.binaries.get(*package);
        let path = path
            .with_context(|| format!("{package} has no unit tests"))?
            .clone();
        let folder = tree.copy.join(&folders[package]);
        let binary = Binary { path, folder };
        let tests = binary.survey(&scratch)?;
        eprintln!("{package}: {} tests pass", tests.len());
        binaries.insert(package, (binary, tests));
    }
    eprintln!("surveyed in {:?}", begun.elapsed());

    let mut drawn: Vec<&Mutant> = compiled.mutants.iter().collect();
    drawn.sort_by_key(|m| (hash(&m.key), m.number));
    drawn.truncate(args.sample.unwrap_or(usize::MAX));
    let end = Instant::now() + Duration::from_secs(args.bound);
    let verdicts = each(&drawn, |_, mutant| {
        if Instant::now() > end {
            return Ok(None);
        }
        let package = area_of(&mutant.file)
            .context("a mutant has an area")?
            .package;
        let (binary, tests) = &binaries[package];
        binary.judge(tests, mutant.number).map(Some)
    })?;
    let judged: Vec<(&Mutant, Verdict)> = drawn
        .iter()
        .zip(verdicts)
        .filter_map(|(m, v)| Some((*m, v?)))
        .collect();
    let (found, refused) = (compiled.mutants.len(), compiled.refused);
    let reasons = table::reasons(&args.manual)?;
    table::print(&judged, &reasons);
    println!(
        "\n{} of {found} mutants judged; {refused} more do not compile",
        judged.len()
    );
    if args.table {
        table::write(&args.manual, &judged, &compiled.mutants)?;
        return Ok(ExitCode::SUCCESS);
    }
    let unexplained: Vec<&Mutant> = judged
        .iter()
        .filter(|(_, v)| *v == Verdict::Survived)
        .map(|(m, _)| *m)
        .filter(|m| reasons.get(&m.key).is_none_or(|r| table::is_open(r)))
        .collect();
    for mutant in &unexplained {
        println!(
            "survives, and has no reason: {}:{}: {}",
            mutant.file, mutant.line, mutant.key
        );
    }
    Ok(match unexplained.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The files whose mutants are asked for.
fn files(args: &Args) -> Result<Vec<String>> {
    let all = areas::files(&std::env::current_dir()?)?;
    for area in &args.area {
        let known = AREAS.iter().any(|a| a.name == area);
        let names: Vec<&str> = AREAS.iter().map(|a| a.name).collect();
        ensure!(known, "no area {area}; there are {}", names.join(", "));
    }
    let wanted: Option<Vec<String>> = match &args.changed {
        Some(commit) => {
            let mut names = vec![];
            for args in [
                &["diff", "--name-only", commit, "--"][..],
                &["ls-files", "-o", "--exclude-standard"],
            ] {
                let told = Command::new("git").args(args).output()?;
                ensure!(told.status.success(), "git does not know {commit}");
                let told = String::from_utf8(told.stdout)?;
                names.extend(told.lines().map(str::to_owned));
            }
            Some(names)
        }
        None if args.files.is_empty() => None,
        None => Some(args.files.clone()),
    };
    if let Some(stranger) = args.files.iter().find(|f| !all.contains(f)) {
        bail!("{stranger} is no file of an area");
    }
    let is_wanted = |file: &String| {
        let listed = wanted.as_ref().is_none_or(|w| w.contains(file));
        let area = area_of(file).map(|a| a.name.to_owned());
        listed && (args.area.is_empty() || area.is_some_and(|a| args.area.contains(&a)))
    };
    Ok(all.into_iter().filter(is_wanted).collect())
}

/// An order in which mutants of one file are far from each other, the same in each run.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}
