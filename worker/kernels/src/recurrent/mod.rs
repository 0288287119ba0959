//! Recurrent layers: LSTM, GRU and RNN.
//!
//! ```text
//! X · Wᵀ + bias ── for as many steps at once as the scratch holds ──┐
//! state · Rᵀ ── one product a step, two for some GRUs ──────────────┴── gates ── state of the next step ── Y
//! ```
//!
//! Invariants
//! 1. Products are those of [`crate::gemm`], and one lane computes one element of the state, so that bits depend neither
//!    on threads nor on how many steps the scratch holds.
//! 2. Beyond its own length a sequence keeps its state and yields zeros, in either direction.
//! 3. The cancel flag is checked in every step.

mod cell;
#[cfg(test)]
mod tests;

pub use cell::CellActivation;

use cell::{Cells, Gates};

use crate::Exec;
use crate::compiled::compiled;
use crate::element::Number;
use crate::error::{KernelError, Result};
use crate::gemm::{
    Batch, ChainElement, Epilogue, Lhs, NR, PackedB, Rhs, Strided, gemm_batched, gemm_generic,
    packed_b_len, panels_of_row, product_of_row,
};
use crate::math::Real;
use crate::split::{Finished, tiles2, units_per_tile};
use std::ops::Range;

/// The most elements of the products with the inputs that are kept at a time, where a step does not need more: 96 KiB of
/// f32. A level-2 cache keeps them, and an allocator has memory of that size at hand.
pub const AHEAD: usize = 3 << 13;

/// The kind of a recurrent layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// A gated recurrent unit.
    Gru {
        /// Whether the state is multiplied by the recurrent weights before it is reset.
        linear_before_reset: bool,
    },
    /// Long short-term memory.
    Lstm {
        /// Whether the forget gate is one minus the input gate.
        input_forget: bool,
    },
    /// An activation of a weighted sum.
    Rnn,
}

impl Cell {
    /// How many gates the weights have.
    pub fn gates(self) -> usize {
        match self {
            Cell::Gru { .. } => 3,
            Cell::Lstm { .. } => 4,
            Cell::Rnn => 1,
        }
    }

    /// How many rows of one step's state an element of the batch has: an LSTM has a cell, too.
    pub fn states(self) -> usize {
        match self {
            Cell::Lstm { .. } => 2,
            Cell::Gru { .. } | Cell::Rnn => 1,
        }
    }

    /// The gates of the recurrent weights that are multiplied together, in order.
    pub fn recurrent_parts(self) -> &'static [usize] {
        match self {
            Cell::Gru {
                linear_before_reset: false,
            } => &[2, 1],
            Cell::Gru { .. } => &[3],
            Cell::Lstm { .. } => &[4],
            Cell::Rnn => &[1],
        }
    }
}

/// A type that recurrent layers are computed in.
pub trait RecurrentElement: Real + Number + ChainElement {
    /// `c = a · wᵀ + bias`, where `w` has `n` rows of `k` elements.
    fn product(
        exec: Exec<'_>,
        batch: &Batch<'_>,
        sizes: (usize, usize, usize),
        a: Strided<'_, Self>,
        w: Weights<'_, Self>,
        bias: Option<&[Self]>,
        c: &mut [Self],
    ) -> Finished;

    /// Some columns of the product of a row with packed weights of `n` rows of `k` elements, on the calling thread: those of the
    /// panels of `NR` columns, which `c` has. Stops early where the step was cancelled.
    fn panels(
        exec: &Exec,
        row: &[Self],
        packed: &[f32],
        sizes: (usize, usize),
        panels: Range<usize>,
        c: &mut [Self],
    );
}

impl RecurrentElement for f32 {
    fn product(
        exec: Exec<'_>,
        batch: &Batch<'_>,
        (m, n, k): (usize, usize, usize),
        a: Strided<'_, f32>,
        w: Weights<'_, f32>,
        bias: Option<&[f32]>,
        c: &mut [f32],
    ) -> Finished {
        if let (Weights::Packed(data), None, 1, []) = (w, bias, m, batch.dims) {
            let row = a.data.get(..k).unwrap_or_default();
            return product_of_row(&exec, row, PackedB::new(data, k, n), c);
        }
        let rhs = match w {
            Weights::Rows(rows) => Rhs::Strided(Strided::col_major(rows, k)),
            Weights::Packed(data) => Rhs::Packed(PackedB::new(data, k, n)),
        };
        let epilogue = bias.map_or(Epilogue::NONE, Epilogue::col_bias);
        gemm_batched(exec, batch, (m, n, k), Lhs::Strided(a), rhs, c, &epilogue)
    }

    fn panels(
        exec: &Exec,
        row: &[f32],
        packed: &[f32],
        (n, k): (usize, usize),
        panels: Range<usize>,
        c: &mut [f32],
    ) {
        panels_of_row(exec, row, PackedB::new(packed, k, n), panels, c);
    }
}

impl RecurrentElement for f64 {
    fn product(
        exec: Exec<'_>,
        batch: &Batch<'_>,
        (m, n, k): (usize, usize, usize),
        a: Strided<'_, f64>,
        w: Weights<'_, f64>,
        bias: Option<&[f64]>,
        c: &mut [f64],
    ) -> Finished {
        let Weights::Rows(rows) = w else {
            panic!("weights of f64 are never packed");
        };
        gemm_generic(exec, batch, (m, n, k), a, Strided::col_major(rows, k), c)?;
        let Some(bias) = bias.filter(|_| n > 0) else {
            return Ok(());
        };
        for row in c.chunks_exact_mut(n) {
            for (x, b) in row.iter_mut().zip(bias) {
                *x += *b;
            }
        }
        exec.check()
    }

    fn panels(_: &Exec, _: &[f64], _: &[f32], _: (usize, usize), _: Range<usize>, _: &mut [f64]) {
        panic!("weights of f64 are never packed");
    }
}

/// Weights of one product.
#[derive(Debug, Clone, Copy)]
pub enum Weights<'a, W> {
    /// One row for each output, one after the other.
    Rows(&'a [W]),
    /// The transposed matrix, laid out by [`crate::gemm::pack_b_into`].
    Packed(&'a [f32]),
}

impl<'a, W> Weights<'a, W> {
    /// The weights of `gates` gates, from gate `first` on, of weights with rows of length `k`; `hidden` rows belong to
    /// each gate. Packed weights consist of these parts, one after the other, and `at` is where the part begins.
    fn part(self, at: &mut usize, (first, gates): (usize, usize), hidden: usize, k: usize) -> Self {
        let rows = gates * hidden;
        match self {
            Weights::Rows(all) => Weights::Rows(&all[first * hidden * k..][..rows * k]),
            Weights::Packed(all) => {
                let len = packed_b_len(k, rows);
                let part = &all[*at..][..len];
                *at += len;
                Weights::Packed(part)
            }
        }
    }
}

/// What all directions of a layer share.
#[derive(Debug, Clone, Copy)]
pub struct Layer<'a, W> {
    /// The kind of the layer.
    pub cell: Cell,
    /// Steps of the longest sequence.
    pub steps: usize,
    /// Sequences.
    pub batch: usize,
    /// Elements of an input.
    pub input: usize,
    /// Elements of the state.
    pub hidden: usize,
    /// Whether `x` is `[batch, steps, input]`, and not `[steps, batch, input]`.
    pub batch_first: bool,
    /// The inputs.
    pub x: &'a [W],
    /// The length of each sequence, at most `steps`; all have the full length where it is left out.
    pub lengths: Option<&'a [usize]>,
    /// The bound of what activations are given.
    pub clip: Option<W>,
}

/// What belongs to one direction.
#[derive(Debug, Clone, Copy)]
pub struct Direction<'a, W> {
    /// Whether the sequence runs from its end.
    pub reversed: bool,
    /// The weights of the input, `[gates · hidden, input]`.
    pub w: Weights<'a, W>,
    /// The recurrent weights, `[gates · hidden, hidden]`, in the parts of [`Cell::recurrent_parts`] where they are
    /// packed.
    pub r: Weights<'a, W>,
    /// The biases of input and recurrence, `[2 · gates · hidden]`.
    pub bias: Option<&'a [W]>,
    /// The peephole weights of the gates i, o and f of an LSTM.
    pub peepholes: Option<&'a [W]>,
    /// The activations f, g and h, as many as the cell has.
    pub activations: &'a [CellActivation<W>],
}

/// The scratch of one direction.
#[derive(Debug)]
pub struct Scratch<'a, W> {
    /// Products with the inputs: [`Layer::ahead`] elements.
    pub ahead: &'a mut [W],
    /// Products of one step: [`Layer::gate_len`] elements.
    pub gates: &'a mut [W],
    /// Values of one step that a second product needs: [`Layer::reset_len`] elements.
    pub reset: &'a mut [W],
    /// The sum of both biases: `gates · hidden` elements.
    pub bias: &'a mut [W],
}

impl<W: RecurrentElement> Layer<'_, W> {
    fn width(&self) -> usize {
        self.cell.gates() * self.hidden
    }

    /// How many steps' products with the inputs are computed at once.
    fn chunk(&self) -> usize {
        let step = self.batch * self.width();
        (AHEAD / step.max(1)).clamp(1, self.steps.max(1))
    }

    /// Elements of scratch for the products with the inputs.
    pub fn ahead(&self) -> usize {
        self.chunk() * self.batch * self.width()
    }

    /// Elements of scratch for the products of a step.
    pub fn gate_len(&self) -> usize {
        self.batch * self.width()
    }

    /// Elements of scratch for a GRU that resets before it multiplies: the state after the reset.
    pub fn reset_len(&self) -> usize {
        match self.cell.recurrent_parts() {
            [_] => 0,
            _ => self.batch * self.hidden,
        }
    }

    /// Elements of the state of all sequences: of each, h and then the cell of an LSTM.
    pub fn state_len(&self) -> usize {
        self.batch * self.cell.states() * self.hidden
    }
}

/// Where the states of all steps go: that of sequence `b` after step `s` begins at `first + s * step + b * sequence`.
#[derive(Debug)]
pub struct Yield<'a, W> {
    /// The states of all steps and directions.
    pub data: &'a mut [W],
    /// The place of the first state.
    pub first: usize,
    /// The distance of steps.
    pub step: usize,
    /// The distance of sequences.
    pub sequence: usize,
}

impl<W: RecurrentElement> Yield<'_, W> {
    /// Writes the states after a step; a sequence that has ended yields zeros.
    fn write(&mut self, layer: &Layer<'_, W>, step: usize, state: &[W]) {
        let unit = layer.cell.states() * layer.hidden;
        for b in 0..layer.batch {
            let at = self.first + step * self.step + b * self.sequence;
            let y = &mut self.data[at..][..layer.hidden];
            match layer.lengths {
                Some(lengths) if step >= lengths[b] => y.fill(<W as Number>::ZERO),
                _ => y.copy_from_slice(&state[b * unit..][..layer.hidden]),
            }
        }
    }
}

compiled! {
    /// Recurrent layers of one type.
    trait RecurrentKernels for [f32, f64] {
        fn recurrent(
            exec: &Exec,
            layer: &Layer<'_, Self>,
            direction: &Direction<'_, Self>,
            state: &mut [Self],
            scratch: Scratch<'_, Self>,
            y: Yield<'_, Self>,
        ) = run_any;
    }
}

/// Runs one direction. `state` holds the initial states, and then the final ones, `[batch, states, hidden]`.
pub fn run<W: RecurrentElement + RecurrentKernels>(
    exec: &Exec,
    layer: &Layer<'_, W>,
    direction: &Direction<'_, W>,
    state: &mut [W],
    scratch: Scratch<'_, W>,
    y: Yield<'_, W>,
) -> Result {
    W::recurrent(exec, layer, direction, state, scratch, y)
}

fn run_any<W: RecurrentElement>(
    exec: &Exec,
    layer: &Layer<'_, W>,
    direction: &Direction<'_, W>,
    state: &mut [W],
    scratch: Scratch<'_, W>,
    mut y: Yield<'_, W>,
) -> Result {
    check(layer, direction, state, &scratch);
    if let Some(lengths) = layer.lengths {
        check_lengths(lengths, layer.steps)?;
    }
    if layer.batch == 0 || layer.hidden == 0 {
        return Ok(exec.check()?);
    }
    let Scratch {
        ahead,
        gates,
        reset,
        bias,
    } = scratch;
    let reset_bias = sum_bias(layer, direction, bias);
    let bias: Option<&[W]> = direction.bias.map(|_| &*bias);
    let cells = Cells {
        cell: layer.cell,
        hidden: layer.hidden,
        clip: layer.clip,
        activations: direction.activations,
        peepholes: direction.peepholes,
        reset_bias,
        lengths: layer.lengths,
    };
    let chunk = layer.chunk();
    let width = layer.width();
    let mut done = 0;
    while done < layer.steps {
        let count = chunk.min(layer.steps - done);
        let first = match direction.reversed {
            false => done,
            true => layer.steps - done - count,
        };
        let ahead = &mut ahead[..count * layer.batch * width];
        inputs(exec, layer, direction, (first, count), bias, ahead)?;
        let place = |at: usize| match direction.reversed {
            false => at,
            true => count - 1 - at,
        };
        // Rows of the products are ordered as the inputs are.
        let given = |place: usize| match layer.batch_first {
            false => Gates {
                all: &ahead[place * layer.batch * width..],
                stride: width,
            },
            true => Gates {
                all: &ahead[place * width..],
                stride: count * width,
            },
        };
        if let Some(weights) = weights_of_rounds(exec, layer, direction) {
            let advance = |at: usize, gates: &mut [W], state: &mut [W]| {
                let (step, given) = (first + place(at), given(place(at)));
                cells.advance(0..1, step, given, gates, state);
                y.write(layer, step, state);
            };
            let gates = &mut gates[..width];
            rounds(exec, layer.hidden, weights, count, (state, gates), advance)?;
            done += count;
            continue;
        }
        for at in 0..count {
            exec.check()?;
            let place = place(at);
            let given = given(place);
            step(
                exec,
                layer,
                direction,
                &cells,
                first + place,
                given,
                (state, gates, reset),
            )?;
            y.write(layer, first + place, state);
        }
        done += count;
    }
    Ok(())
}

fn check<W: RecurrentElement>(
    layer: &Layer<'_, W>,
    direction: &Direction<'_, W>,
    state: &[W],
    scratch: &Scratch<'_, W>,
) {
    assert_eq!(
        layer.x.len(),
        layer.steps * layer.batch * layer.input,
        "inputs"
    );
    assert_eq!(state.len(), layer.state_len(), "state");
    assert_eq!(scratch.ahead.len(), layer.ahead(), "scratch of the inputs");
    assert_eq!(
        scratch.gates.len(),
        layer.gate_len(),
        "scratch of the gates"
    );
    assert_eq!(
        scratch.reset.len(),
        layer.reset_len(),
        "scratch of the reset"
    );
    assert_eq!(scratch.bias.len(), layer.width(), "scratch of the biases");
    if let Some(bias) = direction.bias {
        assert_eq!(bias.len(), 2 * layer.width(), "biases");
    }
    if let Some(peepholes) = direction.peepholes {
        assert_eq!(peepholes.len(), 3 * layer.hidden, "peepholes");
    }
    if let Some(lengths) = layer.lengths {
        assert_eq!(lengths.len(), layer.batch, "lengths");
    }
}

fn check_lengths(lengths: &[usize], steps: usize) -> Result {
    match lengths.iter().position(|length| *length > steps) {
        None => Ok(()),
        Some(batch) => Err(KernelError::SequenceLength {
            length: i64::try_from(lengths[batch]).unwrap_or(i64::MAX),
            batch,
            max: steps,
        }),
    }
}

/// Adds the biases into `sum`. Returns the recurrent bias that a GRU adds before the reset.
fn sum_bias<'a, W: RecurrentElement>(
    layer: &Layer<'_, W>,
    direction: &Direction<'a, W>,
    sum: &mut [W],
) -> Option<&'a [W]> {
    let (own, other) = direction.bias?.split_at(layer.width());
    let linear = matches!(
        layer.cell,
        Cell::Gru {
            linear_before_reset: true
        }
    );
    let both = match linear {
        true => 2 * layer.hidden,
        false => layer.width(),
    };
    sum.copy_from_slice(own);
    for (x, b) in sum.iter_mut().zip(&other[..both]) {
        *x = *x + *b;
    }
    linear.then_some(&other[both..])
}

/// The products of `count` steps' inputs, from step `first` on, and the weights.
fn inputs<W: RecurrentElement>(
    exec: &Exec,
    layer: &Layer<'_, W>,
    direction: &Direction<'_, W>,
    (first, count): (usize, usize),
    bias: Option<&[W]>,
    out: &mut [W],
) -> Result {
    let (n, k) = (layer.width(), layer.input);
    if out.is_empty() {
        return Ok(exec.check()?);
    }
    let weights = direction
        .w
        .part(&mut 0, (0, layer.cell.gates()), layer.hidden, k);
    match layer.batch_first {
        false => {
            let x = Strided::row_major(&layer.x[first * layer.batch * k..], k);
            let sizes = (count * layer.batch, n, k);
            W::product(*exec, &Batch::ONE, sizes, x, weights, bias, out)?;
        }
        true => {
            let x = Strided::row_major(&layer.x[first * k..], k);
            let batch = Batch {
                dims: &[layer.batch],
                a_strides: &[layer.steps * k],
                b_strides: &[0],
            };
            W::product(*exec, &batch, (count, n, k), x, weights, bias, out)?;
        }
    }
    Ok(())
}

/// Least work of a step, in multiply-adds, that threads share: some microseconds.
const ROUND_WORK: usize = 1 << 16;

/// The packed recurrent weights of a layer whose steps are rounds of one product that threads share.
fn weights_of_rounds<'a, W: RecurrentElement>(
    exec: &Exec,
    layer: &Layer<'_, W>,
    direction: &Direction<'a, W>,
) -> Option<&'a [f32]> {
    let work = layer.hidden * layer.width();
    match (direction.r, layer.cell.recurrent_parts()) {
        (Weights::Packed(weights), [_]) if layer.batch == 1 && exec.threads() > 1 => {
            (work >= ROUND_WORK).then_some(weights)
        }
        _ => None,
    }
}

/// What the tiles of rounds share: the state, which they read, and the gates, of which each writes some columns.
struct Shared<W> {
    state: *mut W,
    gates: *mut W,
}

// SAFETY: in a round the state is only read, and tiles write columns of their own.
unsafe impl<W: Sync> Sync for Shared<W> {}

/// The steps of one sequence, whose products threads share. `advance` gets the number of the step, the product and the state,
/// which it changes.
fn rounds<W: RecurrentElement>(
    exec: &Exec,
    hidden: usize,
    weights: &[f32],
    steps: usize,
    (state, gates): (&mut [W], &mut [W]),
    mut advance: impl FnMut(usize, &mut [W], &mut [W]) + Send,
) -> Result {
    let (n, k, len) = (gates.len(), hidden, state.len());
    assert!(k <= len && weights.len() == packed_b_len(k, n));
    let panels = n.div_ceil(NR);
    let tiles = panels.min(2 * exec.threads());
    let shared = &Shared {
        state: state.as_mut_ptr(),
        gates: gates.as_mut_ptr(),
    };
    let alone = exec.alone();
    let product = |_: usize, tile: usize| {
        let of_tile = panels * tile / tiles..panels * (tile + 1) / tiles;
        let columns = of_tile.start * NR..n.min(of_tile.end * NR);
        // SAFETY: the row lies in the state, which nobody writes during a round; the columns lie among the gates, and no other
        // tile has them.
        let (row, to) = unsafe {
            let to = shared.gates.add(columns.start);
            (
                std::slice::from_raw_parts(shared.state, k),
                std::slice::from_raw_parts_mut(to, columns.len()),
            )
        };
        W::panels(&alone, row, weights, (n, k), of_tile, to);
    };
    let between = |step: usize| {
        exec.check()?;
        // SAFETY: between rounds no tile runs, and both are borrowed mutably for the whole call.
        let (gates, state) = unsafe {
            (
                std::slice::from_raw_parts_mut(shared.gates, n),
                std::slice::from_raw_parts_mut(shared.state, len),
            )
        };
        advance(step, gates, state);
        Ok(())
    };
    // Both are few: products of at most `AHEAD` elements are computed ahead.
    Ok(exec.rounds(steps as u32, tiles as u32, &product, between)?)
}

/// One step of all sequences.
fn step<W: RecurrentElement>(
    exec: &Exec,
    layer: &Layer<'_, W>,
    direction: &Direction<'_, W>,
    cells: &Cells<'_, W>,
    step: usize,
    given: Gates<'_, W>,
    (state, gates, reset): (&mut [W], &mut [W], &mut [W]),
) -> Result {
    let (hidden, batch) = (layer.hidden, layer.batch);
    let unit = layer.cell.states() * hidden;
    let mut at = 0;
    let mut product = |part: (usize, usize), a: &[W], stride: usize, c: &mut [W]| {
        let weights = direction.r.part(&mut at, part, hidden, hidden);
        let sizes = (batch, part.1 * hidden, hidden);
        W::product(
            *exec,
            &Batch::ONE,
            sizes,
            Strided::row_major(a, stride),
            weights,
            None,
            c,
        )
    };
    let [first, rest @ ..] = layer.cell.recurrent_parts() else {
        return Ok(());
    };
    let (gates, last) = gates.split_at_mut(batch * first * hidden);
    product((0, *first), state, unit, gates)?;
    let width = first * hidden;
    let grain = units_per_tile(4 * width);
    if let [second] = rest {
        tiles2(
            exec,
            (gates, width),
            (reset, hidden),
            batch,
            grain,
            |rows, gates, reset| {
                cells.reset(rows, given, state, gates, reset);
            },
        )?;
        product((*first, *second), reset, hidden, last)?;
        let (gates, last) = (&*gates, last);
        tiles2(
            exec,
            (last, hidden),
            (state, unit),
            batch,
            grain,
            |rows, last, state| {
                cells.update(rows, step, given, gates, last, state);
            },
        )?;
        return Ok(());
    }
    tiles2(
        exec,
        (gates, width),
        (state, unit),
        batch,
        grain,
        |rows, gates, state| {
            cells.advance(rows, step, given, gates, state);
        },
    )?;
    Ok(())
}
