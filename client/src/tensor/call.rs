//! Issuing ops for the methods of tensors and devices: operands are brought to one dtype, and the attributes that were
//! given are collected.

use std::panic::Location;
use std::sync::Arc;

use convoke_common::error::{Code, Error, Result, Site};
use convoke_graph::DType;
use convoke_graph::Tensor as HostTensor;
use convoke_graph::dtype::promote;
use convoke_graph::graph::{Attr, Attrs};
use smallvec::SmallVec;

use super::Tensor;
use super::apply::{apply, too_many};
use super::args::{Arg, ArgKind, Axes, HostArg, OptArg, OptHostArg, Scalar};
use super::operand::{OpResults, Operand};
use crate::device::Device;

/// An operand of a method, and whether it is brought to the dtype of others.
pub(super) enum CallOperand<'a> {
    /// The operand is passed as it is.
    Strict(Operand<'a>),
    /// The operand is brought to the common dtype of all joint operands.
    Joint(ArgKind<'a>),
}

pub(super) fn strict(tensor: &Tensor) -> CallOperand<'_> {
    CallOperand::Strict(Operand::Tensor(tensor))
}

pub(super) fn optional(tensor: Option<&Tensor>) -> CallOperand<'_> {
    CallOperand::Strict(tensor.map_or(Operand::None, Operand::Tensor))
}

pub(super) fn joint<'a>(arg: impl Into<Arg<'a>>) -> CallOperand<'a> {
    CallOperand::Joint(arg.into().0)
}

pub(super) fn optional_joint<'a>(arg: impl Into<OptArg<'a>>) -> CallOperand<'a> {
    CallOperand::Joint(arg.into().0)
}

pub(super) fn host<'a>(arg: impl Into<HostArg<'a>>) -> Result<CallOperand<'a>> {
    arg.into().operand().map(CallOperand::Strict)
}

pub(super) fn optional_host<'a>(arg: impl Into<OptHostArg<'a>>) -> Result<CallOperand<'a>> {
    arg.into().operand().map(CallOperand::Strict)
}

/// The dtype that the joint operands are brought to, see [`Arg`], or `None` where no tensor is among them; and whether
/// one of these tensors has another dtype.
fn common(operands: &[CallOperand<'_>]) -> (Option<DType>, bool) {
    let (mut tensors, mut numbers, mut mixed) = (None, false, false);
    for operand in operands {
        match operand {
            CallOperand::Joint(ArgKind::Tensor(t)) => {
                let dtype = t.dtype();
                let so_far = tensors.unwrap_or(dtype);
                mixed |= so_far != dtype;
                tensors = Some(promote(so_far, dtype));
            }
            CallOperand::Joint(ArgKind::Scalar(_)) => numbers = true,
            _ => {}
        }
    }
    match tensors {
        Some(dtype) if numbers => {
            let all = operands.iter().filter_map(number_of).fold(dtype, beside);
            (Some(all), mixed || all != dtype)
        }
        _ => (tensors, mixed),
    }
}

/// The number of the program that a joint operand is.
fn number_of(operand: &CallOperand<'_>) -> Option<Scalar> {
    match operand {
        CallOperand::Joint(ArgKind::Scalar(s)) => Some(*s),
        _ => None,
    }
}

/// The dtype that numpy brings numbers to where no operand is a tensor.
fn of_numbers(operands: &[CallOperand<'_>]) -> DType {
    let each = operands.iter().filter_map(number_of).map(|s| match s {
        Scalar::Bool(_) => DType::Bool,
        Scalar::Int(_) => DType::I64,
        Scalar::Float(_) => DType::F64,
    });
    each.reduce(promote).unwrap_or(DType::F64)
}

/// The dtype that tensors of `dtype` and a number of the program are brought to.
fn beside(dtype: DType, number: Scalar) -> DType {
    match number {
        // A number is never a string, so the call is refused.
        _ if dtype == DType::Str => dtype,
        Scalar::Float(_) if !dtype.is_float() => DType::F64,
        Scalar::Int(_) if dtype == DType::Bool => DType::I64,
        _ => dtype,
    }
}

/// Adds the op, its operands, and the line of the call to an error.
fn located(error: Error, op: &str, operands: &[CallOperand<'_>], at: &Location<'_>) -> Error {
    let operands = operands.iter().filter_map(|g| match g {
        CallOperand::Strict(Operand::Tensor(t)) | CallOperand::Joint(ArgKind::Tensor(t)) => {
            Some(t.ty().to_string())
        }
        CallOperand::Strict(Operand::Value(t)) => Some(t.signature()),
        _ => None,
    });
    error.at(Site {
        op: Some(op.to_owned()),
        operands: operands.collect(),
        origin: Some(format!("{}:{}", at.file(), at.line())),
        ..Site::default()
    })
}

/// Fails a call that makes no op.
#[track_caller]
pub(super) fn refused<T>(op: &str, why: &str, operands: &[CallOperand<'_>]) -> Result<T> {
    let error = Error::new(Code::InvalidArgument, why);
    Err(located(error, op, operands, Location::caller()))
}

/// Brings the joint operands to one dtype, and issues an op.
#[track_caller]
pub(super) fn several(
    op: &str,
    attrs: Attrs,
    operands: &[CallOperand<'_>],
    outputs: usize,
) -> Result<OpResults> {
    let at = Location::caller();
    if u8::try_from(outputs).is_err() {
        return Err(located(too_many(outputs), op, operands, at));
    }
    match common(operands) {
        (common, false) => issue_operands(op, attrs, operands, outputs, common, &[]),
        (common, true) => brought(op, attrs, operands, outputs, common),
    }
}

/// Casts the joint tensors of other dtypes to `common`, and issues an op.
#[cold]
#[track_caller]
fn brought(
    op: &str,
    attrs: Attrs,
    operands: &[CallOperand<'_>],
    outputs: usize,
    common: Option<DType>,
) -> Result<OpResults> {
    let mut casts: SmallVec<[Tensor; 2]> = SmallVec::new();
    for operand in operands {
        if let (CallOperand::Joint(ArgKind::Tensor(t)), Some(to)) = (operand, common)
            && t.dtype() != to
        {
            casts.push(cast(t, to)?);
        }
    }
    issue_operands(op, attrs, operands, outputs, common, &casts)
}

/// Issues an op whose joint tensors have the dtype `common`, or else are, in their order, the tensors of `casts`.
#[track_caller]
fn issue_operands(
    op: &str,
    attrs: Attrs,
    operands: &[CallOperand<'_>],
    outputs: usize,
    common: Option<DType>,
    casts: &[Tensor],
) -> Result<OpResults> {
    let at = Location::caller();
    let mut casts = casts.iter();
    let mut given: SmallVec<[Operand<'_>; 5]> = SmallVec::new();
    for operand in operands {
        given.push(match operand {
            CallOperand::Strict(Operand::Tensor(t)) => Operand::Tensor(t),
            CallOperand::Strict(Operand::Value(t)) => Operand::Value(t.clone()),
            CallOperand::Joint(ArgKind::Tensor(t)) => match common {
                Some(to) if t.dtype() != to => {
                    casts.next().map_or(Operand::Tensor(t), Operand::Tensor)
                }
                _ => Operand::Tensor(t),
            },
            CallOperand::Joint(ArgKind::Scalar(s)) => {
                let value = s.to_tensor(common.unwrap_or_else(|| of_numbers(operands)));
                Operand::Value(value.map_err(|e| located(e, op, operands, at))?)
            }
            CallOperand::Strict(Operand::None) | CallOperand::Joint(ArgKind::None) => Operand::None,
        });
    }
    apply(op, attrs, &given, outputs)
}

/// Casts a tensor to another dtype.
#[track_caller]
pub(super) fn cast(tensor: &Tensor, to: DType) -> Result<Tensor> {
    let attrs = attrs([("to", dtype(to))]);
    first(apply("Cast", attrs, &[Operand::Tensor(tensor)], 1)?)
}

fn first(made: OpResults) -> Result<Tensor> {
    made.into_iter().next().ok_or_else(no_output)
}

fn no_output() -> Error {
    Error::internal("an op without outputs")
}

/// Issues an op with one output.
#[track_caller]
pub(super) fn one(op: &str, attrs: Attrs, operands: &[CallOperand<'_>]) -> Result<Tensor> {
    first(several(op, attrs, operands, 1)?)
}

/// Issues an op with two outputs.
#[track_caller]
pub(super) fn two(
    op: &str,
    attrs: Attrs,
    operands: &[CallOperand<'_>],
) -> Result<(Tensor, Tensor)> {
    let mut made = several(op, attrs, operands, 2)?.into_iter();
    made.next().zip(made.next()).ok_or_else(no_output)
}

/// Issues an op with three outputs.
#[track_caller]
pub(super) fn three(
    op: &str,
    attrs: Attrs,
    operands: &[CallOperand<'_>],
) -> Result<(Tensor, Tensor, Tensor)> {
    let mut made = several(op, attrs, operands, 3)?.into_iter();
    match (made.next(), made.next(), made.next()) {
        (Some(a), Some(b), Some(c)) => Ok((a, b, c)),
        _ => Err(no_output()),
    }
}

/// Issues an op with four outputs.
#[track_caller]
pub(super) fn four(
    op: &str,
    attrs: Attrs,
    operands: &[CallOperand<'_>],
) -> Result<(Tensor, Tensor, Tensor, Tensor)> {
    let mut made = several(op, attrs, operands, 4)?.into_iter();
    match (made.next(), made.next(), made.next(), made.next()) {
        (Some(a), Some(b), Some(c), Some(d)) => Ok((a, b, c, d)),
        _ => Err(no_output()),
    }
}

/// Issues an op that has no operand on a device, on `device`.
#[track_caller]
pub(super) fn create(
    device: &Device,
    op: &str,
    attrs: Attrs,
    operands: &[CallOperand<'_>],
) -> Result<Tensor> {
    let operands = operands.iter().map(|g| match g {
        CallOperand::Strict(Operand::Tensor(t)) => Operand::Tensor(t),
        CallOperand::Strict(Operand::Value(t)) => Operand::Value(t.clone()),
        _ => Operand::None,
    });
    let operands: SmallVec<[Operand<'_>; 4]> = operands.collect();
    device.create(op, attrs, &operands)
}

/// Converts a number to a tensor of rank 0 and this dtype. An error names `op` and the line of the call.
#[track_caller]
pub(super) fn number(op: &str, number: Scalar, dtype: DType) -> Result<HostTensor> {
    let at = Location::caller();
    let tensor = number.to_tensor(dtype);
    tensor.map_err(|e| located(e, op, &[], at))
}

/// Collects the attributes that were given.
pub(super) fn attrs<const N: usize>(all: [(&str, Option<Attr>); N]) -> Attrs {
    let given = all.into_iter().filter_map(|(name, v)| Some((name, v?)));
    given.fold(Attrs::default(), |attrs, (name, v)| attrs.with(name, v))
}

pub(super) fn int(v: impl Into<Option<i64>>) -> Option<Attr> {
    v.into().map(Attr::Int)
}

pub(super) fn flag(v: impl Into<Option<bool>>) -> Option<Attr> {
    v.into().map(|v| Attr::Int(v.into()))
}

pub(super) fn float(v: impl Into<Option<f32>>) -> Option<Attr> {
    v.into().map(Attr::Float)
}

pub(super) fn text<'a>(v: impl Into<Option<&'a str>>) -> Option<Attr> {
    v.into().map(|v| Attr::Str(Arc::from(v)))
}

pub(super) fn ints(v: impl Into<Vec<i64>>) -> Option<Attr> {
    Some(Attr::Ints(v.into()))
}

pub(super) fn axes(v: impl Into<Axes>) -> Option<Attr> {
    v.into().0.map(Attr::Ints)
}

/// An attribute that is a list; an empty list stands for an absent attribute.
pub(super) fn list(v: Vec<i64>) -> Option<Attr> {
    (!v.is_empty()).then_some(Attr::Ints(v))
}

/// A list of floats, as [`list`] is one of integers.
pub(super) fn floats(v: Vec<f32>) -> Option<Attr> {
    (!v.is_empty()).then_some(Attr::Floats(v))
}

/// A list of names, as [`list`] is one of integers.
pub(super) fn texts(v: Vec<String>) -> Option<Attr> {
    let all = v.iter().map(|name| Arc::from(name.as_str())).collect();
    (!v.is_empty()).then_some(Attr::Strs(all))
}

pub(super) fn value(v: impl Into<Option<HostTensor>>) -> Option<Attr> {
    v.into().map(Attr::Tensor)
}

pub(super) fn dtype(v: impl Into<Option<DType>>) -> Option<Attr> {
    v.into().map(Attr::DType)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_weak_as_numpys() {
        let (yes, two, half) = (Scalar::Bool(true), Scalar::Int(2), Scalar::Float(0.5));
        for (dtype, number, want) in [
            (DType::F32, half, DType::F32),
            (DType::F16, two, DType::F16),
            (DType::BF16, half, DType::BF16),
            (DType::I32, two, DType::I32),
            (DType::U8, two, DType::U8),
            (DType::I8, half, DType::F64),
            (DType::I64, half, DType::F64),
            (DType::I64, yes, DType::I64),
            (DType::Bool, yes, DType::Bool),
            (DType::Bool, two, DType::I64),
            (DType::Bool, half, DType::F64),
        ] {
            assert_eq!(beside(dtype, number), want, "{dtype} with {number:?}");
        }
    }

    #[test]
    fn attributes_that_were_not_given_are_absent() {
        let given = attrs([
            ("axis", int(-1)),
            ("keepdims", flag(None)),
            ("alpha", float(0.5)),
            ("perm", axes(None)),
            ("pads", list(vec![])),
            ("mode", text("edge")),
        ]);
        let names: Vec<&str> = given.0.keys().map(|k| &**k).collect();
        assert_eq!(names, ["alpha", "axis", "mode"]);
        assert_eq!(given.int("axis", 0), -1);
    }
}
