//! Checks of what a function is given, of every node before its shape rule runs, and of every output afterwards.

use crate::graph::{Attrs, Function, GraphError, Literal, TensorType, Value};
use crate::ops::def::{AttrKind, InferredOutput, OpDef};
use crate::ops::error::OpError;
use crate::tensor::{MAX_RANK, Tensor};
use crate::{DType, Dim};

/// Weight ([`Dim::weight`]) above which an expression is replaced by a symbol.
pub(super) const MAX_WEIGHT: usize = 48;

/// Checks operand count, required operands, dtypes and dtype classes; `dtypes` has one entry per
/// operand slot of the node.
pub(super) fn check_operands(op: &OpDef, dtypes: &[Option<DType>]) -> Result<(), OpError> {
    let variadic = op.operands.last().is_some_and(|o| o.variadic);
    if dtypes.len() > op.operands.len() && !variadic {
        let needed = op.operands.iter().filter(|o| !o.optional).count();
        let most = op.operands.len();
        let expected = if needed == most {
            most.to_string()
        } else {
            format!("{needed} to {most}")
        };
        return Err(OpError::OperandCount {
            expected,
            got: dtypes.len(),
        });
    }
    let mut classes: [Option<DType>; 8] = [None; 8];
    for i in 0..dtypes.len().max(op.operands.len()) {
        // A variadic last operand describes all that follow.
        let Some(def) = op.operands.get(i).or(op.operands.last()) else {
            break;
        };
        let Some(dtype) = dtypes.get(i).copied().flatten() else {
            if def.optional || (def.variadic && i > 0 && i >= dtypes.len()) {
                continue;
            }
            return Err(OpError::MissingOperand { operand: def.name });
        };
        if !def.dtypes.contains(&dtype) {
            let allowed: Vec<&str> = def.dtypes.iter().map(|d| d.name()).collect();
            let allowed = allowed.join(", ");
            return Err(OpError::DType {
                operand: def.name.into(),
                got: dtype,
                allowed,
            });
        }
        if let Some(seen) = classes
            .get_mut(usize::from(def.class))
            .filter(|_| def.class > 0)
        {
            match seen {
                Some(left) if *left != dtype => {
                    return Err(OpError::DTypeMismatch {
                        left: *left,
                        right: dtype,
                    });
                }
                _ => *seen = Some(dtype),
            }
        }
    }
    Ok(())
}

/// Checks that every attribute is known and of its kind, and that the required ones are there.
pub(super) fn check_attrs(op: &OpDef, attrs: &Attrs) -> Result<(), OpError> {
    let err = |attr: &str, reason: String| {
        Err(OpError::Attr {
            attr: attr.into(),
            reason,
        })
    };
    for (name, value) in &attrs.0 {
        let kind = AttrKind::of(value);
        match op.attrs.iter().find(|d| d.name == &**name) {
            None => return err(name, format!("{} has no such attribute", op.name)),
            Some(d) if d.kind != kind => {
                return err(name, format!("must be {:?}, not {kind:?}", d.kind));
            }
            Some(_) => {}
        }
    }
    match op
        .attrs
        .iter()
        .find(|d| d.required && attrs.get(d.name).is_none())
    {
        Some(d) => err(d.name, "is required".into()),
        None => Ok(()),
    }
}

/// Checks the number of outputs that a node declares.
pub(super) fn check_outputs(op: &OpDef, declared: usize) -> Result<(), OpError> {
    let (least, most) = op.outputs;
    if (least..=most).contains(&declared) {
        return Ok(());
    }
    let range = match most {
        usize::MAX => format!("{least} or more"),
        _ if least == most => least.to_string(),
        _ => format!("{least} to {most}"),
    };
    Err(OpError::shape(format!(
        "has {range} outputs, {declared} declared"
    )))
}

/// Checks a type's rank, the signs of its dimensions and, as far as these are known, the byte size.
pub(super) fn check_type(ty: &TensorType) -> Result<(), OpError> {
    if ty.shape.len() > MAX_RANK {
        return Err(OpError::shape(format!(
            "rank {} is above the limit of {MAX_RANK}",
            ty.shape.len()
        )));
    }
    let mut bytes = Some(ty.dtype.width() as i64);
    for d in &ty.shape {
        match d {
            Dim::Const(n) if *n < 0 => {
                return Err(OpError::shape(format!("dimension {n} of {ty} is negative")));
            }
            // Any zero makes the tensor empty, whatever stands beside it.
            Dim::Const(0) => return Ok(()),
            Dim::Const(n) => bytes = bytes.and_then(|b| b.checked_mul(*n)),
            Dim::Poly(_) => {}
        }
    }
    if bytes.is_none() {
        return Err(OpError::shape(format!("{ty} is too large to exist")));
    }
    Ok(())
}

/// Checks the outputs of a rule; expressions beyond `weight` become symbols of their own, so that no
/// chain of nodes can grow them without bound.
pub(super) fn settle(
    outputs: &mut [InferredOutput],
    weight: usize,
    fresh: &dyn Fn(usize, usize) -> Dim,
) -> Result<(), OpError> {
    for (o, out) in outputs.iter_mut().enumerate() {
        for (axis, d) in out.ty.shape.iter_mut().enumerate() {
            if d.as_const().is_none() && d.weight(weight) > weight {
                *d = fresh(o, axis);
            }
        }
        check_type(&out.ty)?;
        let heavy = |d: &Dim| d.as_const().is_none() && d.weight(weight) > weight;
        if out
            .value
            .as_ref()
            .is_some_and(|v| v.elements.iter().any(heavy))
        {
            out.value = None;
        }
    }
    Ok(())
}

/// Checks the type of a parameter or literal.
pub(super) fn check_given(value: &Value, what: &str) -> Result<(), GraphError> {
    let heavy = |d: &Dim| d.as_const().is_none() && d.weight(MAX_WEIGHT) > MAX_WEIGHT;
    let checked = match value.ty.shape.iter().any(heavy) {
        true => Err(OpError::shape("a dimension is too long an expression")),
        false => check_type(&value.ty),
    };
    checked.map_err(|e| GraphError::Op {
        node: value.name.to_string(),
        op: what.into(),
        reason: e.to_string(),
    })
}

/// Checks that a literal's bytes are as many as its type needs, and lie inside its file.
pub(super) fn check_literal(
    f: &Function,
    value: &Value,
    literal: &Literal,
) -> Result<(), GraphError> {
    let wrong_size = |bytes: u64| {
        let (value, ty) = (value.name.to_string(), value.ty.to_string());
        Err(GraphError::LiteralSize { value, ty, bytes })
    };
    let shape = value.ty.fixed_shape();
    match literal {
        Literal::Inline(t) => {
            let same = t.dtype() == value.ty.dtype && shape.as_deref() == Some(t.shape());
            if same {
                Ok(())
            } else {
                wrong_size(t.byte_len() as u64)
            }
        }
        Literal::Range {
            artifact,
            offset,
            len,
        } => {
            let bytes = usize::try_from(*len).unwrap_or(usize::MAX);
            let fits = |s: &Vec<usize>| Tensor::check_size(value.ty.dtype, s, bytes).is_ok();
            if !shape.as_ref().is_some_and(fits) {
                return wrong_size(*len);
            }
            let file = f.artifacts.get(*artifact as usize).map(|a| a.len);
            match (file, offset.checked_add(*len)) {
                (Some(file), Some(end)) if end <= file => Ok(()),
                _ => Err(GraphError::LiteralRange {
                    value: value.name.to_string(),
                }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_bounded() {
        let check = |dims: &[i64]| {
            check_type(&TensorType::new(
                DType::F32,
                dims.iter().map(|d| Dim::Const(*d)).collect(),
            ))
        };
        assert!(check(&[1 << 30, 1 << 30]).is_ok());
        assert!(check(&[1 << 31, 1 << 31]).is_err());
        assert!(check(&[i64::MAX, 0]).is_ok() && check(&[0, i64::MAX]).is_ok());
        assert!(check(&[3, -1]).is_err());
        assert!(check(&[1; 16]).is_ok() && check(&[1; 17]).is_err());
    }
}
