//! Tests of ops on quantised numbers.

use super::*;

#[test]
fn quantisation() {
    let axis = |a| [("axis", int(a))];
    let blocks = |a, n| [("axis", int(a)), ("block_size", int(n))];
    let to = [("output_dtype", Attr::DType(DType::F8E5M2))];
    for (op, attrs, inputs, want) in [
        ("QuantizeLinear", &[][..], "f32[n, c]; f32[]", "u8[n, c]"),
        (
            "QuantizeLinear",
            &[],
            "f16[n, 3]; f16[3]; i4[3]",
            "i4[n, 3]",
        ),
        (
            "QuantizeLinear",
            &axis(-2),
            "i32[n, 3]; f32[n]; i8[n]",
            "i8[n, 3]",
        ),
        ("QuantizeLinear", &to, "bf16[n]; bf16[1]", "f8e5m2[n]"),
        (
            "QuantizeLinear",
            &blocks(1, 4),
            "f32[n, 10]; f32[n, 3]; u2[n, 3]",
            "u2[n, 10]",
        ),
        (
            "DequantizeLinear",
            &[],
            "u4[n, 8]; f16[]; u4[1]",
            "f16[n, 8]",
        ),
        ("DequantizeLinear", &[], "i8[n, 8]; f8e8m0[]", "f32[n, 8]"),
        (
            "DequantizeLinear",
            &blocks(0, 2),
            "i2[5, s]; bf16[3, s]",
            "bf16[5, s]",
        ),
        (
            "DynamicQuantizeLinear",
            &[],
            "f32[n, 8]",
            "u8[n, 8]; f32[]; u8[]",
        ),
    ] {
        check(op, attrs, inputs, want);
    }
    for (op, attrs, inputs) in [
        ("QuantizeLinear", &[][..], "f32[n, 3]; f32[4]"),
        ("QuantizeLinear", &[], "f32[n, 3]; f32[3]; u8[2]"),
        ("QuantizeLinear", &to, "f32[n]; f32[]; u8[]"),
        (
            "QuantizeLinear",
            &[("output_dtype", Attr::DType(DType::F32))],
            "f32[n]; f32[]",
        ),
        ("QuantizeLinear", &axis(2), "f32[n, 3]; f32[3]"),
        ("QuantizeLinear", &blocks(1, 4), "f32[n, 10]; f32[n, 2]"),
        (
            "QuantizeLinear",
            &[("block_size", int(-1))],
            "f32[n]; f32[]",
        ),
        ("DequantizeLinear", &[], "i8[n]; f32[]; u8[]"),
        (
            "DequantizeLinear",
            &[("output_dtype", Attr::DType(DType::I8))],
            "i8[n]; f32[]",
        ),
    ] {
        check_err(op, attrs, inputs);
    }
}

#[test]
fn products_of_codes() {
    let bits = [("K", int(70)), ("N", int(9)), ("block_size", int(32))];
    for (op, attrs, inputs, want) in [
        (
            "MatMulInteger",
            &[][..],
            "u8[b, m, 3]; i8[3, n]; u8[]; i8[n]",
            "i32[b, m, n]",
        ),
        (
            "MatMulInteger",
            &[],
            "u8[2, m, 3]; u8[2, 3, n]; u8[2, m, 1]; u8[2, 1, n]",
            "i32[2, m, n]",
        ),
        (
            "ConvInteger",
            &[("pads", ints(&[1, 1]))],
            "u8[b, 4, n]; i8[6, 4, 3]; u8[]; i8[6]",
            "i32[b, 6, n]",
        ),
        (
            "QLinearMatMul",
            &[],
            "u8[m, 3]; f32[]; u8[]; i8[3, n]; f32[n]; i8[n]; f32[1]; i8[]",
            "i8[m, n]",
        ),
        (
            "QLinearConv",
            &[("group", int(2))],
            "u8[b, 4, 5]; f32[]; u8[]; i8[6, 2, 5]; f32[6]; i8[6]; f32[]; u8[]; i32[6]",
            "u8[b, 6, 1]",
        ),
        (
            "MatMulNBits",
            &bits,
            "f16[b, m, 70]; u8[9, 3, 16]; f16[27]",
            "f16[b, m, 9]",
        ),
        (
            "MatMulNBits",
            &bits,
            "f32[70]; u8[9, 3, 16]; f32[9, 3]; u8[18]; f32[9]",
            "f32[9]",
        ),
        (
            "MatMulNBits",
            &bits,
            "f32[m, 70]; i4[9, 96]; f32[27]; i8[27]",
            "f32[m, 9]",
        ),
    ] {
        check(op, attrs, inputs, want);
    }
    for (op, attrs, inputs) in [
        ("MatMulInteger", &[][..], "u8[m, 3]; i8[4, n]"),
        ("MatMulInteger", &[], "u8[m, 3]; i8[3, 5]; u8[]; i8[4]"),
        ("MatMulInteger", &[], "u8[m, 3]; i8[3, 5]; i8[]"),
        ("ConvInteger", &[], "u8[b, 4, n]; i8[6, 4, 3]; u8[4]"),
        ("ConvInteger", &[], "u8[b, 4, n]; i8[6, 4, 3]; u8[]; i8[5]"),
        ("MatMulNBits", &bits, "f32[m, 71]; u8[9, 3, 16]; f32[27]"),
        ("MatMulNBits", &bits, "f32[m, 70]; u8[9, 3, 15]; f32[27]"),
        (
            "MatMulNBits",
            &bits,
            "f32[m, 70]; u8[9, 3, 16]; f32[27]; u8[27]",
        ),
        (
            "MatMulNBits",
            &bits,
            "f32[m, 70]; i4[9, 96]; f32[27]; f32[27]",
        ),
        ("MatMulNBits", &bits, "f32[m, 70]; i8[9, 96]; f32[27]"),
        (
            "MatMulNBits",
            &[("K", int(0)), ("N", int(1)), ("block_size", int(8))],
            "f32[0]; u8[0]; f32[0]",
        ),
        (
            "MatMulNBits",
            &[("K", int(8)), ("N", int(1)), ("block_size", int(1))],
            "f32[8]; u8[8]; f32[8]",
        ),
    ] {
        check_err(op, attrs, inputs);
    }
}
