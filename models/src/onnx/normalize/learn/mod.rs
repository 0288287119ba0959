//! Ops of the domain `ai.onnx.ml`, by ops of the registry.
//!
//! Large attributes become operands, which are stored as weights are. Where ONNX leaves the meaning open, these ops do
//! what ONNX Runtime does.

mod coupling;
mod encoders;
mod ensemble;
mod features;
mod linear;
mod maps;
mod svm;
mod trees;

pub(in super::super) use maps::of_map;

use convoke_graph::graph::{Attr, ValueId};
use convoke_graph::{DType, Tensor};

use super::super::import::Importer;
use super::expansion::{Expansion, Made, axis_of, without_axes};
use super::{ImportFailure, ImportedNode, Outputs, unsupported};
use crate::error::ModelError;

/// Imports a node of the domain `ai.onnx.ml`, whose tensor attributes are there as a whole.
pub(in super::super) fn learned(i: &mut Importer<'_>, c: ImportedNode) -> Outputs {
    if c.follows_a_refusal(&i.b) {
        return Ok(i.b.stand_ins(&c.outputs));
    }
    match c.op.as_str() {
        "ArrayFeatureExtractor" => features::extract(i, c),
        "Binarizer" => features::binarizer(i, c),
        "CategoryMapper" => encoders::category_mapper(i, c),
        "FeatureVectorizer" => features::vectorizer(i, c),
        "Imputer" => features::imputer(i, c),
        "LabelEncoder" => encoders::label_encoder(i, c),
        "LinearClassifier" => linear::classifier(i, c),
        "LinearRegressor" => linear::regressor(i, c),
        "Normalizer" => features::normalizer(i, c),
        "OneHotEncoder" => encoders::one_hot(i, c),
        "SVMClassifier" => svm::classifier(i, c),
        "SVMRegressor" => svm::regressor(i, c),
        "Scaler" => features::scaler(i, c),
        "TreeEnsemble" => trees::ensemble(i, c),
        "TreeEnsembleClassifier" => trees::classifier(i, c),
        "TreeEnsembleRegressor" => trees::regressor(i, c),
        "ZipMap" => maps::zip_map(i, c),
        "CastMap" | "DictVectorizer" => Err(c.error("its operand is no map").into()),
        _ => Err(unsupported("")),
    }
}

/// How scores are transformed at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

impl Transform {
    fn take(c: &mut ImportedNode) -> Result<Transform, ImportFailure> {
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
    fn of_targets(self, targets: usize) -> Transform {
        match (self, targets) {
            (Transform::Softmax | Transform::SoftmaxZero | Transform::Logistic, 1) => {
                Transform::None
            }
            _ => self,
        }
    }
}

impl ImportedNode {
    pub(super) fn take_floats(&mut self, attr: &str) -> Result<Option<Vec<f32>>, ModelError> {
        match self.take(attr) {
            None => Ok(None),
            Some(Attr::Floats(v)) => Ok(Some(v)),
            // An empty list has no field that tells its type.
            Some(Attr::Ints(v)) if v.is_empty() => Ok(None),
            Some(_) => Err(self.wrong(attr, "a list of floats")),
        }
    }

    fn take_strings(&mut self, attr: &str) -> Result<Option<Vec<String>>, ModelError> {
        match self.take(attr) {
            None => Ok(None),
            Some(Attr::Strs(v)) => Ok(Some(v.iter().map(|s| s.to_string()).collect())),
            Some(Attr::Ints(v)) if v.is_empty() => Ok(None),
            Some(_) => Err(self.wrong(attr, "a list of strings")),
        }
    }

    fn take_tensor(&mut self, attr: &str) -> Result<Option<Tensor>, ModelError> {
        match self.take(attr) {
            None => Ok(None),
            Some(Attr::Tensor(t)) => Ok(Some(t)),
            Some(_) => Err(self.wrong(attr, "a tensor")),
        }
    }

    /// Numbers that are given as a list of floats, or as a tensor of the attribute `NAME_as_tensor`.
    fn take_numbers(&mut self, attr: &str) -> Result<Option<Vec<f64>>, ModelError> {
        let wide = format!("{attr}_as_tensor");
        if let Some(t) = self.take_tensor(&wide)? {
            let numbers = match t.dtype() {
                DType::F64 => t.as_slice::<f64>().map(<[f64]>::to_vec).ok(),
                DType::F32 => t
                    .as_slice()
                    .map(|v: &[f32]| v.iter().map(|x| f64::from(*x)).collect())
                    .ok(),
                _ => None,
            };
            return numbers
                .map(Some)
                .ok_or_else(|| self.wrong(&wide, "a tensor of floats"));
        }
        let floats = self.take_floats(attr)?;
        Ok(floats.map(|v| v.into_iter().map(f64::from).collect()))
    }

    /// The class labels, which are integers or strings.
    pub(super) fn take_labels(
        &mut self,
        ints: &str,
        strings: &str,
    ) -> Result<Option<Tensor>, ModelError> {
        let numbers = self.take_ints(ints)?.filter(|v| !v.is_empty());
        let words = self.take_strings(strings)?.filter(|v| !v.is_empty());
        let made = match (numbers, words) {
            (None, None) => return Ok(None),
            (Some(v), None) => Tensor::from_slice(&[v.len()], &v),
            (None, Some(v)) => Tensor::from_strings(&[v.len()], &v),
            (Some(_), Some(_)) => return Err(self.error("has class labels of both types")),
        };
        made.map(Some).map_err(|e| self.error(e.to_string()))
    }
}

/// A matrix, the dtype of its elements, and the number of its columns where that is known.
type Rows = (ValueId, DType, Option<usize>);

/// A list of floats as a tensor of a float dtype.
fn floats(
    c: &ImportedNode,
    dtype: DType,
    shape: &[usize],
    v: &[f64],
) -> Result<Tensor, ModelError> {
    let made = match dtype {
        DType::F64 => Tensor::from_slice(shape, v),
        _ => Tensor::from_slice(shape, &v.iter().map(|x| *x as f32).collect::<Vec<_>>()),
    };
    made.map_err(|e| c.error(e.to_string()))
}

impl Expansion<'_> {
    /// Operand 0 as floats: f64 stays, and all other numbers become f32.
    fn real(&mut self) -> Result<(ValueId, DType), ImportFailure> {
        self.real_of(DType::F32)
    }

    /// As [`Self::real`], but numbers other than f64 become `other`.
    fn real_of(&mut self, other: DType) -> Result<(ValueId, DType), ImportFailure> {
        let x = self.c.need(0)?;
        let dtype = match self.ty(x)?.dtype {
            DType::F64 => DType::F64,
            dtype if dtype.is_number() && !dtype.is_narrow() => other,
            dtype => return Err(unsupported(format!("operands of {dtype}"))),
        };
        Ok((self.cast(x, dtype)?, dtype))
    }

    /// Operand 0 as a matrix of floats with a row for each example, and the number of its columns where that is known.
    fn rows(&mut self) -> Result<Rows, ImportFailure> {
        self.rows_of(DType::F32)
    }

    /// As [`Self::rows`], but numbers other than f64 become `other`.
    fn rows_of(&mut self, other: DType) -> Result<Rows, ImportFailure> {
        let (x, dtype) = self.real_of(other)?;
        let shape = self.shape(x)?;
        let x = match shape.len() {
            1 => self.unsqueezed(x, &[0])?,
            2 => x,
            rank => return Err(unsupported(format!("an operand of rank {rank}"))),
        };
        let columns = shape
            .last()
            .and_then(|d| usize::try_from(d.as_const()?).ok());
        Ok((x, dtype, columns))
    }

    /// Scores [N, E] after a transform.
    fn transformed(&mut self, x: ValueId, dtype: DType, how: Transform) -> Made {
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

    /// Output 0 of a classifier: the label at each of the places [N].
    fn labelled(&mut self, places: ValueId, labels: ValueId) -> Made {
        self.last(0, "Gather", axis_of(0), &[labels, places])
    }

    /// The places of the greatest scores of each row.
    fn greatest(&mut self, scores: ValueId) -> Made {
        self.op(
            "ArgMax",
            without_axes().with("axis", Attr::Int(1)),
            &[scores],
        )
    }

    /// For each of the scores [N, 1], whether it is above a threshold, as a place among two labels: [N].
    fn above(&mut self, score: ValueId, dtype: DType, threshold: f64) -> Made {
        let threshold = self.float("threshold", dtype, threshold)?;
        let above = self.plain("Greater", &[score, threshold])?;
        let above = self.cast(above, DType::I64)?;
        self.reshaped(above, &[-1])
    }
}
