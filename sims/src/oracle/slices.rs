//! Tensors as slices of elements of one type.

use convoke_graph::{Element, Tensor};

/// The elements of a tensor of the dtype that the op is written for.
pub(super) fn of<T: Element>(t: &Tensor) -> &[T] {
    t.as_slice()
        .unwrap_or_else(|e| panic!("the oracle has no such op of {}: {e}", t.signature()))
}

/// A tensor of these elements.
pub(super) fn tensor<T: Element>(shape: &[usize], elements: &[T]) -> Tensor {
    Tensor::from_slice(shape, elements).unwrap_or_else(|e| panic!("{shape:?}: {e}"))
}
