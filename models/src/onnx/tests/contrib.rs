//! Tests of ONNX Runtime's own ops, beside those that cases of ONNX Runtime cover.

mod attention;
mod streams;

use super::*;
use crate::onnx::BlockWidth;

/// A model of nodes of `domain` on inputs, written as `value` takes them, and constants.
fn of(domain: &str, x: &[&str], weights: Vec<TensorProto>, nodes: Vec<NodeProto>) -> ModelProto {
    let nodes: Vec<NodeProto> = nodes
        .into_iter()
        .map(|n| NodeProto {
            domain: Some(domain.into()),
            ..n
        })
        .collect();
    let last = nodes.last().map(|n| n.output.join(" ")).unwrap_or_default();
    let graph = graph(vec![value("x", F32, x)], weights, nodes, &last);
    ModelProto {
        opset_import: vec![opset("", 17), opset(domain, 1)],
        ..model(17, graph)
    }
}

fn refused(m: &ModelProto, cause: &str) {
    let e = try_import(m).expect_err(cause).to_string();
    assert!(e.contains(cause), "{e}");
}

/// How many nodes of an op there are.
fn number_of(f: &Function, op: &str) -> usize {
    f.nodes.iter().filter(|n| &*n.op == op).count()
}

const U8: i32 = 2;
const MICROSOFT: &str = "com.microsoft";
const BLOCKED: &str = "com.microsoft.nchwc";

fn zeros(name: &str, dims: &[i64]) -> TensorProto {
    let count = dims.iter().product::<i64>() as usize;
    floats(name, dims, &vec![0.0; count])
}

fn longs(name: &str, v: &[i64]) -> TensorProto {
    let bytes = v.iter().flat_map(|v| v.to_le_bytes()).collect();
    raw(name, I64, &[v.len() as i64], bytes)
}

#[test]
fn fused_ops_are_what_they_were_made_of() {
    let check = |n: NodeProto, weights: &[&[i64]], x: &[&str], want: &[&str]| {
        let names = ["w", "b"].into_iter().zip(weights);
        let weights = names.map(|(name, dims)| zeros(name, dims)).collect();
        let f = import(&of(MICROSOFT, x, weights, vec![n]));
        let ops: Vec<&str> = f.nodes.iter().map(|n| &*n.op).collect();
        assert_eq!(ops, want);
    };
    let relu = || text("activation", "Relu");
    let image = &["n", "2", "5", "5"];
    let n = node("FusedConv", "x w b", "y", vec![relu()]);
    check(n, &[&[3, 2, 1, 1], &[3]], image, &["Conv", "Relu"]);
    let n = node("FusedConv", "x w b x", "y", vec![relu()]);
    check(n, &[&[2, 2, 1, 1], &[2]], image, &["Conv", "Add", "Relu"]);
    let n = node("FusedConv", "x w", "y", vec![]);
    check(n, &[&[3, 2, 1, 1]], image, &["Conv"]);
    let n = node("FusedConv", "x w", "y", vec![text("activation", "Silu")]);
    check(n, &[&[3, 2, 1, 1]], image, &["Conv", "Swish"]);
    let n = node("FusedGemm", "x w b", "y", vec![relu(), int("transB", 1)]);
    check(n, &[&[3, 4], &[3]], &["n", "4"], &["Gemm", "Relu"]);
    let n = node("FusedMatMul", "x w", "y", vec![float("alpha", 0.5)]);
    check(n, &[&[4, 3]], &["n", "4"], &["MatMul", "Mul"]);
    let n = node("FusedMatMul", "x x", "y", vec![int("transB", 1)]);
    check(n, &[], &["n", "4"], &["Transpose", "MatMul"]);
}

#[test]
fn ops_without_a_kernel_in_onnx_runtime_for_the_cpu() {
    let check = |n: NodeProto, x: &[&str], ty: &str, want: &[&str]| {
        let weights = vec![zeros("w", &[2, 3, 1, 4]), zeros("b", &[4])];
        let f = import(&of(MICROSOFT, x, weights, vec![n]));
        let ops: Vec<&str> = f.nodes.iter().map(|n| &*n.op).collect();
        assert_eq!(ops, want);
        assert_eq!(f.ty(f.results[0].1).to_string(), ty);
    };
    let rows = &["n", "3", "4"];
    let n = node("BiasAdd", "x b x", "y", vec![]);
    check(n, rows, "f32[n, 3, 4]", &["Add", "Add"]);
    let n = node("BiasSplitGelu", "x b", "y", vec![]);
    check(n, rows, "f32[n, 3, 2]", &["Add", "Split", "Gelu", "Mul"]);
    let n = node("BiasDropout", "x b x", "y", vec![]);
    check(n, rows, "f32[n, 3, 4]", &["Add", "Add", "Identity"]);
    let n = node("BitmaskDropout", "x", "y", vec![]);
    check(n, rows, "f32[n, 3, 4]", &["Identity"]);
    let attrs = vec![int("axis", 2), int("is_inner_broadcast", 0)];
    let n = node("BiasSoftmax", "x b", "y", attrs);
    check(n, rows, "f32[n, 3, 4]", &["Add", "Softmax"]);
    let n = node("NhwcConv", "x w", "y", vec![]);
    let want = ["Transpose", "Transpose", "Conv", "Transpose", "Identity"];
    check(n, &["n", "5", "6", "4"], "f32[n, 3, 6, 2]", &want);
    let pixels = &["n", "5", "6", "4"];
    let attrs = |activation| vec![int("groups", 2), int("activation", activation)];
    let n = node("GroupNorm", "x b b", "y", attrs(1));
    let want = ["Transpose", "GroupNormalization", "Swish", "Transpose"];
    check(n, pixels, "f32[n, 5, 6, 4]", &want);
    let n = node("SkipGroupNorm", "x b b x b", "y s", attrs(0));
    let want = ["Add", "Add", "Transpose", "GroupNormalization", "Transpose"];
    check(n, pixels, "f32[n, 5, 6, 4]", &want);
    let n = node("BitmaskDropout", "x", "y mask", vec![]);
    refused(&of(MICROSOFT, rows, vec![], vec![n]), "a mask of bits");
}

/// A convolution of blocked weights, between two changes of the layout.
fn blocked(channels: &str, weights: &[i64]) -> ModelProto {
    let nodes = vec![
        node("ReorderInput", "x", "a", vec![]),
        node("Conv", "a w", "c", vec![]),
        node("ReorderOutput", "c", "y", vec![int("channels", 20)]),
    ];
    let x = ["n", channels, "5", "5"];
    of(BLOCKED, &x, vec![zeros("w", weights)], nodes)
}

#[test]
fn the_width_of_blocks_follows_from_weights() {
    let check = |m: &ModelProto, want: &[i64]| {
        let f = import(m);
        let transpose = f.nodes.iter().find(|n| &*n.op == "Transpose").unwrap();
        let shape = f.ty(transpose.inputs[0].unwrap()).fixed_shape().unwrap();
        let shape: Vec<i64> = shape.iter().map(|d| *d as i64).collect();
        assert_eq!(shape, want);
        assert_eq!(f.ty(f.results[0].1).to_string(), "f32[n, 20, 5, 5]");
    };
    // 20 channels are filled up to 24 in blocks of 8, and to 32 in blocks of 16.
    check(&blocked("12", &[24, 16, 1, 1]), &[3, 2, 1, 1, 8, 8]);
    check(&blocked("12", &[32, 16, 1, 1]), &[2, 1, 1, 1, 16, 16]);
    let mut m = blocked("12", &[32, 16, 1, 1]);
    let g = m.graph.as_mut().unwrap();
    g.initializer.push(zeros("v", &[8, 32, 1, 1]));
    let mut other = node("Conv", "c v", "z", vec![]);
    other.domain = Some(BLOCKED.into());
    g.node.push(other);
    g.output.push(value("z", F32, &[]));
    refused(&m, "weights in blocks of different widths");
    // 16 channels and 32 ones are whole blocks of either width.
    let nodes = vec![
        node("ReorderInput", "x", "a", vec![]),
        node("Conv", "a w", "c", vec![]),
        node("ReorderOutput", "c", "y", vec![int("channels", 32)]),
    ];
    let weights = vec![zeros("w", &[32, 16, 1, 1])];
    let m = of(BLOCKED, &["n", "16", "5", "5"], weights, nodes);
    refused(&m, "may be of 8 or 16 channels");
    for (width, shape) in [
        (BlockWidth::Eight, &[4, 2, 1, 1, 8, 8]),
        (BlockWidth::Sixteen, &[2, 1, 1, 1, 16, 16]),
    ] {
        let f = import_with(&m, width);
        let transpose = f.nodes.iter().find(|n| &*n.op == "Transpose").unwrap();
        let operand = f.ty(transpose.inputs[0].unwrap());
        assert_eq!(operand.fixed_shape().unwrap(), shape);
    }
}

/// Imports a model whose blocks are said to have this width.
fn import_with(m: &ModelProto, width: BlockWidth) -> Function {
    let s = Scratch::new();
    let given = LoadOptions {
        block_width: Some(width),
        ..options(&s)
    };
    let path = s.write("m.onnx", &m.encode_to_vec());
    load(&path, &given).unwrap().function
}

#[test]
fn the_width_of_blocks_without_weights_does_not_matter() {
    let nodes = vec![
        node("ReorderInput", "x", "a", vec![]),
        node("MaxPool", "a", "p", vec![ints("kernel_shape", &[3, 3])]),
        node("ReorderOutput", "p", "y", vec![int("channels", 12)]),
    ];
    let m = of(BLOCKED, &["n", "12", "5", "5"], vec![], nodes);
    for f in [import(&m), import_with(&m, BlockWidth::Sixteen)] {
        assert!(f.nodes.iter().all(|n| &*n.op != "Pad"));
        assert_eq!(f.ty(f.results[0].1).to_string(), "f32[n, 12, 3, 3]");
    }
}

#[test]
fn weights_in_the_formats_of_bitsandbytes() {
    let m = |bytes: i64, blocks: i64, attrs: &[(&str, i64)]| {
        let weights = vec![
            raw("b", U8, &[bytes], vec![0x1f; bytes as usize]),
            zeros("s", &[blocks]),
        ];
        let mut all = vec![("K", 5), ("N", 7), ("block_size", 16), ("quant_type", 1)];
        all.retain(|(name, _)| attrs.iter().all(|(other, _)| other != name));
        let attrs = all.iter().chain(attrs).map(|(name, v)| int(name, *v));
        let n = node("MatMulBnb4", "x b s", "y", attrs.collect());
        of(MICROSOFT, &["n", "5"], weights, vec![n])
    };
    let check = |bytes, blocks, attrs: &[(&str, i64)]| {
        let f = import(&m(bytes, blocks, attrs));
        assert_eq!(f.ty(f.results[0].1).to_string(), "f32[n, 7]");
        assert_eq!(&*f.nodes.last().unwrap().op, "MatMul");
    };
    // The last block of 35 weights is not full, and the last byte neither.
    check(18, 3, &[]);
    check(18, 5, &[("block_size", 7), ("quant_type", 0)]);
    check(18, 1, &[("block_size", i64::MAX)]);
    let refusal = |bytes, blocks, attr, cause| refused(&m(bytes, blocks, &[attr]), cause);
    refusal(18, 3, ("quant_type", 2), "0 or 1");
    refusal(18, 3, ("transB", 0), "not transposed");
    refusal(18, 3, ("K", 0), "above zero");
    refusal(18, 3, ("N", i64::MAX), "too large weights");
    refusal(17, 3, ("training_mode", 0), "cannot be reshaped");
}

#[test]
fn distances_of_rows() {
    let m = |metric: &str| {
        let n = node("CDist", "x w", "y", vec![text("metric", metric)]);
        of(MICROSOFT, &["n", "5"], vec![zeros("w", &[4, 5])], vec![n])
    };
    for (metric, op) in [("euclidean", "Sqrt"), ("sqeuclidean", "Abs")] {
        let f = import(&m(metric));
        assert_eq!(f.ty(f.results[0].1).to_string(), "f32[n, 4]");
        assert_eq!(&*f.nodes.last().unwrap().op, op);
    }
    refused(&m("cosine"), "the metric cosine");
}

#[test]
fn tokens_and_inverses_are_ops_of_the_registry() {
    let n = node("Inverse", "x", "y", vec![]);
    let f = import(&of(MICROSOFT, &["n", "3", "3"], vec![], vec![n]));
    assert_eq!(f.ty(f.results[0].1).to_string(), "f32[n, 3, 3]");
    let tokens = |least: i64| {
        let attrs = vec![
            int("mark", 0),
            int("mincharnum", least),
            text("pad_value", ""),
            text("tokenexp", "[a-z]+"),
        ];
        let n = node("Tokenizer", "x", "y", attrs);
        let mut m = of(MICROSOFT, &[], vec![], vec![n]);
        const STRING: i32 = 8;
        let g = m.graph.as_mut().unwrap();
        g.input = vec![value("x", STRING, &["n", "c"])];
        m
    };
    let f = import(&tokens(2));
    let ty = f.ty(f.results[0].1).to_string();
    assert!(ty.starts_with("string[n, c, "), "{ty}");
    refused(&tokens(0), "mincharnum");
}

#[test]
fn padding_may_be_a_matrix_of_one_row() {
    for dims in [&[4][..], &[1, 4]] {
        let pads = TensorProto {
            dims: dims.to_vec(),
            ..longs("p", &[1, 0, 0, 2])
        };
        let n = node("Pad", "x p v", "y", vec![]);
        let weights = vec![pads, zeros("v", &[1])];
        let f = import(&of(MICROSOFT, &["3", "5"], weights, vec![n]));
        assert_eq!(f.ty(f.results[0].1).to_string(), "f32[4, 7]");
    }
}

#[test]
fn a_number_for_each_channel_is_added_to_channels_that_are_first() {
    let attrs = vec![int("groups", 2), int("channels_last", 0)];
    let n = node("SkipGroupNorm", "x b b w", "y s", attrs);
    let weights = vec![zeros("w", &[2, 1, 1, 4]), zeros("b", &[4])];
    let f = import(&of(MICROSOFT, &["2", "4", "5", "6"], weights, vec![n]));
    let ops: Vec<&str> = f.nodes.iter().map(|n| &*n.op).collect();
    assert_eq!(ops, ["Transpose", "Add", "GroupNormalization", "Identity"]);
    assert_eq!(f.ty(f.results[0].1).to_string(), "f32[2, 4, 5, 6]");
}

/// A mixture of two experts, whose operands are all alike but for the router `r`.
fn of_experts(n: NodeProto) -> ModelProto {
    let router = vec![zeros("r", &[4, 2])];
    of(MICROSOFT, &["2", "2", "2"], router, vec![n])
}

#[test]
fn an_axis_far_outside_the_operand() {
    for axis in [i64::MIN, -10_000_000_000, -4, 3, i64::MAX] {
        let n = node(
            "SimplifiedLayerNormalization",
            "x w",
            "y d",
            vec![int("axis", axis)],
        );
        let m = model(
            17,
            graph(
                vec![value("x", F32, &["2", "3", "8"])],
                vec![zeros("w", &[8])],
                vec![n],
                "y d",
            ),
        );
        refused(&m, "axis");
    }
}

#[test]
fn the_gated_product_of_experts() {
    let check = |attrs: Vec<AttributeProto>, operands: &str, products: usize| {
        let f = import(&of_experts(node("MoE", operands, "y", attrs)));
        let made = f.nodes.iter().filter(|n| &*n.op == "MatMul").count();
        assert_eq!(made, products);
        assert_eq!(f.ty(f.results[0].1).to_string(), "f32[2, 2, 2]");
    };
    let silu = || vec![text("activation_type", "silu")];
    check(silu(), "x r x _ x", 2);
    check(silu(), "x r x _ x _ x", 3);
    check(vec![text("activation_type", "swiglu")], "x r x _ x _ x", 3);
}

/// A model of one QMoE of two experts on [4, 16], whose weights are codes.
fn of_packed_experts(
    bits: i64,
    rows: i64,
    blocks: &[i64],
    attrs: Vec<AttributeProto>,
) -> ModelProto {
    let codes = |name: &str, dims: &[i64]| {
        raw(
            name,
            U8,
            dims,
            vec![0; dims.iter().product::<i64>() as usize],
        )
    };
    let scales = |name: &str, rows| zeros(name, &[&[2, rows], blocks].concat());
    let weights = vec![
        zeros("r", &[4, 2]),
        codes("w1", &[2, rows, 16 * bits / 8]),
        scales("s1", rows),
        codes("w2", &[2, 16, 16 * bits / 8]),
        scales("s2", 16),
        codes("z1", &[2, rows * bits / 8]),
    ];
    let attrs = [attrs, vec![int("expert_weight_bits", bits)]].concat();
    let n = node("QMoE", "x r w1 s1 _ w2 s2 _ _ _ _ z1", "y", attrs);
    of(MICROSOFT, &["4", "16"], weights, vec![n])
}

#[test]
fn blocks_of_rows_are_as_many_as_the_rows() {
    let of = |groups: i64| {
        let weights = vec![
            raw("w", U8, &[16, 2, 16], vec![0; 16 * 2 * 16]),
            zeros("s", &[16 * 2]),
            raw("g", I32, &[groups], vec![0; 4 * groups as usize]),
        ];
        let attrs = vec![int("K", 40), int("N", 16), int("block_size", 32)];
        let n = node("MatMulNBits", "x w s _ g", "y", attrs);
        of(MICROSOFT, &["2", "40"], weights, vec![n])
    };
    // The last block may be filled up.
    for groups in [40, 64] {
        let f = import(&of(groups));
        assert_eq!(f.ty(f.results[0].1).to_string(), "f32[2, 16]");
    }
    for groups in [1, 41] {
        refused(&of(groups), "'g_idx' must be a list of 40 numbers");
    }
    let mut m = of(40);
    let bits = &mut m.graph.as_mut().unwrap().node[0].attribute;
    bits.push(int("bits", 3));
    refused(&m, "codes of 3 bits with 'g_idx'");
}

#[test]
fn codes_of_experts_stay_packed() {
    let check = |bits, rows, blocks: &[i64], attrs, size| {
        let f = import(&of_packed_experts(bits, rows, blocks, attrs));
        let products = f.nodes.iter().filter(|n| &*n.op == "MatMulNBits");
        let sizes: Vec<i64> = products.map(|n| n.attrs.int("block_size", 0)).collect();
        assert_eq!(sizes, [size; 4]);
        assert_eq!(f.ty(f.results[0].1).to_string(), "f32[4, 16]");
    };
    for bits in [2, 4, 8] {
        check(bits, 16, &[], vec![], 16);
    }
    check(4, 16, &[1], vec![], 16);
    let halves = |fusion| {
        vec![
            text("activation_type", "swiglu"),
            int("swiglu_fusion", fusion),
        ]
    };
    for fusion in [1, 2] {
        check(4, 32, &[], halves(fusion), 16);
    }
    let refusal = |blocks: &[i64], attr: AttributeProto, cause: &str| {
        refused(&of_packed_experts(4, 16, blocks, vec![attr]), cause);
    };
    refusal(&[], text("quant_type", "fp4"), "weights of the type fp4");
    refusal(&[], int("weights_prepacked", 1), "packed for a device");
    refusal(&[], int("fc1_expert_weight_bits", 3), "2, 4 or 8");
    refusal(
        &[3],
        int("k", 1),
        "16 weights of a row do not divide into 3 blocks",
    );
    refusal(&[0], int("k", 1), "do not divide into 0 blocks");
    refusal(&[], int("use_sparse_mixer", 1), "'use_sparse_mixer'");
}

#[test]
fn attributes_and_operands_that_do_not_fit() {
    let check = |n: NodeProto, cause: &str| {
        refused(&of(MICROSOFT, &["2", "3", "8"], vec![], vec![n]), cause);
    };
    let heads = |n| int("num_heads", n);
    check(
        node("Attention", "x x", "y", vec![heads(0)]),
        "a number above zero",
    );
    check(
        node("MultiHeadAttention", "x x x", "y", vec![heads(3)]),
        "8 columns do not divide into 3 heads",
    );
    check(
        node("MultiHeadAttention", "x x", "y", vec![heads(2)]),
        "this form of its operands",
    );
    let evicting = |window| {
        vec![
            heads(2),
            int("kv_num_heads", 2),
            int("sliding_window_cache", 1),
            int("local_window_size", window),
        ]
    };
    check(
        node("GroupQueryAttention", "x x x _ _ x x", "y", evicting(0)),
        "above zero where 'sliding_window_cache' is set",
    );
    check(
        node("GroupQueryAttention", "x x x _ _ x x", "y", evicting(2)),
        "a window's cache that is not given",
    );
    check(
        node("FusedGemm", "x x", "y", vec![text("activation", "Other")]),
        "the activation Other",
    );
    check(
        node("SkipLayerNormalization", "x x x", "a b c d e", vec![]),
        "more than four outputs",
    );
    check(
        node("MoE", "x x x _ x", "y", vec![int("k", 0)]),
        "above zero",
    );
    for (kind, third) in [("relu", "x"), ("identity", "x"), ("relu", "_ x")] {
        let operands = format!("x r x _ x _ {third}");
        let n = node("MoE", &operands, "y", vec![text("activation_type", kind)]);
        refused(&of_experts(n), "a third product");
    }
    let fused = vec![text("activation_type", "swiglu"), int("swiglu_fusion", 2)];
    refused(
        &of_experts(node("MoE", "x r x _ x _ x", "y", fused)),
        "a third product",
    );
    let attrs = vec![
        heads(2),
        int("kv_num_heads", 2),
        int("causal", 0),
        int("local_window_size", 3),
    ];
    check(
        node("GroupQueryAttention", "x x x _ _ x x", "y", attrs),
        "a window without the causal order",
    );
    let weights = || vec![zeros("w", &[9, 3]), longs("p", &[0])];
    let n = node("RotaryEmbedding", "x p w w", "y", vec![heads(2)]);
    let m = of(MICROSOFT, &["2", "3", "8"], weights(), vec![n]);
    refused(&m, "within a head");
    let m = of(
        MICROSOFT,
        &["2", "7"],
        vec![zeros("b", &[7])],
        vec![node("BiasSplitGelu", "x b", "y", vec![])],
    );
    refused(&m, "7 columns have no halves");
    let weights = vec![
        zeros("r", &[2, 4]),
        longs("i", &[0, 0, 0]),
        longs("s", &[4, 4]),
    ];
    let n = node("CropAndResize", "x r i s", "y", vec![]);
    let m = of(MICROSOFT, &["1", "2", "5", "5"], weights, vec![n]);
    refused(&m, "batch_indices has 3 elements for 2 rois");
    check(
        node("BeamSearch", "x", "y", vec![]),
        "com.microsoft.BeamSearch",
    );
}

#[test]
fn layers_whose_weights_are_codes_run_step_by_step() {
    let codes = |name: &str, dims: &[i64]| {
        let count = dims.iter().product::<i64>() as usize;
        raw(name, 3, dims, vec![1; count])
    };
    let layer = |direction: &str, directions: i64, operands: &str, more: Vec<AttributeProto>| {
        let all = directions;
        let weights = vec![
            codes("w", &[all, 5, 12]),
            codes("r", &[all, 3, 12]),
            zeros("b", &[all, 24]),
            zeros("h", &[all, 2, 3]),
            zeros("s", &[all]),
            codes("z", &[all]),
            zeros("p", &[all, 9]),
            raw("len", I32, &[2], [2i32, 1].map(i32::to_le_bytes).concat()),
        ];
        let attributes = [
            vec![text("direction", direction), int("hidden_size", 3)],
            more,
        ];
        let n = node(
            "DynamicQuantizeLSTM",
            operands,
            "y yh yc",
            attributes.concat(),
        );
        of(MICROSOFT, &["n", "2", "5"], weights, vec![n])
    };
    let check = |direction, directions: i64, operands: &str| {
        let f = import(&layer(direction, directions, operands, vec![]));
        let ty = |(_, id): &(String, _)| f.ty(*id).to_string();
        let types: Vec<String> = f.results.iter().map(ty).collect();
        let last = format!("f32[{directions}, 2, 3]");
        assert_eq!(
            types,
            [format!("f32[n, {directions}, 2, 3]"), last.clone(), last]
        );
        let scans = f.nodes.iter().filter(|n| &*n.op == "Scan").count();
        assert_eq!(scans as i64, directions);
    };
    check("forward", 1, "x w r b _ h h _ s z s z");
    check("reverse", 1, "x w r _ _ _ _ _ s z s z");
    check("bidirectional", 2, "x w r b _ _ _ _ s z s z");
    // Sequences of their own lengths, peepholes.
    check("bidirectional", 2, "x w r b len _ _ _ s z s z");
    check("forward", 1, "x w r b _ _ _ p s z s z");
    let activations = |names: &[&str]| {
        let strings = names.iter().map(|n| n.as_bytes().to_vec()).collect();
        vec![AttributeProto {
            strings,
            ..attr("activations", AttributeType::Strings)
        }]
    };
    let operands = "x w r b _ _ _ _ s z s z";
    let default = ["Sigmoid", "Tanh", "Tanh"];
    import(&layer("forward", 1, operands, activations(&default)));
    let twice = default.repeat(2);
    import(&layer("bidirectional", 2, operands, activations(&twice)));
    import(&layer(
        "forward",
        1,
        operands,
        activations(&["Relu", "Elu", "Softsign"]),
    ));
    for names in [&twice[..], &["Sinus", "Tanh", "Tanh"]] {
        let other = layer("forward", 1, operands, activations(names));
        refused(&other, "attribute 'activations'");
    }
    let clips = |bound| {
        let m = layer("forward", 1, operands, vec![float("clip", bound)]);
        try_import(&m).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(clips(1.0), Ok(()));
    assert!(clips(-1.0).unwrap_err().contains("'clip'"));
}

#[test]
fn embeddings_of_f16_are_summed_in_f32() {
    let half = |name: &str, dims: &[i64]| {
        let count = dims.iter().product::<i64>() as usize;
        raw(name, F16, dims, vec![0; 2 * count])
    };
    let weights = vec![
        half("words", &[9, 8]),
        half("places", &[5, 8]),
        half("scale", &[8]),
    ];
    let n = NodeProto {
        domain: Some(MICROSOFT.into()),
        ..node(
            "EmbedLayerNormalization",
            "ids ids words places words scale scale",
            "y _ sum",
            vec![],
        )
    };
    let ids = vec![value("ids", I32, &["2", "3"])];
    let f = import(&model(17, graph(ids, weights, vec![n], "y sum")));
    let sums = f.nodes.iter().filter(|n| &*n.op == "Add");
    let types: Vec<String> = sums.map(|n| f.ty(n.outputs[0]).to_string()).collect();
    assert_eq!(types, ["f32[2, 3, 8]"; 2]);
    for (_, result) in &f.results {
        assert_eq!(f.ty(*result).to_string(), "f16[2, 3, 8]");
    }
}

#[test]
fn a_simplified_normalisation_may_have_a_mean() {
    let n = node(
        "SkipSimplifiedLayerNormalization",
        "x x w",
        "y mean",
        vec![],
    );
    let m = of(MICROSOFT, &["b", "3", "8"], vec![zeros("w", &[8])], vec![n]);
    let f = import(&m);
    assert_eq!(f.ty(f.results[1].1).to_string(), "f32[b, 3, 1]");
}
