//! Tests of operands that decide the rank of a result.

use std::collections::BTreeMap;

use convoke_graph::graph::Attr;

use super::super::inputs::GivenInput;
use super::*;

/// A model of one node on `x: f32[2, 3]` and a list `s` whose length only calls know.
fn asks(op: &str, inputs: &str) -> ModelProto {
    let given = vec![value("x", F32, &["2", "3"]), value("s", I64, &["k"])];
    let mut g = graph(given, vec![], vec![node(op, inputs, "y", vec![])], "y");
    // What the model declares for `y` is added by the tests.
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
