//! Elements of small integer and bool tensors, computed symbolically.
//!
//! Exporters write shapes as tensor arithmetic: `Shape`, `Gather`, `Mul`, `Concat`, `Reshape`. Following
//! it on [`Dim`]s turns it back into shapes. An element that cannot be computed makes the whole value unknown; no
//! function of this module fails.
//!
//! Symbols are taken to be at least zero wherever a sign decides.

use super::def::HostValue;
use super::shapes::*;
use crate::{Dim, Tensor};

/// The most elements of a tensor that are followed.
pub(super) const LIMIT: usize = 64;

/// The elements of a small integer or bool tensor, as rules see them; `None` for any other tensor.
pub fn host_value(t: &Tensor) -> Option<HostValue> {
    from_tensor(t, LIMIT)
}

/// The elements of `t`, where it holds at most `limit` integers or bools that fit an i64.
pub(super) fn from_tensor(t: &Tensor, limit: usize) -> Option<HostValue> {
    if t.elements() > limit || t.dtype().is_float() {
        return None;
    }
    let elements = t.to_i64s()?.into_iter().map(Dim::Const).collect();
    Some(HostValue {
        shape: t.shape().to_vec(),
        elements,
    })
}

impl HostValue {
    /// A scalar with this element.
    pub fn scalar(d: Dim) -> HostValue {
        HostValue {
            shape: vec![],
            elements: vec![d],
        }
    }

    /// A vector of these elements.
    pub fn vector(elements: Vec<Dim>) -> HostValue {
        HostValue {
            shape: vec![elements.len()],
            elements,
        }
    }

    /// The value of `shape` whose element at each position is taken from this one: `source` maps a position to a flat
    /// index.
    pub(super) fn reindex(
        &self,
        shape: &[usize],
        source: impl Fn(&[usize]) -> Option<usize>,
    ) -> Option<HostValue> {
        let elements = positions(shape)?
            .iter()
            .map(|at| self.elements.get(source(at)?).cloned())
            .collect::<Option<Vec<_>>>()?;
        Some(HostValue {
            shape: shape.to_vec(),
            elements,
        })
    }

    /// The flat index of the element that broadcasting puts at `at`: dimensions of one are stretched, and leading ones
    /// ignored.
    pub(super) fn broadcast_index(&self, at: &[usize]) -> Option<usize> {
        let at = at.get(at.len().checked_sub(self.shape.len())?..)?;
        let flat = self.shape.iter().zip(at).fold(0, |flat, (d, p)| {
            let p = if *d == 1 { 0 } else { *p };
            flat * d + p
        });
        Some(flat)
    }

    /// The same elements under another shape; `None` where that is not known to have as many.
    pub(super) fn reshaped(&self, shape: &[Dim]) -> Option<HostValue> {
        let shape = fixed(shape)?;
        let fits = shape.iter().product::<usize>() == self.elements.len();
        fits.then(|| HostValue {
            shape,
            elements: self.elements.clone(),
        })
    }

    /// Applies `f` to every element; `None` where one of the results is unknown.
    pub(super) fn map(&self, f: impl Fn(&Dim) -> Option<Dim>) -> Option<HostValue> {
        let elements = self.elements.iter().map(f).collect::<Option<Vec<_>>>()?;
        Some(HostValue {
            shape: self.shape.clone(),
            elements,
        })
    }
}

/// `shape` as integers, where it is known and has at most [`LIMIT`] elements.
pub(super) fn fixed(shape: &[Dim]) -> Option<Vec<usize>> {
    let s: Vec<usize> = shape
        .iter()
        .map(|d| usize::try_from(d.as_const()?).ok())
        .collect::<Option<_>>()?;
    let n = s.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
    (n <= LIMIT).then_some(s)
}

/// Every position of `shape`, row-major; `None` where there are more than [`LIMIT`].
fn positions(shape: &[usize]) -> Option<Vec<Vec<usize>>> {
    let n = shape
        .iter()
        .try_fold(1usize, |n, d| n.checked_mul(*d))
        .filter(|n| *n <= LIMIT)?;
    let at = |mut flat: usize| {
        let mut at = vec![0; shape.len()];
        for (p, d) in at.iter_mut().zip(shape).rev() {
            (*p, flat) = (flat % d, flat / d);
        }
        at
    };
    Some((0..n).map(at).collect())
}

/// Applies `f` to the elements of two values that are broadcast to `shape`.
pub(super) fn zip(
    a: &HostValue,
    b: &HostValue,
    shape: &[Dim],
    f: impl Fn(&Dim, &Dim) -> Option<Dim>,
) -> Option<HostValue> {
    let shape = fixed(shape)?;
    let elements = positions(&shape)?
        .iter()
        .map(|at| {
            let x = a.elements.get(a.broadcast_index(at)?)?;
            f(x, b.elements.get(b.broadcast_index(at)?)?)
        })
        .collect::<Option<Vec<_>>>()?;
    Some(HostValue { shape, elements })
}

/// Whether `v` is a value that elements of `dtype` can have here.
pub(super) fn fits(dtype: crate::DType, v: i128) -> bool {
    let (lo, hi): (i128, i128) = match dtype {
        I8 => (i8::MIN.into(), i8::MAX.into()),
        I16 => (i16::MIN.into(), i16::MAX.into()),
        I32 => (i32::MIN.into(), i32::MAX.into()),
        I64 => (i64::MIN.into(), i64::MAX.into()),
        U8 => (0, u8::MAX.into()),
        U16 => (0, u16::MAX.into()),
        U32 => (0, u32::MAX.into()),
        // Elements are kept as i64, so larger ones are unknown.
        U64 => (0, i64::MAX.into()),
        Bool => (0, 1),
        // Elements of narrow dtypes are not followed.
        _ => return false,
    };
    (lo..=hi).contains(&v)
}

/// An integer arithmetic function on elements of one dtype: it gives the exact result, or `None` where that is unknown or
/// may not fit the dtype.
pub(super) type Arith = fn(&Dim, &Dim, crate::DType) -> Option<Dim>;

fn arith(
    a: &Dim,
    b: &Dim,
    dtype: crate::DType,
    exact: impl Fn(i128, i128) -> Option<i128>,
    symbolic: impl Fn() -> Option<Dim>,
) -> Option<Dim> {
    match (a, b) {
        (Dim::Const(a), Dim::Const(b)) => {
            let v = exact((*a).into(), (*b).into()).filter(|v| fits(dtype, *v))?;
            Some(Dim::Const(i64::try_from(v).ok()?))
        }
        _ => symbolic().filter(|d| holds(dtype, d)),
    }
}

/// Whether elements of `dtype` can have every value of `d`. I32 and I64 are assumed to hold every value, because exporters
/// compute lengths in them; U64 is assumed to hold every value that is not negative.
pub(super) fn holds(dtype: crate::DType, d: &Dim) -> bool {
    let most = match dtype {
        I32 | I64 => return true,
        // Elements are kept as i64, as lengths are.
        U64 => Some(i64::MAX),
        _ => d.at_most(),
    };
    let fits = |v: i64| fits(dtype, v.into());
    d.at_least().is_some_and(fits) && most.is_some_and(fits)
}

pub(super) fn add(a: &Dim, b: &Dim, t: crate::DType) -> Option<Dim> {
    arith(a, b, t, i128::checked_add, || a.plus(b))
}

pub(super) fn sub(a: &Dim, b: &Dim, t: crate::DType) -> Option<Dim> {
    arith(a, b, t, i128::checked_sub, || Some(a - b))
}

pub(super) fn mul(a: &Dim, b: &Dim, t: crate::DType) -> Option<Dim> {
    arith(a, b, t, i128::checked_mul, || a.times(b))
}

/// Division that truncates towards zero, as integer `Div` does.
pub(super) fn div(a: &Dim, b: &Dim, t: crate::DType) -> Option<Dim> {
    let negate = |d: &Dim| d * &Dim::Const(-1);
    arith(a, b, t, i128::checked_div, || {
        if b.at_least() < Some(0) || b.is(0) {
            return None;
        }
        if a.exact_div(b).is_some() || a.at_least() >= Some(0) {
            return Some(a.floor_div(b));
        }
        if a.at_most() <= Some(0) && a.at_most().is_some() {
            return Some(negate(&negate(a).floor_div(b)));
        }
        // A difference such as `s - 3` is a length, which is not negative in a run that succeeds.
        Some(a.floor_div(b))
    })
}

/// The remainder whose sign is the divisor's.
pub(super) fn modulo(a: &Dim, b: &Dim, t: crate::DType) -> Option<Dim> {
    let floor_mod = |a: i128, b: i128| {
        let r = a.checked_rem(b)?;
        Some(if r != 0 && (r < 0) != (b < 0) {
            r + b
        } else {
            r
        })
    };
    arith(a, b, t, floor_mod, || {
        let positive = b.as_const().is_some_and(|b| b > 0);
        (positive && a.at_least() >= Some(0)).then(|| a - &(&a.floor_div(b) * b))
    })
}

/// The remainder whose sign is the dividend's.
pub(super) fn fmod(a: &Dim, b: &Dim, t: crate::DType) -> Option<Dim> {
    arith(a, b, t, i128::checked_rem, || modulo(a, b, t))
}

pub(super) fn max(a: &Dim, b: &Dim, _: crate::DType) -> Option<Dim> {
    Some(match (less(a, b), less(b, a)) {
        (Some(true), _) | (_, Some(false)) => b.clone(),
        (_, Some(true)) | (Some(false), _) => a.clone(),
        (None, None) => a.larger(b),
    })
}

pub(super) fn min(a: &Dim, b: &Dim, _: crate::DType) -> Option<Dim> {
    Some(match (less(a, b), less(b, a)) {
        (Some(true), _) | (_, Some(false)) => a.clone(),
        (_, Some(true)) | (Some(false), _) => b.clone(),
        (None, None) => a.smaller(b),
    })
}

/// Whether `a < b`; `None` where that is unknown.
pub(super) fn less(a: &Dim, b: &Dim) -> Option<bool> {
    if let (Dim::Const(a), Dim::Const(b)) = (a, b) {
        return Some(a < b);
    }
    let d = a - b;
    match (d.at_least(), d.at_most()) {
        (Some(lo), _) if lo >= 0 => Some(false),
        (_, Some(hi)) if hi < 0 => Some(true),
        _ => None,
    }
}

/// Whether `a == b`; `None` where that is unknown.
pub(super) fn equal(a: &Dim, b: &Dim) -> Option<bool> {
    if a == b {
        return Some(true);
    }
    let apart = less(a, b) == Some(true) || less(b, a) == Some(true) || !can_equal(a, b);
    apart.then_some(false)
}

/// A bool as an element: 1 for true, 0 for false.
pub(super) fn bit(b: bool) -> Dim {
    Dim::Const(b.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn c(n: i64) -> Dim {
        Dim::Const(n)
    }

    #[test]
    fn integer_division_truncates() {
        let s = Dim::sym("s");
        assert_eq!(div(&c(-7), &c(2), I64), Some(c(-3)));
        assert_eq!(modulo(&c(-7), &c(2), I64), Some(c(1)));
        assert_eq!(fmod(&c(-7), &c(2), I64), Some(c(-1)));
        assert_eq!(div(&c(1), &c(0), I64), None);
        assert_eq!(div(&c(i64::MIN), &c(-1), I64), None);
        let half = div(&s, &c(2), I64).unwrap();
        let neg = div(&(&s * &c(-1)), &c(2), I64).unwrap();
        assert_eq!(neg, &half * &c(-1));
        assert_eq!(div(&(&s * &c(6)), &s, I64), Some(c(6)));
    }

    #[test]
    fn overflow_makes_a_value_unknown() {
        assert_eq!(add(&c(i64::MAX), &c(1), I64), None);
        assert_eq!(mul(&c(70_000), &c(70_000), I32), None);
        assert_eq!(sub(&c(1), &c(2), U8), None);
        let (s, few) = (Dim::sym("s"), Dim::sym("s").smaller(&c(100)));
        for (a, dtype, followed) in [
            (&s, I64, true),
            (&s, I32, true),
            (&s, U64, true),
            (&s, U32, false),
            (&s, U8, false),
            (&few, U8, true),
            (&few, I8, false),
        ] {
            let twice = add(a, a, dtype);
            assert_eq!(twice, followed.then(|| a + a), "{a} in {dtype}");
        }
        assert_eq!(sub(&s, &c(1), U64), None);
    }

    #[test]
    fn comparisons_take_symbols_as_lengths() {
        let s = Dim::sym("s");
        assert_eq!(equal(&s, &c(-1)), Some(false));
        assert_eq!(equal(&s, &c(0)), None);
        assert_eq!(equal(&s, &s), Some(true));
        assert_eq!(equal(&s, &(&s + &c(1))), Some(false));
        assert_eq!(less(&s, &(&s + &c(1))), Some(true));
        assert_eq!(less(&s, &c(0)), Some(false));
        assert_eq!(max(&s, &c(0), I64), Some(s.clone()));
        assert_eq!(max(&s, &c(1), I64), Some(s.larger(&c(1))));
        assert_eq!(min(&s, &(&s - &c(1)), I64), Some(&s - &c(1)));
    }
}
