//! Runs ONNX's own test cases through the whole product, on a cluster of three workers.
//!
//! ```text
//! case (files) -> import -> alone: one worker ------------------------------> compare -> report
//!                      \`-> apart: between two others, over three workers --> same bits /
//! ```
//!
//! Invariants
//! 1. Every case counts as right, wrong or unsupported. A case is unsupported where it names an op, a dtype or a
//!    kind of value that is not supported; every other failure makes it wrong.
//! 2. A case that has an operand, and at least one node that runs in steps, runs both alone and apart. The report says
//!    how many cases do.

mod case;
mod compare;
mod document;
mod feed;
mod product;
mod report;
mod wire;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use convoke::{Cluster, DeviceId};
use convoke_models::{ImportedModel, ModelError};

use case::{Case, NamedTensors};
use report::{Report, Verdict};

/// Runs ONNX test cases.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// A folder of cases, as written by conformance/generate_cases.py; it may be given several times.
    #[arg(long, env = "CONVOKE_CONFORMANCE_CASES", required = true)]
    cases: Vec<PathBuf>,
    /// Run nothing, and print docs/OPERATORS.md instead, from this table of operators (conformance/operators.tsv).
    #[arg(long)]
    document: Option<PathBuf>,
    /// The cases that may be unsupported (conformance/expected_failures.txt); any other unsupported case counts as wrong.
    #[arg(long)]
    expected: Option<PathBuf>,
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Run only every Nth of the cases that the other options leave.
    #[arg(long, value_name = "N", default_value = "1")]
    every: NonZeroUsize,
    /// Leave out this many cases before the first of those that --every chooses.
    #[arg(long, value_name = "I", default_value = "0")]
    from: usize,
    /// The device that runs the cases.
    #[arg(long, default_value = "cpu")]
    device: DeviceId,
    /// Also say why cases are unsupported.
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let cache = std::env::temp_dir().join(format!("convoke-conformance-{}", std::process::id()));
    let ran = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|e| format!("cannot start: {e}"))
        .and_then(|runtime| runtime.block_on(run(&args, &cache)));
    // A failure to remove the cache folder is ignored, since nothing uses it afterwards.
    let _ = std::fs::remove_dir_all(&cache);
    match ran {
        Ok(right) if right => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Prints what was asked for; returns whether no case is wrong.
async fn run(args: &Args, cache: &Path) -> Result<bool, String> {
    let mut cases = Vec::new();
    for folder in &args.cases {
        cases.extend(case::find(folder)?);
    }
    if let Some(operators) = &args.document {
        print!("{}", document::document(operators, &cases, cache)?);
        return Ok(true);
    }
    let report = judged(args, &cases, cache).await?;
    println!("{report}");
    Ok(report.totals().1 == 0)
}

/// Reads the names of the cases that may be unsupported: a line each, with the reason behind a colon.
fn expected_failures(path: &Path) -> Result<BTreeSet<String>, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    let name = |line: &str| match line.split_once(": ") {
        Some((name, reason)) if !reason.is_empty() => Ok(name.to_owned()),
        _ => Err(format!("'{line}' has no reason in {}", path.display())),
    };
    lines.map(name).collect()
}

/// Runs the cases.
async fn judged(args: &Args, cases: &[Case], cache: &Path) -> Result<Report, String> {
    let expected = args
        .expected
        .as_deref()
        .map(expected_failures)
        .transpose()?;
    convoke_cuda::register().map_err(|e| e.to_string())?;
    let cluster = product::cluster(args.device.clone())
        .await
        .map_err(|e| e.to_string())?;
    let mut report = Report::default();
    let named = cases.iter().filter(|c| c.name.contains(&args.filter));
    for case in named.skip(args.from).step_by(args.every.get()) {
        let mut verdict = judge(&cluster, case, cache).await;
        if let Some(listed) = &expected {
            verdict = verdict.beside(listed.contains(&case.name));
        }
        report.add(&case.op, &case.name, verdict, args.verbose);
    }
    cluster.shutdown().await;
    Ok(report)
}

async fn judge(cluster: &Cluster, case: &Case, cache: &Path) -> Verdict {
    if !case.is_supported() {
        return Verdict::Unsupported("an input or output is of no supported kind and dtype".into());
    }
    let held = match case.held() {
        Ok(held) => held,
        Err(e) => return Verdict::Wrong(format!("test data: {e}")),
    };
    let model = match product::import(&case.model, cache, held) {
        Ok(model) => model,
        Err(e @ (ModelError::Unsupported { .. } | ModelError::Opset { .. })) => {
            return Verdict::Unsupported(format!("{e} (its ops: {})", case.ops.join(", ")));
        }
        Err(e) => return Verdict::Wrong(format!("import: {e}")),
    };
    let sets = match case.sets() {
        Ok(sets) => sets,
        Err(e) => return Verdict::Wrong(format!("test data: {e}")),
    };
    let drawn = case.ops.iter().any(|op| RANDOM.contains(&&**op));
    match run_both(cluster, &case.name, &model, sets, drawn).await {
        Ok(apart) => Verdict::Right { apart },
        Err(why) => Verdict::Wrong(why.replace('\n', " ")),
    }
}

/// Ops that draw numbers. Which ones is left to the implementation, so that only their dtype and shape are compared.
const RANDOM: &[&str] = &[
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
];

/// Runs the model alone and, where possible, apart. Returns whether it ran apart, or what is wrong with its results.
async fn run_both(
    cluster: &Cluster,
    case: &str,
    model: &ImportedModel,
    sets: Vec<(NamedTensors, NamedTensors)>,
    drawn: bool,
) -> Result<bool, String> {
    let (inputs, expected): (Vec<NamedTensors>, Vec<NamedTensors>) = sets.into_iter().unzip();
    let alone = product::alone(cluster, model, &inputs).await;
    let alone = alone.map_err(|e| format!("alone: {e}"))?;
    for (got, want) in alone.outputs.iter().zip(&expected) {
        let absolute = compare::absolute(case);
        if let Some(difference) = first_difference(&got.0, want, drawn, absolute) {
            return Err(difference);
        }
    }
    if model.function.params.is_empty() || alone.nodes.iter().sum::<u32>() == 0 {
        return Ok(false);
    }
    let apart = product::apart(cluster, model, &inputs).await;
    let apart = apart.map_err(|e| format!("apart: {e}"))?;
    if apart.nodes.len() != product::APART || apart.nodes.contains(&0) || apart.cuts == 0 {
        let (nodes, cuts) = (&apart.nodes, apart.cuts);
        return Err(format!("not split: nodes {nodes:?}, {cuts} cut edges"));
    }
    match apart.outputs == alone.outputs {
        true => Ok(true),
        false => Err("apart: other bits than alone".into()),
    }
}

fn first_difference(
    got: &NamedTensors,
    expected: &NamedTensors,
    drawn: bool,
    absolute: f64,
) -> Option<String> {
    if got.len() != expected.len() {
        return Some(format!(
            "{} outputs, expected {}",
            got.len(),
            expected.len()
        ));
    }
    got.iter()
        .zip(expected)
        .find_map(|((name, got), (_, want))| {
            let difference = match drawn {
                true => compare::other_type(got, want),
                false => compare::difference(got, want, absolute),
            };
            difference.map(|why| format!("output '{name}' {why}"))
        })
}
