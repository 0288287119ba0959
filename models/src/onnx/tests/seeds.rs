//! The models that the fuzzer starts from, one for each part of the importer.

#[path = "../../../../fuzz/src/seed.rs"]
mod seed;

use super::*;
use crate::fuzzing::TARGETS;
use seed::Seed;

fn small() -> ModelProto {
    let g = graph(
        vec![value("x", F32, &["n", "2"])],
        vec![floats("w", &[2, 2], &[1., 2., 3., 4.])],
        vec![
            node("MatMul", "x w", "a", vec![]),
            node("Softmax", "a", "y", vec![int("axis", -1)]),
        ],
        "y",
    );
    model(17, g)
}

/// A model with weights in a file beside it, and with typed content that is decoded.
fn stored() -> ModelProto {
    let entries = [
        ("location", "data.bin"),
        ("offset", "64"),
        ("length", "8000"),
    ];
    let typed = TensorProto {
        raw_data: None,
        float_data: vec![1.5; 2000],
        ..floats("t", &[2000], &[])
    };
    let small = TensorProto {
        raw_data: None,
        int64_data: vec![1, -2],
        ..raw("s", I64, &[2], vec![])
    };
    let nodes = vec![
        node("Add", "x w", "a", vec![]),
        node("Add", "a t", "b", vec![]),
        node("Cast", "s", "c", vec![int("to", i64::from(F32))]),
        node("ReduceSum", "c", "d", vec![]),
        node("Add", "b d", "y", vec![]),
    ];
    let initializers = vec![external("w", &[2000], &entries), typed, small];
    let x = value("x", F32, &["2000"]);
    model(13, graph(vec![x], initializers, nodes, "y"))
}

fn functions() -> ModelProto {
    let call = |f: &str, input: &str, output: &str, attrs| NodeProto {
        domain: Some("f".into()),
        ..node(f, input, output, attrs)
    };
    let refers = AttributeProto {
        ref_attr_name: Some("slope".into()),
        ..attr("alpha", AttributeType::Float)
    };
    let function = |name: &str, node| FunctionProto {
        name: Some(name.into()),
        domain: Some("f".into()),
        input: names("x"),
        output: names("y"),
        attribute: names("slope"),
        opset_import: vec![opset("", 17), opset("f", 1)],
        node,
        ..FunctionProto::default()
    };
    let leaky = function("leaky", vec![node("LeakyRelu", "x", "y", vec![refers])]);
    let slope = vec![float("slope", 0.25)];
    let twice = function(
        "twice",
        vec![
            call("leaky", "x", "a", slope.clone()),
            call("leaky", "a", "y", slope),
        ],
    );
    ModelProto {
        opset_import: vec![opset("", 17), opset("f", 1)],
        functions: vec![leaky, twice],
        ..one(17, &["2"], call("twice", "x", "y", vec![]))
    }
}

fn branches() -> ModelProto {
    let branch = |op: &str, out: &str| graph(vec![], vec![], vec![node(op, "x", out, vec![])], out);
    let choice = vec![
        graph_attr("then_branch", branch("Relu", "a")),
        graph_attr("else_branch", branch("Neg", "b")),
    ];
    let condition = tensor_attr("value", raw("", 9, &[], vec![1]));
    let nodes = vec![
        node("Constant", "", "c", vec![condition]),
        node("If", "c", "y", choice),
    ];
    model(17, graph(vec![value("x", F32, &["2"])], vec![], nodes, "y"))
}

/// A loop whose carried tensor grows, in a branch that the data decides.
fn loops() -> ModelProto {
    let inputs = vec![
        value("i", I64, &[]),
        value("c", 9, &[]),
        value("s", F32, &[]),
    ];
    let nodes = vec![
        node("Concat", "s x", "t", vec![int("axis", 0)]),
        node("Identity", "c", "d", vec![]),
    ];
    let body = graph_attr("body", graph(inputs, vec![], nodes, "d t s"));
    let yes = graph(
        vec![],
        vec![],
        vec![node("Loop", "n c x", "a b", vec![body])],
        "a",
    );
    let no = graph(vec![], vec![], vec![node("Relu", "z", "b", vec![])], "b");
    let choice = vec![
        graph_attr("then_branch", yes),
        graph_attr("else_branch", no),
    ];
    let nodes = vec![node("Exp", "x", "z", vec![]), node("If", "c", "y", choice)];
    let inputs = vec![
        value("x", F32, &["2"]),
        value("n", I64, &[]),
        value("c", 9, &[]),
    ];
    model(17, graph(inputs, vec![], nodes, "y"))
}

/// A scan along the last axis.
fn scan() -> ModelProto {
    let inputs = vec![value("s", F32, &[]), value("a", F32, &[])];
    let nodes = vec![node("Add", "s a", "t", vec![])];
    let attributes = vec![
        graph_attr("body", graph(inputs, vec![], nodes, "t t")),
        int("num_scan_inputs", 1),
        ints("scan_input_axes", &[-1]),
        ints("scan_output_axes", &[1]),
        ints("scan_output_directions", &[1]),
    ];
    let start = vec![floats("start", &[2], &[0., 1.])];
    let n = node("Scan", "start x", "last y", attributes);
    model(
        17,
        graph(vec![value("x", F32, &["2", "n"])], start, vec![n], "last y"),
    )
}

fn gru() -> ModelProto {
    let weights = |name: &str, dims: &[i64], count| floats(name, dims, &vec![0.5; count]);
    let weights = vec![
        weights("w", &[2, 6, 3], 36),
        weights("r", &[2, 6, 2], 24),
        weights("b", &[2, 12], 24),
    ];
    let attributes = vec![
        text("direction", "bidirectional"),
        float("clip", 3.0),
        int("layout", 1),
    ];
    let n = node("GRU", "x w r b lengths", "y", attributes);
    let inputs = vec![
        value("x", F32, &["n", "4", "3"]),
        value("lengths", 6, &["n"]),
    ];
    model(14, graph(inputs, weights, vec![n], "y"))
}

/// A model whose shape arithmetic ends in a reshape.
fn shapes() -> ModelProto {
    let longs = |name: &str, v: &[i64]| {
        let data = bytemuck::cast_slice(v).to_vec();
        raw(name, I64, &[v.len() as i64], data)
    };
    let nodes = vec![
        node("Shape", "x", "shape", vec![]),
        node("Gather", "shape zero", "batch", vec![int("axis", 0)]),
        node("Concat", "batch rest", "target", vec![int("axis", 0)]),
        node("Reshape", "x target", "flat", vec![]),
        node("Slice", "flat one two one", "y", vec![]),
    ];
    let initializers = vec![
        longs("zero", &[0]),
        longs("one", &[1]),
        longs("two", &[2]),
        longs("rest", &[-1]),
    ];
    let x = value("x", F32, &["batch", "seq", "4"]);
    model(13, graph(vec![x], initializers, nodes, "y"))
}

/// Models with older forms of ops, each of which is rewritten.
fn older() -> Vec<(&'static str, ModelProto)> {
    let unary = |op: &str, attrs| node(op, "x", "y", attrs);
    let ms = |n: NodeProto| NodeProto {
        domain: Some("com.microsoft".into()),
        ..n
    };
    let parts = node("Split", "x", "a y", vec![ints("split", &[1, 1])]);
    let padded = vec![ints("pads", &[1, 2, 0, 0]), float("value", 3.0)];
    let window = vec![ints("kernel_shape", &[2]), ints("strides", &[2])];
    vec![
        (
            "squeeze",
            one(11, &["2", "1"], unary("Squeeze", vec![ints("axes", &[1])])),
        ),
        (
            "reduce",
            one(
                11,
                &["2", "n"],
                unary("ReduceSum", vec![ints("axes", &[0])]),
            ),
        ),
        ("split", one(7, &["2"], parts)),
        (
            "clip",
            one(
                7,
                &["4"],
                unary("Clip", vec![float("min", -1.0), float("max", 6.0)]),
            ),
        ),
        ("pad", one(7, &["4", "2"], unary("Pad", padded))),
        (
            "softmax",
            one(11, &["b", "s", "4"], unary("Softmax", vec![int("axis", 1)])),
        ),
        (
            "dropout",
            one(12, &["4"], node("Dropout", "x", "y mask", vec![])),
        ),
        ("pool", one(17, &["1", "2", "8"], unary("MaxPool", window))),
        (
            "gelu",
            one(
                17,
                &["2", "4"],
                ms(unary("QuickGelu", vec![float("alpha", 2.0)])),
            ),
        ),
    ]
}

/// Models with ops of ONNX Runtime, each of which is expanded.
fn of_onnx_runtime() -> Vec<(&'static str, ModelProto)> {
    let model = |domain: &str, dims: &[&str], weights: Vec<TensorProto>, n: NodeProto| {
        let n = NodeProto {
            domain: Some(domain.into()),
            ..n
        };
        let outputs = n.output.join(" ");
        let x = vec![
            value("x", F32, dims),
            value("last", 6, &["b"]),
            value("all", 6, &[]),
        ];
        model(17, graph(x, weights, vec![n], &outputs))
    };
    let zeros = |name: &str, dims: &[i64]| {
        let count = dims.iter().product::<i64>() as usize;
        floats(name, dims, &vec![0.0; count])
    };
    let ms = "com.microsoft";
    let (image, rows) = (["b", "8", "4", "4"], ["b", "s", "8"]);
    let fused = vec![text("activation", "LeakyRelu")];
    let heads = |kv: bool| {
        let own = vec![int("num_heads", 2), int("unidirectional", 1)];
        let shared = vec![int("num_heads", 2), int("kv_num_heads", 1)];
        if kv { shared } else { own }
    };
    vec![
        (
            "fused_conv",
            model(
                ms,
                &image,
                vec![zeros("w", &[2, 8, 1, 1])],
                node("FusedConv", "x w", "y", fused),
            ),
        ),
        (
            "blocked",
            model(
                "com.microsoft.nchwc",
                &image,
                vec![zeros("w", &[16, 8, 1, 1])],
                node("Conv", "x w", "y", vec![]),
            ),
        ),
        (
            "simplified_norm",
            model(
                "",
                &rows,
                vec![zeros("g", &[8])],
                node(
                    "SimplifiedLayerNormalization",
                    "x g",
                    "y d",
                    vec![int("axis", 2)],
                ),
            ),
        ),
        (
            "skip_norm",
            model(
                ms,
                &rows,
                vec![zeros("g", &[8])],
                node(
                    "SkipSimplifiedLayerNormalization",
                    "x x g",
                    "y _ _ s",
                    vec![],
                ),
            ),
        ),
        (
            "packed_attention",
            model(
                ms,
                &rows,
                vec![zeros("w", &[8, 24])],
                node("Attention", "x w _ last", "y", heads(false)),
            ),
        ),
        (
            "group_query",
            model(
                ms,
                &["b", "s", "32"],
                vec![],
                node(
                    "GroupQueryAttention",
                    "x _ _ _ _ last all",
                    "y k v",
                    heads(true),
                ),
            ),
        ),
    ]
}

fn safetensors() -> Vec<u8> {
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"I8","shape":[3],"data_offsets":[8,11]},"__metadata__":{"format":"pt"}}"#;
    let len = (header.len() as u64).to_le_bytes();
    [&len, header.as_bytes(), &[0; 11]].concat()
}

/// A sparse weight, stages of a pipeline, and a shape whose length only the declared rank of the result says.
fn annotated() -> ModelProto {
    let indices = raw("", I64, &[2], bytemuck::cast_slice(&[1i64, 3]).to_vec());
    let w = SparseTensorProto {
        values: Some(floats("w", &[2], &[1.5, -2.])),
        indices: Some(indices),
        dims: vec![2, 2],
    };
    let annotation = NodeDeviceConfigurationProto {
        configuration_id: Some("c".into()),
        sharding_spec: vec![],
        pipeline_stage: Some(0),
    };
    let mut add = node("Add", "x w", "a", vec![]);
    add.device_configurations = vec![annotation];
    let nodes = vec![add, node("Reshape", "a s", "y", vec![])];
    let inputs = vec![value("x", F32, &["2", "2"]), value("s", I64, &["k"])];
    let g = GraphProto {
        sparse_initializer: vec![w],
        output: vec![value("y", F32, &["", "", ""])],
        ..graph(inputs, vec![], nodes, "y")
    };
    let configuration = vec![DeviceConfigurationProto {
        name: Some("c".into()),
        num_devices: Some(1),
        device: vec!["w0".into()],
    }];
    ModelProto {
        configuration,
        ..model(17, g)
    }
}

fn seeds() -> Vec<Seed> {
    let mut models = vec![
        ("small", small()),
        ("stored", stored()),
        ("functions", functions()),
        ("branches", branches()),
        ("loops", loops()),
        ("scan", scan()),
        ("gru", gru()),
        ("shapes", shapes()),
        ("annotated", annotated()),
    ];
    models.extend(older());
    models.extend(of_onnx_runtime());
    let mut seeds: Vec<Seed> = models
        .into_iter()
        .map(|(name, m)| ("onnx", name.to_owned(), m.encode_to_vec()))
        .collect();
    let typed = TensorProto {
        raw_data: None,
        int32_data: vec![1, 0],
        ..raw("t", 9, &[2], vec![])
    };
    let half = raw("h", F16, &[2], vec![0, 0x3c, 0, 0x40]);
    for (name, t) in [("typed", typed), ("raw", half)] {
        seeds.push(("tensor", name.to_owned(), t.encode_to_vec()));
    }
    seeds.push(("safetensors", "two".to_owned(), safetensors()));
    seeds
}

#[test]
fn seeds_are_of_the_current_formats() {
    let entries: Vec<_> = TARGETS.iter().map(|t| (t.name, t.entry)).collect();
    seed::check(&entries, seeds());
}
