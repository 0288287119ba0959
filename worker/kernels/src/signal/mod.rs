//! Transforms of signals, and sums of overlapping blocks.

mod dft;
mod fft;
mod fold;

pub use dft::{Dft, DftKernels, dft};
pub use fold::{Fold, FoldKernels, col2im};

#[cfg(test)]
mod tests;
