//! Tests of ops on shapes and indices, and of the elements that inference follows.

use super::*;
use crate::tensor::Tensor;

#[test]
fn shapes_and_indices() {
    for (op, inputs, want) in [
        (
            "Reshape",
            "f32[b, s, 768]; =0 -1 12 64",
            "f32[b, s, 12, 64]",
        ),
        ("Reshape", "f32[b, s]; i64[3]", "f32[new00, new01, new02]"),
        ("Flatten", "f32[n, 4, 7, 7]", "f32[n, 196]"),
        ("Squeeze", "f32[1, s, 1]", "f32[s]"),
        ("Squeeze", "f32[b, s, 1]; =-1", "f32[b, s]"),
        ("Squeeze", "f32[b, s, 1]; i64[2]", "f32[new00]"),
        ("Unsqueeze", "f32[s]; =0 -1", "f32[1, s, 1]"),
        ("Unsqueeze", "f32[s]; i64[1]", "f32[new00, new01]"),
        ("Transpose", "f32[b, s, 4]", "f32[4, s, b]"),
        ("Expand", "f32[b, 1]; =b s", "f32[b, s]"),
        ("Expand", "f32[b, 1]; i64[3]", "f32[new00, new01, new02]"),
        ("Tile", "f32[b, 2]; =1 3", "f32[b, 6]"),
        ("Tile", "f32[b, 2]; i64[n]", "f32[new00, new01]"),
        ("Pad", "f32[s, 4]; =1 0 2 -1", "f32[s+3, 3]"),
        ("Pad", "f32[s, 4]; i64[n]", "f32[new00, new01]"),
        ("Pad", "f32[s, 4]; =1 1; _; =-1", "f32[s, 6]"),
        ("Split", "f32[9]", "f32[5]; f32[4]"),
        ("Split", "f32[s]; =2 3", "f32[2]; f32[3]"),
        ("Slice", "f32[s+1, 4]; =0 1; =1 3", "f32[1, 2]"),
        ("Slice", "f32[s]; =-3; =2", "f32[new00]"),
        ("Slice", "f32[s+3]; =-3; =-1", "f32[2]"),
        ("Slice", "f32[s, 4]; i64[1]; i64[1]; =1", "f32[s, new01]"),
        ("Slice", "f32[s, 4]; i64[n]; i64[n]", "f32[new00, new01]"),
        ("Gather", "f32[30522, 384]; i64[b, s]", "f32[b, s, 384]"),
        ("GatherElements", "f32[b, s]; i64[b, 2]", "f32[b, 2]"),
        ("GatherND", "f32[b, s, 8]; i64[n, 2]", "f32[n, 8]"),
        ("ScatterND", "f32[b, s]; i64[n, 1]; f32[n, s]", "f32[b, s]"),
        ("ScatterND", "f32[b, s]; i64[n, k]; f32[n, s]", "f32[b, s]"),
        (
            "ScatterElements",
            "f32[b, s]; i64[2, 2]; f32[2, 2]",
            "f32[b, s]",
        ),
        ("OneHot", "i64[b]; =10.; f32[2]", "f32[b, 10]"),
        ("NonZero", "f32[b, s]", "i64[2, new01]"),
        ("Compress", "f32[b, s]; bool[n]", "f32[new00]"),
        ("Shape", "f32[b, s]", "i64[2]"),
        ("Size", "f32[b, s]", "i64[]"),
        ("Range", "=0.; =s.; =1.", "i64[s]"),
        ("Range", "=10.; =0.; =-3.", "i64[4]"),
        ("Range", "f32[]; f32[]; f32[]", "f32[new00]"),
        ("ConstantOfShape", "=b 3", "f32[b, 3]"),
        ("EyeLike", "f32[s, 4]", "f32[s, 4]"),
        ("Trilu", "bool[s, s]; =1.", "bool[s, s]"),
    ] {
        check(op, &[], inputs, want);
    }
    check(
        "Concat",
        &[("axis", int(1))],
        "f32[b, s]; f32[b, 1]; f32[b, s]",
        "f32[b, 2*s+1]",
    );
    check(
        "Concat",
        &[("axis", int(-1))],
        "f32[b, 3]; f32[2, t]",
        "f32[2, t+3]",
    );
    check(
        "Split",
        &[("axis", int(1))],
        "f32[b, 12]",
        "f32[b, 4]; f32[b, 4]; f32[b, 4]",
    );
    check(
        "DepthToSpace",
        &[("blocksize", int(2))],
        "f32[n, 8, h, 3]",
        "f32[n, 2, h*2, 6]",
    );
    check(
        "SpaceToDepth",
        &[("blocksize", int(2))],
        "f32[n, 2, 4, 6]",
        "f32[n, 8, 2, 3]",
    );
    check("ReverseSequence", &[], "f32[t, b]; i64[b]", "f32[t, b]");
    check(
        "Compress",
        &[("axis", int(1))],
        "f32[b, s]; bool[n]",
        "f32[b, new01]",
    );
    let max = i64::MAX.to_string();
    for (op, list, inputs) in [
        ("Reshape", &[][..], "f32[2, 3]; =4 2"),
        ("Reshape", &[], "f32[2, 3]; =-2 3"),
        ("Reshape", &[], "f32[2]; i64[17]"),
        ("Reshape", &[], "f32[2]; i64[n]"),
        ("Reshape", &[], &format!("f32[2]; ={max} {max} 0")),
        ("Flatten", &[("axis", int(4))], "f32[2, 3]"),
        ("Squeeze", &[], "f32[2, 3]; =0"),
        ("Squeeze", &[("kept", ints(&[1]))], "f32[2, 1]"),
        ("Squeeze", &[("kept", ints(&[2]))], "f32[2, 1]"),
        ("Squeeze", &[], "f32[2, 3]; i64[3]"),
        ("Unsqueeze", &[], "f32[2, 3]; i64[n]"),
        ("Unsqueeze", &[], "f32[2]; =0 0"),
        ("Unsqueeze", &[], "f32[2]; =5"),
        (
            "Unsqueeze",
            &[],
            "f32[2]; =0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15",
        ),
        ("Transpose", &[("perm", ints(&[0]))], "f32[2, 3]"),
        ("Concat", &[], "f32[2]; f32[2]"),
        ("Concat", &[("axis", int(0))], "f32[2]; f32[2, 1]"),
        ("Concat", &[("axis", int(0))], "f32[2, 3]; f32[2, 4]"),
        ("Tile", &[], &format!("f32[2, 2]; ={max} {max}")),
        ("Tile", &[], "f32[2]; =-1"),
        ("Expand", &[], "f32[2]; =-1"),
        ("Expand", &[], &format!("f32[1]; ={max} {max}")),
        ("Pad", &[], "f32[2]; =-3 0"),
        ("Pad", &[], "f32[2]; =1"),
        ("Pad", &[], &format!("f32[2]; ={max} {max}")),
        ("Pad", &[("mode", text("odd"))], "f32[2]; =1 1"),
        ("Split", &[], "f32[4]; =1 2"),
        ("Split", &[("num_outputs", int(2))], "f32[4]"),
        ("Slice", &[], "f32[4]; =0; =1; =0; =0"),
        ("Slice", &[], "f32[4]; =0 0; =1"),
        ("Slice", &[], "f32[4]; =0; =1; =1"),
        ("Gather", &[("axis", int(1))], "f32[4]; i64[2]"),
        ("Gather", &[], "f32[4]; f32[2]"),
        ("GatherND", &[], "f32[4]; i64[2, 2]"),
        ("GatherND", &[], "f32[4, 4]; i64[2, k]"),
        (
            "GatherND",
            &[("batch_dims", int(-1))],
            "f32[4, 4]; i64[2, 1]",
        ),
        ("ScatterND", &[], "f32[4, 4]; i64[2, 1]; f32[2]"),
        ("ScatterND", &[], "f32[4, 4]; i64[2, k]; f32[2, 4, 4, 4]"),
        ("OneHot", &[], "i64[b]; =-1.; f32[2]"),
        ("OneHot", &[], "i64[b]; =10.; f32[3]"),
        ("Range", &[], "=0.; =1.; =0."),
        ("Range", &[], &format!("=0.; ={max}.; =1.")),
        ("ConstantOfShape", &[], "=-1"),
        ("ConstantOfShape", &[], &format!("={max} {max}")),
        ("DepthToSpace", &[("blocksize", int(0))], "f32[1, 4, 2, 2]"),
        (
            "DepthToSpace",
            &[("blocksize", int(i64::MAX))],
            "f32[1, 4, 2, 2]",
        ),
        ("Trilu", &[], "f32[2]"),
    ] {
        check_err(op, list, inputs);
    }
}

#[test]
fn elements_are_followed() {
    for (op, inputs, want) in [
        ("Shape", "f32[b, s, 4]", "b s 4"),
        ("Size", "f32[b, 4]", "b*4"),
        ("Gather", "=b s 4; =1.", "s"),
        ("Gather", "=b s 4; =-1", "4"),
        ("Slice", "=b s 4; =1; =9223372036854775807", "s 4"),
        (
            "Slice",
            "=1 2 3 4; =-1; =-9223372036854775807; =0; =-1",
            "4 3 2 1",
        ),
        ("Unsqueeze", "=s.; =0", "s"),
        ("Squeeze", "=s; =0", "s"),
        ("Identity", "=s 1", "s 1"),
        ("Mul", "=s 2; =3.", "s*3 6"),
        ("Add", "=s 2; =1 1", "s+1 3"),
        ("Div", "=s*4 -7; =4 2", "s -3"),
        ("Mod", "=7 -7; =4 4", "3 1"),
        ("Neg", "=-3", "3"),
        ("Abs", "=-3 s", "3 s"),
        ("Equal", "=s -1; =-1", "0 1"),
        ("Less", "=1 5; =3", "1 0"),
        ("Min", "=s 2; =s 1", "s 1"),
        ("Max", "=s 2; =-1", "s 2"),
        ("Range", "=0.; =4.; =1.", "0 1 2 3"),
        ("ReduceProd", "=b 3 4", "b*12"),
        ("ReduceSum", "=b 3 4", "b+7"),
        ("ReduceMin", "=5 3 4", "3"),
        ("Expand", "=s; =3", "s s s"),
        ("Tile", "=s 1; =2", "s 1 s 1"),
        ("Pow", "=3 s; =2.", "9 s*s"),
        ("Clip", "=-3 9 4; =0.; =5.", "0 5 4"),
    ] {
        check_value(op, &[], inputs, want);
    }
    check_value("Cast", &[("to", Attr::DType(I32))], "=s 3", "s 3");
    check_value("Cast", &[("to", Attr::DType(Bool))], "=0 3", "0 1");
    check_value("Concat", &[("axis", int(0))], "=b; =-1 12", "b -1 12");
    let ones = Tensor::from_slice(&[1], &[1i64]).unwrap();
    check_value(
        "ConstantOfShape",
        &[("value", Attr::Tensor(ones))],
        "=3",
        "1 1 1",
    );
    let narrow = run("Cast", &[("to", Attr::DType(U8))], "=300", 1).unwrap();
    assert_eq!(narrow[0].value, None);
    let float = run("Cast", &[("to", Attr::DType(F32))], "=3", 1).unwrap();
    assert_eq!(float[0].value, None);
}

/// An op whose size is a product of sums: 16 dimensions of four symbols each.
fn product_of_sums(op: &str, list: &[(&str, Attr)], more: &str, outputs: usize) {
    let sum = |k: usize| ["a", "b", "c", "d"].map(|s| format!("{s}{k}")).join("+");
    let dims: Vec<String> = (0..16).map(sum).collect();
    let inputs = format!("f32[{}]{more}", dims.join(","));
    let out = run(op, list, &inputs, outputs).unwrap_or_else(|e| panic!("{op}: {e}"));
    for out in out {
        assert!(out.ty.shape.iter().all(|d| d.weight(48) <= 48), "{op}");
        assert!(out.value.is_none(), "{op}");
    }
}

#[test]
fn products_of_many_sums_are_unknown() {
    product_of_sums("Size", &[], "", 1);
    product_of_sums("Flatten", &[("axis", int(8))], "", 1);
    product_of_sums("Reshape", &[], "; =-1", 1);
    product_of_sums("Compress", &[], "; bool[n]", 1);
    product_of_sums("Unique", &[], "", 4);
    let sum = |k: usize| ["a", "b", "c", "d"].map(|s| format!("{s}{k}")).join("+");
    let elements = (0..16).map(sum).collect::<Vec<_>>().join(" ");
    for (op, inputs) in [
        ("ReduceProd", format!("={elements}")),
        ("Pow", format!("={elements}; =8")),
    ] {
        let out = run(op, &[], &inputs, 1).unwrap_or_else(|e| panic!("{op}: {e}"));
        assert_eq!(out[0].value, None, "{op}");
    }
}

#[test]
fn many_operands_are_joined() {
    let inputs: Vec<String> = (0..20_000).map(|k| format!("f32[s{k}+1]")).collect();
    check(
        "Concat",
        &[("axis", int(0))],
        &inputs.join(";"),
        "f32[new00]",
    );
    let inputs = vec!["f32[s+1]"; 20_000].join(";");
    check("Concat", &[("axis", int(0))], &inputs, "f32[s*20000+20000]");
    let out = run("Split", &[], "f32[s]; i64[20000]", 20_000).map(|out| out.len());
    assert_eq!(out, Ok(20_000));
}

#[test]
fn very_many_operands_make_no_deep_expressions() {
    let shapes: Vec<String> = (0..100_000).map(|k| format!("f32[s{k}, 2]")).collect();
    check("Sum", &[], &shapes.join(";"), "f32[new00, 2]");
    let shapes = format!("{}; f32[4, 7, 2]", shapes.join(";"));
    check("Sum", &[], &shapes, "f32[4, 7, 2]");
    let values: Vec<String> = (0..100_000).map(|k| format!("=s{k}")).collect();
    for op in ["Max", "Min"] {
        let out = run(op, &[], &values.join(";"), 1).unwrap();
        assert_eq!(out[0].value, None, "{op}");
    }
}
