//! Ops that move elements to positions that shapes and host operands decide.

use convoke_common::Error;
use convoke_graph::ops::attrs::{self, axis, flag, normalize_axes, slice_range, transpose_perm};
use convoke_graph::ops::{MovementOp, SliceOp};
use convoke_graph::{Outputs, Tensor};
use convoke_kernels::element::Bits;
use convoke_kernels::movement::{
    BlockOrder, PadMode, concat, depth_to_space, expand, pad, reverse_sequence, slice,
    space_to_depth, split, tile, transpose, trilu,
};

use crate::cpu::dispatch::by_size;
use crate::cpu::kernel::{
    FamilyAnswer, KernelFailure, OpLaunch, Spec, bits, body, one, write_bits,
};

/// The kernel of the function `f` for elements of operand 0's size.
macro_rules! sized {
    ($spec:ident, $f:ident) => {
        by_size!($spec.dtype(0)?, T => body($f::<T>))
    };
}

pub(super) fn find(op: MovementOp, spec: &Spec<'_>) -> FamilyAnswer {
    match op {
        MovementOp::Transpose => sized!(spec, transposed),
        MovementOp::Trilu => sized!(spec, triangle),
        MovementOp::DepthToSpace => sized!(spec, to_space),
        MovementOp::SpaceToDepth => sized!(spec, to_depth),
        MovementOp::ReverseSequence => sized!(spec, reversed),
    }
}

/// Finds the kernel of an op that takes tensors apart or puts them together.
pub(super) fn find_slice(op: SliceOp, spec: &Spec<'_>) -> FamilyAnswer {
    match op {
        SliceOp::Concat => sized!(spec, joined),
        SliceOp::Split => sized!(spec, parts),
        SliceOp::Slice => sized!(spec, sliced),
        SliceOp::Expand => sized!(spec, expanded),
        SliceOp::Tile => sized!(spec, tiled),
        SliceOp::Pad => sized!(spec, padded),
    }
}

/// Types of elements that are only moved, never computed with.
trait MovedElement: Bits + bytemuck::Pod {}
impl<T: Bits + bytemuck::Pod> MovedElement for T {}

fn transposed<T: MovedElement>(mut call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let shape = call.shape(0)?;
    let perm = transpose_perm(call.attrs, shape.len())?;
    let moving: Vec<usize> = perm
        .iter()
        .copied()
        .filter(|axis| shape[*axis] != 1)
        .collect();
    if moving.is_sorted() {
        return same_elements(&mut call);
    }
    let mut y = call.output(0)?;
    transpose::<T>(
        &call.launch.exec,
        bits(call.input(0)?),
        shape,
        &perm,
        write_bits(&mut y)?,
    )?;
    one(y)
}

/// Operand 0 with the output's shape.
fn same_elements(call: &mut OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let x = call.take(0)?;
    let y = x.reshape(call.out_shape(0));
    one(y.ok_or_else(|| {
        Error::internal(format!(
            "{x:?} cannot take the shape {:?}",
            call.out_shape(0)
        ))
    })?)
}

fn joined<T: MovedElement>(mut call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    if call.launch.inputs.len() == 1 {
        return same_elements(&mut call);
    }
    let shape = call.out_shape(0);
    let axis = axis(call.attrs, 0, shape.len())?;
    if axis == 0 && flag(call.attrs, "grows", false) && call.launch.inputs.own(0).is_some() {
        return appended::<T>(call);
    }
    let parts: Vec<&[T]> = call.launch.inputs.iter().flatten().map(bits).collect();
    let mut y = call.output(0)?;
    if y.elements() > 0 {
        concat::<T>(
            &call.launch.exec,
            shape[..axis].iter().product(),
            &parts,
            write_bits(&mut y)?,
        )?;
    }
    one(y)
}

/// Joins operands along the first axis behind operand 0, which nobody else holds: in its own memory where there is room, else in
/// memory with room for half as much again. So a tensor of n elements that was appended to again and again has moved fewer than
/// 3 n elements.
fn appended<T: MovedElement>(mut call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let first = call.take(0)?;
    let (dtype, shape) = (first.dtype(), call.out_shape(0));
    let before = bits::<T>(&first).len();
    let (mut y, moved) = match first.grown(shape) {
        Ok(y) => (y, None),
        Err(first) => {
            let room = Tensor::size_of(dtype, shape)? / 2;
            (call.launch.pool.with_room(dtype, shape, room)?, Some(first))
        }
    };
    let moved = moved.as_ref();
    let from = if moved.is_some() { 0 } else { before };
    let all = moved.into_iter().chain(call.launch.inputs.iter().flatten());
    let parts: Vec<&[T]> = all.map(bits).collect();
    let all = write_bits::<T>(&mut y)?;
    if let Some(rest) = all.get_mut(from..).filter(|rest| !rest.is_empty()) {
        concat::<T>(&call.launch.exec, 1, &parts, rest)?;
    }
    one(y)
}

fn parts<T: MovedElement>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let x = call.input(0)?;
    let axis = axis(call.attrs, 0, x.shape().len())?;
    let outputs = (0..call.outputs.len()).map(|o| call.output(o));
    let mut outputs: Vec<Tensor> = outputs.collect::<Result<_, _>>()?;
    if x.elements() > 0 {
        let slices: Result<Vec<&mut [T]>, _> = outputs.iter_mut().map(write_bits).collect();
        split::<T>(
            &call.launch.exec,
            x.shape()[..axis].iter().product(),
            bits(x),
            &mut slices?,
        )?;
    }
    Ok(outputs.into())
}

fn sliced<T: MovedElement>(mut call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let shape = call.shape(0)?;
    let rank = shape.len();
    let starts = call.ints(1)?.unwrap_or_default();
    let ends = call.ints(2)?.unwrap_or_default();
    let axes = match call.ints(3)? {
        Some(axes) => normalize_axes(&axes, rank)?,
        None => (0..starts.len()).collect(),
    };
    let given_steps = call.ints(4)?.unwrap_or_else(|| vec![1; starts.len()]);
    let (mut from, mut steps) = (vec![0usize; rank], vec![1isize; rank]);
    for (((axis, start), end), step) in axes.iter().zip(&starts).zip(&ends).zip(&given_steps) {
        let Some(dim) = shape.get(*axis) else {
            return Err(KernelFailure::values(format!(
                "axis {axis} is outside rank {rank}"
            )));
        };
        if *step == 0 {
            return Err(KernelFailure::values("a slice has step zero"));
        }
        let (first, count) = slice_range(*dim as i64, *start, *end, *step);
        // The first index of an empty slice may lie outside, since it is not read.
        from[*axis] = usize::try_from(first).unwrap_or(0);
        steps[*axis] = if count > 1 { *step as isize } else { 1 };
    }
    if shape == call.out_shape(0) && steps.iter().all(|s| *s == 1) {
        return same_elements(&mut call);
    }
    let mut y = call.output(0)?;
    if y.elements() > 0 {
        let out = write_bits(&mut y)?;
        slice::<T>(
            &call.launch.exec,
            bits(call.input(0)?),
            shape,
            &from,
            &steps,
            out,
            call.out_shape(0),
        )?;
    }
    one(y)
}

fn expanded<T: MovedElement>(mut call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let x = call.input(0)?;
    let mut y = call.output(0)?;
    if x.elements() == y.elements() {
        return same_elements(&mut call);
    }
    expand::<T>(
        &call.launch.exec,
        bits(x),
        x.shape(),
        write_bits(&mut y)?,
        call.out_shape(0),
    )?;
    one(y)
}

fn tiled<T: MovedElement>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let x = call.input(0)?;
    let repeats = call.ints(1)?.unwrap_or_default();
    let repeats: Option<Vec<usize>> = repeats.iter().map(|r| usize::try_from(*r).ok()).collect();
    let repeats = repeats.ok_or_else(|| {
        KernelFailure::values("a tensor cannot be repeated a negative number of times")
    })?;
    let mut y = call.output(0)?;
    if y.elements() > 0 {
        tile::<T>(
            &call.launch.exec,
            bits(x),
            x.shape(),
            &repeats,
            write_bits(&mut y)?,
        )?;
    }
    one(y)
}

/// Largest padding; more is refused, so that positions fit into an i64.
const MAX_PAD: i64 = 1 << 40;

fn padded<T: MovedElement>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let x = call.input(0)?;
    let rank = x.shape().len();
    let pads = call.ints(1)?.unwrap_or_default();
    let axes = match call.ints(3)? {
        Some(axes) => normalize_axes(&axes, rank)?,
        None => (0..rank).collect(),
    };
    if let Some(pad) = pads.iter().find(|p| !(-MAX_PAD..=MAX_PAD).contains(*p)) {
        return Err(KernelFailure::values(format!(
            "padding of {pad} is too large"
        )));
    }
    let mut begins = vec![0; rank];
    for (axis, pad) in axes.iter().zip(&pads) {
        begins[*axis] = *pad;
    }
    let mode = match attrs::PadMode::new(call.attrs)? {
        attrs::PadMode::Reflect => PadMode::Reflect,
        attrs::PadMode::Edge => PadMode::Edge,
        attrs::PadMode::Wrap => PadMode::Wrap,
        attrs::PadMode::Constant => PadMode::Constant(match call.optional(2).map(bits::<T>) {
            None => T::default(),
            Some([value]) => *value,
            Some(_) => return Err(KernelFailure::values("'constant_value' must be a scalar")),
        }),
    };
    let mut y = call.output(0)?;
    pad::<T>(
        &call.launch.exec,
        mode,
        bits(x),
        x.shape(),
        &begins,
        write_bits(&mut y)?,
        call.out_shape(0),
    )?;
    one(y)
}

fn triangle<T: MovedElement>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let x = call.input(0)?;
    let [.., rows, columns] = x.shape() else {
        return Err(KernelFailure::values(format!("{x:?} is no matrix")));
    };
    let k = match call.ints(1)?.as_deref() {
        None => 0,
        Some([k]) => *k,
        Some(_) => return Err(KernelFailure::values("the diagonal must be a scalar")),
    };
    let mut y = call.output(0)?;
    let upper = flag(call.attrs, "upper", true);
    trilu::<T>(
        &call.launch.exec,
        upper,
        k,
        bits(x),
        *rows,
        *columns,
        write_bits(&mut y)?,
    )?;
    one(y)
}

/// The shape `[n, c, h, w]` of an operand, and the block size of the attributes.
fn blocks(call: &OpLaunch<'_, '_>, x: &Tensor) -> Result<([usize; 4], usize), KernelFailure> {
    let shape = <[usize; 4]>::try_from(x.shape());
    let shape = shape.map_err(|_| KernelFailure::values(format!("{x:?} must have four axes")))?;
    let block = usize::try_from(call.attrs.int("blocksize", 0))
        .ok()
        .filter(|b| (1..=0xffff).contains(b));
    Ok((
        shape,
        block.ok_or_else(|| KernelFailure::values("'blocksize' must be above zero"))?,
    ))
}

fn to_space<T: MovedElement>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let x = call.input(0)?;
    let (shape, block) = blocks(&call, x)?;
    let columns_first = call.attrs.str("mode", "DCR") == "CRD";
    let order = if columns_first {
        BlockOrder::ColumnRowDepth
    } else {
        BlockOrder::DepthColumnRow
    };
    let mut y = call.output(0)?;
    depth_to_space::<T>(
        &call.launch.exec,
        bits(x),
        shape,
        block,
        order,
        write_bits(&mut y)?,
    )?;
    one(y)
}

fn to_depth<T: MovedElement>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let x = call.input(0)?;
    let (shape, block) = blocks(&call, x)?;
    let mut y = call.output(0)?;
    let out = write_bits(&mut y)?;
    if call.attrs.str("mode", "DCR") == "CRD" {
        let [n, c, h, w] = shape;
        if !h.is_multiple_of(block) || !w.is_multiple_of(block) {
            return Err(KernelFailure::values(format!(
                "{x:?} does not fall into blocks of {block}"
            )));
        }
        let split = [n, c, h / block, block, w / block, block];
        transpose::<T>(&call.launch.exec, bits(x), &split, &[0, 1, 3, 5, 2, 4], out)?;
    } else {
        space_to_depth::<T>(&call.launch.exec, bits(x), shape, block, out)?;
    }
    one(y)
}

fn reversed<T: MovedElement>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let x = call.input(0)?;
    let time_first = attrs::normalize_axis(call.attrs.int("time_axis", 0), x.shape().len())? == 0;
    let mut y = call.output(0)?;
    reverse_sequence::<T>(
        &call.launch.exec,
        bits(x),
        x.shape(),
        time_first,
        call.slice(1)?,
        write_bits(&mut y)?,
    )?;
    one(y)
}

#[cfg(test)]
mod tests {
    use convoke_common::Code;
    use convoke_graph::Tensor;
    use convoke_graph::graph::{Attr, Attrs};

    use crate::cpu::testing::{counting, launch, launch_in, one, pool_of, vec1};

    fn ints(name: &str, v: &[i64]) -> Attrs {
        Attrs::default().with(name, Attr::Ints(v.into()))
    }

    fn int(name: &str, v: i64) -> Attrs {
        Attrs::default().with(name, Attr::Int(v))
    }

    #[test]
    fn moving_only_ones_copies_nothing() {
        let x = counting(&[2, 1, 3]);
        let y = one("Transpose", ints("perm", &[1, 0, 2]), &[&x]).unwrap();
        assert_eq!(
            (y.shape(), y.bytes().as_ptr()),
            (&[1usize, 2, 3][..], x.bytes().as_ptr())
        );
        let y = one("Transpose", Attrs::default(), &[&counting(&[2, 2])]).unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap(), [0.0, 2.0, 1.0, 3.0]);
    }

    #[test]
    fn what_is_split_joins_again() {
        let x = counting(&[2, 5]);
        let parts = launch(
            "Split",
            int("axis", 1),
            vec![Some(x.clone()), Some(vec1(&[1i64, 0, 4]))],
            3,
        )
        .unwrap();
        assert_eq!(
            parts[2].as_slice::<f32>().unwrap(),
            [1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0]
        );
        let all: Vec<&Tensor> = parts.iter().collect();
        assert_eq!(one("Concat", int("axis", -1), &all).unwrap(), x);
    }

    #[test]
    fn what_is_appended_to_moves_as_often_as_its_length_doubles() {
        let grows = int("axis", 0).with("grows", Attr::Int(1));
        let pool = pool_of(1 << 30);
        let append = |x: Tensor, more: &Tensor| {
            let inputs = vec![Some(x), Some(more.clone())];
            launch_in(&pool, "Concat", grows.clone(), inputs, 1)
                .unwrap()
                .remove(0)
        };
        let row = counting(&[1, 40]);
        let (mut x, mut moved) = (counting(&[0, 40]), 0);
        for n in 1..=2000usize {
            let (place, len) = (x.bytes().as_ptr(), x.byte_len());
            x = append(x, &row);
            assert_eq!(x.shape(), [n, 40]);
            moved += if x.bytes().as_ptr() == place { 0 } else { len };
            // All that was allocated is reserved, and that is at most half as much again.
            let (held, most) = (pool.live_bytes(), x.byte_len() as u64 * 3 / 2);
            assert!(
                held >= x.byte_len() as u64 && held <= most.max(64 << 10),
                "{held}"
            );
        }
        assert!(moved <= 3 * x.byte_len(), "{moved} of {}", x.byte_len());
        let mut rows = x.as_slice::<f32>().unwrap().chunks(40);
        assert!(rows.all(|own| own == row.as_slice::<f32>().unwrap()));
        // A tensor that somebody else holds stays as it is.
        let held = x.clone();
        let longer = append(x, &counting(&[2, 40]));
        assert_eq!(
            (held.shape(), longer.shape()),
            (&[2000, 40][..], &[2002, 40][..])
        );
        assert_eq!(longer.bytes()[..held.byte_len()], *held.bytes());
    }

    #[test]
    fn what_is_appended_to_has_no_room_where_memory_has_none() {
        let grows = int("axis", 0).with("grows", Attr::Int(1));
        let pool = pool_of(100 << 10);
        let (x, more) = (counting(&[20 << 10]), counting(&[2 << 10]));
        let inputs = vec![Some(x), Some(more.clone())];
        let y = launch_in(&pool, "Concat", grows.clone(), inputs, 1)
            .unwrap()
            .remove(0);
        assert_eq!(pool.live_bytes(), 88 << 10);
        let y = y.grown(&[23 << 10]).unwrap_err();
        // A tensor of its length fits no more beside it.
        let inputs = vec![Some(y), Some(counting(&[8 << 10]))];
        assert!(launch_in(&pool, "Concat", grows, inputs, 1).is_err());
    }

    #[test]
    fn slices_clamp_and_go_backwards() {
        let x = vec1(&[0i32, 1, 2, 3, 4]);
        let check = |start: i64, end: i64, step: i64, want: &[i32]| {
            let (start, end, step) = (vec1(&[start]), vec1(&[end]), vec1(&[step]));
            let y = one(
                "Slice",
                Attrs::default(),
                &[&x, &start, &end, &vec1(&[0i64]), &step],
            );
            assert_eq!(y.unwrap(), vec1(want));
        };
        check(1, i64::MAX, 2, &[1, 3]);
        check(-1, i64::MIN, -2, &[4, 2, 0]);
        check(3, 1, 1, &[]);
        check(2, 3, i64::MAX, &[2]);
        check(2, i64::MIN, i64::MIN, &[2]);
        let zero = [
            &x,
            &vec1(&[0i64]),
            &vec1(&[1i64]),
            &vec1(&[0i64]),
            &vec1(&[0i64]),
        ];
        let e = one("Slice", Attrs::default(), &zero).unwrap_err();
        assert_eq!(
            (e.code, e.message.contains("step zero")),
            (Code::KernelFailed, true)
        );
    }

    #[test]
    fn padding_in_every_mode() {
        let x = vec1(&[1i16, 2, 3]);
        let check = |mode: &str, pads: [i64; 2], want: &[i16]| {
            let mode = Attrs::default().with("mode", Attr::Str(mode.into()));
            assert_eq!(one("Pad", mode, &[&x, &vec1(&pads)]).unwrap(), vec1(want));
        };
        check("constant", [2, -1], &[0, 0, 1, 2]);
        check("reflect", [2, 0], &[3, 2, 1, 2, 3]);
        check("edge", [1, 1], &[1, 1, 2, 3, 3]);
        check("wrap", [1, 1], &[3, 1, 2, 3, 1]);
        let huge = [i64::MAX, -i64::MAX];
        assert!(one("Pad", Attrs::default(), &[&x, &vec1(&huge)]).is_err());
    }

    #[test]
    fn repeats_blocks_and_triangles() {
        let y = one(
            "Tile",
            Attrs::default(),
            &[&vec1(&[1u8, 2]), &vec1(&[2i64])],
        )
        .unwrap();
        assert_eq!(y, vec1(&[1u8, 2, 1, 2]));
        assert!(one("Tile", Attrs::default(), &[&vec1(&[1u8]), &vec1(&[-1i64])]).is_err());
        let y = one(
            "Expand",
            Attrs::default(),
            &[&vec1(&[7f64]), &vec1(&[2i64, 1])],
        )
        .unwrap();
        assert_eq!(y, Tensor::from_slice(&[2, 1], &[7f64, 7.0]).unwrap());
        let x = counting(&[1, 4, 2, 2]);
        let there = one("DepthToSpace", int("blocksize", 2), &[&x]).unwrap();
        assert_eq!(
            one("SpaceToDepth", int("blocksize", 2), &[&there]).unwrap(),
            x
        );
        let crd = int("blocksize", 2).with("mode", Attr::Str("CRD".into()));
        let there = one("DepthToSpace", crd.clone(), &[&x]).unwrap();
        assert_eq!(one("SpaceToDepth", crd, &[&there]).unwrap(), x);
        let y = one("Trilu", int("upper", 0), &[&counting(&[2, 2])]).unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap(), [0.0, 0.0, 2.0, 3.0]);
    }

    #[test]
    fn sequences_reverse_within_their_length() {
        let x = counting(&[3, 2]);
        let y = one(
            "ReverseSequence",
            Attrs::default(),
            &[&x, &vec1(&[3i64, 2])],
        )
        .unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap(), [4.0, 3.0, 2.0, 1.0, 0.0, 5.0]);
        assert!(
            one(
                "ReverseSequence",
                Attrs::default(),
                &[&x, &vec1(&[4i64, 0])]
            )
            .is_err()
        );
    }
}
