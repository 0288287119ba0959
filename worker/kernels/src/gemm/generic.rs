//! Matrix products in types that are seldom multiplied, such as f64 and integers: the same chain, without micro
//! kernels.

use super::{Batch, Output, Strided};
use crate::multiversion::multiversion;
use crate::{Cancelled, Exec};

/// An element type with a multiply-add: fused for floats, wrapping for integers.
pub trait ChainElement: Copy + Send + Sync {
    /// The initial value of the chain.
    const ZERO: Self;
    /// One multiply-add of the chain: `a * b + acc`.
    fn chain(a: Self, b: Self, acc: Self) -> Self;
}

macro_rules! chain_float {
    ($($t:ty)*) => {$(
        impl ChainElement for $t {
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn chain(a: Self, b: Self, acc: Self) -> Self {
                a.mul_add(b, acc)
            }
        }
    )*};
}
macro_rules! chain_int {
    ($($t:ty)*) => {$(
        impl ChainElement for $t {
            const ZERO: Self = 0;
            #[inline(always)]
            fn chain(a: Self, b: Self, acc: Self) -> Self {
                a.wrapping_mul(b).wrapping_add(acc)
            }
        }
    )*};
}
chain_float!(f32 f64);
chain_int!(i8 i16 i32 i64 u8 u16 u32 u64);

/// Multiply-adds per tile, and between two checks of the cancel flag: a few milliseconds in the slowest case.
const TILE_WORK: usize = 1 << 18;

/// `c[i] = a[i] · b[i]` for every batch item, `c` contiguous `[dims…, m, n]`.
pub fn gemm_generic<T: ChainElement>(
    exec: Exec<'_>,
    batch: &Batch<'_>,
    (m, n, k): (usize, usize, usize),
    a: Strided<'_, T>,
    b: Strided<'_, T>,
    c: &mut [T],
) -> Result<(), Cancelled> {
    let items: usize = batch.dims.iter().product();
    assert_eq!(
        c.len(),
        items * m * n,
        "output of a product [{m}, {k}] · [{k}, {n}]"
    );
    if c.is_empty() {
        return exec.check();
    }
    let rows_per_tile = (TILE_WORK / (n * k.max(1))).max(1);
    // A row is computed in pieces of `columns` columns, and of `depth` multiply-adds of their chains.
    let columns = n.min(TILE_WORK);
    let depth = TILE_WORK / columns;
    let out = Output(c.as_mut_ptr());
    exec.tiles(items * m, rows_per_tile, |rows| {
        for r in rows {
            // SAFETY: row r of the output, which this tile alone has.
            let row = unsafe { std::slice::from_raw_parts_mut(out.item(r * n), n) };
            let a_at = batch.offset(r / m, batch.a_strides) + r % m * a.row_stride;
            let b_at = batch.offset(r / m, batch.b_strides);
            row.fill(T::ZERO);
            for (piece, part) in row.chunks_mut(columns).enumerate() {
                let b_at = b_at + piece * columns * b.col_stride;
                for first in (0..k).step_by(depth) {
                    if exec.check().is_err() {
                        return;
                    }
                    let steps = depth.min(k - first);
                    let a_at = a_at + first * a.col_stride;
                    product_row(part, a, a_at, b, b_at + first * b.row_stride, steps);
                }
            }
        }
    })?;
    // A tile that stopped in the middle left garbage.
    exec.check()
}

multiversion! {
    /// `row += a[a_at..] · b[b_at..]`: adds `k` multiply-adds to the chains of a part of one output row.
    fn product_row<T: ChainElement>(
        row: &mut [T], a: Strided<'_, T>, a_at: usize, b: Strided<'_, T>, b_at: usize, k: usize,
    ) {
        for i in 0..k {
            let x = a.data[a_at + i * a.col_stride];
            let b_row = b_at + i * b.row_stride;
            if b.col_stride == 1 {
                for (y, &w) in row.iter_mut().zip(&b.data[b_row..]) {
                    *y = T::chain(x, w, *y);
                }
            } else {
                for (j, y) in row.iter_mut().enumerate() {
                    *y = T::chain(x, b.data[b_row + j * b.col_stride], *y);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn integers_wrap_and_batches_broadcast() {
        let cancel = AtomicBool::new(false);
        let a = [i32::MAX, 2, 3, 4];
        let b = [2, 0, 0, 1];
        let batch = Batch {
            dims: &[2],
            a_strides: &[2],
            b_strides: &[0],
        };
        let mut c = [0; 4];
        let (a, b) = (Strided::row_major(&a, 2), Strided::row_major(&b, 2));
        gemm_generic(Exec::single(&cancel), &batch, (1, 2, 2), a, b, &mut c).unwrap();
        assert_eq!(c, [-2, 2, 6, 4]);
    }

    #[test]
    fn doubles_follow_the_chain_in_any_layout() {
        let cancel = AtomicBool::new(false);
        let (m, n, k) = (5, 7, 9);
        let a: Vec<f64> = (0..m * k).map(|i| (i as f64).sin()).collect();
        let b: Vec<f64> = (0..n * k).map(|i| (i as f64).cos()).collect();
        let mut c = vec![0.0; m * n];
        let (sa, sb) = (Strided::col_major(&a, m), Strided::col_major(&b, k));
        gemm_generic(
            Exec::single(&cancel),
            &Batch::ONE,
            (m, n, k),
            sa,
            sb,
            &mut c,
        )
        .unwrap();
        for r in 0..m {
            for j in 0..n {
                let want = (0..k).fold(0.0, |acc, i| a[i * m + r].mul_add(b[j * k + i], acc));
                assert_eq!(c[r * n + j].to_bits(), want.to_bits());
            }
        }
    }

    #[test]
    fn one_huge_row_stops_when_it_is_cancelled() {
        // A deep product and a wide one, each computed in several pieces.
        for (n, k) in [(3, (1 << 24) + 5), ((1 << 19) + 3, 37)] {
            let (a, b) = (vec![3i32; k], vec![5i32; k * n]);
            let (sa, sb) = (Strided::row_major(&a, k), Strided::row_major(&b, n));
            let mut c = vec![1; n];
            let batch = Batch::ONE;
            gemm_generic(crate::testing::exec(), &batch, (1, n, k), sa, sb, &mut c).unwrap();
            assert!(
                c.iter().all(|c| *c == 15 * k as i32),
                "[1, {k}] · [{k}, {n}]"
            );
            crate::testing::check_stops(|exec| {
                let mut c = vec![0; n];
                Ok(gemm_generic(*exec, &batch, (1, n, k), sa, sb, &mut c)?)
            });
        }
    }
}
