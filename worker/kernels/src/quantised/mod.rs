//! Quantised numbers: conversions from and to them, and exact sums of their products.
//!
//! ```text
//! float ── quantise ──> codes ── dequantise ──> float             y = round(x / scale) + zero,  x = (y - zero) * scale
//! codes ── dequantise without a scale ──> whole f32 ── product ──> add_exact ──> i32 ── requantise ──> codes
//! codes of eight bits ── product_of_bytes, conv_of_bytes ──> i32                       where the processor has the means
//! codes of eight bits, few filters a group ── grouped_conv_of_bytes ──> i32 or codes
//! two tensors of codes of eight bits ── add_codes ──> codes
//! ```
//!
//! Invariants
//! 1. A product of codes is summed in f32 only over so many terms that each partial sum is a whole number of at most 24
//!    bits ([`exact_depth`]). Such a sum is exact in any order, and i32 sums of them wrap, so that their order has no
//!    effect on bits. Sums of products of bytes are therefore the same.
//! 2. A number is divided by its scale, never multiplied by an inverse; it is rounded half to even; whatever exceeds the
//!    range of the codes becomes the nearest code, and NaN the least one.
//! 3. Numbers of at most 24 bits are computed with in f32 without loss. Only `I32` has longer ones, which are rounded to
//!    f32 once, after their zero points are subtracted.

mod blocks;
mod bytes;
mod exact;
mod grouped;
#[cfg(target_arch = "x86_64")]
mod interleave;
mod layout;
mod linear;
mod numbers;
mod requantise;
mod sum;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use blocks::{
    BlockWeights, CodedRows, ZeroPoints, code_rows, pack_codes, product_of_blocks, product_of_codes,
};
pub use bytes::{
    Bytes, BytesConv, DEEPEST, Destination, PackedRows, Zeros, conv_of_bytes, is_packed,
    multiplies_bytes, needs_row_sums, pack_rows, packed_row, product_of_bytes, sum_rows,
};
pub use exact::{add_exact, exact_depth};
pub use grouped::{GroupedConv, grouped_conv_of_bytes};
pub use layout::{Layout, Take};
pub use linear::{
    Parameters, Precision, Quantisation, dequantise, dequantise_i32, quantise, range_of, span,
};
pub use numbers::{Format, Numbers};
pub use requantise::{Requantisation, SumBias, requantise};
pub use sum::{CodeParameters, SumOfCodes, add_codes};
