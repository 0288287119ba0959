//! Finding the symbol of a dimension whose size is given.

use std::sync::Arc;

use super::{Atom, Bindings, Dim};

/// What the size of a dimension says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Solved {
    /// The dimension has this size under the bindings.
    Fits,
    /// The dimension has another size, or no length makes it this one.
    Differs,
    /// The only symbol that the bindings leave open, and the length that it has.
    Symbol(Arc<str>, i64),
    /// Several symbols are open, or the only one does not follow from the size.
    Open,
}

impl Dim {
    /// Finds the symbol that `bindings` leave open where the dimension is `size` long: it is a multiple of the symbol plus a
    /// number.
    pub fn solve(&self, size: i64, bindings: &Bindings) -> Solved {
        let poly = match self.substitute(bindings) {
            Dim::Const(known) if known == size => return Solved::Fits,
            Dim::Const(_) => return Solved::Differs,
            Dim::Poly(poly) => poly,
        };
        let (constant, factor, symbol) = match poly.0.as_slice() {
            [(atoms, factor)] => (0, *factor, atoms.as_slice()),
            [(none, constant), (atoms, factor)] if none.is_empty() => {
                (*constant, *factor, atoms.as_slice())
            }
            _ => return Solved::Open,
        };
        let [Atom::Sym(symbol)] = symbol else {
            return Solved::Open;
        };
        let product = i128::from(size) - i128::from(constant);
        let factor = i128::from(factor);
        let length = match product % factor {
            0 => i64::try_from(product / factor).ok(),
            _ => None,
        };
        match length.filter(|length| *length >= 0) {
            Some(length) => Solved::Symbol(symbol.clone(), length),
            None => Solved::Differs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_multiple_of_one_symbol_says_its_length() {
        let (n, m, c) = (Dim::sym("n"), Dim::sym("m"), |v: i64| Dim::Const(v));
        let bindings: Bindings = [("m".into(), 4)].into();
        let length = |v: i64| Solved::Symbol("n".into(), v);
        for (d, size, want) in [
            (n.clone(), 6, length(6)),
            (&n * &c(2), 6, length(3)),
            (&n * &c(2), 0, length(0)),
            (&n * &c(2), 5, Solved::Differs),
            (&(&n * &c(2)) + &c(1), 7, length(3)),
            (&n + &c(3), 2, Solved::Differs),
            (&c(9) - &n, 2, length(7)),
            (&n * &m, 12, length(3)),
            (&n + &m, 12, length(8)),
            (&m * &c(2), 8, Solved::Fits),
            (&m * &c(2), 7, Solved::Differs),
            (&n * &n, 9, Solved::Open),
            (n.floor_div(&c(2)), 3, Solved::Open),
            (&n * &Dim::sym("k"), 6, Solved::Open),
            (&n * &c(i64::MAX), i64::MIN, Solved::Differs),
        ] {
            assert_eq!(d.solve(size, &bindings), want, "{d} = {size}");
        }
    }
}
