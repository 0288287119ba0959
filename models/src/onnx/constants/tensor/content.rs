//! A constant as a model states it: its dtype, its dimensions, and where its content lies.

use convoke_graph::graph::TensorType;
use convoke_graph::{DType, Tensor};

use crate::onnx::skeleton::Piece;

/// A constant of the model.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::onnx) struct Constant {
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// Size of the content in bytes.
    pub bytes: u64,
    pub content: Content,
}

/// The location of the content of a constant.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::onnx) enum Content {
    /// The content itself.
    Inline(Tensor),
    /// Raw elements at this offset of the model file.
    Model(u64),
    /// Raw elements in another file, at this offset.
    External { location: String, offset: u64 },
    /// Encoded elements in the model file.
    Encoded(Vec<Piece>),
    /// Decoded elements, which are too large to be inline.
    Decoded(Vec<u8>),
    /// Elements that lie among zeros.
    Scattered(Scattered),
    /// The model has no content: a weights file must have it.
    Missing,
}

impl Constant {
    /// The type of the constant.
    pub(in crate::onnx) fn ty(&self) -> TensorType {
        TensorType::fixed(self.dtype, &self.shape)
    }
}

/// The elements of a dense tensor that are not zero.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::onnx) struct Scattered {
    /// The elements, one after the other.
    pub elements: Vec<u8>,
    /// The position of each element, counted in elements of the dense tensor; they ascend.
    pub positions: Vec<u64>,
}
