//! Tests of recurrent layers.

use super::*;

#[test]
fn recurrent_layers() {
    let none = &[][..];
    let both = &[("direction", text("bidirectional"))][..];
    let batch_first = &[("layout", int(1))][..];
    for (op, attrs, inputs, want) in [
        (
            "RNN",
            none,
            "f32[s, b, 3]; f32[1, 4, 3]; f32[1, 4, 4]",
            "f32[s, 1, b, 4]; f32[1, b, 4]",
        ),
        (
            "GRU",
            both,
            "f16[s, b, 3]; f16[2, 12, 3]; f16[2, 12, 4]; f16[2, 24]; i32[b]; f16[2, b, 4]",
            "f16[s, 2, b, 4]; f16[2, b, 4]",
        ),
        (
            "LSTM",
            batch_first,
            "f64[b, s, 3]; f64[1, 16, 3]; f64[1, 16, 4]; _; _; f64[b, 1, 4]; f64[b, 1, 4]; f64[1, 12]",
            "f64[b, s, 1, 4]; f64[b, 1, 4]; f64[b, 1, 4]",
        ),
        (
            "LSTM",
            &[("hidden_size", int(4)), ("packed_input_size", int(3))],
            "f16[s, b, 3]; f32[48]; f32[64]",
            "f16[s, 1, b, 4]; f16[1, b, 4]; f16[1, b, 4]",
        ),
        (
            "PackRecurrent",
            &[("parts", ints(&[2, 1]))],
            "f16[2, 15, 7]",
            "f32[448]",
        ),
    ] {
        check(op, attrs, inputs, want);
    }
    for (attrs, inputs) in [
        (none, "f32[s, 3]; f32[1, 4, 3]; f32[1, 4, 4]"),
        (none, "f32[s, b, 3]; f32[1, 4, 2]; f32[1, 4, 4]"),
        (none, "f32[s, b, 3]; f32[1, 4, 3]; f32[1, 4, 5]"),
        (none, "f32[s, b, 3]; f16[1, 4, 3]; f32[1, 4, 4]"),
        (none, "f32[s, b, 3]; f32[1, 4, 3]; f32[1, 4, 4]; f32[1, 4]"),
        (none, "f32[s, 2, 3]; f32[1, 4, 3]; f32[1, 4, 4]; _; i32[3]"),
        (both, "f32[s, b, 3]; f32[1, 4, 3]; f32[1, 4, 4]"),
        (
            &[("clip", Attr::Float(-1.))],
            "f32[s, b, 3]; f32[1, 4, 3]; f32[1, 4, 4]",
        ),
        (
            &[("hidden_size", int(5))],
            "f32[s, b, 3]; f32[1, 4, 3]; f32[1, 4, 4]",
        ),
        (
            &[("packed_input_size", int(3))],
            "f32[s, b, 3]; f32[48]; f32[64]",
        ),
        (
            &[
                ("packed_input_size", int(i64::MAX)),
                ("hidden_size", int(i64::MAX)),
            ],
            "f32[s, b, n]; f32[48]; f32[64]",
        ),
    ] {
        check_err("RNN", attrs, inputs);
    }
    check_err("PackRecurrent", &[("parts", ints(&[3]))], "f32[1, 4, 3]");
    check_err("PackRecurrent", &[("parts", ints(&[]))], "f32[1, 4, 3]");
}
