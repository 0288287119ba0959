//! The bounds of a dimension's value, and the length of its expression.

use super::{Atom, Bindings, Dim};

/// How deep minima, maxima and quotients of an expression may be nested for their own bounds to be used.
const DEPTH: usize = 3;

impl Dim {
    /// The least value that the dimension can take, where it is known; symbols are taken to be at least zero.
    pub fn at_least(&self) -> Option<i64> {
        self.bounds().0
    }

    /// The largest value that the dimension can take, where it is known; symbols have none.
    pub fn at_most(&self) -> Option<i64> {
        self.bounds().1
    }

    /// A value that the dimension is never above while each symbol lies between zero and its value in `most`; `None` while
    /// a symbol is unbound. It is the largest value, or somewhat more where symbols stand several times.
    pub fn at_most_within(&self, most: &Bindings) -> Option<i64> {
        Some(self.within(most, DEPTH)?.1)
    }

    /// Bounds of the value while each symbol lies between zero and its value in `most`; `None` while one is unbound.
    fn within(&self, most: &Bindings, depth: usize) -> Option<(i64, i64)> {
        let Dim::Poly(p) = self else {
            return self.as_const().map(|c| (c, c));
        };
        let (mut least, mut largest) = (0i64, 0i64);
        for (atoms, c) in &p.0 {
            let (mut lo, mut hi) = (*c, *c);
            for a in atoms {
                let (l, h) = a.within(most, depth)?;
                let corners =
                    [(lo, l), (lo, h), (hi, l), (hi, h)].map(|(x, y)| x.saturating_mul(y));
                lo = corners.into_iter().fold(i64::MAX, i64::min);
                hi = corners.into_iter().fold(i64::MIN, i64::max);
            }
            least = least.saturating_add(lo);
            largest = largest.saturating_add(hi);
        }
        if self.grows() {
            largest = self.eval(most)?;
        } else if depth > 0
            && let Some((lo, hi)) = self.closer(most, depth - 1)
        {
            (least, largest) = (least.max(lo), largest.min(hi));
        }
        // What saturates may turn bounds about.
        Some((least.min(largest), largest.max(least)))
    }

    /// Bounds from putting the operands of a minimum, a maximum or a quotient in its place, where they may cancel with other
    /// terms; `None` where there are none.
    fn closer(&self, most: &Bindings, depth: usize) -> Option<(i64, i64)> {
        let Dim::Poly(p) = self else { return None };
        if p.0.len() < 2 {
            return None;
        }
        p.0.iter().find_map(|(atoms, c)| {
            let [atom] = atoms.as_slice() else {
                return None;
            };
            let rest = self - &Dim::from_terms([(atoms.clone(), *c)]);
            let with = |d: &Dim, c: i64| (&rest + &(d * &Dim::Const(c))).within(most, depth);
            match atom {
                Atom::Sym(_) => None,
                Atom::Min(a, b) | Atom::Max(a, b) => {
                    let ((l, h), (m, i)) = (with(a, *c)?, with(b, *c)?);
                    let is_less = matches!(atom, Atom::Min(..)) == (*c > 0);
                    Some(match is_less {
                        true => (l.min(m), h.min(i)),
                        false => (l.max(m), h.max(i)),
                    })
                }
                Atom::FloorDiv(x, y) => {
                    let y = y.as_const().filter(|y| *y > 0 && c % y == 0)?;
                    // A quotient lies between (x - y + 1) / y and x / y.
                    let ends = (with(&(x - &Dim::Const(y - 1)), c / y)?, with(x, c / y)?);
                    let ((l, h), (m, i)) = ends;
                    Some((l.min(m), h.max(i)))
                }
            }
        })
    }

    /// Whether the dimension is known not to become less where a symbol becomes more.
    fn grows(&self) -> bool {
        let Dim::Poly(p) = self else { return true };
        p.0.iter().all(|(atoms, c)| {
            let positive = |a: &Atom| atoms.len() == 1 || a.bounds().0 >= Some(0);
            atoms.is_empty() || *c > 0 && atoms.iter().all(|a| a.grows() && positive(a))
        })
    }

    fn bounds(&self) -> (Option<i64>, Option<i64>) {
        let Dim::Poly(p) = self else {
            return (self.as_const(), self.as_const());
        };
        let (mut least, mut most) = (Some(0i64), Some(0i64));
        for (atoms, c) in &p.0 {
            let (mut lo, mut hi) = (Some(1i64), Some(1i64));
            for a in atoms {
                let (l, h) = a.bounds();
                // Where an atom can be negative, signs may mix, and the product's bounds stay unknown.
                let l = l.filter(|l| *l >= 0);
                lo = lo.zip(l).map(|(x, y)| x.saturating_mul(y));
                hi = lo.and(hi.zip(h)).map(|(x, y)| x.saturating_mul(y));
            }
            if *c < 0 {
                std::mem::swap(&mut lo, &mut hi);
            }
            let scale = |x: i64| x.saturating_mul(*c);
            least = least.zip(lo.map(scale)).map(|(x, y)| x.saturating_add(y));
            most = most.zip(hi.map(scale)).map(|(x, y)| x.saturating_add(y));
        }
        (least, most)
    }

    /// The number of terms, symbols and operations in the expression, counted up to about `limit`.
    pub fn weight(&self, limit: usize) -> usize {
        let Dim::Poly(p) = self else { return 1 };
        let mut n = 0;
        for (atoms, _) in &p.0 {
            n += 1;
            for a in atoms {
                if n > limit {
                    return n;
                }
                n += match a {
                    Atom::Sym(_) => 1,
                    Atom::FloorDiv(a, b) | Atom::Max(a, b) | Atom::Min(a, b) => {
                        let left = a.weight(limit - n);
                        1 + left
                            + if n + left > limit {
                                0
                            } else {
                                b.weight(limit - n - left)
                            }
                    }
                };
            }
        }
        n
    }
}

impl Atom {
    /// Bounds of the value while each symbol lies between zero and its value in `most`; `None` while one is unbound.
    fn within(&self, most: &Bindings, depth: usize) -> Option<(i64, i64)> {
        let range = |d: &Dim| d.within(most, depth);
        Some(match self {
            Atom::Sym(s) => {
                let most = *most.get(s)?;
                (most.min(0), most)
            }
            Atom::Max(x, y) => {
                let ((a, b), (c, d)) = (range(x)?, range(y)?);
                (a.max(c), b.max(d))
            }
            Atom::Min(x, y) => {
                let ((a, b), (c, d)) = (range(x)?, range(y)?);
                (a.min(c), b.min(d))
            }
            Atom::FloorDiv(x, y) => {
                let ((a, b), (c, d)) = (range(x)?, range(y)?);
                if c < 1 {
                    // The divisor may be of either sign, and the quotient by zero is zero.
                    let most = b.saturating_abs().max(a.saturating_abs());
                    return Some((most.saturating_neg(), most));
                }
                let corners = [(a, c), (a, d), (b, c), (b, d)].map(|(x, y)| x.div_euclid(y));
                let (lo, hi) = (corners.iter().min()?, corners.iter().max()?);
                (*lo, *hi)
            }
        })
    }

    fn grows(&self) -> bool {
        match self {
            Atom::Sym(_) => true,
            Atom::Max(x, y) | Atom::Min(x, y) => x.grows() && y.grows(),
            Atom::FloorDiv(x, y) => x.grows() && y.as_const().is_some_and(|y| y > 0),
        }
    }

    fn bounds(&self) -> (Option<i64>, Option<i64>) {
        match self {
            Atom::Sym(_) => (Some(0), None),
            Atom::FloorDiv(x, y) => match (x.bounds(), y.bounds()) {
                ((Some(l), h), (Some(d), _)) if l >= 0 && d >= 1 => {
                    (Some(y.as_const().map_or(0, |c| l / c)), h.map(|h| h / d))
                }
                _ => (None, None),
            },
            Atom::Max(x, y) => {
                let ((a, b), (c, d)) = (x.bounds(), y.bounds());
                (a.max(c), b.zip(d).map(|(b, d)| b.max(d)))
            }
            Atom::Min(x, y) => {
                let ((a, b), (c, d)) = (x.bounds(), y.bounds());
                let most = match (b, d) {
                    (Some(b), Some(d)) => Some(b.min(d)),
                    _ => b.or(d),
                };
                (a.zip(c).map(|(a, c)| a.min(c)), most)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Poly;
    use super::*;

    fn s() -> Dim {
        Dim::sym("s")
    }

    #[test]
    fn no_value_is_above_the_bound_within_bounds() {
        let (s, t, c) = (s(), Dim::sym("t"), |n: i64| Dim::Const(n));
        let rest = |a: &Dim, n: i64| a - &(&a.floor_div(&c(n)) * &c(n));
        for (d, is_exact) in [
            (&c(9) - &s, true),
            (&(&s * &t) + &c(1), true),
            (&s - &s.smaller(&c(2)), true),
            (&(&s + &t).smaller(&c(8)) - &s, true),
            (&s.larger(&t) - &s, true),
            (rest(&s, 4), true),
            (&(&s * &c(-3)).floor_div(&c(2)) + &c(7), true),
            (&(&c(5) - &s) * &t, true),
            (&(&c(5) - &s) * &(&t - &c(2)), false),
            (&c(5) * &t.floor_div(&s), true),
            (&c(3) - &(&c(5) - &s).smaller(&c(2)), true),
            (&(&c(4) - &s).smaller(&t) * &s.smaller(&c(2)), false),
        ] {
            let bounds: Bindings = [("s".into(), 6), ("t".into(), 5)].into();
            let values = (0..=6).flat_map(|s| (0..=5).map(move |t| (s, t)));
            let largest = values.map(|(s, t)| d.eval(&[("s".into(), s), ("t".into(), t)].into()));
            let (largest, bound) = (largest.max().flatten(), d.at_most_within(&bounds));
            assert!(largest <= bound, "{d}: {largest:?}, {bound:?}");
            assert!(!is_exact || largest == bound, "{d}: {largest:?}, {bound:?}");
        }
        assert_eq!((&c(9) - &s).at_most_within(&Bindings::new()), None);
    }

    /// What minima of differences of minima take must not double with each of them.
    #[test]
    fn nested_minima_are_bounded_in_time() {
        let (two, five) = (Dim::Const(2), Dim::Const(5));
        let mut d = &s() - &s().smaller(&two);
        for _ in 0..60 {
            d = &five - &d.smaller(&two);
        }
        let bounds: Bindings = [("s".into(), 6)].into();
        assert!(d.at_most_within(&bounds) >= d.eval(&bounds));
    }

    /// A divisor from a peer may be an expression whose sums saturate, so that its bounds contradict each other.
    #[test]
    fn divisors_that_saturate_are_bounded() {
        let terms = [(vec![], i64::MAX), (vec![], 1), (vec![], -i64::MAX)];
        let odd = Dim::Poly(Arc::new(Poly(terms.to_vec())));
        let d = Dim::from_atom(Atom::FloorDiv(Dim::Const(8), odd));
        assert!(d.at_most_within(&Bindings::new()).is_some());
    }

    #[test]
    fn bounds_and_weight() {
        let two = Dim::Const(2);
        assert_eq!((&(&s() * &two) + &two).at_least(), Some(2));
        assert_eq!((&two - &s()).at_most(), Some(2));
        assert_eq!((&s() - &two).at_least(), Some(-2));
        assert_eq!(s().smaller(&Dim::Const(9)).at_most(), Some(9));
        assert_eq!(
            (&s() * &Dim::sym("t").smaller(&Dim::Const(-1))).at_least(),
            None
        );
        assert_eq!((&s() + &two).weight(100), 3);
        let mut d = s();
        for _ in 0..200 {
            d = &d.floor_div(&Dim::Const(3)) + &d.floor_div(&Dim::Const(2));
            if d.weight(50) > 50 {
                return;
            }
        }
        panic!("weight is unbounded");
    }
}
