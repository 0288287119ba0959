//! Chains of element-wise functions, computed tile by tile, so that a tile stays in the first-level cache between
//! functions.
//!
//! ```text
//! stages:  t0 = a * b     t0 = t0 + c     t1 = erf(t0)     t0 = t0 * t1        a tile is TILE elements
//! ```
//! Tile 0 is the output itself, or the values that are rounded, converted or reduced into the output. Inputs of other types are
//! converted tile by tile. The tiles of a chain of 16-bit floats are f32, and its inputs are widened tile by tile. Every stage
//! computes each element and rounds it to the chain's type exactly as its function alone does, so a chain has the same bits
//! as its functions run one after the other.

use std::ops::Range;

use crate::Exec;
use crate::binary::Arith;
use crate::binary::block;
use crate::cast::CastTo;
use crate::compiled::compiled_floats;
use crate::element::{Element, Float, canonical_nan};
use crate::error::Result;
use crate::math::Real;
use crate::multiversion::multiversion;
use crate::reduce::{Fold, Reduce, Rows, Visit, single_pass};
use crate::shape::{Operand, Walk, count};
use crate::split::{GRAIN, tiles};
use crate::unary::{self, FloatUnary};

/// Number of elements of a tile.
const TILE: usize = 512;
/// The largest number of tiles in a chain.
pub const MOST_TILES: usize = 8;
/// The largest number of inputs of a chain.
pub const MOST_INPUTS: usize = 8;
/// Number of stages between two checks of the cancel flag.
const LOOK: usize = 64;

/// Where a stage reads an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A tile that an earlier stage wrote. Tile 0 initially holds the content of the output.
    Tile(u8),
    /// The input of the chain with this index.
    Input(u8),
}

/// The element-wise function that a stage computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ElementFunction {
    /// A function of one element.
    Unary(FloatUnary, Source),
    /// A function of two elements, which is neither [`Arith::Mod`] nor [`Arith::Fmod`].
    Binary(Arith, Source, Source),
    /// A function of one element between numbers and codes.
    Coding(Coding, Source),
}

/// A function between numbers and their codes, which are whole numbers. Its parameters are those of f32 tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Coding {
    /// The number of a code: `(x - zero) * scale`.
    Decode { scale: f32, zero: f32 },
    /// The code of a number: `x / scale`, rounded half to even, plus `zero`, within `low..=high`; NaN gives `low`.
    Encode {
        scale: f32,
        zero: f32,
        low: f32,
        high: f32,
    },
}

/// One function and the tile that it writes. That tile may be the first operand or both, but never the second operand
/// alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    /// The function, with its operands.
    pub function: ElementFunction,
    /// Index of the tile that the result goes to.
    pub to: u8,
}

/// An input of another type, whose elements are converted as they are read.
pub trait ConvertedElements<T>: Sync {
    /// The dimensions of the input.
    fn shape(&self) -> &[usize];
    /// Fills `y` with the converted elements from position `first` on.
    fn read(&self, first: usize, y: &mut [T]);
}

impl<A: CastTo<T>, T> ConvertedElements<T> for Operand<'_, A> {
    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn read(&self, first: usize, y: &mut [T]) {
        A::cast_few(&self.data[first..first + y.len()], y);
    }
}

/// An input of a chain, as the caller gives it.
#[derive(Clone, Copy)]
pub enum ChainInput<'a, T> {
    /// An input of the chain's own type.
    Own(Operand<'a, T>),
    /// An input of another type.
    Other(&'a dyn ConvertedElements<T>),
}

impl<'a, T> ChainInput<'a, T> {
    fn shape(&self) -> &'a [usize] {
        match self {
            ChainInput::Own(x) => x.shape,
            ChainInput::Other(x) => x.shape(),
        }
    }
}

/// An input of a chain, converted to the type of its tiles as it is read.
#[derive(Clone, Copy)]
enum WidenedInput<'a, T> {
    Own(Operand<'a, T>),
    Other(&'a dyn ConvertedElements<T>),
}

impl<T: Float> ConvertedElements<T::Wide> for WidenedInput<'_, T> {
    fn shape(&self) -> &[usize] {
        match self {
            WidenedInput::Own(x) => x.shape,
            WidenedInput::Other(x) => x.shape(),
        }
    }

    fn read(&self, first: usize, y: &mut [T::Wide]) {
        match self {
            WidenedInput::Own(x) => T::widen_run(&x.data[first..first + y.len()], y),
            WidenedInput::Other(x) => {
                if let Some(y) = T::of_wide_mut(y) {
                    return x.read(first, y);
                }
                let mut room = [T::ZERO; TILE];
                for (i, y) in y.chunks_mut(TILE).enumerate() {
                    let narrow = &mut room[..y.len()];
                    x.read(first + i * TILE, narrow);
                    T::widen_run(narrow, y);
                }
            }
        }
    }
}

/// The elements of an input that belong to one tile.
#[derive(Clone, Copy)]
enum TileInput<'a, T> {
    /// One element that every output of the tile reads.
    One(&'a [T]),
    /// One element for each output of the tile.
    Dense(&'a [T]),
    /// The elements were gathered into the buffer with this index.
    Buffer(usize),
}

/// How an input relates to the whole output.
#[derive(Clone, Copy)]
enum Input<'a, T> {
    One(&'a [T]),
    /// One element of another type, already converted.
    Single(T),
    Dense(&'a [T]),
    /// A dense input of another type, converted tile by tile.
    Other(&'a dyn ConvertedElements<T>),
    /// A broadcast input, read along the walk with this index.
    Walked(usize, ChainInput<'a, T>),
}

/// The tiles of a chain, followed by its gathered inputs.
struct Buffers<'a, T>([&'a mut [T]; MOST_TILES + MOST_INPUTS]);

impl<T: Float> Buffers<'_, T> {
    /// The elements of a source, and their step: 1 where each output has its own element, 0 where one serves all
    /// outputs.
    fn read<'s>(&'s self, from: Source, inputs: &[TileInput<'s, T>]) -> (&'s [T], isize) {
        match from {
            Source::Tile(t) => (&*self.0[usize::from(t)], 1),
            Source::Input(i) => match inputs[usize::from(i)] {
                TileInput::One(x) => (x, 0),
                TileInput::Dense(x) => (x, 1),
                TileInput::Buffer(b) => (&*self.0[b], 1),
            },
        }
    }

    fn copy(&self, from: Source, inputs: &[TileInput<'_, T>], y: &mut [T]) {
        match self.read(from, inputs) {
            (x, 1) => y.copy_from_slice(&x[..y.len()]),
            (x, _) => y.fill(x[0]),
        }
    }

    fn run(&mut self, stage: Stage, inputs: &[TileInput<'_, T>]) {
        let to = usize::from(stage.to);
        let own = |from: Source| from == Source::Tile(stage.to);
        // Only the function itself reads this tile, so the tile can be taken out of the buffers meanwhile.
        let y = std::mem::take(&mut self.0[to]);
        match stage.function {
            ElementFunction::Unary(op, x) => {
                if !own(x) {
                    self.copy(x, inputs, y);
                }
                unary::float_block(op, y);
            }
            ElementFunction::Coding(coding, x) => {
                if !own(x) {
                    self.copy(x, inputs, y);
                }
                code(coding, y);
            }
            ElementFunction::Binary(op, a, b) if own(a) && own(b) => block::twice(op, y),
            ElementFunction::Binary(op, a, b) if own(a) => {
                let (b, step) = self.read(b, inputs);
                block::inplace(op, step, b, y);
            }
            ElementFunction::Binary(op, a, b) => {
                let ((a, one), (b, other)) = (self.read(a, inputs), self.read(b, inputs));
                block::apart(op, [one, other], a, b, y);
            }
        }
        self.0[to] = y;
    }
}

/// Replaces every element by its number or its code, with the bits of `DequantizeLinear` and `QuantizeLinear`.
fn code<T: Float>(coding: Coding, y: &mut [T]) {
    let w = |x: f32| T::Wide::from_f64(x.into());
    match coding {
        Coding::Decode { scale, zero } => decode(y, w(scale), w(zero)),
        Coding::Encode {
            scale,
            zero,
            low,
            high,
        } => encode(y, w(scale), w(zero), [w(low), w(high)]),
    }
}

multiversion! {
    fn decode<T: Float>(y: &mut [T], scale: T::Wide, zero: T::Wide) {
        for i in 0..y.len() {
            y[i] = canonical_nan(T::narrow((y[i].widen() - zero) * scale));
        }
    }
}

multiversion! {
    fn encode<T: Float>(y: &mut [T], scale: T::Wide, zero: T::Wide, within: [T::Wide; 2]) {
        let [low, high] = within;
        for i in 0..y.len() {
            let x = (y[i].widen() / scale).round() + zero;
            let x = if x > low { x } else { low };
            y[i] = T::narrow(if x < high { x } else { high });
        }
    }
}

/// Whether what the output holds at first matters: a stage reads tile 0 before one has written it, or none writes it.
fn reads_output(stages: &[Stage]) -> bool {
    let Some(written) = stages.iter().position(|s| s.to == 0) else {
        return true;
    };
    let reads = |s: &Stage| match s.function {
        ElementFunction::Unary(_, x) | ElementFunction::Coding(_, x) => x == Source::Tile(0),
        ElementFunction::Binary(_, a, b) => [a, b].contains(&Source::Tile(0)),
    };
    stages[..=written].iter().any(reads)
}

/// A chain prepared with its inputs, so that any run of elements can be computed. Its tiles are of the type `T` that the
/// chain's functions compute in.
struct Ready<'a, T> {
    stages: &'a [Stage],
    /// Rounds what a stage has computed to the chain's type, where that is another one.
    round: Option<fn(&mut [T])>,
    /// Whether what the output holds at first has to be widened: it matters.
    reads_output: bool,
    inputs: [Input<'a, T>; MOST_INPUTS],
    given: usize,
    walks: Vec<Walk<1>>,
    /// Number of tiles, without tile 0.
    further: usize,
    /// Number of inputs that are gathered or converted into buffers.
    gathered: usize,
}

impl<'a, T: Float> Ready<'a, T> {
    fn new(
        stages: &'a [Stage],
        round: Option<fn(&mut [T])>,
        given: usize,
        input: impl Fn(usize) -> ChainInput<'a, T>,
        shape: &[usize],
    ) -> Result<Self> {
        assert!(given <= MOST_INPUTS, "inputs of a chain");
        let mut ready = Ready {
            stages,
            round,
            reads_output: round.is_some() && reads_output(stages),
            inputs: [Input::One(&[]); MOST_INPUTS],
            given,
            walks: Vec::new(),
            further: stages.iter().map(|s| usize::from(s.to)).max().unwrap_or(0),
            gathered: 0,
        };
        let elements = count(shape);
        for (i, to) in ready.inputs.iter_mut().enumerate().take(given) {
            let x = input(i);
            *to = match (count(x.shape()), x) {
                (1, ChainInput::Own(x)) => Input::One(x.data),
                (1, ChainInput::Other(x)) => {
                    let mut one = [T::ZERO];
                    x.read(0, &mut one);
                    Input::Single(one[0])
                }
                (n, ChainInput::Own(x)) if n == elements => Input::Dense(x.data),
                (n, ChainInput::Other(x)) if n == elements => Input::Other(x),
                (_, x) => {
                    ready.walks.push(Walk::broadcast(shape, [x.shape()])?);
                    Input::Walked(ready.walks.len() - 1, x)
                }
            };
            let apart = matches!(to, Input::Walked(..) | Input::Other(_));
            ready.gathered += usize::from(apart);
        }
        Ok(ready)
    }

    /// Number of scratch elements that tiles of `len` elements need beside tile 0.
    fn room(&self, len: usize) -> usize {
        (self.further + self.gathered) * len
    }

    /// Computes the elements from `start` on into `y`, which is tile 0; false where the step is cancelled.
    fn tile(&self, exec: &Exec, start: usize, y: &mut [T], room: &mut [T]) -> bool {
        let len = y.len();
        let mut buffers = Buffers(std::array::from_fn(|_| Default::default()));
        let mut room = room.chunks_mut(len);
        buffers.0[0] = y;
        for (tile, room) in buffers.0[1..=self.further].iter_mut().zip(&mut room) {
            *tile = room;
        }
        let mut along = [TileInput::One(&[][..]); MOST_INPUTS];
        let mut next = MOST_TILES;
        for (along, input) in along.iter_mut().zip(&self.inputs[..self.given]) {
            *along = match input {
                Input::One(x) => TileInput::One(x),
                Input::Single(x) => TileInput::One(std::slice::from_ref(x)),
                Input::Dense(x) => TileInput::Dense(&x[start..start + len]),
                Input::Other(_) | Input::Walked(..) => {
                    let Some(room) = room.next() else {
                        return false;
                    };
                    match input {
                        Input::Other(x) => x.read(start, room),
                        Input::Walked(walk, x) => gather(&self.walks[*walk], start, *x, room),
                        _ => {}
                    }
                    buffers.0[next] = room;
                    next += 1;
                    TileInput::Buffer(next - 1)
                }
            };
        }
        for (i, stage) in self.stages.iter().enumerate() {
            if i % LOOK == LOOK - 1 && exec.check().is_err() {
                return false;
            }
            buffers.run(*stage, &along[..self.given]);
            if let Some(round) = self.round {
                round(buffers.0[usize::from(stage.to)]);
            }
        }
        true
    }
}

/// Calls `then` with the chain, prepared with its inputs.
fn with_ready<'a, T: Float<Wide: Float>, R>(
    stages: &[Stage],
    given: &[ChainInput<'a, T>],
    shape: &[usize],
    then: impl FnOnce(&Ready<'_, T::Wide>) -> R,
) -> Result<R> {
    let narrow = T::as_wide(&[]).is_none();
    // Most chains have no such input, and are so short that room for them would be felt.
    let wraps = |x: &ChainInput<T>| narrow || matches!(x, ChainInput::Other(_));
    let widened = |x: &ChainInput<'a, T>| match *x {
        ChainInput::Own(x) => WidenedInput::Own(x),
        ChainInput::Other(x) => WidenedInput::Other(x),
    };
    let widened: Vec<WidenedInput<'a, T>> = match given.iter().any(wraps) {
        true => given.iter().map(widened).collect(),
        false => Vec::new(),
    };
    let input = |i: usize| match given[i] {
        ChainInput::Own(Operand { data, shape }) => match T::as_wide(data) {
            Some(data) => ChainInput::Own(Operand { data, shape }),
            None => ChainInput::Other(&widened[i]),
        },
        ChainInput::Other(_) => ChainInput::Other(&widened[i]),
    };
    let round = narrow.then_some(T::round_run as fn(&mut [T::Wide]));
    let ready = Ready::new(stages, round, given.len(), input, shape)?;
    Ok(then(&ready))
}

fn chain_any<T: Float<Wide: Float>>(
    exec: &Exec,
    stages: &[Stage],
    given: &[ChainInput<T>],
    y: &mut [T],
    shape: &[usize],
) -> Result {
    assert_eq!(y.len(), count(shape), "result of shape {shape:?}");
    let run = |ready: &Ready<'_, T::Wide>| {
        tiles(exec, y, 1, GRAIN, |range, part| {
            let len = part.len().min(TILE);
            let narrow = T::as_wide(part).is_none();
            let own = if narrow { len } else { 0 };
            let mut room = vec![T::Wide::ZERO; own + ready.room(len)];
            let (own, room) = room.split_at_mut(own);
            for (i, y) in part.chunks_mut(TILE).enumerate() {
                let start = range.start + i * TILE;
                if let Some(y) = T::as_wide_mut(y) {
                    if !ready.tile(exec, start, y, room) {
                        return;
                    }
                    continue;
                }
                let wide = &mut own[..y.len()];
                if ready.reads_output {
                    T::widen_run(y, wide);
                }
                if !ready.tile(exec, start, wide, room) {
                    return;
                }
                T::narrow_run(wide, y);
            }
        })
    };
    with_ready(stages, given, shape, run)??;
    Ok(exec.check()?)
}

/// Computes the elements `range` and passes them to `to`, tile by tile, until the step is cancelled.
fn each_any<T: Float<Wide: Float>>(
    exec: &Exec,
    stages: &[Stage],
    given: &[ChainInput<T>],
    shape: &[usize],
    range: Range<usize>,
    to: &mut dyn FnMut(&[T]),
) -> Result {
    let run = |ready: &Ready<'_, T::Wide>| {
        let len = range.len().min(TILE);
        let mut room = vec![T::Wide::ZERO; len + ready.room(len)];
        let (wide, room) = room.split_at_mut(len);
        let mut narrow = [T::ZERO; TILE];
        for start in range.clone().step_by(TILE) {
            let wide = &mut wide[..(range.end - start).min(TILE)];
            if exec.check().is_err() || !ready.tile(exec, start, wide, room) {
                break;
            }
            match T::of_wide_mut(wide) {
                Some(y) => to(y),
                None => {
                    let y = &mut narrow[..wide.len()];
                    T::narrow_run(wide, y);
                    to(y);
                }
            }
        }
    };
    with_ready(stages, given, shape, run)?;
    Ok(exec.check()?)
}

fn chain_reduced_any<T: Float<Wide: Float>>(
    exec: &Exec,
    stages: &[Stage],
    given: &[ChainInput<T>],
    op: Reduce,
    y: &mut [T],
    shape: &[usize],
) -> Result {
    /// The arguments of a chain whose result is reduced by a fold.
    struct FoldedChain<'a, 'y, T> {
        exec: &'a Exec<'a>,
        stages: &'a [Stage],
        given: &'a [ChainInput<'a, T>],
        shape: &'a [usize],
        row: usize,
        y: &'y mut [T],
    }
    impl<T: Float<Wide: Float>> Visit<T> for FoldedChain<'_, '_, T> {
        fn visit<F: Fold<T>>(&mut self, fold: F) -> Result {
            let FoldedChain {
                exec,
                stages,
                given,
                shape,
                row,
                ..
            } = *self;
            tiles(exec, self.y, 1, (GRAIN / row).max(1), |range, part| {
                let mut rows = Rows::new(fold, row, part);
                let range = range.start * row..range.end * row;
                // The only possible error is a cancellation, which the check after the loop reports.
                let _ = each_any(exec, stages, given, shape, range, &mut |x| rows.push(x));
            })?;
            Ok(exec.check()?)
        }
    }
    let row = count(shape) / y.len().max(1);
    assert!(
        row > 0 && row * y.len() == count(shape) && op.is_single_pass(),
        "{op:?} of {shape:?} into {}",
        y.len()
    );
    // A shape with too many axes is reported before anything is computed.
    with_ready(stages, given, shape, |_| ())?;
    let mut over = FoldedChain {
        exec,
        stages,
        given,
        shape,
        row,
        y,
    };
    single_pass(op, &mut over).unwrap_or(Ok(()))
}

/// Copies the elements of a broadcast input that belong to the outputs from `start` on into `y`.
fn gather<T: Float>(walk: &Walk<1>, start: usize, x: ChainInput<T>, y: &mut [T]) {
    let step = walk.inner()[0];
    let mut runs = walk.runs(start..start + y.len());
    while let Some(run) = runs.next_run() {
        let y = &mut y[run.start..run.start + run.len];
        let from = run.offset[0];
        let read = match step {
            0 => &mut y[..1],
            _ => &mut *y,
        };
        match x {
            ChainInput::Own(x) => read.copy_from_slice(&x.data[from..from + read.len()]),
            ChainInput::Other(x) => x.read(from, read),
        }
        if step == 0 {
            y.fill(y[0]);
        }
    }
}

compiled_floats! {
    /// The chains of a floating-point type.
    trait ChainKernels {
        fn chain(exec: &Exec, stages: &[Stage], given: &[ChainInput<Self>], y: &mut [Self], shape: &[usize]) = chain_any;
        fn each(
            exec: &Exec, stages: &[Stage], given: &[ChainInput<Self>], shape: &[usize], range: Range<usize>,
            to: &mut dyn FnMut(&[Self]),
        ) = each_any;
        fn reduced(
            exec: &Exec, stages: &[Stage], given: &[ChainInput<Self>], op: Reduce, y: &mut [Self], shape: &[usize],
        ) = chain_reduced_any;
    }
}

/// Runs `stages` for every element of `y`. All inputs broadcast to `shape`, the shape of `y`. Stages may read the
/// former content of `y` as tile 0 before they overwrite it. A chain has at most [`MOST_INPUTS`] inputs, and tiles
/// below [`MOST_TILES`].
pub fn chain<T: Float + ChainKernels>(
    exec: &Exec,
    stages: &[Stage],
    given: &[ChainInput<T>],
    y: &mut [T],
    shape: &[usize],
) -> Result {
    T::chain(exec, stages, given, y, shape)
}

/// Runs a chain like [`chain`] and converts its result to another type. The former content of `y` is not read.
pub fn chain_cast<T: Float + ChainKernels + CastTo<B>, B: Element>(
    exec: &Exec,
    stages: &[Stage],
    given: &[ChainInput<T>],
    y: &mut [B],
    shape: &[usize],
) -> Result {
    assert_eq!(y.len(), count(shape), "result of shape {shape:?}");
    // A shape with too many axes is reported before anything is computed.
    T::each(exec, stages, given, shape, 0..0, &mut |_| ())?;
    tiles(exec, y, 1, GRAIN, |range, part| {
        let mut rest = part;
        let mut convert = |x: &[T]| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(x.len());
            T::cast_few(x, now);
            rest = later;
        };
        // The only possible error is a cancellation, which the check after the loop reports.
        let _ = T::each(exec, stages, given, shape, range, &mut convert);
    })?;
    Ok(exec.check()?)
}

/// Runs a chain like [`chain`] and reduces each row of its trailing axes to one element of `y`, with the bits of
/// [`reduce_float`]. `shape` is the shape of the chain and has at least one element; `op` reads each element once.
///
/// [`reduce_float`]: crate::reduce::reduce_float
pub fn chain_reduced<T: Float + ChainKernels>(
    exec: &Exec,
    stages: &[Stage],
    given: &[ChainInput<T>],
    op: Reduce,
    y: &mut [T],
    shape: &[usize],
) -> Result {
    T::reduced(exec, stages, given, op, y, shape)
}

#[cfg(test)]
mod tests;
