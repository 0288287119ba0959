//! The tiles that products and convolutions are made in. An element's bits do not depend on the tile, so its size is chosen by
//! what keeps a GPU busy.

use crate::kernels::args::Arguments;

/// The text that a family's readers may use, before them.
pub(super) const UNITS: &str = include_str!("tiles_units.cu");

/// The text of tiles, behind a family's readers.
pub(super) const TEXT: &str = include_str!("tiles.cu");

/// Rows and columns of tiles, by the functions that make them.
const EDGES: [usize; 4] = [16, 32, 64, 128];

/// With at least this many tiles, most of a large GPU's multiprocessors have one.
const ENOUGH: usize = 120;

/// The greatest K, and the greatest distance of neighbours along it, that the text counts with.
pub(super) const MOST_DEPTH: usize = 1 << 30;

/// The functions of the text: one for each size of tiles.
pub(super) const FUNCTIONS: usize = EDGES.len();

/// The function that makes elements one by one, which some families have besides.
pub(super) const ONE_BY_ONE: usize = FUNCTIONS;

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
    /// The function that makes them.
    pub function: usize,
    /// Tiles above each other, and beside each other.
    pub rows: usize,
    pub columns: usize,
    /// All tiles.
    pub count: usize,
}

impl Tiles {
    /// The tiles of `matrices` matrices of `m` rows and `n` columns: the largest that are enough and not mostly empty.
    pub fn of(m: usize, n: usize, matrices: usize) -> Tiles {
        let made = |function: usize| {
            let (rows, columns) = (m.div_ceil(EDGES[function]), n.div_ceil(EDGES[function]));
            Tiles {
                function,
                rows,
                columns,
                count: matrices * rows * columns,
            }
        };
        let fits = |function: &usize| {
            EDGES[*function] < 2 * m.min(n).max(1) && made(*function).count >= ENOUGH
        };
        made((1..EDGES.len()).rev().find(fits).unwrap_or(0))
    }

    /// Blocks of a launch.
    pub fn blocks(&self) -> u32 {
        self.count.min(MOST_TILES) as u32
    }
}

/// Tells the text how threads walk when they load the matrices.
pub(super) fn set_walks(arguments: &mut Arguments, left: LeftWalk, right: RightWalk) {
    arguments.sizes[13..15].copy_from_slice(&[left as i64, right as i64]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_as_large_as_keeps_a_gpu_busy() {
        let check = |[m, n, matrices]: [usize; 3], edge: usize| {
            let tiles = Tiles::of(m, n, matrices);
            let (rows, columns) = (m.div_ceil(edge), n.div_ceil(edge));
            assert_eq!(
                (tiles.rows, tiles.columns),
                (rows, columns),
                "{m} {n} {matrices}"
            );
            assert_eq!(tiles.count, rows * columns * matrices);
        };
        check([4096, 4096, 1], 128);
        check([512, 49, 1], 16);
        check([128, 784, 1], 16);
        check([256, 3136, 1], 64);
        check([1, 50_000, 1], 16);
        check([64, 64, 1000], 64);
    }
}
