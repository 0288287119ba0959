//! Dividing the step part of a program between a worker's host and its device.
//!
//! ```text
//! x (recv) ── copy in ──> MatMul ──> Add ── copy out ──> send          Shape, integer arithmetic: on the host
//! ```
//! The result is a program like the one that was given, with nodes that copy, and says for each node where it runs. A
//! value that a device node makes keeps its index, and its host copy is a new value; a value of the host keeps its index
//! as well, and its copy on the device is a new value. Constants have one index in both places.
//!
//! Invariants
//! 1. A host node reads values of the host only. A device node reads host operands from the host, and all others from
//!    the device. Only values of the host are sent.
//! 2. A value is copied at most once in each direction.
//! 3. Host operands and shape arithmetic stay on the host: an integer result of at most one dimension is computed there
//!    where its operands are there, and the shape of a device tensor is read without copying the tensor. So do strings.

use std::sync::Arc;

use convoke_common::error::{Error, Result};
use convoke_graph::DType;
use convoke_graph::graph::{Attrs, Value};
use convoke_graph::ops;
use convoke_graph::program::{NO_OPERAND, Program, ProgramNode};
use smallvec::SmallVec;

use super::side::{Side, SideFacts, is_arithmetic, side};
use super::{Device, DeviceKernel, DeviceOp};
use crate::cpu::is_host;
use crate::program::code::{DeviceInstr, InstrKind};

/// A node that the device runs.
pub struct DeviceNode {
    pub kernel: DeviceKernel,
    /// By operand, whether it is a host operand.
    pub host: SmallVec<[bool; 8]>,
}

/// A program whose step part is divided between host and device.
pub struct SplitProgram {
    /// The program, with nodes that copy values.
    pub program: Arc<Program>,
    /// By step node, where it runs.
    pub kinds: Vec<InstrKind>,
    /// The nodes that the device runs, as [`DeviceInstr::Launch`] numbers them.
    pub nodes: Vec<DeviceNode>,
}

/// The value that stands for another one in the other memory.
#[derive(Clone, Copy, Default)]
struct Places {
    host: Option<u32>,
    device: Option<u32>,
}

struct Splitter<'a> {
    device: &'a dyn Device,
    values: Vec<Value>,
    /// By value of the given program, the values that have its elements.
    places: Vec<Places>,
    /// By value of the given program, the priority of the node that makes it.
    priorities: Vec<u64>,
    nodes: Vec<ProgramNode>,
    kinds: Vec<InstrKind>,
    launched: Vec<DeviceNode>,
}

/// Divides the step part of a checked program. `constants` says of each value whether it outlives steps. Returns `None`
/// if the device runs none of its nodes.
pub(crate) fn split(
    program: &Program,
    constants: &[bool],
    device: &dyn Device,
) -> Result<Option<SplitProgram>> {
    let init = program.init_nodes as usize;
    let mut s = Splitter {
        device,
        values: program.values.clone(),
        places: vec![Places::default(); program.values.len()],
        priorities: vec![0; program.values.len()],
        nodes: vec![],
        kinds: vec![],
        launched: vec![],
    };
    for (v, _) in constants.iter().enumerate().filter(|(_, is)| **is) {
        let v = v as u32;
        s.places[v as usize] = Places {
            host: Some(v),
            device: Some(v),
        };
    }
    for recv in &program.recvs {
        s.places[recv.value as usize].host = Some(recv.value);
    }
    for node in &program.nodes[init..] {
        s.node(node)?;
    }
    if s.launched.is_empty() {
        return Ok(None);
    }
    let mut sends = program.sends.clone();
    for send in &mut sends {
        send.value = s.on_host(send.value)?;
    }
    let mut nodes = program.nodes[..init].to_vec();
    nodes.append(&mut s.nodes);
    let split = Program {
        values: s.values,
        nodes,
        sends,
        ..program.clone()
    };
    let malformed = |e: &dyn std::fmt::Display| Error::internal(format!("a divided program: {e}"));
    split.check().map_err(|e| malformed(&e))?;
    Ok(Some(SplitProgram {
        program: Arc::new(split),
        kinds: s.kinds,
        nodes: s.launched,
    }))
}

impl Splitter<'_> {
    fn push(&mut self, node: ProgramNode, kind: InstrKind) {
        self.nodes.push(node);
        self.kinds.push(kind);
    }

    /// Adds a node that copies a value, and returns the copy.
    fn copy(&mut self, value: u32, kind: DeviceInstr, priority: u64) -> u32 {
        let copy = self.values.len() as u32;
        let copied = self.values[value as usize].clone();
        let to = match kind {
            DeviceInstr::CopyOut => "host",
            _ => "device",
        };
        let name = format!("copy of {} to the {to}", copied.name);
        self.values.push(copied);
        let node = ProgramNode {
            name: name.into(),
            op: "Identity".into(),
            attrs: Attrs::default(),
            inputs: vec![value],
            outputs: vec![copy],
            priority,
            cost: 0,
        };
        self.push(node, InstrKind::Device(kind));
        copy
    }

    fn on_host(&mut self, value: u32) -> Result<u32> {
        let places = self.places[value as usize];
        let there = match (places.host, places.device) {
            (Some(host), _) => host,
            (None, Some(device)) => {
                let priority = self.priorities[value as usize];
                self.copy(device, DeviceInstr::CopyOut, priority)
            }
            (None, None) => return Err(Error::internal("a value is read before it is made")),
        };
        self.places[value as usize].host = Some(there);
        Ok(there)
    }

    fn on_device(&mut self, value: u32, priority: u64) -> Result<u32> {
        let places = self.places[value as usize];
        let there = match (places.device, places.host) {
            (Some(device), _) => device,
            (None, Some(host)) => self.copy(host, DeviceInstr::CopyIn, priority),
            (None, None) => return Err(Error::internal("a value is read before it is made")),
        };
        self.places[value as usize].device = Some(there);
        Ok(there)
    }

    fn node(&mut self, node: &ProgramNode) -> Result<()> {
        for v in &node.outputs {
            self.priorities[*v as usize] = node.priority;
        }
        let kind = self.kind(node);
        let mut inputs = node.inputs.clone();
        for (i, v) in inputs.iter_mut().enumerate() {
            if *v == NO_OPERAND {
                continue;
            }
            *v = match kind {
                InstrKind::Device(DeviceInstr::Launch(at)) => {
                    match self.launched[at as usize].host.get(i) {
                        Some(true) => self.on_host(*v)?,
                        _ => self.on_device(*v, node.priority)?,
                    }
                }
                InstrKind::Device(_) => self.on_device(*v, node.priority)?,
                InstrKind::Kernel | InstrKind::Handle(_) | InstrKind::Partitioned => {
                    self.on_host(*v)?
                }
            };
        }
        let launches = matches!(kind, InstrKind::Device(DeviceInstr::Launch(_)));
        for v in &node.outputs {
            let places = &mut self.places[*v as usize];
            match launches {
                true => places.device = Some(*v),
                false => places.host = Some(*v),
            }
        }
        let node = ProgramNode {
            inputs,
            ..node.clone()
        };
        self.push(node, kind);
        Ok(())
    }

    /// Where a node runs.
    fn kind(&mut self, node: &ProgramNode) -> InstrKind {
        match InstrKind::on_host(node) {
            InstrKind::Kernel => {}
            other => return other,
        }
        let Some(def) = ops::lookup(&node.op) else {
            return InstrKind::Kernel;
        };
        let type_of = |v: &u32| self.values.get(*v as usize).map(|value| &value.ty);
        let is_text = |v: &u32| type_of(v).is_some_and(|ty| ty.dtype == DType::Str);
        let on_host = |v: &u32| *v == NO_OPERAND || self.places[*v as usize].host.is_some();
        let mut made = node.outputs.iter().filter_map(type_of);
        let facts = SideFacts {
            text: node.inputs.iter().chain(&node.outputs).any(is_text),
            on_host: node.inputs.iter().all(on_host),
            arithmetic: made.all(|ty| is_arithmetic(ty.dtype, ty.shape.len())),
        };
        match side(def, &facts) {
            Side::Host => return InstrKind::Kernel,
            Side::Shape => return InstrKind::Device(DeviceInstr::Shape),
            Side::Device => {}
        }
        let dtype = |v: &u32| type_of(v).map(|ty| ty.dtype);
        let operands: Vec<Option<DType>> = node.inputs.iter().map(dtype).collect();
        let kernel = self.device.resolve(&DeviceOp {
            def,
            attrs: &node.attrs,
            operands: &operands,
            outputs: node.outputs.len(),
        });
        match kernel {
            None => InstrKind::Kernel,
            Some(kernel) => {
                let host = (0..node.inputs.len()).map(|i| is_host(def, i)).collect();
                self.launched.push(DeviceNode { kernel, host });
                let at = self.launched.len() as u32 - 1;
                InstrKind::Device(DeviceInstr::Launch(at))
            }
        }
    }
}
