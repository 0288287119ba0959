//! Tests of each pass: text before, text after.

mod weights;

use convoke_graph::DType;
use convoke_graph::graph::{Literal, RunsAt, TensorType};
use convoke_graph::tensor::Tensor;

use super::*;
use crate::testing::{dedent, dump, parse, parse_with, random};

/// Runs `pass`, and prunes the nodes that it left unused.
fn check(pass: Pass, before: &str, after: &str) {
    let (f, _) = pass(parse(before));
    let (f, _) = prune::run(f);
    f.verify().unwrap_or_else(|e| panic!("{e}\n{}", dump(&f)));
    assert_eq!(dump(&f), dedent(after));
}

/// Runs all passes.
fn check_all(before: &str, after: &str) {
    let f = optimise(parse(before), convoke_common::rpc::Numerics::Standard)
        .unwrap()
        .function;
    assert_eq!(dump(&f), dedent(after));
}

#[test]
fn prune_leaves_the_number_of_parts_that_a_tensor_is_cut_into() {
    let f = parse(
        "param x: f32[6, 2]
         a, b, c = Split(x) {axis=0}
         result a",
    );
    let (after, _) = prune::run(f.clone());
    assert_eq!(dump(&after), dump(&f));
}

#[test]
fn prune_drops_what_nobody_uses() {
    let f = parse(
        "param x: f32[2, 2]
         param unused: f32[1]
         weight w: f32[2, 2]
         weight dead: f32[9]
         a = Relu(x)
         b = Add(a, w)
         c = Tanh(dead)
         result a",
    );
    let (f, report) = prune::run(f);
    assert_eq!(dump(&f), "a = Relu(x)\nresult a = a\n");
    assert_eq!(
        (
            f.values.len(),
            f.params.len(),
            f.literals.len(),
            f.artifacts.len()
        ),
        (3, 2, 0, 0)
    );
    assert_eq!(report.as_deref(), Some("removed 2 nodes and 2 constants"));
}

#[test]
fn known_shapes_become_constants() {
    check(
        fold::run,
        "param x: f32[2, n, 12]
         const one: i64[] = 1
         const heads: i64[1] = 3
         const zero: i64[] = 0
         const at: i64[1] = 0
         s = Shape(x)
         n = Gather(s, one)
         b = Gather(s, zero)
         b1 = Unsqueeze(b, at)
         both = Concat(b1, heads) {axis=0}
         result n
         result both",
        "s = Shape(x)
         n = Gather(s, one)
         result n = n
         result both = both",
    );
}

#[test]
fn nodes_without_effect_go() {
    check(
        identity::run,
        "param x: f32[2, 3]
         const same: i64[2] = 2, 3
         const other: i64[2] = 3, 2
         const none: i64[4] = 0, 0, 0, 0
         a = Identity(x)
         b = Reshape(a, same)
         c = Cast(b) {to=@f32}
         d = Transpose(c) {perm=[0, 1]}
         e = Pad(d, none)
         f = Dropout(e)
         g = Reshape(f, other)
         h = Transpose(g) {perm=[1, 0]}
         result h
         result f",
        "g = Reshape(x, other)
         h = Transpose(g) {perm=[1, 0]}
         result h = h
         result f = x",
    );
}

#[test]
fn transposes_merge_and_cost_nothing_where_they_keep_the_order() {
    check(
        transpose::run,
        "param x: f32[2, 3, n]
         param y: f32[n, 1, 4]
         param z: f32[n, m, 1]
         a = Transpose(x) {perm=[2, 0, 1]}
         b = Transpose(a) {perm=[1, 0, 2]}
         c = Transpose(b)
         d = Transpose(y) {perm=[1, 0, 2]}
         e = Transpose(z) {perm=[2, 0, 1]}
         f = Transpose(y)
         result a
         result c
         result d
         result e
         result f",
        "a = Transpose(x) {perm=[2, 0, 1]}
         c = Transpose(x) {perm=[1, 2, 0]}
         d = Reshape(y, d:shape)
         e = Transpose(z) {perm=[2, 0, 1]}
         f = Transpose(y)
         result a = a
         result c = c
         result d = d
         result e = e
         result f = f",
    );
    // The second transpose undoes the first: both vanish, and the op before them fuses with the one behind.
    check_all(
        "param x: f32[n, 5, 4]
         weight w: f32[4, 4]
         p = MatMul(x, w)
         a = Transpose(p) {perm=[2, 0, -2]}
         b = Transpose(a) {perm=[1, 2, 0]}
         y = Relu(b)
         result y",
        r#"init w:packed = PackGemmB(w)
         y = FusedGemm(x, w:packed) {activation="Relu"; k=4; n=4; packed=1}
         result y = y"#,
    );
}

#[test]
fn a_reversing_slice_stays() {
    let text = "param x: f32[4]
         const start: i64[1] = -1
         const end: i64[1] = -9
         const axis: i64[1] = 0
         const step: i64[1] = -1
         y = Slice(x, start, end, axis, step)
         result y";
    check(
        identity::run,
        text,
        "y = Slice(x, start, end, axis, step)\nresult y = y",
    );
}

#[test]
fn equal_nodes_and_constants_merge() {
    check(
        cse::run,
        "param x: f32[2]
         const k: f32[] = 2.0
         const l: f32[] = 2.0
         const m: f32[] = -0.0
         const z: f32[] = 0.0
         a = Mul(x, k)
         b = Mul(x, l)
         c = Add(a, b)
         d = LeakyRelu(c) {alpha=0.1}
         e = LeakyRelu(c) {alpha=0.2}
         g = Add(d, m)
         h = Add(d, z)
         result e
         result g
         result h",
        "a = Mul(x, k)
         c = Add(a, a)
         d = LeakyRelu(c) {alpha=0.1}
         e = LeakyRelu(c) {alpha=0.2}
         g = Add(d, m)
         h = Add(d, z)
         result e = e
         result g = g
         result h = h",
    );
}

#[test]
fn constant_work_moves_to_init() {
    check(
        init::run,
        "param x: f32[2]
         weight w: f32[2]
         a = Sqrt(w)
         b = Mul(a, w)
         c = Mul(b, x)
         result c",
        "init a = Sqrt(w)
         init b = Mul(a, w)
         c = Mul(b, x)
         result c = c",
    );
}

const CONV_BN: &str = "param x: f32[1, 3, 8, 8]
     weight w: f32[4, 3, 3, 3]
     weight scale: f32[4]
     weight shift: f32[4]
     weight mean: f32[4]
     weight var: f32[4]
     y = Conv(x, w) {pads=[1, 1, 1, 1]}
     z = BatchNormalization(y, scale, shift, mean, var)
     r = Relu(z)
     result r";

#[test]
fn batch_norm_becomes_weights() {
    check(
        batch_norm::run,
        CONV_BN,
        "init z:variance = Add(var, z:epsilon)
         init z:deviation = Sqrt(z:variance)
         init z:factor = Div(scale, z:deviation)
         init z:wide factor = Reshape(z:factor, z:shape)
         init z:weight = Mul(w, z:wide factor)
         init z:scaled = Mul(mean, z:factor)
         init z:bias = Sub(shift, z:scaled)
         z = Conv(x, z:weight, z:bias) {pads=[1, 1, 1, 1]}
         r = Relu(z)
         result r = r",
    );
}

/// Weights of 16 bits are folded in f32 and rounded once; statistics may have more bits than they.
#[test]
fn batch_norm_becomes_weights_of_16_bits() {
    check(
        batch_norm::run,
        "param x: f16[1, 3, 8, 8]
         weight w: f16[4, 3, 3, 3]
         weight scale: f16[4]
         weight shift: f16[4]
         weight mean: f32[4]
         weight var: f32[4]
         y = Conv(x, w)
         z = BatchNormalization(y, scale, shift, mean, var)
         result z",
        "init z:wide scale = Cast(scale) {to=@f32}
         init z:wide shift = Cast(shift) {to=@f32}
         init z:wide weight = Cast(w) {to=@f32}
         init z:variance = Add(var, z:epsilon)
         init z:deviation = Sqrt(z:variance)
         init z:factor = Div(z:wide scale, z:deviation)
         init z:wide factor = Reshape(z:factor, z:shape)
         init z:weight = Mul(z:wide weight, z:wide factor)
         init z:scaled = Mul(mean, z:factor)
         init z:bias = Sub(z:wide shift, z:scaled)
         init z:narrow weight = Cast(z:weight) {to=@f16}
         init z:narrow bias = Cast(z:bias) {to=@f16}
         z = Conv(x, z:narrow weight, z:narrow bias)
         result z = z",
    );
}

/// Constants that an init node behind the convolution computes are defined before they are read.
#[test]
fn batch_norm_with_constants_computed_behind_the_convolution_becomes_weights() {
    check(
        batch_norm::run,
        "param x: f32[1, 3, 8, 8]
         weight w: f32[4, 3, 3, 3]
         weight g: f32[4]
         weight shift: f32[4]
         weight mean: f32[4]
         weight var: f32[4]
         y = Conv(x, w)
         init scale = Mul(g, g)
         z = BatchNormalization(y, scale, shift, mean, var)
         result z",
        "init scale = Mul(g, g)
         init z:variance = Add(var, z:epsilon)
         init z:deviation = Sqrt(z:variance)
         init z:factor = Div(scale, z:deviation)
         init z:wide factor = Reshape(z:factor, z:shape)
         init z:weight = Mul(w, z:wide factor)
         init z:scaled = Mul(mean, z:factor)
         init z:bias = Sub(shift, z:scaled)
         z = Conv(x, z:weight, z:bias)
         result z = z",
    );
}

#[test]
fn nodes_and_constants_that_only_look_equal_are_told_apart() {
    let n = 30_000;
    let mut text = String::from("param x: f32[2]\n");
    for i in 0..n {
        text += &format!("y{i} = LeakyRelu(x) {{alpha={}}}\n", (i + 1) as f32 / 1e6);
    }
    let mut f = parse(&format!("{text}result y0"));
    for i in 0..n {
        let ty = TensorType::fixed(DType::F32, &[0, i]);
        let v = f.add_value(format!("c{i}").as_str(), ty);
        let empty = Tensor::from_slice::<f32>(&[0, i], &[]).unwrap();
        f.literals.push((v, Literal::Inline(empty)));
    }
    let (f, report) = cse::run(f);
    assert_eq!((f.nodes.len(), report), (n, None));
}

#[test]
fn exact_results_keep_batch_norm() {
    let f = optimise(parse(CONV_BN), convoke_common::rpc::Numerics::Exact)
        .unwrap()
        .function;
    assert!(
        f.nodes.iter().any(|n| &*n.op == "BatchNormalization"),
        "{}",
        dump(&f)
    );
    let f = optimise(parse(CONV_BN), convoke_common::rpc::Numerics::Standard)
        .unwrap()
        .function;
    let steps: Vec<&str> = f
        .nodes
        .iter()
        .filter(|n| n.runs_at == RunsAt::Step)
        .map(|n| &*n.name)
        .collect();
    assert_eq!(steps, ["y+z+r"]);
}

#[test]
fn convolutions_take_bias_residual_and_activation() {
    check(
        fuse::run,
        "param x: f32[1, 4, 8, 8]
         weight w: f32[4, 4, 1, 1]
         weight bias: f32[4]
         a = Conv(x, w, bias)
         s = Add(x, a)
         r = Relu(s)
         result r",
        r#"r = FusedConv(x, w, bias, x) {activation="Relu"; packed=0; w_shape=[4, 4, 1, 1]}
         result r = r"#,
    );
}

#[test]
fn a_bias_that_is_made_behind_the_convolution_is_read_behind_it() {
    check_all(
        "param x: f32[1, 4, 8, 8]
         weight w: f32[4, 4, 1, 1]
         weight b: f32[1, 1, 1, 4]
         a = Conv(x, w)
         t = Transpose(b) {perm=[0, 3, 1, 2]}
         y = Add(a, t)
         result y",
        r#"init t = Reshape(b, t:shape)
         init t:vector = Reshape(t, t:dims)
         init w:packed = PackConvW(w) {group=1}
         y = FusedConv(x, w:packed, t:vector) {packed=1; w_shape=[4, 4, 1, 1]}
         result y = y"#,
    );
}

#[test]
fn of_two_convolutions_the_later_takes_the_sum() {
    check(
        fuse::run,
        "param x: f32[1, 4, 8, 8]
         weight v: f32[4, 4, 1, 1]
         weight w: f32[4, 4, 1, 1]
         a = Conv(x, v)
         b = Conv(x, w)
         s = Add(a, b)
         result s",
        "a = FusedConv(x, v) {packed=0; w_shape=[4, 4, 1, 1]}
         s = FusedConv(x, w, _, a) {packed=0; w_shape=[4, 4, 1, 1]}
         result s = s",
    );
}

#[test]
fn what_others_use_is_not_fused_away() {
    check(
        fuse::run,
        "param x: f32[1, 4, 8, 8]
         weight w: f32[4, 4, 1, 1]
         a = Conv(x, w)
         r = Relu(a)
         t = Tanh(a)
         b = Conv(r, w)
         u = Relu(b)
         result t
         result u
         result b",
        "a = FusedConv(x, w) {packed=0; w_shape=[4, 4, 1, 1]}
         r = Relu(a)
         t = Tanh(a)
         b = FusedConv(r, w) {packed=0; w_shape=[4, 4, 1, 1]}
         u = Relu(b)
         result t = t
         result u = u
         result b = b",
    );
}

#[test]
fn gates_and_clips_are_activations() {
    check(
        fuse::run,
        "param x: f32[1, 4, 8, 8]
         weight w: f32[4, 4, 1, 1]
         const zero: f32[] = 0.0
         const six: f32[] = 6.0
         a = Conv(x, w)
         g = Sigmoid(a)
         m = Mul(a, g)
         b = Conv(m, w)
         c = Clip(b, zero, six)
         result c",
        r#"m = FusedConv(x, w) {activation="Silu"; packed=0; w_shape=[4, 4, 1, 1]}
         c = FusedConv(m, w) {act_alpha=0.0; act_beta=6.0; activation="Clip"; packed=0; w_shape=[4, 4, 1, 1]}
         result c = c"#,
    );
}

#[test]
fn matrix_products_take_bias_and_activation_and_share_packed_weights() {
    check_all(
        "param x: f32[n, 5, 4]
         weight w: f32[4, 4]
         weight b: f32[1, 1, 4]
         p = MatMul(x, w)
         q = Add(b, p)
         r = Relu(q)
         s = MatMul(r, w)
         result s",
        r#"init b:vector = Reshape(b, b:dims)
         init w:packed = PackGemmB(w)
         r = FusedGemm(x, w:packed, b:vector) {activation="Relu"; k=4; n=4; packed=1}
         s = FusedGemm(r, w:packed) {k=4; n=4; packed=1}
         result s = s"#,
    );
}

#[test]
fn products_of_halves_are_fused_up_to_where_the_separate_ops_round() {
    check_all(
        "param x: f16[2, 4]
         weight w: f16[4, 7]
         weight b: f16[7]
         y = MatMul(x, w)
         s = Add(y, b)
         g = Gemm(x, w, b)
         r = Relu(g)
         result s
         result r",
        "init w:packed = PackGemmB(w)
         y = FusedGemm(x, w:packed) {k=4; n=7; packed=1}
         s = Add(y, b)
         g = FusedGemm(x, w:packed, b) {k=4; n=7; packed=1}
         r = Relu(g)
         result s = s
         result r = r",
    );
    check_all(
        "param x: bf16[1, 4, 5, 5]
         weight w: bf16[6, 4, 3, 3]
         weight b: bf16[6]
         y = Conv(x, w, b)
         r = Relu(y)
         z = Conv(x, w)
         t = Add(z, z)
         result r
         result t",
        r#"init w:packed = PackConvW(w) {group=1}
         r = FusedConv(x, w:packed, b) {activation="Relu"; packed=1; w_shape=[6, 4, 3, 3]}
         z = FusedConv(x, w:packed) {packed=1; w_shape=[6, 4, 3, 3]}
         t = Add(z, z)
         result r = r
         result t = t"#,
    );
}

#[test]
fn gates_of_halves_are_rounded_before_they_are_multiplied() {
    for (gate, activation) in [
        ("Sigmoid(y)", "GatedSigmoid"),
        ("HardSigmoid(y) {alpha=0.16666667}", "GatedHardSigmoid"),
    ] {
        check_all(
            &format!(
                "param x: f16[1, 4, 5, 5]
                 weight w: f16[6, 4, 3, 3]
                 y = Conv(x, w)
                 g = {gate}
                 r = Mul(y, g)
                 result r"
            ),
            &format!(
                r#"init w:packed = PackConvW(w) {{group=1}}
                 r = FusedConv(x, w:packed) {{activation="{activation}"; packed=1; w_shape=[6, 4, 3, 3]}}
                 result r = r"#
            ),
        );
    }
}

#[test]
fn written_out_gelu_and_layer_norm_are_found() {
    check(
        rewrite::run,
        "param x: f32[n, 8]
         weight gamma: f32[8]
         weight beta: f32[8]
         const last: i64[1] = -1
         const two: f32[] = 2.0
         const eps: f32[] = 0.00001
         const root: f32[] = 1.4142135
         const one: f32[] = 1.0
         const half: f32[] = 0.5
         m = ReduceMean(x, last)
         d = Sub(x, m)
         q = Pow(d, two)
         v = ReduceMean(q, last)
         e = Add(v, eps)
         s = Sqrt(e)
         n = Div(d, s)
         g = Mul(n, gamma)
         l = Add(g, beta)
         a = Div(l, root)
         b = Erf(a)
         c = Add(b, one)
         h = Mul(l, c)
         y = Mul(h, half)
         result y",
        "l = LayerNormalization(x, gamma, beta) {axis=-1; epsilon=1e-5}
         y = Gelu(l)
         result y = y",
    );
}

#[test]
fn random_graphs_stay_valid_and_keep_their_results() {
    for seed in 0..40 {
        let f = random(seed, 60);
        let o = optimise(
            f.clone(),
            convoke_common::rpc::Numerics::ALL[seed as usize % 3],
        )
        .unwrap();
        let names = |f: &Function| f.results.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
        let types = |f: &Function| {
            f.results
                .iter()
                .map(|(_, v)| f.ty(*v).clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&f), names(&o.function));
        assert_eq!(types(&f), types(&o.function));
        assert_eq!(f.params.len(), o.function.params.len());
        let again = optimise(f, convoke_common::rpc::Numerics::ALL[seed as usize % 3]).unwrap();
        assert_eq!(again.function, o.function, "seed {seed}");
    }
}

#[test]
fn ops_that_are_not_known_stay_as_they_are() {
    let text = "weight w: f32[2]
         a = test.Unknown(w)
         b = test.Unknown(w)
         s = Shape(a)
         i = Identity(s)
         result b
         result i";
    let f = parse(&text.replace("s = Shape(a)", "s, t = test.Shape(a)"));
    let after = optimise(f, convoke_common::rpc::Numerics::Standard)
        .unwrap()
        .function;
    let want = "a = test.Unknown(w)
         b = test.Unknown(w)
         s, t = test.Shape(a)
         result b = b
         result i = s";
    assert_eq!(dump(&after), dedent(want));
    assert!(after.nodes.iter().all(|n| n.runs_at == RunsAt::Step));
}
