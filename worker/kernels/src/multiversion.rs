//! One loop, compiled for several instruction sets and chosen at run time.
//!
//! Bits never depend on the choice: bodies use IEEE operations and explicit `mul_add` only, and the
//! compiler neither contracts nor reassociates floating-point arithmetic.

/// Defines a function whose body is compiled once per [`Isa`](crate::isa::Isa).
///
/// Every function that the body calls in its loops must be `#[inline(always)]`, and the body must not use closures:
/// code that is not inlined is compiled for the baseline.
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident<$($g:ident: $bound:path),* $(,)?>
     ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::extra_unused_type_parameters)]
        $vis fn $name<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? {
                body::<$($g),*>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn avx512<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? {
                body::<$($g),*>($($arg),*)
            }
            match $crate::isa::Isa::detect() {
                // SAFETY: `detect` found these features on this machine.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx512 => unsafe { avx512::<$($g),*>($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx2Fma => unsafe { avx2::<$($g),*>($($arg),*) },
                _ => body::<$($g),*>($($arg),*),
            }
        }
    };
}
pub(crate) use multiversion;
