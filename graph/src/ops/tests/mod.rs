//! Tables over all families, which map operand types and attributes to output types.

use super::*;
use crate::DType::{self, *};
use crate::Dim;
use crate::graph::{Attr, Attrs, TensorType};

/// A dimension from text: an integer, a symbol, or a sum or product of two.
fn dim(s: &str) -> Dim {
    let s = s.trim();
    for (sign, f) in [
        ('+', (|a, b| &a + &b) as fn(Dim, Dim) -> Dim),
        ('*', |a, b| &a * &b),
    ] {
        if let Some((a, b)) = s.split_once(sign) {
            return f(dim(a), dim(b));
        }
    }
    s.parse().map_or_else(|_| Dim::sym(s), Dim::Const)
}

fn ty(s: &str) -> TensorType {
    let (name, dims) = s.trim().trim_end_matches(']').split_once('[').unwrap();
    let dtype = DType::ALL.into_iter().find(|d| d.name() == name).unwrap();
    let dims = dims
        .split(',')
        .filter(|d| !d.trim().is_empty())
        .map(dim)
        .collect();
    TensorType::new(dtype, dims)
}

/// An operand: a type, or known i64 elements written `=1 2 3` (a vector) or `=5.` (a scalar).
fn operand(s: &str) -> (TensorType, Option<HostValue>) {
    let Some(elements) = s.strip_prefix('=') else {
        return (ty(s), None);
    };
    if let Some(scalar) = elements.strip_suffix('.') {
        return (ty("i64[]"), Some(HostValue::scalar(dim(scalar))));
    }
    let v: Vec<Dim> = elements.split_whitespace().map(dim).collect();
    (
        TensorType::new(I64, vec![v.len().into()]),
        Some(HostValue::vector(v)),
    )
}

fn attrs(list: &[(&str, Attr)]) -> Attrs {
    list.iter()
        .fold(Attrs::default(), |a, (n, v)| a.with(n, v.clone()))
}

fn run(
    op: &str,
    list: &[(&str, Attr)],
    inputs: &str,
    outputs: usize,
) -> Result<Vec<InferredOutput>, OpError> {
    let given: Vec<_> = inputs
        .split(';')
        .map(|s| (s.trim() != "_").then(|| operand(s.trim())))
        .collect();
    let operands: Vec<_> = given
        .iter()
        .map(|g| {
            g.as_ref().map(|(ty, value)| Operand {
                ty,
                value: value.as_ref(),
                tensor: None,
            })
        })
        .collect();
    let fresh = |o: usize, a: usize| Dim::sym(&format!("new{o}{a}"));
    infer_op(
        lookup(op).expect(op),
        &attrs(list),
        &operands,
        outputs,
        &fresh,
    )
}

fn check(op: &str, list: &[(&str, Attr)], inputs: &str, want: &str) {
    let want: Vec<_> = want.split(';').map(ty).collect();
    match run(op, list, inputs, want.len()) {
        Ok(out) => {
            let got: Vec<_> = out.into_iter().map(|o| o.ty).collect();
            assert_eq!(got, want, "{op}({inputs})");
        }
        Err(e) => panic!("{op}({inputs}): {e}"),
    }
}

fn check_value(op: &str, list: &[(&str, Attr)], inputs: &str, want: &str) {
    let got = run(op, list, inputs, 1).unwrap_or_else(|e| panic!("{op}({inputs}): {e}"));
    let want: Vec<Dim> = want.split_whitespace().map(dim).collect();
    let got = got[0].value.clone().map(|v| v.elements);
    assert_eq!(got, Some(want), "{op}({inputs})");
}

fn check_err(op: &str, list: &[(&str, Attr)], inputs: &str) {
    if let Ok(out) = run(op, list, inputs, 1) {
        panic!("{op}({inputs}) gives {:?}", out[0].ty);
    }
}

fn int(v: i64) -> Attr {
    Attr::Int(v)
}
fn ints(v: &[i64]) -> Attr {
    Attr::Ints(v.to_vec())
}
fn text(v: &str) -> Attr {
    Attr::Str(v.into())
}

mod graph;
mod quantised;
mod random;
mod recurrent;
mod shapes;
mod signal;
mod text;
mod vision;

#[test]
fn elementwise() {
    for (op, inputs, want) in [
        ("Relu", "f16[b, 3]", "f16[b, 3]"),
        ("Not", "bool[2]", "bool[2]"),
        ("IsNaN", "f32[s]", "bool[s]"),
        ("Add", "f32[b, s, 8]; f32[8]", "f32[b, s, 8]"),
        ("Add", "i32[1, s]; i32[b, 1]", "i32[b, s]"),
        ("Less", "i64[s, 1]; i64[1, 4]", "bool[s, 4]"),
        ("Pow", "f32[s]; i64[]", "f32[s]"),
        ("Where", "bool[1, s]; f32[]; f32[b, 1]", "f32[b, s]"),
        ("Max", "i8[3, 1]; i8[4]; i8[]", "i8[3, 4]"),
        ("Sum", "f32[s]", "f32[s]"),
        ("PRelu", "f32[n, 3, h, w]; f32[3, 1, 1]", "f32[n, 3, h, w]"),
        ("Clip", "f32[s]; _; f32[]", "f32[s]"),
        ("CastLike", "f32[s]; i8[]", "i8[s]"),
        ("Dropout", "f32[s]; f32[]", "f32[s]; bool[s]"),
    ] {
        check(op, &[], inputs, want);
    }
    check("Cast", &[("to", Attr::DType(BF16))], "bool[s]", "bf16[s]");
    for (op, inputs) in [
        ("Add", "f32[2]; f32[3]"),
        ("Add", "f32[2]; f16[2]"),
        ("Add", "f32[2]"),
        ("Add", "f32[2]; _"),
        ("Add", "bool[2]; bool[2]"),
        ("Not", "f32[2]"),
        ("Relu", "f32[2]; f32[2]"),
        ("Cast", "f32[2]"),
        ("Clip", "f32[2]; f32[3]"),
        ("PRelu", "f32[3]; f32[2, 3]"),
        ("Max", "_"),
        ("BitShift", "u8[2]; u8[2]"),
    ] {
        check_err(op, &[], inputs);
    }
    check_err("Relu", &[("alpha", int(1))], "f32[2]");
    check_err("Elu", &[("alpha", int(1))], "f32[2]");
}

#[test]
fn products_convolutions_and_pools() {
    for (op, inputs, want) in [
        ("MatMul", "f32[b, s, 8]; f32[8, 4]", "f32[b, s, 4]"),
        ("MatMul", "f32[8]; f32[b, 8, 4]", "f32[b, 4]"),
        ("MatMul", "f32[b, s, 8]; f32[8]", "f32[b, s]"),
        ("MatMul", "i32[8]; i32[8]", "i32[]"),
        (
            "MatMul",
            "f16[b, 1, s, 8]; f16[12, 8, t]",
            "f16[b, 12, s, t]",
        ),
        ("Gemm", "f32[s, 8]; f32[8, 4]; f32[4]", "f32[s, 4]"),
        (
            "Conv",
            "f32[n, 3, 224, 224]; f32[64, 3, 7, 7]; f32[64]",
            "f32[n, 64, 218, 218]",
        ),
        ("GlobalAveragePool", "f32[n, 8, h, w]", "f32[n, 8, 1, 1]"),
    ] {
        check(op, &[], inputs, want);
    }
    let k = |k: &[i64]| ("kernel_shape", ints(k));
    let (s2, p1) = (("strides", ints(&[2, 2])), ("pads", ints(&[1, 1, 1, 1])));
    check(
        "Gemm",
        &[("transA", int(1)), ("transB", int(1))],
        "f32[8, s]; f32[4, 8]",
        "f32[s, 4]",
    );
    check(
        "Conv",
        &[s2.clone(), p1.clone()],
        "f32[1, 8, 14, 14]; f32[8, 8, 3, 3]",
        "f32[1, 8, 7, 7]",
    );
    check(
        "Conv",
        &[("group", int(8))],
        "f32[1, 8, 9]; f32[16, 1, 3]",
        "f32[1, 16, 7]",
    );
    check(
        "MaxPool",
        &[k(&[3, 3]), s2.clone(), p1.clone()],
        "f32[1, 2, 7, 8]",
        "f32[1, 2, 4, 4]; i64[1, 2, 4, 4]",
    );
    let ceil = ("ceil_mode", int(1));
    check(
        "AveragePool",
        &[k(&[3, 3]), s2.clone(), ceil],
        "f32[1, 1, 4, 4]",
        "f32[1, 1, 2, 2]",
    );
    check(
        "LpPool",
        &[k(&[2]), ("auto_pad", text("SAME_UPPER"))],
        "f32[1, 1, w]",
        "f32[1, 1, w]",
    );
    for (op, list, inputs) in [
        ("MatMul", &[][..], "f32[2, 3]; f32[4, 5]"),
        ("MatMul", &[], "f32[]; f32[4]"),
        ("MatMul", &[], "bool[2, 2]; bool[2, 2]"),
        ("MatMul", &[], "f32[2, 3, 4]; f32[5, 4, 3]"),
        ("Gemm", &[], "f32[2, 3]; f32[3, 4]; f32[3]"),
        ("Gemm", &[], "f32[2]; f32[2, 4]"),
        ("Conv", &[], "f32[1, 3, 8]; f32[4, 2, 3]"),
        ("Conv", &[], "f32[1, 3, 2]; f32[4, 3, 3]"),
        ("Conv", &[], "f32[1, 3, 8]; f32[4, 3, k]"),
        ("Conv", &[], "f32[1, 3, 8]; f32[4, 3, 3]; f32[3]"),
        ("Conv", &[("group", int(0))], "f32[1, 3, 8]; f32[4, 3, 3]"),
        ("Conv", &[("group", int(3))], "f32[1, 3, 8]; f32[4, 1, 3]"),
        (
            "Conv",
            &[("group", int(i64::MIN))],
            "f32[1, 3, 8]; f32[4, 3, 3]",
        ),
        (
            "Conv",
            &[("strides", ints(&[1, 1]))],
            "f32[1, 3, 8]; f32[4, 3, 3]",
        ),
        (
            "Conv",
            &[("kernel_shape", ints(&[2]))],
            "f32[1, 3, 8]; f32[4, 3, 3]",
        ),
        ("MaxPool", &[], "f32[1, 3, 8]"),
        ("MaxPool", &[("kernel_shape", ints(&[3]))], "f32[3, 8]"),
    ] {
        check_err(op, list, inputs);
    }
}

#[test]
fn rotations() {
    let places = "f32[b, 5, s, 8]; f32[99, 4]; f32[99, 4]";
    for (list, inputs, want) in [
        (&[][..], format!("{places}; i64[b, s]"), "f32[b, 5, s, 8]"),
        (&[], format!("{places}; i64[1, s]"), "f32[b, 5, s, 8]"),
        (
            &[],
            "f16[2, 5, 3, d]; f16[2, 3, c]; f16[2, 3, c]".into(),
            "f16[2, 5, 3, d]",
        ),
        (
            &[("num_heads", int(5)), ("rotary_embedding_dim", int(6))],
            "bf16[b, s, 40]; bf16[b, s, 3]; bf16[b, s, 3]".into(),
            "bf16[b, s, 40]",
        ),
    ] {
        check("RotaryEmbedding", list, &inputs, want);
    }
    for (list, inputs) in [
        (&[][..], "f32[2, 3, 8]; f32[2, 3, 4]; f32[2, 3, 4]"),
        (
            &[("num_heads", int(3))],
            "f32[2, 3, 8]; f32[2, 3, 1]; f32[2, 3, 1]",
        ),
        (
            &[("num_heads", int(-2))],
            "f32[2, 3, 8]; f32[2, 3, 2]; f32[2, 3, 2]",
        ),
        (&[], "f32[2, 8]; f32[9, 4]; f32[9, 4]"),
        (&[], "f32[2, 5, 3, 7]; f32[2, 3, 3]; f32[2, 3, 3]"),
        (&[], "f32[2, 5, 3, 8]; f32[2, 3, 3]; f32[2, 3, 3]"),
        (&[], "f32[2, 5, 3, 8]; f32[2, 3, 4]; f32[2, 3, 3]"),
        (&[], "f32[2, 5, 3, 8]; f32[2, 2, 4]; f32[2, 2, 4]"),
        (&[], "f32[2, 5, 3, 8]; f32[9, 4]; f32[9, 4]"),
        (
            &[],
            "f32[2, 5, 3, 8]; f32[2, 3, 4]; f32[2, 3, 4]; i64[2, 3]",
        ),
        (&[], "f32[2, 5, 3, 8]; f32[9, 4]; f32[9, 4]; i64[3]"),
        (&[], "f32[2, 5, 3, 8]; f32[9, 4]; f32[9, 4]; i64[2, 4]"),
        (&[], "f32[2, 5, 3, 8]; f16[2, 3, 4]; f16[2, 3, 4]"),
        (
            &[("rotary_embedding_dim", int(10))],
            "f32[2, 5, 3, 8]; f32[2, 3, 5]; f32[2, 3, 5]",
        ),
        (
            &[("rotary_embedding_dim", int(3))],
            "f32[2, 5, 3, 8]; f32[2, 3, 1]; f32[2, 3, 1]",
        ),
        (
            &[("rotary_embedding_dim", int(i64::MIN))],
            "f32[2, 5, 3, 8]; f32[2, 3, 1]; f32[2, 3, 1]",
        ),
    ] {
        check_err("RotaryEmbedding", list, inputs);
    }
}

#[test]
fn normalisations_and_reductions() {
    for (op, inputs, want) in [
        ("Softmax", "f32[b, s]", "f32[b, s]"),
        (
            "LayerNormalization",
            "f32[b, s, 8]; f32[8]; f32[8]",
            "f32[b, s, 8]; f32[b, s, 1]; f32[b, s, 1]",
        ),
        ("RMSNormalization", "f16[b, 8]; f32[8]", "f32[b, 8]"),
        (
            "BatchNormalization",
            "f32[n, 3, h]; f32[3]; f32[3]; f32[3]; f32[3]",
            "f32[n, 3, h]",
        ),
        (
            "MeanVarianceNormalization",
            "f32[n, 3, h, w]",
            "f32[n, 3, h, w]",
        ),
        ("ReduceMean", "f32[b, s, 8]; =-1", "f32[b, s, 1]"),
        ("ReduceSum", "f32[b, s]", "f32[1, 1]"),
        ("ReduceMax", "bool[b, s]; i64[1]", "bool[new00, new01]"),
        ("ReduceMax", "i16[0, s]; =0", "i16[1, s]"),
        ("ReduceMean", "f32[0]", "f32[1]"),
        ("ArgMax", "f32[b, s]", "i64[1, s]"),
        ("CumSum", "f32[b, s]; =1.", "f32[b, s]"),
        ("TopK", "f32[b, 9]; =4", "f32[b, 4]; i64[b, 4]"),
        ("TopK", "f32[b, 9]; i64[1]", "f32[b, new01]; i64[b, new01]"),
    ] {
        check(op, &[], inputs, want);
    }
    let drop = ("keepdims", int(0));
    check(
        "ReduceSum",
        std::slice::from_ref(&drop),
        "f32[b, s, 8]; =1",
        "f32[b, 8]",
    );
    // An axis that may turn out empty is refused when it does.
    check(
        "ReduceMin",
        &[("refuse_empty", int(1))],
        "u8[b, 0]; =0",
        "u8[1, 0]",
    );
    check(
        "ReduceSum",
        &[("noop_with_empty_axes", int(1))],
        "f32[b]",
        "f32[b]",
    );
    check(
        "ReduceSum",
        std::slice::from_ref(&drop),
        "f32[b, s, 8]; i64[2]",
        "f32[new00]",
    );
    check(
        "ArgMin",
        &[drop.clone(), ("axis", int(-1))],
        "f32[b, s]",
        "i64[b]",
    );
    check(
        "GroupNormalization",
        &[("num_groups", int(2))],
        "f32[n, 4, h]; f32[4]; f32[4]",
        "f32[n, 4, h]",
    );
    check("LRN", &[("size", int(5))], "f32[n, 4, h]", "f32[n, 4, h]");
    for (op, list, inputs) in [
        ("Softmax", &[("axis", int(2))][..], "f32[b, s]"),
        ("Softmax", &[], "f32[]"),
        ("LayerNormalization", &[], "f32[b, 8]; f32[7]"),
        (
            "BatchNormalization",
            &[("training_mode", int(1))],
            "f32[n, 3]; f32[3]; f32[3]; f32[3]; f32[3]",
        ),
        (
            "BatchNormalization",
            &[],
            "f32[n, 3]; f32[3]; f32[4]; f32[3]; f32[3]",
        ),
        (
            "GroupNormalization",
            &[("num_groups", int(3))],
            "f32[n, 4, h]; f32[4]; f32[4]",
        ),
        (
            "GroupNormalization",
            &[("num_groups", int(0))],
            "f32[n, 4, h]; f32[4]; f32[4]",
        ),
        ("ReduceSum", &[], "f32[b]; =1"),
        ("ReduceSum", &[("keepdims", int(0))], "f32[b]; i64[2]"),
        ("ReduceSum", &[("keepdims", int(0))], "f32[b]; i64[n]"),
        ("ReduceSum", &[], "f32[b, c]; =0 0"),
        ("LRN", &[("size", int(0))], "f32[n, 4, h]"),
        ("TopK", &[], "f32[3]; =4"),
        ("ArgMax", &[], "f32[0, 3]"),
        ("ReduceMax", &[("refuse_empty", int(1))], "f32[0, 3]; =-2"),
        ("ReduceMin", &[("refuse_empty", int(1))], "u8[b, 0]"),
        ("ReduceMean", &[], "i64[0]"),
        ("ReduceMean", &[], "i8[4]"),
    ] {
        check_err(op, list, inputs);
    }
}

#[test]
fn fused_forms() {
    check("PackGemmB", &[], "f16[8, 33]", "f16[384]");
    check("PackGemmB", &[("trans", int(1))], "f32[33, 8]", "f32[384]");
    let codes = [("bits", int(4)), ("N", int(3))];
    check("PackCodes", &codes, "u8[3, 2, 8]", "u8[1024]");
    check("PackCodes", &codes, "i4[96]", "u8[1024]");
    check_err("PackCodes", &codes, "u8[10]");
    check_err("PackCodes", &codes, "u2[12]");
    check(
        "PackConvW",
        &[("group", int(2))],
        "f32[6, 2, 3, 3]",
        "f32[108]",
    );
    let packed = [("packed", int(1)), ("k", int(8)), ("n", int(33))];
    check(
        "FusedGemm",
        &packed,
        "f32[b, s, 8]; f32[384]; f32[33]",
        "f32[b, s, 33]",
    );
    check("FusedGemm", &packed, "f32[s, 8]; bf16[384]", "f32[s, 33]");
    check(
        "FusedGemm",
        &packed,
        "f16[s, 8]; f16[384]; f16[33]",
        "f16[s, 33]",
    );
    check(
        "FusedGemm",
        &[("activation", text("Gelu"))],
        "f32[s, 8]; f32[8, 4]",
        "f32[s, 4]",
    );
    let conv = [
        ("packed", int(1)),
        ("w_shape", ints(&[6, 2, 3, 3])),
        ("group", int(2)),
    ];
    check(
        "FusedConv",
        &conv,
        "f32[n, 4, 9, 9]; f32[108]; f32[6]; f32[n, 6, 7, 7]",
        "f32[n, 6, 7, 7]",
    );
    check_err(
        "FusedGemm",
        &[("activation", text("Nope"))],
        "f32[s, 8]; f32[8, 4]",
    );
    check_err("FusedGemm", &packed, "f32[s, 8]; f32[384]; f16[33]");
    check_err("FusedGemm", &packed, "f32[s, 8]; f32[383]");
    check_err("FusedGemm", &packed[..2], "f32[s, 8]; f32[384]");
    check_err("FusedConv", &conv, "f32[n, 4, 9, 9]; f32[108]; f32[5]");
    check_err("FusedConv", &conv[..1], "f32[n, 4, 9, 9]; f32[108]");
    check_err("PackGemmB", &[], "f32[k, 8]");
}

#[test]
fn costs_count_the_arithmetic() {
    let flops = |op: &str, list: &[(&str, Attr)], inputs: &str| {
        let out = run(op, list, inputs, 1).unwrap();
        let given: Vec<_> = inputs.split(';').map(|s| operand(s.trim()).0).collect();
        let given: Vec<_> = given.iter().map(Some).collect();
        (lookup(op).unwrap().cost)(&attrs(list), &given, &[&out[0].ty])
    };
    let c = flops("MatMul", &[], "f32[5, 8]; f32[8, 4]");
    assert_eq!(
        c,
        Cost {
            flops: 320.,
            bytes: 4. * (40. + 32. + 20.)
        }
    );
    assert_eq!(
        flops("Conv", &[("group", int(2))], "f32[1, 4, 5]; f32[6, 2, 3]").flops,
        18. * 12.
    );
    assert_eq!(flops("Relu", &[], "f32[7]").flops, 7.);
    assert_eq!(flops("Reshape", &[], "f32[8]; =2 4"), Cost::default());
}

#[test]
fn lengths_are_followed_through_casts_that_keep_them() {
    for (to, followed) in [
        (I32, true),
        (I64, true),
        (U64, true),
        (U8, false),
        (I16, false),
    ] {
        let out = run("Cast", &[("to", Attr::DType(to))], "=n", 1).unwrap();
        assert_eq!(out[0].value.is_some(), followed, "{to}");
    }
}
