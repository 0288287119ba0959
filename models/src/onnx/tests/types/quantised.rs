//! Tests of ops on quantised numbers.

use convoke_graph::DType;

use super::*;

const U8: i32 = 2;
const I8: i32 = 3;

/// A model of one node of the domain `com.microsoft`: `x` and `z` are u8 [2, 4], `w` is i8 [4, 3], `f` is f32 [2, 4], `s` a
/// scale, `h` one of f16, `r` and `g` rows of three scales, the latter of f16, `v` four of them, `u` a list, and `o` a zero point;
/// `q` is u8 [2, 5, 4], `lengths`, `keys` and `column` are masks of it, `p` are keys and values before it, and `m` i8 [4, 4];
/// `k` are weights i8 [6, 4, 3], `e` their zero point, and `c` is bool [2, 1].
fn on(n: NodeProto) -> ModelProto {
    let n = NodeProto {
        domain: Some("com.microsoft".into()),
        ..n
    };
    let inputs = vec![
        value("x", U8, &["2", "4"]),
        value("z", U8, &["2", "4"]),
        value("w", I8, &["4", "3"]),
        value("f", F32, &["2", "4"]),
        value("s", F32, &[]),
        value("h", F16, &[]),
        value("r", F32, &["3"]),
        value("g", F16, &["3"]),
        value("v", F32, &["4"]),
        value("u", F32, &["n"]),
        value("o", U8, &[]),
        value("q", U8, &["2", "5", "4"]),
        value("lengths", I32, &["2"]),
        value("keys", I32, &["2", "5"]),
        value("column", I32, &["2", "1"]),
        value("p", F32, &["2", "2", "1", "3", "1"]),
        value("m", I8, &["4", "4"]),
        value("k", I8, &["6", "4", "3"]),
        value("e", I8, &[]),
        value("c", 9, &["2", "1"]),
    ];
    let outputs = n.output.join(" ");
    model(17, graph(inputs, vec![], vec![n], &outputs))
}

fn refused(n: NodeProto, cause: &str) {
    let e = try_import(&on(n)).expect_err(cause).to_string();
    assert!(e.contains(cause), "{e}");
}

#[test]
fn codes_become_numbers_and_codes_again() {
    let check = |n: NodeProto, want: &[&str], ty: &str| {
        let f = import(&on(n));
        assert_eq!(lines(&f), want);
        assert_eq!(f.ty(f.results[0].1).to_string(), ty);
    };
    let left = "DequantizeLinear(x, s, o)";
    check(
        node("QLinearAdd", "x s o z s o s o", "y", vec![]),
        &[
            left,
            "DequantizeLinear(z, s, o)",
            "Add(y_node/DequantizeLinear, y_node/DequantizeLinear.1)",
            "QuantizeLinear(y_node/Add, s, o)",
        ],
        "u8[2, 4]",
    );
    check(
        node("QLinearSigmoid", "x s o s", "y", vec![]),
        &[
            left,
            "Sigmoid(y_node/DequantizeLinear)",
            "QuantizeLinear(y_node/Sigmoid, s)",
        ],
        "u8[2, 4]",
    );
    check(
        node("MatMulIntegerToFloat", "x w s s o", "y", vec![]),
        &[
            "MatMulInteger(x, w, o)",
            "Cast(y_node/MatMulInteger)",
            "Mul(s, s)",
            "Mul(y_node/Cast, y_node/Mul)",
        ],
        "f32[2, 3]",
    );
    // A sum or the product of two scales may be outside the numbers of f16.
    check(
        node("MatMulIntegerToFloat", "x w h h _ _ h", "y", vec![]),
        &[
            "MatMulInteger(x, w)",
            "Cast(y_node/MatMulInteger)",
            "Cast(h)",
            "Cast(h)",
            "Mul(y_node/Cast.1, y_node/Cast.2)",
            "Mul(y_node/Cast, y_node/Mul)",
            "Cast(h)",
            "Add(y_node/Mul.1, y_node/Cast.3)",
            "Cast(y_node/Add)",
        ],
        "f16[2, 3]",
    );
    check(
        node("DynamicQuantizeMatMul", "f w s", "y", vec![]),
        &[
            "DynamicQuantizeLinear(f)",
            "MatMulInteger(y_node/codes, w, y_node/zero)",
            "Cast(y_node/MatMulInteger)",
            "Mul(y_node/scale, s)",
            "Mul(y_node/Cast, y_node/Mul)",
        ],
        "f32[2, 3]",
    );
}

#[test]
fn a_choice_between_codes() {
    let f = import(&on(node("QLinearWhere", "c x s o z s o s o", "y", vec![])));
    let want = [
        "DequantizeLinear(x, s, o)",
        "DequantizeLinear(z, s, o)",
        "Where(c, y_node/DequantizeLinear, y_node/DequantizeLinear.1)",
        "QuantizeLinear(y_node/Where, s, o)",
    ];
    assert_eq!(lines(&f), want);
    assert_eq!(f.ty(f.results[0].1).to_string(), "u8[2, 4]");
}

#[test]
fn codes_are_transposed_where_the_channels_are_last() {
    let check = |op: &str, operands: &str, want: &[&str], ty: &str| {
        let n = node(op, operands, "y", vec![int("channels_last", 1)]);
        let f = import(&on(n));
        assert_eq!(lines(&f), want);
        assert_eq!(f.ty(f.results[0].1).to_string(), ty);
    };
    check(
        "QLinearConv",
        "q s o k s e s o",
        &[
            "Transpose(q)",
            "QLinearConv(y_node/Transpose, s, o, k, s, e, s, o)",
            "Transpose(y_node/QLinearConv)",
        ],
        "u8[2, 3, 6]",
    );
    check(
        "QLinearGlobalAveragePool",
        "q s o s o",
        &[
            "Transpose(q)",
            "DequantizeLinear(y_node/Transpose, s, o)",
            "GlobalAveragePool(y_node/DequantizeLinear)",
            "QuantizeLinear(y_node/GlobalAveragePool, s, o)",
            "Transpose(y_node/QuantizeLinear)",
        ],
        "u8[2, 1, 4]",
    );
}

#[test]
fn padding_that_counts_reaches_as_far_as_the_last_window() {
    let check = |kernel, stride, pads: [i64; 2], auto_pad: &str, want: [i64; 2], ty: &str| {
        let attrs = vec![
            int("ceil_mode", 1),
            int("count_include_pad", 1),
            ints("kernel_shape", &[kernel]),
            ints("strides", &[stride]),
            ints("pads", &pads),
            text("auto_pad", auto_pad),
        ];
        let f = import(&on(node("QLinearAveragePool", "q s o s o", "y", attrs)));
        let pool = f.nodes.iter().find(|n| &*n.op == "AveragePool").unwrap();
        assert_eq!(pool.attrs.ints("pads"), Some(&want[..]));
        assert_eq!(f.ty(f.results[0].1).to_string(), ty);
    };
    check(3, 2, [1, 1], "NOTSET", [1, 2], "u8[2, 5, 3]");
    check(3, 2, [0, 0], "VALID", [0, 1], "u8[2, 5, 2]");
    // A window that begins behind the operand is left out.
    check(2, 4, [0, 0], "NOTSET", [0, 1], "u8[2, 5, 1]");
    check(3, 2, [0, 0], "SAME_UPPER", [0, 0], "u8[2, 5, 2]");
}

#[test]
fn a_softmax_of_codes_has_the_form_of_its_operator_set() {
    let check = |opset: i64, want: &[&str]| {
        let attrs = vec![int("axis", 0), int("opset", opset)];
        let f = import(&on(node("QLinearSoftmax", "x s o s o", "y", attrs)));
        let ops: Vec<&str> = f.nodes.iter().map(|n| &*n.op).collect();
        assert_eq!(ops, want);
        assert_eq!(f.ty(f.results[0].1).to_string(), "u8[2, 4]");
    };
    check(13, &["DequantizeLinear", "Softmax", "QuantizeLinear"]);
    let want = [
        "DequantizeLinear",
        "Flatten",
        "Softmax",
        "Reshape",
        "QuantizeLinear",
    ];
    check(12, &want);
}

#[test]
fn keys_and_values_of_codes_follow_those_before() {
    let heads = vec![int("num_heads", 1), int("unidirectional", 1)];
    let n = node("QAttention", "q w r s s _ o _ p", "y after", heads);
    let f = import(&on(n));
    let types: Vec<String> = f
        .results
        .iter()
        .map(|(_, v)| f.ty(*v).to_string())
        .collect();
    assert_eq!(types, ["f32[2, 5, 1]", "f32[2, 2, 1, 8, 1]"]);
}

#[test]
fn a_zero_point_says_that_a_product_is_codes() {
    for (operands, ty) in [
        ("x s o w s e", "f32[2, 3]"),
        ("x s o w s e _ s", "f32[2, 3]"),
        ("x s o w s e _ s o", "u8[2, 3]"),
    ] {
        let f = import(&on(node("QGemm", operands, "y", vec![])));
        assert_eq!(f.ty(f.results[0].1).to_string(), ty);
    }
}

#[test]
fn attention_of_codes_has_the_dtype_of_its_scales() {
    let heads = vec![int("num_heads", 1)];
    let f = import(&on(node("QAttention", "q w g h h", "y", heads)));
    assert_eq!(f.ty(f.results[0].1).to_string(), "f16[2, 5, 1]");
}

#[test]
fn a_dtype_that_is_undefined_is_none() {
    let attrs = vec![int("output_dtype", 0), int("block_size", 0)];
    let n = node("QuantizeLinear", "f s", "y", attrs);
    let inputs = vec![value("f", F32, &["2", "4"]), value("s", F32, &[])];
    let f = import(&model(21, graph(inputs, vec![], vec![n], "y")));
    assert_eq!(f.ty(f.results[0].1).to_string(), "u8[2, 4]");
    assert_eq!(f.nodes[0].attrs.dtype("precision"), Some(DType::F32));
}

#[test]
fn the_operator_set_decides_the_precision_of_a_division() {
    for (opset, precision) in [(21, Some(DType::F32)), (23, None), (25, None)] {
        let n = node("QuantizeLinear", "f s", "y", vec![]);
        let inputs = vec![value("f", F16, &["2", "4"]), value("s", F16, &[])];
        let f = import(&model(opset, graph(inputs, vec![], vec![n], "y")));
        assert_eq!(f.nodes[0].attrs.dtype("precision"), precision, "{opset}");
    }
}

#[test]
fn what_cannot_be_expressed_is_refused_by_name() {
    refused(
        node(
            "QLinearConv",
            "x s o w s o s o",
            "y",
            vec![int("channels_last", 1)],
        ),
        "rank 3 or more",
    );
    let attrs = vec![
        int("ceil_mode", 1),
        int("count_include_pad", 1),
        ints("kernel_shape", &[2]),
        ints("pads", &[1]),
    ];
    refused(
        node("QLinearAveragePool", "q s o s o", "y", attrs),
        "two numbers for each spatial axis",
    );
    refused(
        node("QLinearConcat", "s o x s", "y", vec![int("axis", 0)]),
        "takes no 4 operands",
    );
    refused(
        node("QGemm", "x s o w s o _ _ o", "y", vec![]),
        "y_zero_point needs y_scale",
    );
    refused(
        node("QLinearAdd", "x _ o z s o s o", "y", vec![]),
        "operand 1 is missing",
    );
    refused(
        node("QLinearSoftmax", "x s o s o", "y", vec![int("axis", 0)]),
        "'opset' is missing",
    );
    refused(
        node(
            "GatherBlockQuantized",
            "x z s",
            "y",
            vec![int("gather_axis", 1)],
        ),
        "axes 1 and 1",
    );
    refused(
        node(
            "QAttention",
            "x w f s s _ o",
            "y",
            vec![int("num_heads", 1), int("do_rotary", 1)],
        ),
        "rotary embedding",
    );
}

#[test]
fn scales_of_a_wrong_shape_are_refused() {
    let one = "not one number";
    let columns = "for each column";
    for (op, operands, cause) in [
        ("QLinearAdd", "x v o z s o s o", one),
        ("QLinearMul", "x s o z v o s o", one),
        ("QLinearMul", "x s o z s o v o", one),
        ("QLinearSigmoid", "x v o s o", one),
        ("QLinearSigmoid", "x s o v o", one),
        ("MatMulIntegerToFloat", "x w r r o", one),
        ("MatMulIntegerToFloat", "x w s v o", columns),
        ("MatMulIntegerToFloat", "x w s f o", columns),
        ("DynamicQuantizeMatMul", "f w v", columns),
        ("QGemm", "x r o w s o", one),
        ("QGemm", "x s o w v o", columns),
        ("QGemm", "x s o w s o _ r o", one),
    ] {
        refused(node(op, operands, "y", vec![]), cause);
    }
    let heads = || vec![int("num_heads", 1)];
    refused(node("QAttention", "q w r r s", "y", heads()), one);
    refused(node("QAttention", "q w r s v", "y", heads()), columns);
    let four = node("QAttention", "q m v s s", "y", heads());
    refused(four, "three times as many columns");
    let f = import(&on(node("MatMulIntegerToFloat", "x w s r", "y", vec![])));
    assert_eq!(f.ty(f.results[0].1).to_string(), "f32[2, 3]");
    let by_list = on(node("QLinearSigmoid", "x u o s", "y", vec![]));
    assert_eq!(lines(&import(&by_list))[0], "Squeeze(u, [0])");
}

#[test]
fn masks_of_attention_say_which_keys_are_padding() {
    let imported = |mask: &str| {
        let heads = vec![int("num_heads", 1)];
        let operands = format!("q w r s s {mask}");
        lines(&import(&on(node("QAttention", &operands, "y", heads))))
    };
    let has = |lines: &[String], op: &str| lines.iter().any(|line| line.starts_with(op));
    let plain = imported("_");
    assert!(!has(&plain, "Where"));
    assert_eq!(imported("column"), plain);
    let keys = imported("keys");
    assert!(
        has(&keys, "Greater(keys, ") && has(&keys, "Where"),
        "{keys:?}"
    );
    let lengths = imported("lengths");
    assert!(
        has(&lengths, "Less(") && has(&lengths, "Where"),
        "{lengths:?}"
    );
}

#[test]
fn gathered_rows_of_blocks_are_zeros_where_there_is_no_such_row() {
    const I4: i32 = 22;
    let check = |elem: i32, given: &[i64], axis: i64, want: &[&str], ty: &str| {
        let attrs = vec![
            int("block_size", 16),
            int("bits", 8),
            int("gather_axis", axis),
        ];
        let n = NodeProto {
            domain: Some("com.microsoft".into()),
            ..node("GatherBlockQuantized", "d i s", "y", attrs)
        };
        let mut inputs = vec![value("d", elem, &["9", "32"]), value("s", F32, &["9", "2"])];
        let mut known = vec![];
        match given {
            [] => inputs.push(value("i", I64, &["n"])),
            _ => {
                let bytes = given.iter().flat_map(|i| i.to_le_bytes()).collect();
                known.push(raw("i", I64, &[given.len() as i64], bytes));
            }
        }
        let f = import(&model(21, graph(inputs, known, vec![n], "y")));
        let last = f.nodes.iter().rev().take(want.len()).rev();
        assert_eq!(last.map(|n| &*n.op).collect::<Vec<_>>(), want);
        assert_eq!(f.ty(f.results[0].1).to_string(), ty);
    };
    let numbers = "DequantizeLinear";
    check(U8, &[], 0, &[numbers, "Where"], "f32[n, 32]");
    check(U8, &[8, -9], 0, &[numbers], "f32[2, 32]");
    check(U8, &[9], 0, &[numbers, "Where"], "f32[1, 32]");
    // Blocks along the axis of the rows are whole before rows are gathered.
    check(I4, &[31], 1, &[numbers, "Gather"], "f32[9, 1]");
    check(I4, &[], 1, &[numbers, "Gather", "Where"], "f32[9, n]");
}

#[test]
fn gathered_rows_of_floats_of_few_bits_have_scales_alone() {
    const F8E4M3FN: i32 = 17;
    let m = |operands: &str, block: i64, scales: &[&str]| {
        let n = NodeProto {
            domain: Some("com.microsoft".into()),
            ..node(
                "GatherBlockQuantized",
                operands,
                "y",
                vec![int("block_size", block)],
            )
        };
        let inputs = vec![
            value("d", F8E4M3FN, &["9", "32"]),
            value("i", I64, &["n"]),
            value("s", F32, scales),
        ];
        model(21, graph(inputs, vec![], vec![n], "y"))
    };
    for (block, scales) in [(16, ["9", "2"]), (0, ["9", "1"]), (16, ["1", "2"])] {
        let f = import(&m("d i s", block, &scales));
        assert_eq!(f.ty(f.results[0].1).to_string(), "f32[n, 32]");
    }
    let refused = |m: &ModelProto, reason: &str| {
        let e = try_import(m).expect_err(reason).to_string();
        assert!(e.contains(reason), "{e}");
    };
    refused(&m("d i s d", 16, &["9", "2"]), "floats have no zero points");
    refused(&m("d i s", -1, &["9", "2"]), "'block_size'");
    for scales in [["9", "1"], ["9", "3"], ["8", "2"]] {
        refused(
            &m("d i s", 16, &scales),
            "scales must have 2 elements along axis 1",
        );
    }
}
