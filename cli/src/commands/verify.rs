//! `--verify`: compares outputs bit by bit with those of one worker, and by value with those that another runtime
//! computed.

use convoke::{ArrayType, DType, HostTensor as Tensor, Outputs};
use convoke_graph::{Element, Printable, printable};
use serde::Serialize;

use crate::commands::model::ExpectedOutput;
use crate::text::output;

/// Largest allowed error of f32 and f64 outputs, relative to the largest expected value.
const TOLERANCE: f64 = 1e-4;
/// Largest allowed error of f16 and bf16 outputs, relative to the largest expected value.
const TOLERANCE_HALF: f64 = 2e-2;

/// The result of the comparisons.
#[derive(Debug, Serialize)]
pub struct Verdict {
    /// Whether one worker gives the same bits; `None` if that could not be compared, see `not_compared`.
    pub bits_equal: Option<bool>,
    /// Comparisons with the arrays `expected/NAME`.
    pub expected: Vec<Comparison>,
    /// Names of outputs whose bits differ.
    #[serde(skip)]
    pub differing: Vec<String>,
    /// Why bits were not compared, if they were not.
    #[serde(skip)]
    pub not_compared: Option<String>,
}

/// The comparison of one output with its expected array.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The output's name.
    pub name: String,
    /// Largest absolute error.
    pub max_abs_err: f64,
    /// Largest absolute expected value.
    pub max_abs: f64,
    /// Whether the output is close enough to the expected array.
    pub ok: bool,
    /// The difference, if it is not a numerical error: for example another shape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Verdict {
    /// Describes in one line what is wrong; `None` if everything agrees.
    pub fn problem(&self) -> Option<String> {
        let mut problems = Vec::new();
        if self.bits_equal == Some(false) {
            let names = printable::list(self.differing.iter().map(String::as_str));
            problems.push(format!(
                "the bits of {names} differ from those on one worker"
            ));
        }
        for c in self.expected.iter().filter(|c| !c.ok) {
            problems.push(match &c.problem {
                Some(p) => format!("output '{}' {p}", Printable(&c.name)),
                None => format!(
                    "output '{}' differs from the expected by {:.2e} of at most {:.2e}",
                    Printable(&c.name),
                    c.max_abs_err,
                    c.max_abs
                ),
            });
        }
        if let Some(why) = &self.not_compared
            && self.expected.is_empty()
        {
            problems.push(format!("nothing could be compared: {why}"));
        }
        (!problems.is_empty()).then(|| problems.join("; "))
    }

    /// Formats the result as a table for people.
    pub fn text(&self) -> String {
        let mut text = String::from("verify\n");
        match (self.bits_equal, &self.not_compared) {
            (Some(true), _) => text.push_str("  same bits as on one worker\n"),
            (Some(false), _) => text.push_str("  NOT the same bits as on one worker\n"),
            (None, Some(why)) => text.push_str(&format!("  not compared with one worker: {why}\n")),
            (None, None) => {}
        }
        if !self.expected.is_empty() {
            let row = |c: &Comparison| {
                let verdict = match (&c.problem, c.ok) {
                    (Some(p), _) => p.clone(),
                    (None, true) => "ok".into(),
                    (None, false) => "TOO FAR".into(),
                };
                let error = format!("{:.2e}", c.max_abs_err);
                vec![c.name.clone(), error, format!("{:.2e}", c.max_abs), verdict]
            };
            let rows: Vec<Vec<String>> = self.expected.iter().map(row).collect();
            let head = ["OUTPUT", "LARGEST ERROR", "LARGEST VALUE", "EXPECTED"];
            text.push_str(&output::table(&head, &[1, 2], &rows));
        }
        text
    }
}

/// Names of outputs that differ in any bit, or are in only one of `a` and `b`.
pub fn differing(a: &Outputs, b: &Outputs) -> Vec<String> {
    let differs = |(name, t): &&(String, Tensor)| b.get(name) != Some(t);
    let alone = |(name, _): &&(String, Tensor)| a.get(name).is_none();
    let all = a.0.iter().filter(differs).chain(b.0.iter().filter(alone));
    all.map(|(n, _)| n.clone()).collect()
}

/// Whether the values of an output can be compared with those of an expected array.
pub fn comparable(outputs: &Outputs, name: &str, want: &ArrayType) -> bool {
    let same = |got: &Tensor| {
        got.shape() == &*want.shape && got.dtype().is_float() == want.dtype.is_float()
    };
    outputs.get(name).is_some_and(same)
}

/// Compares outputs with the arrays expected of them.
pub fn compare(outputs: &Outputs, expected: &[(String, ExpectedOutput)]) -> Vec<Comparison> {
    expected
        .iter()
        .map(|(name, want)| compare_one(name, outputs.get(name), want))
        .collect()
}

fn compare_one(name: &str, got: Option<&Tensor>, want: &ExpectedOutput) -> Comparison {
    let mut c = Comparison {
        name: name.to_owned(),
        max_abs_err: f64::NAN,
        max_abs: f64::NAN,
        ok: false,
        problem: None,
    };
    let (got, want) = match (got, want) {
        (None, _) => {
            c.problem = Some("is expected but not an output of the model".into());
            return c;
        }
        (Some(got), ExpectedOutput::Type(want)) => {
            c.problem = Some(format!("is {}, expected {want}", got.signature()));
            return c;
        }
        (Some(got), ExpectedOutput::Values(want)) => (got, want),
    };
    (c.max_abs_err, c.max_abs) = (0., 0.);
    // Files hold tensors of narrow dtypes in the dtype that they widen to, so widen ours before comparing.
    let (narrow, got, want) = (got.dtype().is_narrow(), &plain(got), &plain(want));
    let (got_values, want_values) = (values(got), values(want));
    for (g, w) in got_values.zip(want_values) {
        // Equal infinities and two NaN are no error. One NaN against a number is an error, and stays the largest.
        let error = if g == w || (g.is_nan() && w.is_nan()) {
            0.
        } else {
            (g - w).abs()
        };
        if error > c.max_abs_err || error.is_nan() {
            c.max_abs_err = error;
        }
        if w.abs() > c.max_abs && w.is_finite() {
            c.max_abs = w.abs();
        }
        if c.max_abs_err.is_nan() {
            break;
        }
    }
    c.ok = match got.dtype() {
        _ if narrow => c.max_abs_err == 0.,
        DType::F32 | DType::F64 => c.max_abs_err <= TOLERANCE * c.max_abs,
        DType::F16 | DType::BF16 => c.max_abs_err <= TOLERANCE_HALF * c.max_abs,
        _ => equal_integers(got, want),
    };
    c
}

fn equal_integers(a: &Tensor, b: &Tensor) -> bool {
    if a.dtype() == b.dtype() {
        return a.bytes() == b.bytes();
    }
    match (a.to_i64s(), b.to_i64s()) {
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

/// The elements of a tensor of a dtype that is not narrow, converted to f64.
fn values(t: &Tensor) -> Box<dyn Iterator<Item = f64> + '_> {
    fn of<'a, T: Element>(
        t: &'a Tensor,
        f: impl Fn(T) -> f64 + 'a,
    ) -> Box<dyn Iterator<Item = f64> + 'a> {
        // The caller matched the dtype, so the slice exists.
        Box::new(
            t.as_slice::<T>()
                .unwrap_or_default()
                .iter()
                .map(move |v| f(*v)),
        )
    }
    match t.dtype() {
        DType::F32 => of(t, |v: f32| v.into()),
        DType::F64 => of(t, |v: f64| v),
        DType::F16 => of(t, half::f16::to_f64),
        DType::BF16 => of(t, half::bf16::to_f64),
        DType::I8 => of(t, |v: i8| v.into()),
        DType::I16 => of(t, |v: i16| v.into()),
        DType::I32 => of(t, |v: i32| v.into()),
        DType::I64 => of(t, |v: i64| v as f64),
        DType::U8 | DType::Bool => of(t, |v: u8| v.into()),
        DType::U16 => of(t, |v: u16| v.into()),
        DType::U32 => of(t, |v: u32| v.into()),
        DType::U64 => of(t, |v: u64| v as f64),
        _ => Box::new(std::iter::empty()),
    }
}

/// Returns the tensor in a dtype whose elements [`values`] can read.
fn plain(t: &Tensor) -> Tensor {
    t.widened().unwrap_or_else(|_| t.clone())
}

/// Formats the first `most` elements for people.
pub fn preview(t: &Tensor, most: usize) -> String {
    let t = &plain(t);
    if let Ok(strings) = t.strings() {
        let mut shown: Vec<String> = strings
            .iter()
            .take(most)
            .map(|s| format!("{s:?}"))
            .collect();
        if strings.len() > most {
            shown.push("…".into());
        }
        return shown.join(" ");
    }
    let mut shown: Vec<String> = values(t)
        .take(most)
        .map(|v| match t.dtype() {
            DType::Bool => (v != 0.).to_string(),
            d if d.is_float() => format!("{v:.5}"),
            _ => format!("{v}"),
        })
        .collect();
    if t.elements() > most {
        shown.push("…".into());
    }
    shown.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(outputs: &Outputs, want: Tensor) -> ExpectedOutput {
        match comparable(outputs, "y", &ArrayType::from(&want)) {
            true => ExpectedOutput::Values(want),
            false => ExpectedOutput::Type(want.into()),
        }
    }

    fn check(got: Tensor, want: Tensor, ok: bool) -> Comparison {
        let outputs = Outputs(vec![("y".into(), got)]);
        let c = compare(&outputs, &[("y".into(), expected(&outputs, want))]);
        assert_eq!(c[0].ok, ok, "{c:?}");
        c[0].clone()
    }

    fn f32s(v: &[f32]) -> Tensor {
        Tensor::from_slice(&[v.len()], v).unwrap()
    }

    #[test]
    fn errors_are_relative_to_the_largest_value() {
        let c = check(f32s(&[1000., 0.09]), f32s(&[1000., 0.]), true);
        assert!((c.max_abs_err - 0.09).abs() < 1e-6 && c.max_abs == 1000.);
        check(f32s(&[1000., 0.2]), f32s(&[1000., 0.]), false);
        check(f32s(&[0.]), f32s(&[0.]), true);
        check(f32s(&[1e-9]), f32s(&[0.]), false);
        check(f32s(&[]), f32s(&[]), true);
        let halves = Tensor::from_slice(&[1], &[half::bf16::from_f32(1.01)]).unwrap();
        check(halves, f32s(&[1.]), true);
    }

    #[test]
    fn what_is_not_a_number_must_be_in_the_same_place() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        check(f32s(&[nan, inf, 1.]), f32s(&[nan, inf, 1.]), true);
        check(f32s(&[nan, 1.]), f32s(&[1., 1.]), false);
        check(f32s(&[1., 1.]), f32s(&[1., nan]), false);
        check(f32s(&[inf]), f32s(&[-inf]), false);
        check(f32s(&[inf, 1.]), f32s(&[5., 1.]), false);
    }

    #[test]
    fn integers_are_equal_and_shapes_and_names_too() {
        let i = |v: &[i64]| Tensor::from_slice(&[v.len()], v).unwrap();
        check(i(&[i64::MAX]), i(&[i64::MAX]), true);
        check(i(&[i64::MAX]), i(&[i64::MAX - 1]), false);
        let c = check(i(&[1]), f32s(&[1.]), false);
        assert_eq!(c.problem.as_deref(), Some("is i64[1], expected f32[1]"));
        check(f32s(&[1.]), f32s(&[1., 1.]), false);
        let none = compare(
            &Outputs(vec![]),
            &[("z".into(), ExpectedOutput::Values(i(&[1])))],
        );
        assert!(!none[0].ok && none[0].problem.is_some());
    }

    #[test]
    fn a_verdict_says_what_is_wrong() {
        let mut v = Verdict {
            bits_equal: Some(true),
            expected: compare(
                &Outputs(vec![("y".into(), f32s(&[2.]))]),
                &[("y".into(), ExpectedOutput::Values(f32s(&[1.])))],
            ),
            differing: vec![],
            not_compared: None,
        };
        assert_eq!(
            v.problem().unwrap(),
            "output 'y' differs from the expected by 1.00e0 of at most 1.00e0"
        );
        assert!(v.text().contains("TOO FAR"));
        v.expected.clear();
        assert_eq!(v.problem(), None);
        (v.bits_equal, v.differing) = (Some(false), vec!["y".into()]);
        assert_eq!(
            v.problem().unwrap(),
            "the bits of y differ from those on one worker"
        );
        (v.bits_equal, v.not_compared) = (None, Some("too small".into()));
        assert_eq!(v.problem().unwrap(), "nothing could be compared: too small");
    }
}
