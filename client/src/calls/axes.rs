//! Dynamic axes of traced functions: which axes of which operands are symbols in the trace, and their sizes in a call.

use std::collections::BTreeMap;
use std::sync::Arc;

use convoke_common::error::{Code, Error, Result};
use convoke_graph::Dim;
use convoke_graph::dim::Bindings;
use convoke_graph::graph::TensorType;

use crate::tensor::Tensor;

/// An axis of an operand that is a symbol in the trace.
pub(crate) struct DynamicAxis {
    operand: usize,
    /// The index of the axis; a negative one counts from the end.
    axis: i64,
    name: Arc<str>,
}

fn bad(msg: String) -> Error {
    Error::new(Code::InvalidArgument, msg)
}

impl DynamicAxis {
    pub fn new(operand: usize, axis: i64, name: &str) -> Result<DynamicAxis> {
        let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
        let fits =
            name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit());
        if !fits {
            let msg = format!("'{}' cannot name an axis", name.escape_debug());
            return Err(bad(msg).advise("use letters, digits and `_`, and begin with no digit"));
        }
        Ok(DynamicAxis {
            operand,
            axis,
            name: name.into(),
        })
    }

    /// Returns the index of this axis in a type, counted from the front.
    fn of(&self, ty: &TensorType) -> Result<usize> {
        let rank = ty.shape.len();
        let from_front = match self.axis < 0 {
            true => self.axis.checked_add_unsigned(rank as u64),
            false => Some(self.axis),
        };
        let axis = from_front.and_then(|a| usize::try_from(a).ok());
        let none = || {
            let (name, axis) = (&self.name, self.axis);
            bad(format!(
                "axis {axis} of operand {} is to be '{name}', but it is {ty}",
                self.operand
            ))
        };
        axis.filter(|a| *a < rank).ok_or_else(none)
    }
}

/// Returns the operands' types, with symbols for the dynamic axes, and the sizes of these axes.
pub(crate) fn symbolic(
    dynamic: &[DynamicAxis],
    operands: &[Tensor],
) -> Result<(Vec<TensorType>, Bindings)> {
    let mut types: Vec<TensorType> = operands.iter().map(Tensor::ty).collect();
    let mut sizes = Bindings::new();
    // By symbol, the operand and the axis that set its size first, for errors.
    let mut said: BTreeMap<Arc<str>, (usize, i64)> = BTreeMap::new();
    for d in dynamic {
        let count = operands.len();
        let none = || {
            let (name, operand) = (&d.name, d.operand);
            bad(format!(
                "axis '{name}' is of operand {operand}, of {count} operands"
            ))
        };
        let ty = types.get_mut(d.operand).ok_or_else(none)?;
        let axis = d.of(ty)?;
        let Some(size) = ty.shape[axis].as_const() else {
            let other = ty.shape[axis].as_symbol();
            let other = other.filter(|o| **o != d.name && said.contains_key(*o));
            // The trace reports an operand whose shape is not known yet.
            match other {
                None => continue,
                Some(other) => {
                    let (name, axis, operand) = (&d.name, d.axis, d.operand);
                    let msg =
                        format!("axis {axis} of operand {operand} is '{other}', and '{name}'");
                    return Err(bad(msg));
                }
            }
        };
        ty.shape[axis] = Dim::sym(&d.name);
        let before = *sizes.entry(d.name.clone()).or_insert(size);
        let first = *said.entry(d.name.clone()).or_insert((d.operand, d.axis));
        if before != size {
            let msg = format!(
                "axis '{}' is {before} by axis {} of operand {}, but {size} by axis {} of operand {}",
                d.name, first.1, first.0, d.axis, d.operand
            );
            return Err(Error::new(Code::InvalidInput, msg));
        }
    }
    Ok((types, sizes))
}
