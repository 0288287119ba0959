//! Sequences and optional values. They are resolved while a model is imported: a sequence becomes the list of tensors
//! that the graph puts into it, and an optional value becomes the value that it holds, or nothing. Where only the run
//! decides a length or a position, the sequence is packed into two tensors.
//!
//! ```text
//! SplitToSequence ──> [a, b, c] ──SequenceAt──> b          no node of the function knows of sequences
//!            └─ packed ──> elements, shapes ──Gather, Slice, Reshape──> b
//! ```
//!
//! Invariants
//! 1. No value of the function is a sequence.
//! 2. A sequence that is not packed has at most [`MOST_TENSORS`] tensors, and a loop that is unrolled at most as many
//!    iterations.

use convoke_graph::graph::{Attr, Attrs, ValueId};
use convoke_graph::ops::attrs::normalize_axis;
use convoke_graph::{DType, Dim, Tensor};

use super::super::import::Importer;
use super::super::inputs::{MOST_TENSORS, sequence_name};
use super::super::normalize::ImportFailure;
use super::super::proto::{AttributeProto, NodeProto};
use super::super::scope::{Meaning, domain};
use super::control::{Bound, ControlNode};
use super::packed::Packed;
use crate::error::ModelError;

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

pub(super) fn unsupported(reason: impl Into<String>) -> ImportFailure {
    ImportFailure::Unsupported(reason.into())
}

/// The outputs of a node.
pub(super) type Meanings = Result<Vec<Meaning>, ImportFailure>;

/// A node, with its operands.
pub(super) struct SequenceNode<'a, 'n> {
    pub control: ControlNode<'a, 'n>,
    pub inputs: Vec<Meaning>,
}

impl<'a> SequenceNode<'a, '_> {
    pub(super) fn error(&self, reason: impl Into<String>) -> ModelError {
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
            Some(Meaning::Sequence(_) | Meaning::Packed(_)) => {
                Err(self.error(format!("operand {i} is a sequence")))
            }
            Some(Meaning::Optional(..)) => {
                Err(self.error(format!("operand {i} is an optional value")))
            }
            Some(Meaning::Map { .. }) => Err(self.error(format!("operand {i} is a map"))),
            Some(Meaning::Nothing) | None => Err(self.error(format!("operand {i} is missing"))),
        }
    }

    /// Operand `i`, where it is given.
    pub(super) fn optional(&self, i: usize) -> Result<Option<ValueId>, ModelError> {
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
        let any = self.scopes.iter().any(|s| !s.compounds.is_empty());
        let mut operands = node.input.iter();
        let takes = any && operands.any(|i| self.compound(i).is_some());
        let first = match op {
            "Identity" => 0,
            "Loop" => 2,
            _ => node.input.len(),
        };
        let mut passed_on = node.input.iter().skip(first).filter(|x| !x.is_empty());
        let takes_nothing = passed_on.any(|x| self.holds_nothing(x));
        let listed = standard && (OPS.contains(&op) || takes_nothing);
        if !takes && !listed {
            return Ok(false);
        }
        let mut inputs = Vec::with_capacity(node.input.len());
        for input in &node.input {
            inputs.push(self.meaning(input, name)?);
        }
        for input in &inputs {
            self.refuse_single(input, name, op);
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
            Err(ImportFailure::Error(e)) => return Err(e),
            Err(refusal) => {
                if let ImportFailure::Unsupported(reason) = refusal {
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
                let (x, at) = (n.tensor(1)?, n.optional(2)?);
                match self.listed(n, at)? {
                    Some(mut all) => {
                        let at = match at {
                            None => all.len(),
                            Some(at) => self.position(n, at, all.len(), all.len())?,
                        };
                        all.insert(at, x);
                        Meaning::Sequence(all)
                    }
                    None => {
                        let p = self.packed_of(n, &[x])?;
                        Meaning::Packed(self.expanded(n, |e| e.inserted(p, x, at))?)
                    }
                }
            }
            "SequenceErase" => {
                let at = n.optional(1)?;
                match self.listed(n, at)? {
                    Some(mut all) => {
                        let last = all.len().checked_sub(1);
                        let last = last.ok_or_else(|| n.error("erases from an empty sequence"))?;
                        let at = match at {
                            None => last,
                            Some(at) => self.position(n, at, last, all.len())?,
                        };
                        all.remove(at);
                        Meaning::Sequence(all)
                    }
                    None => {
                        let p = self.packed_of(n, &[])?;
                        Meaning::Packed(self.expanded(n, |e| e.erased(p, at))?)
                    }
                }
            }
            "SequenceAt" => {
                let at = n.tensor(1)?;
                match self.listed(n, Some(at))? {
                    Some(all) => {
                        let last = all.len().checked_sub(1);
                        let last = last.ok_or_else(|| n.error("reads from an empty sequence"))?;
                        let at = self.position(n, at, last, all.len())?;
                        all.get(at)
                            .copied()
                            .map_or(Meaning::Nothing, Meaning::Tensor)
                    }
                    None => {
                        let p = self.packed_of(n, &[])?;
                        Meaning::Tensor(self.expanded(n, |e| e.at(p, at))?)
                    }
                }
            }
            "SequenceLength" => match self.listed(n, None)? {
                Some(all) => Meaning::Tensor(self.known(n, Tensor::scalar(all.len() as i64))),
                None => {
                    let p = self.packed_of(n, &[])?;
                    let length = self.expanded(n, |e| {
                        let count = e.count(p)?;
                        e.scalar(count)
                    })?;
                    Meaning::Tensor(length)
                }
            },
            "SplitToSequence" => self.split(n)?,
            "ConcatFromSequence" => Meaning::Tensor(self.joined(n)?),
            "SequenceMap" => return self.mapped(n),
            "Loop" => return self.carrying(n),
            "Identity" | "Optional" => n.inputs.first().cloned().unwrap_or(Meaning::Nothing),
            "OptionalGetElement" => match n.inputs.first() {
                Some(Meaning::Optional(has, held)) => match (*has, (**held).clone()) {
                    (has, Meaning::Tensor(x)) => {
                        Meaning::Tensor(self.expanded(n, |e| e.given(x, has))?)
                    }
                    (has, Meaning::Packed(p)) => {
                        let data = self.expanded(n, |e| e.given(p.data, has))?;
                        Meaning::Packed(Packed { data, ..p })
                    }
                    (_, held) => held,
                },
                Some(held) if *held != Meaning::Nothing => held.clone(),
                _ => return Err(n.error("its operand holds nothing").into()),
            },
            "OptionalHasElement" => {
                if let Some(Meaning::Optional(has, _)) = n.inputs.first() {
                    return Ok(vec![Meaning::Tensor(*has)]);
                }
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
            Meaning::Sequence(all) if all.len() > MOST_TENSORS => Err(too_long()),
            made => Ok(vec![made]),
        }
    }

    /// The tensors of operand 0, which must be a sequence; `None` where only the run decides its length, or the position `at`.
    fn listed(
        &self,
        n: &SequenceNode<'a, '_>,
        at: Option<ValueId>,
    ) -> Result<Option<Vec<ValueId>>, ImportFailure> {
        if at.is_some_and(|at| self.b.ty(at).is_none()) {
            return Err(ImportFailure::Consequence);
        }
        match n.inputs.first() {
            Some(Meaning::Sequence(all)) => {
                let is_known = at.is_none_or(|at| self.b.elements(at).is_some());
                Ok(is_known.then(|| all.clone()))
            }
            Some(Meaning::Packed(_)) => Ok(None),
            Some(Meaning::Tensor(id)) if self.b.ty(*id).is_none() => {
                Err(ImportFailure::Consequence)
            }
            _ => Err(n.error("operand 0 is no sequence").into()),
        }
    }

    /// Operand 0, a sequence, in packed form. It is to have room for tensors as `others`.
    fn packed_of(
        &mut self,
        n: &SequenceNode<'a, '_>,
        others: &[ValueId],
    ) -> Result<Packed, ImportFailure> {
        let own: &[ValueId] = match n.inputs.first() {
            Some(Meaning::Packed(p)) => return Ok(*p),
            Some(Meaning::Sequence(all)) => all,
            _ => &[],
        };
        let unknown = |id: &ValueId| self.b.ty(*id).is_none();
        if own.iter().chain(others).any(unknown) {
            return Err(ImportFailure::Consequence);
        }
        let held = self.element_type(own);
        let dtype = held.dtype.or(self.element_type(others).dtype);
        self.expanded(n, |e| {
            e.packed(own, dtype.unwrap_or(DType::F32), held.ranks)
        })
    }

    /// The number that `at` holds, as a position from 0 to `last` in a sequence of `length` tensors; a negative one counts
    /// from the end.
    fn position(
        &self,
        n: &SequenceNode<'a, '_>,
        at: ValueId,
        last: usize,
        length: usize,
    ) -> Result<usize, ImportFailure> {
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
    pub(super) fn single(&self, id: ValueId, what: &str) -> Result<i64, ImportFailure> {
        if self.b.ty(id).is_none() {
            return Err(ImportFailure::Consequence);
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

    /// The sequence that `SplitToSequence` makes.
    fn split(&mut self, n: &SequenceNode<'a, '_>) -> Result<Meaning, ImportFailure> {
        let x = n.tensor(0)?;
        let ty = self.b.ty(x).ok_or(ImportFailure::Consequence)?;
        let axis = normalize_axis(n.int("axis", 0), ty.shape.len());
        let axis = axis.map_err(|e| n.error(e.to_string()))?;
        let length = ty.shape.get(axis).and_then(Dim::as_const);
        let split = n.optional(1)?;
        let kept = split.is_some() || n.int("keepdims", 1) != 0;
        if split.is_some_and(|split| self.b.ty(split).is_none()) {
            return Err(ImportFailure::Consequence);
        }
        let given = split.and_then(|id| Some((id, self.b.ty(id)?.shape.first()?)));
        let name = n.control.name;
        let (sizes, count) = match given {
            Some((sizes, count)) => {
                let known = count
                    .as_const()
                    .and_then(|count| usize::try_from(count).ok());
                let Some(count) = known.filter(|count| *count <= MOST_TENSORS) else {
                    let cut = self.expanded(n, |e| e.cut(x, axis, sizes, true))?;
                    return Ok(Meaning::Packed(cut));
                };
                (sizes, count)
            }
            None => {
                let each = split.map_or(Some(1), |id| self.b.elements(id)?.first().copied());
                if each.is_some_and(|each| each < 1) {
                    return Err(n.error(format!("'split' is {}", each.unwrap_or(0))).into());
                }
                let counted = each.zip(length).filter(|(each, length)| {
                    length.unsigned_abs().div_ceil(each.unsigned_abs()) <= MOST_TENSORS as u64
                });
                let Some((each, length)) = counted else {
                    let cut = self.expanded(n, |e| {
                        let each = match split {
                            Some(each) => each,
                            None => e.int("each", 1)?,
                        };
                        let lengths = e.parts(x, axis, each)?;
                        e.cut(x, axis, lengths, kept)
                    })?;
                    return Ok(Meaning::Packed(cut));
                };
                let starts = (0..length).step_by(each as usize);
                let sizes: Vec<i64> = starts.map(|at| each.min(length - at)).collect();
                (self.b.ints(&format!("{name}/split"), &sizes)?, sizes.len())
            }
        };
        self.count_nodes(count)?;
        let full = self.full_names(&n.control.node.output);
        let full = full.first().map_or(n.control.name, |name| name);
        let names: Vec<String> = (0..count).map(|i| sequence_name(full, i)).collect();
        if names.is_empty() {
            return Ok(Meaning::Sequence(vec![]));
        }
        let attrs = Attrs::default().with("axis", Attr::Int(axis as i64));
        let parts = self
            .b
            .emit("Split", name, attrs, vec![Some(x), Some(sizes)], &names)?;
        if kept {
            return Ok(Meaning::Sequence(parts));
        }
        let axes = self.b.ints(&format!("{name}/axes"), &[axis as i64])?;
        let each = parts.into_iter().enumerate();
        let each = each.map(|(i, part)| self.reshaped("Squeeze", name, i, part, axes));
        Ok(Meaning::Sequence(each.collect::<Result<_, _>>()?))
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
    fn joined(&mut self, n: &SequenceNode<'a, '_>) -> Result<ValueId, ImportFailure> {
        let axis = n.attribute("axis").ok_or_else(|| n.error("has no axis"))?;
        let (axis, new) = (axis.i(), n.int("new_axis", 0) != 0);
        let Some(all) = self.listed(n, None)? else {
            let p = self.packed_of(n, &[])?;
            return self.expanded(n, |e| e.concatenated(p, axis, new));
        };
        let names = self.full_names(&n.control.node.output);
        self.stacked(n, all, axis, new, &names)
    }

    /// Joins tensors along `axis`, which is inserted first where it is new.
    pub(super) fn stacked(
        &mut self,
        n: &SequenceNode<'a, '_>,
        mut all: Vec<ValueId>,
        axis: i64,
        new: bool,
        names: &[String],
    ) -> Result<ValueId, ImportFailure> {
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
        let g = n.control.graph("body")?;
        let outputs = n.control.node.output.len();
        if g.output.len() < outputs || g.input.len() != n.inputs.len() {
            return Err(n.error("its body has other operands or results").into());
        }
        let is_packed = n.inputs.iter().any(|x| matches!(x, Meaning::Packed(_)));
        let length = match self.listed(n, None)? {
            Some(all) if !is_packed => all.len(),
            _ => return self.mapped_along(n),
        };
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
                self.refuse_single(&result, &name, n.control.node.op_type());
                match result {
                    Meaning::Tensor(id) => made.push(id),
                    _ => return Err(n.error("its body yields no tensor").into()),
                }
            }
        }
        Ok(made.into_iter().map(Meaning::Sequence).collect())
    }

    /// Counts an iteration of a loop or a map: its scope, the names of its values, and the literal of its number.
    pub(super) fn count_iteration(&mut self, name: &str) -> Result<(), ModelError> {
        const SCOPE: usize = 256;
        self.count_nodes(1)?;
        self.count_bytes((SCOPE + 2 * name.len()) as u64)
    }
}

fn too_long() -> ImportFailure {
    unsupported(format!("a sequence of more than {MOST_TENSORS} tensors"))
}
