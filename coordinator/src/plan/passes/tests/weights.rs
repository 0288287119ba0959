//! Tests of how weights are stored: packed, kept as codes, or left as they are.

use convoke_common::rpc::Numerics;

use super::*;
use crate::testing::gelu_of_one_branch;

#[test]
fn gemm_transposes_while_packing() {
    check_all(
        "param x: f32[2, 4]
         weight w: f32[7, 4]
         weight b: f32[7]
         y = Gemm(x, w, b) {transB=1}
         z = Gemm(x, w, b) {transB=1; alpha=0.5}
         result y
         result z",
        "init w:packed = PackGemmB(w) {trans=1}
         y = FusedGemm(x, w:packed, b) {k=4; n=7; packed=1}
         z = Gemm(x, w, b) {alpha=0.5; transB=1}
         result y = y
         result z = z",
    );
}

#[test]
fn half_weights_are_packed_as_they_are() {
    check_all(
        "param x: f32[2, 4]
         weight w: f16[4, 7]
         c = Cast(w) {to=@f32}
         y = MatMul(x, c)
         result y",
        "init w:packed = PackGemmB(w)
         y = FusedGemm(x, w:packed) {k=4; n=7; packed=1}
         result y = y",
    );
}

#[test]
fn dequantised_weights_of_a_product_stay_codes() {
    check_all(
        "param x: f32[n, 8]
         weight w: i8[8, 6]
         weight s: f32[6]
         weight z: i8[6]
         weight b: f32[6]
         d = DequantizeLinear(w, s, z)
         p = MatMul(x, d)
         y = Add(p, b)
         result y",
        "init w:transposed = Transpose(w) {perm=[1, 0]}
         init w:transposed:packed = PackCodes(w:transposed) {N=6; bits=8}
         init z:columns = Reshape(z, z:blocks)
         init z:turned = Transpose(z:columns)
         init s:columns = Reshape(s, z:blocks)
         init s:turned = Transpose(s:columns)
         y = MatMulNBits(x, w:transposed:packed, s:turned, z:turned, b) {K=8; N=6; bits=8; block_size=8; packed=1}
         result y = y",
    );
    check_all(
        "param x: f32[n, 8]
         weight w: u8[6, 8]
         weight s: f32[]
         d = DequantizeLinear(w, s)
         y = Gemm(x, d) {transB=1}
         result y",
        "init w:zero:of each column = Expand(w:zero, w:zero:dims)
         init s:of each column = Expand(s, w:zero:dims)
         init w:packed = PackCodes(w) {N=6; bits=8}
         init w:zero:of each column:columns = Reshape(w:zero:of each column, w:zero:of each column:blocks)
         init w:zero:of each column:turned = Transpose(w:zero:of each column:columns)
         init s:of each column:columns = Reshape(s:of each column, w:zero:of each column:blocks)
         init s:of each column:turned = Transpose(s:of each column:columns)
         y = MatMulNBits(x, w:packed, s:of each column:turned, w:zero:of each column:turned) {K=8; N=6; bits=8; block_size=8; packed=1}
         result y = y",
    );
    check_all(
        "param x: f32[n, 32]
         weight w: u4[32, 6]
         weight s: f32[2, 6]
         weight z: u4[2, 6]
         d = DequantizeLinear(w, s, z) {axis=0; block_size=16}
         y = MatMul(x, d)
         result y",
        "init z:number = Cast(z) {to=@f32}
         init z:number:transposed = Transpose(z:number) {perm=[1, 0]}
         init w:transposed = Transpose(w) {perm=[1, 0]}
         init s:transposed = Transpose(s) {perm=[1, 0]}
         init w:transposed:packed = PackCodes(w:transposed) {N=6; bits=4}
         init z:number:transposed:columns = Reshape(z:number:transposed, z:number:transposed:blocks)
         init z:number:transposed:turned = Transpose(z:number:transposed:columns)
         init s:transposed:columns = Reshape(s:transposed, z:number:transposed:blocks)
         init s:transposed:turned = Transpose(s:transposed:columns)
         y = MatMulNBits(x, w:transposed:packed, s:transposed:turned, z:number:transposed:turned) {K=32; N=6; bits=4; block_size=16; packed=1}
         result y = y",
    );
}

#[test]
fn dequantised_weights_of_small_blocks_become_numbers() {
    check_all(
        "param x: f32[n, 8]
         weight w: u4[8, 6]
         weight s: f32[2, 6]
         d = DequantizeLinear(w, s) {axis=0; block_size=4}
         y = MatMul(x, d)
         result y",
        "init d = DequantizeLinear(w, s) {axis=0; block_size=4}
         init d:packed = PackGemmB(d)
         y = FusedGemm(x, d:packed) {k=8; n=6; packed=1}
         result y = y",
    );
}

#[test]
fn slices_of_a_dequantised_table_are_gathered_as_codes() {
    check_all(
        "param at: i64[n]
         weight w: i8[30, 6]
         weight s: f32[]
         weight z: i8[]
         d = DequantizeLinear(w, s, z)
         y = Gather(d, at)
         result y",
        "y:codes = Gather(w, at)
         y = DequantizeLinear(y:codes, s, z)
         result y = y",
    );
}

#[test]
fn dequantised_weights_become_numbers_where_others_use_them_or_rows_have_scales() {
    check_all(
        "param x: f32[n, 8]
         weight w: i8[8, 8]
         weight s: f32[8]
         weight t: f32[]
         d = DequantizeLinear(w, s) {axis=0}
         e = DequantizeLinear(w, t)
         p = MatMul(x, d)
         q = MatMul(p, e)
         r = MatMul(q, e)
         result r",
        "init d = DequantizeLinear(w, s) {axis=0}
         init e = DequantizeLinear(w, t)
         init d:packed = PackGemmB(d)
         p = FusedGemm(x, d:packed) {k=8; n=8; packed=1}
         init e:packed = PackGemmB(e)
         q = FusedGemm(p, e:packed) {k=8; n=8; packed=1}
         r = FusedGemm(q, e:packed) {k=8; n=8; packed=1}
         result r = r",
    );
}

#[test]
fn depthwise_weights_stay_raw() {
    check_all(
        "param x: f32[1, 8, 8, 8]
         weight w: f32[8, 1, 3, 3]
         y = Conv(x, w) {group=8}
         result y",
        "y = FusedConv(x, w) {group=8; packed=0; w_shape=[8, 1, 3, 3]}
         result y = y",
    );
}

#[test]
fn the_weights_of_a_recurrent_layer_are_packed() {
    check(
        pack::run,
        "param x: f32[5, 1, 3]
         weight w: f32[1, 6, 3]
         weight r: f32[1, 6, 2]
         y = GRU(x, w, r)
         z = GRU(x, w, r) {linear_before_reset=1}
         result y
         result z",
        "init w:packed = PackRecurrent(w) {parts=[3]}
         init r:packed = PackRecurrent(r) {parts=[2, 1]}
         y = GRU(x, w:packed, r:packed) {hidden_size=2; packed_input_size=3}
         init r:packed.2 = PackRecurrent(r) {parts=[3]}
         z = GRU(x, w:packed, r:packed.2) {hidden_size=2; linear_before_reset=1; packed_input_size=3}
         result y = y
         result z = z
         ",
    );
}

#[test]
fn codes_of_blocks_are_packed_and_their_parameters_turned() {
    let of = "K=40; N=3; bits=4; block_size=16";
    let check_zeros = |zeros: &str, operand: &str, made: &[&str], packed: &str| {
        let function = [
            "param x: f32[5, 40]",
            "weight w: u8[3, 3, 8]",
            "weight s: f32[9]",
            zeros,
            &format!("y = MatMulNBits(x, w, s{operand}) {{{of}}}"),
            "result y",
        ];
        let mut want = vec!["init w:packed = PackCodes(w) {N=3; bits=4}"];
        want.extend(made);
        let product = format!("y = MatMulNBits(x, w:packed, s:turned{packed}) {{{of}; packed=1}}");
        want.extend([product.as_str(), "result y = y\n"]);
        check(pack::run, &function.join("\n"), &want.join("\n"));
    };
    let scales = [
        "init s:columns = Reshape(s, s:blocks)",
        "init s:turned = Transpose(s:columns)",
    ];
    check_zeros("", "", &scales, "");
    let codes = [
        "init z:packed = PackCodes(z) {N=3; bits=4}",
        scales[0],
        scales[1],
    ];
    check_zeros("weight z: u8[6]", ", z", &codes, ", z:packed");
    let numbers = [
        "init z:columns = Reshape(z, z:blocks)",
        "init z:turned = Transpose(z:columns)",
        scales[0],
        scales[1],
    ];
    check_zeros("weight z: f32[3, 3]", ", z", &numbers, ", z:turned");
}

#[test]
fn what_products_of_other_sizes_share_is_packed_for_each() {
    check(
        pack::run,
        "param x: f32[1, 32]
         param z: f32[1, 16]
         weight w: u8[1024]
         weight s: f32[128]
         y = MatMulNBits(x, w, s) {K=32; N=64; bits=4; block_size=16}
         u = MatMulNBits(z, w, s) {K=16; N=128; bits=4; block_size=16}
         v = MatMulNBits(x, w, s) {K=32; N=64; bits=4; block_size=16}
         result y
         result u
         result v",
        "init w:packed = PackCodes(w) {N=64; bits=4}
         init s:columns = Reshape(s, s:blocks)
         init s:turned = Transpose(s:columns)
         y = MatMulNBits(x, w:packed, s:turned) {K=32; N=64; bits=4; block_size=16; packed=1}
         init w:packed.2 = PackCodes(w) {N=128; bits=4}
         init s:columns.2 = Reshape(s, s:blocks.2)
         init s:turned.2 = Transpose(s:columns.2)
         u = MatMulNBits(z, w:packed.2, s:turned.2) {K=16; N=128; bits=4; block_size=16; packed=1}
         v = MatMulNBits(x, w:packed, s:turned) {K=32; N=64; bits=4; block_size=16; packed=1}
         result y = y
         result u = u
         result v = v
         ",
    );
}

#[test]
fn products_become_products_of_codes_where_their_file_and_their_blocks_allow_it() {
    let of = |k: i64, attrs: &str| {
        format!(
            "param x: f32[1, {k}]
             weight w: u8[1024]
             weight s: f32[64]
             y = MatMulNBits(x, w, s) {{{attrs}}}
             result y"
        )
    };
    let check_op = |k: i64, attrs: &str, numerics: Numerics, op: &str| {
        let f = optimise(parse(&of(k, attrs)), numerics).unwrap().function;
        assert!(f.nodes.iter().any(|n| &*n.op == op), "{attrs}: {f}");
    };
    let allowed = "K=32; N=64; bits=4; block_size=32; accuracy_level=4";
    check_op(32, allowed, Numerics::Int8, "MatMulNBitsInt8");
    check_op(32, allowed, Numerics::Standard, "MatMulNBits");
    check_op(32, allowed, Numerics::Exact, "MatMulNBits");
    let exact = "K=32; N=64; bits=4; block_size=32";
    check_op(32, exact, Numerics::Int8, "MatMulNBits");
    let long = "K=512; N=4; bits=4; block_size=512; accuracy_level=4";
    let f = parse(&of(512, long).replace("f32[64]", "f32[4]"));
    let f = optimise(f, Numerics::Int8).unwrap().function;
    assert!(f.nodes.iter().any(|n| &*n.op == "MatMulNBits"), "{f}");
}

/// A product that one branch alone reads, and products of the file's own branch and loop, become products of codes, and
/// stay so wherever the plan lets them run.
#[test]
fn products_become_products_of_codes_within_control_flow_too() {
    let product = "MatMulNBits(x, w, s) {K=32; N=32; bits=4; block_size=32; accuracy_level=4}";
    let own = format!(
        "param h: f32[1, 32]
         param x: f32[1, 32]
         param w: u8[512]
         param s: f32[32]
         y = {product}
         result y"
    );
    let own = parse(&own);
    let other = parse(
        "param h: f32[1, 32]
         param x: f32[1, 32]
         param w: u8[512]
         param s: f32[32]
         y = Relu(h)
         result y",
    );
    let text = format!(
        "param c: bool[]
         param x: f32[1, 32]
         weight w: u8[512]
         weight s: f32[32]
         h = {product}
         z = If(c, h, x, w, s) {{then_branch=&other; else_branch=&own}}
         result z"
    );
    for outside in [false, true] {
        let f = parse_with(&text, &[("own", &own), ("other", &other)]);
        let f = optimise_in_place(f, Numerics::Int8, &|_| outside)
            .unwrap()
            .function;
        let all = dump(&f);
        let bodies = f.nodes.iter().flat_map(|n| n.attrs.functions());
        let bodies: String = bodies.map(|(_, f)| dump(f)).collect();
        let count = |text: &str, op: &str| text.matches(&format!("{op}(")).count();
        let found = |op| (count(&all, op), count(&bodies, op));
        let expected = if outside { (1, 1) } else { (0, 2) };
        assert_eq!(found("MatMulNBitsInt8"), expected, "{all}\n{bodies}");
        assert_eq!(found("MatMulNBits"), (0, 0), "{all}\n{bodies}");
    }
}

/// A GELU that is written as one op stays one op wherever the plan lets it run.
#[test]
fn a_gelu_that_one_branch_reads_has_the_same_ops_wherever_it_runs() {
    for outside in [false, true] {
        let f = optimise_in_place(gelu_of_one_branch(), Numerics::Standard, &|_| outside)
            .unwrap()
            .function;
        let bodies = f.nodes.iter().flat_map(|n| n.attrs.functions());
        let all: String = bodies.map(|(_, f)| dump(f)).chain([dump(&f)]).collect();
        assert!(all.contains("Gelu") && !all.contains("Erf"), "{all}");
    }
}
