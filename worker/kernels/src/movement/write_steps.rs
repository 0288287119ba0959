//! `TensorScatter`: steps written into a cache.

use crate::Exec;
use crate::compiled::compiled_bits;
use crate::element::Bits;
use crate::error::{KernelError, Result};
use crate::shape::Axis;
use crate::split::{tiles, units_per_tile};

/// Where the steps of each element of the batch are written.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// The place of the first step, by element of the batch; the beginning of the cache where it is left out.
    pub first: Option<&'a [i64]>,
    /// The elements of the batch.
    pub batch: usize,
    /// Whether what goes beyond the end of the cache goes on at its beginning.
    pub circular: bool,
    /// The axis of the steps, for what an error says.
    pub axis: usize,
}

impl Places<'_> {
    /// The place of the first step of an element of the batch, in a cache of `len` steps.
    fn first(&self, batch: usize, steps: usize, len: usize) -> Result<usize> {
        let first = self.first.map_or(0, |first| first[batch]);
        if self.circular {
            return Ok(first.rem_euclid((len as i64).max(1)) as usize);
        }
        let last = len - steps;
        match usize::try_from(first) {
            Ok(first) if first <= last => Ok(first),
            _ => Err(KernelError::IndexOutOfRange {
                index: first.saturating_add(if first < 0 { 0 } else { steps as i64 - 1 }),
                len,
                axis: self.axis,
            }),
        }
    }
}

fn write_steps_any<T: Bits>(
    exec: &Exec,
    cache: &mut [T],
    axis: Axis,
    update: &[T],
    steps: usize,
    places: Places<'_>,
) -> Result {
    assert!(
        cache.len() == axis.count()
            && update.len() == axis.outer * steps * axis.inner
            && steps <= axis.len
            && places.first.is_none_or(|first| first.len() == places.batch)
            && axis.outer.is_multiple_of(places.batch.max(1)),
        "{steps} steps into {axis:?}"
    );
    // All places are checked before the first element is written, since the cache may be the caller's own.
    for batch in 0..places.first.map_or(0, <[i64]>::len) {
        places.first(batch, steps, axis.len)?;
    }
    if update.is_empty() {
        return Ok(exec.check()?);
    }
    let (unit, part) = (axis.len * axis.inner, steps * axis.inner);
    let each = axis.outer / places.batch;
    tiles(exec, cache, unit, units_per_tile(part), |range, cache| {
        for (outer, cache) in range.zip(cache.chunks_mut(unit)) {
            let update = &update[outer * part..(outer + 1) * part];
            let first = places.first(outer / each, steps, axis.len).unwrap_or(0);
            let until_end = steps.min(axis.len - first) * axis.inner;
            let first = first * axis.inner;
            cache[first..first + until_end].copy_from_slice(&update[..until_end]);
            cache[..part - until_end].copy_from_slice(&update[until_end..]);
        }
    })?;
    Ok(())
}

compiled_bits! {
    /// Writing of steps of a size.
    trait WriteStepsKernels {
        fn write_steps(exec: &Exec, cache: &mut [Self], axis: Axis, update: &[Self], steps: usize, places: Places<'_>) = write_steps_any;
    }
}

/// Writes `steps` steps of `update` into `cache`, along `axis` of the cache. Places are checked before anything is
/// written.
pub fn write_steps<T: Bits>(
    exec: &Exec,
    cache: &mut [T],
    axis: Axis,
    update: &[T],
    steps: usize,
    places: Places<'_>,
) -> Result {
    T::write_steps(exec, cache, axis, update, steps, places)
}
