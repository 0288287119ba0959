//! Products with weights that stay packed: each block of consecutive weights of a column has a scale and a zero point.
//!
//! ```text
//! codes, column by column ── CodeBuffer ──> codes of 64 columns, row by row ── numbers ──> panel of B ── gemm
//!     │ pack_codes, once                        ↑                          └── chains of one row
//!     └──> packed codes, row by row ────────────┘
//! ```
//!
//! Invariants
//! 1. A weight is `(code - zero) * scale`, rounded once. An output is the chain over k of the f32 product
//!    (`crate::gemm`), so that its bits are those of a product with the weights as numbers, for one row as for many.

mod coded;
mod codes;
mod row;
mod weights;

#[cfg(test)]
pub(super) use coded::product_by;
pub use coded::{CodedRows, code_rows, product_of_codes};
use codes::{CodeBuffer, DEPTH};
pub use weights::{BlockWeights, ZeroPoints};
use weights::{COLUMNS, packed_len};

use crate::Exec;
use crate::error::Result;
use crate::gemm::driver;
use crate::gemm::panel::BSource;
use crate::gemm::product::{ASource, Product};
use crate::gemm::{Epilogue, Output, Post};
use crate::isa::Isa;
use crate::split::tiles;

/// Lays out codes of `bits` bits, `rows` for each of `n` columns, column by column, row by row: byte i of a row of 64 columns
/// holds those of columns i, i + 64 / c and so on, c being the codes of a byte, from its low bits on. Signed codes have the
/// middle added. Columns after the last one are zeros.
pub fn pack_codes(
    exec: &Exec,
    codes: &[u8],
    (n, rows, bits, signed): (usize, usize, usize, bool),
    to: &mut [u8],
) -> Result {
    let w = BlockWeights {
        k: rows,
        n,
        bits,
        signed,
        packed: false,
        // A block of all rows, which take whole bytes.
        block: rows.max(1),
        codes,
        scales: &[],
        zeros: ZeroPoints::Middle,
    };
    assert!((rows * bits).is_multiple_of(8), "columns are whole bytes");
    assert_eq!(codes.len(), n * rows * bits / 8, "codes");
    assert_eq!(to.len(), packed_len(bits, rows, n), "packed codes");
    let strip = COLUMNS * bits / 8 * rows;
    Ok(tiles(exec, to, strip, 1, |range, to| {
        let mut buffer = CodeBuffer::new();
        for (strip, to) in range.zip(to.chunks_mut(strip.max(1))) {
            let columns = strip * COLUMNS..n.min((strip + 1) * COLUMNS);
            let row = COLUMNS * bits / 8;
            for (first, to) in (0..rows).step_by(DEPTH).zip(to.chunks_mut(DEPTH * row)) {
                let own = first..rows.min(first + DEPTH);
                let codes = buffer.read(&w, columns.clone(), own);
                codes::join(codes, columns.len(), bits, to);
            }
        }
    })?)
}

/// `y = a · weights + bias`, with `a [m, k]` and `y [m, n]`.
pub fn product_of_blocks(
    exec: &Exec,
    a: &[f32],
    m: usize,
    w: &BlockWeights<'_>,
    bias: Option<&[f32]>,
    y: &mut [f32],
) -> Result {
    w.check();
    assert_eq!((a.len(), y.len()), (m * w.k, m * w.n), "operand and result");
    assert!(bias.is_none_or(|bias| bias.len() == w.n), "bias");
    if y.is_empty() {
        return Ok(exec.check()?);
    }
    if m == 1 {
        return row::product(exec, a, w, bias, y);
    }
    let epilogue = bias.map_or(Epilogue::NONE, Epilogue::col_bias);
    let c = Output(y.as_mut_ptr());
    let product = |_| Product {
        isa: Isa::detect(),
        n: w.n,
        k: w.k,
        a: ASource::Strided {
            data: a.as_ptr(),
            row: w.k,
            col: 1,
        },
        b: BSource::Blocks { weights: w },
        c: c.item(0),
        post: Post::new(&epilogue, 0),
    };
    // SAFETY: the instruction set is available, the sizes were checked above, and `y` is borrowed mutably for the whole call.
    Ok(unsafe { driver::run(*exec, 1, (m, w.n, w.k), product) }?)
}
