//! Positions of tokens in sequences.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::options;
use crate::tensor::{Tensor, call};

/// Positions of tokens in sequences.
impl Tensor {
    /// X \[B, H, S, D\], or \[B, S, H * D\] with `num_heads`, whose pairs of elements are rotated by the
    /// angles of their tokens: those of the rows of the caches \[P, R / 2\] at position_ids \[B, S\], or of
    /// caches \[B, S, R / 2\] without them.
    ///
    /// - `self`: operand X, floats
    /// - `cos_cache`: operand cos_cache, floats
    /// - `sin_cache`: operand sin_cache, floats
    /// - `position_ids`: operand position_ids, i64, may be left out
    /// - `with`: further attributes
    #[track_caller]
    pub fn rotary_embedding(
        &self,
        cos_cache: &Tensor,
        sin_cache: &Tensor,
        position_ids: Option<&Tensor>,
        with: impl Into<Option<options::RotaryEmbedding>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("interleaved", call::flag(with.interleaved)),
            ("num_heads", call::int(with.num_heads)),
            ("rotary_embedding_dim", call::int(with.rotary_embedding_dim)),
        ]);
        let operands = [
            call::strict(self),
            call::strict(cos_cache),
            call::strict(sin_cache),
            call::optional(position_ids),
        ];
        call::one("RotaryEmbedding", attrs, &operands)
    }
}
