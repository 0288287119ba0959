//! The one parameter of every kernel, and the arithmetic of shapes that fills it.

use convoke_graph::tensor::MAX_RANK;

/// The most operands of a kernel.
pub const OPERANDS: usize = 5;

/// The parameter of every kernel; `prelude.cu` declares the same struct. Each kernel defines the meaning of `sizes` and
/// `numbers`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arguments {
    /// Addresses of the operands; 0 for one that is left out.
    pub inputs: [u64; OPERANDS],
    /// Address of the result.
    pub output: u64,
    /// Address of the word that says that an operand's elements cannot be used; 0 where no such element is looked for.
    pub fault: u64,
    /// Number of elements, or rows, that the kernel makes.
    pub elements: i64,
    /// Number of dimensions in `dims` that an element's number is divided by.
    pub rank: i64,
    /// The dimensions.
    pub dims: [i64; MAX_RANK],
    /// By operand, the elements from one step of a dimension to the next.
    pub strides: [[i64; MAX_RANK]; OPERANDS],
    /// The same of the result.
    pub out_strides: [i64; MAX_RANK],
    pub sizes: [i64; 16],
    pub numbers: [f64; 4],
}

impl Arguments {
    /// Arguments for this many elements, with nothing else set.
    pub fn of(elements: usize) -> Arguments {
        Arguments {
            inputs: [0; OPERANDS],
            output: 0,
            fault: 0,
            elements: elements as i64,
            rank: 0,
            dims: [1; MAX_RANK],
            strides: [[0; MAX_RANK]; OPERANDS],
            out_strides: [0; MAX_RANK],
            sizes: [0; 16],
            numbers: [0.; 4],
        }
    }

    /// Sets dimensions and strides; neighbours that one stride covers are joined in all operands and the result.
    pub fn set_grid(&mut self, grid: &Grid) {
        let grid = grid.joined();
        self.rank = grid.dims.len() as i64;
        for (d, dim) in grid.dims.iter().enumerate() {
            self.dims[d] = *dim;
            self.out_strides[d] = grid.out[d];
            for (all, own) in self.strides.iter_mut().zip(&grid.operands) {
                all[d] = own[d];
            }
        }
    }
}

/// Dimensions, with the strides that result and operands have along them.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    pub dims: Vec<i64>,
    pub out: Vec<i64>,
    pub operands: Vec<Vec<i64>>,
}

impl Grid {
    /// The grid without dimensions of one element, and with neighbours joined where every stride allows it.
    fn joined(&self) -> Grid {
        let mut made = Grid {
            dims: vec![],
            out: vec![],
            operands: vec![vec![]; self.operands.len()],
        };
        for (d, dim) in self.dims.iter().enumerate().filter(|(_, dim)| **dim != 1) {
            let continues = |outer: &[i64], inner: i64| outer.last() == Some(&(inner * dim));
            let all = self.operands.iter().zip(&made.operands);
            let joins = continues(&made.out, self.out[d])
                && all.clone().all(|(own, outer)| continues(outer, own[d]));
            if !joins {
                made.dims.push(1);
                made.out.push(0);
                made.operands.iter_mut().for_each(|o| o.push(0));
            }
            let last = made.dims.len() - 1;
            made.dims[last] *= dim;
            made.out[last] = self.out[d];
            for (outer, own) in made.operands.iter_mut().zip(&self.operands) {
                outer[last] = own[d];
            }
        }
        made
    }
}

/// The strides of a dense tensor.
pub fn dense(shape: &[usize]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d].max(1) as i64;
    }
    strides
}

/// The strides along `to` of a dense tensor of shape `from` that is broadcast to it; `None` where it cannot be.
pub fn broadcast(from: &[usize], to: &[usize]) -> Option<Vec<i64>> {
    let missing = to.len().checked_sub(from.len())?;
    let own = dense(from);
    let strides = to.iter().enumerate().map(|(d, dim)| {
        let Some(at) = d.checked_sub(missing) else {
            return Some(0);
        };
        match from[at] {
            1 => Some(0),
            same if same == *dim => Some(own[at]),
            _ => None,
        }
    });
    strides.collect()
}

/// Dimensions as the kernels take them.
pub fn dims(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|d| *d as i64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(dims: &[i64], out: &[i64], operand: &[i64]) -> Grid {
        Grid {
            dims: dims.to_vec(),
            out: out.to_vec(),
            operands: vec![operand.to_vec()],
        }
    }

    #[test]
    fn neighbours_are_joined_where_all_strides_allow_it() {
        let check = |given: Grid, want: Grid| assert_eq!(given.joined(), want);
        check(
            grid(&[2, 3, 4], &[12, 4, 1], &[12, 4, 1]),
            grid(&[24], &[1], &[1]),
        );
        check(
            grid(&[2, 1, 4], &[4, 4, 1], &[0, 0, 1]),
            grid(&[2, 4], &[4, 1], &[0, 1]),
        );
        check(grid(&[1, 1], &[1, 1], &[1, 1]), grid(&[], &[], &[]));
        check(
            grid(&[2, 3], &[3, 1], &[1, 2]),
            grid(&[2, 3], &[3, 1], &[1, 2]),
        );
    }

    #[test]
    fn broadcast_dimensions_have_no_stride() {
        assert_eq!(broadcast(&[3, 1], &[2, 3, 4]), Some(vec![0, 1, 0]));
        assert_eq!(broadcast(&[], &[2]), Some(vec![0]));
        assert_eq!(broadcast(&[2], &[3]), None);
        assert_eq!(broadcast(&[2, 3], &[3]), None);
    }
}
