//! The inverse cosine transform of a block, in the fixed-point arithmetic of libjpeg's accurate one: columns, then rows.

/// Bits behind the point of the factors.
const FACTOR: u32 = 13;
/// Bits behind the point that columns keep for rows.
const KEPT: u32 = 2;

/// Eight numbers, transformed and shifted by `shift` bits, rounded.
#[inline(always)]
fn transform(x: [i32; 8], shift: u32) -> [i32; 8] {
    let mul = |a: i32, b: i32| a.wrapping_mul(b);
    let add = |a: i32, b: i32| a.wrapping_add(b);
    let sub = |a: i32, b: i32| a.wrapping_sub(b);
    let z = mul(add(x[2], x[6]), 4433);
    let (t2, t3) = (sub(z, mul(x[6], 15137)), add(z, mul(x[2], 6270)));
    let (t0, t1) = (add(x[0], x[4]) << FACTOR, sub(x[0], x[4]) << FACTOR);
    let even = [add(t0, t3), add(t1, t2), sub(t1, t2), sub(t0, t3)];
    let (z1, z2) = (add(x[7], x[1]), add(x[5], x[3]));
    let (z3, z4) = (add(x[7], x[3]), add(x[5], x[1]));
    let z5 = mul(add(z3, z4), 9633);
    let (z1, z2) = (mul(z1, -7373), mul(z2, -20995));
    let (z3, z4) = (add(mul(z3, -16069), z5), add(mul(z4, -3196), z5));
    let odd = [
        add(mul(x[1], 12299), add(z1, z4)),
        add(mul(x[3], 25172), add(z2, z3)),
        add(mul(x[5], 16819), add(z2, z4)),
        add(mul(x[7], 2446), add(z1, z3)),
    ];
    let round = |v: i32| add(v, 1 << (shift - 1)) >> shift;
    std::array::from_fn(|i| match i {
        0..4 => round(add(even[i], odd[i])),
        _ => round(sub(even[7 - i], odd[7 - i])),
    })
}

/// Writes the samples of a block at column `x` of eight rows of `stride` samples.
pub(super) fn block(
    coefficients: &[i16; 64],
    factors: &[u16; 64],
    rows: &mut [u8],
    stride: usize,
    x: usize,
) {
    let mut work = [[0i32; 8]; 8];
    for column in 0..8 {
        let given = std::array::from_fn(|row| {
            let at = 8 * row + column;
            i32::from(coefficients[at]).wrapping_mul(i32::from(factors[at]))
        });
        for (row, v) in work.iter_mut().zip(transform(given, FACTOR - KEPT)) {
            row[column] = v;
        }
    }
    for (row, work) in rows.chunks_exact_mut(stride).zip(work) {
        let samples = transform(work, FACTOR + KEPT + 3);
        for (to, v) in row.iter_mut().skip(x).zip(samples) {
            *to = v.saturating_add(128).clamp(0, 255) as u8;
        }
    }
}
