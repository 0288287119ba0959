//! Attributes that became operands in later operator sets, and attributes that concern training.

use convoke_graph::Tensor;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::builder::Builder;
use super::node::{
    Expansion, ImportFailure, ImportedNode, Outputs, axis_of, exact, float, is_half, to_dtype,
    unsupported,
};
use convoke_graph::{DType, Dim};

/// Turns the attribute `axes` of Unsqueeze, Reduce* and older ops into an operand.
pub(super) fn axes(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if let Some(axes) = c.take_ints("axes")? {
        // An empty list had the same meaning as an absent attribute.
        if !axes.is_empty() {
            let id = b.ints(&c.sub("axes"), &axes)?;
            c.set(1, Some(id));
        }
    }
    c.emit(b)
}

/// Turns a scalar axis of Squeeze and Unsqueeze into a list. ONNX forbids a scalar, but other runtimes accept it.
pub(super) fn scalar_axes(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if let Some(axes) = c.input(1)
        && b.ty(axes).is_some_and(|t| t.shape.is_empty())
        && let Some(v) = b.elements(axes)
    {
        let id = b.ints(&c.sub("axes"), &v)?;
        c.set(1, Some(id));
    }
    c.emit(b)
}

/// Names the axes of a Squeeze, and where it names none itself, those that it keeps although they may have the length 1 in a
/// run: the rank of its result is decided before.
pub(super) fn squeeze(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let unnamed = c.input(1).is_none() && c.attrs.ints("axes").is_none_or(|axes| axes.is_empty());
    if unnamed && let Some(ty) = c.input(0).and_then(|x| b.ty(x)) {
        let open = ty.shape.iter().enumerate();
        // An axis that has one element or none, such as the last of a sequence, goes.
        let open = open.filter(|(_, d)| d.as_const().is_none() && !d.is_one_or_none());
        let kept: Vec<i64> = open.map(|(axis, _)| axis as i64).collect();
        if !kept.is_empty() {
            c.attrs = c.attrs.with("kept", Attr::Ints(kept));
        }
    }
    match c.opset < 13 {
        true => axes(b, c),
        false => scalar_axes(b, c),
    }
}

/// Turns the attribute `split` of Split into an operand, and adds the number of parts where the sizes are left out.
pub(super) fn split(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if let Some(sizes) = c.take_ints("split")? {
        let id = b.ints(&c.sub("split"), &sizes)?;
        c.set(1, Some(id));
    }
    // In operator set 1 an operand of lengths has the dtype of the first one.
    if c.opset < 2
        && let Some(lengths) = c.input(1)
    {
        let lengths = Expansion { b, c: &c }.cast(lengths, DType::I64)?;
        c.set(1, Some(lengths));
    }
    if c.input(1).is_none() && c.attrs.get("num_outputs").is_none() {
        let parts = c.outputs.len() as i64;
        c.attrs = c.attrs.with("num_outputs", Attr::Int(parts));
    }
    c.emit(b)
}

/// Turns the attributes `pads` and `value` of Pad into operands.
pub(super) fn pad(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    // `paddings` is the name of operator set 1, which some exporters still write.
    let pads = c.take_ints("pads")?.or(c.take_ints("paddings")?);
    let pads = pads.ok_or_else(|| c.error("attribute 'pads' is missing"))?;
    let id = b.ints(&c.sub("pads"), &pads)?;
    c.set(1, Some(id));
    if let Some(value) = c.take_float("value")?.filter(|v| v.to_bits() != 0) {
        let id = scalar(b, &c, "value", value)?;
        c.set(2, Some(id));
    }
    c.emit(b)
}

/// Turns the attributes `starts`, `ends` and `axes` of Slice into operands.
pub(super) fn slice(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    for (i, attr) in [(1, "starts"), (2, "ends"), (3, "axes")] {
        match c.take_ints(attr)? {
            Some(v) => {
                let id = b.ints(&c.sub(attr), &v)?;
                c.set(i, Some(id));
            }
            None if attr == "axes" => {}
            None => return Err(c.error(format!("attribute '{attr}' is missing")).into()),
        }
    }
    c.emit(b)
}

/// Turns the attributes `min` and `max` of Clip into operands.
pub(super) fn clip(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    for (i, attr) in [(1, "min"), (2, "max")] {
        if let Some(v) = c.take_float(attr)? {
            let id = scalar(b, &c, attr, v)?;
            c.set(i, Some(id));
        }
    }
    c.emit(b)
}

/// Turns the attribute `k` of TopK into an operand.
pub(super) fn top_k(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let k = c
        .take_int("k")?
        .ok_or_else(|| c.error("attribute 'k' is missing"))?;
    let id = b.ints(&c.sub("k"), &[k])?;
    c.set(1, Some(id));
    c.emit(b)
}

/// Imports BatchNormalization with given statistics. Training mode is unsupported.
pub(super) fn batch_norm(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if c.take_int("training_mode")?.unwrap_or(0) != 0 {
        return Err(unsupported("training mode"));
    }
    if !c.take_flag("spatial", true)? && has_statistics_per_element(b, &c)? {
        return of_elements(b, c);
    }
    let x_type = c.input(0).and_then(|x| b.ty(x));
    if x_type.is_some_and(|x| x.shape.len() == 1) {
        return of_one_channel(b, c);
    }
    c.emit(b)
}

/// Whether the statistics that a BatchNormalization is given are those of each element of all axes but the first one, and not
/// those of each channel. Before operator set 7 they had one axis either way.
fn has_statistics_per_element(b: &Builder, c: &ImportedNode) -> Result<bool, ImportFailure> {
    let mut shapes = Vec::with_capacity(5);
    for i in 0..5 {
        let ty = b.ty(c.need(i)?).ok_or(ImportFailure::Consequence)?;
        shapes.push(ty.shape.as_slice());
    }
    let [Some(x), Some(scale)] = [shapes.first(), shapes.get(1)] else {
        return Ok(false);
    };
    // Each element of a row is a channel of its own.
    if x.len() <= 2 || c.opset < 7 && scale.len() == 1 {
        return Ok(false);
    }
    let fits = |of: &&[Dim]| {
        let differs = |(a, b): (&Dim, &Dim)| matches!((a.as_const(), b.as_const()), (Some(a), Some(b)) if a != b);
        of.len() + 1 == x.len() && !of.iter().zip(&x[1..]).any(differs)
    };
    match shapes.iter().skip(1).find(|of| !fits(of)) {
        None => Ok(true),
        Some(of) => {
            let message =
                format!("statistics of shape {of:?} are not those of each element of {x:?}");
            Err(c.error(message).into())
        }
    }
}

/// Imports BatchNormalization with statistics per element: as many channels as an entry of the batch has elements.
fn of_elements(b: &mut Builder, c: ImportedNode) -> Outputs {
    let x = c.need(0)?;
    let mut e = Expansion { b, c: &c };
    let mut operands = vec![e.op("Flatten", axis_of(1), &[x])?];
    for i in 1..5 {
        operands.push(e.reshaped(c.need(i)?, &[-1])?);
    }
    let y = e.op("BatchNormalization", c.attrs.clone(), &operands)?;
    let shape = e.plain("Shape", &[x])?;
    c.finish(b, "Reshape", exact(), vec![Some(y), Some(shape)])
}

/// Imports BatchNormalization of elements that all belong to one channel.
fn of_one_channel(b: &mut Builder, c: ImportedNode) -> Outputs {
    let mut operands = Vec::with_capacity(5);
    for i in 0..5 {
        operands.push(c.need(i)?);
    }
    let mut e = Expansion { b, c: &c };
    let axes = e.ints("axes", &[1])?;
    operands[0] = e.plain("Unsqueeze", &[operands[0], axes])?;
    let y = e.op("BatchNormalization", c.attrs.clone(), &operands)?;
    c.finish(b, "Squeeze", Attrs::default(), vec![Some(y), Some(axes)])
}

/// Imports a recurrent op without the attribute of the first operator set that says whether the first output is
/// computed. The default activations of an RNN, which tools write out, name one for a second direction.
pub(super) fn recurrent(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    c.take_int("output_sequence")?;
    if c.op == "RNN"
        && c.attrs.str("direction", "forward") != "bidirectional"
        && let Some(Attr::Strs(names)) = c.attrs.0.get_mut("activations")
        && names.len() == 2
        && names.iter().all(|name| &**name == "Tanh")
    {
        names.truncate(1);
    }
    c.emit(b)
}

/// Imports an op whose operand may be narrow, on f32, which has all numbers of the narrow floats, infinities and NaN.
pub(super) fn widened(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if c.dtype(b, 0).is_narrow() {
        let x = c.need(0)?;
        let to = Attrs::default().with("to", Attr::DType(DType::F32));
        let x = c.before(b, "Cast", to, vec![Some(x)])?;
        c.set(0, Some(x));
    }
    c.emit(b)
}

/// Imports Range, whose attribute of operator set 27 says in which dtype halves are computed.
pub(super) fn range(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    const F32: i64 = 1;
    const F64: i64 = 11;
    let stash = c.take_int("stash_type")?.unwrap_or(F32);
    let dtype = c.dtype(b, 0);
    match stash {
        // Other dtypes are computed in themselves, whatever the attribute says.
        _ if !is_half(dtype) => c.emit(b),
        F32 => c.emit(b),
        F64 => {
            let mut e = Expansion { b, c: &c };
            let mut wide = Vec::with_capacity(3);
            for i in 0..3 {
                wide.push(e.cast(c.need(i)?, DType::F64)?);
            }
            let y = e.plain("Range", &wide)?;
            c.finish(b, "Cast", to_dtype(dtype), vec![Some(y)])
        }
        other => Err(unsupported(format!(
            "attribute 'stash_type' is {other}, where ONNX has 1 (f32) and 11 (f64)"
        ))),
    }
}

/// Imports Col2Im. A bool of an image says whether any block that covers it has one there, which its count in i32 says, too.
pub(super) fn col2im(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if c.dtype(b, 0) != DType::Bool {
        return c.emit(b);
    }
    let attrs = std::mem::take(&mut c.attrs);
    let x = c.need(0)?;
    let counted = Expansion { b, c: &c }.cast(x, DType::I32)?;
    c.set(0, Some(counted));
    let y = c.before(b, "Col2Im", attrs, c.inputs.clone())?;
    let to = Attrs::default().with("to", Attr::DType(DType::Bool));
    c.finish(b, "Cast", to, vec![Some(y)])
}

/// Turns the attribute `axis` of DFT into an operand.
pub(super) fn dft(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let axis = c.take_int("axis")?.unwrap_or(1);
    let id = b.literal(&c.sub("axis"), Tensor::scalar(axis));
    c.set(2, Some(id));
    c.emit(b)
}

/// Imports Dropout, which outside of training, and where nothing is dropped, is the identity with a mask of ones.
pub(super) fn dropout(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if let Some(mode) = c.input(2)
        && b.elements(mode).as_deref() != Some(&[0])
        && !c.input(1).is_some_and(|ratio| b.is_zero(ratio))
    {
        return Err(unsupported(
            "training mode, with a ratio that is not known to be 0: export the model for inference",
        ));
    }
    let x = c.need(0)?;
    let mask = (c.outputs.len() > 1).then(|| c.outputs.split_off(1));
    let mask = match mask {
        None => None,
        // A bool mask came with operator set 10; before that it had the operand's dtype.
        Some(names) => {
            let dtype = if c.opset < 10 {
                c.dtype(b, 0)
            } else {
                DType::Bool
            };
            let one = one(dtype).ok_or_else(|| unsupported(format!("a mask of {dtype}")))?;
            let shape = c.before(b, "Shape", Attrs::default(), vec![Some(x)])?;
            let attrs = Attrs::default().with("value", Attr::Tensor(one));
            let name = c.sub("ConstantOfShape");
            b.emit(
                "ConstantOfShape",
                &name,
                attrs,
                vec![Some(shape)],
                &names[..1],
            )?
            .first()
            .copied()
        }
    };
    let mut out = c.finish(b, "Identity", Attrs::default(), vec![Some(x)])?;
    out.extend(mask);
    Ok(out)
}

/// The number 1 as a tensor of one element.
fn one(dtype: DType) -> Option<Tensor> {
    match dtype {
        DType::Bool => Tensor::from_bools(&[1], &[true]).ok(),
        _ => float(dtype, 1.0)?.reshape(&[1]),
    }
}

/// Adds a literal scalar of the dtype of the first operand, in place of attribute `attr`.
pub(super) fn scalar(
    b: &mut Builder,
    c: &ImportedNode,
    attr: &str,
    v: f32,
) -> Result<ValueId, ImportFailure> {
    let dtype = c.dtype(b, 0);
    let t = float(dtype, v)
        .ok_or_else(|| unsupported(format!("its form of opset {} on {dtype}", c.opset)))?;
    Ok(b.literal(&c.sub(attr), t))
}
