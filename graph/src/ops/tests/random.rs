//! The random ops: their shapes, and the attributes that they refuse.

use super::*;

const OPS: [&str; 2] = ["PhiloxUniform", "PhiloxNormal"];

fn to(dtype: DType) -> (&'static str, Attr) {
    ("dtype", Attr::DType(dtype))
}

#[test]
fn the_shape_is_an_operand() {
    for op in OPS {
        for (dtype, inputs, want) in [
            (F32, "=b 3; i64[2]", "f32[b, 3]"),
            (F64, "=2 3; =7 -1", "f64[2, 3]"),
            (F16, "i64[2]; i64[2]", "f16[new00, new01]"),
            (BF16, "i64[0]; i64[n]", "bf16[]"),
        ] {
            check(op, &[to(dtype)], inputs, want);
        }
        for inputs in [
            "i64[n]; i64[2]",
            "i64[]; i64[2]",
            "i64[17]; i64[2]",
            "=-1; i64[2]",
            "=2; i64[3]",
            "=2; i64[]",
            "=2; i64[2, 1]",
            "=2; i32[2]",
            "f32[2]; i64[2]",
            "=2",
        ] {
            check_err(op, &[to(F32)], inputs);
        }
        check_err(
            op,
            &[to(F64)],
            &format!("={max} {max}; i64[2]", max = i64::MAX),
        );
    }
}

#[test]
fn attributes_are_checked() {
    let inputs = "=2; i64[2]";
    for op in OPS {
        check_err(op, &[], inputs);
        check_err(op, &[to(I64)], inputs);
        check_err(op, &[to(Bool)], inputs);
        check_err(op, &[to(F32), ("seed", int(1))], inputs);
    }
    let float = |name, v| (name, Attr::Float(v));
    let uniform = |dtype, low: f32, high: f32, ok: bool| {
        let list = [to(dtype), float("low", low), float("high", high)];
        let got = run("PhiloxUniform", &list, inputs, 1);
        assert_eq!(got.is_ok(), ok, "{dtype} {low} {high}");
    };
    uniform(F32, -1., 1., true);
    uniform(F32, 3., 3., true);
    uniform(F32, 2., 1., false);
    uniform(F32, f32::NAN, 1., false);
    uniform(F64, 0., f32::NAN, false);
    uniform(F64, f32::NEG_INFINITY, 1., false);
    uniform(F32, -f32::MAX, f32::MAX, false);
    uniform(F32, 0., 70_000., true);
    uniform(F16, 0., 70_000., false);
    uniform(BF16, 0., 70_000., true);
    uniform(BF16, 0., f32::MAX, false);
    let normal = |mean: f32, scale: f32, ok: bool| {
        let list = [to(F32), float("mean", mean), float("scale", scale)];
        let got = run("PhiloxNormal", &list, inputs, 1);
        assert_eq!(got.is_ok(), ok, "{mean} {scale}");
    };
    normal(-5., 0., true);
    normal(0., -1., false);
    normal(0., f32::NAN, false);
    normal(f32::INFINITY, 1., false);
}

#[test]
fn defaults() {
    let list = attrs(&[to(F16)]);
    let u = attrs::UniformAttrs::new(&list).unwrap();
    assert_eq!((u.dtype, u.low, u.high), (F16, 0., 1.));
    let n = attrs::NormalAttrs::new(&list).unwrap();
    assert_eq!((n.dtype, n.mean, n.scale), (F16, 0., 1.));
}
