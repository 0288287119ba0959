//! The tiles that products and convolutions are made in. An element's bits do not depend on the tile, so its size is chosen by
//! what keeps a GPU busy.

use super::args::Arguments;

/// The text that a family's readers may use, before them.
pub(super) const UNITS: &str = include_str!("tiles_units.cu");

/// The text of tiles, behind a family's readers.
pub(super) const TEXT: &str = include_str!("tiles.cu");

/// With at least so many tiles, most of a large GPU's multiprocessors have one.
const ENOUGH: usize = 120;

/// The greatest K, and the greatest distance of neighbours along it, that the text counts with.
pub(super) const MOST_DEPTH: usize = 1 << 30;

/// The most blocks of a launch; a block goes on with further tiles.
const MOST_TILES: usize = 1 << 20;

/// How threads walk over the left matrix when they load it, so that neighbours load neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeftWalk {
    AlongK = 0,
    AlongRows = 1,
    /// Along the 8 rows of a panel of packed weights, and then along K.
    Panels = 2,
}

/// The same for the right matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RightWalk {
    AlongColumns = 0,
    AlongK = 1,
}

/// The tiles of a stack of matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiles {
    /// The number of the size, as the text counts them.
    number: usize,
    /// Tiles above each other, and beside each other.
    pub rows: usize,
    pub columns: usize,
    /// All tiles.
    pub count: usize,
}

impl Tiles {
    /// The tiles of `matrices` matrices of `m` rows and `n` columns: the largest that are enough and not mostly empty.
    pub fn of(halves: bool, m: usize, n: usize, matrices: usize) -> Tiles {
        let edges: &[usize] = match halves {
            true => &[32, 64, 128],
            false => &[16, 32, 64, 128],
        };
        let made = |number: usize| {
            let (rows, columns) = (m.div_ceil(edges[number]), n.div_ceil(edges[number]));
            Tiles {
                number,
                rows,
                columns,
                count: matrices * rows * columns,
            }
        };
        let fits =
            |number: &usize| edges[*number] < 2 * m.min(n).max(1) && made(*number).count >= ENOUGH;
        made((1..edges.len()).rev().find(fits).unwrap_or(0))
    }

    /// Blocks of a launch.
    pub fn blocks(&self) -> u32 {
        self.count.min(MOST_TILES) as u32
    }

    /// Tells the text which tiles these are, and how to walk.
    pub fn set(&self, arguments: &mut Arguments, left: LeftWalk, right: RightWalk) {
        arguments.sizes[12..15].copy_from_slice(&[self.number as i64, left as i64, right as i64]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_as_large_as_keeps_a_gpu_busy() {
        let check = |halves, [m, n, matrices]: [usize; 3], edge: usize| {
            let tiles = Tiles::of(halves, m, n, matrices);
            let (rows, columns) = (m.div_ceil(edge), n.div_ceil(edge));
            assert_eq!(
                (tiles.rows, tiles.columns),
                (rows, columns),
                "{m} {n} {matrices}"
            );
            assert_eq!(tiles.count, rows * columns * matrices);
        };
        check(false, [4096, 4096, 1], 128);
        check(false, [512, 49, 1], 16);
        check(false, [128, 784, 1], 16);
        check(false, [256, 3136, 1], 64);
        check(false, [1, 50_000, 1], 16);
        check(true, [512, 49, 1], 32);
        check(true, [4096, 4096, 1], 128);
        check(true, [64, 64, 1000], 64);
    }
}
