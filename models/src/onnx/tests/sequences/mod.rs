//! Tests of sequences and optional values, of which the function knows only the tensors.

mod loops;
mod maps;

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
    // An optional input that is not named is left out where the others are all.
    for (without_others, want) in [(false, None), (true, Some("0"))] {
        let s = Scratch::new();
        let mut options = options(&s);
        options.without_others = without_others;
        let m = takes(true, None, has(), "y");
        let f = load(&s.write("m.onnx", &m.encode_to_vec()), &options);
        let y = f
            .ok()
            .map(|i| elements(i.function.inline(i.function.results[0].1).unwrap()));
        assert_eq!(y.as_deref(), want);
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

/// The op that is refused because it takes or makes a value that is a scalar or a list of one number.
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
