//! The arguments of an op's implementation: a [`Spec`] when its kernel is resolved, an [`OpLaunch`] at every launch.

use convoke_common::Error;
use convoke_graph::graph::Attrs;
use convoke_graph::ops::{ConcreteOutputs, OpDef, OpError};
use convoke_graph::{DType, Element, Outputs, Tensor};
use convoke_kernels::shape::Operand;

use super::failure::KernelFailure;
use super::launch::Launch;

/// The key by which an implementation is chosen.
pub(crate) struct Spec<'a> {
    pub def: &'static OpDef,
    pub attrs: &'a Attrs,
    pub operands: &'a [Option<DType>],
}

impl Spec<'_> {
    /// The dtype of operand `i`; fails where it is left out.
    pub fn dtype(&self, i: usize) -> Result<DType, OpError> {
        let got = self.operands.len();
        let dtype = self.operands.get(i).copied().flatten();
        dtype.ok_or_else(|| OpError::OperandCount {
            expected: format!("at least {}", i + 1),
            got,
        })
    }

    /// The error for a `dtype` without an implementation.
    pub fn no_dtype(&self, dtype: DType) -> OpError {
        OpError::DType {
            operand: self.def.name.into(),
            got: dtype,
            allowed: "a dtype that its definition names".into(),
        }
    }

    /// The error that attribute `attr` has a meaningless value.
    pub fn bad_attr(&self, attr: &str, reason: impl Into<String>) -> OpError {
        OpError::Attr {
            attr: attr.into(),
            reason: reason.into(),
        }
    }
}

/// One launch, with the attributes and output sizes of its op.
pub(crate) struct OpLaunch<'c, 'l> {
    pub attrs: &'c Attrs,
    /// Dtypes and shapes of the outputs, by the registry's rule.
    pub outputs: &'c ConcreteOutputs,
    pub launch: &'c mut Launch<'l>,
}

impl OpLaunch<'_, '_> {
    /// Operand `i`; `None` where it is left out or was taken.
    #[inline]
    pub fn optional(&self, i: usize) -> Option<&Tensor> {
        self.launch.inputs.get(i)
    }

    /// Operand `i`; fails where it is left out or was taken.
    #[inline]
    pub fn input(&self, i: usize) -> Result<&Tensor, KernelFailure> {
        self.optional(i)
            .ok_or_else(|| Error::internal(format!("operand {i} is missing")).into())
    }

    /// Operand `i`, moved out where the launch is the last to read it, so that it may be alone on its buffer; fails
    /// where it is left out.
    #[inline]
    pub fn take(&mut self, i: usize) -> Result<Tensor, KernelFailure> {
        let taken = self.launch.inputs.take(i);
        taken.ok_or_else(|| Error::internal(format!("operand {i} is missing")).into())
    }

    /// The elements of operand `i`.
    #[inline]
    pub fn slice<T: Element>(&self, i: usize) -> Result<&[T], KernelFailure> {
        Ok(self.input(i)?.as_slice()?)
    }

    /// The elements of operand `i`; `None` where it is left out.
    pub fn optional_slice<T: Element>(&self, i: usize) -> Result<Option<&[T]>, KernelFailure> {
        Ok(self.optional(i).map(Tensor::as_slice).transpose()?)
    }

    /// The dimensions of operand `i`.
    #[inline]
    pub fn shape(&self, i: usize) -> Result<&[usize], KernelFailure> {
        Ok(self.input(i)?.shape())
    }

    /// The elements of an integer operand as i64; `None` where it is left out.
    pub fn ints(&self, i: usize) -> Result<Option<Vec<i64>>, KernelFailure> {
        let Some(t) = self.optional(i) else {
            return Ok(None);
        };
        let ints = t.to_i64s();
        let bad = || {
            KernelFailure::values(format!(
                "operand {i} ({t:?}) must hold integers that fit i64"
            ))
        };
        ints.map(Some).ok_or_else(bad)
    }

    /// The dimensions of output `o`.
    #[inline]
    pub fn out_shape(&self, o: usize) -> &[usize] {
        self.outputs.get(o).map_or(&[], |(_, shape)| shape)
    }

    /// Allocates output `o`; its contents are unspecified.
    #[inline]
    pub fn output(&self, o: usize) -> Result<Tensor, KernelFailure> {
        let (dtype, shape) = self
            .outputs
            .get(o)
            .ok_or_else(|| Error::internal(format!("output {o} has no size")))?;
        Ok(self.launch.pool.tensor(*dtype, shape)?)
    }

    /// Allocates scratch memory of `len` elements; its contents are unspecified.
    pub fn scratch<T: Element>(&self, len: usize) -> Result<Tensor, KernelFailure> {
        Ok(self.launch.pool.tensor(T::DTYPE, &[len])?)
    }

    /// Operand `i` itself, to be overwritten as output `o`; `None` unless no one else holds its buffer and it has the
    /// output's dtype and size.
    #[inline]
    pub fn reuse(&mut self, i: usize, o: usize) -> Option<Tensor> {
        let (dtype, shape) = self.outputs.get(o)?;
        let elements: usize = shape.iter().product();
        let own = self.launch.inputs.own(i)?;
        if own.dtype() != *dtype || own.elements() != elements {
            return None;
        }
        let tensor = self.launch.inputs.take(i)?;
        if tensor.shape() == shape.as_slice() {
            Some(tensor)
        } else {
            tensor.into_shape(shape)
        }
    }
}

/// The elements of a tensor that was just allocated, or whose buffer no one else holds.
#[inline]
pub(crate) fn write<T: Element>(t: &mut Tensor) -> Result<&mut [T], KernelFailure> {
    t.as_mut_slice()
        .ok_or_else(|| Error::internal("an output's buffer is shared or of another dtype").into())
}

/// Wraps the result of an op with one output.
#[inline]
pub(crate) fn one(t: Tensor) -> Result<Outputs, KernelFailure> {
    Ok(t.into())
}

/// A tensor's elements with their shape.
#[inline(always)]
pub(crate) fn operand<T: Element>(t: &Tensor) -> Result<Operand<'_, T>, KernelFailure> {
    Ok(Operand::new(t.as_slice()?, t.shape()))
}

/// The elements as unsigned integers of their size, for code that only moves elements.
pub(crate) fn bits<T: bytemuck::Pod>(t: &Tensor) -> &[T] {
    bytemuck::cast_slice(t.bytes())
}

/// Like [`bits`], for writing: the tensor was just allocated, or no one else holds its buffer.
pub(crate) fn write_bits<T: bytemuck::Pod>(t: &mut Tensor) -> Result<&mut [T], KernelFailure> {
    let bytes = t
        .bytes_mut()
        .ok_or_else(|| Error::internal("an output's buffer is shared"))?;
    Ok(bytemuck::cast_slice_mut(bytes))
}
