//! Trees, and encodings by tables.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::{Tensor, call};

/// Trees, and encodings by tables.
impl Tensor {
    /// For each element of X, any shape, the value at the place of its key, or `default`; `keys` ascend, NaN
    /// last.
    ///
    /// - `self`: operand X, i64, f32, f64, i16, i32, string
    /// - `keys`: operand keys, i64, f32, f64, i16, i32, string
    /// - `values`: operand values, i64, f32, f64, i16, i32, string
    /// - `default`: operand default, i64, f32, f64, i16, i32, string
    #[track_caller]
    pub fn label_encoder(
        &self,
        keys: &Tensor,
        values: &Tensor,
        default: &Tensor,
    ) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [
            call::strict(self),
            call::strict(keys),
            call::strict(values),
            call::strict(default),
        ];
        call::one("LabelEncoder", attrs, &operands)
    }

    /// For each element of X, any shape, a 1 at the place of its category along a new last axis, and 0
    /// elsewhere: f32.
    ///
    /// - `self`: operand X, i64, string
    /// - `categories`: operand categories, i64, string
    /// - `zeros`: an element of no category is no error; by default true
    #[track_caller]
    pub fn one_hot_encoder(
        &self,
        categories: &Tensor,
        zeros: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("zeros", call::flag(zeros))]);
        let operands = [call::strict(self), call::strict(categories)];
        call::one("OneHotEncoder", attrs, &operands)
    }

    /// The weights of the leaves that each row of X \[N, F\] reaches, folded for each target: \[N,
    /// targets\], and which were reached.
    ///
    /// - `self`: operand X, f32, f64
    /// - `features`: operand features, i64
    /// - `modes`: operand modes, u8
    /// - `splits`: operand splits, f32, f64
    /// - `branches`: operand branches, i64
    /// - `roots`: operand roots, i64
    /// - `leaves`: operand leaves, i64
    /// - `targets`: operand targets, i64
    /// - `weights`: operand weights, f32, f64
    /// - `n_targets`: the length of the result's last axis
    /// - `aggregate_function`: `SUM`, `AVERAGE`, `MIN` or `MAX`; by default `SUM`
    #[track_caller]
    pub fn tree_ensemble<'a>(
        &self,
        features: &Tensor,
        modes: &Tensor,
        splits: &Tensor,
        branches: &Tensor,
        roots: &Tensor,
        leaves: &Tensor,
        targets: &Tensor,
        weights: &Tensor,
        n_targets: i64,
        aggregate_function: impl Into<Option<&'a str>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("n_targets", call::int(n_targets)),
            ("aggregate_function", call::text(aggregate_function)),
        ]);
        let operands = [
            call::strict(self),
            call::strict(features),
            call::strict(modes),
            call::strict(splits),
            call::strict(branches),
            call::strict(roots),
            call::strict(leaves),
            call::strict(targets),
            call::strict(weights),
        ];
        call::one("TreeEnsemble", attrs, &operands)
    }

    /// The weights of the leaves that each row of X \[N, F\] reaches, folded for each target: \[N,
    /// targets\], and which were reached.
    /// Both outputs are given, as a tuple of two.
    ///
    /// - `self`: operand X, f32, f64
    /// - `features`: operand features, i64
    /// - `modes`: operand modes, u8
    /// - `splits`: operand splits, f32, f64
    /// - `branches`: operand branches, i64
    /// - `roots`: operand roots, i64
    /// - `leaves`: operand leaves, i64
    /// - `targets`: operand targets, i64
    /// - `weights`: operand weights, f32, f64
    /// - `n_targets`: the length of the result's last axis
    /// - `aggregate_function`: `SUM`, `AVERAGE`, `MIN` or `MAX`; by default `SUM`
    #[track_caller]
    pub fn tree_ensemble_with_reached<'a>(
        &self,
        features: &Tensor,
        modes: &Tensor,
        splits: &Tensor,
        branches: &Tensor,
        roots: &Tensor,
        leaves: &Tensor,
        targets: &Tensor,
        weights: &Tensor,
        n_targets: i64,
        aggregate_function: impl Into<Option<&'a str>>,
    ) -> Result<(Tensor, Tensor)> {
        let attrs = call::attrs([
            ("n_targets", call::int(n_targets)),
            ("aggregate_function", call::text(aggregate_function)),
        ]);
        let operands = [
            call::strict(self),
            call::strict(features),
            call::strict(modes),
            call::strict(splits),
            call::strict(branches),
            call::strict(roots),
            call::strict(leaves),
            call::strict(targets),
            call::strict(weights),
        ];
        call::two("TreeEnsemble", attrs, &operands)
    }
}
