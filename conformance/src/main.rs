//! Runs test cases made by others: ONNX's node cases, through everything from import to kernels.
//!
//! ```text
//! case (files) -> product (import, run) -> compare -> report
//! ```
//!
//! Invariant: a case is right, wrong or not registered, never left out. Not registered is what names an op, a dtype
//! or a kind of value that is not supported; anything else that goes wrong is wrong.

mod case;
mod compare;
mod product;
mod report;
mod wire;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use convoke_models::ModelError;

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
    /// Also say why cases are not registered.
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let cases = match case::find(&args.cases) {
        Ok(cases) => cases,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::FAILURE;
        }
    };
    let cache = std::env::temp_dir().join(format!("convoke-conformance-{}", std::process::id()));
    let mut report = Report::default();
    for case in cases.iter().filter(|c| c.name.contains(&args.filter)) {
        let verdict = judge(case, &cache);
        if !(args.registered && matches!(verdict, Verdict::NotRegistered(_))) {
            report.add(&case.op, &case.name, verdict, args.verbose);
        }
    }
    // What is left there is of no use to anybody; failing to remove it harms nobody.
    let _ = std::fs::remove_dir_all(&cache);
    println!("{report}");
    if report.totals().1 > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn judge(case: &Case, cache: &Path) -> Verdict {
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
    for (inputs, expected) in sets {
        match product::run(&model, &inputs) {
            Ok(outputs) => {
                if let Some(difference) = first_difference(&outputs, &expected) {
                    return Verdict::Wrong(difference);
                }
            }
            Err(e) => return Verdict::Wrong(e.to_string().replace('\n', " ")),
        }
    }
    Verdict::Right
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
