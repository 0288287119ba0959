//! Gathering and scattering by indices.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::args::HostArg;
use crate::tensor::{Tensor, call};

/// Gathering and scattering by indices.
impl Tensor {
    /// The slices along `axis`, or the elements, where the condition holds.
    ///
    /// - `self`: operand input, any dtype
    /// - `condition`: operand condition, bool
    /// - `axis`: the axis, from the end where negative; by default all axes flattened
    #[track_caller]
    pub fn compress<'a>(
        &self,
        condition: impl Into<HostArg<'a>>,
        axis: impl Into<Option<i64>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self), call::host(condition)?];
        call::one("Compress", attrs, &operands)
    }

    /// Slices of the data along `axis` at the indices.
    ///
    /// - `self`: operand data, any dtype
    /// - `indices`: operand indices, i32, i64
    /// - `axis`: the axis, from the end where negative; by default 0
    #[track_caller]
    pub fn gather(&self, indices: &Tensor, axis: impl Into<Option<i64>>) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self), call::strict(indices)];
        call::one("Gather", attrs, &operands)
    }

    /// For every index, the element at its place with the coordinate along `axis` replaced.
    ///
    /// - `self`: operand data, any dtype
    /// - `indices`: operand indices, i32, i64
    /// - `axis`: the axis, from the end where negative; by default 0
    #[track_caller]
    pub fn gather_elements(
        &self,
        indices: &Tensor,
        axis: impl Into<Option<i64>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self), call::strict(indices)];
        call::one("GatherElements", attrs, &operands)
    }

    /// Slices of the data at coordinates, the last axis of the indices.
    ///
    /// - `self`: operand data, any dtype
    /// - `indices`: operand indices, i64
    /// - `batch_dims`: leading axes that data and indices share; by default 0
    #[track_caller]
    pub fn gather_nd(
        &self,
        indices: &Tensor,
        batch_dims: impl Into<Option<i64>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("batch_dims", call::int(batch_dims))]);
        let operands = [call::strict(self), call::strict(indices)];
        call::one("GatherND", attrs, &operands)
    }

    /// Coordinates of the elements other than zero: i64 \[rank, count\].
    ///
    /// - `self`: operand X, numbers, bool
    #[track_caller]
    pub fn nonzero(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("NonZero", attrs, &operands)
    }

    /// values\[1\] where the coordinate along a new axis of length `depth` is the index, else values\[0\].
    ///
    /// - `self`: operand indices, numbers
    /// - `depth`: operand depth, numbers
    /// - `values`: operand values, any dtype
    /// - `axis`: the axis, from the end where negative; by default -1
    #[track_caller]
    pub fn one_hot_op<'a>(
        &self,
        depth: impl Into<HostArg<'a>>,
        values: &Tensor,
        axis: impl Into<Option<i64>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self), call::host(depth)?, call::strict(values)];
        call::one("OneHot", attrs, &operands)
    }

    /// The data with elements replaced or combined at indices along `axis`.
    ///
    /// - `self`: operand data, any dtype
    /// - `indices`: operand indices, i32, i64
    /// - `updates`: operand updates, any dtype
    /// - `axis`: the axis, from the end where negative; by default 0
    /// - `reduction`: `none`, `add`, `mul`, `max` or `min`; by default `none`
    #[track_caller]
    pub fn scatter_elements<'a>(
        &self,
        indices: &Tensor,
        updates: &Tensor,
        axis: impl Into<Option<i64>>,
        reduction: impl Into<Option<&'a str>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("axis", call::int(axis)),
            ("reduction", call::text(reduction)),
        ]);
        let operands = [
            call::strict(self),
            call::strict(indices),
            call::strict(updates),
        ];
        call::one("ScatterElements", attrs, &operands)
    }

    /// The data with slices replaced or combined at coordinates.
    ///
    /// - `self`: operand data, any dtype
    /// - `indices`: operand indices, i64
    /// - `updates`: operand updates, any dtype
    /// - `reduction`: `none`, `add`, `mul`, `max` or `min`; by default `none`
    #[track_caller]
    pub fn scatter_nd<'a>(
        &self,
        indices: &Tensor,
        updates: &Tensor,
        reduction: impl Into<Option<&'a str>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("reduction", call::text(reduction))]);
        let operands = [
            call::strict(self),
            call::strict(indices),
            call::strict(updates),
        ];
        call::one("ScatterND", attrs, &operands)
    }

    /// The cache with the update written along `axis`, for each element of the batch from its index on.
    ///
    /// - `self`: operand past_cache, any dtype, narrow ones too
    /// - `update`: operand update, any dtype, narrow ones too
    /// - `write_indices`: operand write_indices, i64, may be left out
    /// - `axis`: the axis, from the end where negative; by default -2
    /// - `mode`: `linear`, or `circular` where an update goes on at the beginning; by default `linear`
    #[track_caller]
    pub fn tensor_scatter<'a>(
        &self,
        update: &Tensor,
        write_indices: Option<&Tensor>,
        axis: impl Into<Option<i64>>,
        mode: impl Into<Option<&'a str>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis)), ("mode", call::text(mode))]);
        let operands = [
            call::strict(self),
            call::strict(update),
            call::optional(write_indices),
        ];
        call::one("TensorScatter", attrs, &operands)
    }

    /// The different elements, or slices along `axis`; the first index of each, the place of each element
    /// among them, and how often each occurs.
    ///
    /// - `self`: operand X, any dtype
    /// - `axis`: the axis, from the end where negative; by default all axes flattened
    /// - `sorted`: the result is sorted, and not in the order of first occurrence; by default true
    #[track_caller]
    pub fn unique(
        &self,
        axis: impl Into<Option<i64>>,
        sorted: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis)), ("sorted", call::flag(sorted))]);
        let operands = [call::strict(self)];
        call::one("Unique", attrs, &operands)
    }

    /// The different elements, or slices along `axis`; the first index of each, the place of each element
    /// among them, and how often each occurs.
    /// All four outputs are given, as a tuple of four.
    ///
    /// - `self`: operand X, any dtype
    /// - `axis`: the axis, from the end where negative; by default all axes flattened
    /// - `sorted`: the result is sorted, and not in the order of first occurrence; by default true
    #[track_caller]
    pub fn unique_with_indices(
        &self,
        axis: impl Into<Option<i64>>,
        sorted: impl Into<Option<bool>>,
    ) -> Result<(Tensor, Tensor, Tensor, Tensor)> {
        let attrs = call::attrs([("axis", call::int(axis)), ("sorted", call::flag(sorted))]);
        let operands = [call::strict(self)];
        call::four("Unique", attrs, &operands)
    }
}
