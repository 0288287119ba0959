//! `MaxUnpool`: elements put back where a maximum pooling found them.

use crate::Exec;
use crate::compiled::compiled_bits;
use crate::element::Number;
use crate::error::{KernelError, Result};
use crate::split::PIECE;

fn unpool_any<T: Number>(
    exec: &Exec,
    x: &[T],
    indices: &[i64],
    within: &[usize],
    shape: &[usize],
    y: &mut [T],
) -> Result {
    assert_eq!(x.len(), indices.len(), "indices");
    assert_eq!(y.len(), shape.iter().product(), "output");
    let fits = within.len() == shape.len() && within.iter().zip(shape).all(|(w, s)| w <= s);
    assert!(fits, "{within:?} lies inside of {shape:?}");
    let places: usize = within.iter().product();
    for y in y.chunks_mut(PIECE) {
        exec.check()?;
        y.fill(T::ZERO);
    }
    for (x, indices) in x.chunks(PIECE).zip(indices.chunks(PIECE)) {
        exec.check()?;
        for (x, index) in x.iter().zip(indices) {
            let found = usize::try_from(*index).ok().filter(|i| *i < places);
            let mut rest = found.ok_or(KernelError::IndexOutOfRange {
                index: *index,
                len: places,
                axis: 0,
            })?;
            let (mut at, mut stride) = (0, 1);
            for (w, s) in within.iter().zip(shape).rev() {
                at += rest % w * stride;
                rest /= w;
                stride *= s;
            }
            y[at] = *x;
        }
    }
    Ok(())
}

compiled_bits! {
    /// Elements of one size, put back.
    trait UnpoolKernels {
        fn unpooled(
            exec: &Exec,
            x: &[Self],
            indices: &[i64],
            within: &[usize],
            shape: &[usize],
            y: &mut [Self],
        ) = unpool_any;
    }
}

/// Writes each element of `x` to the place of y `[shape]` that `indices` says, and zeros elsewhere. An index is the flat
/// place in a tensor of shape `within`, which has as many axes and lies at the begin of y. The last one of several
/// elements for one place counts.
pub fn max_unpool<T: UnpoolKernels>(
    exec: &Exec,
    x: &[T],
    indices: &[i64],
    within: &[usize],
    shape: &[usize],
    y: &mut [T],
) -> Result {
    T::unpooled(exec, x, indices, within, shape, y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::exec;

    #[test]
    fn elements_come_back_to_their_places() {
        let check = |indices: &[i64], shape: &[usize], want: &[u8]| {
            let mut y = vec![9; want.len()];
            max_unpool(&exec(), &[1u8, 2], indices, &[2, 2], shape, &mut y).unwrap();
            assert_eq!(y, want);
        };
        check(&[3, 0], &[2, 2], &[2, 0, 0, 1]);
        check(&[3, 2], &[2, 3], &[0, 0, 0, 2, 1, 0]);
        check(&[1, 1], &[2, 2], &[0, 2, 0, 0]);
        for index in [-1, 4, i64::MAX] {
            let e = max_unpool(&exec(), &[1u8], &[index], &[2, 2], &[2, 2], &mut [0; 4]);
            assert!(matches!(e, Err(KernelError::IndexOutOfRange { .. })));
        }
    }
}
