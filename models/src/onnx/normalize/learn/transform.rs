//! What is done to the scores of a model at the end.

use convoke_graph::DType;
use convoke_graph::graph::ValueId;

use super::super::node::{Expansion, ImportFailure, ImportedNode, Made, axis_of};

/// How scores are transformed at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

impl Transform {
    /// Removes and returns the attribute `post_transform`.
    pub(super) fn take(c: &mut ImportedNode) -> Result<Transform, ImportFailure> {
        let Some(name) = c.take_name("post_transform")? else {
            return Ok(Transform::None);
        };
        Ok(match name.as_str() {
            "NONE" => Transform::None,
            "SOFTMAX" => Transform::Softmax,
            "LOGISTIC" => Transform::Logistic,
            "SOFTMAX_ZERO" => Transform::SoftmaxZero,
            "PROBIT" => Transform::Probit,
            _ => return Err(c.wrong("post_transform", "a transform of ONNX").into()),
        })
    }

    /// The transform of `targets` results of a regression, or of the scores of `targets` classes. For a single one, which is no score
    /// of one class among others, `PROBIT` is the only transform that is applied.
    pub(super) fn of_targets(self, targets: usize) -> Transform {
        match (self, targets) {
            (Transform::Softmax | Transform::SoftmaxZero | Transform::Logistic, 1) => {
                Transform::None
            }
            _ => self,
        }
    }
}

impl Expansion<'_> {
    /// Scores [N, E] after a transform.
    pub(super) fn transformed(&mut self, x: ValueId, dtype: DType, how: Transform) -> Made {
        match how {
            Transform::None => Ok(x),
            Transform::Softmax => self.op("Softmax", axis_of(1), &[x]),
            Transform::Logistic => self.plain("Sigmoid", &[x]),
            Transform::SoftmaxZero => {
                let (least, one) = (self.float("least", dtype, 1e-7)?, self.ints("axes", &[1])?);
                let size = self.plain("Abs", &[x])?;
                let counts = self.plain("Greater", &[size, least])?;
                let most = self.plain("ReduceMax", &[x, one])?;
                let below = self.plain("Sub", &[x, most])?;
                let below = self.plain("Exp", &[below])?;
                let zero = self.float("zero", dtype, 0.)?;
                let powers = self.plain("Where", &[counts, below, zero])?;
                let sum = self.plain("ReduceSum", &[powers, one])?;
                let scale = self.plain("Neg", &[most])?;
                let scale = self.plain("Exp", &[scale])?;
                let rest = self.plain("Mul", &[x, scale])?;
                let all = self.plain("Where", &[counts, below, rest])?;
                self.plain("Div", &[all, sum])
            }
            Transform::Probit => self.probit(x, dtype),
        }
    }

    /// The inverse of the normal distribution's cumulative function, by Winitzki's approximation.
    fn probit(&mut self, x: ValueId, dtype: DType) -> Made {
        const A: f64 = 0.147;
        let (one, two) = (self.float("one", dtype, 1.)?, self.float("two", dtype, 2.)?);
        let x = self.plain("Mul", &[x, two])?;
        let x = self.plain("Sub", &[x, one])?;
        let (less, more) = (self.plain("Sub", &[one, x])?, self.plain("Add", &[one, x])?);
        let log = self.plain("Mul", &[less, more])?;
        let log = self.plain("Log", &[log])?;
        let half = self.float("half", dtype, 0.5)?;
        let half_log = self.plain("Mul", &[log, half])?;
        let first = self.float("first", dtype, 2. / (std::f64::consts::PI * A))?;
        let v = self.plain("Add", &[half_log, first])?;
        let square = self.plain("Mul", &[v, v])?;
        let second = self.float("second", dtype, 1. / A)?;
        let second = self.plain("Mul", &[log, second])?;
        let root = self.plain("Sub", &[square, second])?;
        let root = self.plain("Sqrt", &[root])?;
        let root = self.plain("Sub", &[root, v])?;
        let root = self.plain("Sqrt", &[root])?;
        let sign = self.plain("Sign", &[x])?;
        let root2 = self.float("root2", dtype, f64::from(std::f32::consts::SQRT_2))?;
        let y = self.plain("Mul", &[sign, root])?;
        self.plain("Mul", &[y, root2])
    }
}
