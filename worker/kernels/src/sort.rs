//! Sorting that looks at the cancel flag, and that allocates nothing.

use std::cmp::Ordering;

use crate::Exec;
use crate::error::Result;
use crate::split::PIECE;

/// Numbers that are sorted at once, where comparing two is cheap: some milliseconds at most.
const RUN: usize = 1 << 13;

/// Sorts indices by `compare`, a total order up to equal elements, of which the lower index comes first. `spare` is
/// scratch of the same length. A comparison looks at `cost` pairs of numbers; one of [`PIECE`] pairs or more may give any
/// order once the step is cancelled.
pub(crate) fn sort_indices(
    exec: &Exec,
    order: &mut [i64],
    spare: &mut [i64],
    cost: usize,
    compare: impl Fn(i64, i64) -> Ordering,
) -> Result {
    assert_eq!(order.len(), spare.len(), "scratch of a sort");
    let compare = |a: &i64, b: &i64| compare(*a, *b).then(a.cmp(b));
    let run = (RUN / cost.max(1)).max(1);
    if run > 1 {
        for run in order.chunks_mut(run) {
            exec.check()?;
            run.sort_unstable_by(compare);
        }
    }
    let piece = (PIECE / cost.max(1)).max(1);
    let len = order.len();
    let mut width = run;
    while width < len {
        for (from, to) in order.chunks(2 * width).zip(spare.chunks_mut(2 * width)) {
            let (left, right) = from.split_at(width.min(from.len()));
            let (mut l, mut r) = (0, 0);
            for (i, to) in to.iter_mut().enumerate() {
                if i % piece == 0 {
                    exec.check()?;
                }
                let takes_left = match (left.get(l), right.get(r)) {
                    (Some(a), Some(b)) => compare(a, b) != Ordering::Greater,
                    (left, _) => left.is_some(),
                };
                *to = if takes_left { left[l] } else { right[r] };
                l += usize::from(takes_left);
                r += usize::from(!takes_left);
            }
        }
        order.copy_from_slice(spare);
        width = width.saturating_mul(2);
    }
    Ok(exec.check()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_stops, exec, uniform};

    #[test]
    fn indices_are_sorted_and_stable() {
        for n in [0, 1, 5, RUN, RUN + 1, 3 * RUN + 17, 8 * RUN] {
            let keys: Vec<i64> = uniform(n, 3).iter().map(|x| (x * 500.0) as i64).collect();
            let mut order: Vec<i64> = (0..n as i64).rev().collect();
            let mut spare = vec![0; n];
            // The cost decides how long the runs are, down to single numbers.
            let cost = if n > RUN { 1 } else { n };
            sort_indices(&exec(), &mut order, &mut spare, cost, |a, b| {
                keys[a as usize].cmp(&keys[b as usize])
            })
            .unwrap();
            let mut want: Vec<i64> = (0..n as i64).collect();
            want.sort_by_key(|i| keys[*i as usize]);
            assert_eq!(order, want, "{n} elements");
        }
    }

    #[test]
    fn a_sort_stops() {
        let n = 40 * RUN;
        check_stops(|exec| {
            let mut order: Vec<i64> = (0..n as i64).collect();
            let mut spare = vec![0; n];
            sort_indices(exec, &mut order, &mut spare, 1, |a, b| b.cmp(&a))
        });
    }
}
