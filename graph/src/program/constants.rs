//! The id of a constant: the hash of all that decides its bytes. This module is pure computation.
//!
//! ```text
//! range of chunks, inline literal ── id ──┐
//! op, attributes, types, ids of operands ─┴── id of each output
//! ```
//!
//! Names of nodes and values, indices and predictions are no part of it, so that the same weight in another program, or
//! in a program for larger axes, has the same id, and a function has the ids of the programs that it is cut into.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{NO_OPERAND, Program};
use crate::artifact::{ArtifactMeta, CHUNK, chunks_of};
use crate::codec::{self, CodecError};
use crate::graph::{Attrs, Function, Literal, RunsAt, TensorType, Value};
use crate::tensor::{INLINE, Tensor};

/// The id of a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConstantId(pub [u8; 32]);

/// The identity of a value that literals and the init part define.
#[derive(Debug, Clone, Copy)]
pub struct Constant {
    pub id: ConstantId,
    /// Whether weights are loaded to make it.
    pub loads: bool,
    /// Whether a worker keeps it for all leases that read it: a literal of the graph, and a tensor that takes no memory
    /// and for which nothing is loaded, are left to each lease.
    pub is_shared: bool,
}

/// The definitions of the constants of a program or a function.
struct InitPart<'a> {
    /// The key under which constants are hashed: the numerics profile, and the layout of the tensors that a device's
    /// kernels make in the init part.
    key: [u8; 32],
    values: &'a [Value],
    artifacts: &'a [ArtifactMeta],
}

/// The key under which constants of this numerics profile and layout are hashed.
fn key(profile: &str, layout: &[u8]) -> [u8; 32] {
    let mut h = blake3::Hasher::new();
    for part in [profile.as_bytes(), layout] {
        h.update(&(part.len() as u64).to_le_bytes());
        h.update(part);
    }
    *h.finalize().as_bytes()
}

/// A node of an init part, with the indices of its values.
struct InitNode<'a> {
    op: &'a str,
    attrs: &'a Attrs,
    inputs: Cow<'a, [u32]>,
    outputs: Cow<'a, [u32]>,
}

/// Bytes that the fields of most constants take at most.
const FIELDS: usize = 128;

/// The kind of a constant's definition; it is the first field that is hashed.
#[derive(Clone, Copy)]
enum Kind {
    Range = 0,
    Inline = 1,
    Node = 2,
}

/// The fields of a constant, to be hashed at once. Those of most weights fit one block of the hash function.
struct Fields(Vec<u8>);

impl Fields {
    fn new(kind: Kind) -> Fields {
        let mut fields = Fields(Vec::with_capacity(FIELDS));
        fields.0.push(kind as u8);
        fields
    }

    /// Adds a field so that no two lists of fields give the same bytes.
    fn field(&mut self, bytes: &[u8]) {
        // No field is as large as 4 GiB; if one were, its length would not tell it apart from a shorter one.
        self.small(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }

    fn small(&mut self, n: u32) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }

    fn number(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }

    fn ty(&mut self, ty: &TensorType) {
        self.field(ty.dtype.name().as_bytes());
        self.small(ty.shape.len() as u32);
        for d in &ty.shape {
            match d.as_const() {
                Some(n) => {
                    self.0.push(1);
                    self.number(n as u64);
                }
                None => {
                    self.0.push(0);
                    self.field(d.to_string().as_bytes());
                }
            }
        }
    }

    /// Adds an id, or a mark that there is none.
    fn id(&mut self, id: Option<&[u8; 32]>) {
        match id {
            Some(id) => self.0.extend_from_slice(id),
            None => self.0.extend_from_slice(&[0; 32]),
        }
    }
}

/// Bytes of a tensor of this type; `None` where its shape is not fixed.
fn bytes_of(ty: &TensorType) -> Option<usize> {
    let shape = ty.fixed_shape()?;
    Tensor::size_of(ty.dtype, &shape).ok()
}

impl InitPart<'_> {
    fn begin(&self, kind: Kind, ty: &TensorType) -> Fields {
        let mut h = Fields::new(kind);
        h.ty(ty);
        h
    }

    fn end(&self, fields: &Fields) -> ConstantId {
        ConstantId(*blake3::keyed_hash(&self.key, &fields.0).as_bytes())
    }

    fn of_literal(&self, ty: &TensorType, literal: &Literal) -> Constant {
        match literal {
            Literal::Range {
                artifact,
                offset,
                len,
            } => {
                let mut h = self.begin(Kind::Range, ty);
                // A chunk is 1 MiB.
                h.small((offset % CHUNK) as u32);
                h.number(*len);
                let chunks = self.artifacts.get(*artifact as usize);
                let chunks = chunks.map_or(&[][..], |meta| &meta.chunks);
                for chunk in chunks_of(*offset, *len) {
                    let hash = usize::try_from(chunk).ok().and_then(|i| chunks.get(i));
                    h.id(hash);
                }
                Constant {
                    id: self.end(&h),
                    loads: true,
                    is_shared: true,
                }
            }
            Literal::Inline(t) => {
                let mut h = self.begin(Kind::Inline, ty);
                h.field(t.signature().as_bytes());
                h.field(t.bytes());
                Constant {
                    id: self.end(&h),
                    loads: false,
                    is_shared: false,
                }
            }
        }
    }

    /// The constants that a node makes; none where an operand is no constant.
    fn of_node(
        &self,
        node: &InitNode<'_>,
        known: &[Option<Constant>],
    ) -> Result<Vec<(u32, Constant)>, CodecError> {
        let attrs = codec::encode(node.attrs)?;
        let mut loads = false;
        let mut operands = Vec::with_capacity(node.inputs.len());
        for v in node.inputs.iter() {
            if *v == NO_OPERAND {
                operands.push(None);
                continue;
            }
            let Some(operand) = known.get(*v as usize).copied().flatten() else {
                return Ok(vec![]);
            };
            loads |= operand.loads;
            operands.push(Some(operand.id.0));
        }
        let output = |(i, v): (usize, &u32)| {
            let ty = &self.values[*v as usize].ty;
            let mut h = self.begin(Kind::Node, ty);
            h.field(node.op.as_bytes());
            h.field(&attrs);
            h.small(operands.len() as u32);
            operands.iter().for_each(|id| h.id(id.as_ref()));
            h.small(node.outputs.len() as u32);
            h.small(i as u32);
            let made = Constant {
                id: self.end(&h),
                loads,
                is_shared: loads || bytes_of(ty).is_some_and(|bytes| bytes > INLINE),
            };
            (*v, made)
        };
        Ok(node.outputs.iter().enumerate().map(output).collect())
    }

    fn constants<'a>(
        &self,
        literals: impl Iterator<Item = (u32, &'a Literal)>,
        nodes: impl Iterator<Item = InitNode<'a>>,
    ) -> Result<Vec<Option<Constant>>, CodecError> {
        let mut known = vec![None; self.values.len()];
        for (v, literal) in literals {
            let ty = &self.values[v as usize].ty;
            known[v as usize] = Some(self.of_literal(ty, literal));
        }
        for node in nodes {
            for (v, made) in self.of_node(&node, &known)? {
                known[v as usize] = Some(made);
            }
        }
        Ok(known)
    }
}

/// The constants of a checked program, by value; `None` for values that are no constants. `layout` names the layout of
/// the tensors that the device's kernels make in the init part: another layout is another constant.
pub fn constants_of(program: &Program, layout: &[u8]) -> Result<Vec<Option<Constant>>, CodecError> {
    let part = InitPart {
        key: key(&program.profile, layout),
        values: &program.values,
        artifacts: &program.artifacts,
    };
    let init = &program.nodes[..program.init_nodes as usize];
    let nodes = init.iter().map(|node| InitNode {
        op: &node.op,
        attrs: &node.attrs,
        inputs: Cow::Borrowed(&node.inputs),
        outputs: Cow::Borrowed(&node.outputs),
    });
    part.constants(program.literals.iter().map(|(v, l)| (*v, l)), nodes)
}

/// The constants of a verified function, as those of the programs that it is cut into.
pub fn constants_of_function(
    f: &Function,
    profile: &str,
    layout: &[u8],
) -> Result<Vec<Option<Constant>>, CodecError> {
    let part = InitPart {
        key: key(profile, layout),
        values: &f.values,
        artifacts: &f.artifacts,
    };
    let init = f.nodes.iter().filter(|node| node.runs_at == RunsAt::Init);
    let nodes = init.map(|node| InitNode {
        op: &node.op,
        attrs: &node.attrs,
        inputs: node
            .inputs
            .iter()
            .map(|v| v.map_or(NO_OPERAND, |v| v.0))
            .collect(),
        outputs: node.outputs.iter().map(|v| v.0).collect(),
    });
    part.constants(f.literals.iter().map(|(v, l)| (v.0, l)), nodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::graph::Attr;
    use crate::ids::FunctionId;
    use crate::program::{NUMERICS_PROFILE, ProgramNode};

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

    fn constants(p: &Program) -> Vec<Constant> {
        let constants = constants_of(p, b"layout").unwrap();
        constants.into_iter().map(|c| c.unwrap()).collect()
    }

    /// Whether a program that was changed so makes the same constant.
    fn check(same: bool, change: impl FnOnce(&mut Program)) {
        let id = |p: &Program| constants(p)[2].id;
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
        let loads = |p: &Program| constants(p).iter().map(|c| c.loads).collect::<Vec<_>>();
        assert_eq!(loads(&program()), [true, false, true]);
        let mut inline = program();
        inline.nodes[0].inputs = vec![1, NO_OPERAND];
        assert_eq!(loads(&inline), [true, false, false]);
    }

    #[test]
    fn a_constant_is_shared_where_it_takes_memory_or_loads_weights() {
        let shared = |p: &Program| constants(p).iter().map(|c| c.is_shared).collect::<Vec<_>>();
        assert_eq!(shared(&program()), [true, false, true]);
        let mut inline = program();
        inline.nodes[0].inputs = vec![1, NO_OPERAND];
        assert_eq!(shared(&inline), [true, false, false]);
        inline.values[2].ty = TensorType::fixed(DType::F32, &[5]);
        assert_eq!(shared(&inline), [true, false, true]);
    }

    #[test]
    fn another_layout_is_another_constant() {
        let id = |layout: &[u8]| constants_of(&program(), layout).unwrap()[2].unwrap().id;
        assert!(id(b"cpu 1") == id(b"cpu 1") && id(b"cpu 1") != id(b"cpu 2"));
    }
}
