//! Attributes that became operands in later operator sets, and attributes that concern training.

use convoke_graph::Tensor;
use convoke_graph::graph::{Attr, Attrs, ValueId};
use half::{bf16, f16};

use super::super::builder::Builder;
use super::{ImportedNode, Outputs, unsupported};
use convoke_graph::DType;

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
        let open = open.filter(|(_, d)| d.as_const().is_none());
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

/// Imports BatchNormalization with given statistics per channel. Training mode and statistics per element are
/// unsupported.
pub(super) fn batch_norm(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if c.take_int("training_mode")?.unwrap_or(0) != 0 {
        return Err(unsupported("training mode"));
    }
    if c.take_int("spatial")?.unwrap_or(1) != 1 {
        return Err(unsupported("statistics per element"));
    }
    c.emit(b)
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

/// Turns the attribute `axis` of DFT into an operand.
pub(super) fn dft(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let axis = c.take_int("axis")?.unwrap_or(1);
    let id = b.literal(&c.sub("axis"), Tensor::scalar(axis));
    c.set(2, Some(id));
    c.emit(b)
}

/// Imports Dropout, which outside of training is the identity with a mask of ones.
pub(super) fn dropout(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if let Some(mode) = c.input(2)
        && b.elements(mode).as_deref() != Some(&[0])
    {
        return Err(unsupported("training mode"));
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

/// A scalar of a float dtype; `None` for other dtypes.
pub(super) fn float(dtype: DType, v: f32) -> Option<Tensor> {
    Some(match dtype {
        DType::F32 => Tensor::scalar(v),
        DType::F64 => Tensor::scalar(f64::from(v)),
        DType::F16 => Tensor::scalar(f16::from_f32(v)),
        DType::BF16 => Tensor::scalar(bf16::from_f32(v)),
        _ => return None,
    })
}

/// Adds a literal scalar of the dtype of the first operand, in place of attribute `attr`.
pub(super) fn scalar(
    b: &mut Builder,
    c: &ImportedNode,
    attr: &str,
    v: f32,
) -> Result<ValueId, super::ImportFailure> {
    let dtype = c.dtype(b, 0);
    let t = float(dtype, v)
        .ok_or_else(|| unsupported(format!("its form of opset {} on {dtype}", c.opset)))?;
    Ok(b.literal(&c.sub(attr), t))
}
