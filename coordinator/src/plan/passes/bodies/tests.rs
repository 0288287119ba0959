//! Functions of control flow before and after the passes.

use convoke_graph::graph::Function;
use convoke_graph::ops::ControlOp;

use super::read_by;
use crate::passes::optimise;
use crate::testing::{dedent, dump, parse, parse_with};

/// Checks the nodes of a function after all passes, and those of the bodies of its nodes of control flow. The functions
/// are called `f0`, `f1`, ….
fn check(before: &str, functions: &[&Function], outside: &str, bodies: &[&str]) {
    let names: Vec<String> = (0..functions.len()).map(|i| format!("f{i}")).collect();
    let named = names.iter().map(String::as_str);
    let named: Vec<_> = named.zip(functions.iter().copied()).collect();
    let f = optimise(
        parse_with(before, &named),
        convoke_common::rpc::Numerics::Exact,
    )
    .unwrap()
    .function;
    assert_eq!(dump(&f), dedent(outside));
    let nodes = f.nodes.iter().filter(|n| n.kind().is_some());
    let made: Vec<String> = nodes
        .flat_map(|n| n.attrs.functions())
        .map(|(_, f)| dump(f))
        .collect();
    for (_, f) in f.nodes.iter().flat_map(|n| n.attrs.functions()) {
        let read = read_by(f);
        assert!(f.literals.iter().all(|(v, _)| read.contains(v)), "{f:?}");
    }
    assert_eq!(made, bodies.iter().map(|b| dedent(b)).collect::<Vec<_>>());
}

/// The body of a loop with a carried matrix, a captured one and a captured vector.
fn layer() -> Function {
    parse(
        "param i: i64[]
         param going: bool[]
         param x: f32[2, 4]
         param w: f32[4, 4]
         param b: f32[4]
         p = MatMul(x, w)
         s = Add(p, b)
         r = Relu(s)
         unused = Neg(s)
         result going
         result r",
    )
}

#[test]
fn products_with_captured_constants_are_fused_and_packed() {
    check(
        "param x: f32[2, 4]
         param m: i64[]
         weight w: f32[4, 4]
         weight b: f32[4]
         y = Loop(m, _, x, w, b) {body=&f0; captured=2}
         result y",
        &[&layer()],
        "init w:packed = PackGemmB(w)
         y = Loop(m, _, x, b, w:packed) {body=1 nodes; captured=2}
         result y = y",
        &[
            "r = FusedGemm(x, w:packed, b) {activation=\"Relu\"; k=4; n=4; packed=1}
           result going = going
           result r = r",
        ],
    );
}

#[test]
fn constants_fold_and_equal_nodes_merge_within_a_body() {
    let body = parse(
        "param i: i64[]
         param going: bool[]
         param x: f32[2, 4]
         const one: i64[1] = 1
         const two: i64[1] = 2
         rows = Shape(x)
         size = Add(one, two)
         e = Exp(x)
         same = Exp(x)
         twice = Transpose(e) {perm=[1, 0]}
         back = Transpose(twice) {perm=[1, 0]}
         s = Add(back, same)
         r = Reshape(s, rows)
         result going
         result r
         result size",
    );
    check(
        "param x: f32[2, 4]
         param m: i64[]
         y, sizes = Loop(m, _, x) {body=&f0; captured=0}
         result y
         result sizes",
        &[&body],
        "y, sizes = Loop(m, _, x) {body=2 nodes; captured=0}
         result y = y
         result sizes = sizes",
        &["e = Exp(x)
           s = Add(e, e)
           result going = going
           result r = s
           result size = size"],
    );
}

#[test]
fn what_no_iteration_changes_moves_in_front_of_a_loop_if_it_cannot_fail() {
    let body = parse(
        "param x: f32[2, 4]
         param slice: f32[4]
         param gate: f32[4]
         param n: i64[1]
         const half: f32[] = 0.5
         g = Sigmoid(gate)
         h = Mul(g, half)
         q = Div(n, n)
         f = Cast(q) {to=@f32}
         y = Add(x, h)
         z = Add(y, slice)
         r = Add(z, f)
         result r",
    );
    let scan = "x = Scan(x0, over, gate, n) {body=&f0; captured=2; num_scan_inputs=1}";
    let before = format!(
        "param x0: f32[2, 4]
         param over: f32[m, 4]
         param gate: f32[4]
         param n: i64[1]
         {scan}
         result x"
    );
    check(
        &before,
        &[&body],
        "g = Sigmoid(gate)
         h = Mul(g, half)
         x = Scan(x0, over, n, h) {body=5 nodes; captured=2; num_scan_inputs=1}
         result x = x",
        &["q = Div(n, n)
           f = Cast(q) {to=@f32}
           y = Add(x, h)
           z = Add(y, slice)
           r = Add(z, f)
           result r = r"],
    );
}

#[test]
fn branches_keep_what_is_not_constant() {
    let branch = |op: &str| {
        parse(&format!(
            "param x: f32[2, 4]
             param w: f32[4, 4]
             e = Exp(w)
             p = {op}(x, e)
             result p"
        ))
    };
    let (product, sum) = (
        branch("MatMul"),
        parse(
            "param x: f32[2, 4]
         param w: f32[4, 4]
         n = Neg(x)
         result n",
        ),
    );
    let before = |w: &str| {
        format!(
            "param c: bool[]
             param x: f32[2, 4]
             {w} w: f32[4, 4]
             y = If(c, x, w) {{then_branch=&f0; else_branch=&f1}}
             result y"
        )
    };
    let other = "n = Neg(x)
                 result n = n";
    check(
        &before("weight"),
        &[&product, &sum],
        "init e = Exp(w)
         init e:packed = PackGemmB(e)
         y = If(c, x, e:packed) {else_branch=1 nodes; then_branch=1 nodes}
         result y = y",
        &[
            other,
            "p = FusedGemm(x, e:packed) {k=4; n=4; packed=1}
                  result p = p",
        ],
    );
    check(
        &before("param"),
        &[&product, &sum],
        "y = If(c, x, w) {else_branch=1 nodes; then_branch=2 nodes}
         result y = y",
        &[
            other,
            "e = Exp(w)
                  p = MatMul(x, e)
                  result p = p",
        ],
    );
}

#[test]
fn passes_enter_loops_within_loops() {
    let outer = parse_with(
        "param i: i64[]
         param going: bool[]
         param x: f32[2, 4]
         param m: i64[]
         param w: f32[4, 4]
         param b: f32[4]
         y = Loop(m, _, x, w, b) {body=&inner; captured=2}
         result going
         result y",
        &[("inner", &layer())],
    );
    check(
        "param x: f32[2, 4]
         param m: i64[]
         weight w: f32[4, 4]
         weight b: f32[4]
         y = Loop(m, _, x, m, w, b) {body=&f0; captured=3}
         result y",
        &[&outer],
        "init w:packed = PackGemmB(w)
         y = Loop(m, _, x, m, b, w:packed) {body=1 nodes; captured=3}
         result y = y",
        &["y = Loop(m, _, x, b, w:packed) {body=1 nodes; captured=2}
           result going = going
           result y = y"],
    );
}

#[test]
fn a_squeeze_along_axes_that_are_not_known_stays_in_its_loop() {
    let body = |axes: &str| {
        parse(&format!(
            "param x: f32[4]
             param slice: f32[4]
             param gate: f32[1, 1]
             {axes}
             q = Squeeze(gate, axes)
             y = Add(x, slice)
             r = Add(y, q)
             result r"
        ))
    };
    let scan = |axes: &str, captured: usize| {
        format!(
            "param x0: f32[4]
             param over: f32[m, 4]
             param gate: f32[1, 1]
             param axes: i64[2]
             x = Scan(x0, over, gate{axes}) {{body=&f0; captured={captured}; num_scan_inputs=1}}
             result x"
        )
    };
    check(
        &scan(", axes", 2),
        &[&body("param axes: i64[2]")],
        "x = Scan(x0, over, gate, axes) {body=3 nodes; captured=2; num_scan_inputs=1}
         result x = x",
        &["q = Squeeze(gate, axes)
           y = Add(x, slice)
           r = Add(y, q)
           result r = r"],
    );
    check(
        &scan("", 1),
        &[&body("const axes: i64[2] = 0, 1")],
        "q = Squeeze(gate, axes.2)
         x = Scan(x0, over, q) {body=2 nodes; captured=1; num_scan_inputs=1}
         result x = x",
        &["y = Add(x, slice)
           r = Add(y, q)
           result r = r"],
    );
}

/// A chain of branches, each of which alone reads what the one before it yields.
fn chain(begin: &str, length: usize, end: &str) -> Function {
    let branch = |op: &str| {
        let text = format!(
            "param h: f32[2]
             param g: f32[2]
             y = {op}
             result y"
        );
        parse(&text)
    };
    let (yes, no) = (branch("Relu(h)"), branch("Neg(g)"));
    let each = (1..=length).map(|i| {
        let last = i - 1;
        format!("y{i} = If(c, y{last}, y0) {{then_branch=&yes; else_branch=&no}}\n")
    });
    let text = format!("{begin}\n{}{end}{length}", each.collect::<String>());
    parse_with(&text, &[("yes", &yes), ("no", &no)])
}

#[test]
fn branches_do_not_move_into_branches() {
    let ifs = |f: &Function| f.nodes.iter().filter(|n| n.is(ControlOp::If)).count();
    let begin = "param c: bool[]
                 param y0: f32[2]";
    let made = optimise(
        chain(begin, 7, "result y"),
        convoke_common::rpc::Numerics::Exact,
    )
    .unwrap();
    assert_eq!(ifs(&made.function), 7, "{}", dump(&made.function));

    let begin = "param i: i64[]
                 param c: bool[]
                 param y0: f32[2]";
    let body = chain(begin, 5, "result c\nresult y");
    let before = "param m: i64[]
                  param c: bool[]
                  param x: f32[2]
                  y = Loop(m, c, x) {body=&body; captured=0}
                  result y";
    let made = optimise(
        parse_with(before, &[("body", &body)]),
        convoke_common::rpc::Numerics::Exact,
    )
    .unwrap();
    let body = made.function.nodes[0].attrs.function("body").unwrap();
    assert_eq!(ifs(body), 5, "{}", dump(body));
}
