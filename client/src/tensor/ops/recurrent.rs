//! Recurrent layers.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::options;
use crate::tensor::{Tensor, call};

/// Recurrent layers.
impl Tensor {
    /// Gated recurrent units over X \[steps, batch, n\]: all states \[steps, directions, batch, h\] and the
    /// last ones.
    /// Both outputs are given, as a tuple of two.
    ///
    /// - `self`: operand X, floats
    /// - `w`: operand W, floats
    /// - `r`: operand R, floats
    /// - `b`: operand B, floats, may be left out
    /// - `sequence_lens`: operand sequence_lens, i32, i64, may be left out
    /// - `initial_h`: operand initial_h, floats, may be left out
    /// - `with`: further attributes
    #[track_caller]
    pub fn gru(
        &self,
        w: &Tensor,
        r: &Tensor,
        b: Option<&Tensor>,
        sequence_lens: Option<&Tensor>,
        initial_h: Option<&Tensor>,
        with: impl Into<Option<options::GRU>>,
    ) -> Result<(Tensor, Tensor)> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("activation_alpha", call::floats(with.activation_alpha)),
            ("activation_beta", call::floats(with.activation_beta)),
            ("activations", call::texts(with.activations)),
            ("clip", call::float(with.clip)),
            ("direction", call::text(with.direction.as_deref())),
            ("layout", call::flag(with.layout)),
            ("linear_before_reset", call::flag(with.linear_before_reset)),
        ]);
        let operands = [
            call::strict(self),
            call::strict(w),
            call::strict(r),
            call::optional(b),
            call::optional(sequence_lens),
            call::optional(initial_h),
        ];
        call::two("GRU", attrs, &operands)
    }

    /// Long short-term memory over X \[steps, batch, n\]: all states \[steps, directions, batch, h\], the
    /// last ones and the last cells.
    /// All three outputs are given, as a tuple of three.
    ///
    /// - `self`: operand X, floats
    /// - `w`: operand W, floats
    /// - `r`: operand R, floats
    /// - `b`: operand B, floats, may be left out
    /// - `sequence_lens`: operand sequence_lens, i32, i64, may be left out
    /// - `initial_h`: operand initial_h, floats, may be left out
    /// - `initial_c`: operand initial_c, floats, may be left out
    /// - `p`: operand P, floats, may be left out
    /// - `with`: further attributes
    #[track_caller]
    pub fn lstm(
        &self,
        w: &Tensor,
        r: &Tensor,
        b: Option<&Tensor>,
        sequence_lens: Option<&Tensor>,
        initial_h: Option<&Tensor>,
        initial_c: Option<&Tensor>,
        p: Option<&Tensor>,
        with: impl Into<Option<options::LSTM>>,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("activation_alpha", call::floats(with.activation_alpha)),
            ("activation_beta", call::floats(with.activation_beta)),
            ("activations", call::texts(with.activations)),
            ("clip", call::float(with.clip)),
            ("direction", call::text(with.direction.as_deref())),
            ("input_forget", call::flag(with.input_forget)),
            ("layout", call::flag(with.layout)),
        ]);
        let operands = [
            call::strict(self),
            call::strict(w),
            call::strict(r),
            call::optional(b),
            call::optional(sequence_lens),
            call::optional(initial_h),
            call::optional(initial_c),
            call::optional(p),
        ];
        call::three("LSTM", attrs, &operands)
    }

    /// A recurrent layer over X \[steps, batch, n\]: all states \[steps, directions, batch, h\] and the last
    /// ones.
    /// Both outputs are given, as a tuple of two.
    ///
    /// - `self`: operand X, floats
    /// - `w`: operand W, floats
    /// - `r`: operand R, floats
    /// - `b`: operand B, floats, may be left out
    /// - `sequence_lens`: operand sequence_lens, i32, i64, may be left out
    /// - `initial_h`: operand initial_h, floats, may be left out
    /// - `with`: further attributes
    #[track_caller]
    pub fn rnn(
        &self,
        w: &Tensor,
        r: &Tensor,
        b: Option<&Tensor>,
        sequence_lens: Option<&Tensor>,
        initial_h: Option<&Tensor>,
        with: impl Into<Option<options::RNN>>,
    ) -> Result<(Tensor, Tensor)> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("activation_alpha", call::floats(with.activation_alpha)),
            ("activation_beta", call::floats(with.activation_beta)),
            ("activations", call::texts(with.activations)),
            ("clip", call::float(with.clip)),
            ("direction", call::text(with.direction.as_deref())),
            ("layout", call::flag(with.layout)),
        ]);
        let operands = [
            call::strict(self),
            call::strict(w),
            call::strict(r),
            call::optional(b),
            call::optional(sequence_lens),
            call::optional(initial_h),
        ];
        call::two("RNN", attrs, &operands)
    }
}
