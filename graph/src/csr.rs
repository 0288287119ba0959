//! Rows of indices in compressed form, such as the readers of each value of a graph.

use std::collections::HashSet;

/// The number of items from which on a row has a set of them while it is built.
const LONG: usize = 32;

/// Rows of indices, of different lengths, in one array: all rows concatenated, with the start of each (compressed sparse
/// rows).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Csr {
    start: Vec<u32>,
    items: Vec<u32>,
}

impl Default for Csr {
    fn default() -> Csr {
        Csr {
            start: vec![0],
            items: vec![],
        }
    }
}

impl Csr {
    /// Groups `pairs` of (row, item) into `rows` rows; items keep their order. Panics where a row is not below `rows`.
    pub fn group(rows: usize, pairs: &[(u32, u32)]) -> Csr {
        let mut start = vec![0u32; rows + 1];
        pairs.iter().for_each(|(r, _)| start[*r as usize + 1] += 1);
        for i in 0..rows {
            start[i + 1] += start[i];
        }
        let mut at = start.clone();
        let mut items = vec![0; pairs.len()];
        for (r, item) in pairs {
            items[at[*r as usize] as usize] = *item;
            at[*r as usize] += 1;
        }
        Csr { start, items }
    }

    /// Adds a row without repetitions, in order of first occurrence.
    pub fn push(&mut self, row: impl IntoIterator<Item = u32>) {
        let start = self.items.len();
        // The items of a long row, which takes too long to be gone through for every item.
        let mut long: Option<HashSet<u32>> = None;
        for v in row {
            let known = &self.items[start..];
            if long.is_none() && known.len() >= LONG {
                long = Some(known.iter().copied().collect());
            }
            let is_new = match &mut long {
                Some(items) => items.insert(v),
                None => !known.contains(&v),
            };
            if is_new {
                self.items.push(v);
            }
        }
        self.start.push(self.items.len() as u32);
    }

    /// The items of a row. Panics where there is no such row.
    #[inline]
    pub fn row(&self, row: impl TryInto<usize>) -> &[u32] {
        // No row has this number.
        let r = row.try_into().unwrap_or(usize::MAX);
        &self.items[self.start[r] as usize..self.start[r + 1] as usize]
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.start.len() - 1
    }

    /// For each item below `columns` the rows that hold it, ascending.
    pub fn transposed(&self, columns: usize) -> Csr {
        let rows = 0..self.rows();
        let pairs = rows.flat_map(|r| self.row(r).iter().map(move |item| (*item, r as u32)));
        Csr::group(columns, &pairs.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the rows of a table.
    fn check(table: &Csr, expected: &[&[u32]]) {
        let rows: Vec<&[u32]> = (0..table.rows()).map(|r| table.row(r)).collect();
        assert_eq!(rows, expected);
    }

    #[test]
    fn rows_hold_what_was_put_into_them_in_its_order() {
        check(&Csr::default(), &[]);
        let mut pushed = Csr::default();
        pushed.push([3, 1, 3, 0]);
        pushed.push([]);
        pushed.push([1]);
        check(&pushed, &[&[3, 1, 0], &[], &[1]]);
        check(&pushed.transposed(5), &[&[0], &[0, 2], &[], &[0], &[]]);
        let grouped = Csr::group(3, &[(2, 7), (0, 5), (2, 6), (2, 7)]);
        check(&grouped, &[&[5], &[], &[7, 6, 7]]);
    }

    #[test]
    fn long_rows_are_built_in_linear_time() {
        let n = 1 << 20;
        let mut pushed = Csr::default();
        pushed.push((0..n).chain(0..n).chain([n]));
        pushed.push((0..100).map(|v| v % 50));
        assert!(pushed.row(0usize).iter().copied().eq(0..=n));
        assert!(pushed.row(1usize).iter().copied().eq(0..50));
    }
}
