//! Random numbers that follow from a seed alone.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;
use convoke_graph::DType;

use crate::device::Device;
use crate::tensor::args::HostArg;
use crate::tensor::{Tensor, call};

/// Random numbers that follow from a seed alone.
impl Device {
    /// A tensor of the given shape, normal around `mean` with standard deviation `scale`, drawn as
    /// `PhiloxUniform`.
    ///
    /// - `shape`: operand shape, i64
    /// - `seed`: operand seed, i64
    /// - `dtype`: the dtype of the result
    /// - `mean`: the mean; by default 0
    /// - `scale`: the standard deviation; by default 1
    #[track_caller]
    pub fn philox_normal<'a>(
        &self,
        shape: impl Into<HostArg<'a>>,
        seed: impl Into<HostArg<'a>>,
        dtype: DType,
        mean: impl Into<Option<f32>>,
        scale: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("dtype", call::dtype(dtype)),
            ("mean", call::float(mean)),
            ("scale", call::float(scale)),
        ]);
        let operands = [call::host(shape)?, call::host(seed)?];
        call::create(self, "PhiloxNormal", attrs, &operands)
    }

    /// A tensor of the given shape, uniform in \[low, high), drawn from `seed`, an i64 key and stream of
    /// shape \[2\].
    ///
    /// - `shape`: operand shape, i64
    /// - `seed`: operand seed, i64
    /// - `dtype`: the dtype of the result
    /// - `low`: the begin of the interval; by default 0
    /// - `high`: the end of the interval; by default 1
    #[track_caller]
    pub fn philox_uniform<'a>(
        &self,
        shape: impl Into<HostArg<'a>>,
        seed: impl Into<HostArg<'a>>,
        dtype: DType,
        low: impl Into<Option<f32>>,
        high: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("dtype", call::dtype(dtype)),
            ("low", call::float(low)),
            ("high", call::float(high)),
        ]);
        let operands = [call::host(shape)?, call::host(seed)?];
        call::create(self, "PhiloxUniform", attrs, &operands)
    }
}
