//! A program's step part as lowering sees it, and the units that become instructions.

use std::collections::HashMap;
use std::sync::Arc;

use convoke_graph::codec;
use convoke_graph::ops::{ConcreteOperand, ConcreteOutputs};
use convoke_graph::program::{NO_OPERAND, Program, ProgramNode};
use convoke_graph::{DType, Shape, Tensor};
use convoke_kernels::fused::Coding;

use super::fusion::{self, Candidate, Kind};
use super::instr::{DeviceInstr, HandleAccess, InstrKind};
use super::schedule;
use super::sequences::{SetId, Sets};
use crate::cpu::chain::{self, Elementwise, Head, Step, Tail};
use crate::cpu::{Kernel, Spec};

/// What lowering may assume about the tensors that a program gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputAssumption {
    /// They arrive one by one, with the types that are declared.
    OneByOne,
    /// All are there before the first node runs, with the types that are declared.
    Together,
    /// All are there before the first node runs, with the dtypes that are declared.
    Untyped,
}

/// The nodes that become one instruction: a single one, or a fused group.
pub(super) struct Unit {
    /// The unit's nodes, in order.
    pub members: Vec<u32>,
    /// The values that the unit reads, or [`NO_OPERAND`].
    pub operands: Vec<u32>,
    pub results: Vec<u32>,
    /// The values that arrive some time after the unit has run.
    pub later: Vec<u32>,
    pub kernel: Arc<dyn Kernel>,
    pub sizes: Option<ConcreteOutputs>,
    pub kind: InstrKind,
    pub priority: u64,
}

/// The key of a kernel: nodes with equal keys can share one.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct SameKernel {
    op: Arc<str>,
    attrs: Vec<u8>,
    operands: Vec<Option<DType>>,
    outputs: usize,
}

pub(super) struct Graph<'a> {
    pub program: &'a Program,
    pub constants: &'a [Option<Tensor>],
    pub nodes: &'a [ProgramNode],
    kind: Vec<InstrKind>,
    given: InputAssumption,
    /// By value, the number of nodes that read it and of sends of it.
    uses: Vec<u32>,
    /// By value, its dtype and shape if they never change.
    fixed: Vec<Option<(DType, Shape)>>,
}

impl<'a> Graph<'a> {
    pub fn new(
        program: &'a Program,
        constants: &'a [Option<Tensor>],
        kind: Vec<InstrKind>,
        given: InputAssumption,
    ) -> Graph<'a> {
        let nodes = &program.nodes[program.init_nodes as usize..];
        let mut uses = vec![0; program.values.len()];
        let read = nodes.iter().flat_map(|n| &n.inputs);
        let read = read.filter(|v| **v != NO_OPERAND).copied();
        let sent = program.sends.iter().map(|s| s.value);
        read.chain(sent).for_each(|v| uses[v as usize] += 1);
        let fixed = constants.iter();
        Graph {
            kind,
            given,
            fixed: fixed
                .map(|c| c.as_ref().map(|t| (t.dtype(), t.shape().into())))
                .collect(),
            program,
            constants,
            nodes,
            uses,
        }
    }

    pub fn is_constant(&self, value: u32) -> bool {
        self.constants[value as usize].is_some()
    }

    /// Whether a node's results arrive later, as tensors of peers do: it reads a handle, copies from the device, or drives
    /// partitioned bodies.
    fn answers_later(&self, node: u32) -> bool {
        matches!(
            self.kind[node as usize],
            InstrKind::Handle(HandleAccess::Lend { .. })
                | InstrKind::Device(DeviceInstr::CopyOut)
                | InstrKind::Partitioned
        )
    }

    /// The values that arrive from peers, from handles, from the device and from partitioned bodies.
    pub fn arrivals(&self) -> impl Iterator<Item = u32> {
        let later = (0..self.nodes.len() as u32).filter(|n| self.answers_later(*n));
        let later = later.flat_map(|n| &self.nodes[n as usize].outputs);
        let recvs = self.program.recvs.iter().map(|r| r.value);
        recvs.chain(later.copied())
    }

    /// The units of each sequence, in order.
    pub fn units(&mut self, kernels: &[Arc<dyn Kernel>]) -> Vec<Vec<Unit>> {
        let order = self.order();
        let mut sizes = self.sizes(&order, kernels);
        let mut all = Vec::new();
        for sequence in self.sequences(&order) {
            let unit = |n: &u32| Some(self.unit(*n, kernels, &mut sizes));
            let mut units: Vec<Option<Unit>> = sequence.iter().map(unit).collect();
            self.fuse(&sequence, &mut units);
            all.push(units.into_iter().flatten().collect());
        }
        all
    }

    /// The key of a node's kernel.
    pub fn same_kernel(&self, n: u32) -> SameKernel {
        let node = &self.nodes[n as usize];
        let dtype = |v: &u32| {
            let value = self.program.values.get(*v as usize);
            value.map(|v| v.ty.dtype)
        };
        // Attributes that cannot be encoded cannot have come over the wire; the node then shares no kernel.
        let attrs = codec::encode(&node.attrs).unwrap_or_else(|_| n.to_le_bytes().into());
        SameKernel {
            op: node.op.clone(),
            attrs,
            operands: node.inputs.iter().map(dtype).collect(),
            outputs: node.outputs.len(),
        }
    }

    fn order(&self) -> Vec<u32> {
        let mut made_by = vec![None; self.program.values.len()];
        let mut reads = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            for v in &node.outputs {
                made_by[*v as usize] = Some(i as u32);
            }
            let read = node.inputs.iter().filter(|v| **v != NO_OPERAND);
            reads.extend(read.map(|v| (*v, i as u32)));
        }
        let priorities: Vec<u64> = self.nodes.iter().map(|n| n.priority).collect();
        schedule::order(&priorities, &made_by, &reads)
    }

    /// By node, the dtypes and shapes of its results if they never change. Records them in `fixed`, too.
    fn sizes(
        &mut self,
        order: &[u32],
        kernels: &[Arc<dyn Kernel>],
    ) -> Vec<Option<ConcreteOutputs>> {
        // Arriving tensors are checked against their declared type.
        let typed = self
            .arrivals()
            .filter(|_| self.given != InputAssumption::Untyped);
        for v in typed.collect::<Vec<_>>() {
            let ty = &self.program.values[v as usize].ty;
            self.fixed[v as usize] = ty.fixed_shape().map(|shape| (ty.dtype, shape.into()));
        }
        let mut all: Vec<Option<ConcreteOutputs>> = vec![None; self.nodes.len()];
        for n in order {
            let node = &self.nodes[*n as usize];
            if matches!(self.kind[*n as usize], InstrKind::Handle(_)) {
                continue;
            }
            let operand = |v: &u32| -> Option<Option<ConcreteOperand<'_>>> {
                if *v == NO_OPERAND {
                    return Some(None);
                }
                let (dtype, shape) = self.fixed[*v as usize].as_ref()?;
                Some(Some(ConcreteOperand {
                    dtype: *dtype,
                    shape,
                    host: self.constants[*v as usize].as_ref(),
                }))
            };
            let operands: Option<Vec<_>> = node.inputs.iter().map(operand).collect();
            let sizes = operands.and_then(|o| kernels[*n as usize].sizes(&o));
            let sizes = sizes.filter(|s| s.len() == node.outputs.len());
            for (v, size) in node.outputs.iter().zip(sizes.iter().flatten()) {
                self.fixed[*v as usize] = Some(size.clone());
            }
            all[*n as usize] = sizes;
        }
        all
    }

    /// Groups nodes that wait for the same arrivals, in order; the sequences have the order of their first nodes.
    fn sequences(&self, order: &[u32]) -> Vec<Vec<u32>> {
        let mut sets = Sets::default();
        let none = sets.none();
        let mut of_value = vec![none; self.program.values.len()];
        let apart = self
            .arrivals()
            .filter(|_| self.given == InputAssumption::OneByOne);
        for v in apart {
            of_value[v as usize] = sets.arrival();
        }
        let mut sequences: Vec<Vec<u32>> = Vec::new();
        let mut of_set: HashMap<SetId, usize> = HashMap::new();
        for n in order {
            let node = &self.nodes[*n as usize];
            let read = node.inputs.iter().filter(|v| **v != NO_OPERAND);
            let set = read.fold(none, |set, v| sets.join(set, of_value[*v as usize]));
            if !self.answers_later(*n) {
                node.outputs
                    .iter()
                    .for_each(|v| of_value[*v as usize] = set);
            }
            let sequence = *of_set.entry(set).or_insert_with(|| {
                sequences.push(vec![]);
                sequences.len() - 1
            });
            sequences[sequence].push(*n);
        }
        sequences
    }

    fn unit(
        &self,
        n: u32,
        kernels: &[Arc<dyn Kernel>],
        sizes: &mut [Option<ConcreteOutputs>],
    ) -> Unit {
        let node = &self.nodes[n as usize];
        let (results, later) = match self.answers_later(n) {
            true => (vec![], node.outputs.clone()),
            false => (node.outputs.clone(), vec![]),
        };
        Unit {
            members: vec![n],
            operands: node.inputs.clone(),
            results,
            later,
            kernel: kernels[n as usize].clone(),
            sizes: sizes[n as usize].take(),
            kind: self.kind[n as usize],
            priority: node.priority,
        }
    }

    /// Replaces units that can be one kernel by one unit, which runs in the place of the first of them.
    fn fuse(&self, sequence: &[u32], units: &mut [Option<Unit>]) {
        let view = View::new(self, sequence);
        for group in fusion::groups(&view, sequence.len()) {
            let Some((first, last)) = group.first().zip(group.last()) else {
                continue;
            };
            let result = view.candidates[*last].output;
            let (mut heads, mut steps, mut tail) = (vec![], vec![], Tail::Plain);
            // The values between a node's conversion and its function have no number in the program.
            let between: Vec<u32> = (0..)
                .map(|n| NO_OPERAND - 1 - n)
                .take(group.len())
                .collect();
            let mut ended = None;
            for (at, between) in group.iter().zip(&between) {
                let node = &view.candidates[*at];
                if at != last || matches!(node.kind, Kind::Elementwise(_)) {
                    ended = Some(node.output);
                }
                match &node.kind {
                    Kind::Decode(coding, from) => {
                        heads.extend(node.inputs.first().map(|input| Head {
                            input: *input,
                            output: *between,
                            from: *from,
                        }));
                        steps.push(Step {
                            function: Elementwise::Coding(*coding),
                            inputs: std::slice::from_ref(between),
                            output: node.output,
                        });
                    }
                    Kind::Encode(coding, to) => {
                        steps.push(Step {
                            function: Elementwise::Coding(*coding),
                            inputs: &node.inputs,
                            output: *between,
                        });
                        tail = Tail::Cast(*to);
                    }
                    Kind::Elementwise(function) => steps.push(Step {
                        function: *function,
                        inputs: &node.inputs,
                        output: node.output,
                    }),
                    Kind::Cast(_, to) if at == last => tail = Tail::Cast(*to),
                    Kind::Cast(from, _) => heads.extend(node.inputs.first().map(|input| Head {
                        input: *input,
                        output: node.output,
                        from: *from,
                    })),
                    Kind::Reduce(reduction) => tail = reduction.clone(),
                    Kind::Other => {}
                }
            }
            let Some(ended) = ended else {
                continue;
            };
            let dtype = self.program.values[ended as usize].ty.dtype;
            let like = |v: u32| self.alike(v, ended);
            let Some(fused) = chain::fuse(dtype, &heads, &steps, tail, like) else {
                continue;
            };
            let sizes = units[*last].as_mut().and_then(|u| u.sizes.take());
            let priority = self.nodes[sequence[*first] as usize].priority;
            group.iter().for_each(|at| units[*at] = None);
            units[*first] = Some(Unit {
                members: group.iter().map(|at| sequence[*at]).collect(),
                operands: fused.operands,
                results: vec![result],
                later: vec![],
                kernel: fused.kernel.into(),
                sizes,
                kind: InstrKind::Kernel,
                priority,
            });
        }
    }

    /// The role that a node with one result may have in a chain.
    fn kind_in_chains(&self, node: &ProgramNode, spec: &Spec<'_>) -> Kind {
        if let Some(function) = chain::elementwise(spec) {
            return Kind::Elementwise(function);
        }
        if let ([_], Some((from, to))) = (&node.inputs[..], chain::conversion(spec)) {
            return Kind::Cast(from, to);
        }
        if let Some(coding) = self.coding(node, spec) {
            return coding;
        }
        let fixed = |v: &u32| self.fixed.get(*v as usize)?.as_ref();
        let sizes = node.inputs.first().and_then(fixed);
        let sizes = sizes.filter(|_| node.outputs.iter().all(|v| fixed(v).is_some()));
        let axes = node.inputs.get(1).filter(|v| **v != NO_OPERAND);
        let known = axes.map(|v| self.constants[*v as usize].as_ref());
        match (sizes, known) {
            (None, _) | (_, Some(None)) => Kind::Other,
            (Some((_, shape)), axes) => {
                chain::reduction(spec, axes.flatten(), shape).map_or(Kind::Other, Kind::Reduce)
            }
        }
    }

    /// The role of a node between numbers and codes whose parameters are constants.
    fn coding(&self, node: &ProgramNode, spec: &Spec<'_>) -> Option<Kind> {
        let operand = |i: usize| node.inputs.get(i).filter(|v| **v != NO_OPERAND);
        let known = |i: usize| self.constants[*operand(i)? as usize].as_ref();
        if operand(2).is_some() && known(2).is_none() {
            return None;
        }
        let (coding, codes) = chain::coding(spec, known(1), known(2))?;
        Some(match coding {
            Coding::Decode { .. } => Kind::Decode(coding, codes),
            Coding::Encode { .. } => Kind::Encode(coding, codes),
        })
    }

    /// Whether two values have the same dtype and shape in every step.
    fn alike(&self, a: u32, b: u32) -> bool {
        let [fixed_a, fixed_b] = [a, b].map(|v| &self.fixed[v as usize]);
        match (fixed_a, fixed_b) {
            (Some(a), Some(b)) => a == b,
            _ if self.given == InputAssumption::Untyped => false,
            _ => self.program.values[a as usize].ty == self.program.values[b as usize].ty,
        }
    }
}

/// The nodes of one sequence as fusion sees them.
struct View<'a> {
    graph: &'a Graph<'a>,
    candidates: Vec<Candidate>,
    made_at: HashMap<u32, usize>,
}

impl<'a> View<'a> {
    fn new(graph: &'a Graph<'a>, sequence: &[u32]) -> View<'a> {
        let mut made_at = HashMap::new();
        let mut candidates = Vec::with_capacity(sequence.len());
        for (at, n) in sequence.iter().enumerate() {
            let node = &graph.nodes[*n as usize];
            if !graph.answers_later(*n) {
                made_at.extend(node.outputs.iter().map(|v| (*v, at)));
            }
            let dtype = |v: &u32| match *v {
                NO_OPERAND => None,
                v => Some(graph.program.values[v as usize].ty.dtype),
            };
            let operands: Vec<Option<DType>> = node.inputs.iter().map(dtype).collect();
            let on_host = graph.kind[*n as usize] == InstrKind::Kernel;
            let kind = match (&node.outputs[..], convoke_graph::ops::lookup(&node.op)) {
                ([_], Some(def)) if on_host => {
                    let spec = Spec {
                        def,
                        attrs: &node.attrs,
                        operands: &operands,
                    };
                    graph.kind_in_chains(node, &spec)
                }
                _ => Kind::Other,
            };
            let mut inputs = node.inputs.clone();
            if let Kind::Decode(..) | Kind::Encode(..) = kind {
                // The parameters are part of the function.
                inputs.truncate(1);
            }
            candidates.push(Candidate {
                kind,
                inputs,
                output: node.outputs.first().copied().unwrap_or(NO_OPERAND),
            });
        }
        View {
            graph,
            candidates,
            made_at,
        }
    }
}

impl fusion::Graph for View<'_> {
    fn node(&self, at: usize) -> &Candidate {
        &self.candidates[at]
    }

    fn made_at(&self, value: u32) -> Option<usize> {
        self.made_at.get(&value).copied()
    }

    fn uses(&self, value: u32) -> u32 {
        self.graph.uses[value as usize]
    }

    fn alike(&self, a: u32, b: u32) -> bool {
        self.graph.alike(a, b)
    }

    fn is_constant(&self, value: u32) -> bool {
        self.graph.is_constant(value)
    }
}
