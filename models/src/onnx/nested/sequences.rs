//! Sequences and optional values. They are resolved while a model is imported: a sequence is the tensors that the graph puts
//! into it, and an optional value is what it holds, or nothing.
//!
//! ```text
//! SplitToSequence ──> [a, b, c] ──SequenceAt──> b          no node of the function knows of sequences
//! ```
//!
//! Invariants
//! 1. No value of the function is a sequence. A node that depends on a length or a position which is known only when the
//!    model runs is reported as unsupported.
//! 2. A sequence has at most [`MOST`] tensors, and a loop that is unrolled at most as many iterations.

use convoke_graph::graph::{Attr, Attrs, ValueId};
use convoke_graph::ops::attrs::normalize_axis;
use convoke_graph::tensor::TensorError;
use convoke_graph::{Dim, Tensor};

use super::super::import::Importer;
use super::super::inputs::sequence_name;
use super::super::normalize::ImportFailure;
use super::super::proto::{AttributeProto, NodeProto};
use super::super::scope::{Meaning, domain};
use super::control::{Bound, ControlNode, is_list};
use crate::error::ModelError;

/// The most tensors of a sequence. Each is a value of the function, and often a node.
pub(in super::super) const MOST: usize = 1 << 10;

/// The ops that take or make sequences and optional values.
const OPS: &[&str] = &[
    "ConcatFromSequence",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SequenceMap",
    "SplitToSequence",
];

/// Why a node is not imported.
enum Refusal {
    Failure(ImportFailure),
    /// An operand comes from a node that is not supported, which is reported already.
    Consequence,
}

impl From<ModelError> for Refusal {
    fn from(e: ModelError) -> Refusal {
        Refusal::Failure(e.into())
    }
}

fn unsupported(reason: impl Into<String>) -> Refusal {
    Refusal::Failure(ImportFailure::Unsupported(reason.into()))
}

/// The outputs of a node.
type Meanings = Result<Vec<Meaning>, Refusal>;

/// A node, with its operands.
struct SequenceNode<'a, 'n> {
    control: ControlNode<'a, 'n>,
    inputs: Vec<Meaning>,
}

impl<'a> SequenceNode<'a, '_> {
    fn error(&self, reason: impl Into<String>) -> ModelError {
        self.control.error(reason)
    }

    fn attribute(&self, name: &str) -> Option<&'a AttributeProto> {
        self.control.attribute(name)
    }

    fn int(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).map_or(default, AttributeProto::i)
    }

    /// Operand `i`, which must be a tensor.
    fn tensor(&self, i: usize) -> Result<ValueId, ModelError> {
        match self.inputs.get(i) {
            Some(Meaning::Tensor(id)) => Ok(*id),
            Some(Meaning::Sequence(_)) => Err(self.error(format!("operand {i} is a sequence"))),
            Some(Meaning::Nothing) | None => Err(self.error(format!("operand {i} is missing"))),
        }
    }

    /// Operand `i`, where it is given.
    fn optional(&self, i: usize) -> Result<Option<ValueId>, ModelError> {
        match self.inputs.get(i) {
            Some(Meaning::Nothing) | None => Ok(None),
            Some(_) => self.tensor(i).map(Some),
        }
    }
}

impl<'a> Importer<'a> {
    /// Imports a node that takes or makes sequences or optional values. Returns `false` where it does neither.
    pub(in super::super) fn of_sequences(
        &mut self,
        name: &str,
        node: &'a NodeProto,
        bound: &Bound<'a>,
    ) -> Result<bool, ModelError> {
        let op = node.op_type();
        let standard = domain(node.domain()).is_empty();
        let any = self.scopes.iter().any(|s| !s.sequences.is_empty());
        let mut operands = node.input.iter();
        let takes = any && operands.any(|i| self.sequence(i).is_some());
        let copies_nothing = || {
            let x = node.input.first();
            op == "Identity" && x.is_some_and(|x| self.holds_nothing(x))
        };
        let listed = standard && (OPS.contains(&op) || copies_nothing());
        if !takes && !listed {
            return Ok(false);
        }
        let mut inputs = Vec::with_capacity(node.input.len());
        for input in &node.input {
            inputs.push(self.meaning(input, name)?);
        }
        let tensors = inputs.iter().filter_map(|input| match input {
            Meaning::Tensor(id) => Some(*id),
            _ => None,
        });
        self.b.operands.extend(tensors);
        let control = ControlNode { name, node, bound };
        let node = SequenceNode { control, inputs };
        let made = match standard {
            true => self.resolved(&node),
            false => Err(unsupported("takes a sequence")),
        };
        let outputs = &control.node.output;
        let made = match made {
            Ok(made) => made,
            Err(Refusal::Failure(ImportFailure::Error(e))) => return Err(e),
            Err(refusal) => {
                if let Refusal::Failure(ImportFailure::Unsupported(reason)) = refusal {
                    self.b.unsupported(name, op, Some(reason));
                }
                let stand_ins = self.b.stand_ins(outputs);
                stand_ins.into_iter().map(Meaning::Tensor).collect()
            }
        };
        self.define_meanings(outputs, &vec![true; outputs.len()], made)?;
        Ok(true)
    }

    fn resolved(&mut self, n: &SequenceNode<'a, '_>) -> Meanings {
        let made = match n.control.node.op_type() {
            "SequenceEmpty" => Meaning::Sequence(vec![]),
            "SequenceConstruct" => {
                let all = (0..n.inputs.len()).map(|i| n.tensor(i));
                Meaning::Sequence(all.collect::<Result<_, _>>()?)
            }
            "SequenceInsert" => {
                let mut all = self.sequence_of(n)?;
                let at = match n.optional(2)? {
                    None => all.len(),
                    Some(at) => self.position(n, at, all.len(), all.len())?,
                };
                all.insert(at, n.tensor(1)?);
                Meaning::Sequence(all)
            }
            "SequenceErase" => {
                let mut all = self.sequence_of(n)?;
                let last = all.len().checked_sub(1);
                let last = last.ok_or_else(|| n.error("erases from an empty sequence"))?;
                let at = match n.optional(1)? {
                    None => last,
                    Some(at) => self.position(n, at, last, all.len())?,
                };
                all.remove(at);
                Meaning::Sequence(all)
            }
            "SequenceAt" => {
                let all = self.sequence_of(n)?;
                let last = all.len().checked_sub(1);
                let last = last.ok_or_else(|| n.error("reads from an empty sequence"))?;
                let at = self.position(n, n.tensor(1)?, last, all.len())?;
                all.get(at)
                    .copied()
                    .map_or(Meaning::Nothing, Meaning::Tensor)
            }
            "SequenceLength" => {
                let length = self.sequence_of(n)?.len() as i64;
                Meaning::Tensor(self.known(n, Tensor::scalar(length)))
            }
            "SplitToSequence" => Meaning::Sequence(self.split(n)?),
            "ConcatFromSequence" => Meaning::Tensor(self.joined(n)?),
            "SequenceMap" => return self.mapped(n),
            "Loop" => return self.unrolled(n),
            "Identity" | "Optional" => n.inputs.first().cloned().unwrap_or(Meaning::Nothing),
            "OptionalGetElement" => match n.inputs.first() {
                Some(held) if *held != Meaning::Nothing => held.clone(),
                _ => return Err(n.error("its operand holds nothing").into()),
            },
            "OptionalHasElement" => {
                let holds = n
                    .inputs
                    .first()
                    .is_some_and(|held| *held != Meaning::Nothing);
                let holds =
                    Tensor::from_bools(&[], &[holds]).map_err(|e| n.error(e.to_string()))?;
                Meaning::Tensor(self.known(n, holds))
            }
            _ => return Err(unsupported("takes a sequence")),
        };
        match made {
            Meaning::Sequence(all) if all.len() > MOST => Err(too_long()),
            made => Ok(vec![made]),
        }
    }

    /// Operand 0, which must be a sequence.
    fn sequence_of(&self, n: &SequenceNode<'a, '_>) -> Result<Vec<ValueId>, Refusal> {
        match n.inputs.first() {
            Some(Meaning::Sequence(all)) => Ok(all.clone()),
            Some(Meaning::Tensor(id)) if self.b.ty(*id).is_none() => Err(Refusal::Consequence),
            _ => Err(n.error("operand 0 is no sequence").into()),
        }
    }

    /// The number that `at` holds, as a position from 0 to `last` in a sequence of `length` tensors; a negative one counts
    /// from the end.
    fn position(
        &self,
        n: &SequenceNode<'a, '_>,
        at: ValueId,
        last: usize,
        length: usize,
    ) -> Result<usize, Refusal> {
        let given = self.single(at, "its position")?;
        let from_front = match given < 0 {
            true => given.checked_add(length as i64),
            false => Some(given),
        };
        let found = from_front.and_then(|at| usize::try_from(at).ok());
        let outside = || n.error(format!("there is no position {given} in {length} tensors"));
        Ok(found.filter(|at| *at <= last).ok_or_else(outside)?)
    }

    /// The only element of `id`, called `what`.
    fn single(&self, id: ValueId, what: &str) -> Result<i64, Refusal> {
        if self.b.ty(id).is_none() {
            return Err(Refusal::Consequence);
        }
        match self.b.elements(id).as_deref() {
            Some([known]) => Ok(*known),
            _ => Err(unsupported(format!(
                "{what} is known only when the model runs"
            ))),
        }
    }

    /// Adds a constant as the only output of a node.
    fn known(&mut self, n: &SequenceNode<'a, '_>, t: Tensor) -> ValueId {
        let full = self.full_names(&n.control.node.output);
        let name = full.first().filter(|name| !name.is_empty());
        self.b.literal(name.map_or(n.control.name, |name| name), t)
    }

    /// The tensors that `SplitToSequence` makes.
    fn split(&mut self, n: &SequenceNode<'a, '_>) -> Result<Vec<ValueId>, Refusal> {
        let x = n.tensor(0)?;
        let ty = self.b.ty(x).ok_or(Refusal::Consequence)?;
        let axis = normalize_axis(n.int("axis", 0), ty.shape.len());
        let axis = axis.map_err(|e| n.error(e.to_string()))?;
        let length = ty.shape.get(axis).and_then(Dim::as_const);
        let unknown = || unsupported("the number of its tensors is known only when the model runs");
        let split = n.optional(1)?;
        let given = split.and_then(|id| Some((id, self.b.ty(id)?.shape.first()?)));
        let name = n.control.name;
        let (sizes, count) = match given {
            Some((sizes, count)) => {
                let count = count.as_const().ok_or_else(unknown)?;
                let count = usize::try_from(count).ok().filter(|count| *count <= MOST);
                (sizes, count.ok_or_else(too_long)?)
            }
            None => {
                let size =
                    split.map_or(Ok(1), |size| self.single(size, "the size of its tensors"))?;
                let length = length.ok_or_else(unknown)?;
                if size < 1 {
                    return Err(n.error(format!("'split' is {size}")).into());
                }
                if length.unsigned_abs().div_ceil(size.unsigned_abs()) > MOST as u64 {
                    return Err(too_long());
                }
                let starts = (0..length).step_by(size as usize);
                let sizes: Vec<i64> = starts.map(|at| size.min(length - at)).collect();
                (self.b.ints(&format!("{name}/split"), &sizes)?, sizes.len())
            }
        };
        self.count_nodes(count)?;
        let full = self.full_names(&n.control.node.output);
        let full = full.first().map_or(n.control.name, |name| name);
        let names: Vec<String> = (0..count).map(|i| sequence_name(full, i)).collect();
        if names.is_empty() {
            return Ok(vec![]);
        }
        let attrs = Attrs::default().with("axis", Attr::Int(axis as i64));
        let parts = self
            .b
            .emit("Split", name, attrs, vec![Some(x), Some(sizes)], &names)?;
        if split.is_some() || n.int("keepdims", 1) != 0 {
            return Ok(parts);
        }
        let axes = self.b.ints(&format!("{name}/axes"), &[axis as i64])?;
        let each = parts.into_iter().enumerate();
        let each = each.map(|(i, part)| self.reshaped("Squeeze", name, i, part, axes));
        Ok(each.collect::<Result<_, _>>()?)
    }

    /// Adds a node that removes or inserts axes of the tensor number `i` of a sequence.
    fn reshaped(
        &mut self,
        op: &str,
        name: &str,
        i: usize,
        x: ValueId,
        axes: ValueId,
    ) -> Result<ValueId, ModelError> {
        let name = format!("{name}/{op}{i}");
        let output = [name.clone()];
        let operands = vec![Some(x), Some(axes)];
        let made = self
            .b
            .emit(op, &name, Attrs::default(), operands, &output)?;
        Ok(made.first().copied().unwrap_or(x))
    }

    /// The tensor that `ConcatFromSequence` makes.
    fn joined(&mut self, n: &SequenceNode<'a, '_>) -> Result<ValueId, Refusal> {
        let all = self.sequence_of(n)?;
        let axis = n.attribute("axis").ok_or_else(|| n.error("has no axis"))?;
        let names = self.full_names(&n.control.node.output);
        self.stacked(n, all, axis.i(), n.int("new_axis", 0) != 0, &names)
    }

    /// Joins tensors along `axis`, which is inserted first where it is new.
    fn stacked(
        &mut self,
        n: &SequenceNode<'a, '_>,
        mut all: Vec<ValueId>,
        axis: i64,
        new: bool,
        names: &[String],
    ) -> Result<ValueId, Refusal> {
        let name = n.control.name;
        if all.is_empty() {
            return Err(unsupported("it joins no tensors"));
        }
        if new {
            let axes = self.b.ints(&format!("{name}/axes"), &[axis])?;
            for (i, x) in all.iter_mut().enumerate() {
                *x = self.reshaped("Unsqueeze", name, i, *x, axes)?;
            }
        }
        let attrs = Attrs::default().with("axis", Attr::Int(axis));
        let operands = all.into_iter().map(Some).collect();
        let made = self.b.emit("Concat", name, attrs, operands, names)?;
        Ok(made
            .first()
            .copied()
            .ok_or_else(|| n.error("has no output"))?)
    }

    /// Runs the body of a `SequenceMap` once for each place of its sequences.
    fn mapped(&mut self, n: &SequenceNode<'a, '_>) -> Meanings {
        let length = self.sequence_of(n)?.len();
        let g = n.control.graph("body")?;
        let outputs = n.control.node.output.len();
        if g.output.len() < outputs || g.input.len() != n.inputs.len() {
            return Err(n.error("its body has other operands or results").into());
        }
        let kept: Vec<bool> = (0..g.output.len()).map(|o| o < outputs).collect();
        let mut made = vec![vec![]; outputs];
        for i in 0..length {
            let operands = n.inputs.iter().map(|operand| match operand {
                Meaning::Sequence(all) => {
                    let lengths = || n.error("its sequences differ in length");
                    let all = Some(all).filter(|all| all.len() == length);
                    let x = all.and_then(|all| all.get(i)).ok_or_else(lengths)?;
                    Ok(Meaning::Tensor(*x))
                }
                other => Ok(other.clone()),
            });
            let operands = operands.collect::<Result<Vec<_>, ModelError>>()?;
            let name = format!("{}/{i}", n.control.name);
            self.count_iteration(&name)?;
            let results = self.nested(g, operands, &kept, &name)?;
            for (made, result) in made.iter_mut().zip(results) {
                match result {
                    Meaning::Tensor(id) => made.push(id),
                    _ => return Err(n.error("its body yields no tensor").into()),
                }
            }
        }
        Ok(made.into_iter().map(Meaning::Sequence).collect())
    }

    /// Counts an iteration of a loop or a map: its scope, the names of its values, and the literal of its number.
    fn count_iteration(&mut self, name: &str) -> Result<(), ModelError> {
        const SCOPE: usize = 256;
        self.count_nodes(1)?;
        self.count_bytes((SCOPE + 2 * name.len()) as u64)
    }

    /// Imports the iterations of a loop that carries a sequence one after the other.
    fn unrolled(&mut self, n: &SequenceNode<'a, '_>) -> Meanings {
        let g = n.control.graph("body")?;
        let most = n.optional(0)?.map_or(Ok(i64::MAX), |most| {
            self.single(most, "it carries a sequence, and its number of iterations")
        })?;
        let mut goes_on = match n.optional(1)? {
            None => true,
            Some(condition) => {
                self.single(condition, "it carries a sequence, and its condition")? != 0
            }
        };
        let mut carried: Vec<Meaning> = n.inputs.iter().skip(2).cloned().collect();
        let kept = self.kept_results(&n.control, g, (2, 1), carried.len(), 0)?;
        let read = kept.iter().skip(1 + carried.len()).filter(|kept| **kept);
        let mut collected = vec![vec![]; read.count()];
        // Some exporters declare the body's own parameters as lists of one number.
        let shape = |own: usize| match g.input.get(own).is_some_and(is_list) {
            true => vec![1],
            false => vec![],
        };
        let fails = |e: TensorError| n.error(e.to_string());
        let holds = Tensor::from_bools(&shape(1), &[true]).map_err(fails)?;
        let condition = format!("{}/condition", n.control.name);
        let condition = self.b.literal(&condition, holds);
        for i in 0..most {
            if !goes_on {
                break;
            }
            if i == MOST as i64 {
                let reason = format!("it carries a sequence, and has more than {MOST} iterations");
                return Err(unsupported(reason));
            }
            let name = format!("{}/{i}", n.control.name);
            self.count_iteration(&name)?;
            let iteration = Tensor::from_slice(&shape(0), &[i]).map_err(fails)?;
            let iteration = self.b.literal(&format!("{name}/iteration"), iteration);
            let own = [iteration, condition];
            let count = carried.len();
            let operands = own
                .into_iter()
                .map(Meaning::Tensor)
                .chain(carried)
                .collect();
            let mut results = self.nested(g, operands, &kept, &name)?.into_iter();
            goes_on = match results.next() {
                Some(Meaning::Tensor(id)) => {
                    self.single(id, "it carries a sequence, and whether it goes on")? != 0
                }
                _ => return Err(n.error("its body yields no condition").into()),
            };
            carried = results.by_ref().take(count).collect();
            for (all, result) in collected.iter_mut().zip(results) {
                match result {
                    Meaning::Tensor(id) => all.push(id),
                    _ => return Err(n.error("it collects what is no tensor").into()),
                }
            }
        }
        let mut collected = collected.into_iter();
        for (o, kept) in kept.iter().enumerate().skip(1 + carried.len()) {
            carried.push(match (kept, n.control.node.output.get(o - 1)) {
                (true, Some(output)) => {
                    let all = collected.next().unwrap_or_default();
                    let names = self.full_names(std::slice::from_ref(output));
                    Meaning::Tensor(self.stacked(n, all, 0, true, &names)?)
                }
                _ => Meaning::Nothing,
            });
        }
        Ok(carried)
    }
}

fn too_long() -> Refusal {
    unsupported(format!("a sequence of more than {MOST} tensors"))
}
