//! Power: 2^(y log2 x) with both halves in `f64`.

/// 1.5 * 2^52: adding it leaves the nearest integer in the low mantissa bits.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// log2 of a positive finite `x` that came from an `f32`.
#[inline(always)]
fn log2(x: f64) -> f64 {
    const SQRT_HALF: i64 = 0x3fe6_a09e_667f_3bcd;
    let offset = (x.to_bits() as i64).wrapping_sub(SQRT_HALF);
    // Exponents fit 32 bits: a narrow conversion vectorizes everywhere.
    let n = f64::from(((offset >> 52) & 0xffff_ffff) as u32 as i32);
    let mantissa = f64::from_bits(((offset & 0x000f_ffff_ffff_ffff) + SQRT_HALF) as u64);
    let f = mantissa - 1.0;
    let s = f / (mantissa + 1.0);
    let t = s * s;
    let p = 0.242_938_246_063_263_2_f64;
    let p = p.mul_add(t, 0.261_442_455_571_365_5);
    let p = p.mul_add(t, 0.320_616_442_124_484_6);
    let p = p.mul_add(t, 0.412_198_401_306_843_4);
    let p = p.mul_add(t, 0.577_078_017_250_872_9);
    let p = p.mul_add(t, 0.961_796_693_924_324_5);
    let p = p.mul_add(t, 2.885_390_081_777_927);
    s.mul_add(p, n)
}

/// 2^x for |x| <= 1000.
#[inline(always)]
fn exp2(x: f64) -> f64 {
    let shifted = x + ROUND;
    let r = x - (shifted - ROUND);
    let p = 1.325_524_079_720_696_8e-6_f64;
    let p = p.mul_add(r, 1.531_010_238_238_051e-5);
    let p = p.mul_add(r, 1.540_345_579_274_964_5e-4);
    let p = p.mul_add(r, 1.333_345_048_181_932_7e-3);
    let p = p.mul_add(r, 9.618_129_159_464_76e-3);
    let p = p.mul_add(r, 5.550_410_941_295_717_4e-2);
    let p = p.mul_add(r, 0.240_226_506_958_128_33);
    let p = p.mul_add(r, 0.693_147_180_545_911);
    let p = p.mul_add(r, 1.0);
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    p * f64::from_bits(n.wrapping_add(1023) << 52)
}

/// x^y with the special cases of C99 `powf`: pow(x, 0) = pow(1, y) = 1 even for NaN, and a negative base needs an
/// integral exponent. Exponents 2 and 3 are computed as products.
#[inline(always)]
pub fn pow(x: f32, y: f32) -> f32 {
    let magnitude = x.abs();
    let l = log2(f64::from(magnitude));
    let l = if magnitude == f32::INFINITY {
        f64::INFINITY
    } else {
        l
    };
    let l = if magnitude == 0.0 {
        f64::NEG_INFINITY
    } else {
        l
    };
    let e = l * f64::from(y);
    let e = if e < -300.0 { -300.0 } else { e };
    let e = if e > 300.0 { 300.0 } else { e };
    let z = exp2(e) as f32;
    // A base of infinity or zero needs no case of its own: |e| is infinite however small the exponent, and z overflows
    // or vanishes.
    let z = if magnitude == 1.0 { 1.0 } else { z };
    let whole = y.floor() == y;
    let odd = whole & (y.abs() < 16_777_216.0) & ((y * 0.5).floor() != y * 0.5);
    let negative = x.is_sign_negative();
    let z = if negative & odd { -z } else { z };
    let invalid = (x < 0.0) & !whole & (magnitude != f32::INFINITY);
    let z = if invalid | x.is_nan() | y.is_nan() {
        f32::NAN
    } else {
        z
    };
    let z = if (y == 0.0) | (x == 1.0) { 1.0 } else { z };
    let z = if y == 2.0 { x * x } else { z };
    if y == 3.0 { x * x * x } else { z }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SPECIAL, ulps};
    use super::*;

    #[test]
    fn accurate_on_a_grid() {
        let mut worst = 0.0f64;
        for i in 0..3000u32 {
            let x = f32::from_bits(0x2000_0000 + i.wrapping_mul(397_379) % 0x4000_0000);
            for j in 0..200 {
                let y = (j as f32 - 100.0) * 0.173;
                worst = worst.max(ulps(pow(x, y), libm::pow(f64::from(x), f64::from(y))));
            }
        }
        println!("pow: worst {worst:.3} ulp");
        assert!(worst < 0.51, "{worst}");
    }

    #[test]
    fn special_values_follow_c99() {
        let exponents = [
            2.0, 3.0, -1.0, -2.0, 4.0, -3.0, 0.5, -0.5, 0.25, 7.0, 1e30, -1e30,
        ];
        for x in SPECIAL.into_iter().chain([-2.0, 2.0, -0.3]) {
            for y in SPECIAL.into_iter().chain(exponents) {
                let want = libm::pow(f64::from(x), f64::from(y));
                let got = pow(x, y);
                assert!(
                    ulps(got, want) <= 1.0,
                    "pow({x:e}, {y:e}) = {got:e}, want {want:e}"
                );
                if !got.is_nan() {
                    assert_eq!(
                        got.is_sign_negative(),
                        (want as f32).is_sign_negative(),
                        "pow({x:e}, {y:e})"
                    );
                }
            }
        }
    }
}
