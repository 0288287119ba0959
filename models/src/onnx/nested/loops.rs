//! Loops that carry sequences or optional values. Where the number of iterations is known when a model is imported, they are
//! imported one after the other (`unrolled`). Otherwise the loop carries the values that its sequences are packed into.

use convoke_graph::DType;
use convoke_graph::graph::{Attrs, TensorType, ValueId};
use convoke_graph::tensor::MAX_RANK;

use super::super::builder::Body;
use super::super::import::Importer;
use super::super::inputs;
use super::super::normalize::{Expansion, ImportFailure, ImportedNode};
use super::super::scope::Meaning;
use super::control::as_declared;
use super::forms::{ElementType, Form};
use super::sequences::{Meanings, SequenceNode, unsupported};
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

    /// Returns the meaning inside a body of something that the function around it has.
    pub(super) fn inside(&mut self, meaning: Meaning) -> Meaning {
        let level = self.enclosing.len();
        meaning.map(&mut |id| self.captured(id, level - 1, level))
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
