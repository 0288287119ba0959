//! Tests of the domain of classical models: how its attributes are imported, and which models are refused.

use convoke_graph::DType;

use super::*;

fn learned(n: NodeProto) -> ModelProto {
    let n = NodeProto {
        domain: Some("ai.onnx.ml".into()),
        ..n
    };
    let mut m = one(18, &["b", "2"], n);
    m.opset_import.push(opset("ai.onnx.ml", 3));
    m
}

fn list(name: &str, v: &[f32]) -> AttributeProto {
    AttributeProto {
        floats: v.to_vec(),
        ..attr(name, AttributeType::Floats)
    }
}

fn words(name: &str, v: &[&str]) -> AttributeProto {
    AttributeProto {
        strings: v.iter().map(|s| s.as_bytes().to_vec()).collect(),
        ..attr(name, AttributeType::Strings)
    }
}

/// A regressor of one tree: `x[1] <= 0.5` leads to a leaf, and otherwise `x[0] < 0` to one of two others.
fn tree(change: impl Fn(&mut Vec<AttributeProto>)) -> ModelProto {
    let mut attributes = vec![
        ints("nodes_treeids", &[0, 0, 0, 0, 0]),
        ints("nodes_nodeids", &[4, 0, 1, 2, 3]),
        ints("nodes_featureids", &[0, 1, 0, 0, 0]),
        words(
            "nodes_modes",
            &["LEAF", "BRANCH_LEQ", "BRANCH_LT", "LEAF", "LEAF"],
        ),
        list("nodes_values", &[0., 0.5, 0., 0., 0.]),
        ints("nodes_truenodeids", &[0, 2, 3, 0, 0]),
        ints("nodes_falsenodeids", &[0, 1, 4, 0, 0]),
        ints("target_treeids", &[0, 0, 0]),
        ints("target_nodeids", &[2, 3, 4]),
        ints("target_ids", &[0, 0, 0]),
        list("target_weights", &[1., 2., 3.]),
        int("n_targets", 1),
    ];
    change(&mut attributes);
    learned(node("TreeEnsembleRegressor", "x", "y", attributes))
}

fn set(attributes: &mut [AttributeProto], a: AttributeProto) {
    let at = attributes.iter().position(|b| b.name == a.name).unwrap();
    attributes[at] = a;
}

#[test]
fn trees_become_tables_that_lead_forward() {
    let f = import(&tree(|_| {}));
    assert_eq!(
        lines(&f)[0],
        "TreeEnsemble(x, [1, 0], [0, 1], [0.5, 0.0], [-2, 1, -3, -1], [0], [0, 1, 2, 3], [0, 0, 0], [3.0, 1.0, 2.0])"
    );
    assert_eq!(f.ty(f.results[0].1).to_string(), "f32[b, 1]");
}

#[test]
fn trees_that_are_none_are_refused() {
    let check = |a: AttributeProto, why: &str| {
        let m = tree(|attributes| set(attributes, a.clone()));
        let e = try_import(&m).expect_err(why).to_string();
        assert!(e.contains(why), "{e}");
    };
    check(ints("nodes_falsenodeids", &[0, 1, 0, 0, 0]), "has a cycle");
    check(
        ints("nodes_falsenodeids", &[0, 1, 9, 0, 0]),
        "has no node 9",
    );
    check(ints("nodes_nodeids", &[4, 0, 1, 2, 2]), "has two nodes 2");
    check(ints("nodes_treeids", &[0, 0, 0]), "instead of 3");
    check(
        ints("nodes_featureids", &[0, 2, 0, 0, 0]),
        "compares feature 2",
    );
    check(
        ints("nodes_featureids", &[0, -1, 0, 0, 0]),
        "compares feature -1",
    );
    check(ints("target_ids", &[0, 1, 0]), "target 1 of 1");
    check(ints("target_nodeids", &[2, 3, 7]), "weight of node 7");
    check(list("target_weights", &[1.]), "instead of 3");
    check(int("n_targets", 0), "target 0 of 0");
    check(int("n_targets", i64::MAX), "n_targets");
    let modes = ["LEAF", "BRANCH_LEQ", "BRANCH_MAYBE", "LEAF", "LEAF"];
    check(words("nodes_modes", &modes), "BRANCH_MAYBE");
}

#[test]
fn nodes_that_no_root_leads_to_are_left_out() {
    // Nothing leads to node 1, which is listed after the root.
    let f = import(&tree(|attributes| {
        set(attributes, ints("nodes_falsenodeids", &[0, 4, 3, 0, 0]));
    }));
    assert_eq!(
        lines(&f)[0],
        "TreeEnsemble(x, [1], [0], [0.5], [-2, -1], [0], [0, 1, 2, 3], [0, 0, 0], [3.0, 1.0, 2.0])"
    );
}

#[test]
fn trees_of_doubles_compare_doubles() {
    let doubles = |name: &str, v: &[f64]| {
        let bytes = v.iter().flat_map(|x| x.to_le_bytes()).collect();
        let t = raw("", F64, &[v.len() as i64], bytes);
        tensor_attr(name, t)
    };
    let wide = |name: &str, given: AttributeProto| {
        let f = import(&tree(|attributes| {
            attributes.retain(|a| a.name() != name);
            attributes.push(given.clone());
        }));
        let of = &f.nodes[0].op;
        let ensemble = f.nodes.iter().find(|n| &*n.op == "TreeEnsemble");
        let x = ensemble.unwrap().inputs[0].unwrap();
        assert_eq!(f.ty(f.results[0].1).to_string(), "f32[b, 1]");
        (of.to_string(), f.ty(x).dtype)
    };
    let splits = doubles("nodes_values_as_tensor", &[0., 0.1, 0., 0., 0.]);
    let weights = doubles("target_weights_as_tensor", &[0.1, 0.2, 0.3]);
    let cast = ("Cast".to_owned(), DType::F64);
    assert_eq!(wide("nodes_values", splits), cast);
    assert_eq!(wide("target_weights", weights), cast);
    let single = list("nodes_values", &[0., 0.1, 0., 0., 0.]);
    let (first, dtype) = wide("nodes_values", single);
    assert_eq!((&*first, dtype), ("TreeEnsemble", DType::F32));
}

#[test]
fn a_single_score_has_one_base_value() {
    let base = |v: &[f32]| {
        let mut m = tree(|_| {});
        let n = &mut m.graph.as_mut().unwrap().node[0];
        n.op_type = Some("TreeEnsembleClassifier".into());
        n.attribute.retain(|a| a.name() != "n_targets");
        for a in &mut n.attribute {
            a.name = a
                .name
                .as_ref()
                .map(|name| name.replace("target_", "class_"));
        }
        n.attribute.push(list("base_values", v));
        n.attribute.push(ints("classlabels_int64s", &[4, 5]));
        n.output = names("y scores");
        try_import(&m).map(|made| lines(&made.function))
    };
    let one = base(&[0.25]).unwrap();
    assert!(one.iter().any(|line| line.contains("[0.25]")), "{one:?}");
    // With two base values ONNX Runtime and ONNX's reference give different scores.
    let e = base(&[0.25, 0.25]).unwrap_err().to_string();
    assert!(
        e.contains("2 base values for 2 classes of which one has scores"),
        "{e}"
    );
}

#[test]
fn zipped_scores_stay_a_matrix() {
    let zipped = |columns: &str, labels: AttributeProto| {
        let mut m = learned(node("ZipMap", "x", "y", vec![labels]));
        let g = m.graph.as_mut().unwrap();
        g.input = vec![value("x", F32, &["b", columns])];
        try_import(&m)
    };
    let made = zipped("2", ints("classlabels_int64s", &[0, 5])).unwrap();
    let f = &made.function;
    assert_eq!(f.ty(f.results[0].1).to_string(), "f32[b, 2]");
    let says = "output 'y' is a matrix instead of a list of maps; its columns are: ";
    assert_eq!(made.remarks, [format!("{says}0, 5")]);
    let made = zipped("c", words("classlabels_strings", &["no", "y\nes"])).unwrap();
    assert_eq!(made.remarks, [format!("{says}'no', 'y\\nes'")]);
    let made = zipped("20", ints("classlabels_int64s", &Vec::from_iter(0..20))).unwrap();
    assert!(
        made.remarks[0]
            .ends_with(": 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, and 4 more")
    );
    let e = zipped("3", ints("classlabels_int64s", &[0, 5])).unwrap_err();
    assert!(
        e.to_string().contains("2 class labels for other columns"),
        "{e}"
    );
    let e = zipped("2", text("other", "")).unwrap_err();
    assert!(e.to_string().contains("no class labels"), "{e}");
    let e = try_import(&learned(node("CastMap", "x", "y", vec![]))).unwrap_err();
    assert!(e.to_string().contains("its operand is no map"), "{e}");
    let e = try_import(&learned(node("Guess", "x", "y", vec![]))).unwrap_err();
    assert!(e.to_string().contains("ai.onnx.ml.Guess"), "{e}");
    // The registry's own forms are no ops of ONNX.
    let e = try_import(&one(
        18,
        &["b", "2"],
        node("TreeEnsemble", "x", "y", vec![]),
    ));
    assert!(e.unwrap_err().to_string().contains("TreeEnsemble"));
}

const STR: i32 = 8;
const F64: i32 = 11;

/// A model of one node that reads the map `x`.
fn of_map(keys: i32, values: i32, n: NodeProto) -> ModelProto {
    let mut m = learned(n);
    let value_type = value("", values, &[]).r#type.map(Box::new);
    let map = type_proto::Map {
        key_type: Some(keys),
        value_type,
    };
    let value = Some(type_proto::Value::MapType(Box::new(map)));
    let g = m.graph.as_mut().unwrap();
    g.input = vec![ValueInfoProto {
        name: Some("x".into()),
        r#type: Some(TypeProto { value }),
    }];
    m
}

#[test]
fn a_map_is_two_lists() {
    let check = |keys, values, n: NodeProto, want: &[&str], ty: &str| {
        let made = try_import(&of_map(keys, values, n)).unwrap();
        let f = &made.function;
        let names: Vec<&str> = f.params.iter().map(|p| &*f.value(*p).name).collect();
        assert_eq!(names, ["x.keys", "x.values"]);
        assert_eq!(lines(f), want);
        assert_eq!(f.ty(f.results[0].1).to_string(), ty);
        let says = "input 'x' is a map, which is given as two lists of one length: its keys 'x.keys' and its values 'x.values'";
        assert_eq!(made.remarks, [says]);
    };
    let cast = |attrs: Vec<AttributeProto>| node("CastMap", "x", "y", attrs);
    let want = [
        "Shape(x.keys)",
        "TopK(x.keys, y_node/Shape)",
        "Gather(x.values, y_node/TopK.1)",
        "Unsqueeze(y_node/Gather, [0])",
    ];
    check(I64, F32, cast(vec![]), &want, "f32[1, x.entries]");
    let want = [
        "Cast(x.values)",
        "Min(x.keys, 3)",
        "Less(x.keys, 0)",
        "Where(y_node/Less, 4, y_node/Min)",
        "Expand(string[], [4])",
        "ScatterElements(y_node/Expand, y_node/Where, y_node/Cast)",
        "Slice(y_node/ScatterElements, [0], [3], [0])",
        "Unsqueeze(y_node/Slice, [0])",
    ];
    let sparse = |columns| {
        let form = [text("map_form", "SPARSE"), text("cast_to", "TO_STRING")];
        cast(form.into_iter().chain([int("max_map", columns)]).collect())
    };
    check(I64, F32, sparse(3), &want, "string[1, 3]");
    // Each column of a word that stands twice in the vocabulary has its value.
    let of_words = words("string_vocabulary", &["b", "a", "b"]);
    let want = [
        "LabelEncoder(x.keys, string[2], [0, 1], 2)",
        "Expand([0.0], [3])",
        "ScatterElements(y_node/Expand, y_node/LabelEncoder, x.values)",
        "Gather(y_node/ScatterElements, [1, 0, 1])",
        "Unsqueeze(y_node/Gather, [0])",
    ];
    let n = node("DictVectorizer", "x", "y", vec![of_words]);
    check(STR, F32, n, &want, "f32[1, 3]");
    let n = node(
        "DictVectorizer",
        "x",
        "y",
        vec![ints("int64_vocabulary", &[7])],
    );
    let f = import(&of_map(I64, STR, n));
    assert_eq!(f.ty(f.results[0].1).to_string(), "string[1, 1]");
}

#[test]
fn other_readers_of_a_map_are_refused() {
    let refused = |m: &ModelProto, why: &str| {
        let e = try_import(m).expect_err(why).to_string();
        assert!(e.contains(why), "{e}");
    };
    let reads = |op: &str, attrs: Vec<AttributeProto>| of_map(I64, F32, node(op, "x", "y", attrs));
    refused(&reads("Scaler", vec![]), "can read a map");
    let mut m = reads("Identity", vec![]);
    m.graph.as_mut().unwrap().node[0].domain = None;
    refused(&m, "can read a map");
    // The map itself as an output of the graph, or of a branch.
    let mut m = reads("CastMap", vec![]);
    let g = m.graph.as_mut().unwrap();
    g.output = vec![value("x", F32, &[])];
    refused(&m, "can read a map");
    let branch = || GraphProto {
        output: vec![value("x", F32, &[])],
        ..GraphProto::default()
    };
    let branches = vec![
        graph_attr("then_branch", branch()),
        graph_attr("else_branch", branch()),
    ];
    let mut m = reads("CastMap", vec![]);
    let g = m.graph.as_mut().unwrap();
    g.initializer = vec![raw("c", BOOL, &[], vec![1])];
    g.node = vec![node("If", "c", "y", branches)];
    refused(&m, "can read a map");
    let cast = |name: &str, v: &str| reads("CastMap", vec![text(name, v)]);
    refused(&cast("cast_to", "TO_INT8"), "cast_to");
    refused(&cast("map_form", "LOOSE"), "map_form");
    let sparse = |n| {
        reads(
            "CastMap",
            vec![text("map_form", "SPARSE"), int("max_map", n)],
        )
    };
    refused(&sparse(0), "max_map");
    refused(&sparse(i64::MAX), "max_map");
    refused(
        &of_map(STR, F32, node("CastMap", "x", "y", vec![])),
        "keys of string",
    );
    refused(&reads("DictVectorizer", vec![]), "no vocabulary");
    let words = words("string_vocabulary", &["a"]);
    refused(&reads("DictVectorizer", vec![words]), "for keys of i64");
    refused(
        &of_map(F64, F32, node("CastMap", "x", "y", vec![])),
        "keys of f64",
    );
    let mut m = reads("CastMap", vec![]);
    let g = m.graph.as_mut().unwrap();
    g.input.push(value("x.keys", F32, &[]));
    refused(&m, "x.keys");
}

#[test]
fn coefficients_have_to_fit() {
    let check = |op: &str, attributes: Vec<AttributeProto>, why: &str| {
        let e = try_import(&learned(node(op, "x", "y", attributes))).expect_err(why);
        assert!(e.to_string().contains(why), "{op}: {e}");
    };
    let three = || list("coefficients", &[1., 2., 3.]);
    check(
        "LinearRegressor",
        vec![three()],
        "3 coefficients for 1 targets",
    );
    check(
        "LinearRegressor",
        vec![three(), int("targets", -1)],
        "targets",
    );
    check(
        "LinearRegressor",
        vec![three(), int("targets", 0)],
        "targets",
    );
    let two = || list("coefficients", &[1., 2.]);
    check(
        "LinearRegressor",
        vec![two(), list("intercepts", &[1., 2.])],
        "2 intercepts",
    );
    check("LinearClassifier", vec![two()], "no class labels");
    check("Scaler", vec![list("scale", &[1., 2., 3.])], "");
    check("Normalizer", vec![text("norm", "L3")], "MAX, L1 or L2");
    check("Imputer", vec![], "has no values");
    check(
        "Imputer",
        vec![list("imputed_value_floats", &[])],
        "has no values",
    );
    check(
        "Imputer",
        vec![list("imputed_value_floats", &[1., 2., 3.])],
        "has 3 numbers for ",
    );
    check(
        "FeatureVectorizer",
        vec![ints("inputdimensions", &[2, 2])],
        "inputdimensions",
    );
    check("LabelEncoder", vec![], "no keys");
    let keys = || list("keys_floats", &[1., 2.]);
    check(
        "LabelEncoder",
        vec![keys(), list("values_floats", &[1.])],
        "2 keys and 1 values",
    );
    check(
        "LabelEncoder",
        vec![ints("keys_int64s", &[1]), list("values_floats", &[1.])],
        "keys of i64",
    );
    check("OneHotEncoder", vec![], "no categories");
    check(
        "OneHotEncoder",
        vec![words("cats_strings", &["a"])],
        "categories of string for f32",
    );
}

#[test]
fn lists_do_not_stretch_a_feature() {
    let with = |op: &str, attribute: &str, numbers: &[f32], features: &str| {
        let n = node(op, "x", "y", vec![list(attribute, numbers)]);
        let mut m = learned(n);
        m.graph.as_mut().unwrap().input = vec![value("x", F32, &["b", features])];
        try_import(&m)
    };
    for (op, attribute) in [("Imputer", "imputed_value_floats"), ("Scaler", "scale")] {
        let with = |numbers: &[f32], features: &str| with(op, attribute, numbers, features);
        for (numbers, features, ty) in [
            (&[1.][..], "1", "f32[b, 1]"),
            (&[1.], "f", "f32[b, f]"),
            (&[1., 2., 3.], "f", "f32[b, 3]"),
        ] {
            let f = with(numbers, features).unwrap().function;
            assert_eq!(f.ty(f.results[0].1).to_string(), ty);
            // A call checks the number of features that is not known.
            let checks = f.nodes.iter().any(|n| &*n.op == "Reshape");
            assert_eq!(checks, numbers.len() > 1, "{:?}", lines(&f));
        }
        let e = with(&[1., 2., 3.], "1").unwrap_err().to_string();
        assert!(e.contains("has 3 numbers for "), "{e}");
    }
}

#[test]
fn vectors_have_the_wanted_columns() {
    let check = |columns: &str, wanted: i64, want: &[&str]| {
        let wanted = ints("inputdimensions", &[wanted]);
        let mut m = learned(node("FeatureVectorizer", "x", "y", vec![wanted]));
        m.graph.as_mut().unwrap().input = vec![value("x", F32, &["b", columns])];
        let f = import(&m);
        assert_eq!(lines(&f)[..f.nodes.len() - 1], *want);
    };
    check("2", 2, &[]);
    check("2", 1, &["Slice(x, [0], [1], [1])"]);
    check("2", 3, &["Pad(x, [0, 0, 0, 1])"]);
    let open = ["Pad(x, [0, 0, 0, 3])", "Slice(y_node/Pad, [0], [3], [1])"];
    check("f", 3, &open);
}

#[test]
fn single_targets_are_not_transformed() {
    let one_leaf = |post_transform: i64| {
        let modes = raw("", 2, &[1], vec![0]);
        let number = |v: f32| floats("", &[1], &[v]);
        let n = node(
            "TreeEnsemble",
            "x",
            "y",
            vec![
                ints("nodes_featureids", &[0]),
                ints("tree_roots", &[0]),
                ints("nodes_truenodeids", &[0]),
                ints("nodes_falsenodeids", &[0]),
                ints("nodes_trueleafs", &[1]),
                ints("nodes_falseleafs", &[1]),
                ints("leaf_targetids", &[0]),
                tensor_attr("nodes_modes", modes),
                tensor_attr("nodes_splits", number(0.5)),
                tensor_attr("leaf_weights", number(2.)),
                int("n_targets", 1),
                int("post_transform", post_transform),
            ],
        );
        let mut m = learned(n);
        m.opset_import.retain(|o| o.domain() != "ai.onnx.ml");
        m.opset_import.push(opset("ai.onnx.ml", 5));
        let f = import(&m);
        lines(&f).len()
    };
    let plain = one_leaf(0);
    assert_eq!([1, 2, 3].map(one_leaf), [plain; 3]);
    assert!(one_leaf(4) > plain);
}

#[test]
fn of_equal_keys_the_first_or_the_last_counts() {
    let check = |version, elem, op: &str, attributes: Vec<AttributeProto>, want: &str| {
        let mut m = learned(node(op, "x", "y", attributes));
        m.opset_import.retain(|o| o.domain() != "ai.onnx.ml");
        m.opset_import.push(opset("ai.onnx.ml", version));
        m.graph.as_mut().unwrap().input = vec![value("x", elem, &["b"])];
        let f = import(&m);
        assert!(lines(&f)[0].starts_with(want), "{:?}", lines(&f));
    };
    check(
        2,
        I64,
        "LabelEncoder",
        vec![
            ints("keys_int64s", &[5, 6, 5]),
            ints("values_int64s", &[1, 2, 3]),
        ],
        "LabelEncoder(x, [5, 6], [1, 2]",
    );
    const STRING: i32 = 8;
    let twice = |name: &str| words(name, &["a", "b", "a"]);
    check(
        1,
        STRING,
        "CategoryMapper",
        vec![ints("cats_int64s", &[5, 6, 7]), twice("cats_strings")],
        "LabelEncoder(x, string[2], [7, 6]",
    );
    check(
        1,
        STRING,
        "LabelEncoder",
        vec![twice("classes_strings")],
        "LabelEncoder(x, string[2], [2, 1]",
    );
}

#[test]
fn lists_may_have_millions_of_numbers() {
    let n = 17 << 17;
    let keys: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let attributes = vec![
        list("keys_floats", &keys),
        ints("values_int64s", &vec![1; n]),
    ];
    let f = import(&learned(node("LabelEncoder", "x", "y", attributes)));
    assert_eq!(f.ty(f.results[0].1).to_string(), "i64[b, 2]");
}

#[test]
fn a_long_default_is_no_inline_literal() {
    let m = learned(node(
        "LabelEncoder",
        "x",
        "y",
        vec![
            list("keys_floats", &[1.]),
            words("values_strings", &["a"]),
            text("default_string", &"?".repeat(1 << 16)),
        ],
    ));
    let f = import(&m);
    let inline = |l: &Literal| matches!(l, Literal::Inline(t) if t.byte_len() > 4096);
    assert!(!f.literals.iter().any(|(_, l)| inline(l)));
}

#[test]
fn tables_of_functions_cannot_grow_without_bound() {
    let n = 1 << 15;
    let tables = |keys: Vec<u8>, elem: i32| {
        let values = raw("v", I64, &[n], vec![0; 8 * n as usize]);
        NodeProto {
            domain: Some("ai.onnx.ml".into()),
            ..node(
                "LabelEncoder",
                "x",
                "y",
                vec![
                    tensor_attr("keys_tensor", raw("k", elem, &[n], keys)),
                    tensor_attr("values_tensor", values),
                ],
            )
        }
    };
    let keys = (0..n).flat_map(|i| i.to_le_bytes()).collect::<Vec<_>>();
    let call = |f: usize, input: &str, output: &str| NodeProto {
        domain: Some("f".into()),
        ..node(&format!("f{f}"), input, output, vec![])
    };
    let sets = || vec![opset("", 18), opset("f", 1), opset("ai.onnx.ml", 4)];
    let function = |i: usize| FunctionProto {
        name: Some(format!("f{i}")),
        domain: Some("f".into()),
        input: names("x"),
        output: names("y"),
        opset_import: sets(),
        node: match i {
            0 => vec![tables(keys.clone(), I64)],
            _ => vec![call(i - 1, "x", "a"), call(i - 1, "a", "y")],
        },
        ..FunctionProto::default()
    };
    let m = |levels: usize| {
        let x = vec![value("x", I64, &["2"])];
        let g = graph(x, vec![], vec![call(levels - 1, "x", "y")], "y");
        ModelProto {
            opset_import: sets(),
            functions: (0..levels).map(function).collect(),
            ..model(18, g)
        }
    };
    assert_eq!(import(&m(2)).nodes.len(), 2);
    let e = try_import(&m(8)).unwrap_err();
    assert!(matches!(e, ModelError::TooLarge { .. }), "{e}");
}

#[test]
fn pairs_of_classes_vote_and_may_be_coupled() {
    let machine = |classes: i64, per_class: &[i64], more: Vec<AttributeProto>| {
        let count = per_class.iter().sum::<i64>();
        let pairs = (classes * (classes - 1) / 2) as usize;
        let coefficients = ((classes - 1) * count) as usize;
        let signs = (0..coefficients)
            .map(|k| [1., -1.][k % 2])
            .collect::<Vec<_>>();
        let labels: Vec<i64> = (0..classes).collect();
        let attributes = vec![
            text("kernel_type", "RBF"),
            list("kernel_params", &[0.5, 0., 3.]),
            list("support_vectors", &vec![1.; 2 * count as usize]),
            list("coefficients", &signs),
            list("rho", &vec![0.5; pairs]),
            ints("vectors_per_class", per_class),
            ints("classlabels_ints", &labels),
        ];
        learned(node(
            "SVMClassifier",
            "x",
            "label scores",
            [attributes, more].concat(),
        ))
    };
    let check = |m: &ModelProto, scores: &str, loops: usize| {
        let f = import(m);
        let types: Vec<String> = f
            .results
            .iter()
            .map(|(_, id)| f.ty(*id).to_string())
            .collect();
        assert_eq!(types, ["i64[b]", scores]);
        assert_eq!(f.nodes.iter().filter(|n| &*n.op == "Loop").count(), loops);
    };
    let likely = |pairs: usize| {
        vec![
            list("prob_a", &vec![-1.; pairs]),
            list("prob_b", &vec![0.; pairs]),
        ]
    };
    check(&machine(2, &[1, 2], vec![]), "f32[b, 2]", 0);
    check(&machine(3, &[1, 2, 1], vec![]), "f32[b, 3]", 0);
    check(&machine(4, &[1, 2, 1, 1], vec![]), "f32[b, 6]", 0);
    check(&machine(4, &[1, 2, 1, 1], likely(6)), "f32[b, 4]", 1);
    let refused = |m: &ModelProto, cause: &str| {
        let e = try_import(m).expect_err(cause).to_string();
        assert!(e.contains(cause), "{e}");
    };
    refused(&machine(3, &[1, 2], vec![]), "vectors_per_class");
    refused(&machine(3, &[1, 2, 1], likely(2)), "coefficients");
    let softmax = || vec![text("post_transform", "SOFTMAX")];
    refused(&machine(2, &[1, 2], softmax()), "transform of a single");
    let f = import(&machine(3, &[1, 2, 1], softmax()));
    assert!(f.nodes.iter().any(|n| &*n.op == "Softmax"));
}

#[test]
fn classes_without_support_vectors_have_linear_scores() {
    let machine = |classes: i64, coefficients: &[f32], rho: &[f32]| {
        let attributes = vec![
            list("coefficients", coefficients),
            list("rho", rho),
            ints("classlabels_ints", &Vec::from_iter(0..classes)),
            text("post_transform", "LOGISTIC"),
        ];
        learned(node("SVMClassifier", "x", "label scores", attributes))
    };
    let f = import(&machine(3, &[1., 2., 3., 4., 5., 6.], &[0.5]));
    assert_eq!(f.ty(f.results[0].1).to_string(), "i64[b]");
    assert_eq!(f.ty(f.results[1].1).to_string(), "f32[b, 3]");
    let ops = |f: &Function| Vec::from_iter(f.nodes.iter().map(|n| n.op.to_string()));
    let of_three = [
        "Cast", "MatMul", "Add", "ArgMax", "Gather", "Sigmoid", "Cast",
    ];
    assert_eq!(ops(&f), of_three);
    let of_two = ops(&import(&machine(2, &[1., -2., 3., 4.], &[0.5])));
    assert!(of_two.contains(&"Max".to_owned()), "{of_two:?}");
    let refused = |m: &ModelProto, cause: &str| {
        let e = try_import(m).expect_err(cause).to_string();
        assert!(e.contains(cause), "{e}");
    };
    refused(&machine(3, &[1., 2., 3., 4.], &[0.5]), "4 coefficients");
    refused(&machine(3, &[1.; 6], &[]), "rho");
}
