//! Tests of operands that decide the rank of a result.

use std::collections::BTreeMap;

use convoke_graph::graph::Attr;

use super::super::inputs::GivenInput;
use super::*;

/// A model of one node on `x: f32[2, 3]` and a list `s` whose length only calls know.
fn asks(op: &str, inputs: &str) -> ModelProto {
    let given = vec![value("x", F32, &["2", "3"]), value("s", I64, &["k"])];
    let mut g = graph(given, vec![], vec![node(op, inputs, "y", vec![])], "y");
    // The tests add the model's declaration of `y`.
    g.output[0].r#type = None;
    model(17, g)
}

fn declared(mut m: ModelProto, rank: usize) -> ModelProto {
    let dims = vec![""; rank];
    if let Some(g) = &mut m.graph {
        g.value_info.push(value("y", F32, &dims));
    }
    m
}

fn result(f: &Function) -> String {
    f.ty(f.results[0].1).to_string()
}

#[test]
fn a_declared_rank_decides() {
    let check = |op: &str, inputs: &str, rank: usize, want: &str| {
        assert_eq!(result(&import(&declared(asks(op, inputs), rank))), want);
    };
    check("Reshape", "x s", 3, "f32[y#0, y#1, y#2]");
    check("Expand", "x s", 3, "f32[y#0, y#1, y#2]");
    check("Expand", "x s", 2, "f32[y#0, y#1]");
    check("Unsqueeze", "x s", 3, "f32[y#0, y#1, y#2]");
    check("Squeeze", "x s", 1, "f32[y#0]");
    check("ConstantOfShape", "s", 2, "f32[y#0, y#1]");
    // The type of an output says it as well.
    let mut m = asks("Reshape", "x s");
    m.graph.as_mut().unwrap().output[0] = value("y", F32, &["", ""]);
    assert_eq!(result(&import(&m)), "f32[y#0, y#1]");
}

#[test]
fn a_list_of_another_length_is_refused_and_not_cut() {
    let check = |op: &str, inputs: &str, rank: usize, want: &[&str]| {
        let f = import(&declared(asks(op, inputs), rank));
        let made: Vec<&str> = f.nodes.iter().map(|n| &*n.op).collect();
        assert_eq!(made, want, "{op} to rank {rank}");
        // The Reshape takes 0 for a length, and not for that of its operand.
        let reshape = f.nodes.iter().find(|n| &*n.op == "Reshape").unwrap();
        assert_eq!(reshape.attrs.get("allowzero"), Some(&Attr::Int(1)));
    };
    // Ones in front of a short list are as many as it lacks, so that a long one keeps all of its elements.
    let expand = ["Shape", "Slice", "Concat", "Reshape", "Expand"];
    check("Expand", "x s", 2, &expand);
    check("Expand", "x s", 0, &["Reshape", "Expand"]);
    check("ConstantOfShape", "s", 0, &["Reshape", "ConstantOfShape"]);
}

#[test]
fn a_length_that_is_known_needs_no_declaration() {
    let mut m = declared(asks("Reshape", "x s"), 4);
    m.graph.as_mut().unwrap().input[1] = value("s", I64, &["1"]);
    let f = import(&m);
    assert_eq!(
        (lines(&f), result(&f).as_str()),
        (vec!["Reshape(x, s)".into()], "f32[y#0]")
    );
}

#[test]
fn without_a_declared_rank_the_node_is_refused() {
    let message = |op: &str| {
        format!(
            "the model needs operations that are not supported: {op} of opset 17 (node: y_node, data decides the rank of \
             its result)"
        )
    };
    for (op, inputs) in [
        ("Reshape", "x s"),
        ("Expand", "x s"),
        ("ConstantOfShape", "s"),
    ] {
        fails(&asks(op, inputs), Code::UnsupportedOp, &message(op));
    }
    let e = try_import(&asks("Reshape", "x s")).unwrap_err();
    assert!(
        e.advice().contains("onnx.shape_inference"),
        "{}",
        e.advice()
    );
    // A rank that no axes lead to is no declaration.
    let wrong = declared(asks("Squeeze", "x s"), 3);
    fails(&wrong, Code::UnsupportedOp, &message("Squeeze"));
}

#[test]
fn inputs_are_asked_for_only_where_they_decide() {
    let mut m = asks("Reshape", "x s");
    let g = m.graph.as_mut().unwrap();
    // As many numbers as there are elements of `x` other than 0.
    g.node.insert(0, node("NonZero", "x", "all", vec![]));
    g.node.insert(1, node("Reshape", "all flat", "s", vec![]));
    g.initializer
        .push(raw("flat", I64, &[1], (-1i64).to_le_bytes().to_vec()));
    g.input.retain(|i| i.name() != "s");
    let e = try_import(&m).unwrap_err();
    assert!(e.to_string().contains("data that is computed"), "{e}");
    let advice = e.advice();
    assert!(!advice.contains("inputs"), "{advice}");
    let advice = try_import(&asks("Reshape", "x s")).unwrap_err().advice();
    assert!(advice.contains("give the inputs"), "{advice}");
}

#[test]
fn a_list_that_decides_a_rank_has_the_length_of_the_first_call() {
    let of_length = |m: &ModelProto, length| {
        let s = Scratch::new();
        let given = GivenInput::Shape(vec![length]);
        let options = LoadOptions {
            inputs: BTreeMap::from([("s".to_owned(), given)]),
            ..options(&s)
        };
        load(&s.write("m.onnx", &m.encode_to_vec()), &options)
            .unwrap()
            .function
    };
    let f = of_length(&asks("Reshape", "x s"), 3);
    assert_eq!(f.ty(f.params[1]).to_string(), "i64[3]");
    assert_eq!(result(&f), "f32[y#0, y#1, y#2]");
    // Other lists stay as long as calls say.
    let f = of_length(&asks("Tile", "x s"), 2);
    assert_eq!(f.ty(f.params[1]).to_string(), "i64[k]");
}

/// Loads a model for one call with inputs of these shapes.
fn for_shapes(m: &ModelProto, shapes: &[(&str, &[usize])]) -> ImportedModel {
    let s = Scratch::new();
    let given = shapes
        .iter()
        .map(|(name, shape)| (name.to_string(), GivenInput::Shape(shape.to_vec())));
    let options = LoadOptions {
        inputs: given.collect(),
        ..options(&s)
    };
    load(&s.write("m.onnx", &m.encode_to_vec()), &options).unwrap()
}

/// Checks the type of the result `y`, and whether the model is loaded for the given sizes alone.
fn check_loaded(m: &ModelProto, shapes: &[(&str, &[usize])], want: &str, alone: bool) {
    let made = for_shapes(m, shapes);
    assert_eq!(result(&made.function), want, "{shapes:?}");
    assert_eq!(!made.remarks.is_empty(), alone, "{:?}", made.remarks);
}

#[test]
fn axes_that_are_not_named_go_where_a_call_has_them_of_length_one() {
    let x = vec![value("x", F32, &["n", "3"])];
    for opset in [11, 17] {
        let m = model(
            opset,
            graph(
                x.clone(),
                vec![],
                vec![node("Squeeze", "x", "y", vec![])],
                "y",
            ),
        );
        check_loaded(&m, &[("x", &[2, 3])], "f32[n, 3]", false);
        check_loaded(&m, &[("x", &[1, 3])], "f32[3]", true);
        // A call of the model as it is open is refused where an axis would go.
        assert_eq!(lines(&import(&m)), ["Squeeze(x)"]);
        assert_eq!(import(&m).nodes[0].attrs.ints("kept"), Some(&[0][..]));
    }
}

#[test]
fn the_axis_of_a_last_element_goes() {
    let x = vec![value("x", F32, &["n", "3"])];
    let cut = vec![ints("starts", &[-1]), ints("ends", &[i64::MAX])];
    let nodes = vec![
        node("Slice", "x", "last", cut),
        node("Squeeze", "last", "y", vec![]),
    ];
    let m = model(9, graph(x, vec![], nodes, "y"));
    let f = import(&m);
    assert_eq!(f.ty(f.results[0].1).to_string(), "f32[3]");
    // Nothing was assumed, so the model is not imported again for these sizes alone.
    check_loaded(&m, &[("x", &[7, 3])], "f32[3]", false);
}

#[test]
fn what_sizes_make_impossible_in_a_branch_leaves_the_model_open() {
    // The branch that is taken for the other sizes has a rank of its own.
    let nodes = vec![
        node("Squeeze", "x", "s", vec![]),
        node("Transpose", "s", "t", vec![ints("perm", &[0, 1])]),
    ];
    let branches = vec![
        graph_attr("then_branch", graph(vec![], vec![], nodes, "t")),
        graph_attr("else_branch", graph(vec![], vec![], vec![], "x")),
    ];
    let chosen = vec![node("If", "go", "y", branches)];
    let x = vec![value("go", 9, &[]), value("x", F32, &["n", "3"])];
    let m = model(17, graph(x, vec![], chosen, "y"));
    let go: (&str, &[usize]) = ("go", &[]);
    check_loaded(&m, &[go, ("x", &[2, 3])], "f32[n, 3]", false);
    check_loaded(&m, &[go, ("x", &[1, 3])], "f32[n, 3]", false);
}

#[test]
fn numbers_of_axes_that_only_a_call_knows_are_taken_from_it() {
    let (x, s) = (value("x", F32, &["a", "b", "c"]), value("s", I64, &["k"]));
    let inputs = vec![x.clone(), s];
    let gone = node("ReduceSum", "x s", "y", vec![int("keepdims", 0)]);
    let gone = model(17, graph(inputs.clone(), vec![], vec![gone], "y"));
    check_loaded(&gone, &[("x", &[2, 3, 4]), ("s", &[2])], "f32[y#0]", true);
    let kept = node("ReduceSum", "x s", "y", vec![]);
    let kept = model(17, graph(inputs, vec![], vec![kept], "y"));
    check_loaded(
        &kept,
        &[("x", &[2, 3, 4]), ("s", &[2])],
        "f32[y#0, y#1, y#2]",
        false,
    );
    let i = value("i", I64, &["k", "d"]);
    let gathered = node("GatherND", "x i", "y", vec![]);
    let gathered = model(17, graph(vec![x, i], vec![], vec![gathered], "y"));
    check_loaded(
        &gathered,
        &[("x", &[2, 3, 4]), ("i", &[5, 2])],
        "f32[5, 4]",
        true,
    );
    let e = try_import(&gathered).unwrap_err();
    assert!(e.advice().contains("give the inputs"), "{}", e.advice());
}
