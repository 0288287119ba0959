//! Matrix products.
//!
//! Every output is the chain `acc = 0; acc = fma(a[m, k], b[k, n], acc)` for k ascending, in f32,
//! followed by the [`Epilogue`].
//!
//! Invariants
//! 1. Packing, thread count, tile, alignment and instruction set never change a bit of an f32 result: a sum that is NaN
//!    is always the canonical NaN.
//! 2. The only allocation is one bounded block for each thread, at its first call.
//!
//! ```text
//! gemm / gemm_batched ── driver: tiles for threads, blocks of K ── micro: 8 × 48 in registers
//!        pack: weights, once        panel: B as the kernel wants it      epilogue: + bias, activation
//! ```

mod activation;
mod columns;
pub(crate) mod driver;
mod epilogue;
mod generic;
mod micro;
mod output;
mod pack;
pub(crate) mod panel;
pub(crate) mod product;
pub(crate) mod scratch;
#[cfg(test)]
pub(crate) mod tests;
mod tile;
mod vector;

pub use activation::Activation;
pub use epilogue::{Addend, Epilogue};
pub(crate) use epilogue::{OutputTile, Post, finish_tile};
pub use generic::{ChainElement, gemm_generic};
pub(crate) use micro::{MR, NR, Piece, RegEpilogue, unroll};
pub(crate) use output::Output;
pub use pack::{
    Elements, PackSource, Packed, PackedA, PackedB, Strided, pack_a_into, pack_b_into, pack_b_on,
    packed_a_len, packed_b_len,
};

pub(crate) use vector::panels_of_row;
pub use vector::product_of_row;

use crate::isa::Isa;
use crate::{Cancelled, Exec};
use panel::BSource;
use product::{ASource, Product};

/// The left-hand operand, `[m, k]`.
#[derive(Debug, Clone, Copy)]
pub enum Lhs<'a> {
    /// A matrix given by strides.
    Strided(Strided<'a, f32>),
    /// A packed matrix of weights.
    Packed(PackedA<'a>),
}

/// The right-hand operand, `[k, n]`.
#[derive(Debug, Clone, Copy)]
pub enum Rhs<'a> {
    /// A matrix given by strides.
    Strided(Strided<'a, f32>),
    /// A packed matrix of weights.
    Packed(PackedB<'a>),
}

/// `c = epilogue(a · b)` with `c` row-major `[m, n]`.
pub fn gemm(
    exec: Exec<'_>,
    (m, n, k): (usize, usize, usize),
    a: Lhs<'_>,
    b: Rhs<'_>,
    c: &mut [f32],
    epilogue: &Epilogue<'_>,
) -> Result<(), Cancelled> {
    gemm_batched(exec, &Batch::ONE, (m, n, k), a, b, c, epilogue)
}

/// The batch dimensions of a product, with each operand's stride along them (0 broadcasts).
/// The output is contiguous: `[dims…, m, n]`.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// The batch dimensions.
    pub dims: &'a [usize],
    /// The left-hand operand's stride along each batch dimension; all are 0 where the operand is packed.
    pub a_strides: &'a [usize],
    /// The right-hand operand's stride along each batch dimension; all are 0 where the operand is packed.
    pub b_strides: &'a [usize],
}

impl Batch<'static> {
    /// The batch of a single product.
    pub const ONE: Batch<'static> = Batch {
        dims: &[],
        a_strides: &[],
        b_strides: &[],
    };
}

impl Batch<'_> {
    pub(crate) fn offset(&self, mut item: usize, strides: &[usize]) -> usize {
        let mut at = 0;
        for (dim, stride) in self.dims.iter().zip(strides).rev() {
            at += item % dim * stride;
            item /= dim;
        }
        at
    }

    fn reach(&self, strides: &[usize]) -> usize {
        self.dims
            .iter()
            .zip(strides)
            .map(|(d, s)| (d - 1) * s)
            .sum()
    }
}

/// `c[i] = epilogue(a[i] · b[i])` for every batch item. The epilogue's addend is shared by all items,
/// its residual has the shape of `c`.
pub fn gemm_batched(
    exec: Exec<'_>,
    batch: &Batch<'_>,
    sizes: (usize, usize, usize),
    a: Lhs<'_>,
    b: Rhs<'_>,
    c: &mut [f32],
    epilogue: &Epilogue<'_>,
) -> Result<(), Cancelled> {
    gemm_on(Isa::detect(), exec, batch, sizes, a, b, c, epilogue)
}

pub(crate) fn gemm_on(
    isa: Isa,
    exec: Exec<'_>,
    batch: &Batch<'_>,
    (m, n, k): (usize, usize, usize),
    a: Lhs<'_>,
    b: Rhs<'_>,
    c: &mut [f32],
    epilogue: &Epilogue<'_>,
) -> Result<(), Cancelled> {
    let items: usize = batch.dims.iter().product();
    assert!(isa.available());
    assert_eq!(
        (batch.a_strides.len(), batch.b_strides.len()),
        (batch.dims.len(), batch.dims.len())
    );
    assert_eq!(
        c.len(),
        items * m * n,
        "output of a product [{m}, {k}] · [{k}, {n}]"
    );
    if let Some(addend) = &epilogue.addend {
        assert!(
            addend.values.holds(m, n),
            "addend of a product with output [{m}, {n}]"
        );
    }
    if let Some(residual) = epilogue.residual {
        assert_eq!(residual.len(), c.len(), "residual of a product");
    }
    if c.is_empty() {
        return exec.check();
    }
    let c = Output(c.as_mut_ptr());
    let a = Left::new(a, m, k, batch);
    let b = Right::new(b, k, n, batch);
    let product = |i: usize| Product {
        isa,
        n,
        k,
        a: a.at(batch.offset(i, batch.a_strides)),
        b: b.at(batch.offset(i, batch.b_strides)),
        c: c.item(i * m * n),
        post: Post::new(
            epilogue,
            if epilogue.residual.is_some() {
                i * m * n
            } else {
                0
            },
        ),
    };
    // SAFETY: the instruction set is available, sizes were checked above and in `Left` and `Right`,
    // and outputs are consecutive pieces of `c`, which is borrowed mutably for the whole call.
    unsafe { driver::run(exec, items, (m, n, k), product) }
}

/// A checked left-hand operand.
struct Left<'a>(Lhs<'a>);

impl<'a> Left<'a> {
    fn new(a: Lhs<'a>, m: usize, k: usize, batch: &Batch<'_>) -> Self {
        let reach = batch.reach(batch.a_strides);
        match a {
            Lhs::Strided(s) => assert!(
                k == 0
                    || s.data
                        .get(reach..)
                        .is_some_and(|data| Strided { data, ..s }.holds(m, k)),
                "left operand [{m}, {k}]"
            ),
            Lhs::Packed(p) => assert_eq!((p.m, p.k, reach), (m, k, 0), "packed left operand"),
        }
        Left(a)
    }

    fn at(&self, offset: usize) -> ASource<'a> {
        match self.0 {
            Lhs::Strided(s) => ASource::Strided {
                data: s.data.as_ptr().wrapping_add(offset),
                row: s.row_stride,
                col: s.col_stride,
            },
            Lhs::Packed(p) => ASource::Packed(p.data),
        }
    }
}

/// A checked right-hand operand.
struct Right<'a>(Rhs<'a>);

impl<'a> Right<'a> {
    fn new(b: Rhs<'a>, k: usize, n: usize, batch: &Batch<'_>) -> Self {
        let reach = batch.reach(batch.b_strides);
        match b {
            Rhs::Strided(s) => assert!(
                k == 0
                    || s.data
                        .get(reach..)
                        .is_some_and(|data| Strided { data, ..s }.holds(k, n)),
                "right operand [{k}, {n}]"
            ),
            Rhs::Packed(p) => assert_eq!((p.k, p.n, reach), (k, n, 0), "packed right operand"),
        }
        Right(b)
    }

    fn at(&self, offset: usize) -> BSource<'a> {
        match self.0 {
            Rhs::Strided(s) => {
                let data = s.data.as_ptr().wrapping_add(offset);
                match (s.row_stride, s.col_stride) {
                    (stride, 1) => BSource::RowMajor { data, stride },
                    (1, stride) => BSource::ColMajor { data, stride },
                    (row, col) => BSource::Strided { data, row, col },
                }
            }
            Rhs::Packed(p) => BSource::Packed(p.data),
        }
    }
}
