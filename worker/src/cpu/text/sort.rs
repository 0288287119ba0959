//! Sorting that can be cancelled.

use std::cmp::Ordering;

use convoke_kernels::Exec;

use super::strings::PIECE;
use crate::cpu::kernel::KernelFailure;

/// Sorts places by what `compare` says of two of them, equal ones as they are: in runs, and then in runs of doubling
/// length. `spare` has the length of `order`.
pub(super) fn sort(
    exec: &Exec<'_>,
    order: &mut [i64],
    spare: &mut [i64],
    compare: impl Fn(usize, usize) -> Ordering,
) -> Result<(), KernelFailure> {
    let compare = |a: &i64, b: &i64| compare(*a as usize, *b as usize);
    for run in order.chunks_mut(PIECE) {
        exec.check()?;
        run.sort_by(compare);
    }
    let mut length = PIECE;
    while length < order.len() {
        for (from, to) in order.chunks(2 * length).zip(spare.chunks_mut(2 * length)) {
            let (mut a, mut b) = from.split_at(length.min(from.len()));
            for (k, to) in to.iter_mut().enumerate() {
                if k.is_multiple_of(PIECE) {
                    exec.check()?;
                }
                let left = match (a.first(), b.first()) {
                    (Some(l), Some(r)) => compare(l, r).is_le(),
                    (l, _) => l.is_some(),
                };
                let next = if left { &mut a } else { &mut b };
                if let Some((first, rest)) = next.split_first() {
                    (*to, *next) = (*first, rest);
                }
            }
        }
        order.copy_from_slice(spare);
        length *= 2;
    }
    Ok(())
}

/// Fills places with their own numbers.
pub(super) fn count_up(places: &mut [i64]) {
    for (i, place) in places.iter_mut().enumerate() {
        *place = i as i64;
    }
}
