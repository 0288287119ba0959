//! Tests of constants of narrow dtypes, of which a byte may hold several elements.

use super::*;

const FLOAT8E4M3FN: i32 = 17;
const INT4: i32 = 22;
const FLOAT4E2M1: i32 = 23;
const UINT2: i32 = 25;

/// A model that returns its constant.
fn constant(w: TensorProto) -> ModelProto {
    model(
        25,
        graph(
            vec![],
            vec![w],
            vec![node("Identity", "w", "y", vec![])],
            "y",
        ),
    )
}

#[test]
fn ops_that_onnx_lists_for_narrow_floats_take_them() {
    let check = |op: &str, outputs: &str, want: &[&str], types: &[&str]| {
        let x = value("x", FLOAT8E4M3FN, &["n", "3"]);
        let n = node(op, "x", outputs, vec![]);
        let f = import(&model(22, graph(vec![x], vec![], vec![n], outputs)));
        assert_eq!(lines(&f), want);
        let found: Vec<String> = f
            .results
            .iter()
            .map(|(_, id)| f.ty(*id).to_string())
            .collect();
        assert_eq!(found, types);
    };
    let tested = |op: &str| {
        let want = ["Cast(x)".to_owned(), format!("{op}(y_node/Cast)")];
        check(op, "y", &[&want[0], &want[1]], &["bool[n, 3]"]);
    };
    tested("IsNaN");
    tested("IsInf");
    check(
        "Dropout",
        "y mask",
        &["Shape(x)", "ConstantOfShape(y_node/Shape)", "Identity(x)"],
        &["f8e4m3fn[n, 3]", "bool[n, 3]"],
    );
}

fn typed(elem: i32, dims: &[i64], int32_data: Vec<i32>) -> TensorProto {
    TensorProto {
        raw_data: None,
        int32_data,
        ..raw("w", elem, dims, vec![])
    }
}

#[test]
fn packed_elements_are_read_from_either_form() {
    let check = |t: TensorProto, want: &[u8]| match literal(&import(&constant(t)), "w") {
        Literal::Inline(t) => assert_eq!(t.bytes(), want, "{t:?}"),
        other => panic!("{other:?}"),
    };
    check(raw("w", INT4, &[3], vec![0x21, 0x0f]), &[0x21, 0x0f]);
    // `onnx.helper.make_tensor` stores an int32 for each byte.
    check(typed(INT4, &[3], vec![0x21, 0x0f]), &[0x21, 0x0f]);
    check(typed(UINT2, &[1, 5], vec![0xe4, 1]), &[0xe4, 1]);
    check(typed(FLOAT4E2M1, &[2], vec![0xf7]), &[0xf7]);
    check(typed(FLOAT8E4M3FN, &[2], vec![0x7e, 0xff]), &[0x7e, 0xff]);
    check(raw("w", INT4, &[0], vec![]), &[]);
}

#[test]
fn content_that_does_not_fill_a_packed_shape_is_refused() {
    let check = |t: TensorProto, reason: &str| {
        let e = try_import(&constant(t)).expect_err(reason).to_string();
        assert!(e.contains(reason), "{e}");
    };
    check(
        raw("w", INT4, &[3], vec![0x21]),
        "i4[3] takes 2 bytes, the file has 1",
    );
    check(
        raw("w", INT4, &[3], vec![0; 3]),
        "i4[3] takes 2 bytes, the file has 3",
    );
    check(
        raw("w", UINT2, &[4, 1], vec![0; 4]),
        "takes 1 bytes, the file has 4",
    );
    check(
        typed(INT4, &[4], vec![1, 2, 3, 4]),
        "takes 2 bytes, the file has 4",
    );
    check(
        raw("w", INT4, &[1], vec![0xf1]),
        "holds more than its elements",
    );
    check(raw("w", INT4, &[i64::MAX, 4], vec![1]), "too large");
}
