//! Tests of `SequenceMap`, and of the lengths of tensors that are cut into sequences.

use super::*;

/// A model that maps `s` and further sequences by a body of these nodes, which yields `w`.
fn maps(
    made: Vec<NodeProto>,
    sequences: &[&str],
    initializers: Vec<TensorProto>,
    nodes: Vec<NodeProto>,
) -> ModelProto {
    let mut body = graph(vec![], vec![], nodes, "w");
    let params = (0..sequences.len()).map(|at| value(&format!("p{at}"), F32, &["m"]));
    body.input = params.collect();
    let mapped = vec![graph_attr("body", body)];
    let mapped = node("SequenceMap", &sequences.join(" "), "y", mapped);
    let nodes = made.into_iter().chain([mapped]).collect();
    let lists = vec![value("a", I64, &["p"]), value("b", I64, &["q"])];
    with_choice(lists, initializers, nodes, "y")
}

#[test]
fn a_map_does_not_yield_what_may_be_a_scalar_or_a_list() {
    let check = |made: NodeProto| {
        let m = maps(vec![made], &["s"], vec![], vec![of_either_rank()]);
        assert_eq!(refused_for_its_rank(&m), "SequenceMap");
    };
    check(node("SequenceConstruct", "x x", "s", vec![]));
    check(node("SplitToSequence", "x a", "s", vec![]));
}

/// The ops of all nodes that a value depends on.
fn ops_behind(f: &Function, id: convoke_graph::graph::ValueId) -> Vec<&str> {
    let mut known = vec![id];
    let mut all = vec![];
    for n in f.nodes.iter().rev() {
        if n.outputs.iter().any(|o| known.contains(o)) {
            known.extend(n.inputs.iter().flatten());
            all.push(&*n.op);
        }
    }
    all
}

#[test]
fn sequences_of_a_map_are_refused_unless_they_are_of_one_length() {
    let split =
        |lengths: &str, out: &str| node("SplitToSequence", &format!("x {lengths}"), out, vec![]);
    let check = |made: Vec<NodeProto>, sequences: &[&str], is_checked: bool| {
        let body = vec![node("Neg", "p0", "w", vec![])];
        let f = import(&maps(made, sequences, vec![], body));
        let mapped = f.nodes.iter().find(|n| &*n.op == "Loop").unwrap();
        let behind = ops_behind(&f, mapped.inputs[0].unwrap());
        let compared = behind.iter().filter(|op| **op == "Equal").count();
        assert_eq!(compared > 0, is_checked, "{behind:?}");
    };
    let lists = || vec![split("a", "s"), split("b", "t")];
    check(lists(), &["s"], false);
    check(lists(), &["s", "x"], false);
    check(lists(), &["s", "t"], true);
    let known = || {
        vec![
            split("a", "s"),
            node("SequenceConstruct", "x x", "t", vec![]),
        ]
    };
    check(known(), &["s", "t"], true);
    check(known(), &["t", "s"], true);
}

/// Whether a run of a function on lists of i64 fails, with these parameters. It computes only values that the elements
/// of such lists decide.
fn fails_when_run(f: &Function, given: &[(&str, Vec<i64>)]) -> bool {
    use std::collections::HashMap;
    let mut known: HashMap<_, Vec<i64>> = HashMap::new();
    for (id, literal) in &f.literals {
        if let Literal::Inline(t) = literal
            && let Some(v) = t.to_i64s()
        {
            known.insert(*id, v);
        }
    }
    for id in &f.params {
        let of = |(name, _): &&(&str, _)| f.value(*id).name.as_ref() == *name;
        if let Some((_, v)) = given.iter().find(of) {
            known.insert(*id, v.clone());
        }
    }
    for n in &f.nodes {
        let inputs = n.inputs.iter().flatten();
        let all: Option<Vec<&Vec<i64>>> = inputs.map(|id| known.get(id)).collect();
        let pairs = |op: &dyn Fn(i64, i64) -> i64| {
            let [a, b] = all.as_deref()? else { return None };
            let length = if a.len() == 1 { b.len() } else { a.len() };
            let at = |v: &[i64], i: usize| v[if v.len() == 1 { 0 } else { i }];
            Some((0..length).map(|i| op(at(a, i), at(b, i))).collect())
        };
        let each = |op: &dyn Fn(i64) -> i64| {
            let v = all.as_deref()?.first()?;
            Some(v.iter().map(|v| op(*v)).collect())
        };
        let made = match &*n.op {
            "Shape" => {
                let dims = &f.ty(n.inputs[0].unwrap()).shape;
                let (from, to) = (n.attrs.int("start", 0), n.attrs.int("end", i64::MAX));
                let read = &dims[from as usize..(to as usize).min(dims.len())];
                read.iter().map(|d| d.as_const()).collect()
            }
            "Abs" => each(&|v| v.abs()),
            "Not" => each(&|v| 1 - v),
            "Cast" => each(&|v| v),
            "And" => pairs(&|a, b| a & b),
            "Equal" => pairs(&|a, b| i64::from(a == b)),
            "ReduceSum" => all.map(|all| vec![all[0].iter().sum()]),
            "Gather" => match all.as_deref() {
                Some([v, at]) => {
                    let found: Option<Vec<i64>> =
                        at.iter().map(|at| v.get(*at as usize).copied()).collect();
                    if found.is_none() {
                        return true;
                    }
                    found
                }
                _ => None,
            },
            _ => None,
        };
        if let (Some(made), Some(id)) = (made, n.outputs.first()) {
            known.insert(*id, made);
        }
    }
    false
}

#[test]
fn lengths_of_parts_make_up_the_axis_even_where_there_are_no_elements() {
    let check = |dims: [&str; 2], axis: i64, lengths: [i64; 2], fails: bool| {
        let inputs = vec![value("x", F32, &dims), value("lengths", I64, &["p"])];
        let split = vec![int("axis", axis)];
        let nodes = vec![
            node("SplitToSequence", "x lengths", "s", split),
            node("SequenceLength", "s", "y", vec![]),
            node("ConcatFromSequence", "s", "z", vec![int("axis", axis)]),
        ];
        let f = import(&model(17, graph(inputs, vec![], nodes, "y z")));
        let given = [("lengths", lengths.to_vec())];
        assert_eq!(fails_when_run(&f, &given), fails, "{dims:?} {lengths:?}");
    };
    for (dims, axis) in [(["4", "0"], 0), (["0", "4"], 1), (["4", "3"], 0)] {
        check(dims, axis, [1, 3], false);
        check(dims, axis, [4, 0], false);
        check(dims, axis, [-1, 5], true);
        check(dims, axis, [1, 1], true);
        check(dims, axis, [2, 3], true);
        check(dims, axis, [-2, -2], true);
    }
}
