//! Operands as matrices of floats with a row for each example, and what follows from the scores of each row.

use convoke_graph::graph::{Attr, ValueId};
use convoke_graph::{DType, Tensor};

use super::super::node::{
    Expansion, ImportFailure, ImportedNode, Made, axis_of, unsupported, without_axes,
};
use crate::error::ModelError;

/// A matrix, the dtype of its elements, and the number of its columns where that is known.
pub(super) type Rows = (ValueId, DType, Option<usize>);

/// A list of floats as a tensor of a float dtype.
pub(super) fn floats(
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
    pub(super) fn real(&mut self) -> Result<(ValueId, DType), ImportFailure> {
        self.real_of(DType::F32)
    }

    /// As [`Self::real`], but numbers other than f64 become `other`.
    pub(super) fn real_of(&mut self, other: DType) -> Result<(ValueId, DType), ImportFailure> {
        let x = self.c.need(0)?;
        let dtype = match self.ty(x)?.dtype {
            DType::F64 => DType::F64,
            dtype if dtype.is_number() && !dtype.is_narrow() => other,
            dtype => return Err(unsupported(format!("operands of {dtype}"))),
        };
        Ok((self.cast(x, dtype)?, dtype))
    }

    /// Operand 0 as a matrix of floats with a row for each example, and the number of its columns where that is known.
    pub(super) fn rows(&mut self) -> Result<Rows, ImportFailure> {
        self.rows_of(DType::F32)
    }

    /// As [`Self::rows`], but numbers other than f64 become `other`.
    pub(super) fn rows_of(&mut self, other: DType) -> Result<Rows, ImportFailure> {
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

    /// Output 0 of a classifier: the label at each of the places [N].
    pub(super) fn labelled(&mut self, places: ValueId, labels: ValueId) -> Made {
        self.last(0, "Gather", axis_of(0), &[labels, places])
    }

    /// The places of the greatest scores of each row.
    pub(super) fn greatest(&mut self, scores: ValueId) -> Made {
        self.op(
            "ArgMax",
            without_axes().with("axis", Attr::Int(1)),
            &[scores],
        )
    }

    /// For each of the scores [N, 1], whether it is above a threshold, as a place among two labels: [N].
    pub(super) fn above(&mut self, score: ValueId, dtype: DType, threshold: f64) -> Made {
        let threshold = self.float("threshold", dtype, threshold)?;
        let above = self.plain("Greater", &[score, threshold])?;
        let above = self.cast(above, DType::I64)?;
        self.reshaped(above, &[-1])
    }
}
