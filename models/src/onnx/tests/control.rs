//! Tests of control flow and of recurrent ops.

use std::collections::BTreeMap;

use convoke_graph::graph::Attr;

use super::super::inputs::GivenInput;
use super::*;

/// A model of opset `version` on `x: f32[2, 3]`, `go: bool`, `n: i64` and two more tensors, `u` and `v`, of x's type.
fn with(
    version: i64,
    initializers: Vec<TensorProto>,
    nodes: Vec<NodeProto>,
    y: &str,
) -> ModelProto {
    let inputs = vec![
        value("x", F32, &["2", "3"]),
        value("u", F32, &["2", "3"]),
        value("v", F32, &["2", "3"]),
        value("go", BOOL, &[]),
        value("n", I64, &[]),
    ];
    model(version, graph(inputs, initializers, nodes, y))
}

fn branch(initializers: Vec<TensorProto>, nodes: Vec<NodeProto>, y: &str) -> GraphProto {
    graph(vec![], initializers, nodes, y)
}

fn choice(yes: GraphProto, no: GraphProto) -> Vec<AttributeProto> {
    vec![
        graph_attr("then_branch", yes),
        graph_attr("else_branch", no),
    ]
}

fn unary(op: &str, input: &str, output: &str) -> NodeProto {
    node(op, input, output, vec![])
}

/// The nodes of the function in attribute `name` of node `n`.
fn inside(f: &Function, n: usize, name: &str) -> Vec<String> {
    lines(f.nodes[n].attrs.function(name).unwrap())
}

/// Checks that the node `n` has the body with these parameters, nodes and results.
fn check_body(f: &Function, n: usize, params: &[&str], nodes: &[&str], results: &[&str]) {
    let body = f.nodes[n].attrs.function("body").unwrap();
    let types = |ids: &mut dyn Iterator<Item = convoke_graph::graph::ValueId>| {
        ids.map(|id| body.ty(id).to_string()).collect::<Vec<_>>()
    };
    assert_eq!(types(&mut body.params.iter().copied()), params);
    assert_eq!(lines(body), nodes);
    assert_eq!(types(&mut body.results.iter().map(|(_, id)| *id)), results);
}

#[test]
fn branches_take_what_either_of_them_captures() {
    let yes = branch(vec![], vec![node("Add", "x u", "a", vec![])], "a");
    let no = branch(
        vec![floats("one", &[1], &[1.])],
        vec![node("Add", "v one", "b", vec![])],
        "b",
    );
    let m = with(
        17,
        vec![],
        vec![node("If", "go", "y", choice(yes, no))],
        "y",
    );
    let f = import(&m);
    assert_eq!(lines(&f), ["If(go, x, u, v)"]);
    assert_eq!(inside(&f, 0, "then_branch"), ["Add(x, u)"]);
    assert_eq!(inside(&f, 0, "else_branch"), ["Add(v, [1.0])"]);
    assert_eq!(f.ty(f.results[0].1).to_string(), "f32[2, 3]");
}

#[test]
fn bodies_read_any_graph_around_them() {
    let innermost = |out: &str| branch(vec![], vec![node("Mul", "x own", out, vec![])], out);
    let inner = branch(
        vec![],
        vec![
            unary("Neg", "u", "own"),
            node("If", "go", "c", choice(innermost("a"), innermost("b"))),
            node("Add", "c own", "d", vec![]),
        ],
        "d",
    );
    let other = branch(vec![], vec![], "v");
    let m = with(
        17,
        vec![],
        vec![node("If", "go", "y", choice(inner, other))],
        "y",
    );
    let f = import(&m);
    assert_eq!(lines(&f), ["If(go, u, go, x, v)"]);
    let yes = f.nodes[0].attrs.function("then_branch").unwrap();
    assert_eq!(
        lines(yes),
        [
            "Neg(u)",
            "If(go, x, y_node/own)",
            "Add(y_node/c, y_node/own)"
        ]
    );
    assert_eq!(inside(yes, 1, "else_branch"), ["Mul(x, y_node/own)"]);
    assert!(inside(&f, 0, "else_branch").is_empty());
}

#[test]
fn a_branch_counts_once_however_deep_it_is() {
    let chain = |n: usize, input: &str| {
        let name = |i: usize| match i {
            0 => input.to_owned(),
            i => format!("c{i}"),
        };
        let nodes = (0..n).map(|i| unary("Neg", &name(i), &name(i + 1)));
        branch(vec![], nodes.collect(), &name(n))
    };
    let mut yes = chain(2000, "x");
    for level in 0..3 {
        let y = format!("y{level}");
        let no = branch(vec![], vec![], "u");
        yes = branch(vec![], vec![node("If", "go", &y, choice(yes, no))], &y);
    }
    let no = branch(vec![], vec![], "v");
    let f = import(&with(
        17,
        vec![],
        vec![node("If", "go", "y", choice(yes, no))],
        "y",
    ));
    assert_eq!(lines(&f), ["If(go, go, x, u, v)"]);
}

#[test]
fn what_one_branch_needs_is_computed_there() {
    let yes = branch(vec![], vec![unary("Relu", "c", "d")], "d");
    let no = branch(vec![], vec![node("Add", "shared x", "e", vec![])], "e");
    let nodes = vec![
        unary("Neg", "x", "shared"),
        unary("Exp", "u", "a"),
        node("Add", "a shared", "b", vec![]),
        node("Mul", "b b", "c", vec![]),
        node("If", "go", "y", choice(yes, no)),
    ];
    let f = import(&with(17, vec![], nodes.clone(), "y"));
    assert_eq!(lines(&f), ["Neg(x)", "If(go, u, shared, x)"]);
    assert_eq!(
        inside(&f, 1, "then_branch"),
        [
            "Exp(u)",
            "Add(y_node/a, shared)",
            "Mul(y_node/b, y_node/b)",
            "Relu(y_node/c)"
        ]
    );
    // A result is needed in any case, and so are the nodes that it depends on.
    let f = import(&with(17, vec![], nodes, "y b"));
    assert_eq!(
        lines(&f),
        ["Neg(x)", "Exp(u)", "Add(a, shared)", "If(go, b, shared, x)"]
    );
}

#[test]
fn what_a_branch_needs_is_computed_there_in_each_import_of_a_body() {
    // The size of the carried tensor changes, so the body is imported twice.
    let inputs = vec![
        value("i", I64, &[]),
        value("c", BOOL, &[]),
        value("s", F32, &[]),
    ];
    let yes = branch(vec![], vec![unary("Relu", "e", "f")], "f");
    let no = branch(vec![], vec![], "s");
    let nodes = vec![
        unary("Exp", "s", "e"),
        node("If", "go", "g", choice(yes, no)),
        node("Concat", "g u", "t", vec![int("axis", 0)]),
        unary("Identity", "c", "d"),
    ];
    let body = vec![graph_attr("body", graph(inputs, vec![], nodes, "d t"))];
    let m = with(17, vec![], vec![node("Loop", "n go x", "y", body)], "y");
    let f = import(&m);
    let body = f.nodes[0].attrs.function("body").unwrap();
    let at = body.nodes.iter().position(|n| &*n.op == "If").unwrap();
    assert_eq!(
        inside(body, at, "then_branch"),
        ["Exp(y_node/s)", "Relu(y_node/g_node/e)"]
    );
}

#[test]
fn weights_of_a_body_are_the_models() {
    let weights = floats("w", &[3, 500], &[0.5; 1500]);
    let nodes = vec![
        node("Transpose", "w", "t", vec![ints("perm", &[1, 0])]),
        node("Gemm", "x t", "a", vec![int("transB", 1)]),
    ];
    let yes = branch(vec![weights.clone()], nodes, "a");
    let no = branch(vec![weights], vec![node("MatMul", "u w", "b", vec![])], "b");
    let f = import(&with(
        17,
        vec![],
        vec![node("If", "go", "y", choice(yes, no))],
        "y",
    ));
    // Nodes that only rearrange weights are computed once, outside of the branch.
    assert_eq!(
        lines(&f),
        ["Transpose(y_node/w)", "If(go, x, y_node/t, u, y_node/w.1)"]
    );
    assert_eq!(inside(&f, 1, "then_branch"), ["Gemm(x, y_node/t)"]);
    assert!(matches!(literal(&f, "y_node/w"), Literal::Range { .. }));
    assert_eq!(f.literals.len(), 2);
}

#[test]
fn branches_of_another_rank_are_unsupported() {
    let axis = raw("axis", I64, &[1], 0i64.to_le_bytes().to_vec());
    let yes = branch(
        vec![axis],
        vec![node("Unsqueeze", "x axis", "a", vec![])],
        "a",
    );
    let m = with(
        17,
        vec![],
        vec![node(
            "If",
            "go",
            "y",
            choice(yes, branch(vec![], vec![], "x")),
        )],
        "y",
    );
    let message = "the model needs operations that are not supported: If of opset 17 (node: y_node, 'y' is f32[1, 2, 3] \
                   in one branch, f32[2, 3] in the other: its rank depends on data)";
    fails(&m, Code::UnsupportedOp, message);
    let advice = try_import(&m).unwrap_err().advice();
    assert!(advice.contains("in both branches"), "{advice}");
    // Where sizes of inputs decide, giving the inputs helps.
    let axis = raw("axis", I64, &[1], 0i64.to_le_bytes().to_vec());
    let unsqueeze = node("Unsqueeze", "x axis", "a", vec![]);
    let yes = branch(vec![axis], vec![unsqueeze], "a");
    let nodes = vec![
        unary("Size", "x", "size"),
        node("Equal", "size six", "small", vec![]),
        node("If", "small", "y", choice(yes, branch(vec![], vec![], "x"))),
    ];
    let six = raw("six", I64, &[], 6i64.to_le_bytes().to_vec());
    let x = value("x", F32, &["k", "3"]);
    let e = try_import(&model(17, graph(vec![x], vec![six], nodes, "y"))).unwrap_err();
    assert!(e.to_string().contains("depends on sizes of inputs"), "{e}");
    assert!(e.advice().contains("give the inputs"), "{}", e.advice());
}

#[test]
fn a_scalar_or_a_list_of_one_number_is_broadcast_and_read_in_no_other_way() {
    let check = |nodes: Vec<NodeProto>, y: &str, runs: bool| {
        let dims = |v: &[i64]| floats("c", v, &[2.0]);
        let yes = branch(vec![dims(&[])], vec![unary("Neg", "c", "a")], "a");
        let no = branch(vec![dims(&[1])], vec![unary("Neg", "c", "b")], "b");
        let mut all = vec![node("If", "go", "s", choice(yes, no))];
        all.extend(nodes);
        let made = try_import(&with(17, vec![], all, y));
        match (runs, made) {
            (true, made) => drop(made.unwrap()),
            (false, made) => {
                let e = made.expect_err(y).to_string();
                let says = "a scalar in one branch of an If, and a list of one number";
                assert!(e.contains(says), "{e}");
            }
        }
    };
    check(vec![node("Mul", "x s", "y", vec![])], "y", true);
    let later = vec![unary("Identity", "s", "t"), node("Add", "t x", "y", vec![])];
    check(later, "y", true);
    check(vec![], "s", false);
    check(vec![node("Add", "s s", "y", vec![])], "y", false);
    check(vec![unary("Shape", "s", "y")], "y", false);
    check(vec![node("Unsqueeze", "s n", "y", vec![])], "y", false);
    let inner = branch(vec![], vec![node("Sub", "x s", "a", vec![])], "a");
    let other = branch(vec![], vec![unary("Size", "s", "b")], "b");
    let kept = branch(vec![], vec![], "x");
    let nested = |with: GraphProto| vec![node("If", "go", "y", choice(with, kept.clone()))];
    check(nested(inner), "y", true);
    check(nested(other), "y", false);
}

#[test]
fn a_branch_that_removes_an_axis_of_size_one_is_a_squeeze() {
    // As torch exports `squeeze(0)`: the result has a lower rank where the size is 1.
    let select = |asked: i64, axis: i64| {
        let long =
            |name: &str, dims: &[i64], v: i64| raw(name, I64, dims, v.to_le_bytes().to_vec());
        let yes = branch(
            vec![long("axes", &[1], axis)],
            vec![node("Squeeze", "x axes", "a", vec![])],
            "a",
        );
        let no = branch(vec![], vec![unary("Identity", "x", "b")], "b");
        let nodes = vec![
            unary("Shape", "x", "shape"),
            node("Gather", "shape zero", "size", vec![]),
            node("Equal", "size one", "is_one", vec![]),
            node("If", "is_one", "y", choice(yes, no)),
        ];
        let constants = vec![long("zero", &[], 0), long("one", &[], asked)];
        let x = vec![value("x", F32, &["n", "m"])];
        model(17, graph(x, constants, nodes, "y"))
    };
    let f = import(&select(1, 0));
    let squeezed = f.nodes.iter().find(|n| &*n.name == "y_node").unwrap();
    assert_eq!(&*squeezed.op, "Squeeze");
    assert_eq!(f.ty(f.results[0].1).to_string(), "f32[m]");
    // Another size, or the size of another axis, decides something else.
    for other in [select(2, 0), select(1, 1)] {
        let e = try_import(&other).unwrap_err();
        assert_eq!(e.code(), Code::UnsupportedOp, "{e}");
    }
    // For given sizes, each of them has one rank.
    let for_sizes = |m: &ModelProto, shape: [usize; 2]| {
        let s = Scratch::new();
        let given = GivenInput::Shape(shape.to_vec());
        let options = LoadOptions {
            inputs: BTreeMap::from([("x".to_owned(), given)]),
            ..options(&s)
        };
        load(&s.write("m.onnx", &m.encode_to_vec()), &options).unwrap()
    };
    for (asked, axis, shape, result, remarks) in [
        (1, 0, [1, 5], "f32[m]", 0),
        (1, 0, [3, 5], "f32[3, m]", 1),
        (2, 0, [3, 5], "f32[3, 5]", 1),
        (1, 1, [3, 5], "f32[3, 5]", 1),
        (1, 1, [3, 1], "f32[3, 1]", 1),
    ] {
        let made = for_sizes(&select(asked, axis), shape);
        assert_eq!(
            made.function.ty(made.function.results[0].1).to_string(),
            result
        );
        assert_eq!(made.remarks.len(), remarks, "{:?}", made.remarks);
    }
    // A model without such ranks stays open, whatever is given.
    let x = vec![value("x", F32, &["n", "m"])];
    let plain = model(17, graph(x, vec![], vec![unary("Relu", "x", "y")], "y"));
    let made = for_sizes(&plain, [3, 5]);
    assert_eq!(
        made.function.ty(made.function.results[0].1).to_string(),
        "f32[n, m]"
    );
    assert!(made.remarks.is_empty());
}

/// The body of a loop that adds `u` to what it carries, and collects the sum and its negation.
fn adding() -> GraphProto {
    let inputs = vec![
        value("i", I64, &[]),
        value("c", BOOL, &[]),
        value("s", F32, &[]),
    ];
    let nodes = vec![
        node("Add", "s u", "t", vec![]),
        unary("Neg", "t", "negated"),
        unary("Identity", "c", "d"),
    ];
    graph(inputs, vec![], nodes, "d t t negated")
}

#[test]
fn a_loop_that_changes_a_rank_is_not_supported() {
    let inputs = vec![
        value("i", I64, &[]),
        value("c", BOOL, &[]),
        value("s", F32, &[]),
    ];
    let zero = raw("zero", I64, &[1], 0i64.to_le_bytes().to_vec());
    let nodes = vec![
        node("Unsqueeze", "s zero", "t", vec![]),
        unary("Identity", "c", "d"),
    ];
    let body = vec![graph_attr("body", graph(inputs, vec![zero], nodes, "d t"))];
    let m = with(17, vec![], vec![node("Loop", "n go x", "y", body)], "y");
    let e = try_import(&m).unwrap_err();
    assert_eq!(e.code(), Code::UnsupportedOp, "{e}");
    assert!(e.to_string().contains("value 0"), "{e}");
}

#[test]
fn a_loop_carries_and_collects() {
    let check = |inputs: &str, outputs: &str, line: &str, nodes: &[&str], results: &[&str]| {
        let body = vec![graph_attr("body", adding())];
        let f = import(&with(
            17,
            vec![],
            vec![node("Loop", inputs, outputs, body)],
            outputs,
        ));
        assert_eq!(lines(&f), [line]);
        let params = ["i64[]", "bool[]", "f32[2, 3]", "f32[2, 3]"];
        check_body(&f, 0, &params, nodes, results);
    };
    let all = [
        "Add(y_node/s, u)",
        "Neg(y_node/t)",
        "Identity(y_node/condition)",
    ];
    let own = ["bool[]", "f32[2, 3]", "f32[2, 3]", "f32[2, 3]"];
    check("n go x", "y sums negated", "Loop(n, go, x, u)", &all, &own);
    // A result that nothing reads is not collected.
    let without = ["Add(y_node/s, u)", "Identity(y_node/condition)"];
    check("n _ x", "y", "Loop(n, _, x, u)", &without, &own[..2]);
}

#[test]
fn a_size_that_an_iteration_changes_is_unknown_in_the_body() {
    let inputs = vec![
        value("i", I64, &[]),
        value("c", BOOL, &["1"]),
        value("s", F32, &[]),
    ];
    let nodes = vec![
        node("Concat", "s u", "t", vec![int("axis", 0)]),
        unary("Shape", "t", "shape"),
        unary("Identity", "c", "d"),
    ];
    let body = vec![graph_attr(
        "body",
        graph(inputs, vec![], nodes, "d t shape"),
    )];
    let f = import(&with(
        17,
        vec![],
        vec![node("Loop", "n go x", "y shapes", body)],
        "y shapes",
    ));
    let body = f.nodes[0].attrs.function("body").unwrap();
    let carried = body.ty(body.params[2]).to_string();
    assert!(
        carried.starts_with("f32[carried0.0~") && carried.ends_with(", 3]"),
        "{carried}"
    );
    assert_eq!(body.ty(body.results[0].1).to_string(), "bool[1]");
    assert_eq!(f.ty(f.results[0].1).shape[1], 3i64.into());
}

#[test]
fn scans_move_their_axes_to_the_front() {
    let inputs = vec![value("s", F32, &[]), value("a", F32, &[])];
    let nodes = vec![node("Add", "s a", "t", vec![]), unary("Exp", "t", "e")];
    let body = |axis: i64, to: i64| {
        vec![
            graph_attr("body", graph(inputs.clone(), vec![], nodes.clone(), "t e")),
            int("num_scan_inputs", 1),
            ints("scan_input_axes", &[axis]),
            ints("scan_output_axes", &[to]),
            ints("scan_input_directions", &[1]),
        ]
    };
    let start = || vec![floats("start", &[2], &[0., 0.])];
    let f = import(&with(
        17,
        start(),
        vec![node("Scan", "start x", "last y", body(-1, 1))],
        "last y",
    ));
    assert_eq!(
        lines(&f),
        [
            "Transpose(x)",
            "Scan([0.0, 0.0], y_node/Transpose)",
            "Transpose(y_node/y)"
        ]
        .map(|l| l.replace("y_node", "last_node"))
    );
    assert_eq!(
        f.nodes[1].attrs.ints("scan_input_directions"),
        Some(&[1][..])
    );
    check_body(
        &f,
        1,
        &["f32[2]", "f32[2]"],
        &["Add(last_node/s, last_node/a)", "Exp(last_node/t)"],
        &["f32[2]", "f32[2]"],
    );
    assert_eq!(f.ty(f.results[1].1).to_string(), "f32[2, 3]");
    let m = with(
        17,
        start(),
        vec![node("Scan", "start x", "last y", body(2, 0))],
        "last y",
    );
    fails(
        &m,
        Code::InvalidModel,
        "node 'last_node' (Scan): axis 2 of a value of rank 2",
    );
}

#[test]
fn scans_of_opset_8_scan_the_elements_of_a_batch() {
    let inputs = vec![value("s", F32, &[]), value("a", F32, &[])];
    let nodes = vec![node("Add", "s a", "t", vec![])];
    let attributes = || {
        vec![
            graph_attr("body", graph(inputs.clone(), vec![], nodes.clone(), "t t")),
            int("num_scan_inputs", 1),
        ]
    };
    let start = floats("start", &[2], &[0., 0.]);
    let n = node("Scan", "_ start x", "last y", attributes());
    let f = import(&with(8, vec![start.clone()], vec![n], "last y"));
    assert_eq!(lines(&f), ["Scan([0.0, 0.0], x)"]);
    check_body(
        &f,
        0,
        &["f32[]", "f32[3]"],
        &["Scan(last_node/element0, last_node/element1)"],
        &["f32[]", "f32[3]"],
    );
    // With lengths, each element is cut behind its own one, and what it yields is filled up.
    let each = [1i64, 3].map(i64::to_le_bytes).concat();
    let lengths = raw("lengths", I64, &[2], each);
    let n = node("Scan", "lengths start x", "last y", attributes());
    let f = import(&with(8, vec![start, lengths], vec![n], "last y"));
    assert_eq!(lines(&f), ["Scan([0.0, 0.0], x, [1, 3])"]);
    let body = f.nodes[0].attrs.function("body").unwrap();
    let ops: Vec<&str> = body.nodes.iter().map(|n| &*n.op).collect();
    let find = |op: &str| ops.iter().filter(|found| **found == op).count();
    assert_eq!(["Split", "Scan", "Pad"].map(find), [1, 1, 1], "{ops:?}");
    let types = f.results.iter().map(|(_, id)| f.ty(*id).to_string());
    assert_eq!(types.collect::<Vec<_>>(), ["f32[2]", "f32[2, 3]"]);
}

#[test]
fn unsupported_nodes_of_bodies_are_listed() {
    let no = branch(vec![], vec![unary("NoSuchOp", "u", "b")], "b");
    let inputs = vec![
        value("i", I64, &[]),
        value("c", BOOL, &[]),
        value("s", F32, &[]),
    ];
    let nodes = vec![
        node("Concat", "s u", "t", vec![int("axis", 0)]),
        unary("NoOtherOp", "t", "r"),
        unary("Identity", "c", "d"),
    ];
    let body = vec![graph_attr("body", graph(inputs, vec![], nodes, "d t r"))];
    let yes = branch(vec![], vec![node("Loop", "n go x", "a rs", body)], "rs");
    let nodes = vec![
        node("If", "go", "y", choice(yes, no)),
        unary("NoSuchOp", "y", "z"),
    ];
    let message = "the model needs operations that are not supported: NoOtherOp of opset 17 (node: \
                   y_node/a_node/r_node); NoSuchOp of opset 17 (2 nodes: y_node/b_node, z_node)";
    fails(&with(17, vec![], nodes, "z"), Code::UnsupportedOp, message);
}

#[test]
fn control_flow_that_contradicts_itself_is_refused() {
    let check = |n: NodeProto, message: &str| {
        let y = n.output.join(" ");
        fails(&with(17, vec![], vec![n], &y), Code::InvalidModel, message);
    };
    let body = || vec![graph_attr("body", adding())];
    check(
        node("Loop", "n go", "y", body()),
        "node 'y_node' (Loop): its body takes 3 operands, 2 are given",
    );
    check(
        node("Loop", "n go x", "y a b c", body()),
        "node 'y_node' (Loop): its body has 4 outputs",
    );
    check(
        node("Loop", "n go _", "y", body()),
        "node 'y_node' (Loop): a carried value is left out",
    );
    check(
        node("Loop", "n go x", "y", vec![]),
        "node 'y_node' (Loop): has no body",
    );
    check(
        node("Scan", "x u", "y", body()),
        "node 'y_node' (Scan): num_scan_inputs is not a number of operands",
    );
    let one = || branch(vec![], vec![], "x");
    check(
        node("If", "go", "y z", choice(one(), one())),
        "node 'y_node' (If): then_branch has 1 outputs",
    );
    let yes = vec![graph_attr("then_branch", one())];
    check(
        node("If", "go", "y", yes),
        "node 'y_node' (If): has no else_branch",
    );
}

/// A node of a recurrent op with weights of `gates` gates for a state of 2, on a sequence of 5 from a batch of any size.
fn recurrent(op: &str, inputs: &str, outputs: &str, attributes: Vec<AttributeProto>) -> ModelProto {
    let gates = match op {
        "LSTM" => 4,
        "GRU" => 3,
        _ => 1,
    };
    let rows = 2 * gates;
    let random = |name: &str, dims: &[i64]| {
        let count = dims.iter().product::<i64>() as usize;
        let data: Vec<f32> = (0..count).map(|i| i as f32 / 7.0).collect();
        floats(name, dims, &data)
    };
    let weights = vec![
        random("w", &[1, rows, 3]),
        random("r", &[1, rows, 2]),
        random("b", &[1, 2 * rows]),
    ];
    let inputs_of_model = vec![
        value("x", F32, &["5", "n", "3"]),
        value("lengths", 6, &["n"]),
    ];
    let n = node(op, inputs, outputs, attributes);
    model(
        14,
        graph(inputs_of_model, weights, vec![n], &names(outputs).join(" ")),
    )
}

#[test]
fn a_recurrent_op_is_one_node() {
    for (op, inputs) in [
        ("RNN", "x w r b"),
        ("GRU", "x w r b lengths"),
        ("LSTM", "x w r"),
    ] {
        let attributes = vec![int("hidden_size", 2), int("output_sequence", 1)];
        let f = import(&recurrent(op, inputs, "y h", attributes));
        let ops: Vec<&str> = f.nodes.iter().map(|n| &*n.op).collect();
        assert_eq!(ops, [op]);
        let types = f.results.iter().map(|(_, id)| f.ty(*id).to_string());
        assert_eq!(
            types.collect::<Vec<_>>(),
            ["f32[5, 1, n, 2]", "f32[1, n, 2]"]
        );
    }
}

#[test]
fn the_default_activations_of_an_rnn_may_be_written_out() {
    let strings = AttributeProto {
        strings: vec![b"Tanh".to_vec(); 2],
        ..attr("activations", AttributeType::Strings)
    };
    let attributes = vec![int("hidden_size", 2), strings];
    let f = import(&recurrent("RNN", "x w r", "y", attributes));
    let names = f.nodes[0].attrs.get("activations");
    assert!(matches!(names, Some(Attr::Strs(names)) if names.len() == 1 && &*names[0] == "Tanh"));
}

#[test]
fn recurrent_ops_in_other_forms_are_refused() {
    let check = |attributes, message: &str| {
        let m = recurrent("RNN", "x w r", "y", attributes);
        let message = format!("the model's graph is invalid: node 'y_node' (RNN): {message}");
        fails(&m, Code::InvalidGraph, &message);
    };
    let names = |names: &[&str]| AttributeProto {
        strings: names.iter().map(|n| n.as_bytes().to_vec()).collect(),
        ..attr("activations", AttributeType::Strings)
    };
    check(
        vec![names(&["Sinus"])],
        "attribute 'activations': 'Sinus' is unknown",
    );
    check(
        vec![names(&["Tanh", "Relu"])],
        "attribute 'activations': must be 1 names, not 2",
    );
    check(
        vec![text("direction", "up")],
        "attribute 'direction': 'up' is unknown",
    );
    check(
        vec![int("hidden_size", 3)],
        "hidden_size and R: 2 and 3 differ",
    );
    check(
        vec![text("direction", "bidirectional")],
        "'W' must have shape [2, 2, 3], not [1, 2, 3]",
    );
}
