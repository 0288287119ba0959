//! Vectors of which some elements are known: `Concat([n], [2, 3])` with an `n` that only data decides.
//!
//! Open symbols stand for unknown elements. Unlike other symbols, which are lengths, these may be any integer: -1 and 0
//! mean something to `Reshape`, signs to `Slice`, and a comparison with an open symbol is undecided.
//!
//! Invariants
//! 1. Only `Concat` makes open symbols. Only `Concat` and `Expand`, whose target has no special elements, see them.
//! 2. No type of a function has an open symbol in it.

use std::collections::BTreeSet;

use crate::Dim;
use crate::ops::def::{HostValue, InferredOutput, Operand};
use crate::ops::{Op, SliceOp, host, shapes};

/// The first character in the names of open symbols.
const OPEN: char = '?';

/// Whether the value of `d` depends on an open symbol.
fn is_open(d: &Dim) -> bool {
    let mut symbols = BTreeSet::new();
    d.symbols(&mut symbols);
    symbols.iter().any(|s| s.starts_with(OPEN))
}

/// Whether some element is not known: it depends on an open symbol.
pub(super) fn is_partial(value: &HostValue) -> bool {
    value.elements.iter().any(is_open)
}

/// The operand as the op may know it: most ops do not see elements that are known only in part.
pub(super) fn visible<'a>(op: Op, operand: Operand<'a>) -> Operand<'a> {
    let hidden = !matches!(op, Op::Slice(SliceOp::Concat | SliceOp::Expand))
        && operand.value.is_some_and(is_partial);
    Operand {
        value: operand.value.filter(|_| !hidden),
        ..operand
    }
}

/// Adds elements that are known in part to the output that a rule inferred, and replaces open symbols in its type.
pub(super) fn follow(
    op: Op,
    inputs: &[Option<Operand<'_>>],
    out: &mut InferredOutput,
    fresh: &dyn Fn(usize, usize) -> Dim,
) {
    match op {
        Op::Slice(SliceOp::Concat) if out.value.is_none() => out.value = joined(inputs, out, fresh),
        Op::Slice(SliceOp::Expand) => {
            for (axis, d) in out.ty.shape.iter_mut().enumerate() {
                if is_open(d) {
                    *d = fresh(0, axis);
                }
            }
        }
        _ => {}
    }
}

/// The elements of concatenated small vectors of integers, where some are known; open symbols stand for the others.
fn joined(
    inputs: &[Option<Operand<'_>>],
    out: &InferredOutput,
    fresh: &dyn Fn(usize, usize) -> Dim,
) -> Option<HostValue> {
    let any_known = inputs.iter().flatten().any(|o| o.value.is_some());
    if !any_known || !shapes::INDEX.contains(&out.ty.dtype) || out.ty.shape.len() != 1 {
        return None;
    }
    host::fixed(&out.ty.shape)?;
    let mut elements = Vec::new();
    for operand in inputs.iter().flatten() {
        match operand.value {
            Some(v) => elements.extend_from_slice(&v.elements),
            None => {
                let n = host::fixed(&operand.ty.shape)?.iter().product::<usize>();
                let at = elements.len();
                let open = |k| Dim::sym(&format!("{OPEN}{}", fresh(0, k)));
                elements.extend((at..at + n).map(open));
            }
        }
    }
    Some(HostValue::vector(elements))
}

#[cfg(test)]
mod tests {
    use crate::Tensor;
    use crate::graph::{Attr, Attrs, Function, Node, RunsAt, TensorType, ValueId};
    use crate::ops::{fold_host, infer_types};
    use crate::{DType, Dim};

    fn node(f: &mut Function, op: &str, attrs: Attrs, inputs: &[ValueId]) -> ValueId {
        let name = format!("{op}{}", f.nodes.len());
        let out = f.add_value(name.as_str(), TensorType::new(DType::F32, vec![]));
        f.nodes.push(Node {
            name: name.into(),
            op: op.into(),
            attrs,
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![out],
            runs_at: RunsAt::Step,
        });
        out
    }

    /// The type of `op(x, Concat(n, [2, 3]))` for an `n` that is fed, as text.
    fn check(op: &str, x: &[usize], want: &str) {
        let mut f = Function::default();
        let n = f.add_value("n", TensorType::fixed(DType::I64, &[1]));
        let x = f.add_value("x", TensorType::fixed(DType::F32, x));
        f.params = vec![n, x];
        let known = f.add_value("known", TensorType::fixed(DType::I64, &[2]));
        let literal = Tensor::from_slice(&[2], &[2i64, 3]).unwrap();
        f.literals
            .push((known, crate::graph::Literal::Inline(literal)));
        let axis = Attrs::default().with("axis", Attr::Int(0));
        let to = node(&mut f, "Concat", axis, &[n, known]);
        let y = node(&mut f, op, Attrs::default(), &[x, to]);
        infer_types(&mut f).unwrap();
        f.verify().unwrap();
        assert_eq!(f.ty(y).to_string(), want);
        assert!(
            fold_host(&f).get(to).is_none(),
            "what is not known is not told"
        );
        let open = |d: &Dim| super::is_open(d);
        assert!(f.values.iter().all(|v| !v.ty.shape.iter().any(open)));
    }

    #[test]
    fn known_elements_are_kept_where_none_is_special() {
        check("Expand", &[2, 3], "f32[Expand1#0, 2, 3]");
        check("Expand", &[4, 1, 1], "f32[4, 2, 3]");
        // The first element may be 0 or -1 here, so that the others alone decide no dimension.
        check("Reshape", &[6], "f32[Reshape1#0, Reshape1#1, Reshape1#2]");
    }
}
