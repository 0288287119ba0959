//! Ensembles of trees.
//!
//! Nodes get numbers in an order in which branches lead forward, as the kernel wants them. A node that compares with a set of
//! values becomes a chain of nodes, one for each value.
//!
//! A classifier's label is that of the greatest score among the classes that a row reached. ONNX Runtime does the same for
//! three classes and more. For two classes that both have scores, it looks at the second class only: the label is 1 where
//! that score is above 0, and otherwise 0, whatever the labels are; and where it has base values, or a row reached the first
//! class only, its scores are not those of the two classes. In these cases Convoke follows the standard.

use std::collections::{BTreeMap, BTreeSet};

use convoke_graph::DType;
use convoke_graph::graph::{Attr, ValueId};

use super::super::super::import::Importer;
use super::super::node::{Expansion, ImportFailure, ImportedNode, Outputs, to_dtype, unsupported};
use super::ensemble::{Branching, Ensemble, To};
use super::rows::{Rows, floats};
use super::transform::Transform;
use crate::error::ModelError;

/// The bit of a mode that sends NaN to the first branch.
const NAN_IS_TRUE: u8 = 0x80;
/// The comparison with a value.
const EQUAL: u8 = 4;
/// A comparison that never holds with NaN.
const LESS: u8 = 1;

/// The lists of one kind of attributes, all of one length.
fn same_length(c: &ImportedNode, lengths: &[(&str, usize)]) -> Result<usize, ModelError> {
    let first = lengths.first().map_or(0, |(_, n)| *n);
    match lengths.iter().find(|(_, n)| *n != first) {
        None => Ok(first),
        Some((name, n)) => Err(c.error(format!("'{name}' has {n} elements instead of {first}"))),
    }
}

/// Imports TreeEnsemble of the fifth operator set.
pub(super) fn ensemble(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let need = |c: &mut ImportedNode, name: &str| {
        let v = c.take_ints(name)?;
        v.ok_or_else(|| c.error(format!("attribute '{name}' is missing")))
    };
    let features = need(&mut c, "nodes_featureids")?;
    let roots = need(&mut c, "tree_roots")?;
    let to = [
        need(&mut c, "nodes_truenodeids")?,
        need(&mut c, "nodes_falsenodeids")?,
    ];
    let is_leaf = [
        need(&mut c, "nodes_trueleafs")?,
        need(&mut c, "nodes_falseleafs")?,
    ];
    let targets = need(&mut c, "leaf_targetids")?;
    let modes = c
        .take_tensor("nodes_modes")?
        .and_then(|t| t.as_slice::<u8>().ok().map(<[u8]>::to_vec));
    let modes = modes.ok_or_else(|| c.wrong("nodes_modes", "a tensor of u8"))?;
    let splits = numbers(&mut c, "nodes_splits")?.unwrap_or_default();
    let weights = numbers(&mut c, "leaf_weights")?.unwrap_or_default();
    let members = numbers(&mut c, "membership_values")?.unwrap_or_default();
    let nan_is_true = c
        .take_ints("nodes_missing_value_tracks_true")?
        .unwrap_or_default();
    // How often each node was met while the trees were learned.
    c.take_tensor("nodes_hitrates")?;
    let aggregate = match c.take_int("aggregate_function")?.unwrap_or(1) {
        0 => "AVERAGE",
        1 => "SUM",
        2 => "MIN",
        3 => "MAX",
        _ => return Err(c.wrong("aggregate_function", "between 0 and 3").into()),
    };
    let transform = match c.take_int("post_transform")?.unwrap_or(0) {
        0 => Transform::None,
        1 => Transform::Softmax,
        2 => Transform::Logistic,
        3 => Transform::SoftmaxZero,
        4 => Transform::Probit,
        _ => return Err(c.wrong("post_transform", "between 0 and 4").into()),
    };
    let count = c.take_int("n_targets")?;
    let count = count.and_then(|n| usize::try_from(n).ok());
    let count = count.ok_or_else(|| c.wrong("n_targets", "a positive integer"))?;
    c.no_more_attributes()?;
    let nodes = same_length(
        &c,
        &[
            ("nodes_featureids", features.len()),
            ("nodes_modes", modes.len()),
            ("nodes_splits", splits.len()),
            ("nodes_truenodeids", to[0].len()),
            ("nodes_falsenodeids", to[1].len()),
            ("nodes_trueleafs", is_leaf[0].len()),
            ("nodes_falseleafs", is_leaf[1].len()),
        ],
    )?;
    same_length(
        &c,
        &[
            ("leaf_targetids", targets.len()),
            ("leaf_weights", weights.len()),
        ],
    )?;
    if !nan_is_true.is_empty() && nan_is_true.len() != nodes {
        return Err(c
            .error("'nodes_missing_value_tracks_true' is of another length")
            .into());
    }
    let leaves = targets.into_iter().zip(weights).map(|leaf| vec![leaf]);
    let mut made = Ensemble {
        leaves: leaves.collect(),
        ..Ensemble::default()
    };
    let place = |v: i64, limit: usize| usize::try_from(v).ok().filter(|v| *v < limit);
    let outside = || c.error("has a branch to no node or leaf");
    // Each node's number in the ensemble; the nodes of a chain follow the others.
    let mut sets = members.split(|v| v.is_nan());
    let mut chained = vec![];
    for n in 0..nodes {
        let to = [0, 1].map(|b| match is_leaf[b][n] {
            0 => place(to[b][n], nodes).map(To::Node),
            _ => place(to[b][n], made.leaves.len()).map(To::Leaf),
        });
        let [Some(yes), Some(no)] = to else {
            return Err(outside().into());
        };
        let nan = match nan_is_true.get(n) {
            Some(v) if *v != 0 => NAN_IS_TRUE,
            _ => 0,
        };
        let node = Branching {
            feature: features[n],
            mode: modes[n] | nan,
            split: splits[n],
            to: [yes, no],
        };
        match modes[n] {
            0..=5 => made.nodes.push(node),
            6 => {
                let set = sets
                    .next()
                    .ok_or_else(|| c.error("lacks the values of a set"))?;
                made.nodes.push(node);
                chained.push((n, set, nan));
            }
            other => return Err(c.error(format!("has a node of mode {other}")).into()),
        }
    }
    for (n, set, nan) in chained {
        let node = made.nodes[n];
        let [yes, no] = node.to;
        let mut at = n;
        let (first, rest) = match set.split_first() {
            Some((first, rest)) => ((*first, EQUAL | nan), rest),
            None => ((f64::NAN, LESS | nan), set),
        };
        (made.nodes[n].split, made.nodes[n].mode) = first;
        for value in rest {
            let next = made.nodes.len();
            made.nodes[at].to = [yes, To::Node(next)];
            made.nodes.push(Branching {
                mode: EQUAL | nan,
                split: *value,
                to: [yes, no],
                ..node
            });
            at = next;
        }
    }
    for root in roots {
        let root = place(root, nodes).ok_or_else(|| c.error("has a tree without a root"))?;
        made.roots.push(To::Node(root));
    }
    let mut e = Expansion { b: &mut i.b, c: &c };
    let given = e.ty(c.need(0)?)?.dtype;
    let rows = e.rows()?;
    let dtype = rows.1;
    let (scores, _) = made.emit(i, &c, rows, count, aggregate)?;
    let mut e = Expansion { b: &mut i.b, c: &c };
    let scores = e.transformed(scores, dtype, transform.of_targets(count))?;
    Ok(vec![e.last(0, "Cast", to_dtype(given), &[scores])?])
}

/// A tensor of floats as a list.
fn numbers(c: &mut ImportedNode, attr: &str) -> Result<Option<Vec<f64>>, ModelError> {
    let Some(t) = c.take_tensor(attr)? else {
        return Ok(None);
    };
    let list = match t.dtype() {
        DType::F64 => t.as_slice::<f64>().map(<[f64]>::to_vec).ok(),
        DType::F32 => t
            .as_slice::<f32>()
            .ok()
            .map(|v| v.iter().map(|x| f64::from(*x)).collect()),
        DType::F16 => {
            let halves = t.as_slice::<half::f16>().ok();
            halves.map(|v| v.iter().map(|x| x.to_f64()).collect())
        }
        _ => None,
    };
    list.map(Some)
        .ok_or_else(|| c.wrong(attr, "a tensor of floats"))
}

/// The attributes of the classifier and the regressor that describe nodes, with their leaves' weights in the attributes that
/// begin with `weights`.
fn older(c: &mut ImportedNode, weights: &str) -> Result<Ensemble, ImportFailure> {
    let ints = |c: &mut ImportedNode, name: &str| {
        Ok::<_, ModelError>(c.take_ints(name)?.unwrap_or_default())
    };
    let trees = ints(c, "nodes_treeids")?;
    let ids = ints(c, "nodes_nodeids")?;
    let features = ints(c, "nodes_featureids")?;
    let yes = ints(c, "nodes_truenodeids")?;
    let no = ints(c, "nodes_falsenodeids")?;
    let nan_is_true = ints(c, "nodes_missing_value_tracks_true")?;
    let modes = c.take_strings("nodes_modes")?.unwrap_or_default();
    let splits = c.take_numbers("nodes_values")?.unwrap_or_default();
    // How often each node was met while the trees were learned.
    c.take("nodes_hitrates");
    c.take("nodes_hitrates_as_tensor");
    let count = same_length(
        c,
        &[
            ("nodes_treeids", trees.len()),
            ("nodes_nodeids", ids.len()),
            ("nodes_featureids", features.len()),
            ("nodes_truenodeids", yes.len()),
            ("nodes_falsenodeids", no.len()),
            ("nodes_modes", modes.len()),
            ("nodes_values", splits.len()),
        ],
    )?;
    if !nan_is_true.is_empty() && nan_is_true.len() != count {
        return Err(c
            .error("'nodes_missing_value_tracks_true' is of another length")
            .into());
    }
    let mut made = Ensemble::default();
    let mut places = BTreeMap::new();
    let mut nodes = vec![];
    for n in 0..count {
        let mode = match modes[n].as_str() {
            "BRANCH_LEQ" => Some(0),
            "BRANCH_LT" => Some(LESS),
            "BRANCH_GTE" => Some(2),
            "BRANCH_GT" => Some(3),
            "BRANCH_EQ" => Some(EQUAL),
            "BRANCH_NEQ" => Some(5),
            "LEAF" => None,
            other => return Err(c.error(format!("has a node of mode '{other}'")).into()),
        };
        let place = match mode {
            Some(_) => To::Node(nodes.len()),
            None => To::Leaf(made.leaves.len()),
        };
        match mode {
            Some(mode) => nodes.push((n, mode)),
            None => made.leaves.push(vec![]),
        }
        if places.insert((trees[n], ids[n]), place).is_some() {
            return Err(c
                .error(format!("has two nodes {} in tree {}", ids[n], trees[n]))
                .into());
        }
    }
    let mut led_to = BTreeSet::new();
    for (n, mode) in nodes {
        let nan = match nan_is_true.get(n) {
            Some(v) if *v != 0 => NAN_IS_TRUE,
            _ => 0,
        };
        let mut to = [To::Leaf(0); 2];
        for (to, id) in to.iter_mut().zip([yes[n], no[n]]) {
            let key = (trees[n], id);
            led_to.insert(key);
            let place = places.get(&key).copied();
            *to = place.ok_or_else(|| c.error(format!("has no node {id} in tree {}", trees[n])))?;
        }
        made.nodes.push(Branching {
            feature: features[n],
            mode: mode | nan,
            split: splits[n],
            to,
        });
    }
    // The root of a tree is the node that no branch leads to, and the first one of several.
    let mut rooted = BTreeSet::new();
    for n in 0..count {
        let key = (trees[n], ids[n]);
        if !led_to.contains(&key) && rooted.insert(trees[n]) {
            made.roots.extend(places.get(&key));
        }
    }
    if let Some(tree) = trees.iter().find(|t| !rooted.contains(t)) {
        return Err(c.error(format!("has no root in tree {tree}")).into());
    }
    let of = |what: &str| format!("{weights}_{what}");
    let (trees, nodes) = (ints(c, &of("treeids"))?, ints(c, &of("nodeids"))?);
    let (targets, values) = (
        ints(c, &of("ids"))?,
        c.take_numbers(&of("weights"))?.unwrap_or_default(),
    );
    let count = same_length(
        c,
        &[
            (&of("treeids"), trees.len()),
            (&of("nodeids"), nodes.len()),
            (&of("ids"), targets.len()),
            (&of("weights"), values.len()),
        ],
    )?;
    for k in 0..count {
        match places.get(&(trees[k], nodes[k])) {
            Some(To::Leaf(leaf)) => made.leaves[*leaf].push((targets[k], values[k])),
            // ONNX Runtime drops weights of nodes that are no leaves.
            Some(To::Node(_)) => {}
            None => {
                let msg = format!("has a weight of node {} in tree {}", nodes[k], trees[k]);
                return Err(c.error(msg).into());
            }
        }
    }
    Ok(made)
}

/// Operand 0 as rows. They are f64 where a tensor among the node's attributes is f64, and f32 otherwise; `weights` begins the
/// names of the attributes of the leaves (`target` or `class`). The attributes must not have been taken yet.
fn rows(i: &mut Importer<'_>, c: &ImportedNode, weights: &str) -> Result<Rows, ImportFailure> {
    let names = ["nodes_values", "base_values", &format!("{weights}_weights")];
    let is_wide = |name: &str| match c.attrs.0.get(&*format!("{name}_as_tensor")) {
        Some(Attr::Tensor(t)) => t.dtype() == DType::F64,
        _ => false,
    };
    let dtype = match names.into_iter().any(is_wide) {
        true => DType::F64,
        false => DType::F32,
    };
    Expansion { b: &mut i.b, c }.rows_of(dtype)
}

/// Adds base values to scores.
fn based(
    i: &mut Importer<'_>,
    c: &ImportedNode,
    scores: ValueId,
    dtype: DType,
    base: &[f64],
) -> Result<ValueId, ImportFailure> {
    if base.is_empty() {
        return Ok(scores);
    }
    let base = floats(c, dtype, &[base.len()], base)?;
    let base = i.table(&c.sub("base_values"), base)?;
    Expansion { b: &mut i.b, c }.plain("Add", &[scores, base])
}

/// Imports TreeEnsembleRegressor.
pub(super) fn regressor(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let rows = rows(i, &c, "target")?;
    let made = older(&mut c, "target")?;
    let aggregate = c.take_name("aggregate_function")?.unwrap_or("SUM".into());
    let base = c.take_numbers("base_values")?.unwrap_or_default();
    let targets = c.take_int("n_targets")?.unwrap_or(1);
    let targets =
        usize::try_from(targets).map_err(|_| c.wrong("n_targets", "a positive integer"))?;
    let transform = Transform::take(&mut c)?;
    c.no_more_attributes()?;
    if !base.is_empty() && base.len() != targets {
        let msg = format!("has {} base values for {targets} targets", base.len());
        return Err(c.error(msg).into());
    }
    let dtype = rows.1;
    let (scores, _) = made.emit(i, &c, rows, targets, &aggregate)?;
    let scores = based(i, &c, scores, dtype, &base)?;
    let mut e = Expansion { b: &mut i.b, c: &c };
    let scores = e.transformed(scores, dtype, transform.of_targets(targets))?;
    Ok(vec![e.last(0, "Cast", to_dtype(DType::F32), &[scores])?])
}

/// Imports TreeEnsembleClassifier.
pub(super) fn classifier(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let rows = rows(i, &c, "class")?;
    let made = older(&mut c, "class")?;
    let base = c.take_numbers("base_values")?.unwrap_or_default();
    let labels = c.take_labels("classlabels_int64s", "classlabels_strings")?;
    let labels = labels.ok_or_else(|| c.error("has no class labels"))?;
    let transform = Transform::take(&mut c)?;
    c.no_more_attributes()?;
    let classes = labels.elements();
    let weights = || made.leaves.iter().flatten();
    let scored: BTreeSet<i64> = weights().map(|(class, _)| *class).collect();
    let positive = weights().all(|(_, w)| *w >= 0.);
    let only = (classes == 2 && scored.len() == 1).then(|| scored.contains(&0));
    let bases = if only == Some(true) { 1 } else { classes };
    if !base.is_empty() && base.len() != bases || (only == Some(false) && !base.is_empty()) {
        let what = if only.is_some() {
            " of which one has scores"
        } else {
            ""
        };
        let msg = format!("{} base values for {classes} classes{what}", base.len());
        return Err(unsupported(msg));
    }
    let dtype = rows.1;
    let (scores, reached) = made.emit(i, &c, rows, classes, "SUM")?;
    let labels = i.table(&c.sub("labels"), labels)?;
    // A single score is compared with a half where weights are probabilities.
    let threshold = if positive { 0.5 } else { 0. };
    let (places, scores) = match only {
        Some(first) => {
            let mut e = Expansion { b: &mut i.b, c: &c };
            let of = if first { 0 } else { 1 };
            let score = e.slice(scores, 1, of, of + 1, 1)?;
            if first {
                let score = based(i, &c, score, dtype, &base)?;
                let mut e = Expansion { b: &mut i.b, c: &c };
                let places = e.above(score, dtype, threshold)?;
                (places, pair(&mut e, score, dtype, transform, positive)?)
            } else {
                let places = e.above(score, dtype, threshold)?;
                (places, e.transformed(scores, dtype, transform)?)
            }
        }
        None => {
            let scores = based(i, &c, scores, dtype, &base)?;
            let mut e = Expansion { b: &mut i.b, c: &c };
            let counted = match base.is_empty() {
                false => scores,
                true => {
                    let least = e.float("least", dtype, f64::NEG_INFINITY)?;
                    e.plain("Where", &[reached, scores, least])?
                }
            };
            let places = e.greatest(counted)?;
            (places, e.transformed(scores, dtype, transform)?)
        }
    };
    let mut e = Expansion { b: &mut i.b, c: &c };
    let mut out = vec![e.labelled(places, labels)?];
    if e.is_read(1) {
        out.push(e.last(1, "Cast", to_dtype(DType::F32), &[scores])?);
    }
    Ok(out)
}

/// The scores of two classes, of which only one has a score [N, 1].
fn pair(
    e: &mut Expansion<'_>,
    score: ValueId,
    dtype: DType,
    transform: Transform,
    positive: bool,
) -> Result<ValueId, ImportFailure> {
    let (first, second) = match (transform, positive) {
        (Transform::Probit, _) => return Err(unsupported("PROBIT of a single score")),
        (_, true) => {
            let one = e.float("one", dtype, 1.)?;
            (e.plain("Sub", &[one, score])?, score)
        }
        (Transform::Logistic, false) => {
            let other = e.plain("Neg", &[score])?;
            let other = e.transformed(other, dtype, transform)?;
            (other, e.transformed(score, dtype, transform)?)
        }
        (_, false) => (e.plain("Neg", &[score])?, score),
    };
    e.joined(1, &[first, second])
}
