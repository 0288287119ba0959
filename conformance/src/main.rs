//! Runs ONNX's own node test cases through the whole product, on a cluster of two workers.
//!
//! ```text
//! case (files) -> import -> alone: one worker ---------------------> compare -> report
//!                      \`-> apart: operands from another worker --> same bits /
//! ```
//!
//! Invariants
//! 1. Every case counts as right, wrong or not registered. A case is not registered where it names an op, a dtype or a
//!    kind of value that is not supported; every other failure makes it wrong.
//! 2. A case that has an operand, and at least one node that runs in steps, runs both alone and apart. The report says
//!    how many cases do.

mod case;
mod compare;
mod feed;
mod product;
mod report;
mod wire;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use convoke::{Cluster, DeviceId};
use convoke_models::{ImportedModel, ModelError};

use case::{Case, Named};
use report::{Report, Verdict};

/// Runs ONNX node test cases.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The folder of the cases, as written by conformance/generate_cases.py.
    #[arg(long, env = "CONVOKE_CONFORMANCE_CASES")]
    cases: PathBuf,
    /// Only cases whose ops, dtypes and kinds of value are all supported.
    #[arg(long)]
    registered: bool,
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// The device that runs the cases.
    #[arg(long, default_value = "cpu")]
    device: DeviceId,
    /// Also say why cases are not registered.
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let ran = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|e| format!("cannot start: {e}"))
        .and_then(|runtime| runtime.block_on(run(&args)));
    match ran {
        Ok(report) => {
            println!("{report}");
            match report.totals() {
                (_, 0, _) => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            }
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Result<Report, String> {
    let cases = case::find(&args.cases)?;
    let cluster = product::cluster(args.device.clone())
        .await
        .map_err(|e| e.to_string())?;
    let cache = std::env::temp_dir().join(format!("convoke-conformance-{}", std::process::id()));
    let mut report = Report::default();
    for case in cases.iter().filter(|c| c.name.contains(&args.filter)) {
        let verdict = judge(&cluster, case, &cache).await;
        if !(args.registered && matches!(verdict, Verdict::NotRegistered(_))) {
            report.add(&case.op, &case.name, verdict, args.verbose);
        }
    }
    cluster.shutdown().await;
    // A failure to remove the cache folder is ignored, since nothing uses it afterwards.
    let _ = std::fs::remove_dir_all(&cache);
    Ok(report)
}

async fn judge(cluster: &Cluster, case: &Case, cache: &Path) -> Verdict {
    if !case.tensors_only() {
        return Verdict::NotRegistered(
            "an input or output is no tensor of a supported dtype".into(),
        );
    }
    let model = match product::import(&case.model, cache) {
        Ok(model) => model,
        Err(e @ (ModelError::Unsupported { .. } | ModelError::Opset { .. })) => {
            return Verdict::NotRegistered(format!("{e} (its ops: {})", case.ops.join(", ")));
        }
        Err(e) => return Verdict::Wrong(format!("import: {e}")),
    };
    let sets = match case.sets() {
        Ok(sets) => sets,
        Err(e) => return Verdict::Wrong(format!("test data: {e}")),
    };
    match run_both(cluster, &model, sets).await {
        Ok(apart) => Verdict::Right { apart },
        Err(why) => Verdict::Wrong(why.replace('\n', " ")),
    }
}

/// Runs the model alone and, where possible, apart. Returns whether it ran apart, or what is wrong with its results.
async fn run_both(
    cluster: &Cluster,
    model: &ImportedModel,
    sets: Vec<(Named, Named)>,
) -> Result<bool, String> {
    let (inputs, expected): (Vec<Named>, Vec<Named>) = sets.into_iter().unzip();
    let alone = product::alone(cluster, model, &inputs).await;
    let alone = alone.map_err(|e| format!("alone: {e}"))?;
    for (got, want) in alone.outputs.iter().zip(&expected) {
        if let Some(difference) = first_difference(&got.0, want) {
            return Err(difference);
        }
    }
    if model.function.params.is_empty() || alone.nodes.iter().sum::<u32>() == 0 {
        return Ok(false);
    }
    let apart = product::apart(cluster, model, &inputs).await;
    let apart = apart.map_err(|e| format!("apart: {e}"))?;
    if apart.nodes.len() != 2 || apart.nodes.contains(&0) || apart.cuts == 0 {
        let (nodes, cuts) = (&apart.nodes, apart.cuts);
        return Err(format!("not split: nodes {nodes:?}, {cuts} cut edges"));
    }
    match apart.outputs == alone.outputs {
        true => Ok(true),
        false => Err("apart: other bits than alone".into()),
    }
}

fn first_difference(got: &Named, expected: &Named) -> Option<String> {
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
            compare::difference(got, want).map(|why| format!("output '{name}' {why}"))
        })
}
