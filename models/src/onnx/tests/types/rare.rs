//! Tests of types and ranks that few models have, and that ops reach by way of other ops.

use convoke_graph::DType;

use super::*;

const STRING: i32 = 8;
const U8: i32 = 2;
const U16: i32 = 4;
const F8E4M3FN: i32 = 17;

/// The lines of the model of one node, and the type of its first result.
fn imported(opset: i64, inputs: Vec<ValueInfoProto>, n: NodeProto) -> (Vec<String>, String) {
    let outputs = n.output.join(" ");
    let f = import(&model(opset, graph(inputs, vec![], vec![n], &outputs)));
    (lines(&f), f.ty(f.results[0].1).to_string())
}

#[test]
fn a_string_counts_as_zero_where_it_is_empty() {
    let n = node("NonZero", "x", "y", vec![]);
    let (lines, ty) = imported(13, vec![value("x", STRING, &["2", "n"])], n);
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with("Equal(x, "), "{lines:?}");
    assert!(lines[2].starts_with("NonZero("), "{lines:?}");
    assert!(ty.starts_with("i64[2, "), "{ty}");
}

#[test]
fn slices_of_strings_are_compared_by_ranks() {
    let x = || vec![value("x", STRING, &["r", "3"])];
    let along = |outputs: &str| node("Unique", "x", outputs, vec![int("axis", 1)]);
    let (lines, ty) = imported(11, x(), along("y first place times"));
    assert_eq!(
        lines,
        [
            "Unique(x)",
            "Shape(x)",
            "Reshape(y_node/rank, y_node/Shape)",
            "Unique(y_node/Reshape)",
            "Gather(x, first)",
        ]
    );
    assert!(ty.starts_with("string[r, "), "{ty}");
    let (lines, _) = imported(11, x(), along("y"));
    assert_eq!(lines[4], "Gather(x, y_node/first)");
    // Without an axis, strings are compared themselves.
    let (lines, _) = imported(11, x(), node("Unique", "x", "y", vec![]));
    assert_eq!(lines, ["Unique(x)"]);
}

#[test]
fn bools_of_blocks_are_counted() {
    let x = vec![
        value("x", BOOL, &["1", "4", "9"]),
        value("s", I64, &["2"]),
        value("k", I64, &["2"]),
    ];
    let (lines, ty) = imported(18, x, node("Col2Im", "x s k", "y", vec![]));
    assert_eq!(
        lines,
        [
            "Cast(x)",
            "Col2Im(y_node/Cast, s, k)",
            "Cast(y_node/Col2Im)"
        ]
    );
    assert!(ty.starts_with("bool["), "{ty}");
}

#[test]
fn bools_are_combined_as_bytes() {
    let check = |op: &str, reduction: &str, want: &str| {
        let x = vec![
            value("x", BOOL, &["4"]),
            value("i", I64, &["2", "1"]),
            value("j", I64, &["2"]),
            value("u", BOOL, &["2"]),
        ];
        let operands = if op == "ScatterND" { "x i u" } else { "x j u" };
        let n = node(op, operands, "y", vec![text("reduction", reduction)]);
        let f = import(&model(18, graph(x, vec![], vec![n], "y")));
        let ops: Vec<&str> = f.nodes.iter().map(|n| &*n.op).collect();
        assert_eq!(ops, ["Cast", "Cast", op, "Cast"]);
        assert_eq!(f.nodes[2].attrs.str("reduction", ""), want);
        assert_eq!(f.ty(f.results[0].1).to_string(), "bool[4]");
    };
    check("ScatterND", "add", "max");
    check("ScatterND", "mul", "min");
    check("ScatterElements", "max", "max");
    check("ScatterElements", "min", "min");
}

/// QLinearMatMul of `a [2, 3, 4]` and `b [4, 5]`, with scales and zero points of these shapes.
fn product(elem: i32, of_a: &[&str], of_b: &[&str], of_y: &[&str]) -> ModelProto {
    let inputs = vec![
        value("a", elem, &["2", "3", "4"]),
        value("as", F32, of_a),
        value("az", elem, of_a),
        value("b", elem, &["4", "5"]),
        value("bs", F32, of_b),
        value("bz", elem, of_b),
        value("ys", F32, of_y),
        value("yz", elem, of_y),
    ];
    let n = node("QLinearMatMul", "a as az b bs bz ys yz", "y", vec![]);
    model(21, graph(inputs, vec![], vec![n], "y"))
}

#[test]
fn products_of_codes_have_parameters_of_each_matrix() {
    let ops = |m: &ModelProto| {
        let f = import(m);
        let ops: Vec<String> = f.nodes.iter().map(|n| n.op.to_string()).collect();
        (ops.join(" "), f.ty(f.results[0].1).to_string())
    };
    let (own, ty) = ops(&product(U8, &["3"], &["5"], &[]));
    assert_eq!((&*own, &*ty), ("QLinearMatMul", "u8[2, 3, 5]"));
    let (matrices, ty) = ops(&product(
        U8,
        &["2", "3", "1"],
        &["1", "5"],
        &["2", "3", "1"],
    ));
    assert!(matrices.starts_with("MatMulInteger Cast"), "{matrices}");
    assert_eq!(ty, "u8[2, 3, 5]");
    let (floats, ty) = ops(&product(F8E4M3FN, &["3"], &["5"], &["3"]));
    assert!(floats.contains(" MatMul "), "{floats}");
    assert_eq!(ty, format!("{}[2, 3, 5]", DType::F8E4M3FN));
}

#[test]
fn products_of_wide_codes_are_refused() {
    let e = try_import(&product(U16, &["3"], &["5"], &[])).unwrap_err();
    assert!(e.to_string().contains("operand 0 of u16"), "{e}");
}

#[test]
fn parameters_that_fit_no_row_or_column_are_refused() {
    let check = |of_a: &[&str], of_b: &[&str], of_y: &[&str], cause: &str| {
        let e = try_import(&product(F8E4M3FN, of_a, of_b, of_y))
            .unwrap_err()
            .to_string();
        assert!(e.contains(cause), "{e}");
    };
    check(&["4"], &[], &[], "one number for each row");
    check(&["2", "3", "4"], &[], &[], "one number for each row");
    check(&[], &["4"], &[], "one number for each column");
    check(&[], &["4", "1"], &[], "one number for each column");
    check(&[], &[], &["3", "3", "1"], "one number for each row");
}
