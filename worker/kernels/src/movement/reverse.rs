//! `ReverseSequence`.

use crate::Exec;
use crate::compiled::compiled_bits;
use crate::element::Bits;
use crate::error::{KernelError, Result};
use crate::shape::count;
use crate::split::{tiles, units_per_tile};

fn reverse_sequence_any<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    time_first: bool,
    lengths: &[i64],
    y: &mut [T],
) -> Result {
    assert!(
        x.len() == count(shape) && y.len() == x.len() && shape.len() >= 2,
        "{shape:?}"
    );
    let (time, batch) = if time_first {
        (shape[0], shape[1])
    } else {
        (shape[1], shape[0])
    };
    assert_eq!(lengths.len(), batch, "lengths of {shape:?}");
    for (batch, &length) in lengths.iter().enumerate() {
        if length < 0 || length > time as i64 {
            return Err(KernelError::SequenceLength {
                length,
                batch,
                max: time,
            });
        }
    }
    let inner = count(&shape[2..]);
    Ok(tiles(
        exec,
        y,
        inner,
        units_per_tile(inner),
        |range, part| {
            for (at, y) in range.zip(part.chunks_mut(inner)) {
                let (t, b) = if time_first {
                    (at / batch, at % batch)
                } else {
                    (at % time, at / time)
                };
                let length = lengths[b] as usize;
                let t = if t < length { length - 1 - t } else { t };
                let from = if time_first {
                    t * batch + b
                } else {
                    b * time + t
                };
                y.copy_from_slice(&x[from * inner..(from + 1) * inner]);
            }
        },
    )?)
}

compiled_bits! {
    /// Sequence reversal of elements of one size.
    trait ReverseKernels {
        fn reverse_sequence(
            exec: &Exec, x: &[Self], shape: &[usize], time_first: bool, lengths: &[i64], y: &mut [Self],
        ) = reverse_sequence_any;
    }
}

/// Reverses the first `lengths[b]` time steps of every batch entry. The first two axes are time and batch, in either
/// order.
pub fn reverse_sequence<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    time_first: bool,
    lengths: &[i64],
    y: &mut [T],
) -> Result {
    T::reverse_sequence(exec, x, shape, time_first, lengths, y)
}
