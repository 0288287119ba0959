//! One matrix product, as the driver cuts it into tiles.

use super::epilogue::Post;
use super::pack::Elements;
use super::panel::BSource;
use crate::isa::Isa;

/// The left-hand operand.
#[derive(Clone, Copy)]
pub(crate) enum ASource<'a> {
    /// Panels in the layout of [`super::pack_a_into`].
    Packed(Elements<'a>),
    /// Element (m, k) at `m * row + k * col`.
    Strided {
        data: *const f32,
        row: usize,
        col: usize,
    },
}

/// One matrix product with resolved addresses and strides.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub isa: Isa,
    pub n: usize,
    pub k: usize,
    pub a: ASource<'a>,
    pub b: BSource<'a>,
    /// The output, row-major and `n` wide.
    pub c: *mut f32,
    pub post: Post,
}

// SAFETY: A and B are only read; tiles of C are disjoint.
unsafe impl Sync for Product<'_> {}
