//! The discrete Fourier transform of one line of complex numbers, in f64.
//!
//! A length whose prime factors are small is transformed factor by factor (Stockham's form, which needs no reordering):
//!
//! ```text
//! y[k + s (p q + t)] = e^(-2πi q t / (p m)) · Σ_r x[k + s (q + m r)] e^(-2πi r t / p)     n = s p m, q < m, k < s, t < p
//! ```
//!
//! Any other length is a convolution with a chirp (Bluestein's form), which is computed by transforms whose length is a
//! power of two. Only sums and products of f64 are used, so that every processor gives the same bits.

use crate::Exec;
use crate::split::{PIECE, pieces};

/// A complex number: its real and its imaginary part.
pub(super) type Complex = [f64; 2];

/// The largest prime factor that is transformed directly.
const MAX_RADIX: usize = 13;
/// The most factors of a length.
const MAX_FACTORS: usize = usize::BITS as usize;

fn mul(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

fn add(a: Complex, b: Complex) -> Complex {
    [a[0] + b[0], a[1] + b[1]]
}

fn sub(a: Complex, b: Complex) -> Complex {
    [a[0] - b[0], a[1] - b[1]]
}

pub(super) fn conj(a: Complex) -> Complex {
    [a[0], -a[1]]
}

/// e^(-2πi part / whole).
fn root(part: usize, whole: usize) -> Complex {
    let angle = -std::f64::consts::TAU * (part as f64 / whole as f64);
    let (sin, cos) = libm::sincos(angle);
    [cos, sin]
}

/// The factors of a length, largest steps first; `None` where a prime factor is too large.
fn factors(mut n: usize) -> Option<([usize; MAX_FACTORS], usize)> {
    let mut all = [1; MAX_FACTORS];
    let mut count = 0;
    for p in [4, 2, 3, 5, 7, 11, MAX_RADIX] {
        while n > 1 && n.is_multiple_of(p) {
            all[count] = p;
            count += 1;
            n /= p;
        }
    }
    (n == 1).then_some((all, count))
}

/// How lines of a length are transformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    n: usize,
    /// The length of the transforms that the convolution with a chirp consists of, where there is one.
    padded: Option<usize>,
}

/// What the transforms of all lines of one length share.
pub(super) struct Tables<'a> {
    plan: Plan,
    /// The roots of unity of the length that is transformed by factors.
    roots: &'a [Complex],
    /// The chirp, and the transform of its conjugate.
    chirp: &'a [Complex],
    filter: &'a [Complex],
}

impl Plan {
    /// The plan for length `n`, which is not zero; `None` where its tables would not fit an address space.
    pub(super) fn new(n: usize) -> Option<Plan> {
        let padded = match factors(n) {
            Some(_) => None,
            None => Some(n.checked_mul(2)?.checked_next_power_of_two()?),
        };
        padded.unwrap_or(n).checked_mul(8)?;
        Some(Plan { n, padded })
    }

    /// The length that is transformed by factors.
    fn inner(&self) -> usize {
        self.padded.unwrap_or(self.n)
    }

    /// Complex numbers of all tables.
    pub(super) fn table_len(&self) -> usize {
        match self.padded {
            None => self.n,
            Some(padded) => 2 * padded + self.n,
        }
    }

    /// Complex numbers of scratch memory that a line needs beside itself.
    pub(super) fn scratch_len(&self) -> usize {
        match self.padded {
            None => self.n,
            Some(padded) => 2 * padded,
        }
    }

    /// Fills the tables. `scratch` has [`Plan::scratch_len`] numbers.
    pub(super) fn tables<'a>(
        self,
        exec: &Exec,
        memory: &'a mut [Complex],
        scratch: &mut [Complex],
    ) -> Tables<'a> {
        let inner = self.inner();
        let (roots, rest) = memory.split_at_mut(inner);
        for range in pieces(exec, inner, PIECE) {
            for j in range {
                roots[j] = root(j, inner);
            }
        }
        let Some(padded) = self.padded else {
            return Tables {
                plan: self,
                roots,
                chirp: &[],
                filter: &[],
            };
        };
        let (chirp, filter) = rest.split_at_mut(self.n);
        let whole = 2 * self.n as u128;
        for range in pieces(exec, self.n, PIECE) {
            for j in range {
                let square = (j as u128 * j as u128) % whole;
                chirp[j] = root(square as usize, 2 * self.n);
            }
        }
        filter.fill([0.0; 2]);
        for j in 0..self.n {
            filter[j] = conj(chirp[j]);
            filter[(padded - j) % padded] = conj(chirp[j]);
        }
        by_factors(exec, roots, filter, &mut scratch[..padded]);
        Tables {
            plan: self,
            roots,
            chirp,
            filter,
        }
    }
}

impl Tables<'_> {
    /// Transforms `line` in place. Where the step is cancelled meanwhile, the line holds garbage.
    pub(super) fn transform(&self, exec: &Exec, line: &mut [Complex], scratch: &mut [Complex]) {
        let Some(padded) = self.plan.padded else {
            by_factors(exec, self.roots, line, scratch);
            return;
        };
        let (wide, scratch) = scratch.split_at_mut(padded);
        for (wide, (x, chirp)) in wide.iter_mut().zip(line.iter().zip(self.chirp)) {
            *wide = mul(*x, *chirp);
        }
        wide[line.len()..].fill([0.0; 2]);
        by_factors(exec, self.roots, wide, scratch);
        // The inverse transform is the transform of the conjugate, conjugated and divided by the length.
        for (wide, filter) in wide.iter_mut().zip(self.filter) {
            *wide = conj(mul(*wide, *filter));
        }
        by_factors(exec, self.roots, wide, scratch);
        let length = padded as f64;
        for (x, (wide, chirp)) in line.iter_mut().zip(wide.iter().zip(self.chirp)) {
            let convolved = [wide[0] / length, -wide[1] / length];
            *x = mul(convolved, *chirp);
        }
    }
}

/// Transforms a line whose length has small factors.
fn by_factors(exec: &Exec, roots: &[Complex], line: &mut [Complex], scratch: &mut [Complex]) {
    let n = line.len();
    let Some((factors, count)) = factors(n) else {
        return;
    };
    let mut done = 1;
    for (i, &p) in factors[..count].iter().enumerate() {
        if exec.check().is_err() {
            return;
        }
        let (x, y): (&[Complex], &mut [Complex]) = match i % 2 {
            0 => (&*line, &mut *scratch),
            _ => (&*scratch, &mut *line),
        };
        match p {
            2 => stage::<2>(exec, roots, done, x, y),
            3 => stage::<3>(exec, roots, done, x, y),
            4 => four(exec, roots, done, x, y),
            5 => stage::<5>(exec, roots, done, x, y),
            7 => stage::<7>(exec, roots, done, x, y),
            11 => stage::<11>(exec, roots, done, x, y),
            _ => stage::<MAX_RADIX>(exec, roots, done, x, y),
        }
        done *= p;
    }
    if count % 2 == 1 {
        line.copy_from_slice(scratch);
    }
}

/// One factor `P`, where the product of those before it is `s`.
fn stage<const P: usize>(
    exec: &Exec,
    roots: &[Complex],
    s: usize,
    x: &[Complex],
    y: &mut [Complex],
) {
    let n = x.len();
    let m = n / s / P;
    let unit: [Complex; P] = std::array::from_fn(|j| roots[j * (n / P)]);
    for q in pieces(exec, m, (PIECE / s).max(1)).flatten() {
        let turn: [Complex; P] = std::array::from_fn(|t| roots[q * t * s]);
        for k in pieces(exec, s, PIECE).flatten() {
            let given: [Complex; P] = std::array::from_fn(|r| x[k + s * (q + m * r)]);
            for t in 0..P {
                let mut sum = given[0];
                for r in 1..P {
                    sum = add(sum, mul(given[r], unit[r * t % P]));
                }
                y[k + s * (P * q + t)] = mul(sum, turn[t]);
            }
        }
    }
}

/// As [`stage`] for the factor 4, whose roots of unity need no products.
fn four(exec: &Exec, roots: &[Complex], s: usize, x: &[Complex], y: &mut [Complex]) {
    let m = x.len() / s / 4;
    for q in pieces(exec, m, (PIECE / s).max(1)).flatten() {
        let turn: [Complex; 4] = std::array::from_fn(|t| roots[q * t * s]);
        for k in pieces(exec, s, PIECE).flatten() {
            let [a, b, c, d] = std::array::from_fn(|r| x[k + s * (q + m * r)]);
            let (even, odd) = (add(a, c), sub(a, c));
            let (sum, difference) = (add(b, d), sub(b, d));
            // The difference times -i.
            let turned = [difference[1], -difference[0]];
            let out = [
                add(even, sum),
                add(odd, turned),
                sub(even, sum),
                sub(odd, turned),
            ];
            for (t, out) in out.into_iter().enumerate() {
                y[k + s * (4 * q + t)] = mul(out, turn[t]);
            }
        }
    }
}
