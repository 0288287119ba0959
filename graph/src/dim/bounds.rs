//! The bounds of a dimension's value, and the length of its expression.

use super::{Atom, Dim};

impl Dim {
    /// The least value that the dimension can take, where it is known; symbols are taken to be at least zero.
    pub fn at_least(&self) -> Option<i64> {
        self.bounds().0
    }

    /// The largest value that the dimension can take, where it is known; symbols have none.
    pub fn at_most(&self) -> Option<i64> {
        self.bounds().1
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
    use super::*;

    fn s() -> Dim {
        Dim::sym("s")
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
