//! Methods by numpy's names for what ops of the registry do in another form, and methods that create tensors.

use convoke_common::error::Result;
use convoke_graph::DType;
use convoke_graph::Tensor as HostTensor;

use super::Tensor;
use super::args::{Arg, Axes, HostArg, Scalar, Seed};
use super::call::{self, CallOperand};
use super::operand::Operand;
use crate::device::Device;
use crate::device::scope::enter;

/// The dtype in which numpy sums elements of a dtype.
fn summed(dtype: DType) -> DType {
    match dtype {
        DType::Bool | DType::I8 | DType::I16 | DType::I32 => DType::I64,
        DType::U8 | DType::U16 | DType::U32 => DType::U64,
        other => other,
    }
}

/// The dtype in which numpy averages elements of a dtype.
fn averaged(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::F64 }
}

/// Methods by numpy's names.
impl Tensor {
    /// The sum over axes, or of all elements; the summed axes are removed. Integers narrower than 64 bits are summed in
    /// 64 bits. The sum of no elements is 0.
    #[track_caller]
    pub fn sum(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.reduced("ReduceSum", summed(self.dtype()), axes.into())
    }

    /// The product over axes, or of all elements; the multiplied axes are removed. Integers are treated as by
    /// [`Tensor::sum`]. The product of no elements is 1.
    #[track_caller]
    pub fn prod(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.reduced("ReduceProd", summed(self.dtype()), axes.into())
    }

    /// The mean over axes, or of all elements; the averaged axes are removed. Integers are averaged in f64. The mean of
    /// no elements is NaN.
    #[track_caller]
    pub fn mean(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.reduced("ReduceMean", averaged(self.dtype()), axes.into())
    }

    /// The greatest element along axes, or of all elements; the reduced axes are removed. Fails where one of the axes
    /// is empty, since no elements have no greatest one. [`Tensor::reduce_max`] returns the least value of the dtype
    /// then, as ONNX requires.
    #[track_caller]
    pub fn max(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.reduced("ReduceMax", self.dtype(), axes.into())
    }

    /// The least element along axes, or of all elements; the reduced axes are removed. Fails where one of the axes is
    /// empty, as [`Tensor::max`] does.
    #[track_caller]
    pub fn min(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.reduced("ReduceMin", self.dtype(), axes.into())
    }

    #[track_caller]
    fn reduced(&self, op: &str, dtype: DType, axes: Axes) -> Result<Tensor> {
        // An empty list means no axis, and not every axis.
        let none = axes.0.as_ref().is_some_and(Vec::is_empty);
        let extremum = matches!(op, "ReduceMax" | "ReduceMin");
        let of = self.cast_to(dtype)?;
        let attrs = call::attrs([
            ("keepdims", call::flag(false)),
            ("noop_with_empty_axes", call::flag(none)),
            ("refuse_empty", call::flag(extremum.then_some(true))),
        ]);
        call::one(op, attrs, &[call::strict(&of), call::optional_host(axes)?])
    }

    /// Casts the tensor, unless it has the dtype already.
    #[track_caller]
    fn cast_to(&self, dtype: DType) -> Result<Tensor> {
        match self.dtype() == dtype {
            true => Ok(self.clone()),
            false => call::cast(self, dtype),
        }
    }

    /// The index, as i64, of the first greatest element along an axis, which is removed; or with `None` among all
    /// elements, in row-major order. Fails where the axis is empty.
    #[track_caller]
    pub fn argmax(&self, axis: impl Into<Option<i64>>) -> Result<Tensor> {
        self.extremum("ArgMax", axis.into())
    }

    /// The index of the first least element, otherwise like [`Tensor::argmax`].
    #[track_caller]
    pub fn argmin(&self, axis: impl Into<Option<i64>>) -> Result<Tensor> {
        self.extremum("ArgMin", axis.into())
    }

    #[track_caller]
    fn extremum(&self, op: &str, axis: Option<i64>) -> Result<Tensor> {
        let (of, axis) = match axis {
            Some(axis) => (self.clone(), axis),
            None => (self.ravel()?, 0),
        };
        let attrs = call::attrs([("axis", call::int(axis)), ("keepdims", call::flag(false))]);
        call::one(op, attrs, &[call::strict(&of)])
    }

    /// The elements in another shape. One of its dimensions may be -1, and follows from the others. A zero is a
    /// dimension of length 0.
    #[track_caller]
    pub fn reshape<'a>(&self, shape: impl Into<HostArg<'a>>) -> Result<Tensor> {
        self.reshape_op(shape, true)
    }

    /// All elements along one axis, row-major.
    #[track_caller]
    pub fn ravel(&self) -> Result<Tensor> {
        self.reshape_op(-1, None)
    }

    /// The axes in reverse order.
    #[track_caller]
    pub fn t(&self) -> Result<Tensor> {
        self.transpose(None)
    }

    /// The tensor with two axes exchanged.
    #[track_caller]
    pub fn swap_axes(&self, a: i64, b: i64) -> Result<Tensor> {
        let rank = self.rank() as i64;
        let from_front = |axis: i64| if axis < 0 { axis + rank } else { axis };
        let (a, b) = (from_front(a), from_front(b));
        let perm = (0..rank).map(|axis| match axis {
            _ if axis == a => b,
            _ if axis == b => a,
            _ => axis,
        });
        // An axis out of range is passed on, so that the op refuses it. Left out, it would leave the other axes as they
        // are.
        let outside = [a, b].into_iter().find(|axis| !(0..rank).contains(axis));
        self.transpose(perm.chain(outside).collect::<Vec<_>>())
    }

    /// The running sum along an axis. Integers are summed as by [`Tensor::sum`].
    #[track_caller]
    pub fn cumsum(&self, axis: i64) -> Result<Tensor> {
        self.cast_to(summed(self.dtype()))?
            .cum_sum(axis, None, None)
    }

    /// The upper triangle of the last two axes, from diagonal `k` on; the rest is zero.
    #[track_caller]
    pub fn triu(&self, k: i64) -> Result<Tensor> {
        self.trilu(k, true)
    }

    /// The lower triangle of the last two axes, up to diagonal `k`; the rest is zero.
    #[track_caller]
    pub fn tril(&self, k: i64) -> Result<Tensor> {
        self.trilu(k, false)
    }

    /// The greater of two operands, by element and broadcast. Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn maximum<'a>(&self, other: impl Into<Arg<'a>>) -> Result<Tensor> {
        let operands = [call::joint(self), call::joint(other)];
        call::one("Max", call::attrs([]), &operands)
    }

    /// The lesser of two operands, by element and broadcast. Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn minimum<'a>(&self, other: impl Into<Arg<'a>>) -> Result<Tensor> {
        let operands = [call::joint(self), call::joint(other)];
        call::one("Min", call::attrs([]), &operands)
    }

    /// A != B, broadcast. Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn not_equal<'a>(&self, other: impl Into<Arg<'a>>) -> Result<Tensor> {
        self.equal(other)?.not()
    }

    /// A tensor of dtype `dtype` with a new last axis of length `depth`: it is 1 at the index that the element gives,
    /// and 0 elsewhere.
    #[track_caller]
    pub fn one_hot(&self, depth: i64, dtype: DType) -> Result<Tensor> {
        let (off, on) = (Scalar::Bool(false), Scalar::Bool(true));
        let bytes = [off.to_tensor(dtype)?.bytes(), on.to_tensor(dtype)?.bytes()].concat();
        let values = HostTensor::from_bytes(dtype, &[2], &bytes)?;
        let values = CallOperand::Strict(Operand::Value(values));
        let operands = [call::strict(self), call::host(depth)?, values];
        call::one("OneHot", call::attrs([]), &operands)
    }

    /// Cuts the tensor along an axis of `n` elements into parts of `n / parts` elements each, rounded up; the last part
    /// may be shorter. There are fewer parts than asked for where fewer suffice, as in torch: 5 elements in 4 parts are
    /// 2, 2 and 1. Every part of an empty axis is empty.
    ///
    /// Where the length of the axis is not known yet, there are always `parts` parts: the last part may turn out to be
    /// empty, and a length that would leave more parts empty is an error.
    #[track_caller]
    pub fn chunk(&self, parts: usize, axis: i64) -> Result<Vec<Tensor>> {
        if parts == 0 {
            return call::refused(
                "Split",
                "nothing is cut into 0 parts",
                &[call::strict(self)],
            );
        }
        let at = usize::try_from(if axis < 0 {
            axis + self.rank() as i64
        } else {
            axis
        });
        let dims = self.ty().shape;
        let length = at.ok().and_then(|at| dims.get(at)?.as_const());
        let length = length
            .and_then(|n| usize::try_from(n).ok())
            .filter(|n| *n > 0);
        let needed = length.map_or(parts, |n| n.div_ceil(n.div_ceil(parts)));
        self.split(None, axis, needed)
    }

    /// Joins tensors of one shape along a new axis. They are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn stack(tensors: &[&Tensor], axis: i64) -> Result<Tensor> {
        let mut with_axis = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            with_axis.push(tensor.unsqueeze(axis)?);
        }
        Tensor::concat(&with_axis.iter().collect::<Vec<_>>(), axis)
    }
}

/// A shape as an operand.
fn dims(shape: impl AsRef<[usize]>) -> Vec<i64> {
    // A length beyond i64 becomes the greatest i64, which the op refuses.
    let dim = |d: &usize| i64::try_from(*d).unwrap_or(i64::MAX);
    shape.as_ref().iter().map(dim).collect()
}

/// Methods that create tensors.
impl Device {
    /// A tensor whose elements all have one value. Fails where the dtype cannot hold the value.
    #[track_caller]
    pub fn full(
        &self,
        shape: impl AsRef<[usize]>,
        value: impl Into<Scalar>,
        dtype: DType,
    ) -> Result<Tensor> {
        let value = call::number("ConstantOfShape", value.into(), dtype)?;
        self.constant_of_shape(dims(shape), value)
    }

    /// A tensor of zeros.
    #[track_caller]
    pub fn zeros(&self, shape: impl AsRef<[usize]>, dtype: DType) -> Result<Tensor> {
        self.full(shape, false, dtype)
    }

    /// A tensor of ones.
    #[track_caller]
    pub fn ones(&self, shape: impl AsRef<[usize]>, dtype: DType) -> Result<Tensor> {
        self.full(shape, true, dtype)
    }

    /// The integers 0, 1, .. before `end`, as i64; see also [`Device::range`].
    #[track_caller]
    pub fn arange(&self, end: i64) -> Result<Tensor> {
        self.range(0, end, 1)
    }

    /// A square matrix with ones on its diagonal, and zeros elsewhere.
    #[track_caller]
    pub fn eye(&self, n: usize, dtype: DType) -> Result<Tensor> {
        let zeros = self.zeros([n, n], dtype)?;
        let _entered = enter(self);
        zeros.eye_like(None, None)
    }

    /// Random floats, uniform in [0, 1). The same seed gives the same bits on any device.
    #[track_caller]
    pub fn random_uniform(
        &self,
        shape: impl AsRef<[usize]>,
        dtype: DType,
        seed: impl Into<Seed>,
    ) -> Result<Tensor> {
        self.philox_uniform(
            dims(shape),
            <[i64; 2]>::from(seed.into()),
            dtype,
            None,
            None,
        )
    }

    /// Random floats of the normal distribution around 0 with standard deviation 1. The same seed gives the same bits
    /// on any device.
    #[track_caller]
    pub fn random_normal(
        &self,
        shape: impl AsRef<[usize]>,
        dtype: DType,
        seed: impl Into<Seed>,
    ) -> Result<Tensor> {
        self.philox_normal(
            dims(shape),
            <[i64; 2]>::from(seed.into()),
            dtype,
            None,
            None,
        )
    }
}
