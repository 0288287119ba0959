//! Ops that move elements and change none: views of the same memory, copies between grids, and gathering by indices.

use convoke_common::error::Result;
use convoke_graph::DType;
use convoke_graph::graph::Attrs;
use convoke_graph::ops::attrs::{axis, slice_range, transpose_perm};
use convoke_graph::ops::{IndexOp, MovementOp, ShapeOp, SliceOp, UnaryOp, normalize_axis};
use convoke_worker::device::DeviceOp;

use crate::kernels::args::{Arguments, Grid, broadcast, dense, dims};
use crate::kernels::launch::{
    Call, LaunchSignature, Place, Template, Work, blocks_for, count, dtype_of, misfit, op_error,
};
use crate::kernels::source::{moved_as, source, type_name};

/// A copy from one grid into another.
const COPY_TEXT: &str = r"
KERNEL(0) {
  for (i64 i = first_element(); i < a.elements; i += element_step()) {
    i64 at[1];
    i64 out = places<1>(a, i, at);
    ((X*)a.output)[out] = ((const X*)a.inputs[0])[at[0]];
  }
}
";

/// The slices of operand 0 `[.., sizes[0], sizes[2]]` at the indices of operand 1, of which there are `sizes[1]`.
const GATHER_TEXT: &str = r"
KERNEL(0) {
  i64 axis = a.sizes[0], chosen = a.sizes[1], inner = a.sizes[2];
  for (i64 i = first_element(); i < a.elements; i += element_step()) {
    i64 slice = i / inner;
    i64 outer = slice / chosen;
    i64 index = (i64)((const I*)a.inputs[1])[slice - outer * chosen];
    if (index < 0) index += axis;
    if (index < 0 || index >= axis) {
      *a.fault = 1;
      continue;
    }
    ((X*)a.output)[i] = ((const X*)a.inputs[0])[(outer * axis + index) * inner + (i - slice * inner)];
  }
}
";

/// A result that is the operand under another shape.
struct View;

impl Template for View {
    fn source(&self) -> Option<String> {
        None
    }

    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work> {
        let (_, shape) = planned.device(0)?;
        match count(shape) == count(planned.output(0)?) {
            true => Ok(Work::Share),
            false => Err(misfit("a view has another number of elements")),
        }
    }
}

/// The kernel of an op that gives its operand another shape.
pub(super) fn view(shape: ShapeOp, _: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    match shape {
        ShapeOp::Reshape | ShapeOp::Flatten | ShapeOp::Squeeze | ShapeOp::Unsqueeze => {
            Some(Box::new(View))
        }
        ShapeOp::Constant
        | ShapeOp::Shape
        | ShapeOp::Size
        | ShapeOp::ConstantOfShape
        | ShapeOp::Range
        | ShapeOp::EyeLike => None,
    }
}

/// The kernel of an op that gives its operand.
pub(super) fn identity(unary: UnaryOp, _: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    matches!(unary, UnaryOp::Identity | UnaryOp::Dropout).then(|| Box::new(View) as _)
}

/// How the grids of a copy follow from shapes, attributes and host operands.
enum Move {
    Transpose,
    Expand,
    Slice,
    Split,
    Concat,
}

/// A kernel that copies between grids.
struct Copies {
    bits: &'static str,
    attrs: Attrs,
    moves: Move,
}

fn copies(op: &DeviceOp<'_>, moves: Move) -> Option<Box<dyn Template>> {
    let dtype = dtype_of(op, 0)?;
    if op
        .operands
        .iter()
        .any(|d| matches!(moves, Move::Concat) && *d != Some(dtype))
    {
        return None;
    }
    Some(Box::new(Copies {
        bits: moved_as(dtype)?,
        attrs: op.attrs.clone(),
        moves,
    }))
}

/// The kernel of an op that permutes axes.
pub(super) fn transposition(moves: MovementOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    match moves {
        MovementOp::Transpose => copies(op, Move::Transpose),
        MovementOp::Trilu
        | MovementOp::DepthToSpace
        | MovementOp::SpaceToDepth
        | MovementOp::ReverseSequence => None,
    }
}

/// The kernel of an op that cuts axes or puts tensors together.
pub(super) fn slices(slice: SliceOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    match slice {
        SliceOp::Slice => copies(op, Move::Slice),
        SliceOp::Split => copies(op, Move::Split),
        SliceOp::Concat => copies(op, Move::Concat),
        SliceOp::Expand => copies(op, Move::Expand),
        SliceOp::Pad | SliceOp::Tile => None,
    }
}

/// A copy of `shape` elements from operand `from` to result `to`, each with its strides and first element.
struct StridedCopy {
    shape: Vec<i64>,
    from: (usize, i64, Vec<i64>),
    to: (usize, i64, Vec<i64>),
}

impl StridedCopy {
    fn call(self) -> Call {
        let elements: i64 = self.shape.iter().product();
        let mut arguments = Arguments::of(elements as usize);
        arguments.set_grid(&Grid {
            dims: self.shape,
            out: self.to.2,
            operands: vec![self.from.2],
        });
        let mut call = Call::of(blocks_for(elements as usize), arguments, 0);
        let place = |tensor, elements| Place { tensor, elements };
        call.inputs[0] = Some(place(self.from.0, self.from.1));
        call.output = place(self.to.0, self.to.1);
        call
    }
}

impl Copies {
    /// One copy that fills result 0.
    fn filled(&self, planned: &LaunchSignature<'_>) -> Result<StridedCopy> {
        let (_, shape) = planned.device(0)?;
        let out = planned.output(0)?;
        let own = dense(shape);
        let (first, strides) = match self.moves {
            Move::Transpose => {
                let perm = transpose_perm(&self.attrs, shape.len()).map_err(op_error)?;
                (0, perm.iter().map(|d| own[*d]).collect())
            }
            Move::Slice => slice_strides(planned, shape)?,
            _ => {
                let strides = broadcast(shape, out);
                (
                    0,
                    strides
                        .ok_or_else(|| misfit(format!("{shape:?} is not broadcast to {out:?}")))?,
                )
            }
        };
        Ok(StridedCopy {
            shape: dims(out),
            from: (0, first, strides),
            to: (0, 0, dense(out)),
        })
    }

    /// A copy for each part: of the operand into its result, or of each operand into the result.
    fn parts(&self, planned: &LaunchSignature<'_>) -> Result<Vec<StridedCopy>> {
        let splits = matches!(self.moves, Move::Split);
        let whole = match splits {
            true => planned.device(0)?.1,
            false => planned.output(0)?,
        };
        let axis = axis(&self.attrs, 0, whole.len()).map_err(op_error)?;
        let strides = dense(whole);
        let number = match splits {
            true => planned.outputs.len(),
            false => planned.operands.len(),
        };
        let (mut moved, mut first) = (vec![], 0);
        for i in 0..number {
            let part = match splits {
                true => planned.output(i)?,
                false => planned.device(i)?.1,
            };
            let fits = part.len() == whole.len() && first + part[axis] <= whole[axis];
            if !fits {
                return Err(misfit(format!("{part:?} is no part of {whole:?}")));
            }
            let at = first as i64 * strides[axis];
            let (in_part, in_whole) = ((i, 0, dense(part)), (0, at, strides.clone()));
            let (from, to) = match splits {
                true => (in_whole, in_part),
                false => (in_part, in_whole),
            };
            moved.push(StridedCopy {
                shape: dims(part),
                from,
                to,
            });
            first += part[axis];
        }
        Ok(moved)
    }
}

/// The first element of a slice, and its strides.
fn slice_strides(planned: &LaunchSignature<'_>, shape: &[usize]) -> Result<(i64, Vec<i64>)> {
    let (starts, ends) = (
        planned.ints(1)?.unwrap_or_default(),
        planned.ints(2)?.unwrap_or_default(),
    );
    let axes = planned
        .ints(3)?
        .unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = planned.ints(4)?.unwrap_or_else(|| vec![1; starts.len()]);
    let mut strides = dense(shape);
    let mut first = 0;
    for (((start, end), axis), step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
        let d = normalize_axis(*axis, shape.len()).map_err(op_error)?;
        if *step == 0 {
            return Err(misfit("a step of a slice is 0"));
        }
        let (begin, _) = slice_range(shape[d] as i64, *start, *end, *step);
        first += begin * strides[d];
        strides[d] *= step;
    }
    Ok((first, strides))
}

impl Template for Copies {
    fn source(&self) -> Option<String> {
        Some(source(&[("X", self.bits)], COPY_TEXT))
    }

    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work> {
        let moved = match self.moves {
            Move::Split | Move::Concat => self.parts(planned)?,
            Move::Transpose | Move::Expand | Move::Slice => vec![self.filled(planned)?],
        };
        let some = moved.into_iter().filter(|m| !m.shape.contains(&0));
        Ok(Work::Calls(some.map(StridedCopy::call).collect()))
    }
}

/// Slices at the indices of an operand.
struct Gather {
    bits: &'static str,
    index: DType,
    axis: i64,
}

/// The kernel of an op that gathers.
pub(super) fn gather(index: IndexOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    let at = dtype_of(op, 1).filter(|d| matches!(d, DType::I32 | DType::I64))?;
    let gathers = index == IndexOp::Gather;
    let bits = moved_as(dtype_of(op, 0)?)?;
    gathers.then(|| {
        Box::new(Gather {
            bits,
            index: at,
            axis: op.attrs.int("axis", 0),
        }) as _
    })
}

impl Template for Gather {
    fn source(&self) -> Option<String> {
        let definitions = [("X", self.bits), ("I", type_name(self.index)?)];
        Some(source(&definitions, GATHER_TEXT))
    }

    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work> {
        let ((_, data), (_, indices)) = (planned.device(0)?, planned.device(1)?);
        let axis = normalize_axis(self.axis, data.len()).map_err(op_error)?;
        let elements = count(planned.output(0)?);
        if elements == 0 {
            return Ok(Work::none());
        }
        let mut arguments = Arguments::of(elements);
        let sizes = [data[axis], count(indices), count(&data[axis + 1..])];
        for (to, size) in arguments.sizes.iter_mut().zip(sizes) {
            *to = size as i64;
        }
        let call = Call::of(blocks_for(elements), arguments, 2);
        Ok(Work::one(Call {
            faults: true,
            ..call
        }))
    }
}
