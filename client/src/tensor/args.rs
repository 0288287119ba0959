//! The arguments that methods of ops take besides tensors: numbers, values in the program's memory, axes and seeds.

use convoke_common::error::{Code, Error, Result};
use convoke_graph::DType;
use convoke_graph::Tensor as HostTensor;
use half::{bf16, f16};

use super::Tensor;
use super::operand::Operand;

/// A number of the program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A float.
    Float(f64),
}

/// An operand that is a tensor or a number of the program.
///
/// # Dtypes
///
/// Elementwise ops bring their operands to one dtype before they compute, by numpy 2's rules; a cast is issued for
/// every tensor of another dtype.
///
/// - Tensors: bool gives way to everything; integers give the narrowest integer that holds both, and f64 where there is
///   none (u64 with a signed one); floats give the wider; a float with an integer gives at least f32 where that has
///   16 bits, and f64 where it has more.
/// - Numbers of the program are weak, whatever their Rust type: they take the tensor's dtype, except that a float
///   beside integers or bools makes f64, and an integer beside bools makes i64. An integer that the dtype cannot hold
///   is an error.
///
/// Other ops, such as products of matrices, require operands of one dtype, and fail where the dtypes differ.
#[derive(Debug, Clone, Copy)]
pub struct Arg<'a>(pub(super) ArgKind<'a>);

#[derive(Debug, Clone, Copy)]
pub(super) enum ArgKind<'a> {
    Tensor(&'a Tensor),
    Scalar(Scalar),
    None,
}

/// An [`Arg`] that may be left out, as `None`.
#[derive(Debug, Clone, Copy)]
pub struct OptArg<'a>(pub(super) ArgKind<'a>);

impl<'a> From<&'a Tensor> for Arg<'a> {
    fn from(tensor: &'a Tensor) -> Arg<'a> {
        Arg(ArgKind::Tensor(tensor))
    }
}

impl<'a> From<&'a Tensor> for OptArg<'a> {
    fn from(tensor: &'a Tensor) -> OptArg<'a> {
        OptArg(ArgKind::Tensor(tensor))
    }
}

impl<'a> From<Option<&'a Tensor>> for OptArg<'a> {
    fn from(tensor: Option<&'a Tensor>) -> OptArg<'a> {
        OptArg(tensor.map_or(ArgKind::None, ArgKind::Tensor))
    }
}

impl From<Scalar> for Arg<'_> {
    fn from(scalar: Scalar) -> Self {
        Arg(ArgKind::Scalar(scalar))
    }
}

impl From<Scalar> for OptArg<'_> {
    fn from(scalar: Scalar) -> Self {
        OptArg(ArgKind::Scalar(scalar))
    }
}

macro_rules! scalars {
    ($($kind:ident: $($t:ty),*;)*) => {$($(
        impl From<$t> for Scalar {
            fn from(v: $t) -> Scalar {
                Scalar::$kind(v.into())
            }
        }
        impl From<$t> for Arg<'_> {
            fn from(v: $t) -> Self {
                Scalar::from(v).into()
            }
        }
        impl From<$t> for OptArg<'_> {
            fn from(v: $t) -> Self {
                Scalar::from(v).into()
            }
        }
    )*)*};
}
scalars! {
    Bool: bool;
    Int: i8, i16, i32, i64, u8, u16, u32, u64;
    Float: f32, f64;
}

impl Scalar {
    /// Converts the number to a tensor of rank 0 and this dtype; floats are rounded. Fails where the dtype cannot hold
    /// the number.
    pub fn to_tensor(self, dtype: DType) -> Result<HostTensor> {
        let cannot = || {
            let v = match self {
                Scalar::Bool(v) => v.to_string(),
                Scalar::Int(v) => v.to_string(),
                Scalar::Float(v) => v.to_string(),
            };
            Error::new(
                Code::InvalidArgument,
                format!("{v} is not a value of {dtype}"),
            )
        };
        let float = match self {
            Scalar::Bool(v) => f64::from(u8::from(v)),
            Scalar::Int(v) => v as f64,
            Scalar::Float(v) => v,
        };
        let whole = || match self {
            Scalar::Bool(v) => Ok(i128::from(v)),
            Scalar::Int(v) => Ok(v),
            Scalar::Float(v) if v.fract() == 0. && v.abs() < 2f64.powi(64) => Ok(v as i128),
            Scalar::Float(_) => Err(cannot()),
        };
        macro_rules! int {
            ($t:ty) => {
                HostTensor::scalar(<$t>::try_from(whole()?).map_err(|_| cannot())?)
            };
        }
        Ok(match dtype {
            DType::F64 => HostTensor::scalar(float),
            DType::F32 => HostTensor::scalar(float as f32),
            DType::F16 => HostTensor::scalar(f16::from_f64(float)),
            DType::BF16 => HostTensor::scalar(bf16::from_f64(float)),
            DType::I8 => int!(i8),
            DType::I16 => int!(i16),
            DType::I32 => int!(i32),
            DType::I64 => int!(i64),
            DType::U8 => int!(u8),
            DType::U16 => int!(u16),
            DType::U32 => int!(u32),
            DType::U64 => int!(u64),
            DType::Bool => match whole()? {
                v @ 0..=1 => HostTensor::from_bools(&[], &[v == 1])?,
                _ => return Err(cannot()),
            },
            DType::Str => return Err(cannot()),
            narrow => {
                let wide = self.to_tensor(narrow.widened())?;
                wide.narrowed(narrow).map_err(|_| cannot())?
            }
        })
    }
}

/// A value that decides the form of a result, such as a shape or axes. It is in the program's memory, or a tensor.
///
/// Integers are i64 and floats f32; a [`HostTensor`] may be of another dtype.
#[derive(Debug, Clone)]
pub struct HostArg<'a>(HostKind<'a>);

/// A [`HostArg`] that may be left out, as `None`.
#[derive(Debug, Clone)]
pub struct OptHostArg<'a>(Option<HostArg<'a>>);

#[derive(Debug, Clone)]
enum HostKind<'a> {
    Tensor(&'a Tensor),
    Value(HostTensor),
    Ints(Vec<i64>),
}

impl<'a> HostArg<'a> {
    pub(super) fn operand(self) -> Result<Operand<'a>> {
        Ok(match self.0 {
            HostKind::Tensor(t) => Operand::Tensor(t),
            HostKind::Value(t) => Operand::Value(t),
            HostKind::Ints(v) => Operand::Value(HostTensor::from_slice(&[v.len()], &v)?),
        })
    }
}

impl<'a> OptHostArg<'a> {
    pub(super) fn operand(self) -> Result<Operand<'a>> {
        self.0.map_or(Ok(Operand::None), HostArg::operand)
    }
}

macro_rules! host_args {
    ($($t:ty, |$v:ident| $kind:expr;)*) => {$(
        impl<'a> From<$t> for HostArg<'a> {
            fn from($v: $t) -> HostArg<'a> {
                HostArg($kind)
            }
        }
        impl<'a> From<$t> for OptHostArg<'a> {
            fn from(v: $t) -> OptHostArg<'a> {
                OptHostArg(Some(v.into()))
            }
        }
    )*};
}
host_args! {
    &'a Tensor, |v| HostKind::Tensor(v);
    HostTensor, |v| HostKind::Value(v);
    i64, |v| HostKind::Ints(vec![v]);
    f32, |v| HostKind::Value(HostTensor::scalar(v));
    Vec<i64>, |v| HostKind::Ints(v);
    &[i64], |v| HostKind::Ints(v.into());
}

impl<const N: usize> From<[i64; N]> for HostArg<'_> {
    fn from(v: [i64; N]) -> Self {
        HostArg(HostKind::Ints(v.into()))
    }
}

impl<const N: usize> From<[i64; N]> for OptHostArg<'_> {
    fn from(v: [i64; N]) -> Self {
        OptHostArg(Some(v.into()))
    }
}

impl<const N: usize> From<&[i64; N]> for HostArg<'_> {
    fn from(v: &[i64; N]) -> Self {
        (*v).into()
    }
}

impl<const N: usize> From<&[i64; N]> for OptHostArg<'_> {
    fn from(v: &[i64; N]) -> Self {
        (*v).into()
    }
}

impl From<Option<Vec<i64>>> for OptHostArg<'_> {
    fn from(v: Option<Vec<i64>>) -> Self {
        OptHostArg(v.map(HostArg::from))
    }
}

impl From<Axes> for OptHostArg<'_> {
    fn from(axes: Axes) -> Self {
        axes.0.into()
    }
}

/// Axes of a tensor: one, several, or `None` for the op's default. Negative axes count from the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Axes(pub(super) Option<Vec<i64>>);

impl From<i64> for Axes {
    fn from(axis: i64) -> Axes {
        Axes(Some(vec![axis]))
    }
}

impl From<Vec<i64>> for Axes {
    fn from(axes: Vec<i64>) -> Axes {
        Axes(Some(axes))
    }
}

impl From<&[i64]> for Axes {
    fn from(axes: &[i64]) -> Axes {
        Axes(Some(axes.into()))
    }
}

impl<const N: usize> From<[i64; N]> for Axes {
    fn from(axes: [i64; N]) -> Axes {
        Axes(Some(axes.into()))
    }
}

impl<const N: usize> From<&[i64; N]> for Axes {
    fn from(axes: &[i64; N]) -> Axes {
        (*axes).into()
    }
}

impl From<Option<Vec<i64>>> for Axes {
    fn from(axes: Option<Vec<i64>>) -> Axes {
        Axes(axes)
    }
}

/// The seed of random tensors: a key and a stream. Another key, or another stream, gives unrelated numbers. A single
/// number is the key of stream 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seed {
    /// The key.
    pub key: u64,
    /// The stream.
    pub stream: u64,
}

impl From<u64> for Seed {
    fn from(key: u64) -> Seed {
        Seed { key, stream: 0 }
    }
}

impl From<(u64, u64)> for Seed {
    fn from((key, stream): (u64, u64)) -> Seed {
        Seed { key, stream }
    }
}

impl From<Seed> for [i64; 2] {
    fn from(seed: Seed) -> [i64; 2] {
        [seed.key as i64, seed.stream as i64]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_becomes_what_the_dtype_holds() {
        let of = |v: Scalar, dtype| v.to_tensor(dtype).map(|t| t.bytes().to_vec());
        assert_eq!(of(2i32.into(), DType::F32).unwrap(), 2f32.to_le_bytes());
        assert_eq!(of(0.1f64.into(), DType::F32).unwrap(), 0.1f32.to_le_bytes());
        assert_eq!(of(u64::MAX.into(), DType::U64).unwrap(), [255; 8]);
        assert_eq!(of((-1).into(), DType::I16).unwrap(), [255; 2]);
        assert_eq!(of(3.0f64.into(), DType::U8).unwrap(), [3]);
        assert_eq!(of(true.into(), DType::Bool).unwrap(), [1]);
    }

    #[test]
    fn a_number_that_a_dtype_cannot_hold_is_an_error() {
        let scalars: [(Scalar, DType); 6] = [
            (300.into(), DType::U8),
            ((-1).into(), DType::U64),
            (0.5f64.into(), DType::I32),
            (f64::NAN.into(), DType::I64),
            (1e30.into(), DType::I64),
            (2.into(), DType::Bool),
        ];
        for (v, dtype) in scalars {
            let e = v.to_tensor(dtype).unwrap_err();
            assert_eq!(e.code, Code::InvalidArgument, "{v:?} as {dtype}");
        }
    }
}
