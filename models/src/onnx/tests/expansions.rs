//! Tests of ops that are expanded into others, beside those that ONNX's node cases cover.

use super::*;

/// A model of one node on inputs `NAME: f32[dims]`, written `q[2, s] k[2, 4]`; an input `NAME:i64` has other elements.
fn on(version: i64, inputs: &str, n: NodeProto) -> ModelProto {
    let input = |text: &str| {
        let (name, dims) = text.trim().split_once('[').unwrap();
        let (name, elem) = match name.split_once(':') {
            Some((name, "i64")) => (name, I64),
            Some((name, "bool")) => (name, 9),
            _ => (name, F32),
        };
        let dims: Vec<&str> = dims
            .split(',')
            .map(str::trim)
            .filter(|d| !d.is_empty())
            .collect();
        value(name, elem, &dims)
    };
    let inputs = inputs.split(']').filter(|i| !i.trim().is_empty());
    let outputs = n.output.iter().filter(|o| !o.is_empty());
    let outputs = outputs.cloned().collect::<Vec<_>>().join(" ");
    model(
        version,
        graph(inputs.map(input).collect(), vec![], vec![n], &outputs),
    )
}

/// The types of the results.
fn types(m: &ModelProto) -> Vec<String> {
    let f = import(m);
    let ty = |(_, id): &(String, _)| f.ty(*id).to_string();
    f.results.iter().map(ty).collect()
}

fn refused(m: &ModelProto, cause: &str) {
    let e = try_import(m).expect_err(cause).to_string();
    assert!(e.contains(cause), "{e}");
}

fn einsum(equation: &str, inputs: &str) -> ModelProto {
    let names: Vec<&str> = inputs
        .split(']')
        .filter_map(|i| i.trim().split_once('['))
        .map(|(n, _)| n)
        .collect();
    let n = node(
        "Einsum",
        &names.join(" "),
        "y",
        vec![text("equation", equation)],
    );
    on(12, inputs, n)
}

#[test]
fn einsum_is_one_product_where_nothing_moves() {
    for (equation, inputs, want, ty) in [
        (
            "ij,jk->ik",
            "a[i, 3] b[3, k]",
            &["MatMul(a, b)", "Identity"][..],
            "f32[i, k]",
        ),
        (
            "bij,bjk->bik",
            "a[b, i, 3] b[b, 3, k]",
            &["MatMul(a, b)", "Identity"],
            "f32[b, i, k]",
        ),
        (
            "...ij,...jk->...ik",
            "a[b, h, i, 3] b[b, h, 3, k]",
            &["MatMul(a, b)", "Identity"],
            "f32[b, h, i, k]",
        ),
        ("ij->ji", "a[2, n]", &["Transpose(a)"], "f32[n, 2]"),
        ("ij", "a[2, n]", &["Identity(a)"], "f32[2, n]"),
        (
            "i,j->ij",
            "a[2] b[n]",
            &["Unsqueeze(a, [1])", "Unsqueeze(b, [0])", "Mul", "Identity"],
            "f32[2, n]",
        ),
        (
            "ij->i",
            "a[2, n]",
            &["ReduceSum(a, [1])", "Identity"],
            "f32[2]",
        ),
    ] {
        let f = import(&einsum(equation, inputs));
        let found = lines(&f);
        assert_eq!(found.len(), want.len(), "{equation}: {found:?}");
        for (found, want) in found.iter().zip(want) {
            assert!(found.starts_with(want), "{equation}: {found} is not {want}");
        }
        assert_eq!(f.ty(f.results[0].1).to_string(), ty, "{equation}");
    }
}

#[test]
fn einsum_keeps_symbols() {
    for (equation, inputs, ty) in [
        (
            "bqhd,bkhd->bhqk",
            "a[b, q, 4, 8] b[b, k, 4, 8]",
            "f32[b, 4, q, k]",
        ),
        ("abc,cde->abde", "a[a, b, 3] b[3, d, e]", "f32[a, b, d, e]"),
        ("ab,ab->", "a[a, b] b[a, b]", "f32[]"),
        ("...ii->...i", "a[b, n, n]", "f32[b, n]"),
        ("...ii->...i", "a[b, m, n]", "f32[b, n]"),
        ("ij,jk,kl->il", "a[i, 2] b[2, 3] c[3, l]", "f32[i, l]"),
        ("bij,bjk->bik", "a[1, i, 3] b[7, 3, k]", "f32[7, i, k]"),
    ] {
        assert_eq!(types(&einsum(equation, inputs)), [ty], "{equation}");
    }
}

#[test]
fn einsum_names_what_is_wrong_with_an_equation() {
    for (equation, inputs, cause) in [
        (
            "ij->i",
            "a[2, 3, 4]",
            "term 0 does not fit an operand of rank 3",
        ),
        ("ij,jk->ik", "a[2, 3]", "2 terms for 1 operands"),
        ("ij,jk->ik", "a[2, 3] b[4, 5]", "lengths 3 and 4"),
        ("ij->iz", "a[2, 3]", "'z'"),
        ("i3->i", "a[2, 3]", "'3' is no letter"),
        ("ii->i", "a[1, 3]", "in one operand have lengths 1 and 3"),
    ] {
        refused(&einsum(equation, inputs), cause);
    }
    let many = 2000;
    let inputs: String = (0..many).map(|i| format!("a{i}[2] ")).collect();
    let equation = vec!["i"; many].join(",");
    let m = einsum(&format!("{equation}->i"), &inputs);
    assert_eq!(types(&m), ["f32[2]"]);
    let n = node("Einsum", "a", "y", vec![]);
    refused(&on(12, "a[2]", n), "attribute 'equation' is missing");
}

fn attention(
    inputs: &str,
    names: &str,
    outputs: &str,
    attributes: Vec<AttributeProto>,
) -> ModelProto {
    on(24, inputs, node("Attention", names, outputs, attributes))
}

#[test]
fn attention_with_a_growing_cache_keeps_its_symbols() {
    let inputs = "q[b, 8, s, 16] k[b, 2, s, 16] v[b, 2, s, 32] pk[b, 2, p, 16] pv[b, 2, p, 32]";
    let m = attention(
        inputs,
        "q k v _ pk pv",
        "y ck cv",
        vec![int("is_causal", 1)],
    );
    let want = [
        "f32[b, 8, s, 32]",
        "f32[b, 2, p+s, 16]",
        "f32[b, 2, p+s, 32]",
    ];
    assert_eq!(types(&m), want);
    // Heads that share keys are rows of one product: nothing repeats the keys.
    let found = lines(&import(&m));
    assert!(
        !found
            .iter()
            .any(|l| l.starts_with("Expand") || l.starts_with("Tile")),
        "{found:?}"
    );
    let heads = vec![int("q_num_heads", 4), int("kv_num_heads", 4)];
    let m = attention("q[b, s, 64] k[b, t, 64] v[b, t, 32]", "q k v", "y", heads);
    assert_eq!(types(&m), ["f32[b, s, 32]"]);
}

#[test]
fn attention_refuses_what_does_not_fit() {
    let four = "q[1, 3, 4, 8] k[1, 2, 4, 8] v[1, 2, 4, 8]";
    let three = "q[1, 4, 8] k[1, 4, 8] v[1, 4, 8]";
    for (inputs, names, attributes, cause) in [
        (
            four,
            "q k v",
            vec![],
            "3 heads of Q are no multiple of 2 heads of K",
        ),
        (three, "q k v", vec![], "numbers of heads"),
        (
            "q[1, 4, 8] k[1, 2, 4, 8] v[1, 2, 4, 8]",
            "q k v",
            vec![],
            "rank 3, or all rank 4",
        ),
        (
            three,
            "q k v",
            vec![int("q_num_heads", 3), int("kv_num_heads", 2)],
            "8 columns do not divide into 3 heads",
        ),
        (
            four,
            "q k v _ k",
            vec![],
            "past_key and past_value go together",
        ),
        (
            four,
            "q k v",
            vec![int("qk_matmul_output_mode", 4)],
            "qk_matmul_output_mode",
        ),
        (
            four,
            "q k v",
            vec![int("left_window_size", -2)],
            "left_window_size",
        ),
        (
            four,
            "q k v",
            vec![int("softmax_precision", 7)],
            "softmax_precision",
        ),
        (
            four,
            "q k v",
            vec![int("softmax_precision", 17)],
            "softmax_precision",
        ),
        (
            "q[1, 2, 4, 8] k[1, 2, 4, 8] v[1, 2, 4, 8] m[4, 5]",
            "q k v m",
            vec![],
            "attn_mask has 5 columns for 4 keys",
        ),
        (
            "q[1, 2, 4, 8] k[1, 2, 4, 8] v[1, 2, 4, 8]",
            "q k v",
            vec![int("q_num_heads", 4)],
            "q_num_heads is 4, the operand has 2 heads",
        ),
        (four, "q k v", vec![int("unheard_of", 1)], "unheard_of"),
    ] {
        refused(&attention(inputs, names, "y", attributes), cause);
    }
    let four = "q[1, 2, 4, 8] k[1, 2, 4, 8] v[1, 2, 4, 8]";
    let on = |version: i64| {
        let heads = vec![int("q_num_heads", 2), int("kv_num_heads", 2)];
        on(version, four, node("Attention", "q k v", "y", heads))
    };
    assert_eq!(types(&on(24)), ["f32[1, 2, 4, 8]"]);
    refused(&on(25), "q_num_heads is for operands of rank 3");
}

#[test]
fn attention_takes_a_mask_that_ends_before_the_keys() {
    let m = "q[b, 2, s, 8] k[b, 2, t, 8] v[b, 2, t, 8] m[s, u]";
    for (outputs, want) in [
        ("y", vec!["f32[b, 2, s, 8]"]),
        ("y _ _ w", vec!["f32[b, 2, s, 8]", "f32[b, 2, s, t]"]),
    ] {
        assert_eq!(types(&attention(m, "q k v m", outputs, vec![])), want);
    }
}

#[test]
fn attention_takes_windows_of_any_size() {
    let four = "q[1, 2, 4, 8] k[1, 2, 4, 8] v[1, 2, 4, 8]";
    let lines_of = |size: i64| {
        let window = vec![
            int("left_window_size", size),
            int("right_window_size", size),
        ];
        lines(&import(&attention(four, "q k v", "y", window)))
    };
    for size in [i64::from(i32::MAX) + 1, i64::MAX] {
        assert_eq!(lines_of(size), lines_of(-1), "{size}");
    }
    assert_ne!(lines_of(i32::MAX.into()), lines_of(-1));
}

/// Checks that the only thing wrong with a model is one node.
fn only_cause(m: &ModelProto, node: &str, cause: &str) {
    match try_import(m) {
        Err(ModelError::Graph { errors }) => {
            let texts: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
            let one = texts.len() == 1 && texts[0].starts_with(&format!("node '{node}'"));
            assert!(one && texts[0].contains(cause), "{texts:?}");
        }
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("{cause}"),
    }
}

#[test]
fn what_an_expansion_is_refused_for_is_said() {
    let four = "q[1, 2, 4, 8] k[1, 2, 4, 8] v[1, 2, 4, 8]";
    let past = format!("{four} pk[1, 2, 3, 5] pv[1, 2, 3, 8] m[4, 6]");
    let m = attention(&past, "q k v m pk pv", "y", vec![]);
    only_cause(&m, "y_node/Concat", "5 and 8");
    let mask = format!("{four} m[3, 4]");
    let m = attention(&mask, "q k v m", "y", vec![]);
    only_cause(&m, "y_node/FusedAttention", "3");
}

#[test]
fn what_follows_a_rejected_node_is_no_error_of_its_own() {
    let wrong = || node("MatMul", "x x", "a", vec![]);
    let turned = || node("Einsum", "a", "b", vec![text("equation", "ij->ji")]);
    let last = || node("Relu", "b", "y", vec![]);
    let inputs = || vec![value("x", F32, &["2", "3"]), value("go", 9, &[])];
    let nodes = vec![wrong(), turned(), last()];
    only_cause(
        &model(17, graph(inputs(), vec![], nodes, "y")),
        "a_node",
        "2",
    );
    // The same in a branch, which drops nodes that no result depends on.
    let branch = |nodes: Vec<NodeProto>| graph(vec![], vec![], nodes, "y");
    let choice = vec![
        graph_attr("then_branch", branch(vec![wrong(), turned(), last()])),
        graph_attr("else_branch", branch(vec![node("Relu", "x", "y", vec![])])),
    ];
    let nodes = vec![node("If", "go", "z", choice)];
    let m = model(17, graph(inputs(), vec![], nodes, "z"));
    only_cause(&m, "z_node/a_node", "2");
}

#[test]
fn rotary_embedding_refuses_what_does_not_fit() {
    let rotary = |inputs: &str, attributes| {
        on(
            23,
            inputs,
            node("RotaryEmbedding", "x c s", "y", attributes),
        )
    };
    let caches = "c[2, 3, 4] s[2, 3, 4]";
    let fits = rotary(&format!("x[2, 5, 3, 8] {caches}"), vec![]);
    assert_eq!(types(&fits), ["f32[2, 5, 3, 8]"]);
    for (x, attributes, cause) in [
        ("x[2, 3, 8]", vec![], "needs num_heads"),
        ("x[2, 5, 3, 7]", vec![], "even size"),
        ("x[2, 5, 3, 6]", vec![], "4 and 3 differ"),
        (
            "x[2, 5, 3, 8]",
            vec![int("rotary_embedding_dim", 10)],
            "within a head",
        ),
        ("x[2, 3]", vec![], "rank 3 or 4"),
    ] {
        refused(&rotary(&format!("{x} {caches}"), attributes), cause);
    }
}

#[test]
fn states_of_sequences_are_checked() {
    let heads = || vec![int("q_num_heads", 4), int("kv_num_heads", 2)];
    let linear = |rule: &str, names: &str| {
        let mut attributes = heads();
        attributes.push(text("update_rule", rule));
        let inputs = "q[b, t, 32] k[b, t, 16] v[b, t, 10] p[b, 2, 8, 5] g[b, t, 2]";
        on(
            27,
            inputs,
            node("LinearAttention", names, "y last", attributes),
        )
    };
    assert_eq!(
        types(&linear("gated", "q k v p g")),
        ["f32[b, t, 20]", "f32[b, 2, 8, 5]"]
    );
    refused(&linear("linear", "q k v p g"), "takes no decay");
    refused(&linear("delta", "q k v"), "needs beta");
    refused(&linear("other", "q k v"), "update_rule");
    let many = 1i64 << 60;
    let huge = vec![
        int("q_num_heads", many),
        int("kv_num_heads", 1),
        text("update_rule", "linear"),
    ];
    let m = on(
        27,
        &format!("q[1, 1, {many}] k[1, 1, 1] v[1, 1, 16]"),
        node("LinearAttention", "q k v", "y", huge),
    );
    refused(&m, "too large");
    // Few heads of a query that is repeated for many heads of keys.
    let many = 1i64 << 40;
    let huge = vec![
        int("q_num_heads", 1),
        int("kv_num_heads", many),
        text("update_rule", "linear"),
    ];
    let m = on(
        27,
        &format!("q[1, 1, {many}] k[1, 1, {many}] v[1, 1, {many}]"),
        node("LinearAttention", "q k v", "y", huge),
    );
    refused(&m, "too large");
    let conv = |inputs: &str| {
        on(
            27,
            inputs,
            node("CausalConvWithState", "x w _ p", "y last", vec![]),
        )
    };
    assert_eq!(
        types(&conv("x[b, 6, n] w[6, 1, 4] p[b, 6, 3]")),
        ["f32[b, 6, n]", "f32[b, 6, 3]"]
    );
    // Only a sequence that may be empty needs more room for the kernel.
    let padded = |sequence: &str| {
        let f = import(&conv(&format!("x[b, 6, {sequence}] w[6, 1, 4] p[b, 6, 3]")));
        let y = f.ty(f.results[0].1).to_string();
        assert_eq!(y, format!("f32[b, 6, {sequence}]"));
        let conv = f.nodes.iter().find(|n| &*n.op == "Conv").unwrap();
        conv.attrs.ints("pads").unwrap()[1]
    };
    assert_eq!(["n", "1"].map(padded), [1, 0]);
    refused(&conv("x[b, 6, n] w[6, 1, 4] p[b, 6, 4]"), "3 columns");
    refused(
        &conv("x[b, 6, n] w[6, 2, 4] p[b, 6, 3]"),
        "[channels, 1, k]",
    );
}

#[test]
fn signals_have_frames_of_a_known_length() {
    let stft = |inputs: &str, frame: i64, attributes| {
        let literal = |name: &str, v: i64| raw(name, I64, &[], v.to_le_bytes().to_vec());
        let n = node("STFT", "x step _ frame", "y", attributes);
        let mut m = on(17, inputs, n);
        m.graph.as_mut().unwrap().initializer = vec![literal("step", 4), literal("frame", frame)];
        m
    };
    assert_eq!(types(&stft("x[b, 32, 1]", 8, vec![])), ["f32[b, 7, 5, 2]"]);
    let both = stft("x[b, 32, 2]", 8, vec![int("onesided", 0)]);
    assert_eq!(types(&both), ["f32[b, 7, 8, 2]"]);
    refused(&stft("x[b, 32, 1]", 33, vec![]), "33 samples");
    refused(&stft("x[b, 32, 2]", 8, vec![]), "onesided");
    assert_eq!(types(&stft("x[b, 32]", 8, vec![])), ["f32[b, 7, 5, 2]"]);
    refused(&stft("x[32]", 8, vec![]), "rank 2 or 3");
}

#[test]
fn grids_and_crops_are_checked() {
    let grid = |inputs: &str| on(20, inputs, node("AffineGrid", "t size", "y", vec![]));
    refused(&grid("t[n, 2, 3] size:i64[3]"), "four or five");
    refused(&grid("t[n, 3, 4] size:i64[4]"), "theta must be [N, 2, 3]");
    let crop = |inputs: &str, axes: &[i64]| {
        on(
            18,
            inputs,
            node("CenterCropPad", "x shape", "y", vec![ints("axes", axes)]),
        )
    };
    refused(
        &crop("x[2, 3] shape:i64[1]", &[0, 1]),
        "1 elements for 2 axes",
    );
    refused(&crop("x[2, 3] shape:i64[1]", &[2]), "axis 2");
    let swiglu = on(28, "a[2, 3] b[2, 1]", node("SwiGLU", "a b", "y", vec![]));
    refused(&swiglu, "differ in shape");
}

#[test]
fn modifiers_of_attention_have_one_input_and_one_output() {
    let flex = |inputs: &str, attributes: Vec<AttributeProto>| {
        let mut n = node("FlexAttention", "q k v", "y", attributes);
        n.domain = Some("ai.onnx.preview".into());
        let mut m = on(26, inputs, n);
        m.opset_import.push(opset("ai.onnx.preview", 1));
        m
    };
    let symbols = "q[b, 4, s, 8] k[b, 2, t, 8] v[b, 2, t, 6]";
    let score_mod = |inputs: &[&str], nodes: Vec<NodeProto>, output: &str| {
        let params = inputs.iter().map(|n| value(n, F32, &[])).collect();
        vec![graph_attr(
            "score_mod",
            graph(params, vec![], nodes, output),
        )]
    };
    let modified = |inputs: &[&str], nodes: Vec<NodeProto>, output: &str| {
        flex(symbols, score_mod(inputs, nodes, output))
    };
    let tanh = || vec![node("Tanh", "x", "z", vec![])];
    assert_eq!(types(&modified(&["x"], tanh(), "z")), ["f32[b, 4, s, 6]"]);
    refused(
        &modified(&["x", "w"], tanh(), "z"),
        "one input and one output",
    );
    let sum = vec![node("ReduceSum", "x", "z", vec![int("keepdims", 0)])];
    refused(&modified(&["x"], sum, "z"), "must keep the shape");
    let twice = vec![node("Concat", "x x", "z", vec![int("axis", 1)])];
    refused(&modified(&["x"], twice, "z"), "must keep the shape");
    let double = vec![node("Cast", "x", "z", vec![int("to", 11)])];
    refused(&modified(&["x"], double, "z"), "must keep the dtype f32");
    refused(
        &flex(symbols, vec![int("prob_mod", 3)]),
        "prob_mod must be a graph",
    );
    for code in [7, 17] {
        let precision = vec![int("softmax_precision", code)];
        refused(&flex(symbols, precision), "must be f16, bf16, f32 or f64");
    }
}
