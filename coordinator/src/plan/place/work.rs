//! The facts about a function that placement needs, in flat arrays.
//!
//! A *position* is the index of a step node among the step nodes; a *flow* is a tensor of every step (a
//! parameter or an output of a step node); a *constant* is a literal or an output of an init node.
//!
//! Invariants
//! 1. Everything here is a function of the graph, the bounds of its axes (memory) and their expected sizes (time),
//!    not of the cluster.
//! 2. Building it and every walk over it is linear in nodes and operands.

use convoke_graph::codec::CodecError;
use convoke_graph::csr::Csr;
use convoke_graph::dim::Bindings;
use convoke_graph::graph::{Function, Literal, Node, RunsAt, ValueId};
use convoke_graph::ops::{self, Cost, HandleOp};
use convoke_graph::program::{ConstantId, constants_of_function};

use super::bytes::{At, bytes_of, of_unknown_size, widened_bytes};
use super::inner::inner_bytes;

/// The index that stands for none.
pub const NONE: u32 = u32::MAX;

/// The participant of a position that no pin fixes.
pub const UNPINNED: u16 = u16::MAX;

/// A range of bytes of an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArtifactBytes {
    pub artifact: u32,
    pub offset: u64,
    pub len: u64,
}

impl ArtifactBytes {
    fn of(literal: &Literal) -> Option<ArtifactBytes> {
        match *literal {
            Literal::Range {
                artifact,
                offset,
                len,
            } => Some(ArtifactBytes {
                artifact,
                offset,
                len,
            }),
            Literal::Inline(_) => None,
        }
    }
}

/// The bounds and the expected sizes of a function's axes.
struct Sizes<'a> {
    bounds: &'a Bindings,
    expected: &'a Bindings,
}

/// How many bytes each flow takes, and the functions that each position runs.
#[derive(Clone, Copy)]
pub struct SizesInBytes<'a> {
    pub flows: &'a [u64],
    pub inner: &'a [u64],
}

/// A function, indexed for placement.
#[derive(Debug, Clone, Default)]
pub struct Work {
    /// The node index of each position.
    pub steps: Vec<u32>,
    /// The cost of each position, with the axes at their expected sizes.
    pub cost: Vec<Cost>,
    /// For each position the flows that it reads, the flows that it writes, and the constants that it reads.
    pub reads: Csr,
    pub writes: Csr,
    pub weights: Csr,
    /// For each position whether its first output may take over the buffer of its first operand.
    pub in_place: Vec<bool>,
    /// For each position whether the caller's session holds its outputs, so that they take no memory of the step.
    pub is_lent: Vec<bool>,
    /// For each position the one that it runs beside, or [`NONE`]: a node that hands a tensor out runs beside the node
    /// that computes it.
    pub beside: Vec<u32>,
    /// For each position the most bytes of the values inside the functions that it runs, and of its operands and
    /// results in f32 where its kernel computes in f32, with the axes at their expected sizes and at their bounds.
    pub inner_bytes: Vec<u64>,
    pub inner_bound: Vec<u64>,

    pub flow_value: Vec<ValueId>,
    /// Bytes of each flow, with the axes at their expected sizes.
    pub flow_bytes: Vec<u64>,
    /// Bytes of each flow, with the axes at their bounds.
    pub bound_bytes: Vec<u64>,
    /// The position that writes each flow, or [`NONE`] for a parameter.
    pub writer: Vec<u32>,
    /// The positions that read each flow.
    pub readers: Csr,
    pub flow_is_result: Vec<bool>,

    pub const_value: Vec<ValueId>,
    pub const_bytes: Vec<u64>,
    /// Where each constant is read from; `None` if it is computed or travels inside the graph.
    pub const_stored: Vec<Option<ArtifactBytes>>,
    pub const_is_literal: Vec<bool>,
    /// The id of each constant, if leases share it.
    pub const_id: Vec<Option<ConstantId>>,
    /// The node indices of the init nodes, in order, and the constants that each reads and writes.
    pub inits: Vec<u32>,
    pub init_reads: Csr,
    pub init_writes: Csr,
    /// The constants that are results, without repetitions.
    pub const_results: Vec<u32>,

    /// For each value of the function its index among the flows or among the constants.
    pub of_value: Vec<u32>,
}

impl Work {
    /// Indexes `f`. Its axes are at most `bounds`; `expected` has their usual sizes.
    pub fn new(f: &Function, bounds: &Bindings, expected: &Bindings) -> Work {
        let sizes = Sizes { bounds, expected };
        let mut w = Work {
            of_value: vec![NONE; f.values.len()],
            ..Work::default()
        };
        let mut is_const = vec![false; f.values.len()];
        for (v, l) in &f.literals {
            let bytes = bytes_of(f.ty(*v), At::Most(bounds)).unwrap_or(0);
            is_const[v.ix()] = true;
            w.of_value[v.ix()] = w.const_value.len() as u32;
            w.const_value.push(*v);
            w.const_bytes.push(bytes);
            w.const_is_literal.push(true);
            w.const_stored.push(ArtifactBytes::of(l));
        }
        for p in &f.params {
            let bytes = |at| bytes_of(f.ty(*p), at).unwrap_or(0);
            w.add_flow(
                *p,
                bytes(At::Exactly(expected)),
                bytes(At::Most(bounds)),
                NONE,
            );
        }
        for (i, node) in f.nodes.iter().enumerate() {
            match node.runs_at {
                RunsAt::Init => w.add_init(f, i, node, bounds, &mut is_const),
                RunsAt::Step => w.add_step(f, i, node, &sizes, &is_const),
            }
        }
        w.readers = w.reads.transposed(w.flow_value.len());
        w.flow_is_result = vec![false; w.flow_value.len()];
        let mut const_is_result = vec![false; w.const_value.len()];
        for (_, v) in &f.results {
            let at = w.of_value[v.ix()];
            if !is_const[v.ix()] {
                w.flow_is_result[at as usize] = true;
            } else if !std::mem::replace(&mut const_is_result[at as usize], true) {
                w.const_results.push(at);
            }
        }
        w
    }

    fn add_flow(&mut self, v: ValueId, expected: u64, bound: u64, writer: u32) {
        self.of_value[v.ix()] = self.flow_value.len() as u32;
        self.flow_value.push(v);
        self.flow_bytes.push(expected);
        self.bound_bytes.push(bound);
        self.writer.push(writer);
    }

    fn add_init(
        &mut self,
        f: &Function,
        i: usize,
        node: &Node,
        bounds: &Bindings,
        is_const: &mut [bool],
    ) {
        self.inits.push(i as u32);
        self.init_reads
            .push(node.inputs.iter().flatten().map(|v| self.of_value[v.ix()]));
        for o in &node.outputs {
            is_const[o.ix()] = true;
            self.of_value[o.ix()] = self.const_value.len() as u32;
            self.const_value.push(*o);
            self.const_bytes
                .push(bytes_of(f.ty(*o), At::Most(bounds)).unwrap_or(0));
            self.const_is_literal.push(false);
            self.const_stored.push(None);
        }
        self.init_writes
            .push(node.outputs.iter().map(|v| self.of_value[v.ix()]));
    }

    fn add_step(
        &mut self,
        f: &Function,
        i: usize,
        node: &Node,
        sizes: &Sizes<'_>,
        is_const: &[bool],
    ) {
        let position = self.steps.len() as u32;
        let inputs = || node.inputs.iter().flatten();
        self.steps.push(i as u32);
        let of = &self.of_value;
        self.reads
            .push(inputs().filter(|v| !is_const[v.ix()]).map(|v| of[v.ix()]));
        self.weights
            .push(inputs().filter(|v| is_const[v.ix()]).map(|v| of[v.ix()]));
        let at = self.steps.len() - 1;
        let reads = self.reads.row(at).iter().map(|v| *v as usize);
        let read = of_unknown_size(reads.clone().map(|v| self.flow_bytes[v]));
        let bound = of_unknown_size(reads.map(|v| self.bound_bytes[v]));
        let mut cost = ops::node_cost(f, node, sizes.expected);
        for o in &node.outputs {
            let expected = bytes_of(f.ty(*o), At::Exactly(sizes.expected)).unwrap_or_else(|| {
                cost.bytes += read as f64;
                read
            });
            let bound = bytes_of(f.ty(*o), At::Most(sizes.bounds)).unwrap_or(bound);
            self.add_flow(*o, expected, bound, position);
        }
        self.writes
            .push(node.outputs.iter().map(|v| self.of_value[v.ix()]));
        self.cost.push(cost);
        let beside = |at: At<'_>| {
            let flows = node.inputs.iter().flatten().filter(|v| !is_const[v.ix()]);
            inner_bytes(node, at).saturating_add(widened_bytes(f, node, flows, at))
        };
        self.inner_bytes.push(beside(At::Exactly(sizes.expected)));
        self.inner_bound.push(beside(At::Most(sizes.bounds)));
        let op = ops::lookup(&node.op);
        let first = node.inputs.first().copied().flatten();
        let first_is_flow = first.is_some_and(|v| !is_const[v.ix()]);
        // A value that the node reads twice is not overwritten.
        let read_once = inputs().filter(|v| Some(**v) == first).count() == 1;
        let dtypes = node.inputs.iter().map(|v| Some(f.ty((*v)?).dtype));
        let dtypes: Vec<_> = dtypes.collect();
        let replaced = op.is_some_and(|op| op.replaces_first(&dtypes));
        self.in_place.push(first_is_flow && read_once && replaced);
        self.is_lent.push(node.is(HandleOp::HandleIn));
        let handed = self.reads.row(at).first().filter(|_| first_is_flow);
        self.beside.push(match handed {
            Some(v) if node.is(HandleOp::HandleOut) => self.writer[*v as usize],
            _ => NONE,
        });
    }

    /// Computes the ids of the constants of `f` at devices of a numerics profile. Fails where an attribute cannot be
    /// encoded.
    pub fn identify(&mut self, f: &Function, profile: &str) -> Result<(), CodecError> {
        // Constants are compared with others of the same worker alone, which all have its device's layout.
        let all = constants_of_function(f, profile, b"")?;
        let id = |v: &ValueId| {
            let constant = all.get(v.ix()).copied().flatten();
            constant.filter(|c| c.is_shared).map(|c| c.id)
        };
        self.const_id = self.const_value.iter().map(id).collect();
        Ok(())
    }

    /// Returns the positions that run beside `position`.
    pub fn company(&self, position: usize) -> impl Iterator<Item = u32> {
        let readers = self.writes.row(position).iter();
        let readers = readers.flat_map(|v| self.readers.row(*v as usize));
        let beside = move |r: &&u32| self.beside[**r as usize] == position as u32;
        readers.filter(beside).copied()
    }

    /// Gives each position that runs beside another, and has no entry in `participant` yet, the entry of that other
    /// position.
    pub fn join(&self, participant: &mut [u16]) {
        for p in 0..self.positions() {
            if let (UNPINNED, beside) = (participant[p], self.beside[p])
                && beside != NONE
            {
                participant[p] = participant[beside as usize];
            }
        }
    }

    /// Returns the bytes of a value, with the axes at their expected sizes.
    pub fn expected_bytes(&self, v: ValueId) -> u64 {
        let at = self.of_value[v.ix()] as usize;
        match self.flow_value.get(at) == Some(&v) {
            true => self.flow_bytes[at],
            false => self.const_bytes[at],
        }
    }

    /// Returns the number of step nodes.
    pub fn positions(&self) -> usize {
        self.steps.len()
    }

    /// Returns the sizes with the axes at their bounds.
    pub fn at_bounds(&self) -> SizesInBytes<'_> {
        SizesInBytes {
            flows: &self.bound_bytes,
            inner: &self.inner_bound,
        }
    }

    /// Returns the sizes with the axes at their expected sizes.
    pub fn at_expected(&self) -> SizesInBytes<'_> {
        SizesInBytes {
            flows: &self.flow_bytes,
            inner: &self.inner_bytes,
        }
    }

    /// Returns the flow whose buffer the first output of `position` may take over.
    pub fn donor(&self, position: usize) -> Option<u32> {
        if !self.in_place[position] {
            return None;
        }
        let from = *self.reads.row(position).first()?;
        let writer = self.writer[from as usize];
        if writer != NONE && self.is_lent[writer as usize] {
            return None;
        }
        let to = *self.writes.row(position).first()?;
        let equal = |bytes: &[u64]| bytes[from as usize] == bytes[to as usize];
        (equal(&self.flow_bytes) && equal(&self.bound_bytes)).then_some(from)
    }
}
