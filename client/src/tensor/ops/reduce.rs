//! Reductions along axes.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::args::OptHostArg;
use crate::tensor::options;
use crate::tensor::{Tensor, call};

/// Reductions along axes.
impl Tensor {
    /// Index of the maximum along an axis.
    ///
    /// - `self`: operand data, numbers
    /// - `with`: further attributes
    #[track_caller]
    pub fn arg_max(&self, with: impl Into<Option<options::ArgMax>>) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("axis", call::int(with.axis)),
            ("keepdims", call::flag(with.keepdims)),
            ("select_last_index", call::flag(with.select_last_index)),
        ]);
        let operands = [call::strict(self)];
        call::one("ArgMax", attrs, &operands)
    }

    /// Index of the minimum along an axis.
    ///
    /// - `self`: operand data, numbers
    /// - `with`: further attributes
    #[track_caller]
    pub fn arg_min(&self, with: impl Into<Option<options::ArgMin>>) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("axis", call::int(with.axis)),
            ("keepdims", call::flag(with.keepdims)),
            ("select_last_index", call::flag(with.select_last_index)),
        ]);
        let operands = [call::strict(self)];
        call::one("ArgMin", attrs, &operands)
    }

    /// Sum of magnitudes over axes.
    ///
    /// - `self`: operand data, numbers
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_l1<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceL1", attrs, &operands)
    }

    /// Root of the sum of squares over axes.
    ///
    /// - `self`: operand data, numbers
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_l2<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceL2", attrs, &operands)
    }

    /// Logarithm of the sum over axes.
    ///
    /// - `self`: operand data, numbers
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_log_sum<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceLogSum", attrs, &operands)
    }

    /// Logarithm of the sum of e^x over axes.
    ///
    /// - `self`: operand data, numbers
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_log_sum_exp<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceLogSumExp", attrs, &operands)
    }

    /// Maximum over axes.
    ///
    /// - `self`: operand data, numbers, bool
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_max<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceMax", attrs, &operands)
    }

    /// Mean over axes.
    ///
    /// - `self`: operand data, floats, i32, i64, u32, u64
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_mean<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceMean", attrs, &operands)
    }

    /// Minimum over axes.
    ///
    /// - `self`: operand data, numbers, bool
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_min<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceMin", attrs, &operands)
    }

    /// Product over axes.
    ///
    /// - `self`: operand data, numbers
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_prod<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceProd", attrs, &operands)
    }

    /// Sum over axes.
    ///
    /// - `self`: operand data, numbers
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_sum<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceSum", attrs, &operands)
    }

    /// Sum of squares over axes.
    ///
    /// - `self`: operand data, numbers
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_sum_square<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceSumSquare", attrs, &operands)
    }
}
