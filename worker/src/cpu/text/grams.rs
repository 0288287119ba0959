//! `TfIdfVectorizer`: how often the grams of a pool occur.

use std::cmp::Ordering;

use convoke_graph::ops::attrs::{GramAttrs, GramMode};
use convoke_graph::{DType, Outputs, Tensor};

use super::sort::{count_up, sort};
use super::strings::{PIECE, strings};
use crate::cpu::kernel::{KernelFailure, OpLaunch, one, write};

/// The grams of a pool.
struct Grams<'a> {
    items: &'a [i64],
    /// Where grams of one item, of two items and so on begin in the pool, and the length of the pool.
    begins: Vec<usize>,
    /// The number of the first gram of each length.
    first: Vec<usize>,
    count: usize,
}

impl<'a> Grams<'a> {
    fn new(items: &'a [i64], attrs: &GramAttrs) -> Result<Grams<'a>, KernelFailure> {
        let mut begins = attrs.begins.clone();
        begins.push(items.len());
        let (mut first, mut count) = (vec![], 0usize);
        for (k, ends) in begins.windows(2).enumerate() {
            let len = ends[1]
                .checked_sub(ends[0])
                .filter(|len| len.is_multiple_of(k + 1));
            let len = len.ok_or_else(|| {
                KernelFailure::values(format!(
                    "'ngram_counts' does not divide a pool of {} items into grams of {}",
                    items.len(),
                    k + 1
                ))
            })?;
            first.push(count);
            count += len / (k + 1);
        }
        Ok(Grams {
            items,
            begins,
            first,
            count,
        })
    }

    /// Gram `number`.
    fn get(&self, number: usize) -> &'a [i64] {
        let k = self.first.partition_point(|first| *first <= number) - 1;
        let at = self.begins[k] + (number - self.first[k]) * (k + 1);
        self.items.get(at..at + k + 1).unwrap_or_default()
    }

    /// Orders grams by length, and those of one length by their items.
    fn compare(a: &[i64], b: &[i64]) -> Ordering {
        a.len().cmp(&b.len()).then_with(|| a.cmp(b))
    }
}

/// Operand `i` as numbers: strings have the number of their place among the pool's sorted strings, and those that the pool
/// lacks have -1.
fn coded(
    call: &OpLaunch<'_, '_>,
    i: usize,
    order: Option<&[i64]>,
) -> Result<Tensor, KernelFailure> {
    let x = call.input(i)?;
    let mut codes = call.scratch::<i64>(x.elements())?;
    let to = write::<i64>(&mut codes)?;
    match (x.dtype(), order) {
        (DType::Str, Some(order)) => {
            let (pool, x) = (strings(call, 1)?, strings(call, i)?);
            let text = |at: &i64| pool.get(*at as usize);
            for (k, (to, word)) in to.iter_mut().zip(x.iter()).enumerate() {
                if k.is_multiple_of(PIECE) {
                    call.launch.exec.check()?;
                }
                let at = order.partition_point(|o| text(o) < word);
                let found = order.get(at).is_some_and(|o| text(o) == word);
                *to = if found { at as i64 } else { -1 };
            }
        }
        (DType::I32, _) => {
            let x = x.as_slice::<i32>()?.iter();
            to.iter_mut().zip(x).for_each(|(to, x)| *to = i64::from(*x));
        }
        _ => to.copy_from_slice(x.as_slice::<i64>()?),
    }
    Ok(codes)
}

/// Computes `TfIdfVectorizer`.
pub(super) fn counted(call: &OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let exec = &call.launch.exec;
    let attrs = GramAttrs::new(call.attrs)?;
    let pool = call.input(1)?;
    let longs = |n: usize| call.scratch::<i64>(n);
    // The pool's strings in order, if it has strings.
    let (mut order, mut spare) = (longs(pool.elements())?, longs(pool.elements())?);
    let order = match pool.dtype() {
        DType::Str => {
            let (order, words) = (write::<i64>(&mut order)?, strings(call, 1)?);
            count_up(order);
            let compare = |a, b| words.get(a).cmp(words.get(b));
            sort(exec, order, write::<i64>(&mut spare)?, compare)?;
            Some(&*order)
        }
        _ => None,
    };
    let (items, x) = (coded(call, 1, order)?, coded(call, 0, order)?);
    let (grams, x) = (Grams::new(items.as_slice()?, &attrs)?, x.as_slice::<i64>()?);
    let (indexes, weights) = (call.slice::<i64>(2)?, call.optional_slice::<f32>(3)?);
    let columns = attrs.columns;
    let outside = |c: &&i64| !usize::try_from(**c).is_ok_and(|c| c < columns);
    if let Some(column) = indexes.iter().find(outside) {
        let msg = format!("'indexes' has column {column}, the result has {columns}");
        return Err(KernelFailure::values(msg));
    }
    let others = weights.is_some_and(|w| w.len() != grams.count);
    if indexes.len() != grams.count || others {
        let msg = format!(
            "{} columns or weights for {} grams",
            indexes.len(),
            grams.count
        );
        return Err(KernelFailure::values(msg));
    }
    let (mut sorted, mut spare) = (longs(grams.count)?, longs(grams.count)?);
    let sorted = write::<i64>(&mut sorted)?;
    count_up(sorted);
    let compare = |a, b| Grams::compare(grams.get(a), grams.get(b));
    sort(exec, sorted, write::<i64>(&mut spare)?, compare)?;

    let mut y = call.output(0)?;
    let out = write::<f32>(&mut y)?;
    out.fill(0.);
    let per_row = call.shape(0)?.last().copied().unwrap_or(0);
    let rows = x.chunks(per_row.max(1)).zip(out.chunks_mut(columns));
    let longest = grams.begins.len() - 1;
    let mut gram = vec![];
    for (row, out) in rows {
        for len in attrs.items.0..=attrs.items.1.min(longest) {
            // The distance between neighbours makes no difference for a single item.
            let distances = if len == 1 {
                1
            } else {
                attrs.skips.saturating_add(1)
            };
            for distance in 1..=distances {
                let reach = (len - 1).saturating_mul(distance);
                if reach >= row.len() {
                    break;
                }
                for start in 0..row.len() - reach {
                    if start.is_multiple_of(PIECE / 16) {
                        exec.check()?;
                    }
                    gram.clear();
                    gram.extend((0..len).map(|k| row[start + k * distance]));
                    let number = |at: &i64| grams.get(*at as usize);
                    let less = |at: &i64| Grams::compare(number(at), &gram).is_lt();
                    let at = sorted.partition_point(less);
                    let Some(found) = sorted.get(at).filter(|at| number(at) == gram) else {
                        continue;
                    };
                    let found = *found as usize;
                    let weight = weights.map_or(1., |w| w[found]);
                    let column = &mut out[indexes[found] as usize];
                    match attrs.mode {
                        GramMode::Tf => *column += 1.,
                        GramMode::Idf => *column = weight,
                        GramMode::TfIdf => *column += weight,
                    }
                }
            }
        }
    }
    one(y)
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::{Attr, Attrs};

    use crate::cpu::testing::{one, vec1};
    use convoke_graph::Tensor;

    fn attrs(begins: &[i64], items: [i64; 2], skips: i64, mode: &str, columns: i64) -> Attrs {
        Attrs::default()
            .with("ngram_counts", Attr::Ints(begins.to_vec()))
            .with("min_gram_length", Attr::Int(items[0]))
            .with("max_gram_length", Attr::Int(items[1]))
            .with("max_skip_count", Attr::Int(skips))
            .with("mode", Attr::Str(mode.into()))
            .with("columns", Attr::Int(columns))
    }

    #[test]
    fn words_and_pairs_are_counted() {
        let words = |w: &[&str]| Tensor::from_strings(&[w.len()], w).unwrap();
        let x = words(&["the", "cat", "the", "hat", "?"]);
        let pool = words(&["cat", "the", "the", "cat", "cat", "hat"]);
        let indexes = vec1(&[3i64, 0, 1, 2]);
        let weights = vec1(&[2f32, 3., 5., 7.]);
        let check = |skips, mode: &str, want: [f32; 4]| {
            let attrs = attrs(&[0, 2], [1, 2], skips, mode, 4);
            let y = one("TfIdfVectorizer", attrs, &[&x, &pool, &indexes, &weights]);
            assert_eq!(y.unwrap(), vec1(&want), "{skips} {mode}");
        };
        check(0, "TF", [2., 1., 0., 1.]);
        check(1, "TF", [2., 1., 1., 1.]);
        check(i64::MAX, "IDF", [3., 5., 7., 2.]);
        check(1, "TFIDF", [6., 5., 7., 2.]);
    }

    #[test]
    fn a_pool_that_is_none_is_refused() {
        let (x, pool) = (vec1(&[1i64, 2]), vec1(&[1i64, 2, 3]));
        let check = |begins: &[i64], indexes: &[i64], columns| {
            let attrs = attrs(begins, [1, 2], 0, "TF", columns);
            let y = one("TfIdfVectorizer", attrs, &[&x, &pool, &vec1(indexes)]);
            assert!(y.is_err(), "{begins:?} {indexes:?} {columns}: {y:?}");
        };
        check(&[0, 2], &[0, 1, 2], 3);
        check(&[0, 9], &[0, 1, 2], 3);
        check(&[-1], &[0, 1, 2], 3);
        check(&[0], &[0, 1], 3);
        check(&[0], &[0, 1, 3], 3);
        check(&[0], &[0, 1, -1], 3);
        check(&[0], &[0, 1, 2], 0);
        check(&[], &[], 3);
    }
}
