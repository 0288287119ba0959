//! Installing a lease: weights loaded, the init part run, memory reserved, links up, the executor ready.
//!
//! Invariants
//! 1. A weight's raw form is dropped as soon as the last init node that reads it has run.
//! 2. Whatever fails, everything taken so far is released: reservations, pins and links are guards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use convoke_common::Tensor;
use convoke_common::artifact::chunks_of;
use convoke_common::error::{Code, Error, Result};
use convoke_common::graph::Literal;
use convoke_common::memory::Pool;
use convoke_common::program::{NO_OPERAND, Program};
use convoke_kernels::Exec;

use crate::cache::Pins;
use crate::cpu::{Inputs, KernelFailure, Launch, Outputs};
use crate::executor::Engine;
use crate::installed::{Installed, kernel, site};
use crate::loader::{Loader, destination};

/// Weight bytes loaded so far, of all.
#[derive(Debug, Default)]
pub struct Counter {
    pub done: AtomicU64,
    pub total: AtomicU64,
}

/// A program whose init part has run.
pub struct Ready {
    pub installed: Arc<Installed>,
    /// Bytes of the values that steps use.
    pub weights_bytes: u64,
    /// Holds the constants' reservation.
    pub weights: Pool,
    pub pins: Option<Pins>,
}

/// Loads literals and runs the init part.
pub async fn prepare(
    engine: &Arc<Engine>,
    program: Arc<Program>,
    loader: Arc<Loader>,
    weights: Pool,
    counter: &Counter,
) -> Result<Ready> {
    let total = program.literals.iter().map(|(_, l)| match l {
        Literal::Range { len, .. } => *len,
        Literal::Inline(_) => 0,
    });
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

    for (i, node) in program.nodes[..init].iter().enumerate() {
        for v in node.inputs.iter().filter(|v| **v != NO_OPERAND) {
            let v = *v as usize;
            if values[v].is_none() {
                let literal = literals[v]
                    .ok_or_else(|| Error::internal("an init operand has no definition"))?;
                values[v] =
                    Some(literal_value(&program, v, literal, &loader, &weights, counter).await?);
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
        let outputs = run_init(engine, &program, i, inputs, &weights).await?;
        for (v, t) in node.outputs.iter().zip(outputs) {
            let v = *v as usize;
            if left[v] > 0 || step_reads[v] > 0 {
                values[v] = Some(t);
            }
        }
    }
    for (v, literal) in &program.literals {
        let v = *v as usize;
        if step_reads[v] > 0 && values[v].is_none() {
            values[v] =
                Some(literal_value(&program, v, literal, &loader, &weights, counter).await?);
        }
    }
    let weights_bytes = values.iter().flatten().map(|t| t.byte_len() as u64).sum();
    let installed = Arc::new(Installed::new(program, values)?);
    Ok(Ready {
        installed,
        weights_bytes,
        weights,
        pins,
    })
}

/// How often each value is read by these nodes, sends of the step part included.
fn reads(program: &Program, nodes: std::ops::Range<usize>) -> Vec<u32> {
    let mut reads = vec![0u32; program.values.len()];
    let step = nodes.end == program.nodes.len() && nodes.start >= program.init_nodes as usize;
    for v in program.nodes[nodes]
        .iter()
        .flat_map(|n| &n.inputs)
        .filter(|v| **v != NO_OPERAND)
    {
        reads[*v as usize] += 1;
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
fn pinned(program: &Program) -> Vec<convoke_common::artifact::ChunkHash> {
    let mut all: Vec<_> = program
        .literals
        .iter()
        .filter_map(|(_, l)| match l {
            Literal::Range {
                artifact,
                offset,
                len,
            } => {
                let meta = program.artifacts.get(*artifact as usize)?;
                Some(chunks_of(*offset, *len).filter_map(|i| meta.chunks.get(i as usize).copied()))
            }
            Literal::Inline(_) => None,
        })
        .flatten()
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

async fn literal_value(
    program: &Program,
    v: usize,
    literal: &Literal,
    loader: &Arc<Loader>,
    weights: &Pool,
    counter: &Counter,
) -> Result<Tensor> {
    match literal {
        Literal::Inline(t) => Ok(t.clone()),
        Literal::Range {
            artifact,
            offset,
            len,
        } => {
            let meta = program
                .artifacts
                .get(*artifact as usize)
                .ok_or_else(|| Error::internal("a literal names no artifact"))?;
            let tensor = destination(weights, &program.values[v].ty)?;
            let t = loader.range(meta, *offset, *len, tensor).await?;
            counter.done.fetch_add(*len, Ordering::Relaxed);
            Ok(t)
        }
    }
}

/// Runs one init node on the compute pool.
async fn run_init(
    engine: &Arc<Engine>,
    program: &Arc<Program>,
    index: usize,
    inputs: Inputs,
    weights: &Pool,
) -> Result<Outputs> {
    let node = &program.nodes[index];
    let kernel = kernel(program, node)?;
    let names: Vec<String> = inputs.iter().flatten().map(Tensor::signature).collect();
    let (done, result) = tokio::sync::oneshot::channel();
    let (engine_, pool) = (engine.clone(), weights.clone());
    let job = Box::new(move || {
        let flag = AtomicBool::new(false);
        let exec = match &engine_.threads {
            Some(p) => Exec::pooled(p, &flag),
            None => Exec::single(&flag),
        };
        drop(done.send(kernel.launch(Launch {
            inputs,
            exec,
            pool: &pool,
        })));
    });
    if engine.compute.submit(0, job).is_err() {
        return Err(Error::new(
            Code::Busy,
            "the compute pool takes no further work",
        ));
    }
    let place = || {
        let mut s = site(node, names.clone());
        s.worker = Some(engine.worker.clone());
        s.host = Some(engine.host.clone());
        s.device = Some("cpu:0".into());
        s
    };
    match result.await {
        Ok(Ok(outputs)) => Ok(outputs),
        Ok(Err(KernelFailure::Error(e))) => Err(e.at(place())),
        Ok(Err(KernelFailure::Cancelled)) => {
            Err(Error::new(Code::Cancelled, "the install was cancelled").at(place()))
        }
        Err(_) => Err(Error::new(Code::KernelPanicked, "the kernel panicked").at(place())),
    }
}
