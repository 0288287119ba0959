//! Products of matrices of bytes as i32 sums, or as the codes that the sums become, by the processor's dot products of
//! bytes.
//!
//! ```text
//! sum over k of (a - za) * (b - zb)  =  sum of a*b  -  za * (sum of b)  -  (zb of the column) * (sum of a - k * za)
//!                                       dot products    once a column       once a row
//! ```
//! The left operand is packed once: its rows as signed bytes, filled with zeros to a multiple of four, and their sums. Rows that
//! are so already ([`is_packed`]) only have their sums taken.
//! The right operand is packed as it is used: a *panel* of 64 columns and at most 1024 rows at a time, as unsigned
//! bytes, four of a column next to each other. A code of the other signedness is moved by 128, as is its zero point. The
//! input of a convolution is such an operand, whose rows are parts of a padded copy ([`image`]).
//!
//! Invariants
//! 1. All arithmetic is that of whole numbers modulo 2^32, in which every order of the sum gives the same bits on every
//!    processor. No dot product saturates: four products of an unsigned and a signed byte fit an i32, and are added to the
//!    sum with wrapping.
//! 2. A tile computes a rectangle of the output that no other tile touches.
//! 3. A thread holds one panel of scratch memory, whatever the sizes; a convolution has its copy besides. Sums that become codes are never stored: their panel
//!    holds all rows, of which there are at most [`DEEPEST`].

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod codings;
mod columns;
mod image;
mod operands;
mod output;
mod portable;
mod product;
mod runs;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tile;
#[cfg(target_arch = "x86_64")]
mod vnni;
#[cfg(target_arch = "x86_64")]
mod vnni_few;
#[cfg(target_arch = "x86_64")]
mod vnni_row;

use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
use codings::RowCodings;
use columns::Columns;
use image::Image;
pub use operands::{
    Bytes, PackedRows, Zeros, is_packed, needs_row_sums, pack_rows, packed_row, sum_rows,
};
use product::Product;
pub use product::{DEEPEST, Destination};
use runs::PANEL;

use crate::Exec;
use crate::conv::ConvShape;
use crate::error::Result;
use crate::gemm::Batch;
use crate::gemm::driver::row_parts;
#[cfg(target_arch = "x86_64")]
use crate::isa::Isa;

/// Least work of a tile, in multiply-adds: some microseconds.
const TILE_WORK: usize = 1 << 20;
/// Least codes of a tile that reads each of them once, from memory: some microseconds.
const TILE_CODES: usize = 1 << 18;
/// Least rows of a tile, among which the packing of a panel is shared.
const TILE_ROWS: usize = 48;
/// To pack a panel of columns takes about as long as multiplying it with this many rows.
const PACKED_ROWS: f64 = 12.0;

/// How tiles are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Means {
    /// By the dot products of AVX-512 VNNI.
    #[cfg(target_arch = "x86_64")]
    Vnni,
    /// By the products of pairs of AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Number by number.
    Portable,
}

impl Means {
    pub(super) const ALL: &[Means] = &[
        #[cfg(target_arch = "x86_64")]
        Means::Vnni,
        #[cfg(target_arch = "x86_64")]
        Means::Avx2,
        Means::Portable,
    ];

    pub(super) fn available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Means::Vnni => Isa::Avx512.available() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Means::Avx2 => Isa::Avx2Fma.available(),
            Means::Portable => true,
        }
    }

    /// The best means of this processor.
    pub(super) fn detect() -> Means {
        static BEST: OnceLock<Means> = OnceLock::new();
        *BEST.get_or_init(|| {
            let mut all = Means::ALL.iter().copied();
            all.find(|means| means.available())
                .unwrap_or(Means::Portable)
        })
    }
}

/// Whether this processor has products of bytes. Without them, sums of f32 products are faster.
pub fn multiplies_bytes() -> bool {
    Means::detect() != Means::Portable
}

/// Runs `items` products of one size, whose right operands have `width` columns; `product(i)` gives the i-th.
///
/// # Safety
/// Operands cover the sizes, outputs are disjoint and owned by the caller, and the processor has the means.
unsafe fn run<'a>(
    means: Means,
    exec: Exec<'_>,
    items: usize,
    (m, width, k): (usize, usize, usize),
    product: impl Fn(usize) -> Product<'a> + Sync,
) -> Result {
    // The last columns may be a panel of their own.
    let few = match means {
        #[cfg(target_arch = "x86_64")]
        Means::Vnni if m > 1 => vnni_few::columns(&product(0), width),
        _ => 0,
    };
    let whole = (width - few).div_ceil(PANEL);
    let panels = whole + few.min(1);
    // Rows are cut only where there are too few panels for the threads, since each tile packs its panels.
    let (threads, others) = (exec.threads(), (items * whole.max(1)).max(1));
    let most = match threads {
        1 => 1,
        _ => (4 * threads).div_ceil(others).min(m.div_ceil(TILE_ROWS)),
    };
    let parts = row_parts(threads, others, most, (m, 1), PACKED_ROWS);
    let rows = m.div_ceil(parts).clamp(TILE_ROWS.min(m.max(1)), m.max(1));
    let blocks = m.div_ceil(rows);
    let work = if m == 1 { TILE_CODES } else { TILE_WORK };
    let grain = (work / (rows * PANEL * k.max(1)).max(1)).max(1);
    exec.tiles(items * blocks * panels, grain, |range| {
        #[cfg(target_arch = "x86_64")]
        let mut codings = RowCodings::new();
        let mut i = range.start;
        while i < range.end {
            if exec.check().is_err() {
                return;
            }
            let (item, block, panel) = (i / (blocks * panels), i / panels % blocks, i % panels);
            let (row, column) = (block * rows, panel * PANEL);
            let rows = row..(row + rows).min(m);
            let product = product(item);
            // One row uses each code of a matrix once, which is then read in its order.
            let streamed = m == 1 && matches!(product.right, Columns::Matrix { .. });
            let together = match streamed {
                true => (panels - panel).min(range.end - i),
                false => 1,
            };
            i += together;
            let columns = match panel < whole {
                true => column..(column + together * PANEL).min(width - few),
                false => width - few..width,
            };
            // SAFETY: the caller's contract; `i` names each rectangle once.
            unsafe {
                match means {
                    #[cfg(target_arch = "x86_64")]
                    Means::Vnni if panel >= whole => {
                        vnni_few::tile(exec, &product, &mut codings, rows, columns);
                    }
                    #[cfg(target_arch = "x86_64")]
                    Means::Vnni if streamed => vnni_row::row(exec, &product, columns),
                    #[cfg(target_arch = "x86_64")]
                    Means::Avx2 if streamed => tile::row::<avx2::Avx2>(exec, &product, columns),
                    #[cfg(target_arch = "x86_64")]
                    Means::Vnni => {
                        tile::tile::<vnni::Vnni>(exec, &product, &mut codings, rows, columns)
                    }
                    #[cfg(target_arch = "x86_64")]
                    Means::Avx2 => {
                        tile::tile::<avx2::Avx2>(exec, &product, &mut codings, rows, columns)
                    }
                    Means::Portable => {
                        for first in columns.clone().step_by(PANEL) {
                            let columns = first..columns.end.min(first + PANEL);
                            portable::tile(exec, &product, rows.clone(), columns);
                        }
                    }
                }
            }
        }
    })?;
    // A tile that saw the cancel flag stopped early and could not report it.
    Ok(exec.check()?)
}

/// `out[i] = left[i] · right[i]` for each item of the batch, with the zero points subtracted before. The strides of
/// the left operand count codes that are not packed.
pub fn product_of_bytes(
    exec: Exec<'_>,
    batch: &Batch<'_>,
    sizes: (usize, usize, usize),
    left: PackedRows<'_>,
    right: (Bytes<'_>, Zeros<'_>),
    out: Destination<'_>,
) -> Result {
    product_by(Means::detect(), exec, batch, sizes, left, right, out)
}

pub(super) fn product_by(
    means: Means,
    exec: Exec<'_>,
    batch: &Batch<'_>,
    (m, n, k): (usize, usize, usize),
    left: PackedRows<'_>,
    (right, zeros): (Bytes<'_>, Zeros<'_>),
    out: Destination<'_>,
) -> Result {
    let items: usize = batch.dims.iter().product();
    assert_eq!(out.len(), items * m * n, "output of a product");
    if out.len() == 0 {
        return Ok(exec.check()?);
    }
    let last = |strides: &[usize]| batch.offset(items - 1, strides);
    let rows = last(batch.a_strides) / k.max(1) + m;
    assert!(rows <= left.sums.len() && rows * packed_row(k) <= left.packed.len());
    assert!(last(batch.b_strides) + k * n <= right.codes.len());
    for (zeros, most) in [(left.zeros, left.sums.len()), (zeros, n)] {
        assert!(!matches!(zeros, Zeros::Each(all) if all.len() != most));
    }
    let start = out.start(n, k);
    let product = |item: usize| Product {
        n,
        k,
        left,
        first: batch.offset(item, batch.a_strides) / k.max(1),
        number: item * m,
        right: Columns::Matrix {
            codes: &right.codes[batch.offset(item, batch.b_strides)..],
            n,
        },
        signed: right.signed,
        zeros,
        out: start.after(item * m * n),
    };
    // SAFETY: the assertions above; the products' outputs are consecutive parts of `out`.
    unsafe { run(means, exec, items, (m, n, k), product) }
}

/// A convolution of codes, as products of its filters by the taps of channels.
pub struct BytesConv {
    shape: ConvShape,
    /// How the input is copied; it is the matrix itself where each output has one tap of its own.
    image: Option<Image>,
}

/// The copy of an input has at most `MOST_COPIED.0` times its codes, plus `MOST_COPIED.1`.
const MOST_COPIED: (usize, usize) = (16, 1 << 16);
/// Most taps of all channels of a group, the place of each of which is kept.
const MOST_TAPS: usize = 1 << 16;

impl BytesConv {
    /// Plans a convolution; `None` where the copy of its input would be much larger than the input, or it has very many taps.
    pub fn new(shape: &ConvShape) -> Option<BytesConv> {
        let own = shape.taps() == 1
            && shape.output == shape.input
            && (shape.pad, shape.stride) == ([0; 3], [1; 3]);
        let input = shape.batch * shape.in_channels * shape.in_plane();
        let (times, more) = MOST_COPIED;
        let most = input.saturating_mul(times).saturating_add(more);
        let image = match own {
            true => None,
            false if shape.chain() > MOST_TAPS => return None,
            false => Some(Image::new(shape, most)?),
        };
        Some(BytesConv {
            shape: *shape,
            image,
        })
    }

    /// The length of the memory that [`conv_of_bytes`] copies the input to.
    pub fn copied(&self) -> usize {
        self.image.as_ref().map_or(0, Image::len)
    }
}

/// The convolution of codes, with the zero points subtracted before. The left operand has a row for each filter, and `copy` has
/// the length that [`BytesConv::copied`] tells.
pub fn conv_of_bytes(
    exec: Exec<'_>,
    conv: &BytesConv,
    input: (Bytes<'_>, i32),
    filters: PackedRows<'_>,
    copy: &mut [u8],
    out: Destination<'_>,
) -> Result {
    conv_by(Means::detect(), exec, conv, input, filters, copy, out)
}

pub(super) fn conv_by(
    means: Means,
    exec: Exec<'_>,
    conv: &BytesConv,
    (input, zero): (Bytes<'_>, i32),
    filters: PackedRows<'_>,
    copy: &mut [u8],
    out: Destination<'_>,
) -> Result {
    let shape = &conv.shape;
    let (groups, plane) = (shape.groups, shape.output.iter().product::<usize>());
    let (m, channels) = (shape.out_channels / groups, shape.in_channels / groups);
    let k = channels * shape.taps();
    let items = shape.batch * groups;
    assert_eq!(out.len(), items * m * plane, "output of a convolution");
    assert_eq!(input.codes.len(), items * channels * shape.in_plane());
    assert_eq!(filters.sums.len(), shape.out_channels);
    assert_eq!(filters.packed.len(), shape.out_channels * packed_row(k));
    assert!(!matches!(filters.zeros, Zeros::Each(all) if all.len() != shape.out_channels));
    if let Destination::Codes(_, how) = &out {
        assert!(how.is_of_rows(), "codes of filters");
    }
    if out.len() == 0 {
        return Ok(exec.check()?);
    }
    let (codes, group, width) = match &conv.image {
        None => (input.codes, channels * plane, plane),
        Some(image) => {
            image.copy(&exec, input.codes, zero as u8, copy)?;
            (&*copy, image.group(), image.width)
        }
    };
    let start = out.start(plane, k);
    let columns = |codes| match &conv.image {
        None => Columns::Matrix { codes, n: plane },
        Some(image) => Columns::Image { image, codes },
    };
    let product = |item: usize| Product {
        n: plane,
        k,
        left: filters,
        first: item % groups * m,
        number: item * m,
        right: columns(&codes[item * group..(item + 1) * group]),
        signed: input.signed,
        zeros: Zeros::One(zero),
        out: start.after(item * m * plane),
    };
    // SAFETY: the assertions above; the products' outputs are consecutive parts of `out`, and the runs of panels are disjoint.
    unsafe { run(means, exec, items, (m, width, k), product) }
}
