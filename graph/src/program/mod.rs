//! Programs: the part of a function that one participant of a lease runs, as partitioning makes it.
//!
//! ```text
//!   driver --feed--> recv slot | nodes in topological order | send slot --edge--> peer's recv slot
//! ```
//!
//! A program is immutable. It holds only what cannot be derived: ready counts, successors and last uses are derived
//! once, at install, so that nothing on the wire has to be trusted.
//!
//! Invariants, checked by [`Program::check`]
//! 1. Every index is inside its table; nodes stand in topological order, init nodes first.
//! 2. A value has one definition: a literal, a recv slot, or one node's output.
//! 3. Init nodes depend on literals and init nodes only.

mod constants;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::artifact::{ArtifactError, ArtifactMeta};
use crate::codec::{self, CodecError};
use crate::dim::{Bindings, Dim, Solved};
use crate::dtype::DType;
use crate::graph::{Attrs, Literal, TensorType, Value};
use crate::ids::{FunctionId, ParticipantIx, ProgramId};

pub use constants::{Constant, ConstantId, constants_of, constants_of_function};

/// The attribute of a node of control flow whose functions are partitioned bodies: their numbers in the plan. The
/// functions that the node still has say what their types are, and compute nothing. No function that a client sends has
/// such a node.
pub const PARTITIONED: &str = "partitioned";

/// Operand index of an optional operand that is left out.
pub const NO_OPERAND: u32 = u32::MAX;

/// The name of the rules that decide a value's bits. Programs and workers carry it, and only equal profiles compute
/// together.
pub const NUMERICS_PROFILE: &str = "convoke-2:fma-chain";

/// One node of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramNode {
    /// Name as in the model.
    pub name: Arc<str>,
    pub op: Arc<str>,
    pub attrs: Attrs,
    /// Value indices of the operands; [`NO_OPERAND`] stands for one that is left out.
    pub inputs: Vec<u32>,
    pub outputs: Vec<u32>,
    /// Predicted nanoseconds from here to the end of the step along the longest path. Ready nodes run in
    /// descending order of it.
    pub priority: u64,
    /// Predicted nanoseconds of this node alone.
    pub cost: u64,
}

impl ProgramNode {
    /// The part of every node's `cost` that its kernel does not take, in nanoseconds.
    pub const OVERHEAD_NS: u64 = 1_000;
}

/// A tensor that arrives in every step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecvSlot {
    pub value: u32,
    /// The participant that may send the tensor.
    pub from: ParticipantIx,
}

/// A tensor that leaves in every step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SendEdge {
    pub value: u32,
    pub to: ParticipantIx,
    /// The recv slot at the destination.
    pub slot: u32,
    /// The priority of the send, as [`ProgramNode::priority`].
    pub priority: u64,
}

/// The part of a function that one worker runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Program {
    pub name: String,
    /// The id of the whole function, as its caller gave it.
    pub function: FunctionId,
    /// The [`NUMERICS_PROFILE`] of the planner.
    pub profile: String,
    pub values: Vec<Value>,
    pub literals: Vec<(u32, Literal)>,
    pub artifacts: Vec<ArtifactMeta>,
    /// Init nodes, then step nodes.
    pub nodes: Vec<ProgramNode>,
    pub init_nodes: u32,
    pub recvs: Vec<RecvSlot>,
    pub sends: Vec<SendEdge>,
}

/// Why a program is refused.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// An invariant of this module does not hold.
    #[error("program: {0}")]
    Malformed(String),
    /// The description of an artifact contradicts itself.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
}

impl Program {
    /// Checks all invariants of [`crate::program`].
    pub fn check(&self) -> Result<(), ProgramError> {
        let bad = |why: String| Err(ProgramError::Malformed(why));
        let n = self.values.len();
        let mut defined = vec![false; n];
        let mut define = |v: u32, what: &str| match defined.get_mut(v as usize) {
            None => bad(format!("{what} names value {v} of {n}")),
            Some(true) => bad(format!("value {v} is defined twice")),
            Some(d) => {
                *d = true;
                Ok(())
            }
        };
        for (v, l) in &self.literals {
            define(*v, "a literal")?;
            if let Literal::Range {
                artifact,
                offset,
                len,
            } = l
            {
                let meta = self.artifacts.get(*artifact as usize);
                let end = offset.checked_add(*len);
                if meta.is_none_or(|m| end.is_none_or(|e| e > m.len)) {
                    return bad(format!("literal {v} lies outside its artifact"));
                }
            }
        }
        let init = self.init_nodes as usize;
        if init > self.nodes.len() {
            return bad("more init nodes than nodes".into());
        }
        let mut order: Vec<u32> = self.literals.iter().map(|(v, _)| *v).collect();
        for node in &self.nodes[..init] {
            for o in &node.outputs {
                define(*o, "a node")?;
                order.push(*o);
            }
        }
        let in_init: std::collections::HashSet<u32> = order.into_iter().collect();
        for r in &self.recvs {
            define(r.value, "a recv slot")?;
        }
        for node in &self.nodes[init..] {
            for o in &node.outputs {
                define(*o, "a node")?;
            }
        }
        // Topological order: an operand is defined by a literal, a recv, or an earlier node.
        let mut ready = vec![false; n];
        self.literals
            .iter()
            .for_each(|(v, _)| ready[*v as usize] = true);
        for (i, node) in self.nodes.iter().enumerate() {
            if i == init {
                self.recvs
                    .iter()
                    .for_each(|r| ready[r.value as usize] = true);
            }
            for v in node.inputs.iter().filter(|v| **v != NO_OPERAND) {
                if !ready.get(*v as usize).copied().unwrap_or(false) {
                    return bad(format!(
                        "node '{}' uses value {v} before its definition",
                        node.name
                    ));
                }
                if i < init && !in_init.contains(v) {
                    return bad(format!("init node '{}' depends on a step value", node.name));
                }
            }
            node.outputs.iter().for_each(|v| ready[*v as usize] = true);
        }
        if init == self.nodes.len() {
            self.recvs
                .iter()
                .for_each(|r| ready[r.value as usize] = true);
        }
        for s in &self.sends {
            if !ready.get(s.value as usize).copied().unwrap_or(false) {
                return bad(format!(
                    "a send names value {} that nothing defines",
                    s.value
                ));
            }
        }
        self.artifacts.iter().try_for_each(ArtifactMeta::check)?;
        Ok(())
    }
}

/// A program with its content hash, which was computed from it: anew where the program was decoded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Arc<Program>", into = "Arc<Program>")]
pub struct HashedProgram {
    program: Arc<Program>,
    id: ProgramId,
    bytes: u64,
}

impl HashedProgram {
    /// Hashes a program. Fails where its encoding exceeds [`codec::MAX_MESSAGE`].
    pub fn new(program: Arc<Program>) -> Result<HashedProgram, CodecError> {
        let (hash, bytes) = codec::hash(&*program)?;
        Ok(HashedProgram {
            program,
            id: ProgramId(hash),
            bytes,
        })
    }

    /// The program itself.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The content hash: the BLAKE3 hash of the program's encoding.
    pub fn id(&self) -> ProgramId {
        self.id
    }

    /// Bytes that the program takes when encoded.
    pub fn encoded_bytes(&self) -> u64 {
        self.bytes
    }
}

impl TryFrom<Arc<Program>> for HashedProgram {
    type Error = CodecError;

    fn try_from(program: Arc<Program>) -> Result<HashedProgram, CodecError> {
        HashedProgram::new(program)
    }
}

impl From<HashedProgram> for Arc<Program> {
    fn from(hashed: HashedProgram) -> Arc<Program> {
        hashed.program
    }
}

/// A tensor that the driver feeds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Feed {
    /// Parameter name as in the model.
    pub name: String,
    pub ty: TensorType,
    /// The participants that receive the tensor, with their recv slots; empty for a parameter that no node uses.
    pub to: Vec<(ParticipantIx, u32)>,
}

/// Where a result comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FetchFrom {
    /// Recv slot `slot` of the driver, filled by `from`.
    Worker { from: ParticipantIx, slot: u32 },
    /// A parameter, by index into [`DriverProgram::feeds`].
    Param(u32),
}

/// A tensor that the driver fetches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fetch {
    /// Result name as in the model.
    pub name: String,
    pub ty: TensorType,
    pub from: FetchFrom,
}

/// The tensors that the driver feeds and fetches in every step.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DriverProgram {
    pub feeds: Vec<Feed>,
    pub fetches: Vec<Fetch>,
    /// The recv slots at the driver; several results may share one.
    pub slots: Vec<DriverSlot>,
}

impl DriverProgram {
    /// Whether it names these `workers`, and slots that exist, only.
    pub fn names(&self, workers: usize) -> bool {
        let known = |ix: ParticipantIx| usize::from(ix) < workers;
        let mut fed = self.feeds.iter().flat_map(|f| &f.to).map(|(to, _)| *to);
        let mut fetched = self.fetches.iter().map(|f| match f.from {
            FetchFrom::Worker { from, slot } => {
                let slot = self.slots.get(slot as usize);
                slot.is_some_and(|s| s.from == from)
            }
            FetchFrom::Param(i) => (i as usize) < self.feeds.len(),
        });
        let mut filled = self.slots.iter().map(|s| s.from);
        fed.all(known) && filled.all(known) && fetched.all(|there| there)
    }
}

/// One recv slot of the driver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriverSlot {
    pub from: ParticipantIx,
    pub ty: TensorType,
}

/// The most bytes of a model's name in plans, leases and status.
const MODEL_NAME: usize = 256;

/// The name of a function in plans, leases and status: one short line without control characters.
pub fn model_name(name: &str) -> String {
    let shown = name.chars().filter(|c| !c.is_control());
    let mut short = String::new();
    for c in shown {
        if short.len() + c.len_utf8() > MODEL_NAME {
            break;
        }
        short.push(c);
    }
    short
}

/// The dynamic axes of a function, with their bounds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Axes {
    /// The symbol of each axis, and the largest value that a step may bind it to.
    pub bounds: Vec<(Arc<str>, i64)>,
}

/// Why values cannot be bound to the axes of a function.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AxesError {
    /// There are more or fewer values than axes.
    #[error("{values} axis values for {axes} axes")]
    Count { values: usize, axes: usize },
    /// A value is negative, or above its axis' bound.
    #[error("axis '{axis}' = {value} exceeds its bound {bound}")]
    OutOfBound {
        axis: Arc<str>,
        value: i64,
        bound: i64,
    },
}

/// Why sizes do not say the symbols of the declared shapes, with the place of a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsolved {
    /// No lengths of the symbols make the shape this one.
    Differs(usize),
    /// Symbols of the shape do not follow from sizes.
    Open(usize),
}

impl Axes {
    /// The bindings of each symbol to its bound.
    pub fn at_bounds(&self) -> Bindings {
        self.bounds.iter().cloned().collect()
    }

    /// Binds the symbols to `values`, in the order of `bounds`. Fails where their number differs, or a value is
    /// negative or above its bound.
    pub fn bind(&self, values: &[i64]) -> Result<Bindings, AxesError> {
        if values.len() != self.bounds.len() {
            return Err(AxesError::Count {
                values: values.len(),
                axes: self.bounds.len(),
            });
        }
        let mut out = Bindings::new();
        for ((name, bound), v) in self.bounds.iter().zip(values) {
            if *v < 0 || v > bound {
                return Err(AxesError::OutOfBound {
                    axis: name.clone(),
                    value: *v,
                    bound: *bound,
                });
            }
            out.insert(name.clone(), *v);
        }
        Ok(out)
    }

    /// Binds the symbols that stand in no declared shape alone, but in expressions such as `2*n`, once [`Axes::unify`] has
    /// bound all others. Each declared shape stands beside the given one. Fails with the place of a pair that disagrees, or
    /// whose symbols do not follow.
    pub fn solve(pairs: &[(&[Dim], &[usize])], into: &mut Bindings) -> Result<(), Unsolved> {
        loop {
            let mut open = None;
            let before = into.len();
            for (at, (declared, given)) in pairs.iter().enumerate() {
                for (dim, size) in declared.iter().zip(*given) {
                    match dim.solve(i64::try_from(*size).unwrap_or(i64::MAX), into) {
                        Solved::Fits => {}
                        Solved::Symbol(symbol, length) => drop(into.insert(symbol, length)),
                        Solved::Differs => return Err(Unsolved::Differs(at)),
                        Solved::Open => open = Some(Unsolved::Open(at)),
                    }
                }
            }
            match open {
                None => return Ok(()),
                Some(open) if into.len() == before => return Err(open),
                Some(_) => {}
            }
        }
    }

    /// Binds the symbols of a declared shape to the sizes of a given one. Returns `false` where the two disagree.
    pub fn unify(declared: &[Dim], given: &[usize], into: &mut Bindings) -> bool {
        declared.len() == given.len()
            && declared.iter().zip(given).all(|(d, g)| {
                let g = i64::try_from(*g).unwrap_or(i64::MAX);
                match d.as_symbol() {
                    Some(s) => *into.entry(s.clone()).or_insert(g) == g,
                    None => d.eval(into).is_none_or(|v| v == g),
                }
            })
    }
}

/// Bytes of `ty` under `bindings`; `None` while a dimension is unbound or negative, or where the size overflows.
pub fn bytes_under(ty: &TensorType, bindings: &Bindings) -> Option<u64> {
    bytes_of(ty.dtype, elements_under(ty, bindings)?)
}

/// Bytes that `ty` never exceeds while each symbol lies between zero and its value in `most`; `None` while a dimension is
/// unbound, or where the size overflows.
pub fn most_bytes(ty: &TensorType, most: &Bindings) -> Option<u64> {
    bytes_of(ty.dtype, most_elements(ty, most)?)
}

fn bytes_of(dtype: DType, elements: u64) -> Option<u64> {
    let bytes = dtype.bytes_for(usize::try_from(elements).ok()?)?;
    Some(bytes as u64)
}

/// The elements that a tensor never exceeds while each symbol lies between zero and its value in `most`; `None` if an axis is
/// unbound or the number is too large.
pub fn most_elements(ty: &TensorType, most: &Bindings) -> Option<u64> {
    product(ty, |d| Some(d.at_most_within(most)?.max(0)))
}

/// The elements of a tensor under bindings; `None` if an axis is unbound or the number is too large.
pub fn elements_under(ty: &TensorType, bindings: &Bindings) -> Option<u64> {
    product(ty, |d| d.eval(bindings))
}

/// The product of a type's dimensions as `length` gives them; `None` where it gives none or a negative one, or where the
/// product overflows.
fn product(ty: &TensorType, length: impl Fn(&Dim) -> Option<i64>) -> Option<u64> {
    let lengths = ty.shape.iter().map(length);
    lengths.into_iter().try_fold(1u64, |n, length| {
        n.checked_mul(u64::try_from(length?).ok()?)
    })
}
