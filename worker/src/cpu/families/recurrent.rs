//! Recurrent layers. Halves are computed in f32 and rounded once, at the end.

use convoke_common::Error;
use convoke_graph::ops::attrs::{CellActivation, RecurrentAttrs};
use convoke_graph::ops::{OpError, RecurrentOp};
use convoke_graph::{DType, Element, Outputs, Tensor};
use convoke_kernels::KernelError;
use convoke_kernels::element::Number;
use convoke_kernels::gemm::{PackSource, Strided, pack_b_on, packed_b_len};
use convoke_kernels::math::Real;
use convoke_kernels::recurrent::{
    self, Cell, Direction, Layer, RecurrentElement, RecurrentKernels, Scratch, Weights, Yield,
};

use crate::cpu::cast::wide::{convert, narrow_to};
use crate::cpu::dispatch::by_dtype;
use crate::cpu::kernel::{
    FamilyAnswer, KernelBody, KernelFailure, OpLaunch, Spec, body, one, write,
};

pub(super) fn find(op: RecurrentOp, spec: &Spec<'_>) -> FamilyAnswer {
    let attrs = RecurrentAttrs::new(op, spec.attrs)?;
    match spec.dtype(0)? {
        DType::F64 if attrs.packed.is_some() => {
            Err(spec.bad_attr("packed_input_size", "weights of f64 are never packed"))
        }
        DType::F64 => layer_of::<f64>(op, attrs),
        DType::F32 | DType::F16 | DType::BF16 => layer_of::<f32>(op, attrs),
        other => Err(spec.no_dtype(other)),
    }
}

/// A type that layers are computed in.
trait Computed: Element + RecurrentElement + RecurrentKernels {
    /// The packed weights of an operand.
    fn packed(weights: &[f32]) -> Result<Weights<'_, Self>, KernelFailure>;

    /// The recurrent weights in the form that many steps read fastest, in scratch memory; `None` where the raw form is
    /// as good.
    fn pack(
        call: &OpLaunch<'_, '_>,
        cell: Cell,
        rows: &[Self],
        hidden: usize,
    ) -> Result<Option<Tensor>, KernelFailure>;
}

impl Computed for f32 {
    fn packed(weights: &[f32]) -> Result<Weights<'_, f32>, KernelFailure> {
        Ok(Weights::Packed(weights))
    }

    fn pack(
        call: &OpLaunch<'_, '_>,
        cell: Cell,
        rows: &[f32],
        hidden: usize,
    ) -> Result<Option<Tensor>, KernelFailure> {
        let parts = cell.recurrent_parts();
        let len = |gates: &usize| packed_b_len(hidden, gates * hidden);
        let mut packed = call.scratch::<f32>(parts.iter().map(len).sum())?;
        pack_parts(call, parts, rows, (hidden, hidden), write(&mut packed)?)?;
        Ok(Some(packed))
    }
}

impl Computed for f64 {
    fn packed(_: &[f32]) -> Result<Weights<'_, f64>, KernelFailure> {
        Err(Error::internal("weights of f64 are never packed").into())
    }

    fn pack(
        _: &OpLaunch<'_, '_>,
        _: Cell,
        _: &[f64],
        _: usize,
    ) -> Result<Option<Tensor>, KernelFailure> {
        Ok(None)
    }
}

/// Packs the weights of one direction. Each of `parts` is the number of gates in a part; a gate has `hidden` rows of
/// length `k`.
fn pack_parts<T: PackSource>(
    call: &OpLaunch<'_, '_>,
    parts: &[usize],
    rows: &[T],
    (hidden, k): (usize, usize),
    out: &mut [f32],
) -> Result<(), KernelFailure> {
    let (mut from, mut to) = (0, 0);
    for gates in parts {
        let n = gates * hidden;
        let len = packed_b_len(k, n);
        let source = Strided::col_major(&rows[from..][..n * k], k);
        pack_b_on(&call.launch.exec, &mut out[to..][..len], source, k, n)?;
        from += n * k;
        to += len;
    }
    Ok(())
}

/// Makes the kernel that packs the weights of all directions.
pub(super) fn pack(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let parts = spec.attrs.ints("parts").unwrap_or(&[]);
    let parts: Vec<usize> = parts
        .iter()
        .filter_map(|p| usize::try_from(*p).ok())
        .collect();
    let dtype = spec.dtype(0)?;
    let found = by_dtype!([F32 f32, F16 half::f16, BF16 half::bf16] dtype, T => body(move |call| {
        let w = call.input(0)?;
        let (&[directions, rows, k], gates) = (w.shape(), parts.iter().sum::<usize>()) else {
            return Err(KernelFailure::values(format!("weights of three axes are packed, not {w:?}")));
        };
        let data = w.as_slice::<T>()?;
        let mut y = call.output(0)?;
        let out = write::<f32>(&mut y)?;
        if data.is_empty() {
            return one(y);
        }
        let each = out.len().checked_div(directions).unwrap_or(0);
        for d in 0..directions {
            let own = &data[d * rows * k..][..rows * k];
            let sizes = (rows.checked_div(gates).unwrap_or(0), k);
            pack_parts(&call, &parts, own, sizes, &mut out[d * each..][..each])?;
        }
        one(y)
    })?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

/// An activation in the type that a layer is computed in.
fn in_type<W: RecurrentElement>(a: CellActivation) -> recurrent::CellActivation<W> {
    use recurrent::CellActivation as To;
    let w = |x: f32| <W as Real>::from_f64(f64::from(x));
    match a {
        CellActivation::Affine { alpha, beta } => To::Affine {
            alpha: w(alpha),
            beta: w(beta),
        },
        CellActivation::Elu { alpha } => To::Elu { alpha: w(alpha) },
        CellActivation::HardSigmoid { alpha, beta } => To::HardSigmoid {
            alpha: w(alpha),
            beta: w(beta),
        },
        CellActivation::LeakyRelu { alpha } => To::LeakyRelu { alpha: w(alpha) },
        CellActivation::Relu => To::Relu,
        CellActivation::ScaledTanh { alpha, beta } => To::ScaledTanh {
            alpha: w(alpha),
            beta: w(beta),
        },
        CellActivation::Sigmoid => To::Sigmoid,
        CellActivation::Softplus => To::Softplus,
        CellActivation::Softsign => To::Softsign,
        CellActivation::Tanh => To::Tanh,
        CellActivation::ThresholdedRelu { alpha } => To::ThresholdedRelu { alpha: w(alpha) },
    }
}

fn layer_of<W: Computed>(op: RecurrentOp, attrs: RecurrentAttrs) -> Result<KernelBody, OpError> {
    let cell = match op {
        RecurrentOp::GRU => Cell::Gru {
            linear_before_reset: attrs.linear_before_reset,
        },
        RecurrentOp::LSTM => Cell::Lstm {
            input_forget: attrs.input_forget,
        },
        RecurrentOp::RNN => Cell::Rnn,
    };
    let activations: Vec<Vec<recurrent::CellActivation<W>>> = attrs
        .directions
        .iter()
        .map(|d| d.activations.iter().map(|a| in_type(*a)).collect())
        .collect();
    body(move |call| run(&call, &attrs, cell, &activations))
}

/// Operand `i` in the type that the layer is computed in; `None` where it is left out.
fn optional<W: Element>(
    call: &OpLaunch<'_, '_>,
    i: usize,
) -> Result<Option<Tensor>, KernelFailure> {
    let given = call.optional(i);
    given.map(|t| convert(call, t, W::DTYPE)).transpose()
}

fn lengths(call: &OpLaunch<'_, '_>, steps: usize) -> Result<Option<Vec<usize>>, KernelFailure> {
    let Some(given) = call.ints(4)? else {
        return Ok(None);
    };
    let length = |(batch, length): (usize, &i64)| {
        usize::try_from(*length).map_err(|_| KernelError::SequenceLength {
            length: *length,
            batch,
            max: steps,
        })
    };
    let all: Result<Vec<usize>, KernelError> = given.iter().enumerate().map(length).collect();
    Ok(Some(all?))
}

/// The rows of direction `d` of an operand whose first axis are the directions.
fn of_direction<W: Element>(
    t: &Tensor,
    d: usize,
    directions: usize,
) -> Result<&[W], KernelFailure> {
    let all = t.as_slice::<W>()?;
    let each = all.len() / directions;
    Ok(&all[d * each..][..each])
}

fn optional_of_direction<W: Element>(
    t: &Option<Tensor>,
    d: usize,
    directions: usize,
) -> Result<Option<&[W]>, KernelFailure> {
    let t = t.as_ref();
    t.map(|t| of_direction(t, d, directions)).transpose()
}

/// The packed weights of direction `d`.
fn packed_of_direction<W: Computed>(
    t: &Tensor,
    d: usize,
    directions: usize,
) -> Result<Weights<'_, W>, KernelFailure> {
    W::packed(of_direction::<f32>(t, d, directions)?)
}

fn run<W: Computed>(
    call: &OpLaunch<'_, '_>,
    attrs: &RecurrentAttrs,
    cell: Cell,
    activations: &[Vec<recurrent::CellActivation<W>>],
) -> Result<Outputs, KernelFailure> {
    let x = convert(call, call.input(0)?, W::DTYPE)?;
    let (&[first, second, input], Some(&hidden)) = (x.shape(), call.out_shape(0).last()) else {
        return Err(KernelFailure::values(format!("{x:?} is no sequence")));
    };
    let (steps, batch) = match attrs.batch_first {
        false => (first, second),
        true => (second, first),
    };
    // Tensors without elements say nothing of how large the others are, whose sizes are multiplied here and in the kernel.
    let per_sequence = hidden.checked_mul(2 * cell.gates());
    let fits = |n: usize| per_sequence.and_then(|size| size.checked_mul(n)).is_some();
    if !fits(batch) || !fits(steps) {
        return Err(KernelFailure::values(format!(
            "states of {hidden} elements are too large for {batch} sequences of {steps} steps"
        )));
    }
    let lengths = lengths(call, steps)?;
    let layer = Layer::<W> {
        cell,
        steps,
        batch,
        input,
        hidden,
        batch_first: attrs.batch_first,
        x: x.as_slice()?,
        lengths: lengths.as_deref(),
        clip: attrs.clip.map(|c| <W as Real>::from_f64(f64::from(c))),
    };
    let directions = attrs.directions.len();
    // Packed weights are f32 whatever the dtype of the layer is.
    let (w, r) = match attrs.packed {
        Some(_) => (call.input(1)?.clone(), call.input(2)?.clone()),
        None => (
            convert(call, call.input(1)?, W::DTYPE)?,
            convert(call, call.input(2)?, W::DTYPE)?,
        ),
    };
    let (bias, peepholes) = (optional::<W>(call, 3)?, optional::<W>(call, 7)?);
    let initial = [optional::<W>(call, 5)?, optional::<W>(call, 6)?];
    let mut y = call.launch.pool.tensor(W::DTYPE, call.out_shape(0))?;
    // The states that are read: h, and the cell of an LSTM.
    let mut last = Vec::with_capacity(cell.states());
    for o in 1..call.outputs.len() {
        last.push(call.launch.pool.tensor(W::DTYPE, call.out_shape(o))?);
    }
    let mut state = call.scratch::<W>(layer.state_len())?;
    let mut ahead = call.scratch::<W>(layer.ahead())?;
    let mut gates = call.scratch::<W>(layer.gate_len())?;
    let mut reset = call.scratch::<W>(layer.reset_len())?;
    let mut sum = call.scratch::<W>(cell.gates() * hidden)?;
    // States without elements have nothing to copy, however many sequences there are.
    let copied = if hidden == 0 { 0 } else { batch };
    // Where the state of a sequence lies among those of all directions.
    let row = |d: usize, b: usize| match attrs.batch_first {
        false => (d * batch + b) * hidden,
        true => (b * directions + d) * hidden,
    };
    for (d, activations) in activations.iter().enumerate() {
        let states = write::<W>(&mut state)?;
        for (s, given) in initial.iter().take(cell.states()).enumerate() {
            let given = given.as_ref().map(Tensor::as_slice::<W>).transpose()?;
            for b in 0..copied {
                let to = &mut states[(b * cell.states() + s) * hidden..][..hidden];
                match given {
                    Some(given) => to.copy_from_slice(&given[row(d, b)..][..hidden]),
                    None => to.fill(<W as Number>::ZERO),
                }
            }
        }
        let packed;
        let (own_w, own_r) = match attrs.packed {
            Some(_) => (
                packed_of_direction::<W>(&w, d, directions)?,
                packed_of_direction::<W>(&r, d, directions)?,
            ),
            None => {
                let rows = of_direction::<W>(&r, d, directions)?;
                packed = match steps {
                    0 | 1 => None,
                    _ => W::pack(call, cell, rows, hidden)?,
                };
                let own_r = match &packed {
                    Some(packed) => W::packed(packed.as_slice()?)?,
                    None => Weights::Rows(rows),
                };
                (Weights::Rows(of_direction(&w, d, directions)?), own_r)
            }
        };
        let direction = Direction {
            reversed: attrs.directions[d].reversed,
            w: own_w,
            r: own_r,
            bias: optional_of_direction(&bias, d, directions)?,
            peepholes: optional_of_direction(&peepholes, d, directions)?,
            activations,
        };
        let (step, sequence) = match attrs.batch_first {
            false => (directions * batch * hidden, hidden),
            true => (directions * hidden, steps * directions * hidden),
        };
        let to = Yield {
            data: write(&mut y)?,
            first: match attrs.batch_first {
                false => d * batch * hidden,
                true => d * hidden,
            },
            step,
            sequence,
        };
        let scratch = Scratch {
            ahead: write(&mut ahead)?,
            gates: write(&mut gates)?,
            reset: write(&mut reset)?,
            bias: write(&mut sum)?,
        };
        recurrent::run(&call.launch.exec, &layer, &direction, states, scratch, to)?;
        for (s, last) in last.iter_mut().enumerate() {
            let last = write::<W>(last)?;
            for b in 0..copied {
                let from = &states[(b * cell.states() + s) * hidden..][..hidden];
                last[row(d, b)..][..hidden].copy_from_slice(from);
            }
        }
    }
    let all = std::iter::once(y).chain(last).enumerate();
    all.map(|(o, t)| narrow_to(call, o, t)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

    use convoke_graph::graph::{Attr, Attrs};

    use super::*;
    use crate::cpu::testing::launch;

    #[test]
    fn any_number_of_empty_sequences_takes_no_time() {
        let zeros = |shape: &[usize]| Some(Tensor::zeros(DType::F32, shape).unwrap());
        let attrs = Attrs::default().with("hidden_size", Attr::Int(0));
        for (steps, batch) in [(1, 1 << 40), (1 << 40, 1)] {
            let operands = vec![
                zeros(&[steps, batch, 0]),
                zeros(&[1, 0, 0]),
                zeros(&[1, 0, 0]),
            ];
            let made = launch("LSTM", attrs.clone(), operands, 3).unwrap();
            assert_eq!(made[0].shape(), [steps, 1, batch, 0]);
            assert_eq!(made[2].shape(), [1, batch, 0]);
        }
        let attrs = Attrs::default().with("hidden_size", Attr::Int(64));
        for (steps, batch) in [(0, 1 << 60), (1 << 60, 0)] {
            let operands = vec![
                zeros(&[steps, batch, 1]),
                zeros(&[1, 256, 1]),
                zeros(&[1, 256, 64]),
            ];
            let e = launch("LSTM", attrs.clone(), operands, 1).unwrap_err();
            assert!(format!("{e:?}").contains("too large"), "{e:?}");
        }
        let parts = Attrs::default().with("parts", Attr::Ints(vec![4]));
        let packed = launch("PackRecurrent", parts, vec![zeros(&[1 << 40, 0, 0])], 1);
        assert_eq!(packed.unwrap()[0].elements(), 0);
    }
}
