//! What a constant is known by: the hash of all that decides its bytes. Pure computation.
//!
//! ```text
//! range of chunks, inline literal ── id ──┐
//! op, attributes, types, ids of operands ─┴── id of each output
//! ```
//!
//! Names of nodes and values, indices and predictions are no part of it, so that the same weight in another program, or
//! in a program for larger axes, has the same id.

use blake3::Hasher;
use convoke_common::error::{Error, Result};
use convoke_graph::artifact::CHUNK;
use convoke_graph::codec;
use convoke_graph::graph::{Literal, TensorType};
use convoke_graph::program::{NO_OPERAND, Program, ProgramNode};

use crate::order::Range;

/// The layout of what kernels make in the init part; another layout is another constant.
const LAYOUT: &[u8] = b"cpu 1";

/// What a constant is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConstantId(pub [u8; 32]);

/// The id of a value that literals and the init part define, and whether weights are loaded to make it.
#[derive(Debug, Clone, Copy)]
pub struct Identified {
    pub id: ConstantId,
    pub loads: bool,
}

/// Adds a field to a hash so that no two lists of fields give the same bytes.
fn field(h: &mut Hasher, bytes: &[u8]) {
    h.update(&(bytes.len() as u64).to_le_bytes());
    h.update(bytes);
}

fn number(h: &mut Hasher, n: u64) {
    h.update(&n.to_le_bytes());
}

fn begin(program: &Program, kind: &[u8], ty: &TensorType) -> Hasher {
    let mut h = Hasher::new();
    field(&mut h, kind);
    field(&mut h, LAYOUT);
    field(&mut h, program.profile.as_bytes());
    field(&mut h, ty.to_string().as_bytes());
    h
}

fn end(h: &Hasher) -> ConstantId {
    ConstantId(*h.finalize().as_bytes())
}

fn of_literal(program: &Program, ty: &TensorType, literal: &Literal) -> Identified {
    match (literal, Range::of(literal)) {
        (_, Some(range)) => {
            let mut h = begin(program, b"range", ty);
            number(&mut h, range.offset % CHUNK);
            number(&mut h, range.len);
            let chunks = program.artifacts.get(range.artifact as usize);
            let chunks = chunks.map_or(&[][..], |meta| &meta.chunks);
            for chunk in range.chunks() {
                let hash = usize::try_from(chunk).ok().and_then(|i| chunks.get(i));
                field(&mut h, hash.map_or(&[][..], |hash| hash));
            }
            let id = end(&h);
            Identified { id, loads: true }
        }
        (Literal::Inline(t), None) => {
            let mut h = begin(program, b"inline", ty);
            field(&mut h, t.signature().as_bytes());
            field(&mut h, t.bytes());
            let id = end(&h);
            Identified { id, loads: false }
        }
        (Literal::Range { .. }, None) => Identified {
            id: end(&begin(program, b"nothing", ty)),
            loads: false,
        },
    }
}

/// The ids of a node's outputs; `None` where an operand has none.
fn of_node(
    program: &Program,
    node: &ProgramNode,
    known: &[Option<Identified>],
) -> Result<Option<Vec<(u32, Identified)>>> {
    let attrs = codec::encode(&node.attrs).map_err(|e| Error::internal(e.to_string()))?;
    let mut loads = false;
    let mut operands = Hasher::new();
    for v in &node.inputs {
        if *v == NO_OPERAND {
            field(&mut operands, b"");
            continue;
        }
        let Some(operand) = known.get(*v as usize).copied().flatten() else {
            return Ok(None);
        };
        loads |= operand.loads;
        field(&mut operands, &operand.id.0);
    }
    let operands = end(&operands);
    let output = |(i, v): (usize, &u32)| {
        let mut h = begin(program, b"node", &program.values[*v as usize].ty);
        field(&mut h, node.op.as_bytes());
        field(&mut h, &attrs);
        field(&mut h, &operands.0);
        number(&mut h, node.outputs.len() as u64);
        number(&mut h, i as u64);
        let id = end(&h);
        (*v, Identified { id, loads })
    };
    Ok(Some(node.outputs.iter().enumerate().map(output).collect()))
}

/// The ids of a checked program's values, by value; `None` for what is no constant.
pub fn identify(program: &Program) -> Result<Vec<Option<Identified>>> {
    let mut known = vec![None; program.values.len()];
    for (v, literal) in &program.literals {
        let ty = &program.values[*v as usize].ty;
        known[*v as usize] = Some(of_literal(program, ty, literal));
    }
    for node in &program.nodes[..program.init_nodes as usize] {
        for (v, identified) in of_node(program, node, &known)?.unwrap_or_default() {
            known[v as usize] = Some(identified);
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use convoke_graph::artifact::ArtifactMeta;
    use convoke_graph::graph::{Attr, Attrs, Value};
    use convoke_graph::ids::FunctionId;
    use convoke_graph::program::NUMERICS_PROFILE;
    use convoke_graph::{DType, Tensor};

    use super::*;

    /// A program that makes value 2 of a range and an inline literal.
    fn program() -> Program {
        let value = |name: &str| Value {
            name: name.into(),
            ty: TensorType::fixed(DType::F32, &[4]),
        };
        let range = Literal::Range {
            artifact: 0,
            offset: CHUNK - 8,
            len: 16,
        };
        let inline = Literal::Inline(Tensor::from_slice(&[4], &[1f32, 2., 3., 4.]).unwrap());
        Program {
            name: "m".into(),
            function: FunctionId::default(),
            profile: NUMERICS_PROFILE.into(),
            values: ["w", "b", "y"].map(value).into(),
            literals: vec![(0, range), (1, inline)],
            artifacts: vec![ArtifactMeta::new(
                "m".into(),
                3 * CHUNK,
                vec![[1; 32], [2; 32], [3; 32]],
            )],
            nodes: vec![ProgramNode {
                name: "add".into(),
                op: "Add".into(),
                attrs: Attrs::default(),
                inputs: vec![0, 1],
                outputs: vec![2],
                priority: 0,
                cost: 0,
            }],
            init_nodes: 1,
            recvs: vec![],
            sends: vec![],
        }
    }

    /// Whether a program that was changed so makes the same constant.
    fn check(same: bool, change: impl FnOnce(&mut Program)) {
        let id = |p: &Program| identify(p).unwrap()[2].unwrap().id;
        let mut changed = program();
        change(&mut changed);
        assert_eq!(id(&program()) == id(&changed), same);
    }

    fn range(p: &mut Program, artifact: u32, offset: u64, len: u64) {
        p.literals[0].1 = Literal::Range {
            artifact,
            offset,
            len,
        };
    }

    #[test]
    fn all_that_decides_the_bytes_decides_the_id_and_nothing_else() {
        check(true, |_| ());
        check(true, |p| p.nodes[0].name = "other".into());
        check(true, |p| p.values[2].name = "z".into());
        check(true, |p| p.nodes[0].cost = 7);
        check(true, |p| p.artifacts[0].path = "elsewhere".into());
        // Chunks that the range does not touch, and where in the file it lies, make no difference.
        check(true, |p| {
            let chunks = vec![[9; 32], [1; 32], [2; 32]];
            p.artifacts[0] = ArtifactMeta::new("n".into(), 3 * CHUNK, chunks);
            range(p, 0, 2 * CHUNK - 8, 16);
        });
        check(false, |p| range(p, 0, CHUNK - 4, 16));
        check(false, |p| range(p, 0, 2 * CHUNK - 8, 16));
        check(false, |p| {
            let chunks = vec![[1; 32], [9; 32], [3; 32]];
            p.artifacts[0] = ArtifactMeta::new("m".into(), 3 * CHUNK, chunks);
        });
        check(false, |p| p.nodes[0].op = "Sub".into());
        check(false, |p| p.nodes[0].inputs = vec![1, 0]);
        check(false, |p| p.profile = "another".into());
        check(false, |p| {
            p.values[2].ty = TensorType::fixed(DType::F32, &[2, 2])
        });
        check(false, |p| {
            p.values[0].ty = TensorType::fixed(DType::I32, &[4])
        });
        check(false, |p| {
            p.nodes[0].attrs = Attrs::default().with("axis", Attr::Int(1));
        });
        check(false, |p| {
            p.literals[1].1 =
                Literal::Inline(Tensor::from_slice(&[4], &[1f32, 2., 3., 5.]).unwrap());
        });
    }

    #[test]
    fn a_constant_loads_weights_where_any_of_its_operands_does() {
        let known = identify(&program()).unwrap();
        let loads: Vec<bool> = known.iter().map(|k| k.unwrap().loads).collect();
        assert_eq!(loads, [true, false, true]);
        let mut inline = program();
        inline.nodes[0].inputs = vec![1, NO_OPERAND];
        assert!(!identify(&Arc::new(inline)).unwrap()[2].unwrap().loads);
    }
}
