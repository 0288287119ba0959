//! Normalisations.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::args::Axes;
use crate::tensor::options;
use crate::tensor::{Tensor, call};

/// Normalisations.
impl Tensor {
    /// X \[N, C, ..\] normalised per channel by given mean and variance, times scale plus B.
    ///
    /// - `self`: operand X, floats
    /// - `scale`: operand scale, floats
    /// - `b`: operand B, floats
    /// - `mean`: operand mean, floats
    /// - `var`: operand var, floats
    /// - `epsilon`: what keeps the division from zero; by default 0.00001
    #[track_caller]
    pub fn batch_normalization(
        &self,
        scale: &Tensor,
        b: &Tensor,
        mean: &Tensor,
        var: &Tensor,
        epsilon: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("epsilon", call::float(epsilon))]);
        let operands = [
            call::strict(self),
            call::strict(scale),
            call::strict(b),
            call::strict(mean),
            call::strict(var),
        ];
        call::one("BatchNormalization", attrs, &operands)
    }

    /// X \[N, C, ..\] normalised per instance and group of channels, times scale \[C\] plus bias \[C\].
    ///
    /// - `self`: operand X, floats
    /// - `scale`: operand scale, floats
    /// - `bias`: operand bias, floats
    /// - `num_groups`: groups of channels
    /// - `epsilon`: what keeps the division from zero; by default 0.00001
    #[track_caller]
    pub fn group_normalization(
        &self,
        scale: &Tensor,
        bias: &Tensor,
        num_groups: i64,
        epsilon: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("num_groups", call::int(num_groups)),
            ("epsilon", call::float(epsilon)),
        ]);
        let operands = [call::strict(self), call::strict(scale), call::strict(bias)];
        call::one("GroupNormalization", attrs, &operands)
    }

    /// 1 at the first maximum along an axis, else 0, any shape.
    ///
    /// - `self`: operand X, floats
    /// - `axis`: the axis, from the end where negative; by default -1
    #[track_caller]
    pub fn hardmax(&self, axis: impl Into<Option<i64>>) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self)];
        call::one("Hardmax", attrs, &operands)
    }

    /// X \[N, C, ..\] normalised per instance and channel, times scale plus B.
    ///
    /// - `self`: operand X, floats
    /// - `scale`: operand scale, floats
    /// - `b`: operand B, floats
    /// - `epsilon`: what keeps the division from zero; by default 0.00001
    #[track_caller]
    pub fn instance_normalization(
        &self,
        scale: &Tensor,
        b: &Tensor,
        epsilon: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("epsilon", call::float(epsilon))]);
        let operands = [call::strict(self), call::strict(scale), call::strict(b)];
        call::one("InstanceNormalization", attrs, &operands)
    }

    /// X \[N, C, ..\] over a power of the squares of neighbouring channels.
    ///
    /// - `self`: operand X, floats
    /// - `size`: channels of a window
    /// - `with`: further attributes
    #[track_caller]
    pub fn lrn(&self, size: i64, with: impl Into<Option<options::LRN>>) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("size", call::int(size)),
            ("alpha", call::float(with.alpha)),
            ("beta", call::float(with.beta)),
            ("bias", call::float(with.bias)),
        ]);
        let operands = [call::strict(self)];
        call::one("LRN", attrs, &operands)
    }

    /// X normalised over the axes from `axis`, times Scale plus B; optionally mean and 1/deviation.
    ///
    /// - `self`: operand X, floats
    /// - `scale`: operand Scale, floats
    /// - `b`: operand B, floats, may be left out
    /// - `axis`: the axis, from the end where negative; by default -1
    /// - `epsilon`: what keeps the division from zero; by default 0.00001
    #[track_caller]
    pub fn layer_normalization(
        &self,
        scale: &Tensor,
        b: Option<&Tensor>,
        axis: impl Into<Option<i64>>,
        epsilon: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis)), ("epsilon", call::float(epsilon))]);
        let operands = [call::strict(self), call::strict(scale), call::optional(b)];
        call::one("LayerNormalization", attrs, &operands)
    }

    /// X normalised over the axes from `axis`, times Scale plus B; optionally mean and 1/deviation.
    /// All three outputs are given, as a tuple of three.
    ///
    /// - `self`: operand X, floats
    /// - `scale`: operand Scale, floats
    /// - `b`: operand B, floats, may be left out
    /// - `axis`: the axis, from the end where negative; by default -1
    /// - `epsilon`: what keeps the division from zero; by default 0.00001
    #[track_caller]
    pub fn layer_normalization_with_statistics(
        &self,
        scale: &Tensor,
        b: Option<&Tensor>,
        axis: impl Into<Option<i64>>,
        epsilon: impl Into<Option<f32>>,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let attrs = call::attrs([("axis", call::int(axis)), ("epsilon", call::float(epsilon))]);
        let operands = [call::strict(self), call::strict(scale), call::optional(b)];
        call::three("LayerNormalization", attrs, &operands)
    }

    /// x minus ln of the sum of e^x along an axis, any shape.
    ///
    /// - `self`: operand X, floats
    /// - `axis`: the axis, from the end where negative; by default -1
    #[track_caller]
    pub fn log_softmax(&self, axis: impl Into<Option<i64>>) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self)];
        call::one("LogSoftmax", attrs, &operands)
    }

    /// X over its p-norm along an axis, any shape.
    ///
    /// - `self`: operand X, floats
    /// - `axis`: the axis, from the end where negative; by default -1
    /// - `p`: the norm; by default 2
    #[track_caller]
    pub fn lp_normalization(
        &self,
        axis: impl Into<Option<i64>>,
        p: impl Into<Option<i64>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis)), ("p", call::int(p))]);
        let operands = [call::strict(self)];
        call::one("LpNormalization", attrs, &operands)
    }

    /// X minus its mean over `axes`, over its deviation, any shape.
    ///
    /// - `self`: operand X, floats
    /// - `axes`: the axes; by default all but the second
    #[track_caller]
    pub fn mean_variance_normalization(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        let attrs = call::attrs([("axes", call::axes(axes))]);
        let operands = [call::strict(self)];
        call::one("MeanVarianceNormalization", attrs, &operands)
    }

    /// X over its root mean square over the axes from `axis`, times scale.
    ///
    /// - `self`: operand X, floats
    /// - `scale`: operand scale, floats
    /// - `axis`: the axis, from the end where negative; by default -1
    /// - `epsilon`: what keeps the division from zero; by default 0.00001
    #[track_caller]
    pub fn rms_normalization(
        &self,
        scale: &Tensor,
        axis: impl Into<Option<i64>>,
        epsilon: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis)), ("epsilon", call::float(epsilon))]);
        let operands = [call::strict(self), call::strict(scale)];
        call::one("RMSNormalization", attrs, &operands)
    }

    /// e^x over its sum along an axis, any shape.
    ///
    /// - `self`: operand X, floats
    /// - `axis`: the axis, from the end where negative; by default -1
    #[track_caller]
    pub fn softmax(&self, axis: impl Into<Option<i64>>) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self)];
        call::one("Softmax", attrs, &operands)
    }
}
