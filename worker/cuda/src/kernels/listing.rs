//! Which ops have kernels, by dtype, and their sources: for the table in `docs/accelerators.md`, and for the checks that
//! compile every source.

use std::collections::BTreeSet;
use std::fmt::Write;

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs};
use convoke_graph::ops::{self, OpDef};
use convoke_worker::device::DeviceOp;

use super::{Template, template};

/// The dtypes of the table's columns.
pub const COLUMNS: [DType; 6] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::I64,
    DType::Bool,
];

/// The forms in which an op is asked for: attributes, and how many of its operands are given.
fn forms(def: &'static OpDef, dtype: DType) -> Vec<(Attrs, usize)> {
    let required = def.operands.iter().filter(|o| !o.optional).count();
    let mut attrs = vec![Attrs::default()];
    match def.name {
        "Cast" => {
            let to = |to: &DType| Attrs::default().with("to", Attr::DType(*to));
            attrs = COLUMNS.iter().filter(|to| **to != dtype).map(to).collect();
        }
        "FusedGemm" => attrs.extend(fused_forms()),
        "Gelu" => attrs.push(Attrs::default().with("approximate", Attr::Str("tanh".into()))),
        "Swish" => attrs.push(Attrs::default().with("alpha", Attr::Float(0.5))),
        _ => {}
    }
    let given = required..=def.operands.len().max(required);
    let all = given.flat_map(|count| attrs.iter().map(move |a| (a.clone(), count)));
    all.collect()
}

/// Attributes of fused products: each activation, on a packed weight.
fn fused_forms() -> impl Iterator<Item = Attrs> {
    let activations = [
        "Relu",
        "Clip",
        "Sigmoid",
        "HardSwish",
        "HardSigmoid",
        "Silu",
        "Gelu",
        "GeluTanh",
        "Tanh",
        "LeakyRelu",
    ];
    activations.into_iter().map(|activation| {
        let packed = Attrs::default().with("packed", Attr::Int(1));
        let sized = packed.with("k", Attr::Int(1)).with("n", Attr::Int(1));
        sized.with("activation", Attr::Str(activation.into()))
    })
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
        let each = [DType::I32, DType::I64]
            .into_iter()
            .filter_map(move |index| {
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
                    operands[1..].fill(Some(DType::F32));
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
    let all = ops::all().flat_map(|def| COLUMNS.into_iter().flat_map(move |d| kernels(def, d)));
    all.filter_map(|kernel| kernel.source()).collect()
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
