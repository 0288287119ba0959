//! Functions of control flow before and after the passes.

use convoke_graph::graph::Function;

use crate::passes::optimise;
use crate::testing::{dedent, dump, parse, parse_with};

/// Checks the nodes of a function after all passes, and those of the bodies of its nodes of control flow. The functions
/// are called `f0`, `f1`, ….
fn check(before: &str, functions: &[&Function], outside: &str, bodies: &[&str]) {
    let names: Vec<String> = (0..functions.len()).map(|i| format!("f{i}")).collect();
    let named = names.iter().map(String::as_str);
    let named: Vec<_> = named.zip(functions.iter().copied()).collect();
    let f = optimise(parse_with(before, &named), true).unwrap().function;
    assert_eq!(dump(&f), dedent(outside));
    let nodes = f.nodes.iter().filter(|n| n.kind().is_some());
    let made: Vec<String> = nodes
        .flat_map(|n| n.attrs.functions())
        .map(|(_, f)| dump(f).replace("1~", "").replace("2~", ""))
        .collect();
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
        "init 1~w:packed = PackGemmB(w)
         y = Loop(m, _, x, b, 1~w:packed) {body=1 nodes; captured=2}
         result y = y",
        &[
            "r = FusedGemm(x, w:packed, b) {activation=\"Relu\"; k=4; n=4; packed=1}
           result going = going
           result r = r",
        ],
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
        "1~g = Sigmoid(gate)
         1~h = Mul(1~g, 1~half)
         x = Scan(x0, over, n, 1~h) {body=5 nodes; captured=2; num_scan_inputs=1}
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
        "init 1~e = Exp(w)
         init 1~e:packed = PackGemmB(1~e)
         y = If(c, x, 1~e:packed) {else_branch=1 nodes; then_branch=1 nodes}
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
        "init 1~w:packed = PackGemmB(w)
         y = Loop(m, _, x, m, b, 1~w:packed) {body=1 nodes; captured=3}
         result y = y",
        &["y = Loop(m, _, x, b, w:packed) {body=1 nodes; captured=2}
           result going = going
           result y = y"],
    );
}
