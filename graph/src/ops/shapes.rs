//! Arithmetic on symbolic shapes that several rules share.

use super::def::{Infer, InferredOutput, Operand};
use super::error::OpError;
use crate::dtype::DType;
use crate::graph::TensorType;
use crate::tensor::MAX_RANK;
use crate::{Dim, Tensor};

pub(super) use DType::*;

/// Every dtype, for ops that ONNX allows them all for.
pub(super) const STORED: &[DType] = &DType::ALL;
/// Every dtype except strings, whose code is the last one.
pub(super) const BITS: &[DType] = DType::ALL.split_at(Str as usize).0;
/// Every dtype except the narrow ones, for ops that move elements or compare them.
pub(super) const MOVED: &[DType] = &[
    F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64, Bool, Str,
];
/// Every dtype except the narrow ones and strings.
pub(super) const ANY: &[DType] = &[
    F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64, Bool,
];
pub(super) const FLOATS: &[DType] = &[F32, F64, F16, BF16];
pub(super) const NUMBERS: &[DType] = &[F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64];
pub(super) const INTS: &[DType] = &[I8, I16, I32, I64, U8, U16, U32, U64];
pub(super) const BOOL: &[DType] = &[Bool];
pub(super) const INDEX: &[DType] = &[I32, I64];
pub(super) const LONG: &[DType] = &[I64];

/// The result of a rule.
pub(super) type Rule = Result<Vec<InferredOutput>, OpError>;

/// The result of a rule with one output whose elements are unknown.
pub(super) fn one(dtype: DType, shape: Vec<Dim>) -> Rule {
    Ok(vec![InferredOutput::of(dtype, shape)])
}

impl<'a> Infer<'a> {
    /// Operand `i`, where it is given.
    pub fn opt(&self, i: usize) -> Option<Operand<'a>> {
        self.inputs.get(i).copied().flatten()
    }

    /// The type of operand `i`, which the definition requires.
    pub fn ty(&self, i: usize) -> Result<&'a TensorType, OpError> {
        self.opt(i)
            .map(|o| o.ty)
            .ok_or(OpError::MissingOperand { operand: "input" })
    }

    /// The dtype of operand `i`.
    pub fn dtype(&self, i: usize) -> Result<DType, OpError> {
        Ok(self.ty(i)?.dtype)
    }

    /// The shape of operand `i`.
    pub fn shape(&self, i: usize) -> Result<&'a [Dim], OpError> {
        Ok(&self.ty(i)?.shape)
    }

    /// The shape of operand `i`, which has `rank` dimensions.
    pub fn ranked(&self, i: usize, name: &str, rank: usize) -> Result<&'a [Dim], OpError> {
        let shape = self.shape(i)?;
        if shape.len() != rank {
            return Err(OpError::shape(format!(
                "'{name}' must have rank {rank}, not {}",
                shape.len()
            )));
        }
        Ok(shape)
    }

    /// The elements of operand `i` as dimensions, where they are known.
    pub fn dims(&self, i: usize) -> Option<&'a [Dim]> {
        self.opt(i)?.value.map(|v| v.elements.as_slice())
    }

    /// The elements of operand `i` as integers, where they are known.
    pub fn ints(&self, i: usize) -> Option<Vec<i64>> {
        self.opt(i)?.value?.ints()
    }

    /// The only element of operand `i`, where it is known.
    pub fn scalar(&self, i: usize) -> Option<&'a Dim> {
        match self.dims(i)? {
            [d] => Some(d),
            _ => None,
        }
    }

    /// Checks that operand `i`, called `name`, has at most one element.
    pub fn check_scalar(&self, i: usize, name: &str) -> Result<(), OpError> {
        match self.opt(i) {
            Some(o) if o.ty.shape.len() > 1 || o.ty.shape.iter().any(|d| known_other(d, 1)) => Err(
                OpError::shape(format!("'{name}' must be a scalar, not {}", o.ty)),
            ),
            _ => Ok(()),
        }
    }

    /// The host tensor of operand `i`, where it is at hand.
    pub fn tensor(&self, i: usize) -> Option<&'a Tensor> {
        self.opt(i)?.tensor
    }

    /// A new symbol for an axis of an output.
    pub fn fresh(&self, output: usize, axis: usize) -> Dim {
        (self.fresh)(output, axis)
    }

    /// A shape of `rank` new symbols, for the first output; an error where there is no such rank.
    pub fn unknown(&self, rank: Option<usize>) -> Result<Vec<Dim>, OpError> {
        let rank = rank.ok_or_else(|| OpError::shape("more axes are named than there are"))?;
        check_rank(rank)?;
        Ok((0..rank).map(|axis| self.fresh(0, axis)).collect())
    }

    /// Whether operand `i` is a vector whose length is not known.
    pub fn has_open_length(&self, i: usize) -> bool {
        let shape = self.opt(i).map(|o| o.ty.shape.as_slice());
        matches!(shape, Some([d]) if d.as_const().is_none())
    }

    /// Length of operand `i`, a vector called `name`.
    pub fn vector_len(&self, i: usize, name: &'static str) -> Result<usize, OpError> {
        match self.shape(i)? {
            [d] => {
                let n = d.as_const().and_then(|n| usize::try_from(n).ok());
                n.ok_or(OpError::ValueNeeded { operand: name })
            }
            s => Err(OpError::shape(format!(
                "'{name}' must have rank 1, not {}",
                s.len()
            ))),
        }
    }
}

/// Whether `d` is known and not `n`.
pub(super) fn known_other(d: &Dim, n: i64) -> bool {
    d.as_const().is_some_and(|v| v != n)
}

/// Whether two dimensions can be equal: they are not known to differ, and not apart by a known distance.
pub(super) fn can_equal(a: &Dim, b: &Dim) -> bool {
    match (a, b) {
        (Dim::Const(a), Dim::Const(b)) => a == b,
        _ => a == b || (a - b).as_const().is_none(),
    }
}

/// Unifies two dimensions that must be equal: gives the known one, if there is one. Fails where they cannot be equal.
pub(super) fn unify(a: &Dim, b: &Dim, what: &str) -> Result<Dim, OpError> {
    if !can_equal(a, b) {
        return Err(OpError::shape(format!("{what}: {a} and {b} differ")));
    }
    Ok(if a.as_const().is_none() {
        b.clone()
    } else {
        a.clone()
    })
}

/// One dimension of a numpy broadcast. A symbol against a known dimension above one takes the known
/// one; two different symbols give the larger.
pub(super) fn broadcast_dim(a: &Dim, b: &Dim) -> Result<Dim, OpError> {
    match (a, b) {
        _ if a == b => Ok(a.clone()),
        (Dim::Const(1), _) => Ok(b.clone()),
        (_, Dim::Const(1)) => Ok(a.clone()),
        (Dim::Const(x), Dim::Const(y)) => Err(OpError::shape(format!(
            "dimensions {x} and {y} do not broadcast"
        ))),
        (Dim::Const(_), _) => Ok(a.clone()),
        (_, Dim::Const(_)) => Ok(b.clone()),
        // What has no elements or one takes the length of the other.
        _ => Ok(match (a.is_one_or_none(), b.is_one_or_none()) {
            (true, true) => a.smaller(b),
            (true, false) => b.clone(),
            (false, true) => a.clone(),
            (false, false) => a.larger(b),
        }),
    }
}

/// The numpy broadcast of two shapes.
pub(super) fn broadcast(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, OpError> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let lead = long.len() - short.len();
    let mut out = long[..lead].to_vec();
    for (x, y) in long[lead..].iter().zip(short) {
        out.push(broadcast_dim(x, y).map_err(|e| match e {
            OpError::Shape { reason } => {
                OpError::shape(format!("{reason} in shapes {a:?} and {b:?}"))
            }
            e => e,
        })?);
    }
    Ok(out)
}

/// Checks that `from` broadcasts to exactly `to`.
pub(super) fn check_broadcasts_to(from: &[Dim], to: &[Dim], name: &str) -> Result<(), OpError> {
    let fits = from.len() <= to.len()
        && from
            .iter()
            .rev()
            .zip(to.iter().rev())
            .all(|(f, t)| f.is(1) || can_equal(f, t));
    if fits {
        return Ok(());
    }
    Err(OpError::shape(format!(
        "'{name}' of shape {from:?} does not broadcast to {to:?}"
    )))
}

/// A length that an expression gives where it is not negative, and zero otherwise.
pub(super) fn not_negative(d: Dim) -> Dim {
    match d.at_least() >= Some(0) {
        true => d,
        false => d.larger(&Dim::Const(0)),
    }
}

/// The product of dimensions; `None` where it is too long an expression.
pub(super) fn product(dims: &[Dim]) -> Option<Dim> {
    dims.iter().try_fold(Dim::Const(1), |p, d| p.times(d))
}

/// Checks that a list called `name` has `n` entries.
pub(super) fn check_len(got: usize, n: usize, name: &str) -> Result<(), OpError> {
    if got == n {
        return Ok(());
    }
    Err(OpError::shape(format!(
        "'{name}' must have {n} entries, not {got}"
    )))
}

/// Checks that a rank is within the limit, before a shape of that rank is made.
pub(super) fn check_rank(rank: usize) -> Result<(), OpError> {
    if rank <= MAX_RANK {
        return Ok(());
    }
    Err(OpError::shape(format!(
        "rank {rank} is above the limit of {MAX_RANK}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_follows_numpy() {
        let (s, t, c) = (Dim::sym("s"), Dim::sym("t"), |n: i64| Dim::Const(n));
        let shape = |d: &[Dim]| d.to_vec();
        assert_eq!(broadcast(&[c(3), c(1)], &[c(4)]), Ok(shape(&[c(3), c(4)])));
        assert_eq!(
            broadcast(&[s.clone(), c(1)], &[c(1), s.clone()]),
            Ok(shape(&[s.clone(), s.clone()]))
        );
        assert_eq!(
            broadcast(std::slice::from_ref(&s), &[c(5)]),
            Ok(shape(&[c(5)]))
        );
        assert_eq!(
            broadcast(std::slice::from_ref(&s), std::slice::from_ref(&t)),
            Ok(shape(&[s.larger(&t)]))
        );
        let last = s.smaller(&c(1));
        assert_eq!(
            broadcast(std::slice::from_ref(&last), std::slice::from_ref(&t)),
            Ok(shape(std::slice::from_ref(&t)))
        );
        assert_eq!(broadcast(&[], std::slice::from_ref(&s)), Ok(vec![s]));
        assert!(broadcast(&[c(2)], &[c(3)]).is_err());
        assert!(check_broadcasts_to(&[c(1), c(3)], &[c(3)], "b").is_err());
    }
}
