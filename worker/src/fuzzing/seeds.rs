//! Seeds of the corpora: a grant, the page of a process that died in a kernel, and batches of a session.

#[path = "../../../fuzz/src/seed.rs"]
mod seed;

use std::sync::Arc;

use convoke_common::error::{Code, Error};
use convoke_common::grant::Participant;
use convoke_common::ids::{Incarnation, LeaseId, PlanId};
use convoke_graph::artifact::{ArtifactMeta, CHUNK};
use convoke_graph::graph::{Attr, Attrs, TensorType, Value};
use convoke_graph::ids::FunctionId;
use convoke_graph::program::{
    Axes, HashedProgram, NUMERICS_PROFILE, ProgramNode, RecvSlot, SendEdge,
};
use convoke_graph::{DType, Dim, Tensor};
use convoke_rendezvous::eager::wire::{Command, Definition, Operand, put_run};

use super::*;
use seed::Seed;

fn node(name: &str, op: &str, attrs: Attrs, inputs: &[u32], output: u32) -> ProgramNode {
    ProgramNode {
        name: name.into(),
        op: op.into(),
        attrs,
        inputs: inputs.to_vec(),
        outputs: vec![output],
        priority: 2,
        cost: 1,
    }
}

/// The program `y = Softmax(x + Neg(w) + c)`, where the sum of `Neg(w)` and `c` is made at install.
fn program() -> Program {
    let value = |name: &str, shape: &[Dim]| Value {
        name: name.into(),
        ty: TensorType::new(DType::F32, shape.to_vec()),
    };
    let (n, four) = (Dim::sym("n"), Dim::Const(4));
    let dynamic = [n, four.clone()];
    let names = ["w", "c", "neg", "bias", "x", "sum", "y"];
    let values = names.iter().enumerate().map(|(i, name)| match i {
        0..4 => value(name, std::slice::from_ref(&four)),
        _ => value(name, &dynamic),
    });
    let axis = Attrs::default().with("axis", Attr::Int(-1));
    let constant = Tensor::from_slice(&[4], &[1f32, 2., 3., 4.]).unwrap();
    let range = Literal::Range {
        artifact: 0,
        offset: 16,
        len: 16,
    };
    let none = Attrs::default;
    Program {
        name: "test".into(),
        function: FunctionId([7; 32]),
        profile: NUMERICS_PROFILE.into(),
        values: values.collect(),
        literals: vec![(0, range), (1, Literal::Inline(constant))],
        artifacts: vec![ArtifactMeta::new(
            "w.bin".into(),
            CHUNK + 5,
            vec![[3; 32]; 2],
        )],
        nodes: vec![
            node("neg", "Neg", none(), &[0], 2),
            node("bias", "Add", none(), &[2, 1], 3),
            node("sum", "Add", none(), &[4, 3], 5),
            node("y", "Softmax", axis, &[5], 6),
        ],
        init_nodes: 2,
        recvs: vec![RecvSlot { value: 4, from: 2 }],
        sends: vec![SendEdge {
            value: 6,
            to: 1,
            slot: 0,
            priority: 1,
        }],
    }
}

fn grant() -> Grant {
    let member = |name: &str, address: &str| Participant {
        name: name.into(),
        incarnation: Incarnation(3),
        address: address.into(),
    };
    Grant {
        lease: LeaseId(1),
        plan: PlanId(2),
        program: HashedProgram::new(Arc::new(program())).unwrap().id(),
        me: 0,
        participants: vec![
            member("w0", "10.0.0.1:7000"),
            member("w1", "10.0.0.2:7000"),
            member("driver", ""),
        ],
        axes: Axes {
            bounds: vec![("n".into(), 8)],
        },
        in_flight: 2,
        step_bytes: 4096,
        bodies: vec![],
    }
}

/// A page of two records; with `own` the second is that of the thread that raised the signal.
fn page(own: bool) -> Vec<u8> {
    let mut page = vec![0; 256];
    page[..8].copy_from_slice(b"cvkbox\x00\x01");
    page[8..16].copy_from_slice(&5u64.to_ne_bytes());
    page[16..20].copy_from_slice(&11u32.to_ne_bytes());
    page[20..24].copy_from_slice(&(if own { 42u32 } else { 1 }).to_ne_bytes());
    for (thread, name) in [(41u32, "/layer/0/MatMul"), (42, "/layer/1/Softmax")] {
        let mut record = vec![0; 256];
        record[..4].copy_from_slice(&(name.len() as u32).to_ne_bytes());
        record[4..8].copy_from_slice(&thread.to_ne_bytes());
        record[8..40].fill(9);
        record[40..40 + name.len()].copy_from_slice(name.as_bytes());
        page.extend(record);
    }
    page
}

fn op(name: &str, operands: usize) -> Definition {
    Definition {
        index: operands as u32,
        op: name.into(),
        attrs: Attrs::default(),
        operands: vec![Some(DType::F32); operands],
        outputs: 1,
        report: true,
        origin: 1,
    }
}

/// A batch with ops on a value, on a tensor that another worker sends, and on each other; all handles are then given
/// away and dropped.
fn batch(ops: &[Definition; 2]) -> Vec<u8> {
    let mut out = Vec::new();
    let participant = Participant {
        name: "w1".into(),
        incarnation: Incarnation(3),
        address: "10.0.0.1:7000".into(),
    };
    let tensor = Tensor::from_slice(&[2], &[1f32, 2.]).unwrap();
    let origin = 1;
    let first = [
        Command::Origin {
            index: 1,
            place: "src/main.rs:12".into(),
        },
        Command::Peer {
            index: 1,
            participant,
        },
        Command::Define(ops[0].clone()),
        Command::Define(ops[1].clone()),
        Command::Literal { tensor, origin },
    ];
    first.iter().for_each(|c| c.encode(&mut out, 0).unwrap());
    let take = Command::Take {
        peer: 1,
        transfer: 0,
        dtype: DType::F32,
        shape: None,
        origin,
    };
    take.encode(&mut out, 1).unwrap();
    Command::Reserve { origin }.encode(&mut out, 2).unwrap();
    let (own, taken, reserved) = (Operand::Handle(0), Operand::Handle(1), Operand::Handle(2));
    put_run(&mut out, 1, std::slice::from_ref(&own), 3);
    put_run(&mut out, 2, &[own, Operand::Handle(3)], 4);
    put_run(&mut out, 2, &[taken, reserved], 5);
    let give = |handle, peer| Command::Give {
        handle,
        peer,
        transfer: handle,
    };
    let error = Box::new(Error::new(Code::PeerLost, "gone"));
    let last = [
        give(4, 0),
        give(4, 1),
        give(5, 0),
        Command::Fail { transfer: 0, error },
        Command::Abandon(2),
        Command::Account { request: 1 },
        Command::Free(3),
        Command::Free(5),
    ];
    last.iter().for_each(|c| c.encode(&mut out, 6).unwrap());
    out
}

#[test]
fn seeds_are_of_the_current_formats() {
    let entries: Vec<_> = TARGETS.iter().map(|t| (t.name, t.entry)).collect();
    let seeds: Vec<Seed> = vec![
        (
            "install",
            "grant".into(),
            codec::encode(&(grant(), program())).unwrap(),
        ),
        (
            "session",
            "ops".into(),
            batch(&[op("Neg", 1), op("Add", 2)]),
        ),
        (
            "session",
            "no-kernel".into(),
            batch(&[op("Nothing", 1), op("TopK", 2)]),
        ),
        ("blackbox", "dying-thread".into(), page(true)),
        ("blackbox", "another-thread".into(), page(false)),
    ];
    seed::check(&entries, seeds);
}
