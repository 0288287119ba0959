//! Control flow that data decides: If, Loop and Scan, with their bodies as functions.

use convoke_graph::graph::{Attr, Attrs, TensorType, ValueId};
use convoke_graph::ops::{self, MOST_NESTED};
use convoke_graph::{DType, Dim};

use super::super::builder::{Body, Builder};
use super::super::import::Importer;
use super::super::inputs::sequence_name;
use super::super::normalize::ImportFailure;
use super::super::proto::{
    AttributeProto, GraphProto, NodeProto, ValueInfoProto, type_proto::Value,
};
use super::super::scope::Meaning;
use super::forms::Form;
use crate::error::{BRANCHES_DIFFER, ModelError, RANK_OF_DATA, RANK_OF_SIZES};

/// The most times that a body is imported until the types of its carried values have settled. In the last round none of
/// their dimensions is taken for known.
const ROUNDS: usize = 4;

/// The attributes of a node.
pub(super) type Bound<'a> = [(&'a str, &'a AttributeProto)];

/// A node of control flow.
#[derive(Clone, Copy)]
pub(super) struct ControlNode<'a, 'n> {
    /// The full name.
    pub name: &'n str,
    pub node: &'a NodeProto,
    pub bound: &'n Bound<'a>,
}

impl<'a> ControlNode<'a, '_> {
    pub(super) fn error(&self, reason: impl Into<String>) -> ModelError {
        ModelError::Node {
            node: self.name.into(),
            op: self.node.op_type().into(),
            reason: reason.into(),
        }
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&'a AttributeProto> {
        let found = self.bound.iter().find(|(n, _)| *n == name);
        found.map(|(_, a)| *a)
    }

    pub(super) fn graph(&self, name: &str) -> Result<&'a GraphProto, ModelError> {
        let graph = self.attribute(name).and_then(|a| a.g.as_ref());
        graph.ok_or_else(|| self.error(format!("has no {name}")))
    }

    /// `n` entries of an attribute, which are 0 where it is absent.
    pub(super) fn entries(&self, name: &str, n: usize) -> Result<Vec<i64>, ModelError> {
        match self.attribute(name).map(|a| &a.ints) {
            None => Ok(vec![0; n]),
            Some(given) if given.len() == n => Ok(given.clone()),
            Some(given) => {
                Err(self.error(format!("'{name}' has {} entries, not {n}", given.len())))
            }
        }
    }

    pub(super) fn directions(&self, name: &str, n: usize) -> Result<Vec<bool>, ModelError> {
        let given = self.entries(name, n)?;
        match given.iter().all(|d| (0..=1).contains(d)) {
            true => Ok(given.iter().map(|d| *d == 1).collect()),
            false => Err(self.error(format!("'{name}' has entries other than 0 and 1"))),
        }
    }
}

impl<'a> Importer<'a> {
    /// Imports an If node. Where its condition is known, the branch that it selects is inlined.
    pub(in super::super) fn branch(
        &mut self,
        name: &str,
        node: &'a NodeProto,
        inputs: &[Option<ValueId>],
        bound: &Bound<'a>,
    ) -> Result<(), ModelError> {
        let n = ControlNode { name, node, bound };
        let condition = inputs.first().copied().flatten();
        let condition = condition.ok_or_else(|| n.error("has no condition"))?;
        let names = ["then_branch", "else_branch"];
        let graphs = [n.graph(names[0])?, n.graph(names[1])?];
        for (name, g) in names.iter().zip(graphs) {
            if g.output.len() < node.output.len() {
                return Err(n.error(format!("{name} has {} outputs", g.output.len())));
            }
        }
        let kept: Vec<bool> = node.output.iter().map(|o| self.is_read(o)).collect();
        if let Some([known]) = self.b.elements(condition).as_deref() {
            let taken = graphs[usize::from(*known == 0)];
            let results = self.nested(taken, vec![], &kept, name)?;
            return self.define_meanings(&node.output, &kept, results);
        }
        let outputs = self.kept_names(&node.output, &kept);
        let (mut bodies, forms) = match self.branches(name, condition, graphs, &kept)? {
            Ok(made) => made,
            Err(reason) => {
                let failed = Err(ImportFailure::Unsupported(reason.into()));
                let out = self.reported(failed, "", "If", name, &outputs)?;
                return self.define_kept(&node.output, &kept, &out);
            }
        };
        let outputs = value_names(outputs, &forms);
        let most = ops::lookup("If").map_or(0, |def| def.outputs.1);
        if outputs.len() > most {
            let reason = format!("its branches yield more than {most} tensors");
            let failed = Err(ImportFailure::Unsupported(reason));
            let out = self.reported(failed, "", "If", name, &outputs)?;
            let all = self.grouped(out, &forms);
            return self.define_meanings(&node.output, &kept, all);
        }
        if outputs.is_empty() {
            let all = self.grouped(vec![], &forms);
            return self.define_meanings(&node.output, &kept, all);
        }
        if outputs.len() == 1
            && let Some((x, axes, size)) = self.squeezed(condition, &bodies)
        {
            self.assumed_ones.push(size);
            let axes = self.b.ints(&format!("{name}/axes"), &axes)?;
            let operands = vec![Some(x), Some(axes)];
            let attrs = Attrs::default();
            let out = self.b.emit("Squeeze", name, attrs, operands, &outputs)?;
            let all = self.grouped(out, &forms);
            return self.define_meanings(&node.output, &kept, all);
        }
        for (i, output) in outputs.iter().enumerate() {
            let [Some(yes), Some(no)] = [&bodies[0], &bodies[1]].map(|b| b.result(i)) else {
                continue;
            };
            if yes.shape.len() != no.shape.len() {
                let decided = match self.b.is_of_sizes(condition) {
                    true => RANK_OF_SIZES,
                    false => RANK_OF_DATA,
                };
                let reason =
                    format!("'{output}' is {yes} in one branch, {no} in the other: {decided}");
                let out = self.reported(
                    Err(ImportFailure::Unsupported(reason)),
                    "",
                    "If",
                    name,
                    &outputs,
                )?;
                let all = self.grouped(out, &forms);
                return self.define_meanings(&node.output, &kept, all);
            }
        }
        for body in &mut bodies {
            body.hoist(&mut self.b)?;
        }
        // Both branches take what either of them captures.
        let mut captured: Vec<ValueId> = Vec::new();
        for (id, _) in bodies.iter().flat_map(|b| &b.captured) {
            if !captured.contains(id) {
                captured.push(*id);
            }
        }
        let mut attrs = Attrs::default();
        for (attr, mut body) in names.into_iter().zip(bodies) {
            body.widen(&captured, &self.b);
            attrs = attrs.with(attr, Attr::Function(body.f.into()));
        }
        let operands = [condition].into_iter().chain(captured).map(Some);
        let out = self
            .b
            .emit("If", name, attrs, operands.collect(), &outputs)?;
        let all = self.grouped(out, &forms);
        self.define_meanings(&node.output, &kept, all)
    }

    /// The results of these forms that are made of `ids`.
    fn grouped(&mut self, ids: Vec<ValueId>, forms: &[Form]) -> Vec<Meaning> {
        let mut ids = ids.into_iter();
        let mut all = Vec::with_capacity(forms.len());
        for form in forms {
            let meaning = form.of(&mut ids);
            if let (Form::Single(_), Meaning::Tensor(id)) = (form, &meaning) {
                self.b.single.insert(*id);
            }
            all.push(meaning);
        }
        all
    }

    /// Imports the branches of an If, and gives the forms of their results, which are those that either may be of. Where
    /// there are none, gives the reason.
    fn branches(
        &mut self,
        name: &str,
        condition: ValueId,
        graphs: [&'a GraphProto; 2],
        kept: &[bool],
    ) -> Result<Result<(Vec<Body>, Vec<Form>), &'static str>, ModelError> {
        let refusals = self.b.refusals();
        let mut found = Vec::with_capacity(2);
        let bodies = self.branches_as(name, graphs, kept, None, &mut found)?;
        let [Some(yes), Some(no)] = [found.first(), found.get(1)] else {
            return Ok(Err("a branch is missing"));
        };
        let both = yes.iter().zip(no).map(|(a, b)| a.clone().or(b.clone()));
        let Some(both) = both.collect::<Option<Vec<Form>>>() else {
            return Ok(Err(BRANCHES_DIFFER));
        };
        if !both.iter().any(Form::is_open) {
            return Ok(Ok((bodies, both)));
        }
        if both.len() == 1 && self.squeezed(condition, &bodies).is_some() {
            return Ok(Ok((bodies, yes.clone())));
        }
        self.b.forget_refusals(refusals);
        let bodies = self.branches_as(name, graphs, kept, Some(&both), &mut found)?;
        Ok(Ok((bodies, both)))
    }

    /// Imports the branches of an If, whose results are of these `forms`, else of those that they are `found` to be of.
    fn branches_as(
        &mut self,
        name: &str,
        graphs: [&'a GraphProto; 2],
        kept: &[bool],
        forms: Option<&[Form]>,
        found: &mut Vec<Vec<Form>>,
    ) -> Result<Vec<Body>, ModelError> {
        let mut bodies = Vec::with_capacity(2);
        for g in graphs {
            bodies.push(self.body(name, |i| {
                let results = i.nested(g, vec![], kept, name)?;
                let own: Vec<Form> = results.iter().map(|m| i.form(m)).collect();
                let mut ids = Vec::new();
                for (meaning, form) in results.into_iter().zip(forms.unwrap_or(&own)) {
                    i.formed(name, "If", meaning, form, &mut ids)?;
                }
                found.push(own);
                Ok(ids)
            })?);
        }
        Ok(bodies)
    }

    /// The operand and the axes of a Squeeze that stands for an If, and the size that it asks for: exporters write an
    /// If that removes an axis where its size is 1, and otherwise yields the operand as it is. The rank of its result
    /// would depend on the size. The nodes after it are imported for the lower rank, and Squeeze refuses another size
    /// when it runs.
    fn squeezed(&self, condition: ValueId, branches: &[Body]) -> Option<(ValueId, Vec<i64>, Dim)> {
        let [yes, no] = branches else { return None };
        let (made, kept) = (yes.result(0)?, no.result(0)?);
        let [node] = yes.f.nodes.as_slice() else {
            return None;
        };
        if made.shape.len() + 1 != kept.shape.len() || &*node.op != "Squeeze" {
            return None;
        }
        let x = yes.captures(node.inputs.first().copied().flatten()?)?;
        let same = match no.f.nodes.as_slice() {
            [] => no.f.results.first()?.1,
            [copy] if &*copy.op == "Identity" => copy.inputs.first().copied().flatten()?,
            _ => return None,
        };
        let axes = yes.f.inline(node.inputs.get(1).copied().flatten()?)?;
        let axes = axes.to_i64s()?;
        let [axis] = axes.as_slice() else { return None };
        let rank = kept.shape.len() as i64;
        let axis = if *axis < 0 { axis + rank } else { *axis };
        let size = kept.shape.get(usize::try_from(axis).ok()?)?;
        let asks = self.b.is_one(condition, size);
        (no.captures(same)? == x && asks).then(|| (x, axes, size.clone()))
    }

    /// Imports a Loop node.
    pub(in super::super) fn repeated(
        &mut self,
        name: &str,
        node: &'a NodeProto,
        inputs: &[Option<ValueId>],
        bound: &Bound<'a>,
    ) -> Result<(), ModelError> {
        let n = ControlNode { name, node, bound };
        let g = n.graph("body")?;
        let operand = |i: usize| inputs.get(i).copied().flatten();
        let given = inputs.iter().skip(2).copied().collect::<Option<Vec<_>>>();
        let carried = given.ok_or_else(|| n.error("a carried value is left out"))?;
        let kept = self.kept_results(&n, g, (2, 1), carried.len(), 0)?;
        let types = carried.iter().map(|id| self.b.ty(*id).cloned()).collect();
        let body = self.settled(types, 1, |i, types| {
            i.body(name, |i| {
                let own = [(DType::I64, "iteration"), (DType::Bool, "condition")];
                let mut params = Vec::new();
                for ((dtype, what), declared) in own.into_iter().zip(&g.input) {
                    let what = format!("{name}/{what}");
                    let id = i.b.param(&what, TensorType::new(dtype, vec![]));
                    params.push((id, what, declared));
                }
                let carried = types.iter().zip(&g.input[2..]);
                let carried: Vec<_> = carried
                    .map(|(ty, g)| i.b.param_of(&format!("{name}/{}", g.name()), ty.clone()))
                    .collect();
                let mut all = Vec::new();
                for (id, what, declared) in params {
                    all.push(as_declared(&mut i.b, &what, id, declared)?);
                }
                all.extend(carried);
                i.graph(g, &all, &kept, name, "Loop")
            })
        })?;
        let operands = [operand(0), operand(1)].into_iter();
        let operands = operands.chain(carried.iter().copied().map(Some));
        let attrs = Attrs::default();
        let names = self.result_names(&node.output, &kept[1..]);
        let of_other_rank = carried.iter().enumerate().find_map(|(c, id)| {
            let (before, after) = (self.b.ty(*id)?, body.result(1 + c)?);
            let reason = || {
                format!("it carries value {c} as {before} at first, and as {after} later: {RANK_OF_DATA}")
            };
            (before.shape.len() != after.shape.len()).then(reason)
        });
        let out = match of_other_rank {
            Some(reason) => {
                let failed = Err(ImportFailure::Unsupported(reason));
                self.reported(failed, "", "Loop", name, &names)?
            }
            None => body.emit(&mut self.b, "Loop", name, attrs, operands, &names)?,
        };
        self.define_kept(&node.output, &kept[1..], &out)
    }

    /// Imports a function that the node `name` runs. `make` adds its parameters and nodes, and gives its results.
    pub(in super::super) fn body(
        &mut self,
        name: &str,
        make: impl FnOnce(&mut Self) -> Result<Vec<ValueId>, ModelError>,
    ) -> Result<Body, ModelError> {
        let outer = std::mem::replace(&mut self.b, Builder::body(name));
        self.enclosing.push(outer);
        if self.enclosing.len() > MOST_NESTED {
            return Err(ModelError::TooLarge {
                what: "levels of branches and loops",
                limit: MOST_NESTED as u64,
            });
        }
        let results = make(self)?;
        let inner = match self.enclosing.pop() {
            Some(outer) => std::mem::replace(&mut self.b, outer),
            None => Builder::body(name),
        };
        Ok(inner.finish_body(&results, &mut self.b))
    }

    /// Imports a body that is run again and again, with carried values of `types`, which are its results from `first`
    /// on. Where a result has another dimension than the value had before, the body is imported once more, for a
    /// dimension that is not known.
    pub(in super::super) fn settled(
        &mut self,
        mut types: Vec<Option<TensorType>>,
        first: usize,
        import: impl Fn(&mut Self, &[Option<TensorType>]) -> Result<Body, ModelError>,
    ) -> Result<Body, ModelError> {
        let rank = |t: &Option<TensorType>| t.as_ref().map_or(0, |t| t.shape.len());
        let mut open: Vec<Vec<bool>> = types.iter().map(|t| vec![false; rank(t)]).collect();
        let mut round = 1;
        loop {
            let refusals = self.b.refusals();
            let body = import(self, &types)?;
            let last = round + 1 == ROUNDS;
            let mut changed = false;
            let carried = types.iter_mut().zip(&mut open).enumerate();
            for (c, (ty, open)) in carried {
                let Some((ty, made)) = ty.as_mut().zip(body.result(first + c)) else {
                    continue;
                };
                let dims = ty.shape.iter_mut().zip(&made.shape).zip(open);
                for (axis, ((old, new), open)) in dims.enumerate() {
                    if !*open && old != new {
                        self.symbols += 1;
                        *old = Dim::sym(&format!("carried{c}.{axis}~{}", self.symbols));
                        (*open, changed) = (true, true);
                    }
                }
            }
            if !changed || round == ROUNDS {
                return Ok(body);
            }
            if last {
                for (ty, open) in types.iter_mut().zip(&mut open) {
                    let dims = ty.iter_mut().flat_map(|ty| &mut ty.shape).zip(open);
                    for (dim, open) in dims.filter(|(_, open)| !**open) {
                        self.symbols += 1;
                        *dim = Dim::sym(&format!("carried~{}", self.symbols));
                        *open = true;
                    }
                }
            }
            self.b.forget_refusals(refusals);
            round += 1;
        }
    }

    /// For each output of a body, whether something reads it: all that are not collected, and those collected ones
    /// that a node reads outside.
    pub(super) fn kept_results(
        &self,
        n: &ControlNode<'a, '_>,
        g: &GraphProto,
        (own_inputs, own_outputs): (usize, usize),
        carried: usize,
        scanned: usize,
    ) -> Result<Vec<bool>, ModelError> {
        let (takes, yields) = (own_inputs + carried + scanned, own_outputs + carried);
        if g.input.len() != takes {
            let has = g.input.len();
            return Err(n.error(format!("its body takes {has} operands, {takes} are given")));
        }
        let most = g.output.len().saturating_sub(own_outputs);
        if g.output.len() < yields || n.node.output.len() > most {
            let has = g.output.len();
            return Err(n.error(format!("its body has {has} outputs")));
        }
        let read = |o: usize| n.node.output.get(o).is_some_and(|name| self.is_read(name));
        let kept = (0..g.output.len()).map(|o| o < yields || read(o - own_outputs));
        Ok(kept.collect())
    }

    pub(super) fn is_read(&self, name: &str) -> bool {
        !name.is_empty() && self.read.contains(name)
    }

    /// The full names of those outputs of a node that are kept.
    fn kept_names(&mut self, outputs: &[String], kept: &[bool]) -> Vec<String> {
        let kept = outputs.iter().zip(kept).filter(|(_, kept)| **kept);
        let names: Vec<String> = kept.map(|(o, _)| o.clone()).collect();
        self.full_names(&names)
    }

    /// As [`Self::kept_names`], with an empty name for each kept output that the node leaves out.
    pub(super) fn result_names(&mut self, outputs: &[String], kept: &[bool]) -> Vec<String> {
        let mut all = outputs.to_vec();
        all.resize(kept.len(), String::new());
        self.kept_names(&all, kept)
    }

    /// Defines the outputs of a node: `ids` are those of the kept ones, and nothing reads the others.
    pub(super) fn define_kept(
        &mut self,
        outputs: &'a [String],
        kept: &[bool],
        ids: &[ValueId],
    ) -> Result<(), ModelError> {
        let all = ids.iter().copied().map(Meaning::Tensor).collect();
        self.define_meanings(outputs, kept, all)
    }

    /// As [`Self::define_kept`], where outputs need not be tensors.
    pub(super) fn define_meanings(
        &mut self,
        outputs: &'a [String],
        kept: &[bool],
        all: Vec<Meaning>,
    ) -> Result<(), ModelError> {
        let mut all = all.into_iter();
        for (i, output) in outputs.iter().enumerate() {
            let meaning = match kept.get(i) {
                Some(true) => all.next(),
                _ => None,
            };
            if !output.is_empty() {
                let meaning = meaning.unwrap_or(Meaning::Nothing);
                self.scope().define_as(output, meaning)?;
            }
        }
        Ok(())
    }
}

/// The names of the values that results of these forms are made of.
fn value_names(names: Vec<String>, forms: &[Form]) -> Vec<String> {
    let each = names.into_iter().zip(forms);
    each.flat_map(|(name, form)| match form {
        Form::Tensor(_) | Form::Single(_) => vec![name],
        Form::List(length, _) => (0..*length).map(|at| sequence_name(&name, at)).collect(),
        other => (0..other.values())
            .map(|at| format!("{name}/part{at}"))
            .collect(),
    })
    .collect()
}

/// Whether a parameter is declared as a list.
pub(super) fn is_list(declared: &ValueInfoProto) -> bool {
    match declared.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        Some(Value::TensorType(t)) => t.shape.as_ref().is_some_and(|s| s.dim.len() == 1),
        _ => false,
    }
}

/// A scalar parameter of a loop's body in the shape that the body declares: some exporters declare a list of one number.
pub(super) fn as_declared(
    b: &mut Builder,
    name: &str,
    id: ValueId,
    declared: &ValueInfoProto,
) -> Result<ValueId, ModelError> {
    if !is_list(declared) {
        return Ok(id);
    }
    let axes = b.ints(&format!("{name}/axes"), &[0])?;
    let name = format!("{name}/Unsqueeze");
    let out = [name.clone()];
    let operands = vec![Some(id), Some(axes)];
    let made = b.emit("Unsqueeze", &name, Attrs::default(), operands, &out)?;
    Ok(made.first().copied().unwrap_or(id))
}
