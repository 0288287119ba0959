//! Loops that carry sequences or optional values, and whose iterations are known when a model is imported: they are imported one
//! after the other.

use convoke_graph::graph::ValueId;
use convoke_graph::tensor::TensorError;
use convoke_graph::{Tensor, ops};

use super::super::import::Importer;
use super::super::inputs::MOST_TENSORS;
use super::super::normalize::ImportFailure;
use super::super::proto::{GraphProto, NodeProto};
use super::super::scope::Meaning;
use super::control::is_list;
use super::sequences::{Meanings, SequenceNode, unsupported};
use crate::error::ModelError;

impl<'a> Importer<'a> {
    /// Whether all iterations of a loop are known: how many there are at most, and whether each goes on.
    pub(super) fn is_unrolled(&mut self, n: &SequenceNode<'a, '_>) -> Result<bool, ImportFailure> {
        let known = |i: &Self, id: Option<ValueId>| match id.map(|id| i.b.elements(id)) {
            None => Some(None),
            Some(Some(v)) => v.first().copied().map(Some),
            Some(None) => None,
        };
        let (most, condition) = (n.optional(0)?, n.optional(1)?);
        let (Some(most), Some(condition)) = (known(self, most), known(self, condition)) else {
            return Ok(false);
        };
        let count = n.inputs.len().saturating_sub(2);
        if most.is_some_and(|most| most < 1) || condition == Some(0) {
            // What no iteration collects has the shape that the body gives it, which a Loop has at hand.
            let mut collected = n.control.node.output.iter().skip(count);
            return Ok(!collected.any(|output| self.is_read(output)));
        }
        let g = n.control.graph("body")?;
        let counted = most.filter(|most| *most <= MOST_TENSORS as i64);
        if !ops::asks_body(most.is_some(), condition.is_some()) {
            return Ok(counted.is_some());
        }
        // A loop that may end itself is tried out, since its condition may depend on what earlier iterations made.
        let tries = match counted {
            Some(_) if passes_on_condition(g) => 1,
            Some(most) => most,
            None => MOST_TENSORS as i64,
        };
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
    pub(super) fn unrolled(&mut self, n: &SequenceNode<'a, '_>) -> Meanings {
        let g = n.control.graph("body")?;
        let most = n.optional(0)?.map_or(Ok(i64::MAX), |most| {
            self.single(most, "it carries a sequence, and its number of iterations")
        })?;
        let condition = n.optional(1)?;
        let asks = ops::asks_body(n.optional(0)?.is_some(), condition.is_some());
        let mut goes_on = match condition {
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
            if i == MOST_TENSORS as i64 {
                let reason =
                    format!("it carries a sequence, and has more than {MOST_TENSORS} iterations");
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
                Some(Meaning::Tensor(_)) if !asks => true,
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
