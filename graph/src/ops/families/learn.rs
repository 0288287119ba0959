//! Ops of classical models: trees, and encodings by tables.
//!
//! ONNX has the tables of these ops as attributes. Here they are operands, so that workers read them as weights.

use crate::Dim;
use crate::ops::attrs::TreeAttrs;
use crate::ops::cost::{per_element, per_input_element};
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::kind::{LearnOp, Op};
use crate::ops::shapes::*;

/// The length of operand `k`, a list that has `like`'s length.
fn list(i: &Infer<'_>, k: usize, name: &str, like: Option<&Dim>) -> Result<Dim, OpError> {
    let len = &i.ranked(k, name, 1)?[0];
    match like {
        None => Ok(len.clone()),
        Some(like) => unify(len, like, name),
    }
}

fn label_encoder(i: &Infer<'_>) -> Rule {
    let keys = list(i, 1, "keys", None)?;
    list(i, 2, "values", Some(&keys))?;
    i.check_scalar(3, "default")?;
    one(i.dtype(2)?, i.shape(0)?.to_vec())
}

fn one_hot_encoder(i: &Infer<'_>) -> Rule {
    let categories = list(i, 1, "categories", None)?;
    let mut shape = i.shape(0)?.to_vec();
    shape.push(categories);
    one(F32, shape)
}

fn tree_ensemble(i: &Infer<'_>) -> Rule {
    let attrs = TreeAttrs::new(i.attrs)?;
    let rows = i.ranked(0, "X", 2)?[0].clone();
    let nodes = list(i, 1, "features", None)?;
    list(i, 2, "modes", Some(&nodes))?;
    list(i, 3, "splits", Some(&nodes))?;
    let branches = i.ranked(4, "branches", 2)?;
    unify(&branches[0], &nodes, "nodes and their branches")?;
    unify(&branches[1], &Dim::Const(2), "branches of a node")?;
    list(i, 5, "roots", None)?;
    list(i, 6, "leaves", None)?;
    let targets = list(i, 7, "targets", None)?;
    list(i, 8, "weights", Some(&targets))?;
    let shape = vec![rows, Dim::from(attrs.targets)];
    Ok(vec![
        InferredOutput::of(i.dtype(0)?, shape.clone()),
        InferredOutput::of(Bool, shape),
    ])
}

const KEYS: &[crate::DType] = &[I64, F32, F64, I16, I32, Str];
const CATEGORIES: &[crate::DType] = &[I64, Str];
const REAL: &[crate::DType] = &[F32, F64];

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef::of(
        Op::Learn(LearnOp::LabelEncoder),
        "For each element of X, any shape, the value at the place of its key, or `default`; `keys` ascend, NaN last.",
        &[
            operand("X", KEYS).class(1),
            operand("keys", KEYS).class(1),
            operand("values", KEYS).class(2),
            operand("default", KEYS).class(2),
        ],
        label_encoder,
    )
    .cost(per_element::<50>),
    OpDef::of(
        Op::Learn(LearnOp::OneHotEncoder),
        "For each element of X, any shape, a 1 at the place of its category along a new last axis, and 0 elsewhere: f32.",
        &[
            operand("X", CATEGORIES).class(1),
            operand("categories", CATEGORIES).class(1),
        ],
        one_hot_encoder,
    )
    .attrs(&[attr("zeros", AttrKind::Int)])
    .cost(per_element::<2>),
    OpDef::of(
        Op::Learn(LearnOp::TreeEnsemble),
        "The weights of the leaves that each row of X [N, F] reaches, folded for each target: [N, targets], and which were reached.",
        &[
            operand("X", REAL).class(1),
            operand("features", LONG),
            operand("modes", &[U8]),
            operand("splits", REAL).class(1),
            operand("branches", LONG),
            operand("roots", LONG),
            operand("leaves", LONG),
            operand("targets", LONG),
            operand("weights", REAL).class(1),
        ],
        tree_ensemble,
    )
    .attrs(&[
        attr("aggregate_function", AttrKind::Str),
        required("n_targets", AttrKind::Int),
    ])
    .outputs(1, 2)
    .cost(per_input_element::<20>),
];
