//! Rotary embedding: pairs of elements of a head are rotated by the angles of their token.
//!
//! Each result is a difference or a sum of two products, all three of which are rounded in the type that is computed in.

use std::ops::Range;

use crate::Exec;
use crate::compiled::compiled_floats;
use crate::element::{Float, Number, WIDENED, canonical_nan};
use crate::error::{KernelError, Result};
use crate::math::Real;
use crate::multiversion::multiversion;
use crate::split::{PIECE, pieces, tiles, units_per_tile};

/// Sizes of the operands of a rotary embedding.
#[derive(Debug, Clone, Copy)]
pub struct Rotary<'a> {
    pub batch: usize,
    pub heads: usize,
    pub tokens: usize,
    /// Elements of a head.
    pub size: usize,
    /// Pairs of a head that are rotated; elements behind them are copied.
    pub half: usize,
    /// Whether the operand is `[batch, heads, tokens, size]`, and not `[batch, tokens, heads, size]`.
    pub heads_first: bool,
    /// Whether the elements of a pair are neighbours, and not `half` elements apart.
    pub interleaved: bool,
    /// Steps from one batch, and from one token, to the next, among the places, or among the rows of the caches where there
    /// are no places.
    pub strides: [usize; 2],
    /// The row of each token in the caches, from the end where it is negative.
    pub places: Option<&'a [i64]>,
}

impl Rotary<'_> {
    /// The row of a token in caches of `rows` rows.
    #[inline(always)]
    fn row(&self, batch: usize, token: usize, rows: usize) -> usize {
        let at = batch * self.strides[0] + token * self.strides[1];
        match self.places {
            None => at,
            Some(places) if places[at] < 0 => (places[at] + rows as i64) as usize,
            Some(places) => places[at] as usize,
        }
    }
}

/// Rotates the first `2 * c.len()` elements of a head.
#[inline(always)]
fn rotate<W: Number + Real>(
    exec: &Exec,
    interleaved: bool,
    c: &[W],
    s: &[W],
    x: &[W],
    y: &mut [W],
) {
    let half = c.len();
    let (s, x, y) = (&s[..half], &x[..2 * half], &mut y[..2 * half]);
    if interleaved {
        let (x, y) = (x.as_chunks::<2>().0, y.as_chunks_mut::<2>().0);
        for piece in pieces(exec, half, PIECE) {
            let (x, y) = (&x[piece.clone()], &mut y[piece.clone()]);
            let (c, s) = (&c[piece.clone()], &s[piece]);
            for i in 0..c.len() {
                let [a, b] = x[i];
                y[i] = [
                    canonical_nan(c[i] * a - s[i] * b),
                    canonical_nan(s[i] * a + c[i] * b),
                ];
            }
        }
        return;
    }
    let (first, second) = x.split_at(half);
    let (real, imaginary) = y.split_at_mut(half);
    for piece in pieces(exec, half, PIECE) {
        let (a, b) = (&first[piece.clone()], &second[piece.clone()]);
        let (c, s) = (&c[piece.clone()], &s[piece.clone()]);
        let (real, imaginary) = (&mut real[piece.clone()], &mut imaginary[piece]);
        for i in 0..c.len() {
            real[i] = canonical_nan(c[i] * a[i] - s[i] * b[i]);
            imaginary[i] = canonical_nan(s[i] * a[i] + c[i] * b[i]);
        }
    }
}

/// As [`rotate`], for a head of a narrow type that is too long to be widened as a whole.
#[inline(always)]
fn rotate_long<T: Float>(exec: &Exec, interleaved: bool, c: &[T], s: &[T], x: &[T], y: &mut [T]) {
    let half = c.len();
    for piece in pieces(exec, half, PIECE) {
        for i in piece {
            let (at, other) = match interleaved {
                true => (2 * i, 2 * i + 1),
                false => (i, i + half),
            };
            let (a, b) = (x[at].widen(), x[other].widen());
            let (c, s) = (c[i].widen(), s[i].widen());
            y[at] = T::narrow(canonical_nan(c * a - s * b));
            y[other] = T::narrow(canonical_nan(s * a + c * b));
        }
    }
}

/// The places of consecutive heads among batches, and the last two axes before the elements of a head, in the order of the
/// operand.
struct Heads {
    at: [usize; 3],
    inner: [usize; 2],
}

impl Heads {
    #[inline(always)]
    fn new(r: &Rotary<'_>, first: usize) -> Heads {
        let inner = if r.heads_first {
            [r.heads, r.tokens]
        } else {
            [r.tokens, r.heads]
        };
        Heads {
            at: [
                first / inner[1] / inner[0],
                first / inner[1] % inner[0],
                first % inner[1],
            ],
            inner,
        }
    }

    /// The row of the next head in caches of `rows` rows.
    #[inline(always)]
    fn next_row(&mut self, r: &Rotary<'_>, rows: usize) -> usize {
        let at = &mut self.at;
        let token = if r.heads_first { at[2] } else { at[1] };
        let row = if r.half == 0 {
            0
        } else {
            r.row(at[0], token, rows)
        };
        at[2] += 1;
        if at[2] == self.inner[1] {
            at[2] = 0;
            at[1] += 1;
        }
        if at[1] == self.inner[0] {
            at[1] = 0;
            at[0] += 1;
        }
        row
    }
}

multiversion! {
    fn rotary_tile<T: Float>(exec: &Exec, r: &Rotary<'_>, first: usize, x: &[T], cos: &[T], sin: &[T], y: &mut [T]) {
        let (size, half) = (r.size, r.half);
        let rows = cos.len().checked_div(half).unwrap_or(0);
        let mut heads = Heads::new(r, first);
        for (x, y) in x.chunks_exact(size).zip(y.chunks_exact_mut(size)) {
            let row = heads.next_row(r, rows);
            let (c, s) = (&cos[row * half..(row + 1) * half], &sin[row * half..(row + 1) * half]);
            let (turned, rest) = y.split_at_mut(2 * half);
            let given = &x[..2 * half];
            match (T::as_wide(c), T::as_wide(s), T::as_wide(given), T::as_wide_mut(turned)) {
                (Some(c), Some(s), Some(x), Some(y)) => rotate(exec, r.interleaved, c, s, x, y),
                _ => rotate_long(exec, r.interleaved, c, s, given, turned),
            }
            for piece in pieces(exec, rest.len(), PIECE) {
                rest[piece.clone()].copy_from_slice(&x[2 * half..][piece]);
            }
        }
    }
}

multiversion! {
    /// Rotates consecutive heads of `size` elements, each by its own row of `cos` and `sin`.
    fn rotate_heads<T: Float>(exec: &Exec, interleaved: bool, half: usize, size: usize, cos: &[T::Wide], sin: &[T::Wide], x: &[T::Wide], y: &mut [T::Wide]) {
        for (i, (x, y)) in x.chunks_exact(size).zip(y.chunks_exact_mut(size)).enumerate() {
            let (c, s) = (&cos[i * half..][..half], &sin[i * half..][..half]);
            rotate(exec, interleaved, c, s, &x[..2 * half], &mut y[..2 * half]);
        }
    }
}

/// As [`rotary_tile`], for a narrow type and heads of which one or several are widened together.
fn rotary_tile_widened<T: Float>(
    exec: &Exec,
    r: &Rotary<'_>,
    first: usize,
    x: &[T],
    cos: &[T],
    sin: &[T],
    y: &mut [T],
) {
    let (size, half) = (r.size, r.half);
    let rows = cos.len().checked_div(half).unwrap_or(0);
    let mut wide = [[<T::Wide as Real>::ZERO; WIDENED]; 4];
    let [wide_cos, wide_sin, operands, results] = &mut wide;
    let mut heads = Heads::new(r, first);
    let block = WIDENED / size * size;
    for (x, y) in x.chunks(block).zip(y.chunks_mut(block)) {
        let count = x.len() / size;
        // Rows that follow each other in the caches are widened together.
        let (mut run, mut done) = (0..0, 0);
        for i in 0..count {
            let row = heads.next_row(r, rows);
            if row != run.end || i == 0 {
                let at = done * half;
                widen_rows(
                    half,
                    run,
                    cos,
                    sin,
                    &mut wide_cos[at..],
                    &mut wide_sin[at..],
                );
                (run, done) = (row..row, i);
            }
            run.end = row + 1;
        }
        let at = done * half;
        widen_rows(
            half,
            run,
            cos,
            sin,
            &mut wide_cos[at..],
            &mut wide_sin[at..],
        );
        let (operands, results) = (&mut operands[..x.len()], &mut results[..x.len()]);
        T::widen_run(x, operands);
        rotate_heads::<T>(
            exec,
            r.interleaved,
            half,
            size,
            wide_cos,
            wide_sin,
            operands,
            results,
        );
        T::narrow_run(results, y);
        if size > 2 * half {
            // Elements that are not rotated keep their bits, those of a NaN too.
            for (x, y) in x.chunks_exact(size).zip(y.chunks_exact_mut(size)) {
                y[2 * half..].copy_from_slice(&x[2 * half..]);
            }
        }
    }
}

/// Widens some rows of the caches to the start of `wide_cos` and `wide_sin`.
fn widen_rows<T: Float>(
    half: usize,
    rows: Range<usize>,
    cos: &[T],
    sin: &[T],
    wide_cos: &mut [T::Wide],
    wide_sin: &mut [T::Wide],
) {
    let (from, to) = (rows.start * half, rows.end * half);
    T::widen_run(&cos[from..to], &mut wide_cos[..to - from]);
    T::widen_run(&sin[from..to], &mut wide_sin[..to - from]);
}

fn rotary_any<T: Float>(
    exec: &Exec,
    r: &Rotary<'_>,
    x: &[T],
    cos: &[T],
    sin: &[T],
    y: &mut [T],
) -> Result {
    if x.is_empty() {
        return Ok(exec.check()?);
    }
    let heads = r.batch * r.heads * r.tokens;
    assert!(
        x.len() == heads * r.size && y.len() == x.len() && 2 * r.half <= r.size,
        "{r:?} for {} elements",
        x.len()
    );
    let rows = cos.len().checked_div(r.half).unwrap_or(0);
    assert!(
        cos.len() == sin.len() && cos.len() == rows * r.half,
        "caches of {} and {} elements",
        cos.len(),
        sin.len()
    );
    for piece in r.places.unwrap_or(&[]).chunks(PIECE) {
        exec.check()?;
        let range = -(rows as i64)..rows as i64;
        if let Some(index) = piece
            .iter()
            .find(|place| r.half > 0 && !range.contains(place))
        {
            return Err(KernelError::IndexOutOfRange {
                index: *index,
                len: rows,
                axis: 0,
            });
        }
    }
    let narrow = T::as_wide(x).is_none();
    tiles(exec, y, r.size, units_per_tile(r.size), |range, part| {
        let x = &x[range.start * r.size..range.end * r.size];
        if narrow && r.size <= WIDENED {
            rotary_tile_widened(exec, r, range.start, x, cos, sin, part)
        } else {
            rotary_tile(exec, r, range.start, x, cos, sin, part)
        }
    })?;
    Ok(exec.check()?)
}

compiled_floats! {
    /// The rotary embedding of a type.
    trait RotaryKernels {
        fn rotary(exec: &Exec, r: &Rotary<'_>, x: &[Self], cos: &[Self], sin: &[Self], y: &mut [Self]) = rotary_any;
    }
}

/// Rotates the pairs `(a, b)` of each head into `(c * a - s * b, s * a + c * b)`, with the cosines `c` and sines `s` of
/// its token: a row of the caches, which have `half` columns.
///
/// # Errors
/// `IndexOutOfRange` for a place that is no row of the caches.
pub fn rotary<T: Float>(
    exec: &Exec,
    r: &Rotary<'_>,
    x: &[T],
    cos: &[T],
    sin: &[T],
    y: &mut [T],
) -> Result {
    T::rotary(exec, r, x, cos, sin, y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{bf16, f16};
    use crate::testing::{bits, check_stops, each_exec, exec, random};

    /// The result by the formula, element by element.
    fn formula<T: Float>(r: &Rotary<'_>, x: &[T], cos: &[T], sin: &[T]) -> Vec<T> {
        let rows = cos.len() / r.half;
        let mut y = x.to_vec();
        for batch in 0..r.batch {
            for head in 0..r.heads {
                for token in 0..r.tokens {
                    let unit = match r.heads_first {
                        true => (batch * r.heads + head) * r.tokens + token,
                        false => (batch * r.tokens + token) * r.heads + head,
                    };
                    let at = batch * r.strides[0] + token * r.strides[1];
                    let row = r
                        .places
                        .map_or(at, |places| places[at].rem_euclid(rows as i64) as usize);
                    for i in 0..r.half {
                        let (first, second) = match r.interleaved {
                            true => (2 * i, 2 * i + 1),
                            false => (i, r.half + i),
                        };
                        let (first, second) = (unit * r.size + first, unit * r.size + second);
                        let (c, s) = (cos[row * r.half + i].widen(), sin[row * r.half + i].widen());
                        let (a, b) = (x[first].widen(), x[second].widen());
                        y[first] = T::narrow(c * a - s * b);
                        y[second] = T::narrow(s * a + c * b);
                    }
                }
            }
        }
        y
    }

    fn check<T: Float>() {
        let places: Vec<i64> = (0..12).map(|i| (i * 5 % 14) - 7).collect();
        for (half, rest) in [
            (1, 0),
            (4, 0),
            (19, 3),
            (32, 0),
            (WIDENED / 2, 1),
            (WIDENED / 2 + 3, 0),
        ] {
            for form in 0..8 {
                let (heads_first, interleaved, gathered) =
                    (form & 1 > 0, form & 2 > 0, form & 4 > 0);
                let (batch, heads, tokens, size) = (2, 3, 6, 2 * half + rest);
                let rows = if gathered { 7 } else { tokens };
                let r = Rotary {
                    batch,
                    heads,
                    tokens,
                    size,
                    half,
                    heads_first,
                    interleaved,
                    // Without places one row of the caches serves a token of every batch.
                    strides: [if gathered { tokens } else { 0 }, 1],
                    places: gathered.then_some(&places),
                };
                let x: Vec<T> = random(batch * heads * tokens * size + 1, 3.0, 1);
                let (cos, sin): (Vec<T>, Vec<T>) =
                    (random(rows * half, 1.0, 2), random(rows * half, 1.0, 3));
                let want = formula(&r, &x[1..], &cos, &sin);
                each_exec(|exec| {
                    let mut y = vec![T::ONE; want.len() + 1];
                    rotary(exec, &r, &x[1..], &cos, &sin, &mut y[1..]).unwrap();
                    assert_eq!(bits(&y[1..]), bits(&want), "{r:?}");
                });
            }
        }
    }

    #[test]
    fn pairs_are_rotated_by_the_formula() {
        check::<f32>();
        check::<f64>();
        check::<f16>();
        check::<bf16>();
    }

    fn of_one_row<'a>(tokens: usize, half: usize, places: &'a [i64]) -> Rotary<'a> {
        Rotary {
            batch: 1,
            heads: 1,
            tokens,
            size: 2 * half,
            half,
            heads_first: true,
            interleaved: false,
            strides: [0, 1],
            places: Some(places),
        }
    }

    #[test]
    fn places_outside_the_caches_are_refused() {
        let run = |place: i64| {
            let mut y = [0f32; 2];
            rotary(
                &exec(),
                &of_one_row(1, 1, &[place]),
                &[1.0, 2.0],
                &[3.0; 2],
                &[4.0; 2],
                &mut y,
            )
        };
        assert_eq!([run(1), run(-2)], [Ok(()), Ok(())]);
        let error = |index| {
            Err(KernelError::IndexOutOfRange {
                index,
                len: 2,
                axis: 0,
            })
        };
        for place in [2, -3, i64::MIN, i64::MAX] {
            assert_eq!(run(place), error(place));
        }
    }

    #[test]
    fn nothing_is_rotated_where_nothing_is_there() {
        let r = Rotary {
            tokens: 0,
            places: None,
            ..of_one_row(0, 2, &[])
        };
        rotary::<f32>(&exec(), &r, &[], &[], &[], &mut []).unwrap();
        let copied = Rotary {
            size: 2,
            ..of_one_row(1, 0, &[9])
        };
        let mut y = [0f32; 2];
        rotary(&exec(), &copied, &[1.0, 2.0], &[], &[], &mut y).unwrap();
        assert_eq!(y, [1.0, 2.0]);
    }

    #[test]
    fn a_long_head_stops_when_its_step_is_cancelled() {
        let half = 40 * PIECE;
        let (x, cos) = (vec![1f32; 2 * half], vec![1f32; half]);
        check_stops(|exec| {
            let mut y = vec![0f32; x.len()];
            rotary(exec, &of_one_row(1, half, &[0]), &x, &cos, &cos, &mut y)
        });
    }
}
