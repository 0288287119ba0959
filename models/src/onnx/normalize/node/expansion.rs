//! Adds the nodes that an op is expanded into.

use convoke_graph::graph::{Attr, Attrs, TensorType, ValueId};
use convoke_graph::{DType, Dim, Tensor};
use half::{bf16, f16};

use super::imported::{ImportFailure, ImportedNode, unsupported};
use crate::onnx::builder::Builder;

/// A value that an expansion makes.
pub(in crate::onnx) type Made = Result<ValueId, ImportFailure>;

/// The expansion of one node: a builder, and the node whose name the new nodes have.
pub(in crate::onnx) struct Expansion<'a> {
    pub b: &'a mut Builder,
    pub c: &'a ImportedNode,
}

impl Expansion<'_> {
    /// Adds a node, and returns its only output.
    pub fn op(&mut self, op: &str, attrs: Attrs, operands: &[ValueId]) -> Made {
        let operands = operands.iter().copied().map(Some).collect();
        Ok(self.c.before(self.b, op, attrs, operands)?)
    }

    /// Adds a node without attributes.
    pub fn plain(&mut self, op: &str, operands: &[ValueId]) -> Made {
        self.op(op, Attrs::default(), operands)
    }

    /// Adds the node that yields output `o` of the expanded one, under the name of that output.
    pub fn last(&mut self, o: usize, op: &str, attrs: Attrs, operands: &[ValueId]) -> Made {
        let operands = operands.iter().copied().map(Some).collect();
        let output = self.c.outputs.get(o).cloned().unwrap_or_default();
        let made = self.b.emit(op, &self.c.name, attrs, operands, &[output])?;
        let made = made.first().copied();
        Ok(made.ok_or_else(|| self.c.error("has no output"))?)
    }

    /// Whether output `o` has a name, without which nothing can read it.
    pub fn is_read(&self, o: usize) -> bool {
        self.c.outputs.get(o).is_some_and(|name| !name.is_empty())
    }

    /// The type of operand `i`, where it is given and its type is known.
    pub fn operand(&self, i: usize) -> Option<&TensorType> {
        self.b.ty(self.c.input(i)?)
    }

    /// The type of a value that this expansion made or reads.
    pub fn ty(&self, x: ValueId) -> Result<TensorType, ImportFailure> {
        self.b.ty(x).cloned().ok_or(ImportFailure::Consequence)
    }

    /// The shape of a value.
    pub fn shape(&self, x: ValueId) -> Result<Vec<Dim>, ImportFailure> {
        Ok(self.ty(x)?.shape)
    }

    /// A literal list of integers.
    pub fn ints(&mut self, what: &str, v: &[i64]) -> Made {
        Ok(self.b.ints(&self.c.sub(what), v)?)
    }

    /// A literal i64 scalar.
    pub fn int(&mut self, what: &str, v: i64) -> Made {
        Ok(self.b.literal(&self.c.sub(what), Tensor::scalar(v)))
    }

    /// A literal scalar of a float dtype.
    pub fn float(&mut self, what: &str, dtype: DType, v: f64) -> Made {
        let t = match dtype {
            DType::F64 => Some(Tensor::scalar(v)),
            _ => float(dtype, v as f32),
        };
        let t = t.ok_or_else(|| unsupported(format!("operands of {dtype}")))?;
        Ok(self.b.literal(&self.c.sub(what), t))
    }

    /// `x` with its axes in another order; `x` itself where that is the order.
    pub fn transposed(&mut self, x: ValueId, perm: &[usize]) -> Made {
        match perm.is_sorted() {
            true => Ok(x),
            false => self.op("Transpose", perm_of(perm), &[x]),
        }
    }

    /// `x` under a literal shape, in which 0 copies a dimension and -1 follows from the rest.
    pub fn reshaped(&mut self, x: ValueId, shape: &[i64]) -> Made {
        let shape = self.ints("shape", shape)?;
        self.plain("Reshape", &[x, shape])
    }

    /// `x` with axes of length 1 inserted, which are numbered as in the result.
    pub fn unsqueezed(&mut self, x: ValueId, axes: &[i64]) -> Made {
        if axes.is_empty() {
            return Ok(x);
        }
        let axes = self.ints("axes", axes)?;
        self.plain("Unsqueeze", &[x, axes])
    }

    /// Elements `from..to` of an axis, each `step`-th of them.
    pub fn slice(&mut self, x: ValueId, axis: i64, from: i64, to: i64, step: i64) -> Made {
        let mut operands = vec![
            x,
            self.ints("starts", &[from])?,
            self.ints("ends", &[to])?,
            self.ints("axes", &[axis])?,
        ];
        if step != 1 {
            operands.push(self.ints("steps", &[step])?);
        }
        self.plain("Slice", &operands)
    }

    /// The operands one after the other along an axis.
    pub fn joined(&mut self, axis: i64, parts: &[ValueId]) -> Made {
        match parts {
            [one] => Ok(*one),
            _ => self.op("Concat", axis_of(axis), parts),
        }
    }

    /// The length of an axis of `x`, as a list of one number.
    pub fn length(&mut self, x: ValueId, axis: i64) -> Made {
        let attrs = Attrs::default().with("start", Attr::Int(axis));
        let attrs = match axis {
            -1 => attrs,
            _ => attrs.with("end", Attr::Int(axis + 1)),
        };
        self.op("Shape", attrs, &[x])
    }

    /// A list of one element as a scalar.
    pub fn scalar(&mut self, x: ValueId) -> Made {
        let axes = self.ints("axes", &[0])?;
        self.plain("Squeeze", &[x, axes])
    }

    /// The integers from 0 to a scalar, without it.
    pub fn counted(&mut self, limit: ValueId) -> Made {
        let (first, step) = (self.int("first", 0)?, self.int("step", 1)?);
        self.plain("Range", &[first, limit, step])
    }

    /// `x` converted to a dtype; `x` itself where it has that dtype.
    pub fn cast(&mut self, x: ValueId, to: DType) -> Made {
        match self.b.ty(x).is_some_and(|ty| ty.dtype == to) {
            true => Ok(x),
            false => self.op("Cast", to_dtype(to), &[x]),
        }
    }
}

/// The attributes of a Reshape in whose shape a zero is a length, not a dimension that is copied from the operand.
pub(in crate::onnx) fn exact() -> Attrs {
    Attrs::default().with("allowzero", Attr::Int(1))
}

/// The attribute of an op that acts along an axis.
pub(in crate::onnx) fn axis_of(axis: i64) -> Attrs {
    Attrs::default().with("axis", Attr::Int(axis))
}

/// The attribute of a transpose.
pub(in crate::onnx) fn perm_of(perm: &[usize]) -> Attrs {
    let perm = perm.iter().map(|axis| *axis as i64).collect();
    Attrs::default().with("perm", Attr::Ints(perm))
}

/// The attribute of a conversion.
pub(in super::super) fn to_dtype(to: DType) -> Attrs {
    Attrs::default().with("to", Attr::DType(to))
}

/// The attribute of a reduction that removes the reduced axes.
pub(in crate::onnx) fn without_axes() -> Attrs {
    Attrs::default().with("keepdims", Attr::Int(0))
}

/// Whether numbers of a dtype are computed in f32.
pub(in super::super) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// A scalar of a float dtype; `None` for other dtypes.
pub(in super::super) fn float(dtype: DType, v: f32) -> Option<Tensor> {
    Some(match dtype {
        DType::F32 => Tensor::scalar(v),
        DType::F64 => Tensor::scalar(f64::from(v)),
        DType::F16 => Tensor::scalar(f16::from_f32(v)),
        DType::BF16 => Tensor::scalar(bf16::from_f32(v)),
        _ => return None,
    })
}
