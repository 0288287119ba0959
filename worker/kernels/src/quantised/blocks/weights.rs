//! Weights whose columns are quantised in blocks, and how they become numbers.

use std::ops::Range;

use convoke_functions::packed;

use super::codes::{CodeBuffer, CodeRow, DEPTH, read_packed};
use crate::gemm::{NR, Piece};
use crate::multiversion::multiversion;

/// Columns whose codes are read together: a panel of B, rounded up to words.
pub(super) const COLUMNS: usize = 64;

/// Where the zero points of blocks are.
#[derive(Debug, Clone, Copy)]
pub enum ZeroPoints<'a> {
    /// All are the middle of the codes.
    Middle,
    /// They are codes, packed for each column, which begins with a whole byte.
    Packed(&'a [u8]),
    /// They are numbers, as the scales are.
    Numbers(&'a [f32]),
    /// Those of signed codes.
    Signed(&'a [i8]),
}

/// The weights of a product, `[k, n]`, of which each column is quantised in blocks.
#[derive(Debug, Clone, Copy)]
pub struct BlockWeights<'a> {
    /// The size of the weights.
    pub k: usize,
    pub n: usize,
    /// Bits of a code: 2, 4 or 8.
    pub bits: usize,
    /// Whether codes are numbers in two's complement, whose middle is 0. Packed ones are not.
    pub signed: bool,
    /// Whether [`pack_codes`](super::pack_codes) has laid out the codes, and zero points that are codes. All other
    /// parameters lie block by block then.
    pub packed: bool,
    /// Weights in a block, which take whole bytes.
    pub block: usize,
    /// The codes: for each column its blocks, the last of which is as long as the others.
    pub codes: &'a [u8],
    /// The scale of each block, column by column, or block by block where the codes are packed.
    pub scales: &'a [f32],
    pub zeros: ZeroPoints<'a>,
}

/// Bytes of `rows` packed codes for each of `n` columns.
pub(super) fn packed_len(bits: usize, rows: usize, n: usize) -> usize {
    n.next_multiple_of(COLUMNS) * bits / 8 * rows
}

/// The scales and zero points of one block of some columns.
#[derive(Clone, Copy)]
pub(super) struct BlockParameters {
    pub zeros: [f32; COLUMNS],
    pub scales: [f32; COLUMNS],
}

impl BlockParameters {
    /// Those by which every code is 0.
    pub const NONE: BlockParameters = BlockParameters {
        zeros: [0.0; COLUMNS],
        scales: [0.0; COLUMNS],
    };
}

impl BlockWeights<'_> {
    pub(super) fn blocks(&self) -> usize {
        self.k.div_ceil(self.block)
    }

    /// Bytes of the codes of a column.
    pub(super) fn column_bytes(&self) -> usize {
        self.blocks() * (self.block * self.bits / 8)
    }

    pub(super) fn check(&self) {
        assert!([2, 4, 8].contains(&self.bits), "bits of a code");
        assert!(
            self.block > 0 && (self.block * self.bits).is_multiple_of(8),
            "size of a block"
        );
        let blocks = self.blocks();
        let codes = match self.packed {
            true => packed_len(self.bits, self.rows(), self.n),
            false => self.n * self.column_bytes(),
        };
        assert_eq!(self.codes.len(), codes, "codes");
        assert_eq!(self.scales.len(), self.n * blocks, "scales");
        match self.zeros {
            ZeroPoints::Middle => {}
            ZeroPoints::Packed(codes) => {
                let len = match self.packed {
                    true => packed_len(self.bits, self.zero_rows(), self.n),
                    false => self.n * (blocks * self.bits).div_ceil(8),
                };
                assert_eq!(codes.len(), len, "packed zero points");
            }
            ZeroPoints::Numbers(all) => assert_eq!(all.len(), self.n * blocks, "zero points"),
            ZeroPoints::Signed(all) => assert_eq!(all.len(), self.n * blocks, "zero points"),
        }
        let signed = matches!(self.zeros, ZeroPoints::Signed(_));
        let middle = matches!(self.zeros, ZeroPoints::Middle);
        assert!(
            middle || self.packed || signed == self.signed,
            "kind of zero points"
        );
    }

    /// Rows of the codes, with those that fill the last block.
    pub(super) fn rows(&self) -> usize {
        self.blocks() * self.block
    }

    /// Rows of packed zero points, with those that fill the last byte.
    fn zero_rows(&self) -> usize {
        (self.blocks() * self.bits).div_ceil(8) * 8 / self.bits
    }

    /// What is added to signed codes, and to their zero points, so that no code is negative.
    pub(super) fn middle(&self) -> u8 {
        1 << (self.bits - 1)
    }

    fn zero(&self, column: usize, block: usize) -> f32 {
        match self.zeros {
            ZeroPoints::Middle => self.middle().into(),
            ZeroPoints::Signed(all) => {
                let zero = i16::from(all[column * self.blocks() + block]);
                f32::from(zero + i16::from(self.middle()))
            }
            ZeroPoints::Packed(codes) => {
                let each = (self.blocks() * self.bits).div_ceil(8);
                packed::element(self.bits, &codes[column * each..], block).into()
            }
            ZeroPoints::Numbers(all) => all[column * self.blocks() + block],
        }
    }

    /// Writes the scales and zero points of a block of at most [`COLUMNS`] columns. Lanes beyond them stay as they are.
    pub(super) fn parameters(&self, columns: Range<usize>, block: usize, of: &mut BlockParameters) {
        let blocks = self.blocks();
        if self.packed {
            return self.packed_parameters(columns, block, of);
        }
        let all = &self.scales[columns.start * blocks + block..];
        let lanes = of.scales.iter_mut().take(columns.len());
        for (lane, scale) in lanes.zip(all.iter().step_by(blocks)) {
            *lane = *scale;
        }
        match self.zeros {
            ZeroPoints::Middle => of.zeros.fill(self.middle().into()),
            _ => {
                for (zero, column) in of.zeros.iter_mut().zip(columns) {
                    *zero = self.zero(column, block);
                }
            }
        }
    }

    /// The parameters where they lie block by block.
    fn packed_parameters(&self, columns: Range<usize>, block: usize, of: &mut BlockParameters) {
        let own = block * self.n + columns.start..block * self.n + columns.end;
        of.scales[..columns.len()].copy_from_slice(&self.scales[own.clone()]);
        let zeros = &mut of.zeros[..columns.len()];
        match self.zeros {
            ZeroPoints::Middle => zeros.fill(self.middle().into()),
            ZeroPoints::Numbers(all) => zeros.copy_from_slice(&all[own]),
            ZeroPoints::Signed(all) => {
                for (zero, own) in zeros.iter_mut().zip(&all[own]) {
                    *zero = f32::from(i16::from(*own) + i16::from(self.middle()));
                }
            }
            ZeroPoints::Packed(codes) => {
                let mut row = [[0; COLUMNS]];
                read_packed(
                    (codes, self.zero_rows(), self.bits),
                    columns,
                    block..block + 1,
                    &mut row,
                );
                for (zero, code) in zeros.iter_mut().zip(row[0]) {
                    *zero = code.into();
                }
            }
        }
    }

    /// Calls `each(block, from..to)` for the blocks of `rows`; `from..to` counts from the first of `rows`.
    pub(super) fn each_block(&self, rows: Range<usize>, mut each: impl FnMut(usize, Range<usize>)) {
        let mut at = rows.start;
        while at < rows.end {
            let block = at / self.block;
            let end = ((block + 1) * self.block).min(rows.end);
            each(block, at - rows.start..end - rows.start);
            at = end;
        }
    }

    /// Writes the weights of a piece as rows of [`NR`] values; zeros follow its columns.
    pub(crate) fn panel(&self, piece: Piece, dst: &mut [f32]) {
        let Piece { k0, k, n0, cols } = piece;
        let columns = n0..n0 + cols;
        let (mut buffer, mut of) = (CodeBuffer::new(), BlockParameters::NONE);
        let (dst, _) = dst.as_chunks_mut::<NR>();
        for first in (0..k).step_by(DEPTH) {
            let rows = k0 + first..k0 + k.min(first + DEPTH);
            let dst = &mut dst[first..first + rows.len()];
            let codes = buffer.read(self, columns.clone(), rows.clone());
            self.each_block(rows, |block, part| {
                self.parameters(columns.clone(), block, &mut of);
                numbers(&codes[part.clone()], &of, &mut dst[part]);
            });
        }
    }
}

multiversion! {
    /// The weights of codes.
    pub(super) fn numbers<>(codes: &[CodeRow], of: &BlockParameters, to: &mut [[f32; NR]]) {
        let n = codes.len().min(to.len());
        let (codes, to) = (&codes[..n], &mut to[..n]);
        for i in 0..n {
            for lane in 0..NR {
                to[i][lane] = (f32::from(codes[i][lane]) - of.zeros[lane]) * of.scales[lane];
            }
        }
    }
}
