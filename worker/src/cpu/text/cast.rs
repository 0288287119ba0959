//! Conversions between numbers and strings.
//!
//! A number becomes its plain decimal representation, as ONNX has it, of as few digits as are read back as the same number:
//! 0.1, 100, never 1e2. Floats without one are `NaN`, `INF` and `-INF`, and a bool is `1` or `0`. A string is read as a
//! plain or scientific number or one of these words, in any case, with spaces around it. Anything else is refused, and so is
//! a number beyond the range of an integer dtype; a fraction is cut off. Dtypes of less than a byte keep
//! the low bits, as they do of an i8.

use std::fmt::Write as _;

use convoke_graph::{DType, Element};
use half::{bf16, f16};

use super::strings::{PIECE, made, of_strings, strings};
use crate::cpu::cast::convert;
use crate::cpu::kernel::{
    FamilyAnswer, KernelBody, KernelFailure, Launch, OpLaunch, Operands, Spec, body, one, write,
};
use convoke_graph::ops::OpError;

/// Makes the kernel that converts operand 0, or makes strings of it.
pub(super) fn find(spec: &Spec<'_>, to: DType) -> FamilyAnswer {
    let from = spec.dtype(0)?;
    match (from, to) {
        (DType::Str, DType::Str) => body(|mut call| one(call.take(0)?)),
        (DType::Str, to) if to.is_narrow() => through(spec, to.widened(), to),
        (from, DType::Str) if from.is_narrow() => through(spec, from.widened(), DType::Str),
        (DType::Str, to) => parsed(spec, to),
        (from, _) => formatted(spec, from),
    }
}

/// Makes the kernel that converts by way of the dtype `wide`.
fn through(spec: &Spec<'_>, wide: DType, to: DType) -> FamilyAnswer {
    let from = spec.dtype(0)?;
    let step = |from: DType, to: DType| match (from, to) {
        (DType::Str, to) => parsed(spec, to),
        (from, DType::Str) => formatted(spec, from),
        (from, to) => convert(spec, from, to),
    };
    let (first, second) = (step(from, wide)?, step(wide, to)?);
    body(move |call| {
        let (exec, pool) = (call.launch.exec, call.launch.pool);
        let shape = call.out_shape(0).into();
        let outputs = [(wide, shape)].into_iter().collect();
        let between = first.run(OpLaunch {
            attrs: call.attrs,
            outputs: &outputs,
            launch: &mut *call.launch,
        })?;
        let mut operands: Vec<_> = between.into_iter().map(Some).collect();
        second.run(OpLaunch {
            attrs: call.attrs,
            outputs: call.outputs,
            launch: &mut Launch {
                inputs: Operands::given(&mut operands),
                sizes: None,
                exec,
                pool,
            },
        })
    })
}

/// A number, and how it is written.
trait TextNumber: Element {
    fn write(self, to: &mut String);
}

macro_rules! written {
    ($($ty:ty: $wide:ty),*) => {$(
        impl TextNumber for $ty {
            fn write(self, to: &mut String) {
                // Writing to a string cannot fail.
                let _ = write!(to, "{}", <$wide>::from(self));
            }
        }
    )*};
}
macro_rules! written_floats {
    ($($ty:ty: $wide:ty),*) => {$(
        impl TextNumber for $ty {
            fn write(self, to: &mut String) {
                let wide = <$wide>::from(self);
                match (wide.is_nan(), wide.is_infinite(), wide < 0.) {
                    (true, ..) => to.push_str("NaN"),
                    (_, true, false) => to.push_str("INF"),
                    (_, true, true) => to.push_str("-INF"),
                    // Writing to a string cannot fail.
                    _ => drop(write!(to, "{wide}")),
                }
            }
        }
    )*};
}
written!(i8: i8, i16: i16, i32: i32, i64: i64, u8: u8, u16: u16, u32: u32, u64: u64);
written_floats!(f32: f32, f64: f64, f16: f32, bf16: f32);

fn formatted(spec: &Spec<'_>, from: DType) -> Result<KernelBody, OpError> {
    fn of<T: TextNumber>() -> Result<KernelBody, OpError> {
        of_strings(|call| {
            let (exec, pool) = (&call.launch.exec, call.launch.pool);
            let (x, mut text) = (call.slice::<T>(0)?, String::new());
            made(exec, pool, call.out_shape(0), |i, sink| {
                text.clear();
                x[i].write(&mut text);
                Ok(sink(&text)?)
            })
        })
    }
    match from {
        DType::F32 => of::<f32>(),
        DType::F64 => of::<f64>(),
        DType::F16 => of::<f16>(),
        DType::BF16 => of::<bf16>(),
        DType::I8 => of::<i8>(),
        DType::I16 => of::<i16>(),
        DType::I32 => of::<i32>(),
        DType::I64 => of::<i64>(),
        DType::U8 | DType::Bool => of::<u8>(),
        DType::U16 => of::<u16>(),
        DType::U32 => of::<u32>(),
        DType::U64 => of::<u64>(),
        other => Err(spec.no_dtype(other)),
    }
}

/// A whole number, or a float without its fraction.
fn whole<T: TryFrom<i128>>(text: &str) -> Option<T> {
    let exact = text.parse::<i128>().ok();
    let number = exact.or_else(|| {
        let float: f64 = text.parse().ok()?;
        // A float beyond this is beyond every dtype, too.
        (float.abs() < 1e30).then_some(float as i128)
    });
    T::try_from(number?).ok()
}

fn float<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn parsed(spec: &Spec<'_>, to: DType) -> Result<KernelBody, OpError> {
    fn by<T: Element>(read: fn(&str) -> Option<T>) -> Result<KernelBody, OpError> {
        body(move |call| {
            let mut y = call.output(0)?;
            let texts = strings(&call, 0)?.iter().enumerate();
            // A bool tensor is written as bytes.
            for (to, (i, text)) in write::<T>(&mut y)?.iter_mut().zip(texts) {
                if i % PIECE == 0 {
                    call.launch.exec.check()?;
                }
                *to = read(text.trim()).ok_or_else(|| no_number(i, text, call.outputs[0].0))?;
            }
            one(y)
        })
    }
    match to {
        DType::F32 => by::<f32>(float),
        DType::F64 => by::<f64>(float),
        DType::F16 => by(|text| Some(f16::from_f64(float(text)?))),
        DType::BF16 => by(|text| Some(bf16::from_f64(float(text)?))),
        DType::I8 => by::<i8>(whole),
        DType::I16 => by::<i16>(whole),
        DType::I32 => by::<i32>(whole),
        DType::I64 => by::<i64>(whole),
        DType::U8 => by::<u8>(whole),
        DType::U16 => by::<u16>(whole),
        DType::U32 => by::<u32>(whole),
        DType::U64 => by::<u64>(whole),
        DType::Bool => by::<u8>(|text| Some(u8::from(float::<f64>(text)? != 0.))),
        other => Err(spec.no_dtype(other)),
    }
}

#[cold]
fn no_number(i: usize, text: &str, dtype: DType) -> KernelFailure {
    let short: String = text.chars().take(40).collect();
    KernelFailure::values(format!("string {i}, {short:?}, is no number of {dtype}"))
}
