//! Products and convolutions of codes: exact sums, of bytes where groups have few filters, by dot products of bytes where the
//! processor has them, else by way of f32 products of few enough terms.

use convoke_common::Error;
use convoke_graph::ops::OpError;
use convoke_graph::ops::attrs::{ConvAttrs, Granularity, ParameterShape, product_granularity};
use convoke_graph::{DType, Tensor};
use convoke_kernels::conv::{ConvEpilogue, ConvWeights, conv, conv_terms};
use convoke_kernels::gemm::{Epilogue, Lhs, Rhs, Strided, gemm_batched};
use convoke_kernels::quantised::{
    Bytes, BytesConv, DEEPEST, Destination, GroupedConv, PackedRows, Parameters, Requantisation,
    SumBias, Take, Zeros, add_exact, conv_of_bytes, exact_depth, grouped_conv_of_bytes, is_packed,
    multiplies_bytes, needs_row_sums, pack_rows, packed_row, product_of_bytes, range_of,
    requantise, sum_rows,
};

use super::super::conv::sizes;
use super::super::matmul::Stack;
use super::numbers::{as_f32, format_of, layout_of, numbers_into, optional_f32};
use crate::cpu::kernel::{
    FamilyAnswer, KernelFailure, OpLaunch, Spec, body, one, write, write_bits,
};

/// An operand of a product: codes and their zero points.
struct Codes<'a> {
    codes: &'a Tensor,
    zeros: Option<Tensor>,
    granularity: Granularity,
    /// The greatest magnitude of a code less its zero point.
    greatest: u32,
}

impl<'a> Codes<'a> {
    /// Operand `x` with the zero points of operand `zero`, whose granularity `find` knows.
    fn new(
        call: &'a OpLaunch<'_, '_>,
        (x, zero): (usize, usize),
        find: impl Fn(ParameterShape) -> Result<Granularity, OpError>,
    ) -> Result<Codes<'a>, KernelFailure> {
        let codes = call.input(x)?;
        let granularity = match call.optional(zero) {
            Some(zero) => find(ParameterShape::of(zero.shape()))?,
            None => Granularity::Tensor,
        };
        let zeros = optional_f32(call, zero)?;
        let (low, high) = range_of(format_of(codes.dtype())?).unwrap_or((0.0, 255.0));
        let all = match &zeros {
            Some(zeros) => zeros.as_slice::<f32>()?,
            None => &[0.0],
        };
        let mut greatest = 0.0f32;
        for part in all.chunks(1 << 16) {
            call.launch.exec.check()?;
            let wider = |most: f32, zero: &f32| most.max(zero - low).max(high - zero);
            greatest = part.iter().fold(greatest, wider);
        }
        Ok(Codes {
            codes,
            zeros,
            granularity,
            greatest: greatest as u32,
        })
    }

    /// The elements that `take` names, less their zero points, as `len` f32 numbers in `to`.
    fn numbers(
        &self,
        call: &OpLaunch<'_, '_>,
        take: Take,
        len: usize,
        to: &mut Tensor,
    ) -> Result<(), KernelFailure> {
        let parameters = Parameters {
            layout: layout_of(self.codes.shape(), self.granularity),
            scales: None,
            zeros: self.zeros.as_ref().map(|z| z.as_slice()).transpose()?,
        };
        numbers_into(call, self.codes, take, &parameters, to, len)
    }
}

impl Codes<'_> {
    /// The codes, if they have eight bits.
    fn bytes(&self) -> Option<Bytes<'_>> {
        let signed = match self.codes.dtype() {
            DType::I8 => true,
            DType::U8 => false,
            _ => return None,
        };
        Some(Bytes {
            codes: self.codes.bytes(),
            signed,
        })
    }

    /// The zero points, if they are one, or one for each index of `axis`.
    fn zeros_along(&self, axis: Option<usize>) -> Result<Option<Zeros<'_>>, KernelFailure> {
        let zeros = self
            .zeros
            .as_ref()
            .map(|z| z.as_slice::<f32>())
            .transpose()?;
        Ok(match (self.granularity, zeros) {
            (_, None) => Some(Zeros::One(0)),
            (Granularity::Tensor, Some([zero, ..])) => Some(Zeros::One(*zero as i32)),
            (Granularity::Axis(own), Some(all)) if Some(own) == axis => Some(Zeros::Each(all)),
            _ => None,
        })
    }
}

/// A left operand of bytes, packed in scratch memory unless its codes are packed as they are.
struct Packed<'a> {
    codes: &'a [u8],
    rows: Option<Tensor>,
    sums: Tensor,
    signed: bool,
}

impl<'a> Packed<'a> {
    /// The rows of `left`, `k` codes each, which are multiplied with an operand of these zero points.
    fn new(
        call: &OpLaunch<'_, '_>,
        left: Bytes<'a>,
        k: usize,
        (right, zeros): (Bytes<'_>, Zeros<'_>),
    ) -> Result<Packed<'a>, KernelFailure> {
        let (rows, exec) = (left.codes.len() / k.max(1), &call.launch.exec);
        let mut sums = call.scratch::<i32>(rows)?;
        let rows = if is_packed(left.signed, k) {
            match needs_row_sums(right, zeros) {
                true => sum_rows(exec, left.codes, k, write(&mut sums)?)?,
                false => clear(call, &mut sums)?,
            }
            None
        } else {
            let mut packed = call.scratch::<u8>(rows * packed_row(k))?;
            pack_rows(exec, left, k, write_bits(&mut packed)?, write(&mut sums)?)?;
            Some(packed)
        };
        Ok(Packed {
            codes: left.codes,
            rows,
            sums,
            signed: left.signed,
        })
    }

    fn rows<'b>(&'b self, zeros: Zeros<'b>) -> Result<PackedRows<'b>, KernelFailure> {
        Ok(PackedRows {
            packed: self.rows.as_ref().map_or(self.codes, Tensor::bytes),
            sums: self.sums.as_slice()?,
            signed: self.signed,
            zeros,
        })
    }
}

/// The first `len` elements of a scratch tensor.
fn head(t: &Tensor, len: usize) -> Result<&[f32], KernelFailure> {
    let short = || Error::internal("scratch memory is too short").into();
    t.as_slice::<f32>()?.get(..len).ok_or_else(short)
}

/// Sets sums to zero.
fn clear(call: &OpLaunch<'_, '_>, sums: &mut Tensor) -> Result<(), KernelFailure> {
    for part in write::<i32>(sums)?.chunks_mut(1 << 20) {
        call.launch.exec.check()?;
        part.fill(0);
    }
    Ok(())
}

/// Computes the product of codes of eight bits; false where it is another product, or the processor lacks the means.
fn product_of_codes(
    call: &OpLaunch<'_, '_>,
    (a, b): (&Codes<'_>, &Codes<'_>),
    stack: &Stack,
    to: Destination<'_>,
) -> Result<bool, KernelFailure> {
    let (_, _, k) = stack.sizes;
    if let (Some(left), Some(right)) = (a.bytes(), b.bytes())
        && multiplies_bytes()
        && let Some(rows) = a.zeros_along(None)?
        && let Some(columns) = b.zeros_along(b.codes.shape().len().checked_sub(1))?
        && k > 0
    {
        let packed = Packed::new(call, left, k, (right, columns))?;
        let exec = call.launch.exec;
        let (batch, rows) = (stack.batch(), packed.rows(rows)?);
        product_of_bytes(exec, &batch, stack.sizes, rows, (right, columns), to)?;
        return Ok(true);
    }
    Ok(false)
}

/// The product of codes, `a [.., m, k]` and `b [.., k, n]`, as i32 sums.
fn product(call: &OpLaunch<'_, '_>, a: &Codes<'_>, b: &Codes<'_>) -> Result<Tensor, KernelFailure> {
    let len: usize = call.out_shape(0).iter().product();
    let stack = Stack::new(a.codes.shape(), b.codes.shape())?;
    let (_, n, k) = stack.sizes;
    let mut sums = call.scratch::<i32>(len)?;
    if product_of_codes(call, (a, b), &stack, Destination::Sums(write(&mut sums)?))? {
        return Ok(sums);
    }
    clear(call, &mut sums)?;
    if len == 0 || k == 0 {
        return Ok(sums);
    }
    let depth = exact_depth(a.greatest, b.greatest).min(k);
    let part_of = |t: &Tensor, k_part: usize| t.elements() / k * k_part;
    let mut a_numbers = call.scratch::<f32>(part_of(a.codes, depth))?;
    let mut b_numbers = call.scratch::<f32>(part_of(b.codes, depth))?;
    let mut part = call.scratch::<f32>(len)?;
    for first in (0..k).step_by(depth) {
        let depth = depth.min(k - first);
        let take = |columns: usize| Take {
            run: depth * columns,
            stride: k * columns,
            offset: first * columns,
        };
        let (a_len, b_len) = (part_of(a.codes, depth), part_of(b.codes, depth));
        a.numbers(call, take(1), a_len, &mut a_numbers)?;
        b.numbers(call, take(n), b_len, &mut b_numbers)?;
        let (mut a_shape, mut b_shape) = (a.codes.shape().to_vec(), b.codes.shape().to_vec());
        let (a_rank, b_rank) = (a_shape.len(), b_shape.len());
        a_shape[a_rank - 1] = depth;
        b_shape[b_rank.saturating_sub(2)] = depth;
        let stack = Stack::new(&a_shape, &b_shape)?;
        gemm_batched(
            call.launch.exec,
            &stack.batch(),
            stack.sizes,
            Lhs::Strided(Strided::row_major(head(&a_numbers, a_len)?, depth)),
            Rhs::Strided(Strided::row_major(head(&b_numbers, b_len)?, n)),
            write(&mut part)?,
            &Epilogue::NONE,
        )?;
        add_exact(&call.launch.exec, part.as_slice()?, write(&mut sums)?)?;
    }
    Ok(sums)
}

/// Computes the convolution of codes of eight bits; false where it is another convolution, its codes have other scales than one for
/// each filter, the copy of its input would be too large, or the processor lacks the means.
fn convolution_of_codes(
    call: &OpLaunch<'_, '_>,
    (x, w): (&Codes<'_>, &Codes<'_>),
    to: Destination<'_>,
) -> Result<bool, KernelFailure> {
    let (x_shape, w_shape) = (x.codes.shape(), w.codes.shape());
    let terms: usize = w_shape.iter().skip(1).product();
    if !call.out_shape(0).contains(&0)
        && terms > 0
        && let (Some(input), Some(weights)) = (x.bytes(), w.bytes())
        && let Some(Zeros::One(zero)) = x.zeros_along(None)?
        && let Some(zeros) = w.zeros_along(Some(0))?
    {
        let (exec, shape) = (call.launch.exec, sizes(call.attrs, x_shape, w_shape)?);
        if let Some(plan) = GroupedConv::new(&shape) {
            let (input, weights) = ((input, zero), (weights, zeros));
            return Ok(grouped_conv_of_bytes(exec, &plan, input, weights, to)?);
        }
        if multiplies_bytes()
            && let Some(conv) = BytesConv::new(&shape)
        {
            let packed = Packed::new(call, weights, terms, (input, Zeros::One(zero)))?;
            let mut copy = call.scratch::<u8>(conv.copied())?;
            let (filters, copy) = (packed.rows(zeros)?, write_bits(&mut copy)?);
            conv_of_bytes(exec, &conv, (input, zero), filters, copy, to)?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// The convolution of codes as i32 sums.
fn convolution(
    call: &OpLaunch<'_, '_>,
    x: &Codes<'_>,
    w: &Codes<'_>,
) -> Result<Tensor, KernelFailure> {
    let (x_shape, w_shape) = (x.codes.shape(), w.codes.shape());
    let len: usize = call.out_shape(0).iter().product();
    let group = ConvAttrs::group(call.attrs)?;
    let channels = w_shape.get(1).copied().unwrap_or(0);
    let mut sums = call.scratch::<i32>(len)?;
    if convolution_of_codes(call, (x, w), Destination::Sums(write(&mut sums)?))? {
        return Ok(sums);
    }
    clear(call, &mut sums)?;
    if len == 0 || channels == 0 {
        return Ok(sums);
    }
    let plane: usize = x_shape.iter().skip(2).product();
    let taps: usize = w_shape.iter().skip(2).product();
    let depth = exact_depth(x.greatest, w.greatest);
    // The channels of a group that are numbers at a time.
    let width = (depth / taps).clamp(1, channels);
    let (items, filters) = (x_shape[0] * group, w_shape[0]);
    let mut x_numbers = call.scratch::<f32>(items * width * plane)?;
    let mut w_numbers = call.scratch::<f32>(filters * width * taps)?;
    let mut part = call.scratch::<f32>(len)?;
    for first in (0..channels).step_by(width) {
        let width = width.min(channels - first);
        let take = |each: usize| Take {
            run: width * each,
            stride: channels * each,
            offset: first * each,
        };
        let (x_len, w_len) = (items * width * plane, filters * width * taps);
        if x_len > 0 {
            x.numbers(call, take(plane), x_len, &mut x_numbers)?;
        }
        w.numbers(call, take(taps), w_len, &mut w_numbers)?;
        let (mut x_part, mut w_part) = (x_shape.to_vec(), w_shape.to_vec());
        (x_part[1], w_part[1]) = (group * width, width);
        let shape = sizes(call.attrs, &x_part, &w_part)?;
        let (x, w) = (head(&x_numbers, x_len)?, head(&w_numbers, w_len)?);
        let (exec, chain) = (call.launch.exec, width * taps);
        // One channel alone may have more taps than are exact.
        for term in (0..chain).step_by(depth) {
            let part = write(&mut part)?;
            if chain <= depth {
                let weights = ConvWeights::RowMajor(w);
                conv(exec, &shape, x, weights, &ConvEpilogue::NONE, part)?;
            } else {
                conv_terms(exec, &shape, x, w, term..chain.min(term + depth), part)?;
            }
            add_exact(&exec, part, write(&mut sums)?)?;
        }
    }
    Ok(sums)
}

fn left(x: &[usize]) -> impl Fn(ParameterShape) -> Result<Granularity, OpError> {
    let rank = x.len();
    move |zeros| product_granularity(true, rank, zeros)
}

fn right(x: &[usize]) -> impl Fn(ParameterShape) -> Result<Granularity, OpError> {
    let rank = x.len();
    move |zeros| product_granularity(false, rank, zeros)
}

fn of_tensor(_: ParameterShape) -> Result<Granularity, OpError> {
    Ok(Granularity::Tensor)
}

/// The granularity of the zero points of filters: one for all, or one for each.
fn of_filters(zeros: ParameterShape) -> Result<Granularity, OpError> {
    Ok(match zeros.single {
        true => Granularity::Tensor,
        false => Granularity::Axis(0),
    })
}

/// Sums as output 0, whose elements they are.
fn as_output(call: &OpLaunch<'_, '_>, sums: Tensor) -> Result<Tensor, KernelFailure> {
    let shaped = sums.into_shape(call.out_shape(0));
    shaped.ok_or_else(|| Error::internal("sums of another number than the result").into())
}

pub(super) fn matmul_integer() -> FamilyAnswer {
    body(|call| {
        let a = Codes::new(&call, (0, 2), left(call.shape(0)?))?;
        let b = Codes::new(&call, (1, 3), right(call.shape(1)?))?;
        let sums = product(&call, &a, &b)?;
        one(as_output(&call, sums)?)
    })
}

pub(super) fn conv_integer() -> FamilyAnswer {
    body(|call| {
        let (x, w) = (
            Codes::new(&call, (0, 2), of_tensor)?,
            Codes::new(&call, (1, 3), of_filters)?,
        );
        let sums = convolution(&call, &x, &w)?;
        one(as_output(&call, sums)?)
    })
}

/// Output 0, whose codes are made of sums: `rows` and `columns` are the operands with the scales of rows and columns, each
/// with `n` sums of `k` products. `direct` makes the codes while it sums, if it can; else they are made of the result of `sums`.
fn requantised(
    call: &OpLaunch<'_, '_>,
    (n, k): (usize, usize),
    (rows, columns): (usize, usize),
    bias: SumBias<'_>,
    direct: impl FnOnce(Destination<'_>) -> Result<bool, KernelFailure>,
    sums: impl FnOnce() -> Result<Tensor, KernelFailure>,
) -> Result<Tensor, KernelFailure> {
    let scale = |i: usize| as_f32(call, call.input(i)?);
    let (rows, columns, scales, zeros) = (scale(rows)?, scale(columns)?, scale(6)?, scale(7)?);
    let mut y = call.output(0)?;
    if y.elements() == 0 {
        return Ok(y);
    }
    let how = Requantisation {
        bias,
        rows: rows.as_slice()?,
        columns: columns.as_slice()?,
        scales: scales.as_slice()?,
        zeros: zeros.as_slice()?,
        to: format_of(y.dtype())?,
    };
    let exec = call.launch.exec;
    if k > DEEPEST || !direct(Destination::Codes(write_bits(&mut y)?, &how))? {
        let sums = sums()?;
        requantise(&exec, sums.as_slice()?, n, &how, write_bits(&mut y)?)?;
    }
    Ok(y)
}

/// Refuses results of another dtype than codes have.
fn check_codes(spec: &Spec<'_>) -> Result<(), OpError> {
    match spec.dtype(7)? {
        DType::U8 | DType::I8 => Ok(()),
        other => Err(spec.no_dtype(other)),
    }
}

pub(super) fn qlinear_matmul(spec: &Spec<'_>) -> FamilyAnswer {
    check_codes(spec)?;
    body(|call| {
        let a = Codes::new(&call, (0, 2), left(call.shape(0)?))?;
        let b = Codes::new(&call, (3, 5), right(call.shape(3)?))?;
        let stack = Stack::new(call.shape(0)?, call.shape(3)?)?;
        let (_, n, k) = stack.sizes;
        let bias = call.optional_slice::<i32>(8)?;
        one(requantised(
            &call,
            (n, k),
            (1, 4),
            bias.map_or(SumBias::None, SumBias::Columns),
            |codes| product_of_codes(&call, (&a, &b), &stack, codes),
            || product(&call, &a, &b),
        )?)
    })
}

pub(super) fn qlinear_conv(spec: &Spec<'_>) -> FamilyAnswer {
    check_codes(spec)?;
    body(|call| {
        let (x, w) = (
            Codes::new(&call, (0, 2), of_tensor)?,
            Codes::new(&call, (3, 5), of_filters)?,
        );
        let plane = call.out_shape(0).iter().skip(2).product();
        let terms = call.shape(3)?.iter().skip(1).product();
        let bias = call.optional_slice::<i32>(8)?;
        one(requantised(
            &call,
            (plane, terms),
            (4, 1),
            bias.map_or(SumBias::None, SumBias::Rows),
            |codes| convolution_of_codes(&call, (&x, &w), codes),
            || convolution(&call, &x, &w),
        )?)
    })
}
