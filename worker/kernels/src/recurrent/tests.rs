//! Layers against a plain computation in f64, and the same bits in every form.

use super::*;
use crate::gemm::pack_b_into;
use crate::testing::{bits, check_stops, each_exec, exec, random};

/// A layer of one direction with all that it may have.
struct Case {
    cell: Cell,
    steps: usize,
    batch: usize,
    input: usize,
    hidden: usize,
    batch_first: bool,
    reversed: bool,
    lengths: Option<Vec<usize>>,
    clip: Option<f64>,
    peepholes: bool,
}

const LSTM: Cell = Cell::Lstm {
    input_forget: false,
};
const GRU: Cell = Cell::Gru {
    linear_before_reset: false,
};
const LINEAR: Cell = Cell::Gru {
    linear_before_reset: true,
};

impl Case {
    fn new(cell: Cell, (steps, batch, input, hidden): (usize, usize, usize, usize)) -> Case {
        Case {
            cell,
            steps,
            batch,
            input,
            hidden,
            batch_first: false,
            reversed: false,
            lengths: None,
            clip: None,
            peepholes: false,
        }
    }

    fn functions<W: RecurrentElement>(&self) -> Vec<CellActivation<W>> {
        match self.cell {
            Cell::Lstm { .. } => vec![
                CellActivation::Sigmoid,
                CellActivation::Tanh,
                CellActivation::Tanh,
            ],
            Cell::Gru { .. } => vec![CellActivation::Sigmoid, CellActivation::Tanh],
            Cell::Rnn => vec![CellActivation::Tanh],
        }
    }

    /// The states of all steps, and the last state, with weights packed or not.
    fn run<W: RecurrentElement + RecurrentKernels>(
        &self,
        exec: &Exec,
        packed: bool,
    ) -> std::result::Result<(Vec<W>, Vec<W>), KernelError> {
        let (hidden, width) = (self.hidden, self.cell.gates() * self.hidden);
        let x = random::<W>(self.steps * self.batch * self.input, 1.0, 1);
        let w = random::<W>(width * self.input, 0.5, 2);
        let r = random::<W>(width * hidden, 0.5, 3);
        let bias = random::<W>(2 * width, 0.5, 4);
        let peepholes = random::<W>(3 * hidden, 0.5, 5);
        let mut state = random::<W>(self.batch * self.cell.states() * hidden, 0.5, 6);
        let pack = |parts: &[usize], rows: &[W], k: usize| {
            let (mut all, mut at) = (Vec::new(), 0);
            for gates in parts {
                let n = gates * hidden;
                let part: Vec<f32> = rows[at..][..n * k]
                    .iter()
                    .map(|x| Real::to_f64(*x) as f32)
                    .collect();
                let mut packed = vec![0.0; packed_b_len(k, n)];
                pack_b_into(&mut packed, Strided::col_major(&part, k), k, n);
                all.extend(packed);
                at += n * k;
            }
            all
        };
        let packed_w = pack(&[self.cell.gates()], &w, self.input);
        let packed_r = pack(self.cell.recurrent_parts(), &r, hidden);
        let layer = Layer {
            cell: self.cell,
            steps: self.steps,
            batch: self.batch,
            input: self.input,
            hidden,
            batch_first: self.batch_first,
            x: &x,
            lengths: self.lengths.as_deref(),
            clip: self.clip.map(<W as Real>::from_f64),
        };
        let functions = self.functions();
        let direction = Direction {
            reversed: self.reversed,
            w: if packed {
                Weights::Packed(&packed_w)
            } else {
                Weights::Rows(&w)
            },
            r: if packed {
                Weights::Packed(&packed_r)
            } else {
                Weights::Rows(&r)
            },
            bias: Some(&bias),
            peepholes: self.peepholes.then_some(&peepholes[..]),
            activations: &functions,
        };
        let mut scratch = [layer.ahead(), layer.gate_len(), layer.reset_len(), width]
            .map(|len| vec![<W as Number>::ZERO; len]);
        let [ahead, gates, reset, sum] = &mut scratch;
        let mut y = vec![<W as Number>::ONE; self.steps * self.batch * hidden];
        let to = Yield {
            data: &mut y,
            first: 0,
            step: self.batch * hidden,
            sequence: hidden,
        };
        let scratch = Scratch {
            ahead,
            gates,
            reset,
            bias: sum,
        };
        run(exec, &layer, &direction, &mut state, scratch, to)?;
        Ok((y, state))
    }

    /// The states of all steps by the formulas of the standard, on the operands that [`Case::run`] has.
    fn expected(&self) -> Vec<f64> {
        let (n, k, gates) = (self.hidden, self.input, self.cell.gates());
        let x = random::<f64>(self.steps * self.batch * k, 1.0, 1);
        let w = random::<f64>(gates * n * k, 0.5, 2);
        let r = random::<f64>(gates * n * n, 0.5, 3);
        let bias = random::<f64>(2 * gates * n, 0.5, 4);
        let peepholes = random::<f64>(3 * n, 0.5, 5);
        let states = self.cell.states();
        let initial = random::<f64>(self.batch * states * n, 0.5, 6);
        let mut y = vec![0.0; self.steps * self.batch * n];
        let clip = |v: f64| self.clip.map_or(v, |c| v.clamp(-c, c));
        let sigmoid = |v: f64| 1.0 / (1.0 + libm::exp(-clip(v)));
        let tanh = |v: f64| libm::tanh(clip(v));
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for b in 0..self.batch {
            let mut h = initial[b * states * n..][..n].to_vec();
            let mut c = initial[(b * states + states - 1) * n..][..n].to_vec();
            let length = self.lengths.as_ref().map_or(self.steps, |l| l[b]);
            for t in 0..length {
                let t = if self.reversed { length - 1 - t } else { t };
                let at = match self.batch_first {
                    false => t * self.batch + b,
                    true => b * self.steps + t,
                };
                let x = &x[at * k..][..k];
                let given =
                    |g: usize, j: usize| dot(x, &w[(g * n + j) * k..][..k]) + bias[g * n + j];
                let seen = |g: usize, j: usize, h: &[f64]| {
                    dot(h, &r[(g * n + j) * n..][..n]) + bias[(gates + g) * n + j]
                };
                let old = h.clone();
                match self.cell {
                    Cell::Rnn => {
                        for j in 0..n {
                            h[j] = tanh(given(0, j) + seen(0, j, &old));
                        }
                    }
                    Cell::Lstm { input_forget } => {
                        for j in 0..n {
                            let sum = |g| given(g, j) + seen(g, j, &old);
                            let peep = |g: usize, c: f64| {
                                if self.peepholes {
                                    peepholes[g * n + j] * c
                                } else {
                                    0.0
                                }
                            };
                            let i = sigmoid(sum(0) + peep(0, c[j]));
                            let f = if input_forget {
                                1.0 - i
                            } else {
                                sigmoid(sum(2) + peep(2, c[j]))
                            };
                            c[j] = f * c[j] + i * tanh(sum(3));
                            h[j] = sigmoid(sum(1) + peep(1, c[j])) * libm::tanh(c[j]);
                        }
                    }
                    Cell::Gru {
                        linear_before_reset,
                    } => {
                        let gate = |g, j| sigmoid(given(g, j) + seen(g, j, &old));
                        let reset: Vec<f64> = (0..n).map(|j| gate(1, j) * old[j]).collect();
                        for j in 0..n {
                            let last = match linear_before_reset {
                                true => gate(1, j) * seen(2, j, &old),
                                false => seen(2, j, &reset),
                            };
                            let z = gate(0, j);
                            h[j] = (1.0 - z) * tanh(given(2, j) + last) + z * old[j];
                        }
                    }
                }
                y[(t * self.batch + b) * n..][..n].copy_from_slice(&h);
            }
        }
        y
    }
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for cell in [
        LSTM,
        GRU,
        LINEAR,
        Cell::Rnn,
        Cell::Lstm { input_forget: true },
    ] {
        for sizes in [
            (5, 2, 3, 4),
            (1, 1, 1, 1),
            (9, 3, 7, 20),
            (0, 2, 3, 4),
            (3, 0, 2, 2),
            (4, 9, 5, 70),
            // Threads share the steps of these.
            (5, 1, 3, 150),
            (3, 1, 2, 260),
        ] {
            for (batch_first, reversed) in
                [(false, false), (true, false), (false, true), (true, true)]
            {
                let batch = sizes.1;
                let lengths =
                    reversed.then(|| (0..batch).map(|b| sizes.0 * (b + 1) / batch).collect());
                all.push(Case {
                    batch_first,
                    reversed,
                    lengths,
                    clip: batch_first.then_some(0.3),
                    peepholes: reversed,
                    ..Case::new(cell, sizes)
                });
            }
        }
    }
    all
}

#[test]
fn layers_follow_the_formulas() {
    for case in cases() {
        let want = case.expected();
        let close = |got: Vec<f64>, error: f64| {
            assert_eq!(got.len(), want.len());
            for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                let (cell, steps) = (case.cell, case.steps);
                assert!(
                    (g - w).abs() <= error,
                    "{cell:?} of {steps} steps: {g} for {w} at {i}"
                );
            }
        };
        close(case.run::<f64>(&exec(), false).unwrap().0, 1e-12);
        let got = case.run::<f32>(&exec(), false).unwrap().0;
        close(got.into_iter().map(f64::from).collect(), 2e-5);
    }
}

#[test]
fn neither_packing_nor_threads_change_a_bit() {
    for case in cases() {
        let (want, last) = case.run::<f32>(&exec(), false).unwrap();
        each_exec(|exec| {
            let (got, end) = case.run::<f32>(exec, true).unwrap();
            assert_eq!((bits(&got), bits(&end)), (bits(&want), bits(&last)));
        });
    }
}

#[test]
fn scratch_is_bounded_and_cuts_change_no_bit() {
    // One step's products are more than half of the bound, so that steps are cut one by one.
    let case = Case::new(Cell::Rnn, (3, 700, 1, 1000));
    let (all, last) = case.run::<f32>(&exec(), false).unwrap();
    assert_eq!(bits(&all[2 * 700 * 1000..]), bits(&last));
    let alone = Case::new(Cell::Rnn, (3, 7, 1, 1000));
    assert_eq!(
        alone.run::<f32>(&exec(), false).unwrap().0.len(),
        3 * 7 * 1000
    );
}

#[test]
fn states_without_elements_take_no_time() {
    for sizes in [(1, 1 << 50, 0, 0), (1 << 50, 1, 0, 0), (1 << 50, 0, 1, 1)] {
        let (y, state) = Case::new(LSTM, sizes).run::<f32>(&exec(), false).unwrap();
        assert!(y.is_empty() && state.is_empty());
    }
}

#[test]
fn a_length_beyond_the_steps_is_refused() {
    let case = Case {
        lengths: Some(vec![3, 6]),
        ..Case::new(LSTM, (5, 2, 3, 4))
    };
    let e = case.run::<f32>(&exec(), false).unwrap_err();
    assert_eq!(
        e.to_string(),
        "sequence length 6 of batch entry 1 is outside 0..=5"
    );
}

#[test]
fn each_step_looks_at_the_cancel_flag() {
    let case = Case::new(GRU, (40, 1, 2, 3));
    check_stops(|exec| case.run::<f32>(exec, false).map(|_| ()));
    let shared = Case::new(LSTM, (40, 1, 2, 150));
    check_stops(|exec| shared.run::<f32>(exec, true).map(|_| ()));
}
