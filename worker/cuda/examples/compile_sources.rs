//! Compiles the sources of the device by NVRTC, for the compute capabilities that are given (80 90 100), and looks into the
//! intermediate code for what the numerics profile forbids. It needs the compiler, and no GPU: `.ci/cuda` runs it. The compiler has
//! one lock for a process, so that several processes take a part each.
//!
//! compile_sources PART/PARTS ARCHITECTURE...

use std::process::ExitCode;

use convoke_cuda::driver::{compile, probe};
use convoke_cuda::kernels::listing;

/// Beginnings of the instructions that the profile forbids: atomics of any kind, and the tensor cores, whose sums have
/// an order of their own.
const BEGINNINGS: [&str; 4] = ["atom.", "red.", "mma.", "wgmma."];

/// The steps of tensor cores that the profile has: 16 products of f16 or of bf16 are added to an f32.
const STEPS: [&str; 2] = [
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
];

/// Modifiers of the instructions that the profile forbids: approximate functions, and the flush of subnormals.
const PARTS: [&str; 2] = [".approx", ".ftz"];

const USAGE: &str = "compile_sources PART/PARTS ARCHITECTURE...";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let part = args.next().and_then(|a| {
        let (part, parts) = a.split_once('/')?;
        Some((part.parse::<usize>().ok()?, parts.parse::<usize>().ok()?))
    });
    let Some((part, parts)) = part.filter(|(part, parts)| part < parts) else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    let architectures: Result<Vec<u32>, _> = args.map(|a| a.parse()).collect();
    let Some(architectures) = architectures.ok().filter(|all| !all.is_empty()) else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    if let Err(e) = probe::compiler() {
        eprintln!("{e}");
        return ExitCode::FAILURE;
    }
    let sources = listing::sources().into_iter().skip(part).step_by(parts);
    let sources: Vec<String> = sources.collect();
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
    match failed == 0 && fused > 0 {
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
