//! Tests of files that are damaged, truncated, or malicious.

use super::super::wire;
use super::*;

fn small() -> ModelProto {
    let w = floats("w", &[2, 2], &[1., 2., 3., 4.]);
    let g = graph(
        vec![value("x", F32, &["n", "2"])],
        vec![w],
        vec![
            node("MatMul", "x w", "a", vec![]),
            node("Softmax", "a", "y", vec![int("axis", -1)]),
        ],
        "y",
    );
    ModelProto {
        functions: vec![FunctionProto::default()],
        ..model(17, g)
    }
}

fn load_bytes(s: &Scratch, bytes: &[u8]) -> Result<ImportedModel, ModelError> {
    load(&s.write("m.onnx", bytes), &options(s))
}

#[test]
fn cut_anywhere_it_is_an_error_or_still_whole() {
    let s = Scratch::new();
    let whole = small().encode_to_vec();
    load_bytes(&s, &whole).unwrap();
    for len in 0..whole.len() {
        if let Err(e) = load_bytes(&s, &whole[..len]) {
            assert_eq!(e.code(), Code::InvalidModel, "{len}: {e}");
        }
    }
    let e = load_bytes(&s, &whole[..whole.len() / 2]).unwrap_err();
    assert!(matches!(e, ModelError::Truncated { .. }), "{e}");
}

#[test]
fn any_byte_may_be_anything() {
    let s = Scratch::new();
    let whole = small().encode_to_vec();
    for at in 0..whole.len() {
        for bits in [0xff, 0x80, 0x01, 0x55] {
            let mut broken = whole.clone();
            broken[at] ^= bits;
            // Any result will do, as long as the call returns.
            let _ = load_bytes(&s, &broken);
        }
    }
}

#[test]
fn what_is_no_model_is_called_that() {
    let s = Scratch::new();
    let check = |bytes: &[u8]| {
        let e = load_bytes(&s, bytes).unwrap_err();
        assert!(matches!(e, ModelError::NotOnnx { .. }), "{e}");
        assert_eq!(e.code(), Code::InvalidModel);
    };
    check(b"");
    check(b"PK\x03\x04 some zip file");
    check(b"<!DOCTYPE html><html>");
    check(b"{\"model\": 1}");
    check(&[0xff; 100]);
    check(&[0; 100]);
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    assert!(matches!(
        load_bytes(&s, pointer).unwrap_err(),
        ModelError::LfsPointer { .. }
    ));
    let missing = load(&s.path().join("none.onnx"), &options(&s)).unwrap_err();
    assert!(matches!(missing, ModelError::Missing { .. }));
    let folder = load(s.path(), &options(&s)).unwrap_err();
    assert!(matches!(folder, ModelError::NotAFile { .. }));
}

/// A message with one field that claims `len` bytes.
fn claims(number: u32, len: u64) -> Vec<u8> {
    let mut out = Vec::new();
    wire::put_varint(u64::from(number) << 3 | 2, &mut out);
    wire::put_varint(len, &mut out);
    out
}

#[test]
fn huge_lengths_allocate_nothing() {
    let s = Scratch::new();
    for len in [1 << 20, 1 << 40, u64::MAX - 3, u64::MAX] {
        let mut bytes = vec![8, 8];
        bytes.extend(claims(7, len));
        let e = load_bytes(&s, &bytes).unwrap_err();
        assert!(matches!(e, ModelError::Truncated { .. }), "{e}");
        // The same claim inside a message that is itself intact.
        let mut bytes = vec![8, 8];
        wire::put_bytes(7, &claims(5, len), &mut bytes);
        bytes.extend([0x42, 0]);
        let e = load_bytes(&s, &bytes).unwrap_err();
        assert!(matches!(e, ModelError::Malformed { .. }), "{e}");
    }
}

#[test]
fn deep_nesting_ends() {
    let s = Scratch::new();
    let mut bytes = Vec::new();
    for _ in 0..10_000 {
        // Each round nests a graph in an attribute of a node of a graph.
        let mut outer = Vec::new();
        wire::put_bytes(6, &bytes, &mut outer);
        let mut node = Vec::new();
        wire::put_bytes(5, &outer, &mut node);
        bytes.clear();
        wire::put_bytes(1, &node, &mut bytes);
    }
    let mut file = vec![8, 8];
    wire::put_bytes(7, &bytes, &mut file);
    let e = load_bytes(&s, &file).unwrap_err();
    assert!(
        matches!(
            e,
            ModelError::TooLarge {
                what: "levels of nesting",
                ..
            }
        ),
        "{e}"
    );
}

/// Imports a model of a node that nothing reads, which has an attribute with this many equal strings.
fn load_strings(s: &Scratch, string: &[u8], count: usize) -> Result<ImportedModel, ModelError> {
    let mut element = Vec::new();
    wire::put_bytes(9, string, &mut element);
    let a = AttributeProto {
        name: Some("cats_strings".into()),
        ..AttributeProto::default()
    };
    let mut strings = a.encode_to_vec();
    strings.extend(element.repeat(count));
    let mut n = node("Nothing", "x", "y", vec![]).encode_to_vec();
    wire::put_bytes(5, &strings, &mut n);
    let mut g = Vec::new();
    wire::put_bytes(1, &n, &mut g);
    let mut file = vec![8, 8];
    wire::put_bytes(7, &g, &mut file);
    wire::put_bytes(8, &small().opset_import[0].encode_to_vec(), &mut file);
    load_bytes(s, &file)
}

#[test]
fn lists_take_memory_by_the_length_of_the_file() {
    let s = Scratch::new();
    let count = (1 << 22) + 100;
    let e = load_strings(&s, b"", count).unwrap_err();
    let what = "bytes of lists in attributes";
    assert!(
        matches!(e, ModelError::TooLarge { what: w, .. } if w == what),
        "{e}"
    );
    load_strings(&s, b"LEAF", count).unwrap();
}

#[test]
fn a_list_as_long_as_a_huge_file_is_refused() {
    let s = Scratch::new();
    let packed = 1u64 << 30;
    let varint = |v: u64| {
        let mut out = Vec::new();
        wire::put_varint(v, &mut out);
        out
    };
    // The file ends with the integers of an attribute of a node of the graph. They are a hole of the file.
    let mut head = Vec::new();
    let mut behind = packed;
    for field in [8u64, 5, 1, 7] {
        head = [varint(field << 3 | 2), varint(behind), head].concat();
        behind = packed + head.len() as u64;
    }
    let path = s.write("m.onnx", &head);
    let file = std::fs::File::options().append(true).open(&path).unwrap();
    file.set_len(behind).unwrap();
    let e = load(&path, &options(&s)).unwrap_err();
    assert!(
        e.to_string().contains("bytes of lists in attributes"),
        "{e}"
    );
}

#[test]
fn functions_of_functions_cannot_grow_without_bound() {
    let call = |f: usize, input: &str, output: &str| NodeProto {
        domain: Some("f".into()),
        ..node(&format!("f{f}"), input, output, vec![])
    };
    let function = |i: usize| FunctionProto {
        name: Some(format!("f{i}")),
        domain: Some("f".into()),
        input: names("x"),
        output: names("y"),
        opset_import: vec![opset("", 17), opset("f", 1)],
        node: match i {
            0 => vec![node("Relu", "x", "y", vec![])],
            _ => vec![call(i - 1, "x", "a"), call(i - 1, "a", "y")],
        },
        ..FunctionProto::default()
    };
    let m = |levels: usize| ModelProto {
        opset_import: vec![opset("", 17), opset("f", 1)],
        functions: (0..levels).map(function).collect(),
        ..one(17, &["2"], call(levels - 1, "x", "y"))
    };
    assert_eq!(import(&m(6)).nodes.len(), 32);
    let e = try_import(&m(24)).unwrap_err();
    assert!(matches!(e, ModelError::TooLarge { .. }), "{e}");
}

#[test]
fn a_file_cannot_forge_a_payload() {
    let w = TensorProto {
        raw_data: None,
        stored: Some(0),
        ..floats("w", &[2], &[])
    };
    let m = model(
        17,
        graph(
            vec![value("x", F32, &["2"])],
            vec![w],
            vec![node("Add", "x w", "y", vec![])],
            "y",
        ),
    );
    fails(&m, Code::InvalidModel, "1 weights without data: w");
}

#[test]
fn declared_dimensions_are_checked() {
    let with = |dims: &[i64], data: Vec<u8>| {
        let w = raw("w", F32, dims, data);
        model(
            17,
            graph(
                vec![value("x", F32, &["2"])],
                vec![w],
                vec![node("Add", "x w", "y", vec![])],
                "y",
            ),
        )
    };
    let code = Code::InvalidModel;
    fails(
        &with(&[-2], vec![0; 8]),
        code,
        "tensor 'w': dimension -2 is negative, in [-2]",
    );
    fails(
        &with(&[3], vec![0; 8]),
        code,
        "tensor 'w': f32[3] takes 12 bytes, the file has 8",
    );
    fails(
        &with(&[2], vec![0; 5000]),
        code,
        "tensor 'w': f32[2] takes 8 bytes, the file has 5000",
    );
    let huge = i64::MAX;
    let message = format!("tensor 'w': shape [{huge}, 2] of f32 is too large to allocate");
    fails(&with(&[huge, 2], vec![0; 8]), code, &message);
    fails(
        &with(&[1; 17], vec![0; 4]),
        code,
        "tensor 'w': rank 17 is above the limit of 16",
    );
    let few = TensorProto {
        raw_data: None,
        float_data: vec![0.; 5000],
        ..floats("w", &[1 << 40], &[])
    };
    let m = model(
        17,
        graph(
            vec![value("x", F32, &["2"])],
            vec![few],
            vec![node("Add", "x w", "y", vec![])],
            "y",
        ),
    );
    let message = format!(
        "tensor 'w': f32[{}] takes {} bytes, the file has 160000",
        1u64 << 40,
        1u64 << 42
    );
    fails(&m, code, &message);
}

#[test]
fn inputs_must_be_usable() {
    let relu = |v| {
        model(
            17,
            graph(vec![v], vec![], vec![node("Relu", "x", "y", vec![])], "y"),
        )
    };
    let check = |v, message: &str| fails(&relu(v), Code::InvalidModel, message);
    let unsupported = |v, message: &str| fails(&relu(v), Code::UnsupportedOp, message);
    unsupported(
        value("x", 14, &["2"]),
        "input 'x': element type COMPLEX64 is not supported",
    );
    unsupported(value("x", 0, &["2"]), "input 'x': has no element type");
    unsupported(
        value("x", 99, &["2"]),
        "input 'x': element type 99 is unknown",
    );
    let no_type = ValueInfoProto {
        r#type: None,
        ..value("x", F32, &[])
    };
    unsupported(no_type, "input 'x': is not a tensor");
    let no_shape = TypeProto {
        value: Some(type_proto::Value::TensorType(type_proto::Tensor {
            elem_type: Some(F32),
            shape: None,
        })),
    };
    let no_shape = ValueInfoProto {
        r#type: Some(no_shape),
        ..value("x", F32, &[])
    };
    check(no_shape, "input 'x': has no declared shape");
    let big = i64::MAX.to_string();
    let message = format!("input 'x': dimensions [{big}, {big}] are too large");
    check(value("x", F32, &[&big, "n", &big]), &message);
}

#[test]
fn loops_in_loops_whose_sizes_change_are_bounded() {
    // Each level is imported again until its sizes have settled, which multiplies from level to level.
    let nested = |levels: usize| {
        let mut body: Option<GraphProto> = None;
        for level in 0..levels {
            let name = |what: &str| format!("{what}{level}");
            let (s, t, d) = (name("s"), name("t"), name("d"));
            let inputs = vec![
                value(&name("i"), I64, &[]),
                value(&name("c"), 9, &[]),
                value(&s, F32, &["n"]),
            ];
            let inner = match body.take() {
                None => node("Concat", &format!("{s} x"), &t, vec![int("axis", 0)]),
                Some(g) => node(
                    "Loop",
                    &format!("_ {} {s}", name("c")),
                    &t,
                    vec![graph_attr("body", g)],
                ),
            };
            let nodes = vec![node("Identity", &name("c"), &d, vec![]), inner];
            body = Some(graph(inputs, vec![], nodes, &format!("{d} {t}")));
        }
        let body = graph_attr("body", body.unwrap());
        let inputs = vec![value("x", F32, &["2"]), value("go", 9, &[])];
        let n = node("Loop", "_ go x", "y", vec![body]);
        model(17, graph(inputs, vec![], vec![n], "y"))
    };
    import(&nested(5));
    for levels in [6, 15] {
        fails(
            &nested(levels),
            Code::InvalidModel,
            "the model has too many levels of branches and loops: at most 5 are accepted",
        );
    }
}

#[test]
fn a_condition_behind_very_many_nodes() {
    let count = 1 << 17;
    let long = |name: &str, dims: &[i64], v: i64| raw(name, I64, dims, v.to_le_bytes().to_vec());
    let mut nodes = vec![
        node("Shape", "x", "shape", vec![]),
        node("Gather", "shape zero", "size", vec![]),
        node("Equal", "size one", "c0", vec![]),
    ];
    let copy = |i| node("Identity", &format!("c{i}"), &format!("c{}", i + 1), vec![]);
    nodes.extend((0..count).map(copy));
    let squeeze = node("Squeeze", "x axes", "a", vec![]);
    let yes = graph(vec![], vec![long("axes", &[1], 0)], vec![squeeze], "a");
    let no = node("Identity", "x", "b", vec![]);
    let no = graph(vec![], vec![], vec![no], "b");
    let choice = vec![
        graph_attr("then_branch", yes),
        graph_attr("else_branch", no),
    ];
    nodes.push(node("If", &format!("c{count}"), "y", choice));
    let constants = vec![long("zero", &[], 0), long("one", &[], 1)];
    let x = vec![value("x", F32, &["n", "m"])];
    let m = model(17, graph(x, constants, nodes, "y"));
    // The comparison is looked for in a few nodes before the choice.
    assert_eq!(try_import(&m).unwrap_err().code(), Code::UnsupportedOp);
}

#[test]
fn rejected_nodes_beyond_number() {
    let wrong = |i| node("MatMul", "x x", &format!("y{i}"), vec![]);
    let nodes: Vec<NodeProto> = (0..10_000).map(wrong).collect();
    let x = vec![value("x", F32, &["2", "3"])];
    let results: Vec<String> = (0..10_000).map(|i| format!("y{i}")).collect();
    let m = model(17, graph(x, vec![], nodes, &results.join(" ")));
    match try_import(&m).unwrap_err() {
        ModelError::Graph { errors } => assert_eq!(errors.len(), 100),
        e => panic!("{e}"),
    }
}
