//! Weights that are quantised in blocks, each of which has a scale and perhaps a zero point.

use convoke_graph::graph::{Attr, Attrs, ValueId};
use convoke_graph::{DType, Dim, Tensor};

use super::super::super::builder::Builder;
use super::super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, axis_of, to_dtype, unsupported,
};

/// Imports MatMulNBits, whose weights stay packed.
pub(super) fn matmul_n_bits(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    // Levels but 4 are of products of numbers, which are exact here.
    if c.take_int("accuracy_level")? == Some(4) {
        c.attrs = std::mem::take(&mut c.attrs).with("accuracy_level", Attr::Int(4));
    }
    let weights = c.take_int("weight_prepacked")?.unwrap_or(0);
    if weights != 0 {
        return Err(unsupported("weights that are packed for a device"));
    }
    if let Some(groups) = c.input(4) {
        return matmul_of_groups(b, c, groups);
    }
    let bias = c.input(5);
    c.inputs.truncate(4);
    c.set(4, bias);
    c.emit(b)
}

/// Imports MatMulNBits whose operand `g_idx` [K] says to which block each row of the weights belongs, as GPTQ orders
/// them. The weights become numbers once, at install, where they are constants:
///
/// ```text
/// B ── codes [N, K] ── less zero points [N, blocks] at g_idx ── times scales [N, blocks] at g_idx ── [N, K]ᵀ
/// ```
fn matmul_of_groups(b: &mut Builder, mut c: ImportedNode, groups: ValueId) -> Outputs {
    let needed = |c: &mut ImportedNode, attr: &str| match c.take_int(attr)? {
        Some(n) if n > 0 => Ok(n),
        _ => Err(c.wrong(attr, "a number above zero")),
    };
    let (k, n) = (needed(&mut c, "K")?, needed(&mut c, "N")?);
    let block = needed(&mut c, "block_size")?;
    let bits = c.take_int("bits")?.unwrap_or(4);
    if ![2, 4, 8].contains(&bits) {
        return Err(unsupported(format!("codes of {bits} bits with 'g_idx'")));
    }
    c.take_int("accuracy_level")?;
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let blocks = (k - 1) / block + 1;
    let filled = blocks.checked_mul(block).and_then(|f| f.checked_mul(n));
    if filled.is_none_or(|f| f > i64::MAX / 8) {
        return Err(c.error("has too large weights").into());
    }
    let (a, packed, scales) = (c.need(0)?, c.need(1)?, c.need(2)?);
    let (zeros, bias) = (c.input(3), c.input(5));
    let mut e = Expansion { b, c: &c };
    let e = &mut e;
    let stated = e.shape(groups)?;
    match stated.as_slice() {
        // It may be as long as the blocks, the last of which may be filled up.
        [len] if len.as_const().is_none_or(|l| l == k || l == blocks * block) => {}
        _ => {
            let reason = format!("'g_idx' must be a list of {k} numbers of blocks");
            return Err(c.error(reason).into());
        }
    }
    let groups = e.slice(groups, 0, 0, k, 1)?;
    let numbers = |e: &mut Expansion<'_>, packed: ValueId, columns: i64| {
        let bytes = (columns * bits + 7) / 8;
        let packed = e.reshaped(packed, &[n, bytes])?;
        let codes = match bits {
            8 => packed,
            _ => unpacked(e, packed, bits, First::Low)?,
        };
        e.cast(codes, DType::F32)
    };
    let codes = numbers(e, packed, blocks * block)?;
    let codes = e.slice(codes, 1, 0, k, 1)?;
    let of_rows = |e: &mut Expansion<'_>, x: ValueId| e.op("Gather", axis_of(1), &[x, groups]);
    let zeros = match zeros {
        None => e.float("zero", DType::F32, f64::from(1u8 << (bits - 1)))?,
        Some(zeros) if e.ty(zeros)?.dtype == DType::U8 => {
            let zeros = numbers(e, zeros, blocks)?;
            let zeros = e.slice(zeros, 1, 0, blocks, 1)?;
            of_rows(e, zeros)?
        }
        Some(zeros) => {
            let zeros = e.reshaped(zeros, &[n, blocks])?;
            let zeros = e.cast(zeros, DType::F32)?;
            of_rows(e, zeros)?
        }
    };
    let scales = e.reshaped(scales, &[n, blocks])?;
    let scales = e.cast(scales, DType::F32)?;
    let scales = of_rows(e, scales)?;
    let weights = e.plain("Sub", &[codes, zeros])?;
    let weights = e.plain("Mul", &[weights, scales])?;
    let dtype = e.ty(a)?.dtype;
    let weights = e.cast(weights, dtype)?;
    let weights = e.transposed(weights, &[1, 0])?;
    Ok(vec![match bias {
        None => e.last(0, "MatMul", Attrs::default(), &[a, weights])?,
        Some(bias) => {
            let product = e.plain("MatMul", &[a, weights])?;
            e.last(0, "Add", Attrs::default(), &[product, bias])?
        }
    }])
}

/// Rows of weights that are quantised in blocks along an axis.
struct BlockRows {
    block: i64,
    gather: i64,
    blocks: i64,
    bits: i64,
}

/// Imports GatherBlockQuantized: codes, scales and zero points of rows are gathered, then the rows become numbers.
pub(super) fn gather_blocks(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let (data, indices, scales) = (c.need(0)?, c.need(1)?, c.need(2)?);
    let rows = BlockRows {
        block: c.take_int("block_size")?.unwrap_or(128),
        gather: c.take_int("gather_axis")?.unwrap_or(0),
        blocks: c.take_int("quantize_axis")?.unwrap_or(1),
        bits: c.take_int("bits")?.unwrap_or(4),
    };
    c.no_more_attributes()?;
    let rank = |id: ValueId| b.ty(id).map_or(0, |ty| ty.shape.len() as i64);
    let (rank, inserted) = (rank(data), rank(indices) - 1);
    let from_front = |axis: i64| if axis < 0 { axis + rank } else { axis };
    let (gather, blocks) = (from_front(rows.gather), from_front(rows.blocks));
    let of_bytes = c.dtype(b, 0) == DType::U8;
    let whole_axis = gather == blocks;
    if whole_axis && of_bytes || !(0..rank).contains(&gather) || !(0..rank).contains(&blocks) {
        return Err(c
            .error(format!("axes {gather} and {blocks} of rank {rank}"))
            .into());
    }
    if c.dtype(b, 0).widened() == DType::F32 {
        return gather_floats(b, c, &rows, [gather, blocks]);
    }
    let packed = of_bytes && rows.bits < 8;
    if packed && blocks != rank - 1 {
        return Err(unsupported("packed codes along another axis than the last"));
    }
    // Codes of whole bytes have no sign, and stand for numbers around their middle.
    let middle = match (c.dtype(b, 0), rows.bits) {
        (DType::U8, 2) => Some(2u8),
        (DType::U8, 4) => Some(8),
        (DType::U8, 8) => Some(128),
        (DType::U8, _) => return Err(unsupported(format!("codes of {} bits", rows.bits))),
        _ => None,
    };
    let zeros = c.input(3);
    let count = b.ty(scales).and_then(|ty| ty.shape.last()?.as_const());
    let dtype = c.dtype(b, 2);
    let mut e = Expansion { b, c: &c };
    let (indices, present) = within(&mut e, indices, data, gather)?;
    // Blocks along the axis of the rows become numbers before rows are gathered.
    let taken = |e: &mut Expansion<'_>, x| match whole_axis {
        true => Ok(x),
        false => e.op("Gather", axis_of(gather), &[x, indices]),
    };
    // Only rows of whole bytes are gathered. Packed tensors get a byte for each element, once, before the first step.
    let whole = |e: &mut Expansion<'_>, x| {
        let dtype = e.ty(x)?.dtype.widened();
        e.cast(x, dtype)
    };
    let codes = whole(&mut e, data)?;
    let (mut codes, scales) = (taken(&mut e, codes)?, taken(&mut e, scales)?);
    let mut zeros = match zeros {
        None => None,
        Some(zeros) => {
            let zeros = whole(&mut e, zeros)?;
            Some(taken(&mut e, zeros)?)
        }
    };
    if packed {
        codes = unpacked(&mut e, codes, rows.bits, First::Low)?;
        if let Some(packed) = zeros {
            let count = count.ok_or_else(|| unsupported("blocks of a number that is not known"))?;
            let all = unpacked(&mut e, packed, rows.bits, First::Low)?;
            zeros = Some(e.slice(all, -1, 0, count, 1)?);
        }
    }
    if let (None, Some(middle)) = (zeros, middle) {
        let shape = e.plain("Shape", &[scales])?;
        let value =
            Tensor::from_slice(&[1], &[middle]).map_err(|error| c.error(error.to_string()))?;
        let attrs = Attrs::default().with("value", Attr::Tensor(value));
        zeros = Some(e.op("ConstantOfShape", attrs, &[shape])?);
    }
    let along = if blocks > gather {
        blocks + inserted
    } else {
        blocks
    };
    let attrs = axis_of(along)
        .with("block_size", Attr::Int(rows.block))
        .with("output_dtype", Attr::DType(dtype));
    let operands: Vec<_> = [codes, scales].into_iter().chain(zeros).collect();
    let added =
        |e: &mut Expansion<'_>, op: &str, attrs, operands: &[ValueId], is_last: bool| match is_last
        {
            true => e.last(0, op, attrs, operands),
            false => e.op(op, attrs, operands),
        };
    let is_last = present.is_none();
    let op = "DequantizeLinear";
    let mut y = added(&mut e, op, attrs, &operands, is_last && !whole_axis)?;
    if whole_axis {
        let operands = [y, indices];
        y = added(&mut e, "Gather", axis_of(gather), &operands, is_last)?;
    }
    if let Some(present) = present {
        let zero = e.float("zero", dtype, 0.0)?;
        y = e.last(0, "Where", Attrs::default(), &[present, y, zero])?;
    }
    Ok(vec![y])
}

/// Imports GatherBlockQuantized of floats of few bits, which have scales and no zero points. A scale broadcasts along an axis
/// of length 1.
fn gather_floats(
    b: &mut Builder,
    c: ImportedNode,
    rows: &BlockRows,
    [gather, blocks]: [i64; 2],
) -> Outputs {
    if c.input(3).is_some() {
        return Err(c.error("floats have no zero points").into());
    }
    let (data, indices, scales) = (c.need(0)?, c.need(1)?, c.need(2)?);
    let mut e = Expansion { b, c: &c };
    let e = &mut e;
    let dtype = e.ty(scales)?.dtype;
    let (shape, of_scales) = (e.shape(data)?, e.shape(scales)?);
    let length = shape[blocks as usize].as_const();
    let length = length.ok_or_else(|| unsupported("blocks of an axis of unknown length"))?;
    if of_scales.len() != shape.len() {
        return Err(c.error("scales must have the rank of the codes").into());
    }
    let block = match rows.block {
        0 => length.max(1),
        block if block > 0 => block,
        _ => return Err(c.wrong("block_size", "0 or more").into()),
    };
    let count = length / block + i64::from(length % block != 0);
    let fit = |axis: usize| match of_scales[axis].as_const() {
        Some(scales) if axis == blocks as usize => scales == count,
        Some(scales) => scales == 1 || shape[axis].as_const().is_none_or(|len| len == scales),
        None => true,
    };
    if !(0..shape.len()).all(fit) {
        let msg = format!(
            "scales must have {count} elements along axis {blocks}, and 1 or as many as the codes along others"
        );
        return Err(c.error(msg).into());
    }
    let (indices, present) = within(e, indices, data, gather)?;
    // Element k of an axis has the scale of its block.
    let by_element = |e: &mut Expansion<'_>, scales: ValueId, axis: i64| -> Made {
        let all = e.int("elements", length)?;
        let element = e.counted(all)?;
        let block = e.int("block", block)?;
        let block = e.plain("Div", &[element, block])?;
        e.op("Gather", axis_of(axis), &[scales, block])
    };
    let mut scales = e.cast(scales, DType::F32)?;
    if gather == blocks {
        scales = by_element(e, scales, blocks)?;
    }
    // A constant table is cast as a whole when it is installed. bf16 holds all floats of 8 and 4 bits.
    let numbers = e.cast(data, DType::BF16)?;
    let numbers = e.op("Gather", axis_of(gather), &[numbers, indices])?;
    let numbers = e.cast(numbers, DType::F32)?;
    let of_rows = match gather != blocks && of_scales[gather as usize].is(1) {
        true => {
            let zero = e.int("first", 0)?;
            let zero = e.cast(zero, e.ty(indices)?.dtype)?;
            e.plain("Mul", &[indices, zero])?
        }
        false => indices,
    };
    let mut scales = e.op("Gather", axis_of(gather), &[scales, of_rows])?;
    if gather != blocks {
        let inserted = e.shape(indices)?.len() as i64 - 1;
        let axis = if blocks > gather {
            blocks + inserted
        } else {
            blocks
        };
        scales = by_element(e, scales, axis)?;
    }
    let mut y = e.plain("Mul", &[numbers, scales])?;
    if let Some(present) = present {
        let zero = e.float("zero", DType::F32, 0.0)?;
        y = e.op("Where", Attrs::default(), &[present, y, zero])?;
    }
    Ok(vec![e.last(0, "Cast", to_dtype(dtype), &[y])?])
}

/// Indices into an axis of `x` that are all inside it, and which of the given ones are, in a shape that broadcasts to
/// what they gather: `None` where those are known to be all.
fn within(
    e: &mut Expansion<'_>,
    indices: ValueId,
    x: ValueId,
    axis: i64,
) -> Result<(ValueId, Option<ValueId>), ImportFailure> {
    let (shape, ty) = (e.shape(x)?, e.ty(indices)?);
    let length = shape.get(axis as usize).and_then(Dim::as_const);
    let known = e.b.elements(indices).zip(length);
    if known.is_some_and(|(all, length)| all.iter().all(|i| (-length..length).contains(i))) {
        return Ok((indices, None));
    }
    let length = e.length(x, axis)?;
    let length = e.scalar(length)?;
    let length = e.cast(length, ty.dtype)?;
    let one = e.int("one", 1)?;
    let one = e.cast(one, ty.dtype)?;
    let (least, most) = (e.plain("Neg", &[length])?, e.plain("Sub", &[length, one])?);
    let inside = e.plain("Clip", &[indices, least, most])?;
    let present = e.plain("Equal", &[inside, indices])?;
    let rank = ty.shape.len() as i64;
    let axes: Vec<i64> = (rank..rank + shape.len() as i64 - axis - 1).collect();
    Ok((inside, Some(e.unsqueezed(present, &axes)?)))
}

/// The part of a byte that holds the first of its codes.
#[derive(Clone, Copy)]
pub(in super::super) enum First {
    Low,
    High,
}

/// Bytes of codes of 2 or 4 bits as codes of a byte each.
pub(in super::super) fn unpacked(
    e: &mut Expansion<'_>,
    x: ValueId,
    bits: i64,
    first: First,
) -> Made {
    let shape = e.shape(x)?;
    let last = shape.last().and_then(Dim::as_const);
    let last = last.ok_or_else(|| unsupported("packed codes of a size that is not known"))?;
    let each = 8 / bits;
    let mask =
        e.b.literal(&e.c.sub("mask"), Tensor::scalar((1u8 << bits) - 1));
    let mut codes = Vec::new();
    for code in 0..each {
        let shifted = match code {
            0 => x,
            _ => {
                let right = Attrs::default().with("direction", Attr::Str("RIGHT".into()));
                let by = Tensor::scalar((code * bits) as u8);
                let by = e.b.literal(&e.c.sub("bits"), by);
                e.op("BitShift", right, &[x, by])?
            }
        };
        // What is left after the last shift is one code.
        let code = match code + 1 == each {
            true => shifted,
            false => e.plain("BitwiseAnd", &[shifted, mask])?,
        };
        codes.push(e.unsqueezed(code, &[-1])?);
    }
    if let First::High = first {
        codes.reverse();
    }
    let codes = e.joined(-1, &codes)?;
    let mut to = vec![0; shape.len()];
    if let Some(len) = to.last_mut() {
        *len = last.saturating_mul(each);
    }
    e.reshaped(codes, &to)
}
