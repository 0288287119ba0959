//! GroupNorm and SkipGroupNorm of diffusion models.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::super::builder::Builder;
use super::super::node::{Expansion, ImportedNode, Made, Outputs, is_half, perm_of};

/// A term of the sum with `x` [N, C, H, W]: a term with one number for each channel is given as [N, 1, 1, C].
fn with_channels_second(e: &mut Expansion<'_>, part: ValueId, x: ValueId) -> Made {
    let shape = e.shape(part)?;
    match shape.as_slice() {
        [_, rows, columns, _]
            if rows.is_one_or_none() && columns.is_one_or_none() && shape != e.shape(x)? =>
        {
            e.transposed(part, &[0, 3, 1, 2])
        }
        _ => Ok(part),
    }
}

/// Imports GroupNorm, or SkipGroupNorm, which normalises `x + skip + bias` and has that sum as its second output.
pub(super) fn group_norm(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let groups = c.take_int("groups")?;
    let groups = groups.ok_or_else(|| c.error("attribute 'groups' is missing"))?;
    let epsilon = c.take_float("epsilon")?.unwrap_or(1e-5);
    let last = c.take_flag("channels_last", true)?;
    let silu = match c.take_int("activation")?.unwrap_or(0) {
        0 => false,
        1 => true,
        _ => return Err(c.wrong("activation", "0 or 1").into()),
    };
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (mut x, scale, shift) = (c.need(0)?, c.need(1)?, c.need(2)?);
    let mut e = Expansion { b, c: &c };
    if e.shape(x)?.len() != 4 {
        return Err(c.error("X must have rank 4").into());
    }
    // Whatever has no spatial axes broadcasts along those of X.
    let spatial: &[i64] = if last { &[1, 2] } else { &[2, 3] };
    for part in [c.input(3), c.input(4)].into_iter().flatten() {
        let part = match (e.shape(part)?.len(), last) {
            (2, _) => e.unsqueezed(part, spatial)?,
            (1, false) => e.unsqueezed(part, &[1, 2])?,
            (4, false) => with_channels_second(&mut e, part, x)?,
            _ => part,
        };
        x = e.plain("Add", &[x, part])?;
    }
    let sum = x;
    let dtype = e.ty(x)?.dtype;
    let first: &[usize] = if last { &[0, 3, 1, 2] } else { &[0, 1, 2, 3] };
    x = e.transposed(x, first)?;
    let attrs = Attrs::default()
        .with("num_groups", Attr::Int(groups))
        .with("epsilon", Attr::Float(epsilon));
    let precise = if is_half(dtype) { DType::F32 } else { dtype };
    let operands: [ValueId; 3] = [
        e.cast(x, precise)?,
        e.cast(scale, precise)?,
        e.cast(shift, precise)?,
    ];
    let mut y = e.op("GroupNormalization", attrs, &operands)?;
    if silu {
        y = e.plain("Swish", &[y])?;
    }
    y = e.cast(y, dtype)?;
    let y = match last {
        true => e.last(0, "Transpose", perm_of(&[0, 2, 3, 1]), &[y])?,
        false => e.last(0, "Identity", Attrs::default(), &[y])?,
    };
    let mut out = vec![y, sum];
    out.truncate(c.outputs.len());
    Ok(out)
}
