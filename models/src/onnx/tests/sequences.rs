//! Tests of sequences and optional values, of which the function knows only the tensors.

use super::super::inputs::GivenInput;
use super::*;

const BOOL: i32 = 9;

/// A model of `nodes`, whose input `x` has this shape.
fn of(dims: &[&str], consts: &[(&str, &[i64])], nodes: Vec<NodeProto>, output: &str) -> ModelProto {
    let constants = consts.iter().map(|(name, v)| {
        let bytes = bytemuck::cast_slice(v).to_vec();
        let dims: &[i64] = if v.len() == 1 { &[] } else { &[v.len() as i64] };
        raw(name, I64, dims, bytes)
    });
    let x = value("x", F32, dims);
    model(17, graph(vec![x], constants.collect(), nodes, output))
}

/// A model whose input `s` is a sequence, or an optional one, of tensors of a declared shape or none.
fn takes(optional: bool, dims: Option<&[&str]>, nodes: Vec<NodeProto>, output: &str) -> ModelProto {
    let mut s = value("s", F32, dims.unwrap_or_default());
    let mut element = s.r#type.take().unwrap();
    if let (None, Some(type_proto::Value::TensorType(t))) = (dims, &mut element.value) {
        t.shape = None;
    }
    let sequence = type_proto::Sequence {
        elem_type: Some(Box::new(element)),
    };
    let mut ty = TypeProto {
        value: Some(type_proto::Value::SequenceType(Box::new(sequence))),
    };
    if optional {
        let held = type_proto::Optional {
            elem_type: Some(Box::new(ty)),
        };
        ty = TypeProto {
            value: Some(type_proto::Value::OptionalType(Box::new(held))),
        };
    }
    s.r#type = Some(ty);
    model(17, graph(vec![s], vec![], nodes, output))
}

fn given(m: &ModelProto, input: GivenInput) -> Result<Function, ModelError> {
    let s = Scratch::new();
    let path = s.write("m.onnx", &m.encode_to_vec());
    let mut options = options(&s);
    options.inputs.insert("s".into(), input);
    load(&path, &options).map(|i| i.function)
}

fn results(f: &Function) -> Vec<(&str, String)> {
    let all = f.results.iter();
    all.map(|(name, id)| (name.as_str(), f.ty(*id).to_string()))
        .collect()
}

#[test]
fn what_a_graph_puts_into_sequences_is_read_without_them() {
    let check = |nodes: Vec<NodeProto>, want: &[&str]| {
        let consts: [(&str, &[i64]); 4] = [
            ("zero", &[0]),
            ("last", &[-1]),
            ("two", &[2]),
            ("sizes", &[1, 3]),
        ];
        let f = import(&of(&["4", "n"], &consts, nodes, "y"));
        assert_eq!(lines(&f), want);
    };
    let n = |op: &str, ins: &str, out: &str| node(op, ins, out, vec![]);
    check(
        vec![
            n("Neg", "x", "a"),
            n("SequenceConstruct", "x a", "s"),
            n("SequenceInsert", "s x zero", "t"),
            n("SequenceErase", "t", "u"),
            n("SequenceAt", "u last", "b"),
            n("Abs", "b", "y"),
        ],
        &["Neg(x)", "Abs(x)"],
    );
    check(
        vec![
            n("SplitToSequence", "x two", "s"),
            n("SequenceAt", "s last", "b"),
            n("Identity", "s", "t"),
            n("SequenceLength", "t", "l"),
            n("Gather", "b l", "y"),
        ],
        &["Split(x, [2, 2])", "Gather(s[1], 2)"],
    );
    check(
        vec![
            n("SplitToSequence", "x sizes", "s"),
            node("ConcatFromSequence", "s", "y", vec![int("axis", 0)]),
        ],
        &["Split(x, [1, 3])", "Concat(s[0], s[1])"],
    );
    check(
        vec![
            node("SplitToSequence", "x", "s", vec![int("keepdims", 0)]),
            node(
                "ConcatFromSequence",
                "s",
                "y",
                vec![int("axis", -1), int("new_axis", 1)],
            ),
        ],
        &[
            "Split(x, [1, 1, 1, 1])",
            "Squeeze(s[0], [0])",
            "Squeeze(s[1], [0])",
            "Squeeze(s[2], [0])",
            "Squeeze(s[3], [0])",
            "Unsqueeze(s_node/Squeeze0, [-1])",
            "Unsqueeze(s_node/Squeeze1, [-1])",
            "Unsqueeze(s_node/Squeeze2, [-1])",
            "Unsqueeze(s_node/Squeeze3, [-1])",
            "Concat(y_node/Unsqueeze0, y_node/Unsqueeze1, \
             y_node/Unsqueeze2, y_node/Unsqueeze3)",
        ],
    );
}

#[test]
fn sequences_of_inputs_and_outputs_are_their_tensors() {
    let copied = || vec![node("Identity", "s", "y", vec![])];
    let pair = || GivenInput::Sequence(vec![1, 2]);
    let f = given(&takes(false, None, copied(), "y"), pair()).unwrap();
    let want = [("y[0]", "f32[s[0].0]"), ("y[1]", "f32[s[1].0, s[1].1]")];
    assert_eq!(results(&f), want.map(|(name, ty)| (name, ty.to_string())));
    let names: Vec<_> = f
        .params
        .iter()
        .map(|id| f.value(*id).name.to_string())
        .collect();
    assert_eq!(names, ["s[0]", "s[1]"]);
    let f = given(
        &takes(true, Some(&["2"]), copied(), "y"),
        GivenInput::Sequence(vec![1]),
    )
    .unwrap();
    assert_eq!(results(&f), [("y[0]", "f32[2]".to_string())]);
    let has = || vec![node("OptionalHasElement", "s", "y", vec![])];
    for (input, want) in [(GivenInput::Nothing, "0"), (pair(), "1")] {
        let f = given(&takes(true, None, has(), "y"), input).unwrap();
        let (_, y) = &f.results[0];
        assert_eq!(elements(f.inline(*y).unwrap()), want);
    }
    let refused = |m: ModelProto, input: GivenInput, says: &str| {
        let e = given(&m, input).expect_err(says).to_string();
        assert!(e.contains(says), "{e}");
    };
    let held = vec![node("OptionalGetElement", "s", "y", vec![])];
    refused(
        takes(true, None, held, "y"),
        GivenInput::Nothing,
        "its operand holds nothing",
    );
    refused(
        takes(false, Some(&["2"]), copied(), "y"),
        pair(),
        "cannot hold 's[1]' of rank 2",
    );
    refused(
        takes(false, None, copied(), "y"),
        GivenInput::Sequence(vec![17]),
        "of rank 17",
    );
    refused(
        takes(false, None, copied(), "y"),
        GivenInput::Nothing,
        "number of tensors must be given",
    );
}

#[test]
fn a_rank_that_only_the_run_decides_is_reported_with_all_else() {
    let x = value("x", F32, &["n"]);
    let at = value("at", I64, &[]);
    let nodes = vec![
        node("SplitToSequence", "x", "s", vec![]),
        node("SequenceAt", "s at", "a", vec![]),
        node("Unsqueeze", "a zero", "b", vec![]),
        node("SequenceConstruct", "a b", "t", vec![]),
        node("SequenceAt", "t at", "c", vec![]),
        node("NoSuchOp", "c", "y", vec![]),
    ];
    let zero = raw("zero", I64, &[1], vec![0; 8]);
    let m = model(17, graph(vec![x, at], vec![zero], nodes, "y"));
    let Err(ModelError::Unsupported { nodes }) = try_import(&m) else {
        panic!("supported");
    };
    let said: Vec<_> = nodes
        .iter()
        .map(|n| (&*n.op, n.reason.as_deref().unwrap_or("")))
        .collect();
    let want = [
        ("SequenceAt", "the tensors of its sequence differ in rank"),
        ("NoSuchOp", ""),
    ];
    assert_eq!(said, want);
}

/// The ops of the nodes, each once.
fn ops_of(f: &Function) -> Vec<&str> {
    let mut all: Vec<&str> = f.nodes.iter().map(|n| &*n.op).collect();
    all.sort();
    all.dedup();
    all
}

fn outputs(m: &ModelProto) -> Vec<(String, bool, bool)> {
    let made = try_import(m).unwrap_or_else(|e| panic!("{e}"));
    let each = made.outputs.into_iter();
    each.map(|form| (form.name, form.optional, form.sequence))
        .collect()
}

#[test]
fn a_sequence_of_a_length_that_the_run_decides_is_two_results() {
    let nodes = || vec![node("SplitToSequence", "x", "y", vec![])];
    let m = of(&["n", "4"], &[], nodes(), "y");
    assert_eq!(outputs(&m), [("y".to_string(), false, true)]);
    let f = import(&m);
    let want = [("y.elements", "f32"), ("y.shapes", "i64")];
    for ((name, ty), (want, dtype)) in results(&f).iter().zip(want) {
        assert!(*name == want && ty.starts_with(dtype), "{name} {ty}");
    }
    let m = of(&["2", "4"], &[], nodes(), "y");
    let each = ["y[0]", "y[1]"].map(|name| (name.to_string(), false, false));
    assert_eq!(outputs(&m), each);
}

#[test]
fn a_branch_may_yield_nothing() {
    let held = || vec![node("Optional", "x", "made", vec![])];
    let nothing = || vec![node("Optional", "", "made", vec![])];
    let check = |nodes: [Vec<NodeProto>; 2], optional: bool| {
        let [yes, no] = nodes.map(|nodes| graph(vec![], vec![], nodes, "made"));
        let branches = vec![
            graph_attr("then_branch", yes),
            graph_attr("else_branch", no),
        ];
        let inputs = vec![value("c", BOOL, &[]), value("x", F32, &["n"])];
        let nodes = vec![node("If", "c", "y", branches)];
        let m = model(17, graph(inputs, vec![], nodes, "y"));
        assert_eq!(outputs(&m), [("y".to_string(), optional, false)]);
    };
    check([held(), held()], false);
    check([held(), nothing()], true);
    check([nothing(), held()], true);
}

#[test]
fn functions_of_a_model_take_and_yield_sequences() {
    let body = vec![
        node("SequenceInsert", "a t", "b", vec![]),
        node("SequenceLength", "b", "l", vec![]),
    ];
    let function = FunctionProto {
        name: Some("Longer".into()),
        domain: Some("my.ops".into()),
        input: names("a t"),
        output: names("b l"),
        node: body,
        opset_import: vec![opset("", 17)],
        ..FunctionProto::default()
    };
    let mut called = node("Longer", "s x", "u l", vec![]);
    called.domain = Some("my.ops".into());
    let nodes = vec![
        node("SequenceConstruct", "x", "s", vec![]),
        called,
        node("SequenceAt", "u one", "a", vec![]),
        node("Gather", "a l", "y", vec![]),
    ];
    let mut m = of(&["5"], &[("one", &[1])], nodes, "y");
    m.functions.push(function);
    m.opset_import.push(opset("my.ops", 1));
    assert_eq!(lines(&import(&m)), ["Gather(x, 2)"]);
}

/// An If whose branches yield sequences of these lengths.
fn chosen(lengths: [usize; 2]) -> ModelProto {
    let branch = |length: usize| {
        let operands = vec!["x"; length].join(" ");
        let made = node("SequenceConstruct", &operands, "made", vec![]);
        graph(vec![], vec![], vec![made], "made")
    };
    let [yes, no] = lengths.map(branch);
    let branches = vec![
        graph_attr("then_branch", yes),
        graph_attr("else_branch", no),
    ];
    let nodes = vec![
        node("If", "c", "s", branches),
        node("ConcatFromSequence", "s", "y", vec![int("axis", 0)]),
    ];
    let inputs = vec![value("c", BOOL, &[]), value("x", F32, &["n"])];
    model(17, graph(inputs, vec![], nodes, "y"))
}

#[test]
fn branches_may_yield_sequences_of_different_lengths() {
    assert_eq!(
        lines(&import(&chosen([2, 2]))),
        ["If(c, x)", "Concat(s[0], s[1])"]
    );
    let refused = |lengths: [usize; 2], says: &str| {
        let e = try_import(&chosen(lengths)).expect_err(says).to_string();
        assert!(e.contains(says), "{e}");
    };
    let f = import(&chosen([1, 2]));
    assert_eq!(lines(&f)[0], "If(c, x)");
    let types = f.nodes[0].outputs.iter().map(|id| f.ty(*id).to_string());
    let types: Vec<String> = types.collect();
    let [elements_of, shapes] = types.as_slice() else {
        panic!("{types:?}");
    };
    assert!(elements_of.starts_with("f32["), "{elements_of}");
    assert!(
        shapes.starts_with("i64[") && shapes.ends_with(", 2]"),
        "{shapes}"
    );
    refused([256, 256], "its branches yield more than 255 tensors");
    refused([0, 0], "it joins no tensors");
    let mut empty = chosen([0, 0]);
    let g = empty.graph.as_mut().unwrap();
    g.node[1] = node("SequenceLength", "s", "y", vec![]);
    let f = import(&empty);
    assert_eq!(elements(f.inline(f.results[0].1).unwrap()), "0");
}

#[test]
fn a_branch_that_squeezes_may_yield_a_sequence() {
    let branch = |op: &str, operands: &str| {
        let nodes = vec![
            node(op, operands, "made", vec![]),
            node("SequenceConstruct", "made", "all", vec![]),
        ];
        graph(vec![], vec![], nodes, "all")
    };
    let branches = vec![
        graph_attr("then_branch", branch("Squeeze", "x zero")),
        graph_attr("else_branch", branch("Identity", "x")),
    ];
    let nodes = vec![
        node("Shape", "x", "shape", vec![]),
        node("Gather", "shape first", "size", vec![]),
        node("Equal", "size one", "c", vec![]),
        node("If", "c", "s", branches),
        node("SequenceAt", "s first", "a", vec![]),
        node("Neg", "a", "y", vec![]),
    ];
    let mut m = of(&["n", "4"], &[("first", &[0]), ("one", &[1])], nodes, "y");
    let zero = raw("zero", I64, &[1], vec![0; 8]);
    m.graph.as_mut().unwrap().initializer.push(zero);
    let f = import(&m);
    let made = lines(&f);
    let last = &made[made.len() - 2..];
    assert_eq!(last, ["Squeeze(x, [0])", "Neg(s[0])"]);
}

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
    // What it carries are a tensor, the elements of a sequence, and their shapes.
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
    let check = |dims: &[&str], most: &str, limit: i64, want: Result<&[&str], &str>| {
        let nodes = vec![
            node("Less", "i limit", "goes", vec![]),
            node("SequenceInsert", "s x", "t", vec![]),
        ];
        let own = [value("i", I64, dims), value("going", BOOL, dims)];
        let looped = vec![graph_attr("body", body(own, vec![], nodes))];
        let nodes = vec![
            node("SequenceEmpty", "", "empty", vec![]),
            node("Loop", &format!("{most} _ empty"), "all", looped),
            node("ConcatFromSequence", "all", "y", vec![int("axis", 0)]),
        ];
        let consts: [(&str, &[i64]); 2] = [("most", &[i64::MAX]), ("limit", &[limit])];
        let made = try_import(&of(&["n"], &consts, nodes, "y"));
        let made = made.unwrap().function;
        match want {
            Ok(want) => assert_eq!(lines(&made), want),
            Err(op) => assert!(ops_of(&made).contains(&op)),
        }
    };
    let want = ["Less(0, 1)", "Less(1, 1)", "Concat(x, x)"];
    check(&[], "most", 1, Ok(&want));
    check(&[], "_", 1, Ok(&want));
    let want = ["Less([0], 0)", "Concat(x)"];
    check(&["1"], "_", 0, Ok(&want));
    check(&["1"], "_", 5000, Err("Loop"));
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

#[test]
fn a_list_of_many_sizes_splits_a_tensor() {
    let split = |dims: &[&str], count: usize| {
        let nodes = vec![
            node("SplitToSequence", "x sizes", "s", vec![]),
            node("SequenceAt", "s last", "b", vec![]),
            node("Neg", "b", "y", vec![]),
        ];
        let sizes = vec![1; count];
        try_import(&of(dims, &[("sizes", &sizes), ("last", &[-1])], nodes, "y"))
    };
    let made = split(&["100", "3"], 100).unwrap().function;
    assert_eq!(lines(&made)[1], "Neg(s[99])");
    let many = split(&["2000"], 2000).unwrap().function;
    assert!(!ops_of(&many).contains(&"Split"));
}

/// A model on `x: f32[n]`, `c: bool`, `k: i64` and what else is given.
fn with_choice(
    inputs: Vec<ValueInfoProto>,
    initializers: Vec<TensorProto>,
    nodes: Vec<NodeProto>,
    y: &str,
) -> ModelProto {
    let own = [
        value("x", F32, &["n"]),
        value("c", BOOL, &[]),
        value("k", I64, &[]),
    ];
    let inputs = own.into_iter().chain(inputs).collect();
    model(17, graph(inputs, initializers, nodes, y))
}

/// A node whose result `w` is a scalar in one branch of an If, and a list of one number in the other.
fn of_either_rank() -> NodeProto {
    let branch = |dims: &[i64]| {
        let t = tensor_attr("value", floats("", dims, &[1.]));
        graph(
            vec![],
            vec![],
            vec![node("Constant", "", "made", vec![t])],
            "made",
        )
    };
    let branches = vec![
        graph_attr("then_branch", branch(&[])),
        graph_attr("else_branch", branch(&[1])),
    ];
    node("If", "c", "w", branches)
}

/// The op that is refused because it takes or makes what is a scalar or a list of one number.
fn refused_for_its_rank(m: &ModelProto) -> String {
    let Err(ModelError::Unsupported { nodes }) = try_import(m) else {
        panic!("supported");
    };
    for n in &nodes {
        let reason = n.reason.as_deref().unwrap_or("");
        assert!(
            reason.contains("a scalar in one branch of an If"),
            "{reason}"
        );
    }
    nodes[0].op.clone()
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
        let mut body = graph(vec![], vec![], nodes, "goes t w");
        body.input = loop_own();
        body.input.push(value("s", F32, &[]));
        let nodes = vec![
            node("SequenceEmpty", "", "empty", vec![]),
            node(
                "Loop",
                &format!("{most} _ empty"),
                "all y",
                vec![graph_attr("body", body)],
            ),
        ];
        let two = raw("two", I64, &[], 2i64.to_le_bytes().to_vec());
        with_choice(vec![], vec![two], nodes, "all y")
    };
    assert_eq!(refused_for_its_rank(&collects("two")), "Loop");
    assert_eq!(refused_for_its_rank(&collects("k")), "Loop");
    // What is carried has the rank of a list from the first iteration on.
    let nodes = vec![
        node("Identity", "going", "goes", vec![]),
        node("SequenceInsert", "s x", "t", vec![]),
        of_either_rank(),
    ];
    let mut body = graph(vec![], vec![], nodes, "goes t w");
    body.input = loop_own();
    body.input
        .extend([value("s", F32, &[]), value("v", F32, &[])]);
    let nodes = vec![
        node("SequenceEmpty", "", "empty", vec![]),
        node(
            "Loop",
            "k _ empty first",
            "all y",
            vec![graph_attr("body", body)],
        ),
    ];
    let first = floats("first", &[1], &[0.]);
    let m = with_choice(vec![], vec![first], nodes, "all y");
    assert_eq!(refused_for_its_rank(&m), "Loop");
}

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

/// Whether a run of what a function makes of lists of i64 fails, where its parameters are these. Only what the elements of such
/// lists decide is computed.
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
    let mut body = graph(vec![], vec![], nodes, &format!("goes {}", join("t")));
    body.input = loop_own();
    body.input
        .extend((0..PLACES).map(|at| value(&format!("s{at}"), F32, &[])));
    let empty = vec!["empty"; PLACES].join(" ");
    let nodes = vec![
        node("SequenceEmpty", "", "empty", vec![]),
        node(
            "Loop",
            &format!("k _ {empty}"),
            &join("u"),
            vec![graph_attr("body", body)],
        ),
        node("SequenceAt", &format!("u{} k", PLACES - 1), "y", vec![]),
    ];
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
        let mut body = graph(vec![], vec![], nodes, "goes finds t");
        body.input = loop_own();
        body.input
            .extend([value("found", BOOL, &[]), value("s", F32, &[])]);
        let nodes = vec![
            node("SequenceEmpty", "", "empty", vec![]),
            node(
                "Loop",
                "most _ no empty",
                "last all",
                vec![graph_attr("body", body)],
            ),
            node("SequenceLength", "all", "y", vec![]),
        ];
        let no = raw("no", BOOL, &[], vec![0]);
        let most = raw("most", I64, &[], most.to_le_bytes().to_vec());
        let f = import(&with_choice(vec![], vec![no, most], nodes, "y"));
        assert_eq!(!ops_of(&f).contains(&"Loop"), is_unrolled);
    };
    // Whether the second iteration is the last one is known only when the model runs.
    check(10, "c", false);
    check(1, "c", true);
    check(10, "found", true);
}

#[test]
fn nothing_is_copied_as_nothing() {
    let nodes = vec![
        node("Identity", "s", "t", vec![]),
        node("OptionalHasElement", "t", "y", vec![]),
    ];
    let f = given(&takes(true, None, nodes, "y"), GivenInput::Nothing).unwrap();
    let (_, y) = &f.results[0];
    assert_eq!(elements(f.inline(*y).unwrap()), "0");
}

#[test]
fn what_is_given_for_inputs_must_fit_them() {
    let m = |names: &[&str]| {
        let copied = node("Identity", "s", "y", vec![]);
        let mut m = takes(false, None, vec![copied], "y");
        let tensors = names.iter().map(|name| value(name, F32, &["n"]));
        m.graph.as_mut().unwrap().input.extend(tensors);
        m
    };
    let check = |others: &[&str], name: &str, input: GivenInput, want: Result<(), &str>| {
        let s = Scratch::new();
        let path = s.write("m.onnx", &m(others).encode_to_vec());
        let mut options = options(&s);
        options
            .inputs
            .insert("s".into(), GivenInput::Sequence(vec![1]));
        options.inputs.insert(name.into(), input);
        let made = load(&path, &options).map(|_| ()).map_err(|e| e.to_string());
        match want {
            Ok(()) => made.unwrap(),
            Err(want) => assert_eq!(made.unwrap_err(), want),
        }
    };
    let ranks = |n: usize| GivenInput::Sequence(vec![1; n]);
    let nothing = || GivenInput::Nothing;
    let no = "input 'typo': the model has no such input";
    check(&[], "typo", nothing(), Err(no));
    check(&[], "typo", ranks(1), Err(no));
    check(
        &["x"],
        "x",
        nothing(),
        Err("input 'x': is not optional, so that it cannot be left out"),
    );
    check(
        &["x"],
        "x",
        ranks(1),
        Err("input 'x': is no sequence, so that it cannot hold several tensors"),
    );
    check(&[], "s", ranks(1024), Ok(()));
    check(
        &[],
        "s",
        ranks(1025),
        Err("input 's': a sequence of more than 1024 tensors"),
    );
    // The inputs themselves may be called as if they were those of a sequence.
    check(&["t[0]"], "t", ranks(1), Ok(()));
    check(
        &["s[0]"],
        "s",
        ranks(1),
        Err("value 's[0]' is defined twice"),
    );
}

#[test]
fn wrong_operands_are_refused() {
    let check = |nodes: Vec<NodeProto>, dims: &[&str], says: &str| {
        let consts: [(&str, &[i64]); 2] = [("five", &[5]), ("none", &[-9])];
        let e = try_import(&of(dims, &consts, nodes, "y"))
            .expect_err(says)
            .to_string();
        assert!(e.contains(says), "{e}");
    };
    let n = |op: &str, ins: &str, out: &str| node(op, ins, out, vec![]);
    let made = || n("SequenceConstruct", "x x", "s");
    check(
        vec![n("SequenceAt", "x five", "y")],
        &["2"],
        "operand 0 is no sequence",
    );
    check(
        vec![made(), n("SequenceAt", "s five", "y")],
        &["2"],
        "no position 5 in 2 tensors",
    );
    check(
        vec![made(), n("SequenceErase", "s none", "y")],
        &["2"],
        "no position -9 in 2 tensors",
    );
    check(vec![made(), n("Neg", "s", "y")], &["2"], "takes a sequence");
    check(
        vec![made(), n("SequenceConstruct", "s", "y")],
        &["2"],
        "operand 0 is a sequence",
    );
    check(
        vec![n("SequenceEmpty", "", "s"), n("SequenceErase", "s", "y")],
        &["2"],
        "empty sequence",
    );
}
