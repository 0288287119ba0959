//! Installing a lease: weights loaded, the init part run, memory reserved, links up, the executor ready.
//!
//! Invariants
//! 1. A weight's raw form is dropped as soon as the last init node that reads it has run.
//! 2. A constant that the weight store has is neither loaded nor made.
//! 3. Whatever fails, all that was taken so far is released: reservations, pins and links are guards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use convoke_common::error::{Error, Result};
use convoke_common::memory::Pool;
use convoke_common::world::Share;
use convoke_graph::Tensor;
use convoke_graph::graph::Literal;
use convoke_graph::program::{ConstantId, NO_OPERAND, Program, ProgramNode, constants_of};

use crate::cpu::Inputs;
use crate::device::Device;
use crate::executor::Engine;
use crate::program::init;
use crate::program::installed::InstalledProgram;
use crate::program::order::Range;
use crate::weights::cache::Pins;
use crate::weights::counter::Counter;
use crate::weights::feed::Feed;
use crate::weights::loader::Loader;
use crate::weights::store::{Constants, LAYOUT, WeightStore};

/// A program whose init part has run.
pub struct Ready {
    pub installed: InstalledProgram,
    /// Bytes of the constants that steps use.
    pub weights_bytes: u64,
    /// Holds the reservation of the constants that the weight store does not have.
    pub weights: Pool,
    pub pins: Option<Pins>,
}

/// Takes the constants that the weight store has, and loads literals and runs the init part for the rest. Nodes that
/// `device` has kernels for run there.
pub async fn prepare(
    engine: &Arc<Engine>,
    share: &Share,
    program: Arc<Program>,
    loader: Arc<Loader>,
    weights: Pool,
    store: &Arc<WeightStore>,
    counter: &Arc<Counter>,
    device: Option<&dyn Device>,
) -> Result<Ready> {
    let pins = loader.cache.as_ref().map(|c| c.pin(pinned(&program)));
    let init = program.init_nodes as usize;
    let mut load = Load {
        engine,
        share,
        loader,
        weights: &weights,
        counter,
        step_reads: reads(&program, init..program.nodes.len()),
        values: vec![None; program.values.len()],
        literals: vec![None; program.values.len()],
        program: &program,
    };
    for (v, literal) in &program.literals {
        load.literals[*v as usize] = Some(literal);
    }
    let (stored, own) = load.constants()?;
    let mut constants = store.begin(stored, counter.clone());
    let mut mine = constants.next(&weights, &mut load.values).await?;
    mine.extend(own);
    while !mine.is_empty() {
        load.make(&mine, &mut constants).await?;
        mine = constants.next(&weights, &mut load.values).await?;
    }
    // Waiting for the cache lets a second load find there what this one fetched.
    load.loader.written().await;
    let values = load.values;
    let weights_bytes = values.iter().flatten().map(|t| t.byte_len() as u64).sum();
    let mut installed = InstalledProgram::new(program, values, device)?;
    installed.charges = constants.finish();
    Ok(Ready {
        installed,
        weights_bytes,
        weights,
        pins,
    })
}

/// The part of an install that makes constants.
struct Load<'a> {
    engine: &'a Arc<Engine>,
    share: &'a Share,
    program: &'a Arc<Program>,
    loader: Arc<Loader>,
    weights: &'a Pool,
    counter: &'a Counter,
    /// How often steps read each value.
    step_reads: Vec<u32>,
    literals: Vec<Option<&'a Literal>>,
    values: Vec<Option<Tensor>>,
}

impl Load<'_> {
    fn init_nodes(&self) -> &[ProgramNode] {
        &self.program.nodes[..self.program.init_nodes as usize]
    }

    /// The constants that steps read: those that the weight store is to have, and the lease's own.
    fn constants(&self) -> Result<(BTreeMap<u32, ConstantId>, Vec<u32>)> {
        let (mut stored, mut own) = (BTreeMap::new(), vec![]);
        let constants = constants_of(self.program, LAYOUT);
        let constants = constants.map_err(|e| Error::internal(e.to_string()))?;
        for (v, constant) in constants.into_iter().enumerate() {
            let Some(constant) = constant.filter(|_| self.step_reads[v] > 0) else {
                continue;
            };
            match constant.is_shared {
                true => drop(stored.insert(v as u32, constant.id)),
                false => own.push(v as u32),
            }
        }
        Ok((stored, own))
    }

    /// The init nodes that have to run so that these values are there, in their order.
    fn needed(&self, targets: &[u32]) -> Vec<usize> {
        let mut needed = vec![false; self.values.len()];
        for v in targets {
            needed[*v as usize] = self.values[*v as usize].is_none();
        }
        let mut nodes = vec![];
        for (i, node) in self.init_nodes().iter().enumerate().rev() {
            if node.outputs.iter().any(|v| needed[*v as usize]) {
                nodes.push(i);
                for v in operands(std::slice::from_ref(node)) {
                    needed[v as usize] |= self.values[v as usize].is_none();
                }
            }
        }
        nodes.reverse();
        nodes
    }

    /// Makes these values, and gives each to the store as soon as it is there.
    async fn make(&mut self, targets: &[u32], constants: &mut Constants) -> Result<()> {
        let program = self.program;
        let nodes = self.needed(targets);
        let mut left = vec![0u32; self.values.len()];
        for i in &nodes {
            for v in operands(&program.nodes[*i..*i + 1]) {
                left[v as usize] += 1;
            }
        }
        let read = nodes
            .iter()
            .flat_map(|i| operands(&program.nodes[*i..*i + 1]));
        let targeted = self.retained(targets);
        let targets: BTreeSet<u32> = targets.iter().copied().collect();
        let wanted = read.chain(targeted.iter().copied());
        let wanted = wanted
            .filter(|v| self.literals[*v as usize].is_some() && self.values[*v as usize].is_none());
        let wanted: Vec<u32> = wanted.collect();
        let (loader, pool) = (self.loader.clone(), self.weights.clone());
        let mut feed = Feed::start(loader, program.clone(), wanted, pool);
        self.counter
            .total
            .fetch_add(feed.bytes(), Ordering::Relaxed);

        for i in nodes {
            let node = &program.nodes[i];
            for v in operands(std::slice::from_ref(node)) {
                self.load(&mut feed, v).await?;
            }
            let mut inputs = Inputs::new();
            for v in &node.inputs {
                if *v == NO_OPERAND {
                    inputs.push(None);
                    continue;
                }
                let v = *v as usize;
                left[v] -= 1;
                let last = left[v] == 0 && self.step_reads[v] == 0;
                inputs.push(if last {
                    self.values[v].take()
                } else {
                    self.values[v].clone()
                });
            }
            let outputs = init::run(self.engine, self.share, program, i, inputs, self.weights);
            for (v, t) in node.outputs.iter().zip(outputs.await?) {
                if targets.contains(v) {
                    self.values[*v as usize] = Some(constants.publish(*v, t, self.weights)?);
                } else if left[*v as usize] > 0 {
                    self.values[*v as usize].get_or_insert(t);
                }
            }
        }
        for v in targeted {
            self.load(&mut feed, v).await?;
            if let Some(t) = self.values[v as usize].take() {
                self.values[v as usize] = Some(constants.publish(v, t, self.weights)?);
            }
        }
        Ok(())
    }

    /// Loads the literal of a value, unless it is there.
    async fn load(&mut self, feed: &mut Feed, v: u32) -> Result<()> {
        if self.values[v as usize].is_some() {
            return Ok(());
        }
        let literal = self.literals[v as usize]
            .ok_or_else(|| Error::internal("an init operand has no definition"))?;
        feed.load(v, literal, &mut self.values, self.counter).await
    }

    /// The literals among these values, in the order in which they lie in their files.
    fn retained(&self, targets: &[u32]) -> Vec<u32> {
        let literal = |v: &u32| Some((Range::of(self.literals[*v as usize]?), *v));
        let mut all: Vec<(Option<Range>, u32)> = targets.iter().filter_map(literal).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, v)| v).collect()
    }
}

fn operands(nodes: &[ProgramNode]) -> impl Iterator<Item = u32> {
    let all = nodes.iter().flat_map(|n| &n.inputs).copied();
    all.filter(|v| *v != NO_OPERAND)
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
