//! Tests of ops of vision models, of determinants, and of ops whose sizes data decides.

use super::*;

#[test]
fn vision() {
    let pooled = &[("pooled_shape", ints(&[2, 3]))][..];
    let kernel = &[("kernel_shape", ints(&[2, 2])), ("strides", ints(&[2, 2]))][..];
    for (op, attrs, inputs, want) in [
        (
            "GridSample",
            &[][..],
            "f32[n, c, h, w]; f16[n, 5, q, 2]",
            "f32[n, c, 5, q]",
        ),
        (
            "GridSample",
            &[],
            "f64[n, c, d, h, w]; f64[1, 2, 3, 4, 3]",
            "f64[1, c, 2, 3, 4]",
        ),
        (
            "RoiAlign",
            &[("output_width", int(7))],
            "f32[n, c, h, w]; f32[r, 4]; i64[r]",
            "f32[r, c, 1, 7]",
        ),
        (
            "MaxRoiPool",
            pooled,
            "f16[1, c, h, w]; f16[r, 5]",
            "f16[r, c, 2, 3]",
        ),
        (
            "MaxUnpool",
            kernel,
            "f32[1, 1, 2, h]; i64[1, 1, 2, h]",
            "f32[1, 1, 4, h*2]",
        ),
        (
            "MaxUnpool",
            kernel,
            "f32[1, 1, 2, 2]; i64[1, 1, 2, 2]; =1 1 5 s",
            "f32[1, 1, 5, s]",
        ),
        ("ImageDecoder", &[], "u8[n]", "u8[new00, new01, 3]"),
        (
            "ImageDecoder",
            &[("pixel_format", Attr::Str("Grayscale".into()))],
            "u8[n]",
            "u8[new00, new01, 1]",
        ),
        (
            "NonMaxSuppression",
            &[],
            "f32[n, b, 4]; f32[n, c, b]; i64[1]; f32[]; f32[0]",
            "i64[new00, 3]",
        ),
        (
            "DeformConv",
            &[("offset_group", int(2)), ("pads", ints(&[1, 0, 1, 0]))],
            "f32[n, 4, 5, 5]; f32[6, 4, 3, 3]; f32[n, 36, 5, 3]; f32[6]; f32[n, 18, 5, 3]",
            "f32[n, 6, 5, 3]",
        ),
        (
            "DeformConv",
            &[],
            "f32[n, 4, 5]; f32[6, 4, 3]; f32[n, 3, 3]; f32[6]; f32[n, 3, 3]",
            "f32[n, 6, 3]",
        ),
        (
            "DeformConv",
            &[],
            "f32[n, 4, 5, 5, 6]; f32[6, 4, 3, 1, 2]; f32[n, 18, 3, 5, 5]",
            "f32[n, 6, 3, 5, 5]",
        ),
        (
            "GridSample",
            &[("mode", text("nearest"))],
            "string[n, c, h, w]; f32[n, 5, q, 2]",
            "string[n, c, 5, q]",
        ),
        (
            "GridSample",
            &[],
            "f32[n, c, 2, 2, 2, 2]; f32[n, 5, 1, 1, q, 4]",
            "f32[n, c, 5, 1, 1, q]",
        ),
        ("Det", &[], "f32[n, 3, 3]", "f32[n]"),
        ("Det", &[], "f16[s, s]", "f16[]"),
        ("Inverse", &[], "f32[n, 3, 3]", "f32[n, 3, 3]"),
        ("Inverse", &[], "f16[s, s]", "f16[s, s]"),
        (
            "Unique",
            &[],
            "i8[2, s]",
            "i8[new00]; i64[new00]; i64[2*s]; i64[new00]",
        ),
        (
            "Unique",
            &[("axis", int(-1))],
            "f32[2, s]",
            "f32[2, new01]; i64[new01]; i64[s]; i64[new01]",
        ),
    ] {
        check(op, attrs, inputs, want);
    }
    for (op, attrs, inputs) in [
        ("GridSample", &[][..], "f32[n, c, h, w]; f32[n, 5, q, 3]"),
        ("GridSample", &[], "f32[2, c, h, w]; f32[3, 5, q, 2]"),
        ("GridSample", &[], "f32[n, c]; f32[n, 0]"),
        ("GridSample", &[], "i64[n, c, h, w]; f32[n, 5, q, 2]"),
        (
            "GridSample",
            &[("mode", text("cubic"))],
            "f32[n, c, 2, 2, 2, 2, 2, 2]; f32[n, 1, 1, 1, 1, 1, 1, 6]",
        ),
        (
            "GridSample",
            &[("mode", text("bilinear"))],
            "f32[n, c, h, w]; f32[n, 5, q, 2]",
        ),
        ("RoiAlign", &[], "f32[n, c, h, w]; f32[3, 4]; i64[2]"),
        (
            "RoiAlign",
            &[("output_height", int(0))],
            "f32[n, c, h, w]; f32[r, 4]; i64[r]",
        ),
        (
            "RoiAlign",
            &[("sampling_ratio", int(-1))],
            "f32[n, c, h, w]; f32[r, 4]; i64[r]",
        ),
        ("MaxRoiPool", pooled, "f32[1, c, h, w]; f32[r, 4]"),
        (
            "MaxRoiPool",
            &[("pooled_shape", ints(&[2]))],
            "f32[1, c, h, w]; f32[r, 5]",
        ),
        ("MaxUnpool", kernel, "f32[1, 1, 2, 2]; i64[1, 1, 2, 3]"),
        ("MaxUnpool", kernel, "f32[1, 1, 0, 2]; i64[1, 1, 0, 2]"),
        (
            "MaxUnpool",
            kernel,
            "f32[1, 1, 2, 2]; i64[1, 1, 2, 2]; =4 4",
        ),
        ("ImageDecoder", &[], "i8[n]"),
        ("ImageDecoder", &[], "u8[n, 1]"),
        (
            "ImageDecoder",
            &[("pixel_format", Attr::Str("RGBA".into()))],
            "u8[n]",
        ),
        ("NonMaxSuppression", &[], "f32[n, 3, 4]; f32[n, c, 2]"),
        ("NonMaxSuppression", &[], "f32[n, b, 5]; f32[n, c, b]"),
        (
            "NonMaxSuppression",
            &[],
            "f32[n, b, 4]; f32[n, c, b]; i64[2]",
        ),
        (
            "DeformConv",
            &[],
            "f32[n, 4, 5, 5]; f32[6, 4, 3, 3]; f32[n, 17, 3, 3]",
        ),
        (
            "DeformConv",
            &[],
            "f32[n, 4, 5, 5, 5, 5]; f32[6, 4, 1, 1, 1, 1]; f32[n, 4, 5, 5, 5, 5]",
        ),
        (
            "DeformConv",
            &[("offset_group", int(3))],
            "f32[n, 4, 5, 5]; f32[6, 4, 3, 3]; f32[n, 54, 3, 3]",
        ),
        (
            "DeformConv",
            &[("group", int(0))],
            "f32[n, 4, 5, 5]; f32[6, 4, 3, 3]; f32[n, 18, 3, 3]",
        ),
        ("Det", &[], "f32[3]"),
        ("Det", &[], "f32[n, 3, 2]"),
        ("Inverse", &[], "f32[3]"),
        ("Inverse", &[], "f32[n, 3, 2]"),
        ("Unique", &[("axis", int(2))], "f32[2, s]"),
    ] {
        check_err(op, attrs, inputs);
    }
}
