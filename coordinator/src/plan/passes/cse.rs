//! Common subexpressions: equal constants and equal applications of an op are computed once.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use convoke_common::mutant;
use convoke_graph::graph::{Attr, Attrs, Function, Literal, TensorType, ValueId};
use convoke_graph::ops;
use convoke_graph::{DType, Dim};

use super::edit::Edit;
use super::pass;

/// Runs the pass.
pub fn run(f: Function) -> (Function, Option<String>) {
    let mut e = Edit::new(f);
    merge_literals(&mut e);
    // The latest node of each hash over op, attributes and operands, and for each node the one before it with the same hash. The
    // map is only looked up, so its order does not matter.
    let mut latest: HashMap<u64, usize> = HashMap::new();
    let mut earlier: Vec<Option<usize>> = vec![None; e.f.nodes.len()];
    let mut merged = 0;
    for i in 0..e.f.nodes.len() {
        if !ops::lookup(&e.f.nodes[i].op).is_some_and(|op| op.pure_op) {
            continue;
        }
        let hash = hash(&e, i);
        let mut candidate = latest.get(&hash).copied();
        while let Some(c) = candidate.filter(|c| !same(&e, *c, i)) {
            candidate = earlier[c];
        }
        let Some(first) = candidate else {
            earlier[i] = latest.insert(hash, i);
            continue;
        };
        let outputs = e.f.nodes[i].outputs.iter().copied();
        let pairs: Vec<_> = outputs
            .zip(e.f.nodes[first].outputs.iter().copied())
            .collect();
        e.remove(i);
        pairs.into_iter().for_each(|(from, to)| e.forward(from, to));
        merged += 1;
    }
    let report = (merged > 0).then(|| format!("merged {}", pass::count(merged, "equal node")));
    (e.finish(), report)
}

fn merge_literals(e: &mut Edit) {
    // The first literal of each type and content.
    let mut ranges: BTreeMap<((u32, u64, u64), DType, &[Dim]), ValueId> = BTreeMap::new();
    let mut inline: BTreeMap<(Vec<u8>, DType, &[Dim]), ValueId> = BTreeMap::new();
    let mut equal = Vec::new();
    for (v, l) in &e.f.literals {
        let TensorType { dtype, shape } = e.f.ty(*v);
        let first = match l {
            Literal::Range {
                artifact,
                offset,
                len,
            } => {
                let key = ((*artifact, *offset, *len), *dtype, shape.as_slice());
                *ranges.entry(key).or_insert(*v)
            }
            Literal::Inline(t) => {
                let alike = *dtype == DType::F32 && mutant!("constants-merged");
                let bytes = if alike { vec![] } else { t.bytes().to_vec() };
                let key = (bytes, *dtype, shape.as_slice());
                *inline.entry(key).or_insert(*v)
            }
        };
        if first != *v {
            equal.push((*v, first));
        }
    }
    equal.into_iter().for_each(|(from, to)| e.forward(from, to));
}

/// Hashes what [`same`] compares.
fn hash(e: &Edit, node: usize) -> u64 {
    let mut h = DefaultHasher::new();
    let n = &e.f.nodes[node];
    n.op.hash(&mut h);
    (0..n.inputs.len()).for_each(|i| e.operand(node, i).hash(&mut h));
    for (name, attr) in &n.attrs.0 {
        name.hash(&mut h);
        hash_attr(attr, &mut h);
    }
    h.finish()
}

/// Hashes an attribute: those that are equal to [`same_attrs`] have equal hashes.
fn hash_attr(attr: &Attr, h: &mut DefaultHasher) {
    std::mem::discriminant(attr).hash(h);
    match attr {
        Attr::Int(v) => v.hash(h),
        Attr::Float(v) => v.to_bits().hash(h),
        Attr::Str(v) => v.hash(h),
        Attr::Ints(v) => v.hash(h),
        Attr::Floats(v) => v.iter().for_each(|v| v.to_bits().hash(h)),
        Attr::Strs(v) => v.hash(h),
        Attr::Tensor(v) => {
            (v.dtype() as usize, v.shape()).hash(h);
            v.bytes().hash(h);
        }
        Attr::DType(v) => (*v as usize).hash(h),
        // A function without an id equals no other.
        Attr::Function(v) => v.id().ok().hash(h),
    }
}

fn same(e: &Edit, a: usize, b: usize) -> bool {
    let (m, n) = (&e.f.nodes[a], &e.f.nodes[b]);
    m.op == n.op
        && m.runs_at == n.runs_at
        && m.inputs.len() == n.inputs.len()
        && m.outputs.len() == n.outputs.len()
        && (0..m.inputs.len()).all(|i| e.operand(a, i) == e.operand(b, i))
        && same_attrs(&m.attrs, &n.attrs)
}

fn same_attrs(a: &Attrs, b: &Attrs) -> bool {
    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    a.0.len() == b.0.len()
        && a.0.iter().zip(&b.0).all(|((na, a), (nb, b))| {
            na == nb
                && match (a, b) {
                    (Attr::Float(a), Attr::Float(b)) => a.to_bits() == b.to_bits(),
                    (Attr::Floats(a), Attr::Floats(b)) => bits(a) == bits(b),
                    // Functions that compare equal may differ in the sign of a zero; their ids, which hash their bytes,
                    // do not.
                    (Attr::Function(a), Attr::Function(b)) => {
                        a == b && a.id().is_ok_and(|a| b.id().is_ok_and(|b| a == b))
                    }
                    (a, b) => a == b,
                }
        })
}
