//! The element types and their arithmetic as ONNX defines it.
//!
//! Invariants
//! 1. `f16` and `bf16` compute in `f32` and round once per operator, to nearest even.
//! 2. Integers wrap. Booleans are `u8` holding 0 or 1.
//! 3. Conversions are branch-free bit arithmetic where hardware versions differ between machines.

pub mod halves;
pub mod kernels;
mod number;
mod runs;

pub use half::{bf16, f16};
pub(crate) use number::canonical_nan;
pub use number::{Float, Integer, Number};

/// The longest row of a narrow type that is widened as a whole: with its results it stays in the first-level cache.
pub(crate) const WIDENED: usize = 2048;

/// An element of a tensor: plain data that can be copied.
pub trait Element:
    Copy + Default + PartialEq + PartialOrd + std::fmt::Debug + Send + Sync + 'static
{
}

macro_rules! elements {
    ($($t:ty),*) => { $(impl Element for $t {})* };
}
elements!(f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64);

/// An unsigned integer that stands for any element of its size in kernels that only move elements.
pub trait Bits: Element + kernels::BitsKernels {}

macro_rules! bits {
    ($($t:ty),*) => { $(impl Bits for $t {})* };
}
bits!(u8, u16, u32, u64);
