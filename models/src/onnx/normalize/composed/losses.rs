//! NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss, by the ops that they consist of.

use convoke_graph::graph::{Attr, Attrs, ValueId};
use convoke_graph::{DType, Tensor};

use crate::onnx::builder::Builder;
use crate::onnx::normalize::node::{ImportFailure, ImportedNode, Outputs, unsupported};
use crate::onnx::normalize::operands;

/// Imports SoftmaxCrossEntropyLoss: the loss of the logarithms of the softmax, which are its second output.
pub(in crate::onnx::normalize) fn softmax_cross_entropy(
    b: &mut Builder,
    mut c: ImportedNode,
) -> Outputs {
    let scores = c.need(0)?;
    let axis = Attrs::default().with("axis", Attr::Int(1));
    let name = c.sub("LogSoftmax");
    let second = c.outputs.get(1).filter(|o| !o.is_empty());
    let output = [second.unwrap_or(&name).clone()];
    let logs = b.emit("LogSoftmax", &name, axis, vec![Some(scores)], &output)?;
    c.set(0, logs.first().copied());
    let more = c.outputs.len().saturating_sub(1);
    c.outputs.truncate(1);
    let mut out = negative_log_likelihood(b, c)?;
    out.extend(logs.into_iter().take(more));
    Ok(out)
}

/// Imports NegativeLogLikelihoodLoss.
pub(in crate::onnx::normalize) fn negative_log_likelihood(
    b: &mut Builder,
    mut c: ImportedNode,
) -> Outputs {
    let (logs, target) = (c.need(0)?, c.need(1)?);
    let reduction = match c.take("reduction") {
        None => "mean".to_owned(),
        Some(Attr::Str(reduction)) => reduction.to_string(),
        Some(_) => return Err(c.wrong("reduction", "a string").into()),
    };
    let ignored = c.take_int("ignore_index")?;
    if let Some(attr) = c.attrs.0.keys().next() {
        return Err(unsupported(format!("attribute '{attr}'")));
    }
    // An ignored element reads the first class, and counts nothing.
    let (valid, class) = match ignored {
        None => (None, target),
        Some(ignored) => {
            let index = |v: i64| match c.dtype(b, 1) {
                DType::I32 => i32::try_from(v).ok().map(Tensor::scalar),
                _ => Some(Tensor::scalar(v)),
            };
            match (index(ignored), index(0)) {
                (Some(ignored), Some(first)) => {
                    let ignored = b.literal(&c.sub("ignore_index"), ignored);
                    let first = b.literal(&c.sub("first"), first);
                    let plain = Attrs::default;
                    let equal = vec![Some(target), Some(ignored)];
                    let equal = c.before(b, "Equal", plain(), equal)?;
                    let valid = c.before(b, "Not", plain(), vec![Some(equal)])?;
                    let operands = vec![Some(valid), Some(target), Some(first)];
                    (Some(valid), c.before(b, "Where", plain(), operands)?)
                }
                // No element of the target has a number that its dtype cannot hold.
                _ => (None, target),
            }
        }
    };
    let one = b.ints(&c.sub("axes"), &[1])?;
    let index = c.before(
        b,
        "Unsqueeze",
        Attrs::default(),
        vec![Some(class), Some(one)],
    )?;
    let axis = Attrs::default().with("axis", Attr::Int(1));
    let chosen = c.before(b, "GatherElements", axis, vec![Some(logs), Some(index)])?;
    let chosen = c.before(
        b,
        "Squeeze",
        Attrs::default(),
        vec![Some(chosen), Some(one)],
    )?;
    let zero = operands::scalar(b, &c, "zero", 0.0)?;
    let counted = |b: &mut Builder, x: ValueId| -> Result<ValueId, ImportFailure> {
        match valid {
            None => Ok(x),
            Some(valid) => {
                let operands = vec![Some(valid), Some(x), Some(zero)];
                Ok(c.before(b, "Where", Attrs::default(), operands)?)
            }
        }
    };
    let weights = match (c.input(2), valid) {
        (Some(weights), _) => {
            let axis = Attrs::default().with("axis", Attr::Int(0));
            let of = c.before(b, "Gather", axis, vec![Some(weights), Some(class)])?;
            Some(counted(b, of)?)
        }
        (None, Some(_)) => {
            let one = operands::scalar(b, &c, "one", 1.0)?;
            Some(counted(b, one)?)
        }
        (None, None) => None,
    };
    let mut loss = match c.input(2).and(weights) {
        None => chosen,
        Some(weights) => {
            let operands = vec![Some(chosen), Some(weights)];
            c.before(b, "Mul", Attrs::default(), operands)?
        }
    };
    loss = counted(b, loss)?;
    let whole = || Attrs::default().with("keepdims", Attr::Int(0));
    let negated = |b: &mut Builder, x: ValueId| c.before(b, "Neg", Attrs::default(), vec![Some(x)]);
    match (reduction.as_str(), weights) {
        ("none", _) => c.finish(b, "Neg", Attrs::default(), vec![Some(loss)]),
        ("sum", _) => {
            let loss = negated(b, loss)?;
            c.finish(b, "ReduceSum", whole(), vec![Some(loss)])
        }
        ("mean", None) => {
            let loss = negated(b, loss)?;
            c.finish(b, "ReduceMean", whole(), vec![Some(loss)])
        }
        ("mean", Some(weights)) => {
            let loss = negated(b, loss)?;
            let loss = c.before(b, "ReduceSum", whole(), vec![Some(loss)])?;
            let weight = c.before(b, "ReduceSum", whole(), vec![Some(weights)])?;
            c.finish(b, "Div", Attrs::default(), vec![Some(loss), Some(weight)])
        }
        _ => Err(c.wrong("reduction", "none, sum or mean").into()),
    }
}
