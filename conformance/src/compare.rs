//! Comparison of an output with the one that a case expects, by the rules of onnx's own test runner, except for f16.
//! The runner's tolerance of 1e-3 for f16 is smaller than the effect of rounding one intermediate result differently,
//! so two units in the last place are allowed instead, as the runner allows for bf16.

use convoke_graph::{DType, Element, Tensor};

/// Relative tolerance of floats.
const RELATIVE: f64 = 1e-3;
/// Relative tolerance of f16: two units in the last place.
const RELATIVE_F16: f64 = 1.0 / 512.0;
/// Relative tolerance of bf16: two units in the last place.
const RELATIVE_BF16: f64 = 1.0 / 64.0;
/// Absolute tolerance of floats.
const ABSOLUTE: f64 = 1e-7;
/// Absolute tolerance of floats that ONNX Runtime computed.
const ABSOLUTE_COMPUTED: f64 = 1e-5;

/// Why `got` has another dtype or shape than `want`, if so.
pub fn other_type(got: &Tensor, want: &Tensor) -> Option<String> {
    let same = got.dtype() == want.dtype() && got.shape() == want.shape();
    (!same).then(|| format!("is {got:?}, expected {want:?}"))
}

/// Cases whose expected values are not exact to [`ABSOLUTE`], with what they are exact to.
const INEXACT: &[(&str, f64)] = &[
    // numpy transforms complex64 in f32, which leaves 2e-7 where the result is zero.
    ("test_dft_inverse", 1e-6),
    ("test_dft_inverse_opset19", 1e-6),
];

/// Cases whose codes ONNX Runtime rounds in another order, so that they may be one higher or lower.
const WITHIN_ONE_CODE: &str = "quantised_near_";

/// The absolute tolerance of a case.
pub fn absolute(case: &str) -> f64 {
    if case.starts_with(WITHIN_ONE_CODE) {
        return 1.0;
    }
    let inexact = INEXACT.iter().find(|(name, _)| *name == case);
    // The expected values of these cases are computed in f32, where sums of small numbers cancel.
    let computed = match case.starts_with("contrib_") {
        true => ABSOLUTE_COMPUTED,
        false => ABSOLUTE,
    };
    inexact.map_or(computed, |(_, tolerance)| *tolerance)
}

/// Why `got` does not equal `want`, if so: another dtype or shape, a different integer, or a float beyond the
/// tolerance.
pub fn difference(got: &Tensor, want: &Tensor, absolute: f64) -> Option<String> {
    if let Some(other) = other_type(got, want) {
        return Some(other);
    }
    if got.dtype().is_narrow() {
        let wide = |t: &Tensor| t.widened().unwrap_or_else(|_| t.clone());
        return difference(&wide(got), &wide(want), absolute);
    }
    if let (Ok(g), Ok(w)) = (got.strings(), want.strings()) {
        let at = g.iter().zip(w.iter()).position(|(g, w)| g != w)?;
        return Some(format!(
            "differs at {at}: {:?}, expected {:?}",
            g.get(at),
            w.get(at)
        ));
    }
    if !got.dtype().is_float() {
        if absolute >= 1.0
            && let (Some(got), Some(want)) = (got.to_i64s(), want.to_i64s())
        {
            let far = |(g, w): (&i64, &i64)| g.abs_diff(*w) as f64 > absolute;
            let at = got.iter().zip(&want).position(far)?;
            return Some(format!(
                "differs at {at}: {}, expected {}",
                got[at], want[at]
            ));
        }
        return (got != want).then(|| {
            let size = got.dtype().width();
            let at = got
                .bytes()
                .chunks(size)
                .zip(want.bytes().chunks(size))
                .position(|(g, w)| g != w);
            let ints = |t: &Tensor| t.to_i64s().zip(at).map(|(v, at)| v[at]);
            format!(
                "differs at {}: {:?}, expected {:?}",
                at.unwrap_or(0),
                ints(got),
                ints(want)
            )
        });
    }
    let relative = match got.dtype() {
        DType::F16 => RELATIVE_F16,
        DType::BF16 => RELATIVE_BF16,
        _ => RELATIVE,
    };
    // Where sums cancel, a half has two exact digits less than an f32.
    let absolute = match got.dtype() {
        DType::F16 | DType::BF16 => absolute * 100.0,
        _ => absolute,
    };
    let (g, w) = (floats(got), floats(want));
    let at = g
        .iter()
        .zip(&w)
        .position(|(g, w)| !close(*g, *w, relative, absolute))?;
    Some(format!("differs at {at}: {}, expected {}", g[at], w[at]))
}

fn close(got: f64, want: f64, relative: f64, absolute: f64) -> bool {
    // The tolerance around an infinity would be infinite, so infinities must be equal.
    let near = want.is_finite() && (got - want).abs() <= absolute + relative * want.abs();
    near || got == want || (got.is_nan() && want.is_nan())
}

fn floats(t: &Tensor) -> Vec<f64> {
    fn of<T: Element>(t: &Tensor, wide: fn(T) -> f64) -> Vec<f64> {
        t.as_slice::<T>()
            .unwrap_or_default()
            .iter()
            .map(|x| wide(*x))
            .collect()
    }
    match t.dtype() {
        DType::F32 => of::<f32>(t, f64::from),
        DType::F64 => of::<f64>(t, |x| x),
        DType::F16 => of::<half::f16>(t, f64::from),
        _ => of::<half::bf16>(t, f64::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(got: Tensor, want: Tensor, same: bool) {
        let found = difference(&got, &want, absolute("test_any"));
        assert_eq!(found.is_none(), same, "{found:?}");
    }

    #[test]
    fn floats_have_a_tolerance_and_integers_none() {
        let t = |v: &[f32]| Tensor::from_slice(&[v.len()], v).unwrap();
        check(
            t(&[1.0, f32::NAN, f32::INFINITY]),
            t(&[1.0005, f32::NAN, f32::INFINITY]),
            true,
        );
        check(t(&[1.0]), t(&[1.01]), false);
        check(t(&[f32::INFINITY]), t(&[f32::NEG_INFINITY]), false);
        check(t(&[1.0]), t(&[f32::NAN]), false);
        check(Tensor::scalar(5i64), Tensor::scalar(6i64), false);
        let near = |want: u8| {
            difference(
                &Tensor::scalar(5u8),
                &Tensor::scalar(want),
                absolute("quantised_near_1"),
            )
        };
        assert!(near(6).is_none() && near(4).is_none() && near(7).is_some());
        check(Tensor::scalar(5i64), Tensor::scalar(5i32), false);
    }
}
