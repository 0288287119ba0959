//! The code that the fuzz targets in `fuzz/` run, and the tests that replay their corpora; see
//! [`convoke_common::fuzzing`]. This module is not a part of the interface.

use std::io::Cursor;
use std::path::Path;

use convoke_common::fuzzing::{MemoryBound, Target};

use crate::files::numpy;

/// The fuzz targets of this crate.
pub const TARGETS: &[Target] = &[
    Target {
        name: "npy",
        // Memory for an array, once more where it is in Fortran order, and for its header.
        budget: MemoryBound {
            fixed: 16 << 10,
            factor: 8,
        },
        entry: |input| {
            let read = numpy::npy(&mut &input[..], input.len() as u64, Path::new("input.npy"));
            accepted(read)
        },
    },
    Target {
        name: "npz",
        // Twice what deflate can expand the input to, for arrays in Fortran order.
        budget: MemoryBound {
            fixed: 512 << 10,
            factor: 2100,
        },
        entry: |input| {
            let size = input.len() as u64;
            let file = numpy::Npz::new(Cursor::new(input), size, Path::new("input.npz"));
            accepted(file.and_then(numpy::Npz::read_all))
        },
    },
];

fn accepted<T>(read: Result<T, numpy::NumpyError>) -> bool {
    match read {
        Ok(_) => true,
        Err(error) => {
            std::hint::black_box(error.to_string());
            false
        }
    }
}
