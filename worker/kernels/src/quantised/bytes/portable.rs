//! Tiles number by number: what the other means are compared with.

use std::ops::Range;

use super::columns::Panel;
use super::operands::packed_row;
use super::output::Block;
use super::product::Product;
use super::runs::PANEL;
use crate::Exec;

/// Computes a rectangle of the output, or stops early where the step was cancelled.
///
/// # Safety
/// The operands cover the sizes, and nobody else touches the rectangle.
pub(super) unsafe fn tile(
    exec: Exec<'_>,
    p: &Product<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
) {
    let panel = Panel::new(p.right, columns.clone());
    let runs = panel.runs();
    if runs.as_slice().is_empty() {
        return;
    }
    let (width, mut output) = (packed_row(p.k), Block::new());
    for row in rows {
        let left = &p.left.packed[(p.first + row) * width..][..width];
        let (zero, rest) = p.row_zero(row);
        let sums = &mut output.sums[0];
        sums.fill(0);
        for (k, a) in left.iter().enumerate().take(p.k) {
            if k % PANEL == 0 && exec.check().is_err() {
                return;
            }
            let a = i32::from(*a as i8).wrapping_sub(zero);
            let mut buffer = [0; PANEL];
            for (sum, code) in sums.iter_mut().zip(panel.row(k, &mut buffer)) {
                let number = match p.signed {
                    true => i32::from(*code as i8),
                    false => i32::from(*code),
                };
                *sum = sum.wrapping_add(a.wrapping_mul(number));
            }
        }
        for (j, sum) in columns.clone().zip(sums) {
            *sum = sum.wrapping_sub(p.zeros.at(j).wrapping_mul(rest));
        }
        output.make_codes(p, runs.as_slice(), (row, 1), columns.len());
        // SAFETY: the row is of the rectangle, which the caller owns.
        unsafe { output.write(p, runs.as_slice(), (row, 1), false) };
    }
}
