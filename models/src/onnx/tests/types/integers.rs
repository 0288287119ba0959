//! Tests of products and convolutions that are computed with codes.

use super::*;

const U8: i32 = 2;
const I8: i32 = 3;

/// A model of these nodes: `x` is u8 [2, 4], `w` i8 [4, 3], `v` i8 [3, 4], `three` i32 [3], `image` u8 [1, 4, 5, 5], `filters` i8 [6, 4, 3, 3], `bias` i32 [6];
/// `s`, `t` and `unit` are scales, the last one the product of the others, `r` has three and `c` six; `o` is a zero point, and
/// `least` the least code. `i` and `one` are one index.
fn of(nodes: Vec<NodeProto>) -> Vec<String> {
    let inputs = vec![
        value("x", U8, &["2", "4"]),
        value("w", I8, &["4", "3"]),
        value("image", U8, &["1", "4", "5", "5"]),
        value("filters", I8, &["6", "4", "3", "3"]),
        value("bias", I32, &["6"]),
        value("v", I8, &["3", "4"]),
        value("three", I32, &["3"]),
        value("r", F32, &["3"]),
        value("c", F32, &["6"]),
        value("o", U8, &[]),
        value("f", F32, &["4", "3"]),
        value("i", 7, &["1"]),
        value("one", 7, &["1"]),
    ];
    let scale = |name: &str, v: f32| floats(name, &[], &[v]);
    let constants = vec![
        scale("s", 0.5),
        scale("t", 0.25),
        scale("unit", 0.125),
        raw("least", U8, &[], vec![0]),
    ];
    lines(&import(&model(17, graph(inputs, constants, nodes, "y"))))
}

fn dq(inputs: &str, output: &str) -> NodeProto {
    node("DequantizeLinear", inputs, output, vec![])
}

fn q(inputs: &str) -> NodeProto {
    node("QuantizeLinear", inputs, "y", vec![])
}

#[test]
fn a_product_of_codes_whose_results_become_codes_is_computed_with_codes() {
    let check = |weights: NodeProto, want: &str| {
        let nodes = vec![
            dq("x s o", "a"),
            weights,
            node("MatMul", "a b", "z", vec![]),
            q("z t o"),
        ];
        assert_eq!(of(nodes), [want]);
    };
    let whole = "QLinearMatMul(x, [0.5], o, w, [0.25], 0, [0.25], o)";
    check(dq("w t", "b"), whole);
    let columns = "QLinearMatMul(x, [0.5], o, w, r, 0, [0.25], o)";
    check(dq("w r", "b"), columns);
}

#[test]
fn a_product_with_a_bias_is_computed_with_codes() {
    let check = |weights: &str, bias: &str, attrs: Vec<AttributeProto>, want: &[&str]| {
        let nodes = vec![
            dq("x s o", "a"),
            dq(weights, "b"),
            dq(bias, "d"),
            node("Gemm", "a b d", "z", attrs),
            q("z t o"),
        ];
        assert_eq!(of(nodes), want);
    };
    let whole = "QLinearMatMul(x, [0.5], o, w, [0.25], 0, [0.25], o, three)";
    check("w t", "three unit", vec![], &[whole]);
    let turned = [
        "Transpose(v)",
        "QLinearMatMul(x, [0.5], o, v:transposed, [0.25], 0, [0.25], o, three)",
    ];
    check("v t", "three unit", vec![int("transB", 1)], &turned);
    let separate = |last: &'static str| {
        [
            "DequantizeLinear(x, [0.5], o)",
            "DequantizeLinear(w, [0.25])",
            last,
            "Gemm(a, b, d)",
            "QuantizeLinear(z, [0.25], o)",
        ]
    };
    // The bias is in other units, or the product is scaled.
    check(
        "w t",
        "three s",
        vec![],
        &separate("DequantizeLinear(three, [0.5])"),
    );
    let halved = vec![float("alpha", 0.5)];
    check(
        "w t",
        "three unit",
        halved,
        &separate("DequantizeLinear(three, [0.125])"),
    );
}

#[test]
fn a_convolution_takes_over_its_bias_and_a_relu_that_saturation_does() {
    let check = |bias: &str, relu: bool, zero: &str, want: &[&str]| {
        let mut nodes = vec![
            dq("image s o", "a"),
            dq("filters t", "b"),
            dq(bias, "d"),
            node("Conv", "a b d", "z", vec![]),
        ];
        let mut last = "z";
        if relu {
            nodes.push(node("Relu", "z", "positive", vec![]));
            last = "positive";
        }
        nodes.push(q(&format!("{last} t {zero}")));
        assert_eq!(of(nodes), want);
    };
    let whole = |zero: &str| {
        format!("QLinearConv(image, [0.5], o, filters, [0.25], 0, [0.25], {zero}, bias)")
    };
    check("bias unit", false, "o", &[&whole("o")]);
    check("bias unit", true, "least", &[&whole("0")]);
    // The zero point is not known to be the least code.
    let separate = [
        "DequantizeLinear(image, [0.5], o)",
        "DequantizeLinear(filters, [0.25])",
        "DequantizeLinear(bias, [0.125])",
        "Conv(a, b, d)",
        "Relu(z)",
        "QuantizeLinear(positive, [0.25], o)",
    ];
    check("bias unit", true, "o", &separate);
    // The bias is in other units.
    let other = [
        "DequantizeLinear(image, [0.5], o)",
        "DequantizeLinear(filters, [0.25])",
        "DequantizeLinear(bias, [0.5])",
        "Conv(a, b, d)",
        "QuantizeLinear(z, [0.25], o)",
    ];
    check("bias s", false, "o", &other);
}

#[test]
fn what_is_used_elsewhere_or_is_no_code_stays_apart() {
    let check = |nodes: Vec<NodeProto>, want: &[&str]| assert_eq!(of(nodes), want);
    let product = || node("MatMul", "a b", "z", vec![]);
    check(
        vec![
            dq("x s o", "a"),
            dq("w t", "b"),
            product(),
            node("QuantizeLinear", "z t o", "codes", vec![]),
            node("Cast", "codes", "wide", vec![int("to", 1)]),
            node("Add", "wide z", "y", vec![]),
        ],
        &[
            "DequantizeLinear(x, [0.5], o)",
            "DequantizeLinear(w, [0.25])",
            "MatMul(a, b)",
            "QuantizeLinear(z, [0.25], o)",
            "Cast(codes)",
            "Add(wide, z)",
        ],
    );
    check(
        vec![
            dq("x s o", "a"),
            node("MatMul", "a f", "z", vec![]),
            q("z t o"),
        ],
        &[
            "DequantizeLinear(x, [0.5], o)",
            "MatMul(a, f)",
            "QuantizeLinear(z, [0.25], o)",
        ],
    );
}

#[test]
fn nodes_that_only_move_numbers_of_codes_move_codes() {
    let check = |nodes: Vec<NodeProto>, want: &[&str]| assert_eq!(of(nodes), want);
    let transpose = || node("Transpose", "a", "z", vec![]);
    let moved = |last: &str| vec![dq("x s o", "a"), transpose(), q(last)];
    check(moved("z s o"), &["Transpose(x)"]);
    let separate = |last: &str| {
        [
            "DequantizeLinear(x, [0.5], o)",
            "Transpose(a)",
            &format!("QuantizeLinear(z, {last})"),
        ]
        .map(String::from)
    };
    // Other scales and other zero points make other codes.
    assert_eq!(of(moved("z t o")), separate("[0.25], o"));
    assert_eq!(of(moved("z s least")), separate("[0.5], 0"));
    // One movement after the other, and one before a product.
    check(
        vec![
            dq("x s o", "a"),
            transpose(),
            node("QuantizeLinear", "z s o", "codes", vec![]),
            dq("codes s o", "b"),
            node("Flatten", "b", "flat", vec![]),
            q("flat s o"),
        ],
        &["Transpose(x)", "Flatten(codes)"],
    );
    check(
        vec![
            dq("x s o", "a"),
            node("Slice", "a i one one", "part", vec![]),
            q("part s o"),
        ],
        &["Slice(x, i, one, one)"],
    );
}
