use convoke_graph::DType::{self, F32};
use convoke_graph::Dim;
use convoke_graph::graph::{Attr, Attrs, TensorType, Value};
use convoke_graph::program::{NO_OPERAND, NUMERICS_PROFILE, ProgramNode, RecvSlot, SendEdge};

use super::*;
use crate::cpu::OperandPlace::{Constant, Last, Nothing, Read};
use crate::program::installed::kernel;

/// A program over values `v0`, `v1`, …; its nodes are (op, operands, result, priority).
struct TestProgram {
    types: Vec<TensorType>,
    constants: Vec<u32>,
    recvs: Vec<u32>,
    nodes: Vec<(&'static str, Vec<u32>, u32, u64)>,
    sends: Vec<u32>,
}

impl TestProgram {
    fn new(recvs: &[u32], nodes: &[(&'static str, &[u32], u32)], sends: &[u32]) -> TestProgram {
        let nodes = nodes.iter().map(|(op, i, o)| (*op, i.to_vec(), *o, 0));
        TestProgram {
            types: vec![TensorType::fixed(F32, &[2, 3]); 32],
            constants: vec![],
            recvs: recvs.to_vec(),
            nodes: nodes.collect(),
            sends: sends.to_vec(),
        }
    }

    fn constant(mut self, value: u32) -> TestProgram {
        self.constants.push(value);
        self
    }

    fn priority(mut self, node: usize, priority: u64) -> TestProgram {
        self.nodes[node].3 = priority;
        self
    }

    fn lowered(&self) -> LoweredProgram {
        let value = |(i, ty): (usize, &TensorType)| Value {
            name: format!("v{i}").into(),
            ty: ty.clone(),
        };
        let node = |(op, inputs, output, priority): &(&str, Vec<u32>, u32, u64)| ProgramNode {
            name: format!("n{output}").into(),
            op: (*op).into(),
            attrs: match *op {
                "Transpose" => Attrs::default().with("perm", Attr::Ints(vec![1, 0])),
                "Cast" => {
                    let to = self.types[*output as usize].dtype;
                    Attrs::default().with("to", Attr::DType(to))
                }
                _ => Attrs::default(),
            },
            inputs: inputs.clone(),
            outputs: vec![*output],
            priority: *priority,
            cost: 1,
        };
        let recv = |value: &u32| RecvSlot {
            value: *value,
            from: 1,
        };
        let send = |value: &u32| SendEdge {
            value: *value,
            to: 1,
            slot: 0,
            priority: 0,
        };
        let program = Program {
            name: "given".into(),
            function: Default::default(),
            profile: NUMERICS_PROFILE.into(),
            values: self.types.iter().enumerate().map(value).collect(),
            literals: vec![],
            artifacts: vec![],
            nodes: self.nodes.iter().map(node).collect(),
            init_nodes: 0,
            recvs: self.recvs.iter().map(recv).collect(),
            sends: self.sends.iter().map(send).collect(),
        };
        let mut constants = vec![None; self.types.len()];
        for v in &self.constants {
            constants[*v as usize] = Some(Tensor::zeros(F32, &[2, 3]).unwrap());
        }
        let kernels = program.nodes.iter();
        let kernels: Vec<_> = kernels.map(|n| kernel(&program, n).unwrap()).collect();
        let kinds = vec![InstrKind::Kernel; program.nodes.len()];
        LoweredProgram::new(&program, &constants, &kernels, kinds).unwrap()
    }
}

/// The nodes of each instruction of each sequence; a node is listed by its result.
fn listing(given: &TestProgram) -> Vec<Vec<Vec<u32>>> {
    let code = given.lowered();
    let nodes = |i: u32| -> Vec<u32> {
        let members = code.members(i).iter();
        members.map(|m| given.nodes[*m as usize].2).collect()
    };
    let sequences = code.sequences.iter();
    sequences
        .map(|r| (r.first..r.end).map(nodes).collect())
        .collect()
}

#[test]
fn nodes_that_wait_for_the_same_are_a_region() {
    let given = TestProgram::new(
        &[0, 1],
        &[
            ("Softmax", &[0], 2),
            ("Softmax", &[1], 3),
            ("MatMul", &[2, 3], 4),
            ("Softmax", &[2], 5),
            ("MatMul", &[5, 4], 6),
            ("Softmax", &[7], 8),
        ],
        &[6, 8],
    )
    .constant(7);
    let mut given = given;
    given.types[3] = TensorType::fixed(F32, &[3, 3]);
    given.types[1] = given.types[3].clone();
    let want: &[&[&[u32]]] = &[&[&[2], &[5]], &[&[3]], &[&[4], &[6]], &[&[8]]];
    assert_eq!(listing(&given), want);
    let code = given.lowered();
    // The sequences wait for x; for y; for 2, 3 and 5; and for nothing.
    assert_eq!(code.missing, [1, 1, 3, 0]);
    assert_eq!(code.waits.row(0), [0]);
    assert_eq!(code.waits.row(5), [2]);
    assert_eq!(code.waits.row(6), [0; 0]);
    assert_eq!(code.sends.row(6), [0]);
    assert_eq!(code.events, 6 + 2);
    let crosses: Vec<bool> = (0..6).map(|i| code.instr(i).crosses).collect();
    assert_eq!(crosses, [true, true, true, false, true, true]);
}

#[test]
fn the_most_urgent_runs_first_in_its_region() {
    let nodes: &[(&str, &[u32], u32)] = &[
        ("Softmax", &[0], 1),
        ("Softmax", &[0], 2),
        ("Softmax", &[2], 3),
    ];
    let given = || TestProgram::new(&[0], nodes, &[1, 2, 3]);
    assert_eq!(listing(&given()), [[[1], [2], [3]]]);
    assert_eq!(
        listing(&given().priority(1, 5).priority(2, 4)),
        [[[2], [3], [1]]]
    );
}

#[test]
fn a_register_serves_one_value_after_the_other() {
    let code = TestProgram::new(
        &[0],
        &[
            ("Softmax", &[0], 1),
            ("Softmax", &[1], 2),
            ("MatMul", &[2, 9], 3),
            ("Concat", &[2, 3], 4),
            ("MatMul", &[4, 4], 5),
        ],
        &[5],
    )
    .constant(9);
    let mut given = code;
    given.nodes[3].0 = "MatMul";
    for v in [2, 3, 4, 9] {
        given.types[v] = TensorType::fixed(F32, &[2, 2]);
    }
    let code = given.lowered();
    let home = code.home(0).unwrap();
    let places = |i: u32| -> Vec<_> { code.operands(i).iter().map(|s| s.place()).collect() };
    let made = |i: u32| code.results(i)[0].register;
    // An arrival keeps its own register; value 2 takes over the register of value 1.
    assert_eq!(places(0), [Last(home)]);
    assert_eq!(places(1), [Last(made(0))]);
    assert_eq!(made(0), made(1));
    assert_eq!(places(2), [Read(made(1)), Constant(0)]);
    assert_ne!(made(1), made(2));
    let mut both = places(3);
    both.sort_by_key(|p| format!("{p:?}"));
    assert_eq!(places(3), [Last(made(1)), Last(made(2))]);
    // A value that one node reads twice must not be overwritten, and ends once.
    assert_eq!(places(4), [Read(made(3)), Read(made(3))]);
    let end = End {
        register: made(3),
        count: NONE,
    };
    assert_eq!(code.ends(4), [end]);
    assert_eq!(made(4), NONE);
    assert_eq!(code.registers, 3);
}

#[test]
fn what_several_regions_read_is_counted() {
    let given = TestProgram::new(
        &[0, 1, 2],
        &[
            ("Softmax", &[0], 3),
            ("Sum", &[3, 1], 4),
            ("Sum", &[3, 2], 5),
            ("Softmax", &[3], 6),
        ],
        &[4, 5, 6],
    );
    let code = given.lowered();
    assert_eq!(code.counts, [3]);
    let ends: Vec<u32> = (0..4)
        .flat_map(|i| code.ends(i).iter().map(|e| e.count))
        .filter(|c| *c != NONE)
        .collect();
    assert_eq!(ends, [0, 0, 0]);
    for i in 0..4 {
        let shared = code.ends(i).iter().find(|e| e.count != NONE);
        let reads = code.operands(i).iter().map(|s| s.place());
        if let Some(end) = shared {
            assert!(reads.clone().any(|p| p == Read(end.register)));
        }
    }
}

#[test]
fn chains_become_one_instruction() {
    let chain: &[(&str, &[u32], u32)] = &[
        ("Add", &[0, 9], 1),
        ("Tanh", &[1], 2),
        ("Mul", &[2, 1], 3),
        ("Softmax", &[3], 4),
    ];
    let given = || TestProgram::new(&[0], chain, &[4]).constant(9);
    assert_eq!(listing(&given()), [vec![vec![1, 2, 3], vec![4]]]);
    let code = given().lowered();
    let places: Vec<_> = code.operands(0).iter().map(|s| s.place()).collect();
    assert_eq!(places, [Last(code.home(0).unwrap()), Constant(0)]);
    assert_eq!(code.sizes(0).unwrap()[0].1.as_slice(), [2, 3]);
    // Values that are sent or have another dtype or shape are not fused, and neither are nodes that may fail.
    let mut sent = given();
    sent.sends.push(2);
    assert_eq!(listing(&sent), [vec![vec![1], vec![2], vec![3], vec![4]]]);
    for dtype in [DType::I64, DType::F64] {
        let mut given = given();
        given.nodes.pop();
        given.nodes[1].0 = "Neg";
        given.sends = vec![3];
        given.constants.clear();
        given.recvs.push(9);
        given.types = vec![TensorType::fixed(dtype, &[2, 3]); 10];
        let fused = dtype == DType::F64;
        assert_eq!(listing(&given).concat().len(), if fused { 1 } else { 3 });
    }
}

#[test]
fn conversions_and_reductions_join_chains() {
    let nodes: &[(&str, &[u32], u32)] = &[
        ("Cast", &[0], 1),
        ("Neg", &[1], 2),
        ("ReduceSum", &[2], 3),
        ("Neg", &[3], 4),
        ("Cast", &[4], 5),
    ];
    let given = |shape: &[Dim]| {
        let mut given = TestProgram::new(&[0], nodes, &[5]);
        given.types = vec![TensorType::fixed(F32, &[1, 1]); 6];
        for (v, dtype) in [(0, DType::F16), (1, F32), (2, F32)] {
            given.types[v] = TensorType {
                dtype,
                shape: shape.into(),
            };
        }
        given.types[5].dtype = DType::F16;
        given
    };
    let rows = Dim::Const(2);
    let fixed = given(&[rows.clone(), Dim::Const(3)]);
    assert_eq!(listing(&fixed), [vec![vec![1, 2, 3], vec![4, 5]]]);
    let sizes = fixed.lowered().sizes(0).unwrap()[0].1.to_vec();
    assert_eq!(sizes, [1, 1]);
    // Rows of unknown length are reduced by a kernel of their own; a conversion needs no known size.
    let unknown = given(&[rows, Dim::sym("n")]);
    assert_eq!(listing(&unknown), [vec![vec![1, 2], vec![3], vec![4, 5]]]);
}

#[test]
fn sizes_are_known_where_nothing_changes_them() {
    let nodes: &[(&str, &[u32], u32)] = &[
        ("Softmax", &[0], 1),
        ("Transpose", &[1], 2),
        ("Softmax", &[3], 4),
        ("MatMul", &[4, 2], 5),
    ];
    let mut given = TestProgram::new(&[0, 3], nodes, &[2, 5]);
    given.types[2] = TensorType::fixed(F32, &[3, 2]);
    for v in [3, 4] {
        given.types[v].shape = vec![Dim::sym("n"), Dim::Const(3)];
    }
    given.types[5].shape = vec![Dim::sym("n"), Dim::Const(2)];
    let code = given.lowered();
    let shape = |i: u32| code.sizes(i).map(|s| s[0].1.to_vec());
    let all: Vec<_> = (0..4).map(shape).collect();
    assert_eq!(all, [Some(vec![2, 3]), Some(vec![3, 2]), None, None]);
}

#[test]
fn operands_left_out_stay_out() {
    let given = TestProgram::new(&[0], &[("Clip", &[0, NO_OPERAND, 9], 1)], &[1]).constant(9);
    let code = given.lowered();
    let places: Vec<_> = code.operands(0).iter().map(|s| s.place()).collect();
    assert_eq!(places, [Last(code.home(0).unwrap()), Nothing, Constant(0)]);
}
