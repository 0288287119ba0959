//! Loops that carry sequences.

use super::*;

/// A loop that puts its carried value into a sequence, `n` times.
fn gathers(n: TensorProto) -> ModelProto {
    let nodes = vec![
        node("Identity", "going", "goes", vec![]),
        node("Neg", "v", "w", vec![]),
        node("SequenceInsert", "s w", "t", vec![]),
    ];
    let mut body = graph(vec![], vec![], nodes, "goes w t");
    body.input = vec![
        value("i", I64, &[]),
        value("going", BOOL, &[]),
        value("v", F32, &["n"]),
        value("s", F32, &[]),
    ];
    let nodes = vec![
        node("SequenceEmpty", "", "empty", vec![]),
        node(
            "Loop",
            "n _ x empty",
            "last all",
            vec![graph_attr("body", body)],
        ),
        node("ConcatFromSequence", "all", "y", vec![int("axis", 0)]),
    ];
    model(
        17,
        graph(vec![value("x", F32, &["n"])], vec![n], nodes, "y"),
    )
}

#[test]
fn a_loop_that_carries_a_sequence_is_unrolled() {
    let times = |n: i64| gathers(raw("n", I64, &[], n.to_le_bytes().to_vec()));
    let want = [
        "Identity(1)",
        "Neg(x)",
        "Identity(1)",
        "Neg(last_node/0/w)",
        "Concat(last_node/0/w, last_node/1/w)",
    ];
    assert_eq!(lines(&import(&times(2))), want);
    let f = import(&times(1 << 20));
    assert!(ops_of(&f).contains(&"Loop"), "{:?}", lines(&f));
}

#[test]
fn a_loop_whose_iterations_the_run_counts_carries_a_packed_sequence() {
    let mut m = gathers(raw("n", I64, &[], vec![0; 8]));
    let g = m.graph.as_mut().unwrap();
    g.initializer.clear();
    g.input.push(value("n", I64, &[]));
    let f = import(&m);
    let made = f.nodes.iter().find(|n| &*n.op == "Loop").unwrap();
    // It carries a tensor, the elements of a sequence, and their shapes.
    assert_eq!((made.inputs.len(), made.outputs.len()), (5, 3));
}

#[test]
fn what_a_loop_carries_keeps_its_kind_and_rank() {
    let check = |nodes: Vec<NodeProto>, runs: bool| {
        let mut body = graph(vec![], vec![], nodes, "goes w t");
        body.input = vec![
            value("i", I64, &[]),
            value("going", BOOL, &[]),
            value("v", F32, &[]),
            value("s", F32, &[]),
        ];
        let nodes = vec![
            node("SequenceEmpty", "", "empty", vec![]),
            node(
                "Loop",
                "n _ x empty",
                "last all",
                vec![graph_attr("body", body)],
            ),
            node("SequenceLength", "all", "y", vec![]),
        ];
        let inputs = vec![value("x", F32, &[]), value("n", I64, &[])];
        let one = raw("one", I64, &[1], 1i64.to_le_bytes().to_vec());
        let made = try_import(&model(17, graph(inputs, vec![one], nodes, "y")));
        match (runs, made) {
            (true, made) => drop(made.unwrap()),
            (false, made) => {
                let e = made.unwrap_err().to_string();
                assert!(e.contains("of another kind or rank"), "{e}");
            }
        }
    };
    let goes = || node("Identity", "going", "goes", vec![]);
    let longer = || node("SequenceInsert", "s v", "t", vec![]);
    let scalar = node("Neg", "v", "w", vec![]);
    check(vec![goes(), longer(), scalar], true);
    let list = node("Reshape", "v one", "w", vec![]);
    check(vec![goes(), longer(), list], false);
    let sequence = node("SequenceConstruct", "v", "w", vec![]);
    check(vec![goes(), longer(), sequence], false);
}

/// A body that takes `own` and a sequence `s`, and yields the condition, and the sequence as `t`.
fn body(
    own: [ValueInfoProto; 2],
    constants: Vec<TensorProto>,
    nodes: Vec<NodeProto>,
) -> GraphProto {
    let mut body = graph(vec![], constants, nodes, "goes t");
    body.input = own.to_vec();
    body.input.push(value("s", F32, &[]));
    body
}

#[test]
fn a_loop_that_ends_itself_is_unrolled_up_to_its_end() {
    let check = |dims: &[&str], ends: &str, limit: i64, want: Result<&[&str], &str>| {
        let nodes = vec![
            node("Less", "i limit", "goes", vec![]),
            node("SequenceInsert", "s x", "t", vec![]),
        ];
        let own = [value("i", I64, dims), value("going", BOOL, dims)];
        let looped = vec![graph_attr("body", body(own, vec![], nodes))];
        let nodes = vec![
            node("SequenceEmpty", "", "empty", vec![]),
            node("Loop", &format!("{ends} empty"), "all", looped),
            node("ConcatFromSequence", "all", "y", vec![int("axis", 0)]),
        ];
        let consts: [(&str, &[i64]); 3] =
            [("most", &[i64::MAX]), ("limit", &[limit]), ("three", &[3])];
        let mut m = of(&["n"], &consts, nodes, "y");
        let yes = raw("yes", BOOL, &[], vec![1]);
        m.graph.get_or_insert_default().initializer.push(yes);
        let made = try_import(&m);
        let made = made.unwrap().function;
        match want {
            Ok(want) => assert_eq!(lines(&made), want),
            Err(op) => assert!(ops_of(&made).contains(&op)),
        }
    };
    let want = ["Less(0, 1)", "Less(1, 1)", "Concat(x, x)"];
    check(&[], "most yes", 1, Ok(&want));
    check(&[], "_ yes", 1, Ok(&want));
    check(&[], "_ _", 1, Ok(&want));
    let want = ["Less([0], 0)", "Concat(x)"];
    check(&["1"], "_ yes", 0, Ok(&want));
    check(&["1"], "_ yes", 5000, Err("Loop"));
    // Without a condition the loop is one of a number of iterations, whatever its body says.
    let want = ["Less(0, 1)", "Less(1, 1)", "Less(2, 1)", "Concat(x, x, x)"];
    check(&[], "three _", 1, Ok(&want));
    check(&[], "most _", 1, Err("Loop"));
}

#[test]
fn what_no_iteration_collects_has_the_shape_that_the_body_gives_it() {
    let check = |most: i64, goes: u8, collects: &str, want: Option<&str>| {
        let nodes = vec![
            node("Identity", "going", "goes", vec![]),
            node("SequenceInsert", "s x", "t", vec![]),
            node("Neg", "x", "row", vec![]),
        ];
        let carried = vec![value("s", F32, &[])];
        let outputs = format!("all {collects}");
        let ends = ["most go empty", &*outputs];
        let mut nodes = collecting(carried, nodes, "goes t row", ends);
        nodes.push(node("SequenceLength", "all", "length", vec![]));
        let most = raw("most", I64, &[], most.to_le_bytes().to_vec());
        let go = raw("go", BOOL, &[], vec![goes]);
        let results = format!("length {collects}");
        let f = import(&with_choice(vec![], vec![most, go], nodes, results.trim()));
        let rows = f.results.get(1).map(|(_, id)| &f.ty(*id).shape[1..]);
        let rows = rows.map(|row| format!("{row:?}"));
        assert_eq!(rows.as_deref(), want);
    };
    check(0, 1, "rows", Some("[n]"));
    check(3, 0, "rows", Some("[n]"));
    check(0, 1, "", None);
}

#[test]
fn unrolled_loops_in_loops_are_bounded() {
    let own = || [value("i", I64, &[]), value("goes", BOOL, &[])];
    let check = |inner: GraphProto, says: &str| {
        let each = (0..20).map(|at| {
            let (from, to) = (format!("s{at}"), format!("s{}", at + 1));
            let inner = vec![graph_attr("body", inner.clone())];
            node("Loop", &format!("most _ {from}"), &to, inner)
        });
        let each = [node("Identity", "s", "s0", vec![])]
            .into_iter()
            .chain(each);
        let last = [node("Identity", "s20", "t", vec![])];
        let outer = body(own(), vec![], each.chain(last).collect());
        let nodes = vec![
            node("SequenceEmpty", "", "empty", vec![]),
            node(
                "Loop",
                "most _ empty",
                "all",
                vec![graph_attr("body", outer)],
            ),
            node("SequenceLength", "all", "y", vec![]),
        ];
        let m = of(&["n"], &[("most", &[1024])], nodes, "y");
        let e = try_import(&m).expect_err(says).to_string();
        assert!(e.contains(says), "{e}");
    };
    let mut empty = graph(vec![], vec![], vec![], "goes s");
    empty.input = own().to_vec();
    empty.input.push(value("s", F32, &[]));
    check(empty.clone(), "too many bytes of expanded functions");
    let unread = (0..500).map(|at| floats(&format!("c{at}"), &[1], &[0.]));
    let constants = GraphProto {
        initializer: unread.collect(),
        ..empty
    };
    check(constants, "too many nodes");
}

/// An empty sequence, and a loop of these nodes that takes it. `carried` are the body's carried values, without the
/// parameters that every body has.
fn collecting(
    carried: Vec<ValueInfoProto>,
    nodes: Vec<NodeProto>,
    yields: &str,
    [inputs, outputs]: [&str; 2],
) -> Vec<NodeProto> {
    let mut body = graph(vec![], vec![], nodes, yields);
    body.input = loop_own();
    body.input.extend(carried);
    let body = vec![graph_attr("body", body)];
    vec![
        node("SequenceEmpty", "", "empty", vec![]),
        node("Loop", inputs, outputs, body),
    ]
}

fn loop_own() -> Vec<ValueInfoProto> {
    vec![value("i", I64, &[]), value("going", BOOL, &[])]
}

#[test]
fn a_loop_does_not_collect_or_carry_what_may_be_a_scalar_or_a_list() {
    let collects = |most: &str| {
        let nodes = vec![
            node("Identity", "going", "goes", vec![]),
            node("SequenceInsert", "s x", "t", vec![]),
            of_either_rank(),
        ];
        let inputs = format!("{most} _ empty");
        let carried = vec![value("s", F32, &[])];
        let nodes = collecting(carried, nodes, "goes t w", [&inputs, "all y"]);
        let two = raw("two", I64, &[], 2i64.to_le_bytes().to_vec());
        with_choice(vec![], vec![two], nodes, "all y")
    };
    assert_eq!(refused_for_its_rank(&collects("two")), "Loop");
    assert_eq!(refused_for_its_rank(&collects("k")), "Loop");
    // The carried value has the rank of a list from the first iteration on.
    let nodes = vec![
        node("Identity", "going", "goes", vec![]),
        node("SequenceInsert", "s x", "t", vec![]),
        of_either_rank(),
    ];
    let carried = vec![value("s", F32, &[]), value("v", F32, &[])];
    let nodes = collecting(carried, nodes, "goes t w", ["k _ empty first", "all y"]);
    let first = floats("first", &[1], &[0.]);
    let m = with_choice(vec![], vec![first], nodes, "all y");
    assert_eq!(refused_for_its_rank(&m), "Loop");
}

/// A loop that runs `k` times and puts `k` into `s`, a sequence that is declared without a dtype.
fn numbers(inner: bool) -> ModelProto {
    let inserted = || node("SequenceInsert", "s k", "t", vec![]);
    let body = |nodes: Vec<NodeProto>| {
        let all = [node("Identity", "going", "goes", vec![])];
        let all = all.into_iter().chain(nodes).collect();
        let mut body = graph(vec![], vec![], all, "goes t");
        body.input = loop_own();
        let mut s = value("s", F32, &[]);
        s.r#type = None;
        body.input.push(s);
        graph_attr("body", body)
    };
    let outer = match inner {
        false => body(vec![inserted()]),
        true => {
            let within = body(vec![inserted()]);
            body(vec![node("Loop", "k _ s", "t", vec![within])])
        }
    };
    let empty = vec![int("dtype", i64::from(I64))];
    let nodes = vec![
        node("SequenceEmpty", "", "empty", empty),
        node("Loop", "k _ empty", "all", vec![outer]),
        node("SequenceAt", "all k", "y", vec![]),
    ];
    with_choice(vec![], vec![], nodes, "y")
}

#[test]
fn what_is_put_into_an_empty_sequence_decides_its_dtype() {
    for inner in [false, true] {
        let f = import(&numbers(inner));
        assert_eq!(f.ty(f.results[0].1).to_string(), "i64[]");
    }
}

#[test]
fn what_passes_through_many_carried_sequences_is_found() {
    const PLACES: usize = 30;
    let join = |name: &str| {
        let all: Vec<String> = (0..PLACES).map(|at| format!("{name}{at}")).collect();
        all.join(" ")
    };
    let mut nodes = vec![
        node("Identity", "going", "goes", vec![]),
        node("SequenceInsert", "s0 x", "t0", vec![]),
    ];
    for at in 1..PLACES {
        let (from, to) = (format!("s{}", at - 1), format!("t{at}"));
        nodes.push(node("Identity", &from, &to, vec![]));
    }
    let carried = (0..PLACES).map(|at| value(&format!("s{at}"), F32, &[]));
    let empty = vec!["empty"; PLACES].join(" ");
    let (inputs, yields) = (format!("k _ {empty}"), format!("goes {}", join("t")));
    let mut nodes = collecting(carried.collect(), nodes, &yields, [&inputs, &join("u")]);
    let last = format!("u{} k", PLACES - 1);
    nodes.push(node("SequenceAt", &last, "y", vec![]));
    let f = import(&with_choice(vec![], vec![], nodes, "y"));
    assert_eq!(f.ty(f.results[0].1).shape.len(), 1);
}

#[test]
fn a_loop_whose_condition_follows_from_what_it_carries_is_tried_out() {
    let check = |most: i64, later: &str, is_unrolled: bool| {
        let nodes = vec![
            node("Not", "found", "goes", vec![]),
            node("Identity", later, "finds", vec![]),
            node("SequenceInsert", "s x", "t", vec![]),
        ];
        let carried = vec![value("found", BOOL, &[]), value("s", F32, &[])];
        let ends = ["most yes no empty", "last all"];
        let mut nodes = collecting(carried, nodes, "goes finds t", ends);
        nodes.push(node("SequenceLength", "all", "y", vec![]));
        let no = raw("no", BOOL, &[], vec![0]);
        let yes = raw("yes", BOOL, &[], vec![1]);
        let most = raw("most", I64, &[], most.to_le_bytes().to_vec());
        let f = import(&with_choice(vec![], vec![no, yes, most], nodes, "y"));
        assert_eq!(!ops_of(&f).contains(&"Loop"), is_unrolled);
    };
    // Whether the second iteration is the last one is known only when the model runs.
    check(10, "c", false);
    check(1, "c", true);
    check(10, "found", true);
}
