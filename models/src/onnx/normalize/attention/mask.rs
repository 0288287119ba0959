//! The tensor that is added to the scores of attention, for masks, the causal order, windows, and keys that are
//! padding.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::node::{Expansion, ImportFailure, Made, axis_of};
use super::AttentionAttrs;

/// A term that is added to the scores.
pub(super) struct Bias {
    /// A value that broadcasts to the scores; minus infinity where a query does not attend to a key.
    pub added: ValueId,
    /// Whether a query may attend to no key at all.
    may_be_empty: bool,
}

impl Bias {
    /// Whether each query attends to no key at all, where that is possible.
    pub(super) fn empty_rows(
        &self,
        e: &mut Expansion<'_>,
    ) -> Result<Option<ValueId>, ImportFailure> {
        if !self.may_be_empty {
            return Ok(None);
        }
        let axes = e.ints("axes", &[-1])?;
        let most = e.plain("ReduceMax", &[self.added, axes])?;
        let negative = Attrs::default().with("detect_positive", Attr::Int(0));
        Ok(Some(e.op("IsInf", negative, &[most])?))
    }
}

/// The bias of attention, if there is any.
pub(super) fn bias(
    e: &mut Expansion<'_>,
    attrs: &AttentionAttrs,
    q: ValueId,
    k: ValueId,
    dtype: DType,
) -> Result<Option<Bias>, ImportFailure> {
    let mask = match e.c.input(3) {
        None => None,
        Some(mask) => Some(of_mask(e, mask, k, dtype)?),
    };
    let placed = of_places(e, attrs, q, k)?;
    let placed = match placed {
        None => None,
        Some(allowed) => Some(where_allowed(e, allowed, dtype, f64::NEG_INFINITY)?),
    };
    let added = match (mask, placed) {
        (None, None) => return Ok(None),
        (Some(one), None) | (None, Some(one)) => one,
        (Some(mask), Some(placed)) => e.plain("Add", &[mask, placed])?,
    };
    // In the causal order alone, a query sees at least the first key.
    let full = e.c.input(3).is_none() && e.c.input(6).is_none() && attrs.window == [None, None];
    Ok(Some(Bias {
        added,
        may_be_empty: !full,
    }))
}

/// 0 where `allowed` holds, `filter` elsewhere.
pub(in super::super) fn where_allowed(
    e: &mut Expansion<'_>,
    allowed: ValueId,
    dtype: DType,
    filter: f64,
) -> Made {
    let zero = e.float("zero", dtype, 0.0)?;
    let filter = e.float("filter", dtype, filter)?;
    e.plain("Where", &[allowed, zero, filter])
}

/// The bias of the mask operand. From operator set 24 on it may end before the keys do: the keys behind it are not
/// attended to.
fn of_mask(e: &mut Expansion<'_>, mask: ValueId, k: ValueId, dtype: DType) -> Made {
    let ty = e.ty(mask)?;
    let added = match ty.dtype {
        DType::Bool => where_allowed(e, mask, dtype, f64::NEG_INFINITY)?,
        _ => e.cast(mask, dtype)?,
    };
    let keys = e.shape(k)?[2].clone();
    let Some(own) = ty.shape.last() else {
        return Err(e.c.error("attn_mask must have rank 1 or more").into());
    };
    if e.c.opset < 24 || *own == keys {
        return Ok(added);
    }
    if let Some((own, keys)) = own.as_const().zip(keys.as_const())
        && own > keys
    {
        let reason = format!("attn_mask has {own} columns for {keys} keys");
        return Err(e.c.error(reason).into());
    }
    let mut never = e.float("never", dtype, f64::NEG_INFINITY)?;
    let all = e.length(k, 2)?;
    let given = e.length(mask, -1)?;
    let missing = e.plain("Sub", &[all, given])?;
    if own.as_const().is_none() || keys.as_const().is_none() {
        // Pad would shorten a mask that is longer than the keys. Then the index is 1, which this list of one refuses.
        let values = e.unsqueezed(never, &[0])?;
        let (count, zero) = (e.scalar(missing)?, e.int("zero", 0)?);
        let longer = e.plain("Less", &[count, zero])?;
        let index = e.cast(longer, DType::I64)?;
        never = e.op("Gather", axis_of(0), &[values, index])?;
    }
    let none = e.ints("none", &[0])?;
    let pads = e.joined(0, &[none, missing])?;
    let axes = e.ints("axes", &[-1])?;
    e.plain("Pad", &[added, pads, never, axes])
}

/// Whether a query attends to a key, by their places; `None` where the places do not matter.
fn of_places(
    e: &mut Expansion<'_>,
    attrs: &AttentionAttrs,
    q: ValueId,
    k: ValueId,
) -> Result<Option<ValueId>, ImportFailure> {
    let (causal, [left, right]) = (attrs.causal, attrs.window);
    let valid = e.c.input(6);
    if !causal && left.is_none() && right.is_none() && valid.is_none() {
        return Ok(None);
    }
    let keys = e.length(k, 2)?;
    let keys = e.scalar(keys)?;
    let key = e.counted(keys)?;
    let mut conditions = Vec::new();
    let valid = match valid {
        None => None,
        Some(valid) => {
            let valid = e.unsqueezed(valid, &[1, 2, 3])?;
            let not_padding = e.plain("Less", &[key, valid])?;
            conditions.push(not_padding);
            Some(valid)
        }
    };
    if causal || left.is_some() || right.is_some() {
        // The place of each query, as a column.
        let queries = e.length(q, 2)?;
        let before = match (e.c.input(4), valid) {
            (Some(past), _) => Some(e.length(past, 2)?),
            (None, Some(valid)) => Some(e.plain("Sub", &[valid, queries])?),
            (None, None) => None,
        };
        let queries = e.scalar(queries)?;
        let mut place = e.counted(queries)?;
        place = e.unsqueezed(place, &[1])?;
        if let Some(before) = before {
            place = e.plain("Add", &[place, before])?;
        }
        if causal {
            conditions.push(e.plain("LessOrEqual", &[key, place])?);
        }
        if let Some(left) = left {
            let left = e.int("left", left)?;
            let first = e.plain("Sub", &[place, left])?;
            conditions.push(e.plain("GreaterOrEqual", &[key, first])?);
        }
        if let Some(right) = right {
            let right = e.int("right", right)?;
            let last = e.plain("Add", &[place, right])?;
            conditions.push(e.plain("LessOrEqual", &[key, last])?);
        }
    }
    let mut all: Option<ValueId> = None;
    for condition in conditions {
        all = Some(match all {
            None => condition,
            Some(all) => e.plain("And", &[all, condition])?,
        });
    }
    Ok(all)
}
