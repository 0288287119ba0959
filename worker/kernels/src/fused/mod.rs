//! Chains of functions of single elements, worked through tile by tile while a tile stays in the first-level cache.
//!
//! ```text
//! stages:  t0 = a * b     t0 = t0 + c     t1 = erf(t0)     t0 = t0 * t1        a tile is TILE elements
//! ```
//! Tile 0 is the output itself. Every stage computes what its function alone computes, element by element and rounded as
//! its type is, so a chain has the bits of its functions run one after the other.

use crate::Exec;
use crate::binary::Arith;
use crate::binary::block;
use crate::compiled::compiled_floats;
use crate::element::Float;
use crate::error::Result;
use crate::shape::{Operand, Walk, count};
use crate::split::{GRAIN, tiles};
use crate::unary::{self, FloatUnary};

/// Elements of a tile.
const TILE: usize = 512;
/// Most tiles of a chain.
pub const MOST_TILES: usize = 8;
/// Most inputs of a chain.
pub const MOST_INPUTS: usize = 8;
/// Stages between two looks at the cancel flag.
const LOOK: usize = 64;

/// Where a stage reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A tile that an earlier stage wrote; tile 0 at first holds what the output did.
    Tile(u8),
    /// An input of the chain.
    Input(u8),
}

/// What a stage computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Function {
    /// Of one element.
    Unary(FloatUnary, Source),
    /// Of two; neither [`Arith::Mod`] nor [`Arith::Fmod`].
    Binary(Arith, Source, Source),
}

/// One function, and the tile it writes. The second operand is never that tile, unless it is the first as well.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    /// What is computed.
    pub function: Function,
    /// The tile.
    pub to: u8,
}

/// An input along one tile.
#[derive(Clone, Copy)]
enum Along<'a, T> {
    /// One element for all.
    One(&'a [T]),
    /// As many as the output.
    Dense(&'a [T]),
    /// Gathered into a buffer.
    Buffer(usize),
}

/// What an input is to the whole output.
#[derive(Clone, Copy)]
enum Input<'a, T> {
    One(&'a [T]),
    Dense(&'a [T]),
    /// Broadcast, along the walk of this number.
    Walked(usize, &'a [T]),
}

/// The tiles, then gathered inputs.
struct Buffers<'a, T>([&'a mut [T]; MOST_TILES + MOST_INPUTS]);

impl<T: Float> Buffers<'_, T> {
    /// Elements at a source, and whether each stands for itself or one for all.
    fn read<'s>(&'s self, from: Source, inputs: &[Along<'s, T>]) -> (&'s [T], isize) {
        match from {
            Source::Tile(t) => (&*self.0[usize::from(t)], 1),
            Source::Input(i) => match inputs[usize::from(i)] {
                Along::One(x) => (x, 0),
                Along::Dense(x) => (x, 1),
                Along::Buffer(b) => (&*self.0[b], 1),
            },
        }
    }

    fn run(&mut self, stage: Stage, inputs: &[Along<'_, T>]) {
        let to = usize::from(stage.to);
        let own = |from: Source| from == Source::Tile(stage.to);
        // Nobody reads the tile meanwhile but the function itself.
        let y = std::mem::take(&mut self.0[to]);
        match stage.function {
            Function::Unary(op, x) => {
                if !own(x) {
                    match self.read(x, inputs) {
                        (x, 1) => y.copy_from_slice(&x[..y.len()]),
                        (x, _) => y.fill(x[0]),
                    }
                }
                unary::float_block(op, y);
            }
            Function::Binary(op, a, b) if own(a) && own(b) => block::twice(op, y),
            Function::Binary(op, a, b) if own(a) => {
                let (b, step) = self.read(b, inputs);
                block::inplace(op, step, b, y);
            }
            Function::Binary(op, a, b) => {
                let ((a, one), (b, other)) = (self.read(a, inputs), self.read(b, inputs));
                block::apart(op, [one, other], a, b, y);
            }
        }
        self.0[to] = y;
    }
}

fn chain_any<T: Float>(
    exec: &Exec,
    stages: &[Stage],
    operands: &[Operand<T>],
    y: &mut [T],
    shape: &[usize],
) -> Result {
    assert_eq!(y.len(), count(shape), "result of shape {shape:?}");
    assert!(operands.len() <= MOST_INPUTS, "inputs of a chain");
    let mut inputs: [Input<'_, T>; MOST_INPUTS] = [Input::One(&[]); MOST_INPUTS];
    let mut walks = Vec::new();
    for (input, x) in inputs.iter_mut().zip(operands) {
        *input = match x.data {
            [_] => Input::One(x.data),
            _ if x.data.len() == y.len() => Input::Dense(x.data),
            _ => {
                walks.push(Walk::broadcast(shape, [x.shape])?);
                Input::Walked(walks.len() - 1, x.data)
            }
        };
    }
    let inputs = &inputs[..operands.len()];
    let further = stages.iter().map(|s| usize::from(s.to)).max().unwrap_or(0);
    tiles(exec, y, 1, GRAIN, |range, part| {
        let len = part.len().min(TILE);
        let mut scratch = vec![T::ZERO; (further + walks.len()) * len];
        for (i, y) in part.chunks_mut(TILE).enumerate() {
            let start = range.start + i * TILE;
            let len = y.len();
            let mut buffers = Buffers(std::array::from_fn(|_| Default::default()));
            let mut room = scratch.chunks_mut(len);
            buffers.0[0] = y;
            for (tile, room) in buffers.0[1..=further].iter_mut().zip(&mut room) {
                *tile = room;
            }
            let mut along = [Along::One(&[][..]); MOST_INPUTS];
            let mut next = MOST_TILES;
            for (along, input) in along.iter_mut().zip(inputs) {
                *along = match input {
                    Input::One(x) => Along::One(x),
                    Input::Dense(x) => Along::Dense(&x[start..start + len]),
                    Input::Walked(walk, x) => {
                        let Some(room) = room.next() else { return };
                        gather(&walks[*walk], start, x, room);
                        buffers.0[next] = room;
                        next += 1;
                        Along::Buffer(next - 1)
                    }
                };
            }
            for (i, stage) in stages.iter().enumerate() {
                if i % LOOK == LOOK - 1 && exec.check().is_err() {
                    return;
                }
                buffers.run(*stage, &along[..inputs.len()]);
            }
        }
    })?;
    Ok(exec.check()?)
}

/// The elements of a broadcast input that belong to outputs `start..`.
fn gather<T: Float>(walk: &Walk<1>, start: usize, x: &[T], y: &mut [T]) {
    let step = walk.inner()[0];
    let mut runs = walk.runs(start..start + y.len());
    while let Some(run) = runs.next_run() {
        let y = &mut y[run.start..run.start + run.len];
        let x = &x[run.offset[0]..];
        match step {
            0 => y.fill(x[0]),
            _ => y.copy_from_slice(&x[..run.len]),
        }
    }
}

compiled_floats! {
    /// The chains of a floating-point type.
    trait ChainKernels {
        fn chain(exec: &Exec, stages: &[Stage], operands: &[Operand<Self>], y: &mut [Self], shape: &[usize]) = chain_any;
    }
}

/// Runs `stages` for every element of `y`, whose shape all operands broadcast to. The first stages may read what `y` holds
/// as tile 0. At most [`MOST_INPUTS`] operands, and tiles below [`MOST_TILES`].
pub fn chain<T: Float + ChainKernels>(
    exec: &Exec,
    stages: &[Stage],
    operands: &[Operand<T>],
    y: &mut [T],
    shape: &[usize],
) -> Result {
    T::chain(exec, stages, operands, y, shape)
}

#[cfg(test)]
mod tests;
