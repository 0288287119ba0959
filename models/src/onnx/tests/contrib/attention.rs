//! Tests of ONNX Runtime's forms of attention.

use super::*;

#[test]
fn a_cache_grows_or_keeps_its_length() {
    let check = |past: &str, total: &str, want: &str| {
        let attrs = vec![int("num_heads", 2), int("kv_num_heads", 1)];
        let n = NodeProto {
            domain: Some(MICROSOFT.into()),
            ..node(
                "GroupQueryAttention",
                "x _ _ key value last total",
                "y pk pv",
                attrs,
            )
        };
        let of_mask = [
            node("Shape", "mask", "shape", vec![int("start", 1)]),
            node("Cast", "shape", "total", vec![int("to", 6)]),
        ];
        let inputs = vec![
            value("x", F32, &["b", "s", "32"]),
            value("key", F32, &["b", "1", past, "8"]),
            value("value", F32, &["b", "1", past, "8"]),
            value("last", 6, &["b"]),
            value("mask", I64, &["b", total]),
        ];
        let nodes = of_mask.into_iter().chain([n]).collect();
        let f = import(&model(17, graph(inputs, vec![], nodes, "y pk pv")));
        assert_eq!(f.ty(f.results[0].1).to_string(), "f32[b, s, 16]");
        assert_eq!(f.ty(f.results[1].1).to_string(), want);
        assert_eq!(f.ty(f.results[2].1), f.ty(f.results[1].1));
    };
    check("24", "9", "f32[b, 1, 24, 8]");
    check("8", "9", "f32[b, 1, 9, 8]");
}

#[test]
fn attention_of_f64_is_computed_in_f64() {
    let n = NodeProto {
        domain: Some(MICROSOFT.into()),
        ..node(
            "MultiHeadAttention",
            "x x x",
            "y",
            vec![int("num_heads", 2)],
        )
    };
    let x = vec![value("x", 11, &["2", "3", "8"])];
    let f = import(&model(17, graph(x, vec![], vec![n], "y")));
    assert_eq!(f.ty(f.results[0].1).to_string(), "f64[2, 3, 8]");
    assert!(f.nodes.iter().all(|n| &*n.op != "Cast"));
}

#[test]
fn a_bias_is_added_to_packed_queries_keys_and_values() {
    let m = |x: &[&str], operands: &str| {
        let n = node(
            "MultiHeadAttention",
            operands,
            "y",
            vec![int("num_heads", 2)],
        );
        let weights = vec![zeros("k", &[2, 3, 2, 2, 4]), zeros("b", &[24])];
        of(MICROSOFT, x, weights, vec![n])
    };
    let f = import(&m(&["2", "3", "2", "3", "4"], "x _ _ b"));
    assert_eq!(number_of(&f, "Add"), 3);
    assert_eq!(f.ty(f.results[0].1).to_string(), "f32[2, 3, 8]");
    let keys = m(&["2", "3", "8"], "x k _ b");
    refused(&keys, "a bias beside packed keys and values");
}

#[test]
fn a_list_of_ends_has_beginnings_where_it_is_twice_as_long_as_the_batch() {
    let check = |batch: &str, length: &str, decisions: usize| {
        let n = NodeProto {
            domain: Some(MICROSOFT.into()),
            ..node(
                "MultiHeadAttention",
                "x x x _ mask",
                "y",
                vec![int("num_heads", 2)],
            )
        };
        let inputs = vec![
            value("x", F32, &[batch, "3", "8"]),
            value("mask", I32, &[length]),
        ];
        let f = import(&model(17, graph(inputs, vec![], vec![n], "y")));
        // One more choice is that between zero and the filter.
        assert_eq!(number_of(&f, "Where"), decisions + 1, "{batch} {length}");
    };
    for length in ["n", "5", "8"] {
        check("b", length, 1);
    }
    check("b", "b", 0);
    for length in ["2", "4", "8"] {
        check("2", length, 0);
    }
}

#[test]
fn scores_are_shown_of_the_keys_that_a_cache_holds() {
    let check = |shared: i64, scores: &str| {
        let attrs = vec![
            int("num_heads", 2),
            int("past_present_share_buffer", shared),
        ];
        let operands = "x x x _ _ past past at";
        let n = NodeProto {
            domain: Some(MICROSOFT.into()),
            ..node(
                "DecoderMaskedMultiHeadAttention",
                operands,
                "y pk pv qk",
                attrs,
            )
        };
        let inputs = vec![
            value("x", F32, &["b", "1", "8"]),
            value("past", F32, &["b", "2", "16", "4"]),
        ];
        let at = vec![raw("at", I32, &[1], 5i32.to_le_bytes().to_vec())];
        let f = import(&model(17, graph(inputs, at, vec![n], "y pk pv qk")));
        assert_eq!(f.ty(f.results[3].1).to_string(), scores);
    };
    check(0, "f32[b, 2, 1, 17]");
    check(1, "f32[b, 2, 1, 6]");
}

#[test]
fn a_mask_of_one_column_is_no_mask() {
    let ops = |mask: &[&str]| {
        let operands = match mask {
            [] => "x w",
            _ => "x w _ mask",
        };
        let n = NodeProto {
            domain: Some(MICROSOFT.into()),
            ..node("Attention", operands, "y", vec![int("num_heads", 2)])
        };
        let inputs = vec![value("x", F32, &["b", "s", "8"]), value("mask", I32, mask)];
        let weights = vec![zeros("w", &[8, 24])];
        let f = import(&model(17, graph(inputs, weights, vec![n], "y")));
        f.nodes.iter().map(|n| n.op.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ops(&["b", "1"]), ops(&[]));
    assert_ne!(ops(&["b", "s"]), ops(&[]));
}

#[test]
fn linear_attention_ignores_operands_without_use() {
    let m = |rule: &str, operands: &str| {
        let attrs = vec![
            int("q_num_heads", 2),
            int("kv_num_heads", 2),
            text("update_rule", rule),
        ];
        let weights = vec![zeros("g", &[2, 3, 2])];
        let n = node("LinearAttention", operands, "y last", attrs);
        of(MICROSOFT, &["2", "3", "8"], weights, vec![n])
    };
    for (rule, exponents) in [("linear", 0), ("gated", 1), ("delta", 0)] {
        let f = import(&m(rule, "x x x _ g g"));
        assert_eq!(f.ty(f.results[0].1).to_string(), "f32[2, 3, 8]");
        assert_eq!(number_of(&f, "Exp"), exponents, "{rule}");
    }
    import(&m("linear", "x x x"));
    refused(&m("delta", "x x x _ g"), "needs beta");
}

#[test]
fn places_of_a_rotation_may_begin_at_a_scalar() {
    for dims in [&[][..], &[1]] {
        let first = raw("p", I64, dims, 2i64.to_le_bytes().to_vec());
        let weights = vec![zeros("c", &[9, 2]), first];
        let n = node("RotaryEmbedding", "x p c c", "y", vec![]);
        let f = import(&of(MICROSOFT, &["b", "3", "8"], weights, vec![n]));
        assert_eq!(f.ty(f.results[0].1).to_string(), "f32[b, 3, 8]");
    }
}

#[test]
fn group_query_attention_shows_scores_or_weights_of_all_tokens() {
    let m = |shown: i64, more: Vec<AttributeProto>| {
        let attrs = vec![
            int("num_heads", 2),
            int("kv_num_heads", 1),
            int("qk_output", shown),
        ];
        let operands = "x _ _ past past last total";
        let n = NodeProto {
            domain: Some(MICROSOFT.into()),
            ..node(
                "GroupQueryAttention",
                operands,
                "y pk pv qk",
                [attrs, more].concat(),
            )
        };
        let inputs = vec![
            value("x", F16, &["b", "1", "32"]),
            value("past", F16, &["b", "1", "24", "8"]),
            value("last", I32, &["b"]),
        ];
        let total = raw("total", I32, &[], 9i32.to_le_bytes().to_vec());
        model(17, graph(inputs, vec![total], vec![n], "y pk pv qk"))
    };
    for (shown, operand) in [(1, "Add"), (2, "Softmax")] {
        for smooth in [0, 1] {
            let f = import(&m(shown, vec![int("smooth_softmax", smooth)]));
            let qk = f.results[3].1;
            assert_eq!(f.ty(qk).to_string(), "f16[b, 2, 1, 9]");
            let maker = |x| f.nodes.iter().find(|n| n.outputs.contains(&x)).unwrap();
            let cast = maker(maker(qk).inputs[1].unwrap());
            let slice = maker(cast.inputs[0].unwrap());
            assert_eq!(&*maker(slice.inputs[0].unwrap()).op, operand);
        }
    }
    refused(&m(3, vec![]), "0, 1 or 2");
    let evicting = vec![int("sliding_window_cache", 1), int("local_window_size", 4)];
    refused(&m(1, evicting), "beside a cache of a window");
}

#[test]
fn caches_may_hold_codes() {
    let m = |kinds: [&str; 2], bits: i64, past: i32, width: &str| {
        let attrs = vec![
            int("num_heads", 4),
            int("kv_num_heads", 2),
            text("k_quant_type", kinds[0]),
            text("v_quant_type", kinds[1]),
            int("kv_cache_bit_width", bits),
        ];
        let operands = "x _ _ past past last total _ _ _ _ _ scale scale";
        let n = NodeProto {
            domain: Some(MICROSOFT.into()),
            ..node("GroupQueryAttention", operands, "y pk pv", attrs)
        };
        let inputs = vec![
            value("x", F16, &["b", "1", "64"]),
            value("past", past, &["b", "2", "24", width]),
            value("last", I32, &["b"]),
            value("scale", F32, &["16"]),
        ];
        let total = raw("total", I32, &[], 9i32.to_le_bytes().to_vec());
        model(17, graph(inputs, vec![total], vec![n], "y pk pv"))
    };
    let by_channel = ["PER_CHANNEL"; 2];
    for (bits, past, width, cache) in [
        (8, 3, "8", "i8[b, 2, 24, 8]"),
        (4, U8, "4", "u8[b, 2, 24, 4]"),
    ] {
        let f = import(&m(by_channel, bits, past, width));
        assert_eq!(f.ty(f.results[0].1).to_string(), "f16[b, 1, 32]");
        assert_eq!(f.ty(f.results[1].1).to_string(), cache);
    }
    refused(&m(by_channel, 4, 3, "4"), "a cache of i8");
    refused(&m(by_channel, 2, 3, "8"), "'kv_cache_bit_width'");
    refused(&m(["PER_ROW"; 2], 8, 3, "8"), "'k_quant_type'");
    refused(
        &m(["PER_TENSOR", "NONE"], 8, 3, "8"),
        "keys or of values alone",
    );
}

#[test]
fn beams_need_a_cache() {
    let m = |operands: &str| {
        let n = NodeProto {
            domain: Some(MICROSOFT.into()),
            ..node(
                "MultiHeadAttention",
                operands,
                "y pk pv",
                vec![int("num_heads", 2)],
            )
        };
        let inputs = vec![
            value("x", F32, &["b", "1", "8"]),
            value("past", F32, &["b", "2", "16", "4"]),
            value("beams", I32, &["n", "w", "16"]),
        ];
        let at = vec![raw("at", I32, &[1], 5i32.to_le_bytes().to_vec())];
        model(17, graph(inputs, at, vec![n], "y pk pv"))
    };
    let f = import(&m("x x x _ _ _ past past at beams"));
    assert_eq!(f.ty(f.results[0].1).to_string(), "f32[b, 1, 8]");
    assert_eq!(f.ty(f.results[1].1).to_string(), "f32[b, 2, 16, 4]");
    for operands in ["x x x _ _ _ past past _ beams", "x x x _ _ _ _ _ at"] {
        refused(&m(operands), "without a cache");
    }
}
