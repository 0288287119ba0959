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
    let lengths = |lengths: &[f32]| {
        let x = value("x", F32, &["2", "3", "4", "5"]);
        let n = node("Split", "x s", "y z", vec![int("axis", 1)]);
        model(
            1,
            graph(vec![x], vec![floats("s", &[2], lengths)], vec![n], "y z"),
        )
    };
    let split = [("Cast", "i64[2]"), ("Split", "f32[2, y#1, 4, 5]")];
    check(&lengths(&[1.0, 2.0]), &split);
    let n = node("Concat", "x x", "y", vec![]);
    check(&given(1, &[], n), &[("Concat", "f32[2, 6, 4, 5]")]);
    let scales = vec![float("height_scale", 2.0), float("width_scale", 3.0)];
    let n = node("Upsample", "x", "y", scales);
    check(&given(1, &[], n), &[("Resize", "f32[2, 3, 8, 15]")]);
    let n = node("Upsample", "x", "y", vec![float("height_scale", 2.0)]);
    let message = "attribute 'width_scale' is missing";
    refused(&given(1, &[], n), Code::InvalidModel, message);
    let attributes = vec![float("p", 2.5), ints("kernel_shape", &[2, 2])];
    let n = node("LpPool", "x", "y", attributes);
    refused(
        &given(1, &[], n),
        Code::UnsupportedOp,
        "a norm of exponent 2.5",
    );
    let n = node("LpPool", "x", "y", vec![]);
    let message = "attribute 'kernel_shape' is left out";
    refused(&given(1, &[], n), Code::UnsupportedOp, message);
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
    let same = ("Identity", "f32[2, 3, 4, 5]");
    for version in [1, 6] {
        let n = |attributes| given(version, &[], node("Dropout", "x", "y", attributes));
        check(&n(vec![int("is_test", 1)]), &[same]);
        check(&n(vec![float("ratio", 0.0)]), &[same]);
        for attributes in [vec![], vec![float("ratio", 0.1)], vec![int("is_test", 0)]] {
            refused(&n(attributes), Code::UnsupportedOp, "training mode");
        }
    }
    // Since then the op is the identity unless an operand says otherwise.
    for version in [7, 10, 11] {
        let n = node("Dropout", "x", "y", vec![float("ratio", 0.9)]);
        check(&given(version, &[], n), &[same]);
    }
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

#[test]
fn ops_on_trial_are_expressed_by_others() {
    let y = "f32[2, 3, 4, 5]";
    let both = || vec![float("alpha", 2.0), float("beta", 0.5)];
    let affine = || node("Affine", "x", "y", both());
    check(&given(9, &[], affine()), &[("Mul", y), ("Add", y)]);
    refused(&given(10, &[], affine()), Code::UnsupportedOp, "Affine");
    let n = node("Scale", "x", "y", vec![float("scale", 2.0)]);
    check(&given(7, &[], n), &[("Mul", y)]);
    for (op, f) in [("ParametricSoftplus", "Softplus"), ("ScaledTanh", "Tanh")] {
        let n = node(op, "x", "y", both());
        check(&given(1, &[], n), &[("Mul", y), (f, y), ("Mul", y)]);
        let n = node(op, "x", "y", vec![float("alpha", 2.0)]);
        let message = "attribute 'beta' is missing";
        refused(&given(7, &[], n), Code::InvalidModel, message);
    }
    let scaler = |bias: &[f32]| {
        let bias = AttributeProto {
            floats: bias.to_vec(),
            ..attr("bias", AttributeType::Floats)
        };
        node("ImageScaler", "x", "y", vec![float("scale", 2.0), bias])
    };
    let m = given(7, &[], scaler(&[1.0, 2.0, 3.0]));
    check(&m, &[("Mul", y), ("Add", y)]);
    let bias = import(&m).nodes[1].inputs[1].unwrap();
    assert_eq!(import(&m).ty(bias).to_string(), "f32[3, 1, 1]");
    let message = "3 channels have 2 elements of 'bias'";
    refused(
        &given(7, &[], scaler(&[1.0, 2.0])),
        Code::InvalidModel,
        message,
    );
}

#[test]
fn images_are_cropped() {
    let crop = |border: &[i64], scale: &[i64]| {
        let scale = (!scale.is_empty()).then(|| ints("scale", scale));
        let attributes = [ints("border", border)].into_iter().chain(scale);
        node("Crop", "x", "y", attributes.collect())
    };
    let n = crop(&[1, 0, 2, 3], &[]);
    check(&given(7, &[], n), &[("Pad", "f32[2, 3, 1, 2]")]);
    let n = crop(&[1, 2, 9, 9], &[2, 3]);
    check(&given(7, &[], n), &[("Slice", "f32[2, 3, 2, 3]")]);
    let wrong = |border: &[i64], scale: &[i64], part: &str| {
        let m = given(7, &[], crop(border, scale));
        refused(&m, Code::InvalidModel, part);
    };
    wrong(
        &[1, 2, 0, 0],
        &[3, 3],
        "up to row 5 and column 4 exceeds 4 by 5",
    );
    wrong(&[i64::MAX, 0, 0, 0], &[1, 1], "is no size");
    wrong(&[1, 0, 0, 0], &[-1, 1], "is no size");
    wrong(&[1, 0, 0, 0], &[1], "a height and a width");
    wrong(&[1, 0, 0], &[], "four lengths");
    wrong(&[-1, 0, 0, 0], &[], "four lengths");
    // A crop of images of any size has the size that is asked for, or is refused when it runs.
    let m = one(7, &["n", "3", "h", "w"], crop(&[1, 2, 0, 0], &[2, 3]));
    let f = import(&m);
    let last = f.nodes.last().unwrap();
    assert_eq!(&*last.op, "Reshape");
    assert_eq!(f.ty(last.outputs[0]).to_string(), "f32[n, 3, 2, 3]");
}

#[test]
fn the_nearest_element_lay_above_where_an_axis_shrank() {
    let resize = |version: i64, mode: Vec<AttributeProto>| {
        let scales = floats("s", &[4], &[1.0, 1.0, 0.5, 2.0]);
        let x = value("x", F32, &["2", "3", "4", "5"]);
        let operands = if version < 11 { "x s" } else { "x _ s" };
        let op = if version < 10 { "Upsample" } else { "Resize" };
        let n = node(op, operands, "y", mode);
        model(version, graph(vec![x], vec![scales], vec![n], "y"))
    };
    let mode = |version| {
        let f = import(&resize(version, vec![]));
        f.nodes[0].attrs.str("nearest_mode", "").to_owned()
    };
    assert_eq!([9, 10, 11].map(mode), ["floor", "by_scale", ""]);
    let m = resize(11, vec![text("nearest_mode", "by_scale")]);
    refused(&m, Code::UnsupportedOp, "attribute 'nearest_mode'");
}
