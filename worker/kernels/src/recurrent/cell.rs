//! One step of some sequences, after the products.

use std::ops::Range;

use super::{Cell, RecurrentElement};
use crate::math::{self, Real};
use crate::multiversion::multiversion;

/// An activation with its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum CellActivation<W> {
    Affine { alpha: W, beta: W },
    Elu { alpha: W },
    HardSigmoid { alpha: W, beta: W },
    LeakyRelu { alpha: W },
    Relu,
    ScaledTanh { alpha: W, beta: W },
    Sigmoid,
    Softplus,
    Softsign,
    Tanh,
    ThresholdedRelu { alpha: W },
}

/// Products of a step's inputs: the row of sequence `b` begins at `b * stride`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gates<'a, W> {
    pub all: &'a [W],
    pub stride: usize,
}

/// What the steps of one direction share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cells<'a, W> {
    pub cell: Cell,
    pub hidden: usize,
    pub clip: Option<W>,
    pub activations: &'a [CellActivation<W>],
    pub peepholes: Option<&'a [W]>,
    /// The recurrent bias of a GRU's last gate, which is added before the reset.
    pub reset_bias: Option<&'a [W]>,
    pub lengths: Option<&'a [usize]>,
}

impl<W: RecurrentElement> Cells<'_, W> {
    /// Whether sequence `b` has step `step`.
    fn runs(&self, b: usize, step: usize) -> bool {
        self.lengths.is_none_or(|lengths| step < lengths[b])
    }

    fn function(&self, which: usize) -> Function<W> {
        Function {
            clip: self.clip,
            activation: self.activations[which],
        }
    }

    /// The next state of these sequences. `gates` holds the products of the state, and is overwritten.
    pub fn advance(
        &self,
        rows: Range<usize>,
        step: usize,
        given: Gates<'_, W>,
        gates: &mut [W],
        state: &mut [W],
    ) {
        let hidden = self.hidden;
        let width = self.cell.gates() * hidden;
        for (i, b) in rows.enumerate().filter(|(_, b)| self.runs(*b, step)) {
            let given = &given.all[b * given.stride..][..width];
            let gates = &mut gates[i * width..][..width];
            match self.cell {
                Cell::Lstm { input_forget } => {
                    let (h, c) = state[i * 2 * hidden..][..2 * hidden].split_at_mut(hidden);
                    let functions = [0, 1, 2].map(|f| self.function(f));
                    lstm(functions, input_forget, self.peepholes, given, gates, h, c);
                }
                Cell::Gru { .. } => {
                    let h = &mut state[i * hidden..][..hidden];
                    let functions = [0, 1].map(|f| self.function(f));
                    gru(functions, self.reset_bias, given, gates, h);
                }
                Cell::Rnn => {
                    let h = &mut state[i * hidden..][..hidden];
                    rnn(self.function(0), given, gates, h);
                }
            }
        }
    }

    /// The gates z and r of a GRU, into `gates`, and the states after the reset.
    pub fn reset(
        &self,
        rows: Range<usize>,
        given: Gates<'_, W>,
        state: &[W],
        gates: &mut [W],
        reset: &mut [W],
    ) {
        let hidden = self.hidden;
        for (i, b) in rows.enumerate() {
            let given = &given.all[b * given.stride..][..2 * hidden];
            let gates = &mut gates[i * 2 * hidden..][..2 * hidden];
            let h = &state[b * hidden..][..hidden];
            let reset = &mut reset[i * hidden..][..hidden];
            gru_reset(self.function(0), given, gates, h, reset);
        }
    }

    /// The next state of a GRU that was reset: `last` holds the products of the reset states.
    pub fn update(
        &self,
        rows: Range<usize>,
        step: usize,
        given: Gates<'_, W>,
        gates: &[W],
        last: &mut [W],
        state: &mut [W],
    ) {
        let hidden = self.hidden;
        for (i, b) in rows.enumerate().filter(|(_, b)| self.runs(*b, step)) {
            let given = &given.all[b * given.stride + 2 * hidden..][..hidden];
            let update = &gates[b * 2 * hidden..][..hidden];
            let last = &mut last[i * hidden..][..hidden];
            let h = &mut state[i * hidden..][..hidden];
            gru_update(self.function(1), given, update, last, h);
        }
    }
}

/// An activation of a clipped value.
#[derive(Debug, Clone, Copy)]
struct Function<W> {
    clip: Option<W>,
    activation: CellActivation<W>,
}

/// The processor keeps one of several NaN operands by their order, so every result that is NaN is made the same.
#[inline(always)]
fn canonical<W: Real>(x: W) -> W {
    if x.is_nan() { W::NAN } else { x }
}

/// Applies the activation alone.
#[inline(always)]
fn activate<W: Real>(f: CellActivation<W>, row: &mut [W]) {
    match f {
        CellActivation::Affine { alpha, beta } => {
            for x in row {
                *x = alpha * *x + beta;
            }
        }
        CellActivation::Elu { alpha } => {
            for x in row {
                *x = math::elu(*x, alpha);
            }
        }
        CellActivation::HardSigmoid { alpha, beta } => {
            for x in row {
                *x = math::hard_sigmoid(*x, alpha, beta);
            }
        }
        CellActivation::LeakyRelu { alpha } => {
            for x in row {
                *x = math::leaky_relu(*x, alpha);
            }
        }
        CellActivation::Relu => {
            for x in row {
                *x = math::relu(*x);
            }
        }
        CellActivation::ScaledTanh { alpha, beta } => {
            for x in row {
                *x = alpha * (beta * *x).tanh();
            }
        }
        CellActivation::Sigmoid => {
            for x in row {
                *x = math::sigmoid(*x);
            }
        }
        CellActivation::Softplus => {
            for x in row {
                *x = math::softplus(*x);
            }
        }
        CellActivation::Softsign => {
            for x in row {
                *x = math::softsign(*x);
            }
        }
        CellActivation::Tanh => {
            for x in row {
                *x = x.tanh();
            }
        }
        CellActivation::ThresholdedRelu { alpha } => {
            for x in row {
                *x = math::thresholded_relu(*x, alpha);
            }
        }
    }
}

/// Clips, and applies the activation.
#[inline(always)]
fn apply<W: Real>(f: Function<W>, row: &mut [W]) {
    if let Some(most) = f.clip {
        let least = -most;
        for x in row.iter_mut() {
            let low = if *x < least { least } else { *x };
            *x = if low > most { most } else { low };
        }
    }
    activate(f.activation, row);
}

/// `row = row + given`.
#[inline(always)]
fn add<W: Real>(row: &mut [W], given: &[W]) {
    for (x, g) in row.iter_mut().zip(given) {
        *x = *x + *g;
    }
}

multiversion! {
    fn lstm<W: Real>(
        functions: [Function<W>; 3],
        input_forget: bool,
        peepholes: Option<&[W]>,
        given: &[W],
        gates: &mut [W],
        h: &mut [W],
        c: &mut [W],
    ) {
        let n = h.len();
        add(gates, given);
        let (input, rest) = gates.split_at_mut(n);
        let (output, rest) = rest.split_at_mut(n);
        let (forget, candidate) = rest.split_at_mut(n);
        if let Some(weights) = peepholes {
            see(input, &weights[..n], c);
            see(forget, &weights[2 * n..3 * n], c);
        }
        apply(functions[0], input);
        if input_forget {
            for (f, i) in forget.iter_mut().zip(input.iter()) {
                *f = W::ONE - *i;
            }
        } else {
            apply(functions[0], forget);
        }
        apply(functions[1], candidate);
        for j in 0..n {
            c[j] = canonical(forget[j] * c[j] + input[j] * candidate[j]);
        }
        if let Some(weights) = peepholes {
            see(output, &weights[n..2 * n], c);
        }
        apply(functions[0], output);
        // The cell is not clipped, as ONNX Runtime has it.
        candidate.copy_from_slice(c);
        activate(functions[2].activation, candidate);
        for j in 0..n {
            h[j] = canonical(output[j] * candidate[j]);
        }
    }
}

/// Adds what a gate sees of the cell through its peephole.
#[inline(always)]
fn see<W: Real>(gate: &mut [W], weights: &[W], c: &[W]) {
    for (g, (w, c)) in gate.iter_mut().zip(weights.iter().zip(c)) {
        *g = *g + *w * *c;
    }
}

multiversion! {
    fn gru<W: Real>(
        functions: [Function<W>; 2],
        reset_bias: Option<&[W]>,
        given: &[W],
        gates: &mut [W],
        h: &mut [W],
    ) {
        let n = h.len();
        let (both, last) = gates.split_at_mut(2 * n);
        add(both, &given[..2 * n]);
        apply(functions[0], both);
        if let Some(bias) = reset_bias {
            add(last, bias);
        }
        for j in 0..n {
            last[j] = both[n + j] * last[j];
        }
        mix(functions[1], &given[2 * n..], &both[..n], last, h);
    }
}

multiversion! {
    fn gru_reset<W: Real>(
        function: Function<W>,
        given: &[W],
        gates: &mut [W],
        h: &[W],
        reset: &mut [W],
    ) {
        let n = h.len();
        add(gates, given);
        apply(function, gates);
        for j in 0..n {
            reset[j] = gates[n + j] * h[j];
        }
    }
}

multiversion! {
    fn gru_update<W: Real>(
        function: Function<W>,
        given: &[W],
        update: &[W],
        last: &mut [W],
        h: &mut [W],
    ) {
        mix(function, given, update, last, h);
    }
}

/// The next state of a GRU, between the old one and the candidate.
#[inline(always)]
fn mix<W: Real>(f: Function<W>, given: &[W], update: &[W], last: &mut [W], h: &mut [W]) {
    let n = h.len();
    add(last, given);
    apply(f, last);
    for j in 0..n {
        h[j] = canonical((W::ONE - update[j]) * last[j] + update[j] * h[j]);
    }
}

multiversion! {
    fn rnn<W: Real>(function: Function<W>, given: &[W], gates: &mut [W], h: &mut [W]) {
        add(gates, given);
        apply(function, gates);
        for j in 0..h.len() {
            h[j] = canonical(gates[j]);
        }
    }
}
