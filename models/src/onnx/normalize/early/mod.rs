//! Forms of ops before operator set 7: operands that broadcast along a named axis, attributes that became operands, and hints
//! that never changed a result.

pub(super) mod experimental;

use convoke_graph::graph::{Attr, ValueId};

use super::super::builder::Builder;
use super::node::{Expansion, ImportFailure, ImportedNode, unsupported};

/// Brings a node of an operator set before 7 to the form of 7, as far as other rewritings do not do it.
pub(super) fn to_seven(b: &mut Builder, c: &mut ImportedNode) -> Result<(), ImportFailure> {
    // The hint said which operands a kernel might overwrite.
    c.take("consumed_inputs");
    match c.op.as_str() {
        "Add" | "Sub" | "Mul" | "Div" | "Pow" | "And" | "Or" | "Xor" | "Equal" | "Greater"
        | "Less" => broadcast(b, c),
        "BatchNormalization" => {
            // With one output the op computed as outside of training, whatever the attribute says.
            match c.take_flag("is_test", false)? || c.outputs.len() == 1 {
                true => Ok(()),
                false => Err(unsupported("training mode")),
            }
        }
        "Cast" => cast(c),
        "Concat" => {
            let axis = c.take_int("axis")?.unwrap_or(1);
            c.attrs = std::mem::take(&mut c.attrs).with("axis", Attr::Int(axis));
            Ok(())
        }
        "Dropout" => {
            let ratio = c.take_float("ratio")?.unwrap_or(0.5);
            match c.take_flag("is_test", false)? || ratio == 0.0 {
                true => Ok(()),
                false => Err(unsupported(
                    "training mode, with a ratio that is not 0: set 'is_test'",
                )),
            }
        }
        "Gemm" => {
            // Whether the third operand may broadcast; where it may not, it has the shape of the result.
            c.take("broadcast");
            Ok(())
        }
        "LpPool" if c.opset < 2 && c.attrs.get("kernel_shape").is_none() => Err(unsupported(
            "attribute 'kernel_shape' is left out, which operator set 1 allows without saying what is pooled then: set it",
        )),
        "LpPool" | "GlobalLpPool" if c.opset < 2 => {
            let p = c.take_float("p")?.unwrap_or(2.0);
            if p.fract() != 0.0 || !(1.0..=1e6).contains(&p) {
                return Err(unsupported(format!("a norm of exponent {p}")));
            }
            c.attrs = std::mem::take(&mut c.attrs).with("p", Attr::Int(p as i64));
            Ok(())
        }
        "PRelu" => slope(b, c),
        "Reshape" => {
            if let Some(shape) = c.take_ints("shape")? {
                let shape = b.ints(&c.sub("shape"), &shape)?;
                c.set(1, Some(shape));
            }
            Ok(())
        }
        "Selu" if c.opset < 6 => {
            for (attr, default) in [("alpha", 1.6732), ("gamma", 1.0507)] {
                let value = c.take_float(attr)?.unwrap_or(default);
                c.attrs = std::mem::take(&mut c.attrs).with(attr, Attr::Float(value));
            }
            Ok(())
        }
        "Tile" if c.opset < 6 => tile(b, c),
        "Upsample" => upsample(c),
        _ => Ok(()),
    }
}

/// Gives the second operand axes of length 1 behind its own, so that it lies where `axis` says: its shape is a run of dimensions
/// of the first operand's shape.
fn broadcast(b: &mut Builder, c: &mut ImportedNode) -> Result<(), ImportFailure> {
    c.take("broadcast");
    let Some(axis) = c.take_int("axis")? else {
        return Ok(());
    };
    let (x, y) = (c.need(0)?, c.need(1)?);
    let rank = |id: ValueId| b.ty(id).map(|t| t.shape.len() as i64);
    let (Some(all), Some(own)) = (rank(x), rank(y)) else {
        return Ok(());
    };
    let first = match axis {
        0.. => axis,
        _ => axis.saturating_add(all),
    };
    // A single element fits anywhere.
    if own == 0 {
        return Ok(());
    }
    if first < 0 || first > all - own {
        let msg = format!("axis {axis} does not place {own} of {all} dimensions");
        return Err(c.error(msg).into());
    }
    let behind: Vec<i64> = (own..all - first).collect();
    let y = Expansion { b, c }.unsqueezed(y, &behind)?;
    c.set(1, Some(y));
    Ok(())
}

/// Names the dtype by its code instead of its name.
fn cast(c: &mut ImportedNode) -> Result<(), ImportFailure> {
    let Some(Attr::Str(name)) = c.attrs.get("to") else {
        return Ok(());
    };
    let names = [
        "FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "STRING", "BOOL", "FLOAT16",
        "DOUBLE", "UINT32", "UINT64",
    ];
    let Some(code) = names.iter().position(|n| *n == &**name) else {
        let reason = format!("attribute 'to': {} is not supported", name.escape_debug());
        return Err(unsupported(reason));
    };
    let to = super::super::tensor::dtype(code as i32 + 1)
        .map_err(|e| unsupported(format!("attribute 'to': {e}")))?;
    c.attrs = std::mem::take(&mut c.attrs).with("to", Attr::DType(to));
    Ok(())
}

/// Places a slope per channel at the second axis.
fn slope(b: &mut Builder, c: &mut ImportedNode) -> Result<(), ImportFailure> {
    let (x, slope) = (c.need(0)?, c.need(1)?);
    let rank = |id: ValueId| b.ty(id).map(|t| t.shape.len() as i64);
    if let (Some(all @ 3..), Some(1)) = (rank(x), rank(slope))
        && !b.ty(slope).is_some_and(|t| t.shape[0].is(1))
    {
        let behind: Vec<i64> = (1..all - 1).collect();
        let slope = Expansion { b, c }.unsqueezed(slope, &behind)?;
        c.set(1, Some(slope));
    }
    Ok(())
}

/// Turns a number of copies and an axis into a number of copies for each axis.
fn tile(b: &mut Builder, c: &mut ImportedNode) -> Result<(), ImportFailure> {
    let (x, tiles, axis) = (c.need(0)?, c.need(1)?, c.need(2)?);
    let Some(rank) = b.ty(x).map(|t| t.shape.len()) else {
        return Ok(());
    };
    // Both have the dtype of the first operand, a float.
    let one = |id: ValueId| {
        let number = b.whole(id).filter(|v| *v >= 0);
        number.ok_or_else(|| {
            unsupported("a number of copies or an axis that is no whole f32 known at the load")
        })
    };
    let (tiles, axis) = (one(tiles)?, one(axis)?);
    let place = usize::try_from(axis).ok().filter(|a| *a < rank);
    let place = place.ok_or_else(|| c.error(format!("axis {axis} of {rank} dimensions")))?;
    let mut repeats = vec![1; rank];
    repeats[place] = tiles;
    let repeats = b.ints(&c.sub("repeats"), &repeats)?;
    c.inputs.truncate(1);
    c.set(1, Some(repeats));
    Ok(())
}

/// Joins the scales of height and width with those of batch and channels.
fn upsample(c: &mut ImportedNode) -> Result<(), ImportFailure> {
    let mut scales = vec![1.0, 1.0];
    for attr in ["height_scale", "width_scale"] {
        let scale = c.take_float(attr)?;
        scales.push(scale.ok_or_else(|| c.error(format!("attribute '{attr}' is missing")))?);
    }
    c.attrs = std::mem::take(&mut c.attrs).with("scales", Attr::Floats(scales));
    if c.attrs.str("mode", "nearest") == "bilinear" {
        c.attrs = std::mem::take(&mut c.attrs).with("mode", Attr::Str("linear".into()));
    }
    Ok(())
}
