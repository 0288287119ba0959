//! Transforms, folds, caches and other ops of the newest operator sets.

use super::*;

#[test]
fn transforms_change_one_axis() {
    let one_sided = [("onesided", int(1))];
    let back = [("onesided", int(1)), ("inverse", int(1))];
    for (list, inputs, want) in [
        (&[][..], "f32[b, s, 1]", "f32[b, s, 2]"),
        (&[], "f64[b, s, 2]; =16.", "f64[b, 16, 2]"),
        (&[], "f16[4, b, 2]; _; =0.", "f16[4, b, 2]"),
        (&[], "f32[4, b, 2]; _; i64[]", "f32[new00, new01, 2]"),
        (&one_sided, "f32[b, 10, 1]", "f32[b, 6, 2]"),
        (&one_sided, "f32[b, 10, 1]; =7.; =-2.", "f32[b, 4, 2]"),
        (&back, "f32[b, 6, 2]", "f32[b, 10, 1]"),
        (&back, "f32[b, 6, 2]; =11.", "f32[b, 11, 1]"),
    ] {
        check("DFT", list, inputs, want);
    }
    for (list, inputs) in [
        (&[][..], "f32[2]"),
        (&[], "f32[2, 3]"),
        (&[], "f32[2, 4, 2]; _; =2."),
        (&[], "f32[2, 4, 2]; _; =3."),
        (&[], "f32[2, 4, 2]; =0."),
        (&[], "f32[2, 0, 2]"),
        (&one_sided, "f32[2, 4, 2]"),
        (&back, "f32[2, 1, 2]"),
    ] {
        check_err("DFT", list, inputs);
    }
}

#[test]
fn folds_give_the_image_of_their_blocks() {
    check(
        "Col2Im",
        &[],
        "f32[n, 10, 5]; =5 5; =1 5",
        "f32[n, 2, 5, 5]",
    );
    check(
        "Col2Im",
        &[],
        "f32[n, c, p]; i64[3]; i64[3]",
        "f32[n, new01, new02, new03, new04]",
    );
    check(
        "Col2Im",
        &[("pads", ints(&[0, 1, 0, 1])), ("strides", ints(&[2, 2]))],
        "f32[1, 9, 6]; =5 5; =3 3",
        "f32[1, 1, 5, 5]",
    );
    for (list, inputs) in [
        (&[][..], "f32[10, 5]; =5 5; =1 5"),
        (&[], "f32[1, 10, 5]; =5; =1 5"),
        (&[], "f32[1, 9, 5]; =5 5; =1 5"),
        (&[], "f32[1, 10, 4]; =5 5; =1 5"),
        (&[], "f32[1, 10, 5]; =5 5; =1 6"),
        (&[], "f32[1, 10, 5]; =5 0; =1 5"),
        (&[("strides", ints(&[0, 1]))], "f32[1, 10, 5]; =5 5; =1 5"),
        (&[("pads", ints(&[0, 1]))], "f32[1, 10, 5]; =5 5; =1 5"),
        (
            &[("dilations", ints(&[1, i64::MAX]))],
            "f32[1, 10, 5]; =5 5; =1 5",
        ),
    ] {
        check_err("Col2Im", list, inputs);
    }
}

#[test]
fn caches_keep_their_shape() {
    let along = |axis| [("axis", int(axis))];
    check(
        "TensorScatter",
        &[],
        "f16[b, 2, 9, d]; f16[b, 2, s, d]",
        "f16[b, 2, 9, d]",
    );
    check(
        "TensorScatter",
        &along(1),
        "i8[3, 9]; i8[3, 9]; i64[3]",
        "i8[3, 9]",
    );
    for (list, inputs) in [
        (&[][..], "f32[3, 4, 5]; f32[3, 5, 5]"),
        (&[], "f32[3, 4, 5]; f32[3, 2, 4]"),
        (&[], "f32[3, 4, 5]; f32[3, 2, 5]; i64[2]"),
        (&[], "f32[3, 4]; f32[3, 4]"),
        (&along(2), "f32[3, 4]; f32[3, 4]"),
        (&[("mode", text("round"))], "f32[3, 4, 5]; f32[3, 2, 5]"),
    ] {
        check_err("TensorScatter", list, inputs);
    }
}

#[test]
fn bits_and_products() {
    check("CumProd", &[], "i32[b, s]; =1.", "i32[b, s]");
    check_err("CumProd", &[], "i32[b, s]; =2.");
    check("BitCast", &[("to", Attr::DType(I32))], "f32[b]", "i32[b]");
    check_err("BitCast", &[("to", Attr::DType(I64))], "f32[b]");
    check_err("BitCast", &[], "f32[b]");
}
