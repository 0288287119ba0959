//! `DFT`: the transforms of all lines along an axis.

use super::fft::{Complex, Plan, Tables, conj};
use crate::Exec;
use crate::compiled::compiled_floats;
use crate::element::{Float, canonical_nan};
use crate::error::Result;
use crate::shape::Axis;
use crate::split::tiles_with_scratch;

/// The most tiles of lines, each of which needs scratch memory of its own.
const MOST_TILES: usize = 16;

/// A transform of all lines along an axis. An element has two parts, or one where it is real.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dft {
    plan: Plan,
    /// The length of the transform. Lines are cut or padded with zeros to it.
    length: usize,
    /// The operand, as seen from the axis; its last axis, of the parts of a number, is left out.
    axis: Axis,
    complex: bool,
    inverse: bool,
    one_sided: bool,
}

impl Dft {
    /// A transform of `length`, which is not zero; `None` where its tables would not fit an address space.
    pub fn new(
        length: usize,
        axis: Axis,
        complex: bool,
        inverse: bool,
        one_sided: bool,
    ) -> Option<Dft> {
        Some(Dft {
            plan: Plan::new(length)?,
            length,
            axis,
            complex,
            inverse,
            one_sided,
        })
    }

    /// Numbers of f64 that the transform needs as scratch memory.
    pub fn scratch_len(&self) -> Option<usize> {
        let lines = self.per_tile().checked_mul(self.tile_count())?;
        lines.checked_add(self.plan.table_len())?.checked_mul(2)
    }

    /// Complex numbers of scratch memory for one tile.
    fn per_tile(&self) -> usize {
        self.length + self.plan.scratch_len()
    }

    fn grain(&self) -> usize {
        self.axis.outer.div_ceil(MOST_TILES).max(1)
    }

    fn tile_count(&self) -> usize {
        self.axis.outer.div_ceil(self.grain()).max(1)
    }

    /// The length of the axis in the result.
    fn result_len(&self) -> usize {
        match self.one_sided && !self.inverse {
            true => self.length / 2 + 1,
            false => self.length,
        }
    }

    fn to_real(self) -> bool {
        self.one_sided && self.inverse
    }

    /// Reads the line with this number within its block of lines.
    fn read<T: Float>(&self, x: &[T], inner: usize, line: &mut [Complex]) {
        let parts = 1 + usize::from(self.complex);
        let given = self.axis.len;
        let at = |j: usize| -> Complex {
            let first = (j * self.axis.inner + inner) * parts;
            let imaginary = if self.complex {
                x[first + 1].to_f64()
            } else {
                0.0
            };
            [x[first].to_f64(), imaginary]
        };
        let present = given.min(line.len());
        if !self.to_real() {
            for (j, y) in line[..present].iter_mut().enumerate() {
                let value = at(j);
                *y = if self.inverse { conj(value) } else { value };
            }
            line[present..].fill([0.0; 2]);
            return;
        }
        // The second half of the spectrum of a real signal is the conjugate of the first one.
        let n = line.len();
        line.fill([0.0; 2]);
        for k in 0..(n / 2 + 1).min(given) {
            let mut value = at(k);
            if k == 0 || 2 * k == n {
                value[1] = 0.0;
            }
            line[k] = conj(value);
            line[(n - k) % n] = match k {
                0 => line[0],
                _ => value,
            };
        }
    }

    /// Writes the transform of a line.
    fn write<T: Float>(&self, line: &[Complex], inner: usize, y: &mut [T]) {
        let count = line.len() as f64;
        for (k, value) in line[..self.result_len()].iter().enumerate() {
            let value = match self.inverse {
                true => [value[0] / count, -value[1] / count],
                false => *value,
            };
            let first = k * self.axis.inner + inner;
            let [re, im] = value.map(|v| T::from_f64(canonical_nan(v)));
            match self.to_real() {
                true => y[first] = re,
                false => [y[2 * first], y[2 * first + 1]] = [re, im],
            }
        }
    }
}

/// The memory of complex numbers in that of f64.
fn complex(memory: &mut [f64]) -> &mut [Complex] {
    memory.as_chunks_mut().0
}

fn dft_any<T: Float>(exec: &Exec, x: &[T], dft: &Dft, scratch: &mut [f64], y: &mut [T]) -> Result {
    let (axis, length) = (dft.axis, dft.length);
    let parts = 1 + usize::from(dft.complex);
    let out_parts = if dft.to_real() { 1 } else { 2 };
    let unit = dft.result_len() * axis.inner * out_parts;
    let block = axis.len * axis.inner * parts;
    assert!(
        x.len() == axis.outer * block && y.len() == axis.outer * unit,
        "{dft:?}"
    );
    let (tables, lines) = complex(scratch).split_at_mut(dft.plan.table_len());
    if y.is_empty() {
        return Ok(exec.check()?);
    }
    let tables: Tables<'_> = dft
        .plan
        .tables(exec, tables, &mut lines[..dft.plan.scratch_len()]);
    exec.check()?;
    let per_tile = dft.per_tile();
    tiles_with_scratch(
        exec,
        (y, unit),
        (lines, per_tile),
        dft.grain(),
        |range, part, memory| {
            let (line, scratch) = memory.split_at_mut(length);
            let x = &x[range.start * block..range.end * block];
            for i in 0..range.len() {
                for inner in 0..axis.inner {
                    if exec.check().is_err() {
                        return;
                    }
                    dft.read(&x[i * block..(i + 1) * block], inner, line);
                    tables.transform(exec, line, scratch);
                    dft.write(line, inner, &mut part[i * unit..(i + 1) * unit]);
                }
            }
        },
    )?;
    Ok(exec.check()?)
}

compiled_floats! {
    /// Transforms of a type.
    trait DftKernels {
        fn dft(exec: &Exec, x: &[Self], dft: &Dft, scratch: &mut [f64], y: &mut [Self]) = dft_any;
    }
}

/// Computes a transform, in f64, rounded once. `scratch` has [`Dft::scratch_len`] numbers, whose contents do not matter.
pub fn dft<T: Float>(exec: &Exec, x: &[T], dft: &Dft, scratch: &mut [f64], y: &mut [T]) -> Result {
    T::dft(exec, x, dft, scratch, y)
}
