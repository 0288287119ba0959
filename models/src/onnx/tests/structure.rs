//! Tests of names, the order of nodes, functions and branches.

use super::super::inputs::GivenInput;
use super::*;

fn x() -> Vec<ValueInfoProto> {
    vec![value("x", F32, &["2"])]
}

fn relu(input: &str, output: &str) -> NodeProto {
    node("Relu", input, output, vec![])
}

#[test]
fn dimensions_keep_their_names() {
    let v = value("x", F32, &["batch", "3", "", "x.4", "-1", "0"]);
    let f = import(&model(
        17,
        graph(vec![v], vec![], vec![relu("x", "y")], "y"),
    ));
    assert_eq!(
        f.ty(f.params[0]).to_string(),
        "f32[batch, 3, x.2, x.4, x.4_, x.5]"
    );
    assert_eq!(f.results[0].0, "y");
    assert_eq!(&*f.nodes[0].name, "y_node");
    let list = graph(
        vec![value("x", F32, &["0"])],
        vec![],
        vec![relu("x", "y")],
        "y",
    );
    let f = import(&model(17, list));
    assert_eq!(f.ty(f.params[0]).to_string(), "f32[0]");
}

#[test]
fn nodes_are_sorted_and_named() {
    let unnamed = |n: NodeProto| NodeProto { name: None, ..n };
    let nodes = vec![
        unnamed(node("Add", "a x", "y", vec![])),
        unnamed(relu("x", "a")),
    ];
    let f = import(&model(17, graph(x(), vec![], nodes, "y")));
    assert_eq!(lines(&f), ["Relu(x)", "Add(a, x)"]);
    assert_eq!((&*f.nodes[0].name, &*f.nodes[1].name), ("Relu_1", "Add_0"));
}

#[test]
fn broken_graphs_are_typed_errors() {
    let check = |nodes, message| {
        let m = model(
            17,
            graph(x(), vec![floats("w", &[2], &[0., 0.])], nodes, "y"),
        );
        fails(&m, Code::InvalidModel, message);
    };
    check(
        vec![relu("x", "y"), relu("x", "y")],
        "value 'y' is defined twice",
    );
    check(
        vec![relu("x", "w"), relu("x", "y")],
        "value 'w' is defined twice",
    );
    check(
        vec![relu("x", "x"), relu("x", "y")],
        "the graph has a cycle through x_node",
    );
    check(
        vec![relu("b", "a"), relu("a", "b"), relu("a", "y")],
        "the graph has a cycle through a_node, b_node",
    );
    check(
        vec![relu("q", "y")],
        "value 'q', used by 'y_node', is defined nowhere",
    );
    check(
        vec![relu("x", "z")],
        "value 'y', used by 'the graph's outputs', is defined nowhere",
    );
    let twice = vec![floats("w", &[1], &[0.]), floats("w", &[1], &[0.])];
    let m = model(17, graph(x(), twice, vec![relu("x", "y")], "y"));
    fails(&m, Code::InvalidModel, "value 'w' is defined twice");
    let m = model(
        17,
        graph([x(), x()].concat(), vec![], vec![relu("x", "y")], "y"),
    );
    fails(&m, Code::InvalidModel, "value 'x' is defined twice");
}

#[test]
fn opsets_outside_the_range_are_refused() {
    let check = |version, message: &str| {
        let m = one(version, &["2"], relu("x", "y"));
        fails(&m, Code::UnsupportedOp, message);
    };
    check(0, "the model needs opset 0; opsets 1 to 28 are supported");
    check(29, "the model needs opset 29; opsets 1 to 28 are supported");
    let none = ModelProto {
        opset_import: vec![],
        ..one(17, &["2"], relu("x", "y"))
    };
    fails(
        &none,
        Code::InvalidModel,
        "the model declares no operator set",
    );
    let named = ModelProto {
        opset_import: vec![opset("ai.onnx", 17)],
        ..one(17, &["2"], relu("x", "y"))
    };
    import(&named);
}

#[test]
fn every_unsupported_op_is_listed() {
    let nodes = vec![
        node("OddOp", "x", "a", vec![]),
        node("NoSuchOp", "a", "b", vec![]),
        NodeProto {
            domain: Some("my.ops".into()),
            ..node("Thing", "b", "c", vec![])
        },
        node("NoSuchOp", "c", "d", vec![]),
        node("Relu", "d", "y", vec![int("fancy", 3)]),
    ];
    let m = ModelProto {
        opset_import: vec![opset("", 17), opset("my.ops", 1)],
        ..model(17, graph(x(), vec![], nodes, "y"))
    };
    let message = "the model needs operations that are not supported: OddOp of opset 17 (node: a_node); \
                   NoSuchOp of opset 17 (2 nodes: b_node, d_node); my.ops.Thing of opset 1 (node: c_node); \
                   Relu of opset 17 (node: y_node, attribute 'fancy')";
    fails(&m, Code::UnsupportedOp, message);
}

#[test]
fn what_no_result_depends_on_is_not_imported() {
    let nodes = vec![
        node("NoSuchOp", "x w", "a", vec![]),
        relu("x", "y"),
        node("Add", "a undefined", "b", vec![]),
    ];
    let w = floats("w", &[2], &[1., 2.]);
    let f = import(&model(17, graph(x(), vec![w], nodes, "y")));
    assert_eq!(lines(&f), ["Relu(x)"]);
    assert!(f.literals.is_empty());
}

#[test]
fn advice_is_of_what_is_missing() {
    let m = |domain: &str, op: &str| {
        let op = NodeProto {
            domain: Some(domain.into()),
            ..node(op, "x x", "y", vec![])
        };
        ModelProto {
            opset_import: vec![opset("", 17), opset(domain, 1)],
            ..model(17, graph(x(), vec![], vec![op], "y"))
        }
    };
    let advice =
        |domain: &str, op: &str| Error::from(try_import(&m(domain, op)).unwrap_err()).advice;
    let own = |op: &str| advice("com.microsoft", op);
    assert!(own("QOrderedMatMul").contains("before ONNX Runtime's optimizer"));
    assert!(own("MurmurHash3").contains("write kernels for them"));
    assert!(own("BeamSearch").contains("export the decoder by itself"));
    assert!(own("RemovePadding").contains("before its rows were packed"));
    assert!(own("EPContext").contains("compiled from"));
    assert!(advice("my.ops", "Sparse").contains("write kernels for them"));
    assert!(advice("com.microsoftware", "EPContext").contains("write kernels for them"));
}

/// The parameters of a model with these descriptions of inputs.
fn params(m: &ModelProto, known: &[(&str, GivenInput)]) -> Result<Vec<String>, ModelError> {
    let s = Scratch::new();
    let mut options = options(&s);
    let known = known
        .iter()
        .map(|(name, is)| (name.to_string(), is.clone()));
    options.inputs.extend(known);
    let f = load(&s.write("m.onnx", &m.encode_to_vec()), &options)?.function;
    let shown =
        |id: &convoke_graph::graph::ValueId| format!("{}: {}", f.value(*id).name, f.ty(*id));
    Ok(f.params.iter().map(shown).collect())
}

#[test]
fn calls_may_give_what_has_a_default_or_no_declared_rank() {
    let add = node("Add", "x b", "y", vec![]);
    let inputs = vec![value("x", F32, &["n"]), value("b", F32, &["n"])];
    let default = floats("b", &[2], &[1., 2.]);
    let m = model(17, graph(inputs, vec![default], vec![add], "y"));
    assert_eq!(params(&m, &[]).unwrap(), ["x: f32[n]"]);
    let given = [
        ("b", GivenInput::Tensor(1)),
        ("typo", GivenInput::Tensor(3)),
    ];
    assert_eq!(params(&m, &given).unwrap(), ["x: f32[n]", "b: f32[n]"]);

    let mut open = value("x", F32, &[]);
    if let Some(TypeProto {
        value: Some(type_proto::Value::TensorType(t)),
    }) = &mut open.r#type
    {
        t.shape = None;
    }
    let m = model(17, graph(vec![open], vec![], vec![relu("x", "y")], "y"));
    let of_rank = |rank| params(&m, &[("x", GivenInput::Tensor(rank))]);
    assert_eq!(of_rank(0).unwrap(), ["x: f32[]"]);
    assert_eq!(of_rank(2).unwrap(), ["x: f32[x.0, x.1]"]);
    let e = of_rank(17).unwrap_err().to_string();
    assert_eq!(e, "input 'x': rank 17 is above the limit of 16");
    let e = params(&m, &[]).unwrap_err();
    assert!(e.advice().contains("--inputs"), "{}", e.advice());
}

#[test]
fn defaults_and_unread_constants() {
    // An initializer that is also an input is a default; an initializer that nothing reads is not imported.
    let inputs = vec![value("x", F32, &["2"]), value("w", F32, &["2"])];
    let constants = vec![floats("w", &[2], &[1., 2.]), raw("unread", 8, &[1], vec![])];
    let f = import(&model(
        8,
        graph(
            inputs,
            constants,
            vec![node("Add", "x w", "y", vec![])],
            "y",
        ),
    ));
    assert_eq!(f.params.len(), 1);
    assert_eq!(lines(&f), ["Add(x, [1.0, 2.0])"]);
    assert_eq!(f.literals.len(), 1);
}

#[test]
fn a_parameter_may_be_a_result() {
    let f = import(&model(
        17,
        graph(x(), vec![floats("w", &[1], &[1.])], vec![], "x w"),
    ));
    assert_eq!(f.results[0], ("x".into(), f.params[0]));
    assert_eq!(f.results.len(), 2);
}

/// The function `scaled(a, b, alpha) = relu(a) * alpha + b`, whose operand `b` is optional in a call.
fn functions() -> Vec<FunctionProto> {
    let reference = |name: &str, outer: &str, t| AttributeProto {
        ref_attr_name: Some(outer.into()),
        ..attr(name, t)
    };
    let alpha = reference("value_float", "alpha", AttributeType::Float);
    let scaled = FunctionProto {
        name: Some("scaled".into()),
        domain: Some("local".into()),
        input: names("a b"),
        output: names("r"),
        attribute: names("alpha"),
        node: vec![
            node("Relu", "a", "t", vec![]),
            node("Constant", "", "c", vec![alpha]),
            node("Mul", "t c", "m", vec![]),
            node("Add", "m b", "r", vec![]),
        ],
        opset_import: vec![opset("", 17)],
        ..FunctionProto::default()
    };
    let inner = |input: &str, output: &str| NodeProto {
        domain: Some("local".into()),
        ..node(
            "scaled",
            &format!("{input} {input}"),
            output,
            vec![float("alpha", 2.0)],
        )
    };
    let twice = FunctionProto {
        name: Some("twice".into()),
        domain: Some("local".into()),
        input: names("a"),
        output: names("s"),
        node: vec![inner("a", "r"), inner("r", "s")],
        opset_import: vec![opset("", 17), opset("local", 1)],
        ..FunctionProto::default()
    };
    vec![scaled, twice]
}

fn calls(functions: Vec<FunctionProto>) -> ModelProto {
    let call = NodeProto {
        domain: Some("local".into()),
        ..node("twice", "x", "y", vec![])
    };
    ModelProto {
        functions,
        opset_import: vec![opset("", 17), opset("local", 1)],
        ..model(17, graph(x(), vec![], vec![call], "y"))
    }
}

#[test]
fn model_local_functions_are_inlined() {
    let f = import(&calls(functions()));
    assert_eq!(
        lines(&f),
        [
            "Relu(x)",
            "Mul(y_node/r_node/t, [2.0])",
            "Add(y_node/r_node/m, x)",
            "Relu(y_node/r_node/r)",
            "Mul(y_node/s_node/t, [2.0])",
            "Add(y_node/s_node/m, y_node/r_node/r)",
        ]
    );
    assert_eq!(&*f.nodes[5].name, "y_node/s_node/r_node");
    let mut circular = functions();
    circular[0].node[0] = NodeProto {
        domain: Some("local".into()),
        ..node("twice", "a", "t", vec![])
    };
    fails(
        &calls(circular),
        Code::InvalidModel,
        "function 'local.twice' uses itself",
    );
}

#[test]
fn an_overload_of_a_function_may_use_another_one() {
    let of = |overload: &str, n: NodeProto| FunctionProto {
        name: Some("twice".into()),
        domain: Some("local".into()),
        overload: Some(overload.into()),
        input: names("a"),
        output: names("s"),
        node: vec![n],
        opset_import: vec![opset("", 17), opset("local", 1)],
        ..FunctionProto::default()
    };
    let call = |overload: &str| NodeProto {
        domain: Some("local".into()),
        overload: Some(overload.into()),
        ..node("twice", "a", "s", vec![])
    };
    let last = of("last", node("Relu", "a", "s", vec![]));
    let f = import(&calls(vec![of("", call("last")), last]));
    assert_eq!(lines(&f), ["Relu(x)"]);
    fails(
        &calls(vec![of("", call("last")), of("last", call(""))]),
        Code::InvalidModel,
        "function 'local.twice' uses itself",
    );
}

#[test]
fn functions_that_multiply_end() {
    let all = (0..40).map(|i| {
        let call = |input: &str, output: &str| NodeProto {
            domain: Some("local".into()),
            ..node(&format!("f{}", i + 1), input, output, vec![])
        };
        let node = if i < 39 {
            vec![call("a", "t"), call("t", "r")]
        } else {
            vec![relu("a", "r")]
        };
        FunctionProto {
            name: Some(format!("f{i}")),
            domain: Some("local".into()),
            input: names("a"),
            output: names("r"),
            node,
            ..FunctionProto::default()
        }
    });
    let mut m = calls(all.collect());
    if let Some(g) = &mut m.graph {
        g.node[0].op_type = Some("f0".into());
    }
    fails(
        &m,
        Code::InvalidModel,
        "the model has too many levels of functions: at most 32 are accepted",
    );
    let advice = try_import(&m).unwrap_err().advice();
    assert!(advice.contains("inline the functions"), "{advice}");
}

#[test]
fn a_branch_with_a_known_condition_is_inlined() {
    let branch = |op: &str| {
        let nodes = vec![
            node(op, "x", "t", vec![]),
            node("Add", "t one", "b", vec![]),
        ];
        graph(vec![], vec![floats("one", &[1], &[1.])], nodes, "b")
    };
    let select = |condition: &str| {
        let branches = vec![
            graph_attr("then_branch", branch("Relu")),
            graph_attr("else_branch", branch("Neg")),
        ];
        let constants = vec![raw("yes", 9, &[], vec![1]), raw("no", 9, &[1], vec![0])];
        let inputs = vec![value("x", F32, &["2"]), value("c", 9, &[])];
        let n = node("If", condition, "y", branches);
        model(17, graph(inputs, constants, vec![n], "y"))
    };
    let f = import(&select("yes"));
    assert_eq!(lines(&f), ["Relu(x)", "Add(y_node/t, [1.0])"]);
    assert_eq!(
        lines(&import(&select("no"))),
        ["Neg(x)", "Add(y_node/t, [1.0])"]
    );
    assert_eq!(lines(&import(&select("c"))), ["If(c, x)"]);
}

#[test]
fn a_broken_rule_names_its_node() {
    let w = floats("w", &[3], &[0.; 3]);
    let m = model(
        17,
        graph(x(), vec![w], vec![node("Add", "x w", "y", vec![])], "y"),
    );
    let e = Error::from(try_import(&m).unwrap_err());
    assert_eq!(e.code, Code::InvalidGraph);
    assert!(
        e.message
            .starts_with("the model's graph is invalid: node 'y_node' (Add): "),
        "{e}"
    );
}

#[test]
fn what_only_convoke_itself_may_write_is_refused() {
    let check = |node: NodeProto, says: &str| {
        let e = try_import(&one(17, &["2", "3"], node)).expect_err(says);
        assert_eq!(e.code(), Code::UnsupportedOp);
        assert!(e.to_string().contains(says), "{e}");
    };
    let max = node("ReduceMax", "x", "y", vec![int("refuse_empty", 1)]);
    check(max, "attribute 'refuse_empty'");
    let packed = vec![int("hidden_size", 4), int("packed_input_size", 3)];
    check(
        node("GRU", "x x x", "y", packed),
        "attribute 'packed_input_size'",
    );
    check(node("PackGemmB", "x", "y", vec![]), "PackGemmB");
}

#[test]
fn a_refused_result_of_a_body_names_its_op() {
    let made = node("SequenceConstruct", "a", "s", vec![]);
    let mut modifier = graph(vec![], vec![], vec![made], "s");
    modifier.input = vec![value("a", F32, &[])];
    let modifier = graph_attr("score_mod", modifier);
    let mut attention = node("FlexAttention", "q q q", "y", vec![modifier]);
    attention.domain = Some("ai.onnx.preview".into());
    let q = value("q", F32, &["1", "2", "3", "4"]);
    let mut m = model(26, graph(vec![q], vec![], vec![attention], "y"));
    m.opset_import.push(opset("ai.onnx.preview", 1));
    let e = try_import(&m).unwrap_err().to_string();
    assert!(e.contains("ai.onnx.preview.FlexAttention"), "{e}");
    assert!(e.contains("its body yields a sequence"), "{e}");
}
