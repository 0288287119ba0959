//! The meaning of names: values of the function that is built or of those that enclose it, sequences and optional
//! values.

use convoke_graph::graph::ValueId;

use super::super::builder::Builder;
use super::super::inputs::sequence_name;
use super::super::nested;
use super::super::outputs::OutputForm;
use super::super::scope::{Meaning, Scope};
use super::Importer;
use crate::error::ModelError;

pub(super) fn undefined(value: &str, user: &str) -> ModelError {
    ModelError::Undefined {
        value: value.into(),
        user: user.into(),
    }
}

impl<'a> Importer<'a> {
    /// The value that `name` stands for, or `None` for an optional operand that was left out. A constant becomes a
    /// literal when it is first read.
    pub(in crate::onnx) fn resolve(
        &mut self,
        name: &str,
        user: &str,
    ) -> Result<Option<ValueId>, ModelError> {
        for s in (0..self.scopes.len()).rev() {
            let scope = &mut self.scopes[s];
            let level = scope.level;
            if let Some(id) = scope.names.get(name).copied() {
                return Ok(id.map(|id| self.captured(id, level, self.enclosing.len())));
            }
            if let Some((key, constant)) = scope.pending.remove_entry(name) {
                let full = format!("{}{name}", scope.prefix);
                let id = self.initializer(constant, &full, level)?;
                self.scopes[s].names.insert(key, Some(id));
                return Ok(Some(self.captured(id, level, self.enclosing.len())));
            }
            if !scope.open {
                break;
            }
        }
        Err(undefined(name, user))
    }

    /// The sequence, map or optional value that `name` stands for; `None` where it is a tensor or nothing.
    pub(in crate::onnx) fn compound(&mut self, name: &str) -> Option<Meaning> {
        let scope = self.scope_of(name)?;
        let compound = scope.compounds.get(name)?.clone();
        let (from, to) = (scope.level, self.enclosing.len());
        Some(compound.map(&mut |id| self.captured(id, from, to)))
    }

    /// The innermost scope that knows `name`, of those that the current one sees.
    fn scope_of(&self, name: &str) -> Option<&Scope<'a>> {
        for scope in self.scopes.iter().rev() {
            let known = scope.names.contains_key(name)
                || scope.compounds.contains_key(name)
                || scope.pending.contains_key(name);
            if known {
                return Some(scope);
            }
            if !scope.open {
                break;
            }
        }
        None
    }

    /// Whether `name` stands for a map.
    pub(in crate::onnx) fn is_map(&self, name: &str) -> bool {
        let compound = self.scope_of(name).and_then(|s| s.compounds.get(name));
        matches!(compound, Some(Meaning::Map { .. }))
    }

    /// Whether `name` stands for an optional value that holds nothing.
    pub(in crate::onnx) fn holds_nothing(&self, name: &str) -> bool {
        let id = self.scope_of(name).and_then(|s| s.names.get(name));
        id.is_some_and(Option::is_none)
    }

    /// Returns the meaning of `name`; an empty name stands for nothing.
    pub(in crate::onnx) fn meaning(
        &mut self,
        name: &str,
        user: &str,
    ) -> Result<Meaning, ModelError> {
        if name.is_empty() {
            return Ok(Meaning::Nothing);
        }
        if let Some(compound) = self.compound(name) {
            return Ok(compound);
        }
        let id = self.resolve(name, user)?;
        Ok(id.map_or(Meaning::Nothing, Meaning::Tensor))
    }

    /// Reports what must not be a scalar or a list of one number, depending on data.
    pub(in crate::onnx) fn refuse_single(&mut self, meaning: &Meaning, name: &str, user: &str) {
        if let Meaning::Tensor(id) = meaning
            && self.b.single.contains(id)
        {
            self.b.unsupported(name, user, Some(nested::REASON.into()));
        }
    }

    /// Adds the results of the function that an output of the graph is made of.
    pub(super) fn output(&mut self, name: &str, meaning: Meaning) {
        let (mut optional, mut held) = (false, meaning);
        let results = &mut self.b.f.results;
        if let Meaning::Optional(has, what) = held {
            (optional, held) = (true, *what);
            results.push((format!("{name}.present"), has));
        }
        let mut add = |name: String, sequence: bool| {
            self.outputs.push(OutputForm {
                name,
                optional,
                sequence,
            });
        };
        match held {
            Meaning::Tensor(id) => {
                results.push((name.into(), id));
                add(name.into(), false);
            }
            Meaning::Packed(p) => {
                results.push((format!("{name}.elements"), p.data));
                results.push((format!("{name}.shapes"), p.shapes));
                add(name.into(), true);
            }
            Meaning::Sequence(all) => {
                for (at, id) in all.into_iter().enumerate() {
                    let name = sequence_name(name, at);
                    results.push((name.clone(), id));
                    add(name, false);
                }
            }
            Meaning::Nothing | Meaning::Optional(..) | Meaning::Map { .. } => {}
        }
    }

    /// The function that `level` others enclose.
    pub(in crate::onnx) fn builder(&mut self, level: usize) -> &mut Builder {
        self.enclosing.get_mut(level).unwrap_or(&mut self.b)
    }

    /// The value that stands for `id`, a value of the function that `from` others enclose, in the function that `to`
    /// others enclose.
    pub(in crate::onnx) fn captured(&mut self, mut id: ValueId, from: usize, to: usize) -> ValueId {
        for level in from + 1..=to {
            let (outer, inner) = self.enclosing.split_at_mut(level);
            let inner = inner.first_mut().unwrap_or(&mut self.b);
            id = inner.capture(&outer[level - 1], id);
        }
        id
    }
}
