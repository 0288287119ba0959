//! Tensors as text, in the manner of numpy.
//!
//! Invariant: the text of a tensor has at most [`MOST`] elements, whatever its shape.

use std::fmt;

use convoke_common::error::Result;
use convoke_graph::DType;
use convoke_graph::Tensor as HostTensor;
use half::{bf16, f16};

use super::Tensor;
use super::call::{self, CallOperand};
use super::operand::Operand;
use crate::device::scope::enter;

/// How many elements are shown at either end of an axis that has more than twice as many.
const EDGE: usize = 3;
/// How many elements are shown at most.
const MOST: usize = 1000;
/// How many decimals a float has at most.
const DECIMALS: usize = 4;

/// A tensor's values as text: rows in brackets, columns aligned, the middle of long axes left out.
///
/// ```
/// let t = convoke::HostTensor::from_slice(&[2, 2], &[1f32, -2.5, 3.25, 4.0]).unwrap();
/// assert_eq!(convoke::display(&t).to_string(), "[[ 1.00, -2.50],\n [ 3.25,  4.00]]");
/// ```
pub fn display(tensor: &HostTensor) -> impl fmt::Display + '_ {
    let shape = tensor.shape();
    let edge = edge(shape);
    let mut picked = vec![0usize];
    for length in shape {
        let at = shown(*length, edge);
        let next = picked
            .iter()
            .flat_map(|p| at.iter().map(move |k| p * length + k));
        picked = next.collect();
    }
    ShownElements {
        elements: texts(tensor, &picked),
        shape: shape.to_vec(),
        edge,
    }
}

impl Tensor {
    /// Returns the values as text, see [`display`]. Only the elements that are shown of a large tensor are fetched.
    pub async fn preview(&self) -> Result<String> {
        if self.shape().is_none() {
            self.ready().await?;
        }
        let shape = self.shape().unwrap_or_default().to_vec();
        let corners = self.corners(&shape, edge(&shape))?;
        let shown = corners.fetch::<HostTensor>().await?;
        let all: Vec<usize> = (0..shown.elements()).collect();
        let shown = ShownElements {
            elements: texts(&shown, &all),
            edge: edge(&shape),
            shape,
        };
        Ok(shown.to_string())
    }

    /// The part of the tensor that is shown: the ends of long axes, and short axes as a whole.
    fn corners(&self, shape: &[usize], edge: usize) -> Result<Tensor> {
        let _entered = self.device().map(|d| enter(&d));
        let mut corners = self.clone();
        for (axis, length) in shape.iter().enumerate() {
            if *length <= 2 * edge {
                continue;
            }
            let at: Vec<i64> = shown(*length, edge).iter().map(|k| *k as i64).collect();
            let at = HostTensor::from_slice(&[at.len()], &at)?;
            let operands = [
                call::strict(&corners),
                CallOperand::Strict(Operand::Value(at)),
            ];
            let attrs = call::attrs([("axis", call::int(axis as i64))]);
            corners = call::one("Gather", attrs, &operands)?;
        }
        Ok(corners)
    }
}

/// The text of the elements that are shown, and the tensor's form.
struct ShownElements {
    elements: Vec<String>,
    /// The shape of the whole tensor.
    shape: Vec<usize>,
    edge: usize,
}

/// How many elements are shown at either end of long axes, so that at most [`MOST`] are shown in all; 0 where that is
/// impossible.
fn edge(shape: &[usize]) -> usize {
    let fits = |edge: &usize| {
        // An empty axis shows no element, but the axes around it show their brackets.
        let count = |n: usize, d: &usize| n.checked_mul(shown(*d, *edge).len().max(1));
        shape.iter().try_fold(1, count).is_some_and(|n| n <= MOST)
    };
    (1..=EDGE).rev().find(fits).unwrap_or(0)
}

/// The positions of an axis that are shown.
fn shown(length: usize, edge: usize) -> Vec<usize> {
    match length > 2 * edge {
        true => (0..edge).chain(length - edge..length).collect(),
        false => (0..length).collect(),
    }
}

/// Formats floats alike: with as many decimals as one of them needs, at most [`DECIMALS`], or by powers of ten where
/// some are too large or too small for that.
fn floats(values: &[f64]) -> Vec<String> {
    let finite = || values.iter().filter(|v| v.is_finite());
    let tiny = |v: &f64| *v != 0. && v.abs() < 1e-4;
    if finite().any(|v| v.abs() >= 1e8) || finite().any(tiny) {
        let scientific = values.iter().map(|v| format!("{v:.DECIMALS$e}"));
        return scientific.collect();
    }
    let needed = |v: &f64| {
        let text = format!("{v:.DECIMALS$}");
        let fraction = text.split_once('.').map_or("", |(_, f)| f);
        fraction.trim_end_matches('0').len()
    };
    let decimals = finite().map(needed).max().unwrap_or(0).max(1);
    values.iter().map(|v| format!("{v:.decimals$}")).collect()
}

/// Formats the elements at `picked` as text of one width.
fn texts(tensor: &HostTensor, picked: &[usize]) -> Vec<String> {
    // Elements of narrow dtypes are shown as the numbers that they are.
    let Ok(tensor) = &tensor.widened() else {
        return vec![];
    };
    macro_rules! pick {
        ($t:ty, $f:expr) => {{
            let all = tensor.as_slice::<$t>().unwrap_or(&[]);
            let picked = picked.iter().filter_map(|k| all.get(*k));
            picked.map($f).collect::<Vec<_>>()
        }};
    }
    macro_rules! ints {
        ($t:ty) => {
            pick!($t, |v| v.to_string())
        };
    }
    let texts = match tensor.dtype() {
        DType::F32 => floats(&pick!(f32, |v| f64::from(*v))),
        DType::F64 => floats(&pick!(f64, |v| *v)),
        DType::F16 => floats(&pick!(f16, |v| v.to_f64())),
        DType::BF16 => floats(&pick!(bf16, |v| v.to_f64())),
        DType::I8 => ints!(i8),
        DType::I16 => ints!(i16),
        DType::I32 => ints!(i32),
        DType::I64 => ints!(i64),
        DType::U8 => ints!(u8),
        DType::U16 => ints!(u16),
        DType::U32 => ints!(u32),
        DType::U64 => ints!(u64),
        DType::Bool => pick!(u8, |v| (*v != 0).to_string()),
        DType::Str => match tensor.strings() {
            Ok(all) => picked
                .iter()
                .map(|k| format!("{:?}", all.get(*k)))
                .collect(),
            Err(_) => vec![],
        },
        _ => vec![],
    };
    let width = texts.iter().map(String::len).max().unwrap_or(0);
    texts.iter().map(|t| format!("{t:>width$}")).collect()
}

impl ShownElements {
    /// Writes the elements along the axes from `axis` on.
    fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        axis: usize,
        elements: &mut std::slice::Iter<'_, String>,
    ) -> fmt::Result {
        let Some(length) = self.shape.get(axis) else {
            return f.write_str(elements.next().map_or("", String::as_str));
        };
        let innermost = axis + 1 == self.shape.len();
        // Parts along an axis are separated by as many line breaks as there are axes within the axis.
        let between = match innermost {
            true => ", ".to_owned(),
            false => {
                let lines = "\n".repeat(self.shape.len() - axis - 1);
                format!(",{lines}{}", " ".repeat(axis + 1))
            }
        };
        f.write_str("[")?;
        let at = shown(*length, self.edge).len();
        for k in 0..at {
            if k > 0 {
                f.write_str(&between)?;
            }
            if *length > 2 * self.edge && k == self.edge {
                f.write_str("...")?;
                f.write_str(&between)?;
            }
            self.write(f, axis + 1, elements)?;
        }
        f.write_str("]")
    }
}

impl fmt::Display for ShownElements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.edge == 0 && !self.shape.contains(&0) {
            return f.write_str("[...]");
        }
        self.write(f, 0, &mut self.elements.iter())
    }
}

#[cfg(test)]
mod tests {
    use convoke_graph::Element;

    use super::*;

    fn check<T: Element>(shape: &[usize], values: &[T], want: &str) {
        let tensor = HostTensor::from_slice(shape, values).unwrap();
        assert_eq!(display(&tensor).to_string(), want);
    }

    #[test]
    fn numbers_are_aligned() {
        check(&[], &[7i64], "7");
        check(&[3], &[1i32, -20, 3], "[  1, -20,   3]");
        check(&[2], &[1f32, 2.], "[1.0, 2.0]");
        check(&[3], &[1f32, 0.1, 1. / 3.], "[1.0000, 0.1000, 0.3333]");
        check(&[2], &[1e9f64, 1.], "[1.0000e9, 1.0000e0]");
        check(&[2], &[1e-5f64, 1.], "[1.0000e-5,  1.0000e0]");
        check(&[3], &[f32::NAN, f32::INFINITY, 0.5], "[NaN, inf, 0.5]");
        let bools = HostTensor::from_bools(&[2], &[true, false]).unwrap();
        assert_eq!(display(&bools).to_string(), "[ true, false]");
    }

    #[test]
    fn rows_are_in_brackets() {
        check(&[2, 2], &[1u8, 2, 30, 4], "[[ 1,  2],\n [30,  4]]");
        check(&[2, 1, 2], &[1u8, 2, 3, 4], "[[[1, 2]],\n\n [[3, 4]]]");
        check::<f32>(&[0], &[], "[]");
        check::<f32>(&[2, 0], &[], "[[],\n []]");
    }

    #[test]
    fn the_middle_of_long_axes_is_left_out() {
        let values: Vec<i64> = (0..64).collect();
        check(&[7], &values[..7], "[0, 1, 2, ..., 4, 5, 6]");
        check(&[6], &values[..6], "[0, 1, 2, 3, 4, 5]");
        check(
            &[8, 2],
            &values[..16],
            "[[ 0,  1],\n [ 2,  3],\n [ 4,  5],\n ...,\n [10, 11],\n [12, 13],\n [14, 15]]",
        );
    }

    #[test]
    fn text_is_short_for_any_shape() {
        for shape in [&[8; 3][..], &[8; 5], &[2; 12], &[1; 16]] {
            let tensor = HostTensor::zeros(DType::U8, shape).unwrap();
            let shown = display(&tensor).to_string();
            assert!(shown.matches('0').count() <= MOST, "{shape:?}");
        }
        let nothing = HostTensor::zeros(DType::U8, &[[9; 15].as_slice(), &[0]].concat()).unwrap();
        assert_eq!(display(&nothing).to_string(), "[]");
    }
}
