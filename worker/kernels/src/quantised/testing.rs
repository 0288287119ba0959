//! Codes for tests, and convolutions of them number by number.

use super::{Bytes, Zeros};
use crate::conv::ConvShape;

/// Codes that take all values, extremes often.
pub(super) fn codes(n: usize, seed: usize) -> Vec<u8> {
    let code = |i: usize| match i % 7 {
        0 => 255,
        3 => 128,
        5 => 0,
        _ => (i * (2 * seed + 89) % 257) as u8,
    };
    (0..n).map(code).collect()
}

pub(super) fn number(code: u8, signed: bool) -> i64 {
    match signed {
        true => i64::from(code as i8),
        false => i64::from(code),
    }
}

/// The sums of a convolution.
pub(super) fn convolved(
    s: &ConvShape,
    (x, zero): (Bytes<'_>, i32),
    (w, zeros): (Bytes<'_>, Zeros<'_>),
) -> Vec<i32> {
    let ([_, oh, ow], [_, kh, kw]) = (s.output, s.kernel);
    let plane: usize = s.output.iter().product();
    let sum = |at: usize| {
        let (item, filter) = (at / plane / s.out_channels, at / plane % s.out_channels);
        let (place, group) = (at % plane, filter / s.group_out());
        let place = [place / ow / oh, place / ow % oh, place % ow];
        let term = |t: usize| {
            let (channel, tap) = (t / s.taps(), t % s.taps());
            let tap = [tap / (kh * kw), tap / kw % kh, tap % kw];
            let mut from = item * s.in_channels + group * s.group_in() + channel;
            for d in 0..3 {
                let padded = place[d] * s.stride[d] + tap[d] * s.dilation[d];
                match padded.checked_sub(s.pad[d]).filter(|at| *at < s.input[d]) {
                    Some(at) => from = from * s.input[d] + at,
                    None => return 0,
                }
            }
            let tap = number(w.codes[filter * s.chain() + t], w.signed);
            let number = number(x.codes[from], x.signed) - i64::from(zero);
            number * (tap - i64::from(zeros.at(filter)))
        };
        (0..s.chain()).map(term).sum::<i64>() as i32
    };
    (0..s.output_len()).map(sum).collect()
}
