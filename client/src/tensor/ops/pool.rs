//! Pooling over windows.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::options;
use crate::tensor::{Tensor, call};

/// Pooling over windows.
impl Tensor {
    /// Mean of every window of X \[N, C, ..\].
    ///
    /// - `self`: operand X, floats
    /// - `kernel_shape`: extents of the window, one per spatial axis
    /// - `with`: further attributes
    #[track_caller]
    pub fn average_pool(
        &self,
        kernel_shape: impl Into<Vec<i64>>,
        with: impl Into<Option<options::AveragePool>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("kernel_shape", call::ints(kernel_shape)),
            ("auto_pad", call::text(with.auto_pad.as_deref())),
            ("ceil_mode", call::flag(with.ceil_mode)),
            ("dilations", call::list(with.dilations)),
            ("pads", call::list(with.pads)),
            ("strides", call::list(with.strides)),
            ("count_include_pad", call::flag(with.count_include_pad)),
        ]);
        let operands = [call::strict(self)];
        call::one("AveragePool", attrs, &operands)
    }

    /// Mean over the spatial axes: \[N, C, 1, ..\].
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn global_average_pool(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("GlobalAveragePool", attrs, &operands)
    }

    /// p-norm over the spatial axes: \[N, C, 1, ..\].
    ///
    /// - `self`: operand X, floats
    /// - `p`: the norm; by default 2
    #[track_caller]
    pub fn global_lp_pool(&self, p: impl Into<Option<i64>>) -> Result<Tensor> {
        let attrs = call::attrs([("p", call::int(p))]);
        let operands = [call::strict(self)];
        call::one("GlobalLpPool", attrs, &operands)
    }

    /// Maximum over the spatial axes: \[N, C, 1, ..\].
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn global_max_pool(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("GlobalMaxPool", attrs, &operands)
    }

    /// p-norm of every window of X \[N, C, ..\].
    ///
    /// - `self`: operand X, floats
    /// - `kernel_shape`: extents of the window, one per spatial axis
    /// - `with`: further attributes
    #[track_caller]
    pub fn lp_pool(
        &self,
        kernel_shape: impl Into<Vec<i64>>,
        with: impl Into<Option<options::LpPool>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("kernel_shape", call::ints(kernel_shape)),
            ("auto_pad", call::text(with.auto_pad.as_deref())),
            ("ceil_mode", call::flag(with.ceil_mode)),
            ("dilations", call::list(with.dilations)),
            ("pads", call::list(with.pads)),
            ("strides", call::list(with.strides)),
            ("p", call::int(with.p)),
        ]);
        let operands = [call::strict(self)];
        call::one("LpPool", attrs, &operands)
    }

    /// Greatest element of every window of X \[N, C, ..\]; optionally its flat index.
    ///
    /// - `self`: operand X, floats, i8, u8
    /// - `kernel_shape`: extents of the window, one per spatial axis
    /// - `with`: further attributes
    #[track_caller]
    pub fn max_pool(
        &self,
        kernel_shape: impl Into<Vec<i64>>,
        with: impl Into<Option<options::MaxPool>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("kernel_shape", call::ints(kernel_shape)),
            ("auto_pad", call::text(with.auto_pad.as_deref())),
            ("ceil_mode", call::flag(with.ceil_mode)),
            ("dilations", call::list(with.dilations)),
            ("pads", call::list(with.pads)),
            ("strides", call::list(with.strides)),
            ("storage_order", call::flag(with.storage_order)),
        ]);
        let operands = [call::strict(self)];
        call::one("MaxPool", attrs, &operands)
    }

    /// Greatest element of every window of X \[N, C, ..\]; optionally its flat index.
    /// Both outputs are given, as a tuple of two.
    ///
    /// - `self`: operand X, floats, i8, u8
    /// - `kernel_shape`: extents of the window, one per spatial axis
    /// - `with`: further attributes
    #[track_caller]
    pub fn max_pool_with_indices(
        &self,
        kernel_shape: impl Into<Vec<i64>>,
        with: impl Into<Option<options::MaxPool>>,
    ) -> Result<(Tensor, Tensor)> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("kernel_shape", call::ints(kernel_shape)),
            ("auto_pad", call::text(with.auto_pad.as_deref())),
            ("ceil_mode", call::flag(with.ceil_mode)),
            ("dilations", call::list(with.dilations)),
            ("pads", call::list(with.pads)),
            ("strides", call::list(with.strides)),
            ("storage_order", call::flag(with.storage_order)),
        ]);
        let operands = [call::strict(self)];
        call::two("MaxPool", attrs, &operands)
    }
}
