//! ScatterElements and ScatterND of bools that are combined.

use convoke_graph::DType;
use convoke_graph::graph::Attr;

use super::super::builder::Builder;
use super::node::{Expansion, ImportedNode, Outputs, to_dtype};

/// Imports ScatterElements and ScatterND. A sum of bools is their greatest, and a product their least, as it is of the bytes 0
/// and 1.
pub(super) fn scatter(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let reduction = match c.attrs.str("reduction", "none") {
        "add" | "max" => "max",
        "mul" | "min" => "min",
        _ => return c.emit(b),
    };
    if c.dtype(b, 0) != DType::Bool {
        return c.emit(b);
    }
    let attrs = std::mem::take(&mut c.attrs).with("reduction", Attr::Str(reduction.into()));
    let (data, updates) = (c.need(0)?, c.need(2)?);
    let mut e = Expansion { b, c: &c };
    let (data, updates) = (e.cast(data, DType::U8)?, e.cast(updates, DType::U8)?);
    c.set(0, Some(data));
    c.set(2, Some(updates));
    let op = c.op.clone();
    let y = c.before(b, &op, attrs, c.inputs.clone())?;
    c.finish(b, "Cast", to_dtype(DType::Bool), vec![Some(y)])
}
