//! The operations on each finished sum. They run in this order, and each is rounded as the separate op rounds:
//! `v = sum`; `v = alpha * v` (unless alpha is 1); `v = v + scale * addend` (two roundings; the product is skipped
//! where scale is 1); `v = v + residual`; `v = activation(v)`.
//!
//! Invariant: whether an operation runs in registers or in a pass over the stored tile changes no bit.

use super::micro::RegEpilogue;
use super::{Activation, Strided};
use crate::element::canonical_nan;
use crate::isa::{Simd, per_isa};

/// A matrix added to the product, `scale * values[row, col]`. Strides of 0 broadcast it.
#[derive(Debug, Clone, Copy)]
pub struct Addend<'a> {
    /// The matrix.
    pub values: Strided<'a, f32>,
    /// The factor of the matrix; a factor of 1 is not multiplied.
    pub scale: f32,
}

/// The operations that follow the product.
#[derive(Debug, Clone, Copy)]
pub struct Epilogue<'a> {
    /// The factor of the product, applied first; a factor of 1 is not multiplied.
    pub alpha: f32,
    /// The matrix that is added next: a bias, or the C of an ONNX Gemm with its beta.
    pub addend: Option<Addend<'a>>,
    /// A tensor of the output's own shape that is added next.
    pub residual: Option<&'a [f32]>,
    /// The activation, applied last.
    pub activation: Activation,
}

impl<'a> Epilogue<'a> {
    /// The epilogue that leaves the product unchanged.
    pub const NONE: Epilogue<'static> = Epilogue {
        alpha: 1.0,
        addend: None,
        residual: None,
        activation: Activation::None,
    };

    /// The epilogue that adds `bias[col]`.
    pub fn col_bias(bias: &'a [f32]) -> Self {
        Epilogue::addend(Strided {
            data: bias,
            row_stride: 0,
            col_stride: 1,
        })
    }

    /// The epilogue that adds `bias[row]`.
    pub fn row_bias(bias: &'a [f32]) -> Self {
        Epilogue::addend(Strided {
            data: bias,
            row_stride: 1,
            col_stride: 0,
        })
    }

    fn addend(values: Strided<'a, f32>) -> Self {
        Epilogue {
            addend: Some(Addend { values, scale: 1.0 }),
            ..Epilogue::NONE
        }
    }

    /// The same epilogue with this activation.
    pub fn activation(self, activation: Activation) -> Self {
        Epilogue { activation, ..self }
    }
}

/// An epilogue over raw memory, for one output matrix.
#[derive(Clone, Copy)]
pub(crate) struct Post {
    alpha: f32,
    addend: *const f32,
    addend_row: usize,
    addend_col: usize,
    scale: f32,
    residual: *const f32,
    activation: Activation,
    /// Whether the linear operations run in registers.
    linear_in_regs: bool,
    /// The activation as bounds, where it runs in registers.
    bounds: Option<(Option<f32>, Option<f32>)>,
}

// SAFETY: the pointers are only read, and come from shared slices that outlive the kernel call.
unsafe impl Sync for Post {}
// SAFETY: as above.
unsafe impl Send for Post {}

impl Post {
    /// The epilogue of the output matrix whose residual starts at `residual_at`.
    pub(crate) fn new(e: &Epilogue<'_>, residual_at: usize) -> Post {
        let null = std::ptr::null();
        let (addend, addend_row, addend_col, scale) = match &e.addend {
            Some(a) => (
                a.values.data.as_ptr(),
                a.values.row_stride,
                a.values.col_stride,
                a.scale,
            ),
            None => (null, 0, 0, 1.0),
        };
        let residual = e.residual.map_or(null, |r| r[residual_at..].as_ptr());
        // The micro kernel can add one value per row, one per column, and one full matrix in registers.
        let vector = matches!((addend_row, addend_col), (1, 0) | (0, 1));
        let full = addend_col == 1 && addend_row > 1 && residual.is_null();
        let linear_in_regs = e.alpha == 1.0 && scale == 1.0 && (addend.is_null() || vector || full);
        let bounds = if linear_in_regs {
            e.activation.as_bounds()
        } else {
            None
        };
        Post {
            alpha: e.alpha,
            addend,
            addend_row,
            addend_col,
            scale,
            residual,
            activation: e.activation,
            linear_in_regs,
            bounds,
        }
    }

    /// The part that runs in registers, for the tile at (`row`, `col`) of a matrix of width `c_row`.
    #[inline]
    pub(crate) fn in_regs(&self, row: usize, col: usize, c_row: usize) -> RegEpilogue {
        let mut reg = RegEpilogue::NONE;
        if self.linear_in_regs {
            if !self.residual.is_null() {
                reg.full = self.residual.wrapping_add(row * c_row + col);
                reg.full_stride = c_row;
            }
            if !self.addend.is_null() {
                match (self.addend_row, self.addend_col) {
                    (1, 0) => reg.row = self.addend.wrapping_add(row),
                    (0, 1) => reg.col = self.addend.wrapping_add(col),
                    (stride, _) => {
                        reg.full = self.addend.wrapping_add(row * stride + col);
                        reg.full_stride = stride;
                    }
                }
            }
        }
        if let Some((lo, hi)) = self.bounds {
            (reg.at_least, reg.at_most) = (lo, hi);
        }
        reg
    }

    /// The same epilogue with no operation in registers, for kernels that store sums without an epilogue.
    #[inline]
    pub(crate) fn all_in_pass(self) -> Post {
        Post {
            linear_in_regs: false,
            bounds: None,
            ..self
        }
    }

    /// Whether the epilogue leaves every value unchanged.
    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.linear_in_regs
            && self.addend.is_null()
            && self.residual.is_null()
            && self.activation == Activation::None
    }

    /// Whether [`finish_tile`] has anything to do after [`Post::in_regs`].
    #[inline]
    pub(crate) fn needs_pass(&self) -> bool {
        !self.linear_in_regs || self.bounds.is_none()
    }
}

/// A tile of the output that was stored.
#[derive(Clone, Copy)]
pub(crate) struct OutputTile {
    /// The tile's first element.
    pub c: *mut f32,
    pub c_row: usize,
    /// The tile's place in the matrix.
    pub row: usize,
    pub col: usize,
    pub rows: usize,
    pub cols: usize,
}

per_isa! {
    /// Applies those operations to a stored tile that [`Post::in_regs`] left out.
    ///
    /// # Safety
    /// `isa` is available; the tile is written by this thread alone; the epilogue's operands cover it.
    pub(crate) unsafe fn finish_tile(post: &Post, tile: OutputTile) => finish_body
}

/// Rows whose ends, which are shorter than a vector, are gathered before the activation is applied to them: number by number
/// it takes as long for one as for a vector.
const ROWS: usize = 8;
/// Values that the ends of as many rows have room for, whatever a vector's length.
const ENDS: usize = ROWS * 16;

#[inline(always)]
unsafe fn finish_body<S: Simd>(post: &Post, t: OutputTile) {
    // SAFETY: row r of the tile, owned by this thread.
    let row = |r: usize| unsafe { std::slice::from_raw_parts_mut(t.c.add(r * t.c_row), t.cols) };
    if !post.linear_in_regs {
        for r in 0..t.rows {
            // SAFETY: the operands cover the tile.
            unsafe { linear(post, row(r), t.row + r, t.col, t.c_row) };
        }
    }
    if post.activation == Activation::None {
        return;
    }
    let rest = t.cols % S::LANES;
    let whole = t.cols - rest;
    let mut ends = [0f32; ENDS];
    for first in (0..t.rows).step_by(ROWS) {
        let count = ROWS.min(t.rows - first);
        // SAFETY: the mask has the lanes of a row's end, and the ends have room for a vector of each row.
        unsafe {
            let lanes = S::mask(0, rest);
            if rest > 0 {
                for i in 0..count {
                    let end = S::load_masked(row(first + i)[whole..].as_ptr(), lanes);
                    S::store(ends[i * S::LANES..].as_mut_ptr(), end);
                }
            }
            let gathered = if rest > 0 { count * S::LANES } else { 0 };
            for i in 0..=count {
                let part = match i < count {
                    true => &mut row(first + i)[..whole],
                    false => &mut ends[..gathered],
                };
                post.activation.apply(part);
            }
            if rest > 0 {
                for i in 0..count {
                    let end = S::load(ends[i * S::LANES..].as_ptr());
                    S::store_masked(row(first + i)[whole..].as_mut_ptr(), end, lanes);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn linear(post: &Post, row: &mut [f32], r: usize, col: usize, c_row: usize) {
    if post.alpha != 1.0 {
        // An infinite sum times zero is not a number.
        row.iter_mut()
            .for_each(|x| *x = canonical_nan(*x * post.alpha));
    }
    // SAFETY: the caller's contract: the addend reaches (r, col..col + len) by its strides, the
    // residual has the layout of C.
    unsafe {
        if !post.addend.is_null() {
            let base = post.addend.add(r * post.addend_row + col * post.addend_col);
            match post.addend_col {
                0 => add_scaled(row, post.scale, |_| *base),
                1 => add_scaled(row, post.scale, |j| *base.add(j)),
                stride => add_scaled(row, post.scale, |j| *base.add(j * stride)),
            }
        }
        if !post.residual.is_null() {
            let base = post.residual.add(r * c_row + col);
            add_scaled(row, 1.0, |j| *base.add(j));
        }
    }
}

#[inline(always)]
fn add_scaled(row: &mut [f32], scale: f32, value: impl Fn(usize) -> f32) {
    if scale == 1.0 {
        for (j, x) in row.iter_mut().enumerate() {
            *x = canonical_nan(*x + value(j));
        }
    } else {
        for (j, x) in row.iter_mut().enumerate() {
            *x = canonical_nan(*x + scale * value(j));
        }
    }
}
