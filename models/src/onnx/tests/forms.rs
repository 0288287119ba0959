//! Tests of the rewriting of older forms of ops.

use super::*;

/// Checks the nodes that a model of one node on `x: f32[dims]` is imported as.
fn check(version: i64, dims: &[&str], n: NodeProto, want: &[&str]) -> Function {
    let f = import(&one(version, dims, n));
    assert_eq!(lines(&f), want);
    f
}

#[test]
fn axes_become_operands() {
    for v in [7, 11, 12] {
        let n = node("Squeeze", "x", "y", vec![ints("axes", &[1])]);
        check(v, &["2", "1"], n, &["Squeeze(x, [1])"]);
        let n = node("Unsqueeze", "x", "y", vec![ints("axes", &[0])]);
        check(v, &["2", "1"], n, &["Unsqueeze(x, [0])"]);
        let n = node(
            "ReduceSum",
            "x",
            "y",
            vec![ints("axes", &[0]), int("keepdims", 0)],
        );
        let f = check(v, &["2", "n"], n, &["ReduceSum(x, [0])"]);
        assert_eq!(f.ty(f.results[0].1).to_string(), "f32[n]");
    }
    // One axis may be given as a scalar.
    let axis = raw("a", I64, &[], 1i64.to_le_bytes().to_vec());
    let x = value("x", F32, &["2", "1"]);
    let m = model(
        13,
        graph(
            vec![x],
            vec![axis],
            vec![node("Squeeze", "x a", "y", vec![])],
            "y",
        ),
    );
    assert_eq!(lines(&import(&m)), ["Squeeze(x, [1])"]);
    let n = node("ReduceMean", "x", "y", vec![ints("axes", &[-1])]);
    check(17, &["2", "3"], n, &["ReduceMean(x, [-1])"]);
    let n = node("ReduceMean", "x", "y", vec![]);
    check(17, &["2", "3"], n, &["ReduceMean(x)"]);
}

#[test]
fn split_states_its_sizes_or_their_number() {
    let n = || node("Split", "x", "a b", vec![ints("split", &[1, 3])]);
    check(7, &["4"], n(), &["Split(x, [1, 3])"]);
    let f = check(13, &["4"], node("Split", "x", "a b", vec![]), &["Split(x)"]);
    assert_eq!(f.nodes[0].attrs.int("num_outputs", 0), 2);
    // A part of a Split that nothing reads is kept.
    let m = one(13, &["4"], node("Split", "x", "a b", vec![]));
    let mut g = m.graph.clone().unwrap();
    g.output.pop();
    let f = import(&model(13, g));
    assert_eq!(f.nodes[0].outputs.len(), 2);
}

#[test]
fn bounds_become_operands_of_the_same_dtype() {
    let clip = || {
        node(
            "Clip",
            "x",
            "y",
            vec![float("min", -1.0), float("max", 6.0)],
        )
    };
    check(7, &["4"], clip(), &["Clip(x, [-1.0], [6.0])"]);
    let half = model(
        10,
        graph(vec![value("x", F16, &["4"])], vec![], vec![clip()], "y"),
    );
    assert_eq!(lines(&import(&half)), ["Clip(x, f16[], f16[])"]);
    check(
        10,
        &["4"],
        node("Clip", "x", "y", vec![float("max", 6.0)]),
        &["Clip(x, _, [6.0])"],
    );
}

#[test]
fn pad_slice_and_dropout() {
    let n = node(
        "Pad",
        "x",
        "y",
        vec![ints("pads", &[1, 2]), float("value", 3.0)],
    );
    let f = check(7, &["4"], n, &["Pad(x, [1, 2], [3.0])"]);
    assert_eq!(f.ty(f.results[0].1).to_string(), "f32[7]");
    let n = node(
        "Pad",
        "x",
        "y",
        vec![ints("pads", &[1, 2]), text("mode", "reflect")],
    );
    let f = check(10, &["4"], n, &["Pad(x, [1, 2])"]);
    assert_eq!(f.nodes[0].attrs.str("mode", ""), "reflect");
    let n = node(
        "Slice",
        "x",
        "y",
        vec![ints("starts", &[1]), ints("ends", &[3])],
    );
    check(9, &["4"], n, &["Slice(x, [1], [3])"]);
    let m = one(
        9,
        &["4"],
        node("Slice", "x", "y", vec![ints("starts", &[1])]),
    );
    fails(
        &m,
        Code::InvalidModel,
        "node 'y_node' (Slice): attribute 'ends' is missing",
    );
    check(
        7,
        &["4"],
        node("Dropout", "x", "y", vec![float("ratio", 0.5)]),
        &["Identity(x)"],
    );
    let f = check(
        12,
        &["4"],
        node("Dropout", "x", "y mask", vec![]),
        &["Shape(x)", "ConstantOfShape(y_node/Shape)", "Identity(x)"],
    );
    assert_eq!(f.ty(f.results[1].1).to_string(), "bool[4]");
}

#[test]
fn softmax_saw_a_matrix() {
    let softmax = |axis| node("Softmax", "x", "y", vec![int("axis", axis)]);
    let f = check(11, &["2", "n"], softmax(-1), &["Softmax(x)"]);
    assert_eq!(f.nodes[0].attrs.int("axis", 0), 1);
    // The default axis was 1; trailing dimensions of 1 do not matter.
    let f = check(
        7,
        &["1", "1000", "1", "1"],
        node("Softmax", "x", "y", vec![]),
        &["Softmax(x)"],
    );
    assert_eq!(f.nodes[0].attrs.int("axis", 0), 1);
    let want = [
        "Flatten(x)",
        "LogSoftmax(y_node/Flatten)",
        "Reshape(y_node/LogSoftmax, [2, 3, 4])",
    ];
    let n = node("LogSoftmax", "x", "y", vec![int("axis", 1)]);
    let f = check(12, &["2", "3", "4"], n, &want);
    assert_eq!(f.ty(f.results[0].1).to_string(), "f32[2, 3, 4]");
    let want = [
        "Shape(x)",
        "Flatten(x)",
        "Softmax(y_node/Flatten)",
        "Reshape(y_node/Softmax, y_node/Shape)",
    ];
    let f = check(12, &["b", "s", "4"], softmax(1), &want);
    assert_eq!(f.ty(f.results[0].1).to_string(), "f32[b, s, 4]");
    let f = check(13, &["b", "s", "4"], softmax(1), &["Softmax(x)"]);
    assert_eq!(f.nodes[0].attrs.int("axis", 0), 1);
}

#[test]
fn casts_name_dtypes() {
    let f = check(
        9,
        &["2"],
        node("Cast", "x", "y", vec![int("to", i64::from(I64))]),
        &["Cast(x)"],
    );
    assert_eq!(f.ty(f.results[0].1).to_string(), "i64[2]");
    let m = one(9, &["2"], node("Cast", "x", "y", vec![int("to", 14)]));
    let message = "the model needs operations that are not supported: \
                   Cast of opset 9 (node: y_node, attribute 'to': element type COMPLEX64 is not supported)";
    fails(&m, Code::UnsupportedOp, message);
}

#[test]
fn constants_become_literals() {
    let check = |a: AttributeProto, want: &str| {
        let m = model(
            13,
            graph(
                vec![],
                vec![],
                vec![node("Constant", "", "y", vec![a])],
                "y",
            ),
        );
        let f = import(&m);
        assert!(f.nodes.is_empty());
        assert_eq!(elements(f.inline(f.results[0].1).unwrap()), want);
    };
    check(
        tensor_attr("value", floats("", &[2], &[1., 2.])),
        "[1.0, 2.0]",
    );
    check(int("value_int", 7), "7");
    check(float("value_float", 0.5), "[0.5]");
    check(ints("value_ints", &[1, -1]), "[1, -1]");
    let v = AttributeProto {
        floats: vec![1., 2.],
        ..attr("value_floats", AttributeType::Floats)
    };
    check(v, "[1.0, 2.0]");
    // A large constant stays in the file, as an initializer does.
    let big = tensor_attr("value", floats("", &[2000], &[1.; 2000]));
    let s = Scratch::new();
    let m = model(
        13,
        graph(
            vec![],
            vec![],
            vec![node("Constant", "", "y", vec![big])],
            "y",
        ),
    );
    let i = import_in(&s, &m).unwrap();
    assert!(matches!(
        literal(&i.function, "y"),
        Literal::Range { len: 8000, .. }
    ));
}

#[test]
fn training_forms_and_defaults() {
    let bn = |extra: Vec<AttributeProto>, outputs: &str| {
        let c = |n: &str| floats(n, &[2], &[1., 1.]);
        let n = node("BatchNormalization", "x s b m v", outputs, extra);
        let x = value("x", F32, &["1", "2", "3"]);
        model(
            8,
            graph(vec![x], vec![c("s"), c("b"), c("m"), c("v")], vec![n], "y"),
        )
    };
    let old = vec![
        int("spatial", 1),
        float("momentum", 0.9),
        float("epsilon", 1e-3),
    ];
    let f = import(&bn(old, "y mean var sm sv"));
    assert_eq!(f.nodes[0].outputs.len(), 1);
    assert_eq!(f.nodes[0].attrs.float("epsilon", 0.0), 1e-3);
    let e = try_import(&bn(vec![int("training_mode", 1)], "y")).unwrap_err();
    assert_eq!(e.code(), Code::UnsupportedOp);
    import(&bn(vec![int("training_mode", 0)], "y"));
}

#[test]
fn microsoft_ops_in_terms_of_standard_ones() {
    let ms = |n: NodeProto| NodeProto {
        domain: Some("com.microsoft".into()),
        ..n
    };
    let import = |n: NodeProto, outputs: &str| {
        let c = |n: &str| floats(n, &[4], &[1.; 4]);
        let inputs = vec![value("x", F32, &["2", "4"]), value("z", F32, &["2", "4"])];
        import(&model(
            17,
            graph(inputs, vec![c("s"), c("b"), c("e")], vec![ms(n)], outputs),
        ))
    };
    let ones = "[1.0, 1.0, 1.0, 1.0]";
    let f = import(node("FastGelu", "x b", "y", vec![]), "y");
    assert_eq!(
        lines(&f),
        [format!("Add(x, {ones})"), "Gelu(y_node/Add)".into()]
    );
    assert_eq!(f.nodes[1].attrs.str("approximate", ""), "tanh");
    assert_eq!(
        lines(&import(node("Gelu", "x", "y", vec![]), "y")),
        ["Gelu(x)"]
    );
    let f = import(node("QuickGelu", "x", "y", vec![float("alpha", 2.0)]), "y");
    assert_eq!(lines(&f), ["Swish(x)"]);
    assert_eq!(f.nodes[0].attrs.float("alpha", 0.0), 2.0);
    let f = import(
        node("SkipLayerNormalization", "x z s b e", "y _ _ sum", vec![]),
        "y sum",
    );
    assert_eq!(
        lines(&f)[2],
        format!("LayerNormalization(y_node/Add.1, {ones}, {ones})")
    );
    assert_eq!(&*f.value(f.results[1].1).name, "y_node/Add.1");
}

#[test]
fn a_node_of_a_domain_is_a_custom_op_that_is_registered() {
    use convoke_graph::ops::{self, Infer, InferredOutput, OpDef, OpError};

    fn same(i: &Infer<'_>) -> Result<Vec<InferredOutput>, OpError> {
        let x = i.required(0)?.ty;
        Ok(vec![InferredOutput::of(x.dtype, x.shape.clone())])
    }
    const X: &[ops::OperandDef] = &[ops::def::operand("X", &[convoke_graph::DType::F32])];
    const SCALE: &[ops::AttrDef] = &[ops::def::required("scale", ops::AttrKind::Float)];
    static SCALED: OpDef =
        OpDef::new("com.example.Scaled", "X, scaled, any shape.", X, same).attrs(SCALE);

    let m = |op: &str| {
        let mut n = node(op, "x", "y", vec![float("scale", 2.0)]);
        n.domain = Some("com.example".into());
        let mut m = one(17, &["2", "n"], n);
        m.opset_import.push(opset("com.example", 1));
        m
    };
    ops::register(&SCALED).unwrap();
    let f = import(&m("Scaled"));
    assert_eq!(lines(&f), ["com.example.Scaled(x)"]);
    assert_eq!(f.nodes[0].attrs.float("scale", 0.0), 2.0);
    assert_eq!(f.ty(f.results[0].1).to_string(), "f32[2, n]");
    let e = try_import(&m("Other")).unwrap_err().to_string();
    assert!(e.contains("com.example.Other"), "{e}");
}

/// A model of `ConvTranspose` on `x: f32[n, 2, h, 3]` with weights `f32[2, 3, 2, 2]` and these attributes.
fn transposed_convolution(attributes: Vec<AttributeProto>) -> ModelProto {
    let w = floats("w", &[2, 3, 2, 2], &[1.; 24]);
    let x = value("x", F32, &["n", "2", "h", "3"]);
    let n = node("ConvTranspose", "x w", "y", attributes);
    model(11, graph(vec![x], vec![w], vec![n], "y"))
}

#[test]
fn a_transposed_convolution_is_a_convolution() {
    let check = |attributes: Vec<AttributeProto>, ops: &[&str], ty: &str| {
        let f = import(&transposed_convolution(attributes));
        let all: Vec<&str> = f.nodes.iter().map(|n| &*n.op).collect();
        let weights = ["Reshape", "Transpose", "Reshape", "Slice"];
        assert_eq!(all, [&weights, ops].concat());
        assert_eq!(f.ty(f.results[0].1).to_string(), ty);
    };
    check(vec![], &["Conv"], "f32[n, 3, 1+h, 4]");
    let spread = ["Unsqueeze", "Pad", "Reshape", "Slice"];
    let along_last = vec![ints("strides", &[1, 2])];
    let ops = [&spread[..], &["Conv"]].concat();
    check(along_last, &ops, "f32[n, 3, 1+h, 6]");
    let padded = vec![ints("pads", &[2, 0, 0, 0])];
    check(padded, &["Pad", "Conv"], "f32[n, 3, -1+h, 4]");
    let same = vec![ints("strides", &[1, 2]), text("auto_pad", "SAME_UPPER")];
    check(same, &ops, "f32[n, 3, h, 6]");
}

#[test]
fn a_transposed_convolution_in_whole_strides_has_phases() {
    let check = |attributes: Vec<AttributeProto>, last: &str, ty: &str| {
        let mut attributes = attributes;
        attributes.push(ints("strides", &[2, 2]));
        let f = import(&transposed_convolution(attributes));
        let all: Vec<&str> = f.nodes.iter().map(|n| &*n.op).collect();
        let ops = [
            "Reshape",
            "Transpose",
            "Reshape",
            "Slice",
            "Conv",
            "DepthToSpace",
            last,
        ];
        assert_eq!(all, ops);
        assert_eq!(f.ty(f.results[0].1).to_string(), ty);
    };
    check(vec![], "Identity", "f32[n, 3, 2*h, 6]");
    check(
        vec![ints("pads", &[1, 0, 0, 1])],
        "Slice",
        "f32[n, 3, 2*h+-1*min(1,2*h), 5]",
    );
    let padded = vec![ints("pads", &[0, 0, 1, 1]), ints("output_padding", &[1, 0])];
    check(padded, "Slice", "f32[n, 3, 2*h, 5]");
    // Elements of the result that no element of the operand reaches, and kernels that are no whole number of strides
    // long.
    let spread = |attributes: Vec<AttributeProto>| {
        let f = import(&transposed_convolution(attributes));
        assert!(f.nodes.iter().any(|n| &*n.op == "Pad"), "{:?}", lines(&f));
    };
    spread(vec![
        ints("strides", &[2, 2]),
        ints("output_padding", &[1, 1]),
    ]);
    // All that the only element reaches would be removed.
    spread(vec![ints("strides", &[2, 2]), ints("pads", &[1, 0, 1, 0])]);
    spread(vec![ints("strides", &[3, 3])]);
    spread(vec![ints("strides", &[2, 2]), ints("dilations", &[3, 3])]);
}

#[test]
fn a_transposed_convolution_that_means_nothing_is_refused() {
    let check = |attributes: Vec<AttributeProto>, why: &str| {
        let e = try_import(&transposed_convolution(attributes))
            .err()
            .unwrap();
        assert!(e.to_string().contains(why), "{e}");
    };
    check(vec![ints("strides", &[0, 1])], "must be above zero");
    check(vec![ints("strides", &[1])], "2 numbers");
    check(vec![ints("dilations", &[-1, 1])], "2 numbers");
    check(vec![ints("pads", &[i64::MAX, 0, 0, 0])], "4 numbers");
    check(vec![int("group", 3)], "not 3 groups");
    check(vec![ints("kernel_shape", &[3, 3])], "kernel_shape");
    check(vec![ints("output_shape", &[i64::MIN, 4])], "output_shape");
    let long = (1i64 << 60).to_string();
    let inputs = vec![
        value("x", F32, &["1", "1", "2"]),
        value("w", F32, &["1", "1", &long]),
    ];
    let wide = vec![ints("dilations", &[1 << 30])];
    let n = node("ConvTranspose", "x w", "y", wide);
    let e = try_import(&model(11, graph(inputs, vec![], vec![n], "y")));
    let e = e.err().unwrap().to_string();
    assert!(e.contains("the kernel is too large"), "{e}");
}

#[test]
fn draws_follow_from_the_seed_or_the_name() {
    let drawn = |n: NodeProto, ty: &str| {
        let f = import(&one(22, &["n", "3"], n));
        assert_eq!(f.ty(f.results[0].1).to_string(), ty);
        let philox = f.nodes.iter().find(|n| n.op.starts_with("Philox")).unwrap();
        let seed = philox.inputs[1].unwrap();
        let (_, literal) = f.literals.iter().find(|(id, _)| *id == seed).unwrap();
        match literal {
            Literal::Inline(t) => t.to_i64s().unwrap(),
            other => panic!("{other:?}"),
        }
    };
    let bernoulli = |attributes| node("Bernoulli", "x", "y", attributes);
    let given = drawn(bernoulli(vec![float("seed", 0.5)]), "f32[n, 3]");
    assert_eq!(given, [i64::from(0.5f32.to_bits()), 0]);
    let own = drawn(bernoulli(vec![int("dtype", 7)]), "i64[n, 3]");
    assert_eq!(own, drawn(bernoulli(vec![]), "f32[n, 3]"));
    let multinomial = node("Multinomial", "x", "y", vec![int("sample_size", 5)]);
    assert_eq!(drawn(multinomial, "i32[n, 5]"), own);
    let like = node("RandomNormalLike", "x", "y", vec![float("mean", 2.0)]);
    assert_eq!(drawn(like, "f32[n, 3]"), own);
    let mut other = bernoulli(vec![]);
    other.name = Some("other".into());
    assert_ne!(drawn(other, "f32[n, 3]"), own);
}

#[test]
fn older_forms_of_sampling() {
    let sampled = |version, mode: Option<&str>| {
        let inputs = vec![
            value("x", F32, &["1", "1", "4", "4"]),
            value("g", F32, &["1", "2", "2", "2"]),
        ];
        let attributes = mode.map(|m| text("mode", m)).into_iter().collect();
        let n = node("GridSample", "x g", "y", attributes);
        let f = import(&model(version, graph(inputs, vec![], vec![n], "y")));
        f.nodes[0].attrs.str("mode", "linear").to_owned()
    };
    assert_eq!(sampled(16, None), "linear");
    assert_eq!(sampled(16, Some("bicubic")), "cubic");
    assert_eq!(sampled(20, Some("cubic")), "cubic");
    let aligned = |version| {
        let inputs = vec![
            value("x", F32, &["1", "1", "4", "4"]),
            value("r", F32, &["n", "4"]),
            value("i", I64, &["n"]),
        ];
        let n = node("RoiAlign", "x r i", "y", vec![]);
        let f = import(&model(version, graph(inputs, vec![], vec![n], "y")));
        let mode = f.nodes[0]
            .attrs
            .str("coordinate_transformation_mode", "half_pixel");
        mode.to_owned()
    };
    assert_eq!(
        (aligned(10), aligned(16)),
        ("output_half_pixel".into(), "half_pixel".into())
    );
}
