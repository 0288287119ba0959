//! Dot products number by number: what the other means are compared with.

use super::super::codes::CodeRow;
use super::{COLUMNS, Dots, Group, Nibbles, Part, Sums, TOGETHER, ZeroKind};

pub(super) struct Portable;

impl Dots for Portable {
    const ROWS: usize = 1;

    unsafe fn group(codes: &[[CodeRow; TOGETHER]], to: &mut [Group]) {
        for (rows, to) in codes.iter().zip(to) {
            for (i, row) in rows.iter().enumerate() {
                for (column, code) in row.iter().enumerate() {
                    to[column * TOGETHER + i] = *code;
                }
            }
        }
    }

    unsafe fn group_nibbles(codes: &[[Nibbles; TOGETHER]], to: &mut [Group]) {
        for (rows, to) in codes.iter().zip(to) {
            for (i, row) in rows.iter().enumerate() {
                for (column, byte) in row.iter().enumerate() {
                    to[column * TOGETHER + i] = byte & 15;
                    to[(column + COLUMNS / 2) * TOGETHER + i] = byte >> 4;
                }
            }
        }
    }

    unsafe fn add(part: &Part<'_>, row: usize, sums: &mut [Sums]) {
        for (r, sums) in sums.iter_mut().enumerate() {
            let (codes, scales, code_sums) = part.row(row + r);
            let (codes, _) = codes.as_chunks::<TOGETHER>();
            for (b, of) in part.of.iter().enumerate() {
                let own = b * part.groups..(b + 1) * part.groups;
                for (column, sum) in sums.iter_mut().enumerate() {
                    let mut whole = match part.zeros {
                        ZeroKind::One(zero) => -zero * code_sums[b],
                        ZeroKind::Codes => -of.codes[column] * code_sums[b],
                        ZeroKind::Numbers => 0,
                    };
                    for (group, left) in part.packed[own.clone()].iter().zip(&codes[own.clone()]) {
                        let weights = &group[column * TOGETHER..][..TOGETHER];
                        for (weight, left) in weights.iter().zip(left) {
                            whole += i32::from(*weight) * i32::from(*left as i8);
                        }
                    }
                    let mut term = whole as f32;
                    if part.zeros == ZeroKind::Numbers {
                        term = (-of.numbers[column]).mul_add(code_sums[b] as f32, term);
                    }
                    *sum = (term * of.scales[column]).mul_add(scales[b], *sum);
                }
            }
        }
    }
}
