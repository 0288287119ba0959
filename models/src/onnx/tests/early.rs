//! Tests of the forms of ops before operator set 7, and of forms that a few other ops express.

use super::*;

/// A model of one node on `x: f32[2, 3, 4, 5]`, and on a weight `w` of these dimensions whose elements are 1.5.
fn given(version: i64, dims: &[i64], n: NodeProto) -> ModelProto {
    let count = dims.iter().product::<i64>() as usize;
    let w = floats("w", dims, &vec![1.5; count]);
    let x = value("x", F32, &["2", "3", "4", "5"]);
    model(version, graph(vec![x], vec![w], vec![n], "y"))
}

/// Checks that the model is refused, for a reason that contains `part`.
fn refused(m: &ModelProto, code: Code, part: &str) {
    let e = Error::from(try_import(m).expect_err("refused"));
    assert!(e.code == code && e.message.contains(part), "{e}");
}

/// Checks the nodes that the model is imported as, each with the type of its first output.
fn check(m: &ModelProto, want: &[(&str, &str)]) {
    let f = import(m);
    let types = f.nodes.iter().map(|n| f.ty(n.outputs[0]).to_string());
    let got: Vec<(&str, String)> = f.nodes.iter().map(|n| &*n.op).zip(types).collect();
    let got: Vec<(&str, &str)> = got.iter().map(|(op, ty)| (*op, &**ty)).collect();
    assert_eq!(got, want);
}

#[test]
fn an_axis_says_where_an_operand_lies() {
    let add = |axis: Option<i64>| {
        let axis = axis.map(|a| int("axis", a));
        let attributes = [int("broadcast", 1)].into_iter().chain(axis).collect();
        node("Add", "x w", "y", attributes)
    };
    let sum = ("Add", "f32[2, 3, 4, 5]");
    check(&given(6, &[5], add(None)), &[sum]);
    check(&given(6, &[4, 5], add(Some(2))), &[sum]);
    check(&given(6, &[], add(Some(0))), &[sum]);
    for axis in [1, -3] {
        let m = given(6, &[3], add(Some(axis)));
        check(&m, &[("Unsqueeze", "f32[3, 1, 1]"), sum]);
    }
    let m = given(1, &[3, 4], add(Some(1)));
    check(&m, &[("Unsqueeze", "f32[3, 4, 1]"), sum]);
    for axis in [4, -5, i64::MIN] {
        let message = format!("(Add): axis {axis} does not place 1 of 4 dimensions");
        let m = given(6, &[3], add(Some(axis)));
        refused(&m, Code::InvalidModel, &message);
    }
}

#[test]
fn attributes_became_operands() {
    let n = node("Reshape", "x", "y", vec![ints("shape", &[0, -1])]);
    check(&given(4, &[], n), &[("Reshape", "f32[2, 60]")]);
    let n = node("Cast", "x", "y", vec![text("to", "DOUBLE")]);
    check(&given(5, &[], n), &[("Cast", "f64[2, 3, 4, 5]")]);
    let n = node("Cast", "x", "y", vec![text("to", "COMPLEX64")]);
    let message = "attribute 'to': COMPLEX64 is not supported";
    refused(&given(5, &[], n), Code::UnsupportedOp, message);
    let n = node("Concat", "x x", "y", vec![]);
    check(&given(1, &[], n), &[("Concat", "f32[2, 6, 4, 5]")]);
    let scales = vec![float("height_scale", 2.0), float("width_scale", 3.0)];
    let n = node("Upsample", "x", "y", scales);
    check(&given(1, &[], n), &[("Resize", "f32[2, 3, 8, 15]")]);
    let n = node("Upsample", "x", "y", vec![float("height_scale", 2.0)]);
    let message = "attribute 'width_scale' is missing";
    refused(&given(1, &[], n), Code::InvalidModel, message);
    let n = node("LpPool", "x", "y", vec![float("p", 2.5)]);
    refused(
        &given(1, &[], n),
        Code::UnsupportedOp,
        "a norm of exponent 2.5",
    );
}

#[test]
fn copies_along_an_axis() {
    let tile = |tiles: f32, axis: f32| {
        let scalar = |name: &str, v: f32| floats(name, &[], &[v]);
        let x = value("x", F32, &["2", "3"]);
        let weights = vec![scalar("t", tiles), scalar("a", axis)];
        let n = node("Tile", "x t a", "y", vec![]);
        model(1, graph(vec![x], weights, vec![n], "y"))
    };
    check(&tile(3.0, 1.0), &[("Tile", "f32[2, 9]")]);
    let message = "(Tile): axis 2 of 2 dimensions";
    refused(&tile(3.0, 2.0), Code::InvalidModel, message);
    let message = "no whole f32 known at the load";
    refused(&tile(2.5, 1.0), Code::UnsupportedOp, message);
}

#[test]
fn a_slope_belongs_to_a_channel() {
    let n = || node("PRelu", "x w", "y", vec![]);
    let y = ("PRelu", "f32[2, 3, 4, 5]");
    check(&given(6, &[3], n()), &[("Unsqueeze", "f32[3, 1, 1]"), y]);
    check(&given(6, &[1], n()), &[y]);
}

#[test]
fn training_forms_are_refused() {
    let n = |test| node("Dropout", "x", "y", vec![int("is_test", test)]);
    check(&given(6, &[], n(1)), &[("Identity", "f32[2, 3, 4, 5]")]);
    refused(&given(6, &[], n(0)), Code::UnsupportedOp, "training mode");
}

#[test]
fn expressed_by_others() {
    let n = node("Shrink", "x", "y", vec![float("lambd", 1.0)]);
    let f = import(&given(9, &[], n));
    let ops: Vec<&str> = f.nodes.iter().map(|n| &*n.op).collect();
    assert_eq!(ops, ["Add", "Sub", "Greater", "Where", "Less", "Where"]);
    // Scales and biases of operator set 18 are those of the groups.
    let n = node(
        "GroupNormalization",
        "x w w",
        "y",
        vec![int("num_groups", 3)],
    );
    let shape = ("Shape", "i64[4]");
    let grouped = ("Reshape", "f32[2, 3, 20]");
    let y = ("Reshape", "f32[2, 3, 4, 5]");
    let normal = ("InstanceNormalization", "f32[2, 3, 20]");
    check(&given(18, &[3], n), &[shape, grouped, normal, y]);
    let n = node("GroupNormalization", "x w w", "y", vec![]);
    for groups in [2, 0, -1] {
        let n = node(
            "GroupNormalization",
            "x w w",
            "y",
            vec![int("num_groups", groups)],
        );
        let message = format!("3 channels are not divided by {groups} groups");
        refused(&given(18, &[3], n), Code::InvalidModel, &message);
    }
    let message = "attribute 'num_groups' is missing";
    refused(&given(18, &[3], n), Code::InvalidModel, message);
}
