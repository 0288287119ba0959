//! Compiles every source of the device by NVRTC, for the compute capabilities that are given (80 90 100), and looks into the
//! intermediate code for what the numerics profile forbids. It needs the compiler, and no GPU: `.ci/cuda` runs it.

use std::process::ExitCode;

use convoke_cuda::driver::{compile, probe};
use convoke_cuda::kernels::listing;

/// What an instruction that the profile forbids begins with: atomics of any kind, and the tensor cores, whose sums have an order
/// of their own.
const BEGINNINGS: [&str; 4] = ["atom.", "red.", "mma.", "wgmma."];

/// The steps of tensor cores that the profile has: 16 products of f16 or of bf16 are added to an f32.
const STEPS: [&str; 2] = [
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
];

/// What an instruction that the profile forbids has in it: approximate functions, and the flush of subnormals.
const PARTS: [&str; 2] = [".approx", ".ftz"];

fn main() -> ExitCode {
    let architectures: Vec<u32> = std::env::args()
        .skip(1)
        .filter_map(|a| a.parse().ok())
        .collect();
    if let Err(e) = probe::compiler() {
        eprintln!("{e}");
        return ExitCode::FAILURE;
    }
    let sources: Vec<String> = listing::sources().into_iter().collect();
    let work: Vec<(u32, &String)> = architectures
        .iter()
        .flat_map(|a| sources.iter().map(|s| (*a, s)))
        .collect();
    let (mut failed, mut fused) = (0, 0);
    for (architecture, source) in &work {
        match check(source, *architecture) {
            Ok(ptx) => fused += usize::from(ptx.contains("fma.rn")),
            Err(why) => {
                failed += 1;
                eprintln!("sm_{architecture}: {why}\n{}", definitions(source));
            }
        }
    }
    println!(
        "{} sources for each of {architectures:?}: {failed} failed, {fused} with fused multiply-adds",
        sources.len()
    );
    match failed == 0 && fused > 0 && !work.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// The definitions of a source behind the prelude, by which the sources of a family differ.
fn definitions(source: &str) -> String {
    let own = source
        .rsplit_once("return (I)x;")
        .map_or(source, |(_, own)| own);
    let lines = own.lines().filter(|l| l.starts_with("#define "));
    lines.collect::<Vec<_>>().join("\n")
}

fn check(source: &str, architecture: u32) -> Result<String, String> {
    let compiled = compile::compile(source, architecture).map_err(|e| e.message)?;
    if compiled.cubin.is_empty() {
        return Err("an empty cubin".into());
    }
    match compiled.ptx.lines().find(|line| is_forbidden(line)) {
        Some(line) => Err(format!("forbidden: {line}")),
        None => Ok(compiled.ptx),
    }
}

/// Whether a line of intermediate code is an instruction that the profile forbids.
fn is_forbidden(line: &str) -> bool {
    let mut words = line.split_whitespace().skip_while(|w| w.starts_with('@'));
    let instruction = words.next().unwrap_or_default();
    if STEPS.contains(&instruction) {
        return false;
    }
    BEGINNINGS.iter().any(|b| instruction.starts_with(b))
        || PARTS.iter().any(|p| instruction.contains(p))
}
