//! Ops on strings that are computed by other ops, since they have no kernel for strings.
//!
//! ```text
//! NonZero: strings ── are they empty? ── bools ── NonZero
//! Unique:  strings ── the rank of each among the different ones ── Unique along the axis ── the slices at its indices
//! ```

use convoke_graph::graph::{Attr, Attrs};
use convoke_graph::{DType, Tensor};

use super::super::super::builder::Builder;
use super::super::node::{Expansion, ImportedNode, Outputs, axis_of, exact};

/// Imports NonZero. A string counts as zero where it is empty.
pub(in super::super) fn non_zero(b: &mut Builder, c: ImportedNode) -> Outputs {
    if c.dtype(b, 0) != DType::Str {
        return c.emit(b);
    }
    let x = c.need(0)?;
    let empty = Tensor::from_strings(&[], &[""]).map_err(|e| c.error(e.to_string()))?;
    let empty = b.literal(&c.sub("empty"), empty);
    let mut e = Expansion { b, c: &c };
    let is_empty = e.plain("Equal", &[x, empty])?;
    let filled = e.plain("Not", &[is_empty])?;
    c.finish(b, "NonZero", Attrs::default(), vec![Some(filled)])
}

/// Imports Unique. Slices of strings are compared by the ranks of their strings, which are in the order of these.
pub(in super::super) fn unique(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if c.dtype(b, 0) != DType::Str || c.attrs.get("axis").is_none() {
        return c.emit(b);
    }
    let axis = c.take_int("axis")?.unwrap_or(0);
    let sorted = c.take_flag("sorted", true)?;
    c.no_more_attributes()?;
    let x = c.need(0)?;
    let names = ["different", "of", "rank"].map(|what| c.sub(what));
    let (of_all, inputs) = (c.sub("Ranks"), vec![Some(x)]);
    let ranks = b.emit("Unique", &of_all, Attrs::default(), inputs, &names)?;
    let &[_, _, ranks] = &ranks[..] else {
        return Err(c.error("has no ranks").into());
    };
    let mut e = Expansion { b, c: &c };
    let shape = e.plain("Shape", &[x])?;
    // An axis of length 0 keeps its length.
    let ranks = e.op("Reshape", exact(), &[ranks, shape])?;
    let attrs = axis_of(axis).with("sorted", Attr::Int(sorted.into()));
    let name = |o: usize| match (o, c.outputs.get(o)) {
        (1.., Some(name)) if !name.is_empty() => name.clone(),
        _ => c.sub(["of_ranks", "first", "place", "times"][o]),
    };
    let names: Vec<String> = (0..c.outputs.len().clamp(2, 4)).map(name).collect();
    let of_slices = c.sub("Unique");
    let found = b.emit("Unique", &of_slices, attrs, vec![Some(ranks)], &names)?;
    let first = found.get(1).copied();
    let first = first.ok_or_else(|| c.error("has no indices"))?;
    let mut e = Expansion { b, c: &c };
    let mut out = vec![e.last(0, "Gather", axis_of(axis), &[x, first])?];
    out.extend(found.iter().skip(1).take(c.outputs.len() - 1));
    Ok(out)
}
