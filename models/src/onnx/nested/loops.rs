//! Loops that carry sequences or optional values. Where the number of iterations is known when a model is imported, they are
//! imported one after the other. Otherwise the loop carries the values that its sequences are packed into.

use convoke_graph::graph::{Attrs, TensorType, ValueId};
use convoke_graph::tensor::{MAX_RANK, TensorError};
use convoke_graph::{DType, Tensor};

use super::super::builder::Body;
use super::super::import::Importer;
use super::super::inputs;
use super::super::normalize::{Expansion, ImportFailure, ImportedNode};
use super::super::proto::{GraphProto, NodeProto};
use super::super::scope::Meaning;
use super::control::{as_declared, is_list};
use super::forms::{ElementType, Form};
use super::sequences::{MOST, Meanings, SequenceNode, unsupported};
use crate::error::{ITERATIONS_DIFFER, ModelError};

/// The most times that a body that carries one value is imported until its form has settled: whether it is optional,
/// whether its length is known, and the ranks, each of which may grow from one time to the next. With each further
/// carried value, knowledge may take one more round to reach all of them.
const ROUNDS: usize = MAX_RANK + 4;

/// The results of one iteration.
struct Iteration {
    goes_on: ValueId,
    carried: Vec<Meaning>,
    /// The tensors that are collected.
    collected: Vec<ValueId>,
}

/// The body of a loop: a function from the number of the iteration, the condition and the carried values to the results
/// of an iteration.
type Step<'s, 'a> =
    &'s dyn Fn(&mut Importer<'a>, [ValueId; 2], Vec<Meaning>) -> Result<Iteration, ModelError>;

/// How often a loop runs.
#[derive(Clone, Copy)]
struct Bounds {
    most: Option<ValueId>,
    condition: Option<ValueId>,
}

impl<'a> Importer<'a> {
    /// Imports a Loop that carries a sequence or an optional value.
    pub(super) fn carrying(&mut self, n: &SequenceNode<'a, '_>) -> Meanings {
        match self.is_unrolled(n)? {
            true => self.unrolled(n),
            false => self.carried_along(n),
        }
    }

    /// Whether all iterations of a loop are known: how many there are at most, and whether each goes on.
    fn is_unrolled(&mut self, n: &SequenceNode<'a, '_>) -> Result<bool, ImportFailure> {
        let known = |i: &Self, id: Option<ValueId>| match id.map(|id| i.b.elements(id)) {
            None => Some(None),
            Some(Some(v)) => v.first().copied().map(Some),
            Some(None) => None,
        };
        let (most, condition) = (n.optional(0)?, n.optional(1)?);
        let (Some(most), Some(condition)) = (known(self, most), known(self, condition)) else {
            return Ok(false);
        };
        if most.is_some_and(|most| most < 1) || condition == Some(0) {
            return Ok(true);
        }
        let g = n.control.graph("body")?;
        let counted = most.filter(|most| *most <= MOST as i64);
        // A loop that may end itself is tried out, since its condition may depend on what earlier iterations made.
        let tries = match counted {
            Some(_) if passes_on_condition(g) => 1,
            Some(most) => most,
            None => MOST as i64,
        };
        let count = n.inputs.len().saturating_sub(2);
        let kept = self.kept_results(&n.control, g, (2, 1), count, 0)?;
        let refusals = self.b.refusals();
        let mut is_unrolled = false;
        self.body(n.control.name, |i| {
            let carried = n.inputs.iter().skip(2).cloned();
            let mut carried: Vec<Meaning> = carried.map(|m| i.inside(m)).collect();
            for at in 0..tries {
                let name = format!("{}/{at}", n.control.name);
                i.count_iteration(&name)?;
                let own = i.own(n, at)?.map(Meaning::Tensor);
                let operands = own.into_iter().chain(carried).collect();
                let mut results = i.nested(g, operands, &kept, &name)?.into_iter();
                let goes_on = match results.next() {
                    Some(Meaning::Tensor(id)) => i.b.elements(id),
                    _ => None,
                };
                match goes_on.as_deref() {
                    Some([0]) => {
                        is_unrolled = true;
                        return Ok(vec![]);
                    }
                    Some(_) => carried = results.take(count).collect(),
                    None => return Ok(vec![]),
                }
            }
            is_unrolled = counted.is_some();
            Ok(vec![])
        })?;
        self.b.forget_refusals(refusals);
        Ok(is_unrolled)
    }

    /// Returns the meaning inside a body of something that the function around it has.
    fn inside(&mut self, meaning: Meaning) -> Meaning {
        let level = self.enclosing.len();
        meaning.map(&mut |id| self.captured(id, level - 1, level))
    }

    /// The body's own parameters in iteration `i`: its number, and that the loop goes on.
    fn own(&mut self, n: &SequenceNode<'a, '_>, i: i64) -> Result<[ValueId; 2], ModelError> {
        let g = n.control.graph("body")?;
        // Some exporters declare the body's own parameters as lists of one number.
        let shape = |own: usize| match g.input.get(own).is_some_and(is_list) {
            true => vec![1],
            false => vec![],
        };
        let fails = |e: TensorError| n.error(e.to_string());
        let name = n.control.name;
        let iteration = Tensor::from_slice(&shape(0), &[i]).map_err(fails)?;
        let holds = Tensor::from_bools(&shape(1), &[true]).map_err(fails)?;
        Ok([
            self.b.literal(&format!("{name}/iteration"), iteration),
            self.b.literal(&format!("{name}/condition"), holds),
        ])
    }

    /// Imports the iterations of a loop one after the other.
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
            let own = self.own(n, i)?;
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
                self.refuse_single(&result, &name, n.control.node.op_type());
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

    /// Imports a loop whose iterations only the run counts.
    fn carried_along(&mut self, n: &SequenceNode<'a, '_>) -> Meanings {
        let g = n.control.graph("body")?;
        let carried: Vec<Meaning> = n.inputs.iter().skip(2).cloned().collect();
        let count = carried.len();
        let kept = self.kept_results(&n.control, g, (2, 1), count, 0)?;
        let step = |i: &mut Self, own: [ValueId; 2], carried: Vec<Meaning>| {
            let mut all = Vec::new();
            for (k, id) in own.into_iter().enumerate() {
                let name = format!("{}/own{k}", n.control.name);
                let declared = as_declared(&mut i.b, &name, id, &g.input[k])?;
                all.push(Meaning::Tensor(declared));
            }
            all.extend(carried);
            let mut results = i.nested(g, all, &kept, n.control.name)?.into_iter();
            let Some(Meaning::Tensor(goes_on)) = results.next() else {
                return Err(n.error("its body yields no condition"));
            };
            let carried = results.by_ref().take(count).collect();
            let mut collected = Vec::new();
            for result in results {
                i.refuse_single(&result, n.control.name, n.control.node.op_type());
                match result {
                    Meaning::Tensor(id) => collected.push(id),
                    _ => return Err(n.error("it collects what is no tensor")),
                }
            }
            Ok(Iteration {
                goes_on,
                carried,
                collected,
            })
        };
        // A sequence that is always empty has the dtype that the body declares.
        let declared = g.input.iter().skip(2).map(|i| ElementType {
            dtype: inputs::dtype_of_sequence(i),
            ranks: None,
        });
        let forms = carried
            .iter()
            .zip(declared)
            .map(|(m, declared)| match self.form(m).open() {
                Form::Packed(held) => Form::Packed(held.or(declared)),
                other => other,
            });
        let forms = forms.collect();
        let bounds = Bounds {
            most: n.optional(0)?,
            condition: n.optional(1)?,
        };
        let names = self.result_names(&n.control.node.output, &kept[1..]);
        let made = self.looped(n, bounds, carried, forms, &names, &step)?;
        // An output that nothing reads has no value.
        let mut made = made.into_iter();
        let each = kept.iter().skip(1);
        Ok(each
            .map(|kept| match kept {
                true => made.next().unwrap_or(Meaning::Nothing),
                false => Meaning::Nothing,
            })
            .collect())
    }

    /// Runs the body of a `SequenceMap` once for each place of sequences whose length the run decides.
    pub(super) fn mapped_along(&mut self, n: &SequenceNode<'a, '_>) -> Meanings {
        let g = n.control.graph("body")?;
        let outputs = n.control.node.output.len();
        let kept: Vec<bool> = (0..g.output.len()).map(|o| o < outputs).collect();
        let mut operands = Vec::with_capacity(n.inputs.len());
        for operand in &n.inputs {
            operands.push(match operand {
                Meaning::Sequence(_) | Meaning::Packed(_) => {
                    let form = self.form(operand).open();
                    let mut ids = Vec::new();
                    self.formed(
                        n.control.name,
                        n.control.node.op_type(),
                        operand.clone(),
                        &form,
                        &mut ids,
                    )?;
                    form.of(&mut ids.into_iter())
                }
                other => other.clone(),
            });
        }
        let Some(Meaning::Packed(_)) = operands.first() else {
            return Err(n.error("operand 0 is no sequence").into());
        };
        let mut sequences = Vec::new();
        for operand in &operands {
            // Their tensors are read in the body, where a refusal would be reported once more.
            if let Meaning::Packed(p) = operand {
                p.rank()?;
                sequences.push(*p);
            }
        }
        let length = self.expanded(n, |e| {
            let count = e.common_count(&sequences)?;
            e.scalar(count)
        })?;
        let step = |i: &mut Self, [iteration, goes_on]: [ValueId; 2], carried: Vec<Meaning>| {
            let mut all = Vec::new();
            for operand in &operands {
                let operand = i.inside(operand.clone());
                all.push(match operand {
                    Meaning::Packed(p) => Meaning::Tensor(i.within(n, |e| e.at(p, iteration))?),
                    other => other,
                });
            }
            let results = i.nested(g, all, &kept, n.control.name)?;
            let mut longer = Vec::new();
            for (result, all) in results.into_iter().zip(carried) {
                i.refuse_single(&result, n.control.name, n.control.node.op_type());
                longer.push(match (result, all) {
                    (Meaning::Tensor(x), Meaning::Packed(p)) if i.b.ty(x).is_some() => {
                        let mut made = None;
                        i.within(n, |e| {
                            let longer = e.inserted(p, x, None)?;
                            made = Some(longer);
                            Ok(longer.data)
                        })?;
                        made.map_or(Meaning::Nothing, Meaning::Packed)
                    }
                    (Meaning::Tensor(_), all) => all,
                    _ => return Err(n.error("its body yields no tensor")),
                });
            }
            Ok(Iteration {
                goes_on,
                carried: longer,
                collected: vec![],
            })
        };
        let bounds = Bounds {
            most: Some(length),
            condition: None,
        };
        let carried = vec![Meaning::Sequence(vec![]); outputs];
        let declared = g.output.iter().take(outputs).map(inputs::dtype_of_tensor);
        let forms = declared.map(|dtype| Form::Packed(ElementType { dtype, ranks: None }));
        let forms = forms.collect();
        let names = vec![String::new(); outputs];
        self.looped(n, bounds, carried, forms, &names, &step)
    }

    /// Adds a value that ops in the function under construction make.
    fn within(
        &mut self,
        n: &SequenceNode<'a, '_>,
        make: impl FnOnce(&mut Expansion<'_>) -> Result<ValueId, ImportFailure>,
    ) -> Result<ValueId, ModelError> {
        match self.expanded(n, make) {
            Ok(id) => Ok(id),
            Err(ImportFailure::Error(e)) => Err(e),
            Err(ImportFailure::Consequence | ImportFailure::Unsupported(_)) => {
                let names = [n.control.name.to_owned()];
                let made = self.b.stand_ins(&names);
                made.first().copied().ok_or_else(|| n.error("has no value"))
            }
        }
    }

    /// As [`Self::within`], for the node itself.
    pub(super) fn expanded<T>(
        &mut self,
        n: &SequenceNode<'a, '_>,
        make: impl FnOnce(&mut Expansion<'_>) -> Result<T, ImportFailure>,
    ) -> Result<T, ImportFailure> {
        let outputs = self.full_names(&n.control.node.output);
        let c = ImportedNode::of_expansion(n.control.name, outputs);
        make(&mut Expansion {
            b: &mut self.b,
            c: &c,
        })
    }

    /// Adds a Loop that carries values of these `forms`, or of more general ones that its body turns out to need.
    /// `names` are the names of its outputs: the carried values, then the collected ones.
    fn looped(
        &mut self,
        n: &SequenceNode<'a, '_>,
        bounds: Bounds,
        carried: Vec<Meaning>,
        mut forms: Vec<Form>,
        names: &[String],
        step: Step<'_, 'a>,
    ) -> Meanings {
        let mut settled = false;
        for _ in 0..ROUNDS + forms.len() {
            let mut types = Vec::new();
            for form in &forms {
                form.types(&mut || self.unknown_dim(), &mut types);
            }
            let refusals = self.b.refusals();
            let mut found = Vec::new();
            self.body(n.control.name, |i| {
                let made = i.iteration(n, &types, &forms, step)?;
                found = made.carried.iter().map(|m| i.form(m).open()).collect();
                Ok(vec![])
            })?;
            self.b.forget_refusals(refusals);
            let mut general = Vec::with_capacity(forms.len());
            for (form, found) in forms.iter().zip(found) {
                let both = form.clone().or(found).and_then(Form::of_one_rank);
                general.push(both.ok_or_else(|| unsupported(ITERATIONS_DIFFER))?);
            }
            settled = general == forms;
            if settled {
                break;
            }
            forms = general;
        }
        if !settled {
            return Err(unsupported("the forms of what it carries do not settle"));
        }
        let mut initial = Vec::new();
        for (meaning, form) in carried.into_iter().zip(&forms) {
            self.formed(
                n.control.name,
                n.control.node.op_type(),
                meaning,
                form,
                &mut initial,
            )?;
        }
        let types = initial.iter().map(|id| self.b.ty(*id).cloned()).collect();
        let body = self.settled(types, 1, |i, types| settled_body(i, n, types, &forms, step))?;
        let operands = [bounds.most, bounds.condition].into_iter();
        let operands = operands.chain(initial.iter().copied().map(Some));
        let mut all = Vec::new();
        for (form, name) in forms.iter().zip(names) {
            match form {
                Form::Tensor(_) => all.push(name.clone()),
                other => all.extend(vec![String::new(); other.values()]),
            }
        }
        let collected = names.get(forms.len()..).unwrap_or_default();
        all.extend(collected.iter().cloned());
        let name = n.control.name;
        let made = body.emit(&mut self.b, "Loop", name, Attrs::default(), operands, &all)?;
        let mut made = made.into_iter();
        let mut results: Vec<Meaning> = forms.iter().map(|form| form.of(&mut made)).collect();
        results.extend(made.map(Meaning::Tensor));
        Ok(results)
    }

    /// Imports one iteration into the function under construction, whose parameters are added.
    fn iteration(
        &mut self,
        n: &SequenceNode<'a, '_>,
        types: &[Option<TensorType>],
        forms: &[Form],
        step: Step<'_, 'a>,
    ) -> Result<Iteration, ModelError> {
        let own = [(DType::I64, "iteration"), (DType::Bool, "condition")];
        let own = own.map(|(dtype, what)| {
            let name = format!("{}/{what}", n.control.name);
            self.b.param(&name, TensorType::new(dtype, vec![]))
        });
        let carried = types.iter().enumerate();
        let carried = carried.map(|(k, ty)| {
            let name = format!("{}/carried{k}", n.control.name);
            self.b.param_of(&name, ty.clone())
        });
        let mut carried = carried.collect::<Vec<_>>().into_iter();
        let carried = forms.iter().map(|form| form.of(&mut carried)).collect();
        self.count_iteration(n.control.name)?;
        step(self, own, carried)
    }
}

/// Whether the condition that a body yields is a constant, or the one that it is given.
fn passes_on_condition(g: &GraphProto) -> bool {
    let mut name = g.output.first().map_or("", |o| o.name());
    // Each node of a chain is another one, so that a longer chain goes round in circles.
    for _ in 0..=g.node.len() {
        let made_by = |n: &&NodeProto| n.output.iter().any(|o| o == name);
        match g.node.iter().find(made_by) {
            Some(n) if n.op_type() == "Constant" => return true,
            Some(n) if matches!(n.op_type(), "Identity" | "Cast") => {
                name = n.input.first().map_or("", String::as_str);
            }
            Some(_) => return false,
            None => {
                let carried = g.input.iter().skip(2);
                return carried.chain(g.input.first()).all(|i| i.name() != name);
            }
        }
    }
    false
}

fn settled_body<'a>(
    i: &mut Importer<'a>,
    n: &SequenceNode<'a, '_>,
    types: &[Option<TensorType>],
    forms: &[Form],
    step: Step<'_, 'a>,
) -> Result<Body, ModelError> {
    i.body(n.control.name, |i| {
        let made = i.iteration(n, types, forms, step)?;
        let mut results = vec![made.goes_on];
        for (meaning, form) in made.carried.into_iter().zip(forms) {
            i.formed(
                n.control.name,
                n.control.node.op_type(),
                meaning,
                form,
                &mut results,
            )?;
        }
        results.extend(made.collected);
        Ok(results)
    })
}
