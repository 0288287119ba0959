//! Checks that a function keeps the invariants of [`crate::graph`].

use std::collections::HashSet;

use super::check::{check_given, check_literal};
use super::{ValueFacts, rejected, unsupported};
use crate::graph::{Function, GraphError, RunsAt, TensorType, Value, ValueId};
use crate::ops::shapes::can_equal;

/// Whether a value is defined, and in which part of the function.
#[derive(Clone, Copy, PartialEq)]
enum DefinedAt {
    Not,
    Init,
    Step,
}

impl Function {
    /// Checks all invariants of [`crate::graph`].
    pub fn verify(&self) -> Result<(), GraphError> {
        check(self, true)
    }
}

/// As [`Function::verify`], except that the types of nodes' results are not checked: for a function whose types are still to be
/// inferred.
pub(in crate::ops) fn verify_untyped(f: &Function) -> Result<(), GraphError> {
    check(f, false)
}

fn check(f: &Function, typed: bool) -> Result<(), GraphError> {
    let mut defined = vec![DefinedAt::Not; f.values.len()];
    check_names(&f.values)?;
    for id in &f.params {
        check_given(
            define(f, &mut defined, *id, DefinedAt::Step, "parameters")?,
            "parameter",
        )?;
    }
    for (id, literal) in &f.literals {
        let value = define(f, &mut defined, *id, DefinedAt::Init, "literals")?;
        check_given(value, "literal")?;
        check_literal(f, value, literal)?;
    }
    if let Some(e) = unsupported(f).into_iter().next() {
        return Err(e);
    }
    let mut known = ValueFacts::new(&f.literals, f.values.len());
    for node in &f.nodes {
        let when = if node.runs_at == RunsAt::Init {
            DefinedAt::Init
        } else {
            DefinedAt::Step
        };
        for id in node.inputs.iter().flatten() {
            let Some(value) = f.values.get(id.ix()) else {
                return Err(GraphError::NoSuchValue {
                    node: node.name.to_string(),
                });
            };
            let value = || value.name.to_string();
            match (defined[id.ix()], when) {
                (DefinedAt::Not, _) => {
                    return Err(GraphError::Undefined {
                        value: value(),
                        user: node.name.to_string(),
                    });
                }
                (DefinedAt::Step, DefinedAt::Init) => {
                    let node = node.name.to_string();
                    return Err(GraphError::InitDependsOnStep {
                        node,
                        value: value(),
                    });
                }
                _ => {}
            }
        }
        for id in &node.outputs {
            let value = define(f, &mut defined, *id, when, &node.name)?;
            if typed {
                check_given(value, "result")?;
            }
        }
        if !typed {
            continue;
        }
        let inferred = known
            .infer(node, &f.values)
            .map_err(|e| rejected(node, e))?;
        for (id, out) in node.outputs.iter().zip(inferred) {
            let value = f.value(*id);
            if !compatible(&value.ty, &out.ty) {
                return Err(GraphError::WrongType {
                    node: node.name.to_string(),
                    value: value.name.to_string(),
                    declared: value.ty.to_string(),
                    inferred: out.ty.to_string(),
                });
            }
            known.set(*id, out.value);
        }
    }
    for (name, id) in &f.results {
        match (f.values.get(id.ix()), defined.get(id.ix())) {
            (Some(_), Some(DefinedAt::Init | DefinedAt::Step)) => {}
            (Some(v), _) => {
                return Err(GraphError::Undefined {
                    value: v.name.to_string(),
                    user: name.clone(),
                });
            }
            (None, _) => return Err(GraphError::NoSuchValue { node: name.clone() }),
        }
    }
    Ok(())
}

fn check_names(values: &[Value]) -> Result<(), GraphError> {
    let mut seen = HashSet::with_capacity(values.len());
    match values.iter().find(|v| !seen.insert(&*v.name)) {
        Some(v) => Err(GraphError::DefinedTwice {
            value: v.name.to_string(),
        }),
        None => Ok(()),
    }
}

/// Records the definition of `id`, and fails where it has another one. `by` names the definer in errors.
fn define<'f>(
    f: &'f Function,
    defined: &mut [DefinedAt],
    id: ValueId,
    when: DefinedAt,
    by: &str,
) -> Result<&'f Value, GraphError> {
    match (f.values.get(id.ix()), defined.get_mut(id.ix())) {
        (Some(value), Some(slot)) => match std::mem::replace(slot, when) {
            DefinedAt::Not => Ok(value),
            _ => Err(GraphError::DefinedTwice {
                value: value.name.to_string(),
            }),
        },
        _ => Err(GraphError::NoSuchValue { node: by.into() }),
    }
}

/// Whether a value declared as `declared` can hold a result of the type that a rule inferred: the same dtype and rank,
/// and no dimension that is known to differ. Symbols may be bound or renamed between the two.
fn compatible(declared: &TensorType, inferred: &TensorType) -> bool {
    declared.dtype == inferred.dtype
        && declared.shape.len() == inferred.shape.len()
        && declared
            .shape
            .iter()
            .zip(&inferred.shape)
            .all(|(d, i)| can_equal(d, i))
}
