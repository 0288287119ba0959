//! The kernel traits of each kind of element type. They are supertraits of the element traits, so that generic callers
//! need not name them.

use crate::{
    binary, cast, movement, norm, pooling, random, reduce, rotary, signal, softmax, unary,
};

/// Declares a trait that stands for several other traits.
macro_rules! together {
    ($($(#[$meta:meta])* $name:ident = $first:path $(, $rest:path)*;)*) => {$(
        $(#[$meta])*
        pub trait $name: $first $(+ $rest)* {}
        impl<T: $first $(+ $rest)*> $name for T {}
    )*};
}

together! {
    /// Kernels of every element type.
    NumberKernels = unary::ClipKernels, binary::ArithKernels, binary::CompareKernels, binary::PowKernels,
        cast::BoolKernels, reduce::ArgKernels, reduce::CumulateKernels, reduce::TopKernels, pooling::MaxPoolKernels,
        movement::ScatterKernels, movement::RangeKernels, movement::NonZeroKernels, signal::FoldKernels;
    /// Kernels of floating-point types.
    FloatKernels = unary::FloatUnaryKernels, reduce::FloatReduceKernels, softmax::SoftmaxKernels,
        norm::RowNormKernels, norm::ChannelNormKernels, norm::LpNormKernels, norm::LrnKernels,
        pooling::AveragePoolKernels, random::RandomKernels, rotary::RotaryKernels, signal::DftKernels;
    /// Kernels of integer types.
    IntegerKernels = unary::IntegerUnaryKernels, binary::BitwiseKernels, reduce::IntegerReduceKernels;
    /// Kernels that move elements by their size.
    BitsKernels = binary::SelectKernels, movement::StridedKernels, movement::TransposeKernels,
        movement::ConcatKernels, movement::GatherKernels, movement::PadKernels, movement::TriangleKernels,
        movement::FillKernels, movement::OneHotKernels, movement::CompressKernels, movement::ReverseKernels,
        movement::WriteStepsKernels;
}
