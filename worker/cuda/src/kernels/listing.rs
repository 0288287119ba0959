//! The ops that have kernels, by dtype, and the sources of these: for the table in `docs/accelerators.md`, and for the
//! checks that compile every source.

use std::collections::BTreeSet;
use std::fmt::Write;

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs};
use convoke_graph::ops::{self, DTypeSet, KernelSet, OpDef};
use convoke_worker::device::DeviceOp;

use super::families::template;
use super::launch::Template;

/// The dtypes of the table's columns.
pub const COLUMNS: [DType; 6] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::I64,
    DType::Bool,
];

/// The dtypes of first operands for which sources are made: those of the table, and f64, of which casts alone have kernels.
fn dtypes() -> impl Iterator<Item = DType> {
    COLUMNS.into_iter().chain([DType::F64])
}

/// The dtypes that operands of other classes than the first one's may have. `Where` chooses between elements of 1, 2, 4
/// and 8 bytes; zero points are codes or numbers; other operands are indices.
fn others(def: &OpDef) -> &'static [DType] {
    match def.name {
        "Where" => &[DType::Bool, DType::F16, DType::F32, DType::I64],
        "MatMulNBits" => &[DType::U8, DType::F32],
        _ => &[DType::I32, DType::I64],
    }
}

/// The forms in which an op is asked for: attributes, and how many of its operands are given.
fn forms(def: &'static OpDef, dtype: DType) -> Vec<(Attrs, usize)> {
    let required = def.operands.iter().filter(|o| !o.optional).count();
    let mut attrs = vec![Attrs::default()];
    match def.name {
        "Cast" => {
            let to = |to: &DType| Attrs::default().with("to", Attr::DType(*to));
            let others = dtypes().filter(|to| *to != dtype);
            attrs = others.map(|d| to(&d)).collect();
        }
        "MatMulNBits" => attrs = [2, 4, 8].map(packed_codes).into(),
        "FusedGemm" => {
            let packed = [("packed", 1), ("k", 1), ("n", 1)];
            attrs.push(with_ints(&packed));
        }
        "FusedAttention" => attrs.push(Attrs::default().with("softcap", Attr::Float(30.0))),
        "AveragePool" => attrs.push(Attrs::default().with("count_include_pad", Attr::Int(1))),
        "Gelu" => attrs.push(Attrs::default().with("approximate", Attr::Str("tanh".into()))),
        "Swish" => attrs.push(Attrs::default().with("alpha", Attr::Float(0.5))),
        _ => {}
    }
    let given = required..=def.operands.len().max(required);
    let all = given.flat_map(|count| attrs.iter().map(move |a| (a.clone(), count)));
    all.collect()
}

/// Attributes that are integers.
fn with_ints(given: &[(&str, i64)]) -> Attrs {
    let with = |attrs: Attrs, (name, value): &(&str, i64)| attrs.with(name, Attr::Int(*value));
    given.iter().fold(Attrs::default(), with)
}

/// Attributes of a product with weights that are packed codes of this many bits.
fn packed_codes(bits: i64) -> Attrs {
    with_ints(&[
        ("bits", bits),
        ("K", 32),
        ("N", 64),
        ("block_size", 32),
        ("packed", 1),
    ])
}

/// The kernels of an op whose first operand has this dtype, in every form.
pub fn kernels(def: &'static OpDef, dtype: DType) -> Vec<Box<dyn Template>> {
    let takes = def
        .operands
        .first()
        .is_some_and(|o| o.dtypes.contains(&dtype));
    if !takes || def.sized_by_data {
        return vec![];
    }
    let found = forms(def, dtype).into_iter().flat_map(|(attrs, count)| {
        let each = others(def).iter().copied().filter_map(move |index| {
            let operand = |i: usize| {
                let own = def.operands.get(i).or(def.operands.last())?;
                let class = def
                    .operands
                    .first()
                    .is_some_and(|first| first.class == own.class);
                Some(
                    match (
                        class && own.dtypes.contains(&dtype),
                        own.dtypes.contains(&index),
                    ) {
                        (true, _) => dtype,
                        (false, true) => index,
                        (false, false) if own.dtypes.contains(&dtype) => dtype,
                        (false, false) => *own.dtypes.first()?,
                    },
                )
            };
            let variadic = def.operands.last().is_some_and(|o| o.variadic);
            let count = if variadic { count.max(2) } else { count };
            let mut operands: Vec<Option<DType>> = (0..count).map(operand).collect();
            if def.name == "Where" {
                operands[1..].fill(Some(index));
            }
            template(&DeviceOp {
                def,
                attrs: &attrs,
                operands: &operands,
                outputs: 1,
            })
        });
        each.collect::<Vec<_>>()
    });
    found.collect()
}

/// Every source that an op of the table can need, once.
pub fn sources() -> BTreeSet<String> {
    let all = ops::all().flat_map(|def| dtypes().flat_map(move |d| kernels(def, d)));
    all.filter_map(|kernel| kernel.source()).collect()
}

/// The ops with kernels, by the dtypes of their first operands.
pub fn set() -> KernelSet {
    let all = ops::all().map(|def| {
        let with = DType::ALL.into_iter();
        let with = with.filter(|dtype| !kernels(def, *dtype).is_empty());
        (def.name, with.collect::<DTypeSet>())
    });
    KernelSet::only(all)
}

/// The table of ops with kernels, by the dtype of the first operand, in Markdown.
pub fn table() -> String {
    let names: Vec<String> = COLUMNS.iter().map(DType::to_string).collect();
    let mut text = format!(
        "| op | {} |\n|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    let mut host = vec![];
    for def in ops::all() {
        let native = COLUMNS.map(|dtype| !kernels(def, dtype).is_empty());
        if !native.contains(&true) {
            host.push(def.name);
            continue;
        }
        let cells = native.map(|n| if n { "yes" } else { "" });
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {} | {} |", def.name, cells.join(" | "));
    }
    let _ = writeln!(text, "\nOn the host: {}.", host.join(", "));
    text
}
