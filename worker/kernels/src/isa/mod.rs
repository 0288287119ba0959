//! Detection of the instruction set that kernels use, and the few vector operations that the micro kernels are written
//! in.
//!
//! Invariants
//! 1. [`Isa::detect`] answers the same for the whole life of the process.
//! 2. Every `Simd` type computes lane by lane with IEEE rounding and fused multiply-add, so a kernel that is generic
//!    over `Simd` gives equal bits for every type, provided that it makes every NaN that it stores the canonical one:
//!    which of two NaN operands survives an operation is not specified.

mod detection;
mod portable;
mod simd;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use detection::Isa;
pub(crate) use portable::PortableSimd;
pub(crate) use simd::Simd;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2Simd, Avx512Simd};

/// Defines `unsafe fn name(isa, args…)` that runs `body::<S>(args…)` compiled for `isa`.
///
/// `body` must be `#[inline(always)]`: only then are its loops compiled with the instruction set.
macro_rules! per_isa {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident($($arg:ident: $ty:ty),* $(,)?) => $body:ident) => {
        $(#[$meta])*
        $vis unsafe fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
            unsafe fn avx512($($arg: $ty),*) {
                // SAFETY: the caller's contract is this function's, plus the features enabled here.
                unsafe { $body::<$crate::isa::Avx512Simd>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2($($arg: $ty),*) {
                // SAFETY: as above.
                unsafe { $body::<$crate::isa::Avx2Simd>($($arg),*) }
            }
            unsafe fn portable($($arg: $ty),*) {
                // SAFETY: as above; the portable type needs no feature.
                unsafe { $body::<$crate::isa::PortableSimd>($($arg),*) }
            }
            // SAFETY: the caller passes an available `isa` and keeps the body's contract.
            unsafe {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    $crate::isa::Isa::Avx512 => avx512($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::isa::Isa::Avx2Fma => avx2($($arg),*),
                    _ => portable($($arg),*),
                }
            }
        }
    };
}
pub(crate) use per_isa;
