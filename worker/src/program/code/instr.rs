//! The instructions of a lowered program: what each does, and where its operands and results are noted.

use convoke_graph::ops::{self, HandleOp, Op};
use convoke_graph::program::{PARTITIONED, ProgramNode};

/// Stands for no register, no counter, no kernel, or no sizes.
pub const NONE: u32 = u32::MAX;

/// The kinds of instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstrKind {
    /// The instruction launches its kernel.
    Kernel,
    /// The instruction reads or fills a handle of the caller.
    Handle(HandleAccess),
    /// The instruction concerns the worker's device.
    Device(DeviceInstr),
    /// The instruction drives partitioned bodies, whose results arrive later.
    Partitioned,
}

impl InstrKind {
    /// The kind of a node that no device runs.
    pub fn on_host(node: &ProgramNode) -> InstrKind {
        match HandleAccess::of(node) {
            Some(access) => InstrKind::Handle(access),
            None if node.attrs.get(PARTITIONED).is_some() => InstrKind::Partitioned,
            None => InstrKind::Kernel,
        }
    }
}

/// The instructions that concern a device with memory of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceInstr {
    /// Launches the device node of this number.
    Launch(u32),
    /// Copies a host tensor to the device.
    CopyIn,
    /// Copies a device tensor to the host, where it arrives later.
    CopyOut,
    /// Gives the shape of a device tensor, or the number of its elements, as a host tensor.
    Shape,
}

/// The operation of a node on a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandleAccess {
    /// The node `HandleIn`: the step reads the handle's tensor. With `donate` the step takes it over.
    Lend { donate: bool },
    /// The node `HandleOut`: the step fills the handle.
    Fill,
}

impl HandleAccess {
    /// The operation of a node; `None` for a node that works on no handle.
    pub fn of(node: &ProgramNode) -> Option<HandleAccess> {
        match ops::lookup(&node.op)?.op {
            Op::Handle(HandleOp::HandleIn) => Some(HandleAccess::Lend {
                donate: node.attrs.int("donate", 0) != 0,
            }),
            Op::Handle(HandleOp::HandleOut) => Some(HandleAccess::Fill),
            _ => None,
        }
    }
}

/// One instruction. Its entries in the arrays of [`LoweredProgram`](super::LoweredProgram) reach from its indices to
/// those of the next instruction.
#[derive(Debug, Clone, Copy)]
pub struct Instr {
    /// The first of the step nodes that the instruction computes.
    pub node: u32,
    pub(super) kernel: u32,
    /// The index of the results' sizes; [`NONE`] where they are not known.
    pub(super) sizes: u32,
    pub(super) operands: u32,
    pub(super) results: u32,
    pub(super) ends: u32,
    pub(super) members: u32,
    pub kind: InstrKind,
    /// Whether a result is sent, or another sequence waits for it.
    pub crosses: bool,
}

/// A result of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultRegister {
    pub value: u32,
    /// The register that keeps the result; [`NONE`] where no instruction reads it.
    pub register: u32,
}

/// A register whose tensor is freed once an instruction has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    pub register: u32,
    /// The counter of the sequences that have yet to read the register; [`NONE`] where only this sequence reads it.
    pub count: u32,
}

/// Instructions that run one after the other without waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence {
    pub first: u32,
    pub end: u32,
}
