//! Kernels of every element type, compiled in this crate.
//!
//! A generic function is compiled where it is called, with the caller's optimization level. The public kernels
//! are therefore thin generic functions over methods that this macro implements for concrete types, so that
//! their loops are compiled here, once, and optimised even in development builds.

/// Defines a trait whose methods call generic functions, and implements it for a list of types.
macro_rules! compiled {
    ($(#[$meta:meta])* trait $trait:ident for [$($t:ty),* $(,)?] $methods:tt) => {
        $crate::compiled::compiled!(@trait [$(#[$meta])*] $trait $methods);
        $($crate::compiled::compiled!(@impl $trait, $t, $methods);)*
    };
    (@trait [$(#[$meta:meta])*] $trait:ident {
        $(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $generic:ident;)*
    }) => {
        $(#[$meta])*
        pub trait $trait: Sized {
            $(
                #[doc(hidden)]
                fn $name($($arg: $ty),*) -> $crate::error::Result;
            )*
        }
    };
    (@impl $trait:ident, $t:ty, {
        $(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $generic:ident;)*
    }) => {
        impl $trait for $t {
            $(
                fn $name($($arg: $ty),*) -> $crate::error::Result {
                    $generic::<$t>($($arg),*)
                }
            )*
        }
    };
}
pub(crate) use compiled;

/// [`compiled`] for the floating-point types.
macro_rules! compiled_floats {
    ($(#[$meta:meta])* trait $trait:ident $methods:tt) => {
        $crate::compiled::compiled! {
            $(#[$meta])*
            trait $trait for [f32, f64, $crate::element::f16, $crate::element::bf16] $methods
        }
    };
}
pub(crate) use compiled_floats;

/// [`compiled`] for the integer types.
macro_rules! compiled_integers {
    ($(#[$meta:meta])* trait $trait:ident $methods:tt) => {
        $crate::compiled::compiled! {
            $(#[$meta])*
            trait $trait for [i8, i16, i32, i64, u8, u16, u32, u64] $methods
        }
    };
}
pub(crate) use compiled_integers;

/// [`compiled`] for every element type.
macro_rules! compiled_numbers {
    ($(#[$meta:meta])* trait $trait:ident $methods:tt) => {
        $crate::compiled::compiled! {
            $(#[$meta])*
            trait $trait for [
                f32, f64, $crate::element::f16, $crate::element::bf16, i8, i16, i32, i64, u8, u16, u32, u64,
            ] $methods
        }
    };
}
pub(crate) use compiled_numbers;

/// [`compiled`] for one type of each size.
macro_rules! compiled_bits {
    ($(#[$meta:meta])* trait $trait:ident $methods:tt) => {
        $crate::compiled::compiled! {
            $(#[$meta])*
            trait $trait for [u8, u16, u32, u64] $methods
        }
    };
}
pub(crate) use compiled_bits;
