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

/// Why `got` does not equal `want`, if so: another dtype or shape, a different integer, or a float beyond the
/// tolerance.
pub fn difference(got: &Tensor, want: &Tensor) -> Option<String> {
    if got.dtype() != want.dtype() || got.shape() != want.shape() {
        return Some(format!("is {got:?}, expected {want:?}"));
    }
    if !got.dtype().is_float() {
        return (got != want).then(|| {
            let size = got.dtype().size();
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
    let (g, w) = (floats(got), floats(want));
    let at = g
        .iter()
        .zip(&w)
        .position(|(g, w)| !close(*g, *w, relative))?;
    Some(format!("differs at {at}: {}, expected {}", g[at], w[at]))
}

fn close(got: f64, want: f64, relative: f64) -> bool {
    // The tolerance around an infinity would be infinite, so infinities must be equal.
    let near = want.is_finite() && (got - want).abs() <= ABSOLUTE + relative * want.abs();
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
        assert_eq!(
            difference(&got, &want).is_none(),
            same,
            "{:?}",
            difference(&got, &want)
        );
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
        check(Tensor::scalar(5i64), Tensor::scalar(5i32), false);
    }
}
