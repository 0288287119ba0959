//! Symbolic dimensions.
//!
//! A [`Dim`] is an integer or a polynomial with integer coefficients over symbols (`batch`, `seq`) and
//! over integer divisions, maxima and minima of polynomials. The form is canonical: two dims that are
//! the same polynomial compare equal, so `2*(s+1)` equals `s+s+2`.
//!
//! Arithmetic saturates: an absurd size stays absurd and is refused where it would be allocated.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use crate::nesting::GrowingVec;

mod bounds;
mod solve;

pub use solve::Solved;

/// The most terms of sums and products that [`Dim::plus`], [`Dim::times`] and [`Dim::sum`] compute. More would be replaced
/// by a symbol anyway, unless they are divided again.
const MOST_TERMS: usize = 256;

/// A dimension, or one element of a tensor of dimensions.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Dim {
    /// A known integer.
    Const(i64),
    /// A polynomial that is not an integer.
    Poly(#[serde(deserialize_with = "crate::nesting::bounded")] Arc<Poly>),
}

/// A sum of coefficient × product of atoms, sorted; the empty product is the constant term.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Poly(#[serde(deserialize_with = "terms")] Vec<(Vec<Atom>, i64)>);

fn terms<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<(Vec<Atom>, i64)>, D::Error> {
    let GrowingVec::<(GrowingVec<Atom>, i64)>(terms) = Deserialize::deserialize(d)?;
    Ok(terms.into_iter().map(|(atoms, c)| (atoms.0, c)).collect())
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
enum Atom {
    Sym(Arc<str>),
    FloorDiv(Dim, Dim),
    Max(Dim, Dim),
    Min(Dim, Dim),
}

/// Values for symbols.
pub type Bindings = BTreeMap<Arc<str>, i64>;

impl Dim {
    /// The symbol named `name`, as a dimension.
    pub fn sym(name: &str) -> Dim {
        Dim::from_atom(Atom::Sym(name.into()))
    }

    /// The integer, where it is known.
    pub fn as_const(&self) -> Option<i64> {
        match self {
            Dim::Const(c) => Some(*c),
            Dim::Poly(_) => None,
        }
    }

    /// The symbol, where the dimension is a single symbol.
    pub fn as_symbol(&self) -> Option<&Arc<str>> {
        match self {
            Dim::Poly(p) => match p.0.as_slice() {
                [(atoms, 1)] => match atoms.as_slice() {
                    [Atom::Sym(s)] => Some(s),
                    _ => None,
                },
                _ => None,
            },
            Dim::Const(_) => None,
        }
    }

    /// Whether the dimension is the known integer `value`.
    pub fn is(&self, value: i64) -> bool {
        *self == Dim::Const(value)
    }

    fn from_atom(a: Atom) -> Dim {
        Dim::Poly(Arc::new(Poly(vec![(vec![a], 1)])))
    }

    fn terms(&self) -> Vec<(Vec<Atom>, i64)> {
        match self {
            Dim::Const(0) => vec![],
            Dim::Const(c) => vec![(vec![], *c)],
            Dim::Poly(p) => p.0.clone(),
        }
    }

    fn from_terms(terms: impl IntoIterator<Item = (Vec<Atom>, i64)>) -> Dim {
        let mut sum: BTreeMap<Vec<Atom>, i64> = BTreeMap::new();
        for (atoms, c) in terms {
            let e = sum.entry(atoms).or_insert(0);
            *e = e.saturating_add(c);
        }
        sum.retain(|_, c| *c != 0);
        match sum.len() {
            0 => Dim::Const(0),
            1 if sum.contains_key(&vec![]) => Dim::Const(sum[&vec![]]),
            _ => Dim::Poly(Arc::new(Poly(sum.into_iter().collect()))),
        }
    }

    /// `self / by`, rounded towards minus infinity where `by` is positive. The quotient by a known zero is zero.
    pub fn floor_div(&self, by: &Dim) -> Dim {
        if let (Some(a), Some(b)) = (self.as_const(), by.as_const()) {
            return Dim::Const(a.checked_div_euclid(b).unwrap_or(if b == 0 {
                0
            } else {
                i64::MAX
            }));
        }
        if by.is(1) {
            return self.clone();
        }
        if self == by {
            return Dim::Const(1);
        }
        self.exact_div(by)
            .unwrap_or_else(|| Dim::from_atom(Atom::FloorDiv(self.clone(), by.clone())))
    }

    /// `self / by` for a positive `by`, rounded towards plus infinity.
    pub fn ceil_div(&self, by: &Dim) -> Dim {
        (self + &(by - &Dim::Const(1))).floor_div(by)
    }

    /// The quotient, or `None` unless `by` is a single term that divides every term of `self`.
    pub fn exact_div(&self, by: &Dim) -> Option<Dim> {
        let by = by.terms();
        let [(atoms, coef)] = by.as_slice() else {
            return None;
        };
        let mut out = Vec::new();
        for (mut a, c) in self.terms() {
            if c.checked_rem(*coef) != Some(0) {
                return None;
            }
            for x in atoms {
                let i = a.iter().position(|y| y == x)?;
                a.remove(i);
            }
            out.push((a, c / coef));
        }
        Some(Dim::from_terms(out))
    }

    /// The number of terms of the sum.
    fn len(&self) -> usize {
        match self {
            Dim::Const(_) => 1,
            Dim::Poly(p) => p.0.len(),
        }
    }

    /// The sum of two dimensions; `None` where it can have more than `MOST_TERMS` terms.
    pub fn plus(&self, other: &Dim) -> Option<Dim> {
        (self.len().saturating_add(other.len()) <= MOST_TERMS).then(|| self + other)
    }

    /// The product of two dimensions; `None` where it can have more than `MOST_TERMS` terms.
    pub fn times(&self, other: &Dim) -> Option<Dim> {
        (self.len().saturating_mul(other.len()) <= MOST_TERMS).then(|| self * other)
    }

    /// The sum of many dimensions, in time that is linear in their terms; `None` where they have more than `MOST_TERMS`
    /// different terms.
    pub fn sum<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> Option<Dim> {
        let mut sum: BTreeMap<Vec<Atom>, i64> = BTreeMap::new();
        for d in dims {
            let (constant, terms) = match d {
                Dim::Const(c) => (*c, [].as_slice()),
                Dim::Poly(p) => (0, p.0.as_slice()),
            };
            let none = (vec![], constant);
            for (atoms, c) in terms.iter().chain((constant != 0).then_some(&none)) {
                match sum.get_mut(atoms) {
                    Some(total) => *total = total.saturating_add(*c),
                    None => drop(sum.insert(atoms.clone(), *c)),
                }
            }
            if sum.len() > MOST_TERMS {
                return None;
            }
        }
        Some(Dim::from_terms(sum))
    }

    /// The larger of two dimensions.
    pub fn larger(&self, other: &Dim) -> Dim {
        match (self.as_const(), other.as_const()) {
            (Some(a), Some(b)) => Dim::Const(a.max(b)),
            _ if self == other => self.clone(),
            // max(max(x, y), x) is max(x, y).
            _ if self.is_max_of(other) => self.clone(),
            _ if other.is_max_of(self) => other.clone(),
            // max(min(x, y), x) is x.
            _ if self.is_min_of(other) => other.clone(),
            _ if other.is_min_of(self) => self.clone(),
            _ => {
                let (a, b) = if self <= other {
                    (self, other)
                } else {
                    (other, self)
                };
                Dim::from_atom(Atom::Max(a.clone(), b.clone()))
            }
        }
    }

    /// The symbol or operation that the dimension consists of.
    fn as_atom(&self) -> Option<&Atom> {
        let Dim::Poly(p) = self else { return None };
        match p.0.as_slice() {
            [(atoms, 1)] if atoms.len() == 1 => atoms.first(),
            _ => None,
        }
    }

    fn is_min_of(&self, other: &Dim) -> bool {
        matches!(self.as_atom(), Some(Atom::Min(a, b)) if a == other || b == other)
    }

    fn is_max_of(&self, other: &Dim) -> bool {
        matches!(self.as_atom(), Some(Atom::Max(a, b)) if a == other || b == other)
    }

    /// Whether the dimension is 1, or is symbolic and at most 1.
    pub fn is_one_or_none(&self) -> bool {
        self.is(1) || self.as_const().is_none() && self.at_most().is_some_and(|n| n <= 1)
    }

    /// Takes apart `e - min(e, n)`, the length of an axis of length `e` without `n` elements, as `(e, n)`, and `max(e, 0)` as
    /// `(e, 0)`; `None` for other dimensions.
    pub fn as_shortened(&self) -> Option<(Dim, i64)> {
        if let Some(Atom::Max(a, b)) = self.as_atom() {
            let e = if a.is(0) { b } else { a };
            return (a.is(0) || b.is(0)).then(|| (e.clone(), 0));
        }
        let Dim::Poly(p) = self else { return None };
        p.0.iter().find_map(|(atoms, c)| {
            let ([Atom::Min(a, b)], -1) = (atoms.as_slice(), *c) else {
                return None;
            };
            let whole = self + &a.smaller(b);
            let n = match (a, b) {
                (Dim::Const(n), e) | (e, Dim::Const(n)) if *e == whole => *n,
                _ => return None,
            };
            Some((whole, n))
        })
    }

    /// The smaller of two dimensions.
    pub fn smaller(&self, other: &Dim) -> Dim {
        match (self.as_const(), other.as_const()) {
            (Some(a), Some(b)) => Dim::Const(a.min(b)),
            _ if self == other => self.clone(),
            // The usual "slice to the end" marker is larger than any dimension.
            (Some(a), None) if a >= i64::from(i32::MAX) => other.clone(),
            (None, Some(b)) if b >= i64::from(i32::MAX) => self.clone(),
            // min(min(x, y), x) is min(x, y).
            _ if self.is_min_of(other) => self.clone(),
            _ if other.is_min_of(self) => other.clone(),
            (Some(n), None) | (None, Some(n)) => {
                let d = if self.as_const().is_some() {
                    other
                } else {
                    self
                };
                // min(min(x, 2), 3) is min(x, 2).
                let (d, n) = match d.as_atom() {
                    Some(Atom::Min(Dim::Const(m), d) | Atom::Min(d, Dim::Const(m))) => {
                        (d, n.min(*m))
                    }
                    _ => (d, n),
                };
                Dim::from_atom(Atom::Min(Dim::Const(n), d.clone()))
            }
            _ => {
                let (a, b) = if self <= other {
                    (self, other)
                } else {
                    (other, self)
                };
                Dim::from_atom(Atom::Min(a.clone(), b.clone()))
            }
        }
    }

    /// The value of the dimension under `bindings`; `None` while a symbol is unbound.
    pub fn eval(&self, bindings: &Bindings) -> Option<i64> {
        match self {
            Dim::Const(c) => Some(*c),
            Dim::Poly(p) => {
                let mut sum = 0i64;
                for (atoms, c) in &p.0 {
                    let mut prod = *c;
                    for a in atoms {
                        prod = prod.saturating_mul(a.eval(bindings)?);
                    }
                    sum = sum.saturating_add(prod);
                }
                Some(sum)
            }
        }
    }

    /// Replaces the symbols that `bindings` binds by their values.
    pub fn substitute(&self, bindings: &Bindings) -> Dim {
        match self {
            Dim::Const(_) => self.clone(),
            Dim::Poly(p) => p.0.iter().fold(Dim::Const(0), |sum, (atoms, c)| {
                let term = atoms
                    .iter()
                    .fold(Dim::Const(*c), |prod, a| &prod * &a.substitute(bindings));
                &sum + &term
            }),
        }
    }

    /// Adds the names of all symbols to `out`.
    pub fn symbols(&self, out: &mut std::collections::BTreeSet<Arc<str>>) {
        if let Dim::Poly(p) = self {
            for a in p.0.iter().flat_map(|(atoms, _)| atoms) {
                match a {
                    Atom::Sym(s) => {
                        out.insert(s.clone());
                    }
                    Atom::FloorDiv(a, b) | Atom::Max(a, b) | Atom::Min(a, b) => {
                        a.symbols(out);
                        b.symbols(out);
                    }
                }
            }
        }
    }
}

impl Atom {
    fn eval(&self, b: &Bindings) -> Option<i64> {
        Some(match self {
            Atom::Sym(s) => *b.get(s)?,
            Atom::FloorDiv(x, y) => match (x.eval(b)?, y.eval(b)?) {
                (_, 0) => 0,
                (x, y) => x.checked_div_euclid(y).unwrap_or(i64::MAX),
            },
            Atom::Max(x, y) => x.eval(b)?.max(y.eval(b)?),
            Atom::Min(x, y) => x.eval(b)?.min(y.eval(b)?),
        })
    }

    fn substitute(&self, b: &Bindings) -> Dim {
        match self {
            Atom::Sym(s) => b
                .get(s)
                .map_or_else(|| Dim::from_atom(self.clone()), |v| Dim::Const(*v)),
            Atom::FloorDiv(x, y) => x.substitute(b).floor_div(&y.substitute(b)),
            Atom::Max(x, y) => x.substitute(b).larger(&y.substitute(b)),
            Atom::Min(x, y) => x.substitute(b).smaller(&y.substitute(b)),
        }
    }
}

macro_rules! arithmetic {
    ($tr:ident, $m:ident, $a:ident, $b:ident, $e:expr) => {
        impl std::ops::$tr<&Dim> for &Dim {
            type Output = Dim;
            fn $m(self, rhs: &Dim) -> Dim {
                let ($a, $b) = (self, rhs);
                $e
            }
        }
        impl std::ops::$tr<Dim> for Dim {
            type Output = Dim;
            fn $m(self, rhs: Dim) -> Dim {
                std::ops::$tr::$m(&self, &rhs)
            }
        }
    };
}
arithmetic!(
    Add,
    add,
    a,
    b,
    match (a, b) {
        (Dim::Const(a), Dim::Const(b)) => Dim::Const(a.saturating_add(*b)),
        _ => Dim::from_terms(a.terms().into_iter().chain(b.terms())),
    }
);
arithmetic!(
    Sub,
    sub,
    a,
    b,
    match (a, b) {
        (Dim::Const(a), Dim::Const(b)) => Dim::Const(a.saturating_sub(*b)),
        _ => a + &(b * &Dim::Const(-1)),
    }
);
arithmetic!(
    Mul,
    mul,
    a,
    b,
    match (a, b) {
        (Dim::Const(a), Dim::Const(b)) => Dim::Const(a.saturating_mul(*b)),
        _ => {
            let bt = b.terms();
            Dim::from_terms(a.terms().into_iter().flat_map(|(aa, ca)| {
                bt.iter()
                    .map(|(ab, cb)| {
                        let mut atoms = aa.clone();
                        atoms.extend(ab.iter().cloned());
                        atoms.sort();
                        (atoms, ca.saturating_mul(*cb))
                    })
                    .collect::<Vec<_>>()
            }))
        }
    }
);

impl From<i64> for Dim {
    fn from(v: i64) -> Dim {
        Dim::Const(v)
    }
}
impl From<usize> for Dim {
    fn from(v: usize) -> Dim {
        Dim::Const(i64::try_from(v).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Const(c) => write!(f, "{c}"),
            Dim::Poly(p) => {
                for (i, (atoms, c)) in p.0.iter().enumerate() {
                    if i > 0 {
                        f.write_str("+")?;
                    }
                    let names: Vec<String> = atoms.iter().map(|a| a.to_string()).collect();
                    match (atoms.is_empty(), *c) {
                        (true, c) => write!(f, "{c}")?,
                        (false, 1) => f.write_str(&names.join("*"))?,
                        (false, c) => write!(f, "{c}*{}", names.join("*"))?,
                    }
                }
                Ok(())
            }
        }
    }
}
impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Sym(s) => f.write_str(s),
            Atom::FloorDiv(a, b) => write!(f, "({a})/({b})"),
            Atom::Max(a, b) => write!(f, "max({a},{b})"),
            Atom::Min(a, b) => write!(f, "min({a},{b})"),
        }
    }
}
impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s() -> Dim {
        Dim::sym("s")
    }

    #[test]
    fn canonical_forms_compare_equal() {
        let two = Dim::Const(2);
        assert_eq!(&(&s() + &Dim::Const(1)) * &two, &(&s() + &s()) + &two);
        assert_eq!(&s() - &s(), Dim::Const(0));
        assert_eq!(
            (&(&s() * &two) * &Dim::sym("b")).floor_div(&s()),
            &two * &Dim::sym("b")
        );
        assert_eq!(
            (&s() * &Dim::Const(12)).floor_div(&Dim::Const(4)),
            &s() * &Dim::Const(3)
        );
    }

    #[test]
    fn evaluates_under_bindings() {
        let d = (&s() + &Dim::Const(3))
            .floor_div(&Dim::Const(2))
            .larger(&Dim::Const(7));
        assert_eq!(d.eval(&Bindings::new()), None);
        for (v, want) in [(1, 7), (20, 11)] {
            let b: Bindings = [("s".into(), v)].into();
            assert_eq!(d.eval(&b), Some(want));
            assert_eq!(d.substitute(&b), Dim::Const(want));
        }
    }

    #[test]
    fn overflow_saturates() {
        let d = &(&s() * &Dim::Const(i64::MAX)) * &Dim::Const(i64::MAX);
        let b: Bindings = [("s".into(), 3)].into();
        assert_eq!(d.eval(&b), Some(i64::MAX));
    }

    #[test]
    fn a_clamped_length_is_absorbed() {
        let clamped = s().smaller(&Dim::Const(9));
        assert_eq!(clamped.larger(&s()), s());
        assert_eq!(s().larger(&clamped), s());
    }

    #[test]
    fn a_value_of_zero_counts_in_a_maximum() {
        let b: Bindings = [("s".into(), 0)].into();
        for d in [s().larger(&Dim::Const(1)), Dim::Const(1).larger(&s())] {
            assert_eq!(d.eval(&b), Some(1), "{d}");
        }
    }

    #[test]
    fn minima_of_minima_are_flat() {
        let least = s().smaller(&Dim::Const(2));
        assert_eq!(least.smaller(&Dim::Const(3)), least);
        assert_eq!(Dim::Const(1).smaller(&least), s().smaller(&Dim::Const(1)));
        assert_eq!(least.smaller(&s()), least);
        let rest = &s() - &least;
        assert_eq!(rest.as_shortened(), Some((s(), 2)));
        assert_eq!(
            (&s() - &Dim::sym("t").smaller(&Dim::Const(2))).as_shortened(),
            None
        );
    }

    #[test]
    fn sums_and_products_stop_at_a_number_of_terms() {
        let long = |of: &str| {
            let symbols: Vec<Dim> = (0..64).map(|i| Dim::sym(&format!("{of}{i}"))).collect();
            Dim::sum(&symbols).expect("few terms")
        };
        let (a, b, c) = (long("a"), long("b"), Dim::sym("c"));
        assert_eq!(a.plus(&b), Some(&a + &b));
        assert_eq!(a.times(&c), Some(&a * &c));
        assert_eq!(a.times(&b), None);
        assert_eq!(
            Dim::sum([&a, &b, &Dim::Const(3), &b]),
            Some(&(&(&a + &b) + &b) + &Dim::Const(3))
        );
        let many: Vec<Dim> = (0..300).map(|i| Dim::sym(&format!("s{i}"))).collect();
        assert_eq!(Dim::sum(&many), None);
    }

    #[test]
    fn displays_readably() {
        let d = &(&s() * &Dim::Const(2)) + &Dim::Const(1);
        assert_eq!(d.to_string(), "1+2*s");
        assert_eq!(s().floor_div(&Dim::Const(2)).to_string(), "(s)/(2)");
    }
}
