//! A program is divided so that each node runs where its kernel is, and each value is copied where it is read.

use std::sync::Arc;

use convoke_common::error::Result;
use convoke_common::memory::{Ledger, Purpose};
use convoke_common::world::Share;
use convoke_graph::graph::{Attrs, Literal, TensorType, Value};
use convoke_graph::ops::KernelSet;
use convoke_graph::program::{NUMERICS_PROFILE, Program, ProgramNode, RecvSlot, SendEdge};
use convoke_graph::{DType, Dim, Tensor};

use super::{Device, DeviceKernel, DeviceOp, DeviceQueue, split};
use crate::program::code::{DeviceInstr, InstrKind};

/// A device that has kernels for these ops; nothing runs on it.
struct Having(&'static [&'static str]);

impl Device for Having {
    fn kernels(&self) -> KernelSet {
        KernelSet::all()
    }

    fn resolve(&self, op: &DeviceOp<'_>) -> Option<DeviceKernel> {
        let has = self.0.contains(&op.def.name);
        has.then(|| Arc::new(()) as DeviceKernel)
    }

    fn open(&self, _: &Share, _: &Ledger, _: Purpose, _: u64) -> Result<Arc<dyn DeviceQueue>> {
        Err(convoke_common::Error::internal(
            "a device that runs nothing",
        ))
    }
}

/// A node: op, operands, result.
type GivenNode = (&'static str, &'static [u32], u32);

/// A program over values of the types `types`, of which the first `recvs` arrive.
fn program(types: &[(DType, usize)], recvs: u32, nodes: &[GivenNode], sends: &[u32]) -> Program {
    let value = |(i, (dtype, rank)): (usize, &(DType, usize))| Value {
        name: format!("v{i}").into(),
        ty: TensorType::new(*dtype, vec![Dim::Const(2); *rank]),
    };
    let node = |(op, inputs, output): &GivenNode| ProgramNode {
        name: format!("n{output}").into(),
        op: (*op).into(),
        attrs: Attrs::default(),
        inputs: inputs.to_vec(),
        outputs: vec![*output],
        priority: 1,
        cost: 1,
    };
    let send = |(slot, value): (usize, &u32)| SendEdge {
        value: *value,
        to: 1,
        slot: slot as u32,
        priority: 1,
    };
    Program {
        name: "m".into(),
        function: Default::default(),
        profile: NUMERICS_PROFILE.into(),
        values: types.iter().enumerate().map(value).collect(),
        literals: vec![],
        artifacts: vec![],
        nodes: nodes.iter().map(node).collect(),
        init_nodes: 0,
        recvs: (0..recvs)
            .map(|value| RecvSlot { value, from: 1 })
            .collect(),
        sends: sends.iter().enumerate().map(send).collect(),
    }
}

/// The nodes of the divided program, each with its side, its name and its operands; then the sends.
fn listing(program: &Program, constants: &[u32], device: &Having) -> Vec<String> {
    let outlive: Vec<bool> = (0..program.values.len() as u32)
        .map(|v| constants.contains(&v))
        .collect();
    let literal = |v: &u32| {
        (
            *v,
            Literal::Inline(Tensor::zeros(DType::F32, &[2, 2]).unwrap()),
        )
    };
    let program = &Program {
        literals: constants.iter().map(literal).collect(),
        ..program.clone()
    };
    let Some(split) = split(program, &outlive, device).unwrap() else {
        return vec![];
    };
    let nodes = split.program.nodes.iter().zip(&split.kinds);
    let mut lines: Vec<String> = nodes
        .map(|(node, kind)| {
            let kind = match kind {
                InstrKind::Kernel | InstrKind::Handle(_) | InstrKind::Partitioned => "host",
                InstrKind::Device(DeviceInstr::Launch(_)) => "device",
                InstrKind::Device(DeviceInstr::CopyIn) => "in",
                InstrKind::Device(DeviceInstr::CopyOut) => "out",
                InstrKind::Device(DeviceInstr::Shape) => "shape",
            };
            let inputs: Vec<String> = node.inputs.iter().map(u32::to_string).collect();
            let output = node.outputs[0];
            format!("{kind} {}({}) {output}", node.op, inputs.join(" "))
        })
        .collect();
    lines.push(format!(
        "sent {:?}",
        split
            .program
            .sends
            .iter()
            .map(|s| s.value)
            .collect::<Vec<_>>()
    ));
    lines
}

const F: (DType, usize) = (DType::F32, 2);
const SIZES: (DType, usize) = (DType::I64, 1);

#[test]
fn what_the_device_lacks_runs_on_the_host_between_copies() {
    let nodes: &[GivenNode] = &[("Neg", &[0], 1), ("Abs", &[1], 2), ("Neg", &[2], 3)];
    let p = program(&[F; 4], 1, nodes, &[3]);
    let want = [
        "in Identity(0) 4",
        "device Neg(4) 1",
        "out Identity(1) 5",
        "host Abs(5) 2",
        "in Identity(2) 6",
        "device Neg(6) 3",
        "out Identity(3) 7",
        "sent [7]",
    ];
    assert_eq!(listing(&p, &[], &Having(&["Neg"])), want);
    assert!(listing(&p, &[], &Having(&["Add"])).is_empty());
}

#[test]
fn a_value_is_copied_once_in_each_direction() {
    let nodes: &[GivenNode] = &[("Neg", &[0], 1), ("Add", &[1, 0], 2), ("Abs", &[1], 3)];
    let p = program(&[F; 4], 1, nodes, &[1, 1, 0]);
    let want = [
        "in Identity(0) 4",
        "device Neg(4) 1",
        "device Add(1 4) 2",
        "out Identity(1) 5",
        "host Abs(5) 3",
        "sent [5, 5, 0]",
    ];
    assert_eq!(listing(&p, &[], &Having(&["Neg", "Add"])), want);
}

#[test]
fn constants_are_in_both_places() {
    let nodes: &[GivenNode] = &[("Add", &[0, 1], 2), ("Abs", &[1], 3)];
    let p = program(&[F; 4], 1, nodes, &[2]);
    let want = [
        "in Identity(0) 4",
        "device Add(4 1) 2",
        "host Abs(1) 3",
        "out Identity(2) 5",
        "sent [5]",
    ];
    assert_eq!(listing(&p, &[1], &Having(&["Add"])), want);
}

#[test]
fn shapes_and_their_arithmetic_stay_on_the_host() {
    // y = -x, s = shape(y), t = s * s, z = reshape(y, t)
    let nodes: &[GivenNode] = &[
        ("Neg", &[0], 1),
        ("Shape", &[1], 2),
        ("Mul", &[2, 2], 3),
        ("Reshape", &[1, 3], 4),
    ];
    let p = program(&[F, F, SIZES, SIZES, F], 1, nodes, &[4]);
    let want = [
        "in Identity(0) 5",
        "device Neg(5) 1",
        "shape Shape(1) 2",
        "host Mul(2 2) 3",
        "device Reshape(1 3) 4",
        "out Identity(4) 6",
        "sent [6]",
    ];
    let device = Having(&["Neg", "Mul", "Reshape"]);
    assert_eq!(listing(&p, &[], &device), want);
    // The shape of a host value is read on the host.
    let nodes: &[GivenNode] = &[("Shape", &[0], 1), ("Neg", &[0], 2)];
    let p = program(&[F, SIZES, F], 1, nodes, &[1]);
    let want = [
        "host Shape(0) 1",
        "in Identity(0) 3",
        "device Neg(3) 2",
        "sent [1]",
    ];
    assert_eq!(listing(&p, &[], &device), want);
}
