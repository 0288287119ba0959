//! Types of a model's inputs and outputs.

use convoke_graph::graph::{Function, TensorType, ValueId};
use convoke_graph::{DType, Shape, Tensor};

/// A parameter or result: its name and type.
#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    /// The name in the model.
    pub name: String,
    /// The dtype and shape, with symbols for dynamic axes.
    pub ty: TensorType,
}

/// The dtype and shape of an array, without its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayType {
    /// The type of the elements.
    pub dtype: DType,
    /// The size of each axis.
    pub shape: Shape,
}

impl std::fmt::Display for ArrayType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

impl From<&Tensor> for ArrayType {
    fn from(t: &Tensor) -> ArrayType {
        ArrayType {
            dtype: t.dtype(),
            shape: t.shape().into(),
        }
    }
}

impl From<Tensor> for ArrayType {
    fn from(t: Tensor) -> ArrayType {
        ArrayType::from(&t)
    }
}

/// Parameters and results of a graph.
pub(crate) fn signatures(f: &Function) -> (Vec<Signature>, Vec<Signature>) {
    let of = |name: &str, value: ValueId| Signature {
        name: name.to_owned(),
        ty: f.ty(value).clone(),
    };
    let inputs = f.params.iter().map(|p| of(&f.value(*p).name, *p));
    let outputs = f.results.iter().map(|(name, value)| of(name, *value));
    (inputs.collect(), outputs.collect())
}
