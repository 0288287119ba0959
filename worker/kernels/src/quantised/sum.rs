//! The sum of two tensors of codes as codes, in one pass.

use super::linear::clamped;
use super::numbers::code_of;
use crate::Exec;
use crate::cast::CastTo;
use crate::element::Element;
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::split::{GRAIN, tiles};

/// Scale and zero point of an operand, whose numbers are `(code - zero) * scale`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CodeParameters {
    pub scale: f32,
    pub zero: f32,
}

/// How sums of codes become codes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SumOfCodes {
    pub operands: [CodeParameters; 2],
    /// Whether sums below zero become zero first.
    pub relu: bool,
    pub result: CodeParameters,
    /// The least and the greatest code.
    pub range: (f32, f32),
}

multiversion! {
    fn sums<A: CastTo<f32>, B: CastTo<f32>>(a: &[A], b: &[B], how: &SumOfCodes, y: &mut [u8]) {
        let n = y.len().min(a.len()).min(b.len());
        let (a, b, y) = (&a[..n], &b[..n], &mut y[..n]);
        let ([p, q], to) = (how.operands, how.result);
        let ((low, high), relu) = (how.range, how.relu);
        for i in 0..n {
            let x = (a[i].cast() - p.zero) * p.scale;
            let sum = x + (b[i].cast() - q.zero) * q.scale;
            let sum = if relu && sum < 0.0 { 0.0 } else { sum };
            y[i] = code_of(clamped(sum / to.scale, to.zero, low, high));
        }
    }
}

/// `y = round(activation((a - zero) * scale + (b - zero) * scale) / scale) + zero`, the bits of codes of eight bits, with the
/// rounding of the separate functions. The operands have as many elements as the result.
pub fn add_codes<A: Element + CastTo<f32>, B: Element + CastTo<f32>>(
    exec: &Exec,
    (a, b): (&[A], &[B]),
    how: &SumOfCodes,
    y: &mut [u8],
) -> Result {
    assert!(
        a.len() == y.len() && b.len() == y.len(),
        "operands of a sum"
    );
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        sums(&a[range.clone()], &b[range], how, part);
    })?)
}
