//! Running sums and products, and the greatest elements.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::args::HostArg;
use crate::tensor::{Tensor, call};

/// Running sums and products, and the greatest elements.
impl Tensor {
    /// Running product along an axis, same shape.
    ///
    /// - `self`: operand x, numbers
    /// - `axis`: operand axis, i32, i64
    /// - `exclusive`: an element does not count in its own sum or product; by default false
    /// - `reverse`: sums and products run from the end; by default false
    #[track_caller]
    pub fn cum_prod<'a>(
        &self,
        axis: impl Into<HostArg<'a>>,
        exclusive: impl Into<Option<bool>>,
        reverse: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("exclusive", call::flag(exclusive)),
            ("reverse", call::flag(reverse)),
        ]);
        let operands = [call::strict(self), call::host(axis)?];
        call::one("CumProd", attrs, &operands)
    }

    /// Running sum along an axis, same shape.
    ///
    /// - `self`: operand x, numbers
    /// - `axis`: operand axis, i32, i64
    /// - `exclusive`: an element does not count in its own sum or product; by default false
    /// - `reverse`: sums and products run from the end; by default false
    #[track_caller]
    pub fn cum_sum<'a>(
        &self,
        axis: impl Into<HostArg<'a>>,
        exclusive: impl Into<Option<bool>>,
        reverse: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("exclusive", call::flag(exclusive)),
            ("reverse", call::flag(reverse)),
        ]);
        let operands = [call::strict(self), call::host(axis)?];
        call::one("CumSum", attrs, &operands)
    }

    /// The K largest (or smallest) elements along `axis`, and their indices.
    /// Both outputs are given, as a tuple of two.
    ///
    /// - `self`: operand X, numbers
    /// - `k`: operand K, i64
    /// - `axis`: the axis, from the end where negative; by default -1
    /// - `largest`: the largest instead of the smallest; by default true
    #[track_caller]
    pub fn top_k<'a>(
        &self,
        k: impl Into<HostArg<'a>>,
        axis: impl Into<Option<i64>>,
        largest: impl Into<Option<bool>>,
    ) -> Result<(Tensor, Tensor)> {
        let attrs = call::attrs([("axis", call::int(axis)), ("largest", call::flag(largest))]);
        let operands = [call::strict(self), call::host(k)?];
        call::two("TopK", attrs, &operands)
    }
}
