//! `Unique`: the different elements, or slices along an axis.

use std::cmp::Ordering;

use crate::Exec;
use crate::compiled::compiled_numbers;
use crate::element::Number;
use crate::error::Result;
use crate::sort::sort_indices;
use crate::split::{PIECE, Pace};

/// Slices of a tensor: element `r` of part `o` of slice `i` is at `(o * count + i) * inner + r`.
#[derive(Debug, Clone, Copy)]
pub struct Slices {
    /// Parts of a slice, the product of the axes before.
    pub outer: usize,
    /// How many slices there are.
    pub count: usize,
    /// Elements of a part, the product of the axes behind.
    pub inner: usize,
}

/// What is found out about each slice; all have one number for each.
#[derive(Debug)]
pub struct SliceIndex<'a> {
    /// The first occurrence of each different slice, in the order of the result.
    pub first: &'a mut [i64],
    /// The place of each slice in the result.
    pub place: &'a mut [i64],
    /// How often each different slice occurs, in the order of the result.
    pub times: &'a mut [i64],
    /// Scratch.
    pub spare: &'a mut [i64],
}

/// The order of elements; NaN comes last and equals itself.
#[inline(always)]
fn order<T: Number>(a: T, b: T) -> Ordering {
    match a.partial_cmp(&b) {
        Some(order) => order,
        None => a.is_nan().cmp(&b.is_nan()),
    }
}

fn unique_any<T: Number>(
    exec: &Exec,
    s: Slices,
    x: &[T],
    sorted: bool,
    found: SliceIndex<'_>,
    different: &mut usize,
) -> Result {
    let SliceIndex {
        first,
        place,
        times,
        spare,
    } = found;
    assert_eq!(x.len(), s.outer * s.count * s.inner, "slices");
    // Parts without elements are equal, however many there are.
    let parts = if s.inner == 0 { 0 } else { s.outer };
    let cost = (parts * s.inner).max(1);
    let compare = |a: i64, b: i64| {
        let part = |o: usize, i: i64| &x[(o * s.count + i as usize) * s.inner..][..s.inner];
        let mut pace = Pace::new(exec, PIECE);
        for o in 0..parts {
            for (a, b) in part(o, a).chunks(PIECE).zip(part(o, b).chunks(PIECE)) {
                // Any order will do once the result is not wanted.
                if pace.count(a.len()).is_err() {
                    return Ordering::Equal;
                }
                for (a, b) in a.iter().zip(b) {
                    match order(*a, *b) {
                        Ordering::Equal => {}
                        differs => return differs,
                    }
                }
            }
        }
        Ordering::Equal
    };
    for (i, slice) in spare.iter_mut().enumerate() {
        *slice = i as i64;
    }
    sort_indices(exec, spare, place, cost, compare)?;
    let mut count = 0;
    for at in 0..s.count {
        if at % (PIECE / cost).max(1) == 0 {
            exec.check()?;
        }
        let slice = spare[at];
        if at == 0 || compare(spare[at - 1], slice) != Ordering::Equal {
            first[count] = slice;
            times[count] = 0;
            count += 1;
        }
        times[count - 1] += 1;
        place[slice as usize] = count as i64 - 1;
    }
    if !sorted {
        // `spare` gets, for each slice of the sorted result, its place in the order of occurrence.
        let mut next = 0;
        for (i, sorted) in place.iter().enumerate() {
            if first[*sorted as usize] == i as i64 {
                spare[*sorted as usize] = next;
                next += 1;
            }
        }
        exec.check()?;
        times[..count].fill(0);
        for (i, place) in place.iter_mut().enumerate() {
            *place = spare[*place as usize];
            let at = *place as usize;
            if times[at] == 0 {
                first[at] = i as i64;
            }
            times[at] += 1;
        }
    }
    *different = count;
    Ok(exec.check()?)
}

compiled_numbers! {
    /// Different slices of one type.
    trait UniqueKernels {
        fn different(
            exec: &Exec,
            s: Slices,
            x: &[Self],
            sorted: bool,
            found: SliceIndex<'_>,
            different: &mut usize,
        ) = unique_any;
    }
}

/// Finds the different slices of x, and returns how many there are. The result is sorted, by the first elements first,
/// or has the order in which slices first occur.
pub fn unique<T: UniqueKernels>(
    exec: &Exec,
    s: Slices,
    x: &[T],
    sorted: bool,
    found: SliceIndex<'_>,
) -> Result<usize> {
    let mut different = 0;
    T::different(exec, s, x, sorted, found, &mut different)?;
    Ok(different)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_stops, exec, random};

    /// The first occurrence, the place and the number of each slice.
    fn found<T: UniqueKernels>(s: Slices, x: &[T], sorted: bool) -> [Vec<i64>; 3] {
        let mut all = [(); 4].map(|()| vec![-1; s.count]);
        let [first, place, times, spare] = &mut all;
        let found = SliceIndex {
            first,
            place,
            times,
            spare,
        };
        let n = unique(&exec(), s, x, sorted, found).unwrap();
        let [mut first, place, mut times, _] = all;
        first.truncate(n);
        times.truncate(n);
        [first, place, times]
    }

    fn elements(count: usize) -> Slices {
        Slices {
            outer: 1,
            count,
            inner: 1,
        }
    }

    #[test]
    fn slices_without_elements_are_equal_at_once() {
        let s = Slices {
            outer: 1 << 50,
            count: 3,
            inner: 0,
        };
        assert_eq!(found::<f32>(s, &[], true), [vec![0], vec![0; 3], vec![3]]);
    }

    #[test]
    fn long_slices_stop() {
        // All slices are equal, so that each comparison looks at every element.
        let check = |s: Slices| {
            let x = vec![1.0f32; s.outer * s.count * s.inner];
            check_stops(|exec| {
                let mut all = [(); 4].map(|()| vec![-1; s.count]);
                let [first, place, times, spare] = &mut all;
                let found = SliceIndex {
                    first,
                    place,
                    times,
                    spare,
                };
                unique(exec, s, &x, true, found).map(|_| ())
            });
        };
        check(Slices {
            outer: 1,
            count: 60,
            inner: 1 << 13,
        });
        check(Slices {
            outer: 1,
            count: 2,
            inner: 1 << 20,
        });
        check(Slices {
            outer: 1 << 20,
            count: 2,
            inner: 1,
        });
    }

    #[test]
    fn elements_are_sorted_or_in_their_order() {
        let x = [2.0f32, f32::NAN, 1.0, -0.0, 2.0, 0.0, f32::NAN];
        let sorted = [
            vec![3, 2, 0, 1],
            vec![2, 3, 1, 0, 2, 0, 3],
            vec![2, 1, 2, 2],
        ];
        assert_eq!(found(elements(7), &x, true), sorted);
        let occurring = [
            vec![0, 1, 2, 3],
            vec![0, 1, 2, 3, 0, 3, 1],
            vec![2, 2, 1, 2],
        ];
        assert_eq!(found(elements(7), &x, false), occurring);
        assert_eq!(
            found::<i8>(elements(0), &[], true),
            [vec![], vec![], vec![]]
        );
    }

    #[test]
    fn slices_compare_as_rows() {
        // The columns of [[1, 0, 1, 0], [3, 4, 3, 2]] are slices of two parts.
        let s = Slices {
            outer: 2,
            count: 4,
            inner: 1,
        };
        let x = [1i32, 0, 1, 0, 3, 4, 3, 2];
        let want = [vec![3, 1, 0], vec![2, 1, 2, 0], vec![1, 1, 2]];
        assert_eq!(found(s, &x, true), want);
    }

    #[test]
    fn many_elements_are_those_of_a_set() {
        let x = random::<i16>(70_000, 900.0, 5);
        let [first, place, times] = found(elements(x.len()), &x, true);
        let set: std::collections::BTreeSet<i16> = x.iter().copied().collect();
        let got: Vec<i16> = first.iter().map(|i| x[*i as usize]).collect();
        assert_eq!(got, set.into_iter().collect::<Vec<_>>());
        assert!(x.iter().zip(&place).all(|(v, p)| got[*p as usize] == *v));
        assert_eq!(times.iter().sum::<i64>(), 70_000);
    }
}
