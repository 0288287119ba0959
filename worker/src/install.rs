//! Installing a lease: weights loaded, the init part run, memory reserved, links up, the executor ready.
//!
//! Invariants
//! 1. A weight's raw form is dropped as soon as the last init node that reads it has run.
//! 2. Whatever fails, all that was taken so far is released: reservations, pins and links are guards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use convoke_common::error::{Error, Result};
use convoke_common::memory::Pool;
use convoke_common::world::Share;
use convoke_graph::Tensor;
use convoke_graph::graph::Literal;
use convoke_graph::program::{NO_OPERAND, Program, ProgramNode};

use crate::cache::Pins;
use crate::cpu::Inputs;
use crate::executor::Engine;
use crate::feed::Feed;
use crate::init;
use crate::installed::InstalledProgram;
use crate::loader::Loader;
use crate::order::Range;

/// Bytes of weights loaded so far, and of all that the install loads.
#[derive(Debug, Default)]
pub struct Counter {
    pub done: AtomicU64,
    pub total: AtomicU64,
}

/// A program whose init part has run.
pub struct Ready {
    pub installed: Arc<InstalledProgram>,
    /// Bytes of the constants that steps use.
    pub weights_bytes: u64,
    /// Holds the constants' reservation.
    pub weights: Pool,
    pub pins: Option<Pins>,
}

/// Loads literals and runs the init part.
pub async fn prepare(
    engine: &Arc<Engine>,
    share: &Share,
    program: Arc<Program>,
    loader: Arc<Loader>,
    weights: Pool,
    counter: &Counter,
) -> Result<Ready> {
    let ranges = program.literals.iter().filter_map(|(_, l)| Range::of(l));
    let total = ranges.map(|r| r.len);
    counter.total.store(total.sum(), Ordering::Relaxed);
    let pins = loader.cache.as_ref().map(|c| c.pin(pinned(&program)));
    let init = program.init_nodes as usize;
    let step_reads = reads(&program, init..program.nodes.len());
    let mut left = reads(&program, 0..init);
    let mut values: Vec<Option<Tensor>> = vec![None; program.values.len()];
    let mut literals: Vec<Option<&Literal>> = vec![None; program.values.len()];
    program
        .literals
        .iter()
        .for_each(|(v, l)| literals[*v as usize] = Some(l));

    let retained = retained(&program, &step_reads);
    let wanted = operands(&program.nodes[..init]).chain(retained.iter().copied());
    let wanted = wanted.filter(|v| literals[*v as usize].is_some()).collect();
    // Most of what is read from files is packed, so that its memory can be used again for what is read next.
    weights.reuse(true);
    let mut feed = Feed::start(loader.clone(), program.clone(), wanted, weights.clone());

    for (i, node) in program.nodes[..init].iter().enumerate() {
        for v in operands(std::slice::from_ref(node)) {
            if values[v as usize].is_none() {
                let literal = literals[v as usize]
                    .ok_or_else(|| Error::internal("an init operand has no definition"))?;
                feed.load(v, literal, &mut values, counter).await?;
            }
        }
        let mut inputs = Inputs::new();
        for v in &node.inputs {
            if *v == NO_OPERAND {
                inputs.push(None);
                continue;
            }
            let v = *v as usize;
            left[v] -= 1;
            let last = left[v] == 0 && step_reads[v] == 0;
            inputs.push(if last {
                values[v].take()
            } else {
                values[v].clone()
            });
        }
        let outputs = init::run(engine, share, &program, i, inputs, &weights).await?;
        for (v, t) in node.outputs.iter().zip(outputs) {
            let v = *v as usize;
            if left[v] > 0 || step_reads[v] > 0 {
                values[v] = Some(t);
            }
        }
    }
    weights.reuse(false);
    for v in retained {
        if let Some(literal) = literals[v as usize] {
            feed.load(v, literal, &mut values, counter).await?;
        }
    }
    // Waiting for the cache lets a second load find there what this one fetched.
    loader.written().await;
    let weights_bytes = values.iter().flatten().map(|t| t.byte_len() as u64).sum();
    let installed = Arc::new(InstalledProgram::new(program, values)?);
    Ok(Ready {
        installed,
        weights_bytes,
        weights,
        pins,
    })
}

fn operands(nodes: &[ProgramNode]) -> impl Iterator<Item = u32> {
    let all = nodes.iter().flat_map(|n| &n.inputs).copied();
    all.filter(|v| *v != NO_OPERAND)
}

/// The literals that steps read, in the order in which they lie in their files.
fn retained(program: &Program, step_reads: &[u32]) -> Vec<u32> {
    let read = program.literals.iter();
    let read = read.filter(|(v, _)| step_reads[*v as usize] > 0);
    let mut all: Vec<(Option<Range>, u32)> = read.map(|(v, l)| (Range::of(l), *v)).collect();
    all.sort_unstable();
    all.into_iter().map(|(_, v)| v).collect()
}

/// How often each value is read by these nodes; where they are the step part, sends count as reads.
fn reads(program: &Program, nodes: std::ops::Range<usize>) -> Vec<u32> {
    let mut reads = vec![0u32; program.values.len()];
    let step = nodes.end == program.nodes.len() && nodes.start >= program.init_nodes as usize;
    for v in operands(&program.nodes[nodes]) {
        reads[v as usize] += 1;
    }
    if step {
        program
            .sends
            .iter()
            .for_each(|s| reads[s.value as usize] += 1);
    }
    reads
}

/// Hashes of the chunks that a program's literals lie in.
fn pinned(program: &Program) -> Vec<convoke_graph::artifact::ChunkHash> {
    let mut all: Vec<_> = program
        .literals
        .iter()
        .filter_map(|(_, l)| {
            let range = Range::of(l)?;
            let meta = program.artifacts.get(range.artifact as usize)?;
            Some(
                range
                    .chunks()
                    .filter_map(|i| meta.chunks.get(i as usize).copied()),
            )
        })
        .flatten()
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}
