//! Products, convolutions, pools and attention, beside the kernels of the CPU.

use super::*;

/// The part of an element by which a product may differ from the CPU's: none in f32, and one in the last place of those
/// dtypes that tensor cores multiply.
fn of_product(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 0.0,
        DType::F16 => 1e-3,
        _ => 8e-3,
    }
}

#[test]
fn products_have_the_bits_of_the_cpu() {
    let device = device("products");
    for dtype in FLOATS {
        for (a, b) in [
            (&[3, 5][..], &[5, 2][..]),
            (&[70, 33], &[33, 131]),
            (&[2, 1, 4, 7], &[3, 7, 5]),
            (&[2, 3, 4], &[4, 2]),
            (&[9], &[9, 3]),
            (&[3, 9], &[9]),
            (&[2, 0], &[0, 3]),
            (&[300, 150], &[150, 70]),
            (&[40, 64], &[64]),
            (&[64, 10], &[10, 500]),
        ] {
            let given = [floats(dtype, a, 6), floats(dtype, b, 7)];
            check(
                &device,
                "MatMul",
                &Attrs::default(),
                &given,
                1,
                of_product(dtype),
            );
        }
        let gemm = int("transA", 1)
            .with("transB", Attr::Int(1))
            .with("alpha", Attr::Float(0.5));
        let gemm = gemm.with("beta", Attr::Float(2.0));
        let given = [
            floats(dtype, &[9, 5], 8),
            floats(dtype, &[66, 9], 9),
            floats(dtype, &[66], 10),
        ];
        check(&device, "Gemm", &gemm, &given, 1, of_product(dtype));
        for n in [5, 50, 113] {
            let weight = floats(dtype, &[20, n], 11);
            let packed = on_cpu("PackGemmB", &Attrs::default(), &[weight], 1).remove(0);
            let fused = int("packed", 1)
                .with("k", Attr::Int(20))
                .with("n", Attr::Int(n as i64));
            let fused = fused.with("activation", Attr::Str("Gelu".into()));
            let given = [floats(dtype, &[3, 20], 12), packed, floats(dtype, &[n], 13)];
            check(&device, "FusedGemm", &fused, &given, 1, of_product(dtype));
        }
    }
}

/// Stacks this many equal matrices.
fn stacked(matrix: &Tensor, count: usize) -> Tensor {
    let whole: Vec<i64> = [count]
        .iter()
        .chain(matrix.shape())
        .map(|d| *d as i64)
        .collect();
    let given = [matrix.clone(), ints(&whole)];
    on_cpu("Expand", &Attrs::default(), &given, 1).remove(0)
}

/// The first rows of a matrix.
fn rows_of(matrix: &Tensor, rows: i64) -> Tensor {
    let given = [matrix.clone(), ints(&[0]), ints(&[rows]), ints(&[0])];
    on_cpu("Slice", &Attrs::default(), &given, 1).remove(0)
}

/// Many matrices are made in large tiles, one in small ones.
#[test]
fn neither_tile_nor_batch_changes_a_bit_of_a_product() {
    let device = device("tiles");
    let one = |op: &str, attrs: &Attrs, given: &[Tensor]| {
        let made = on_device(&device, op, attrs, given, 1).unwrap();
        made.into_iter().next().unwrap().unwrap()
    };
    let of_two =
        |op: &str, x: &Tensor, y: &Tensor| one(op, &Attrs::default(), &[x.clone(), y.clone()]);
    let matmul = |x: &Tensor, y: &Tensor| of_two("MatMul", x, y);
    let conv = |x: &Tensor, w: &Tensor| of_two("Conv", x, w);
    let check = |whole: &Tensor, alone: &Tensor, what: &str| {
        let size = alone.bytes().len();
        for (i, part) in whole.bytes().chunks(size).enumerate() {
            assert!(
                part == alone.bytes(),
                "{what}: matrix {i} of many has other bits than alone"
            );
        }
    };
    for dtype in FLOATS {
        // The last K has an end within a step, the one before has fewer steps than parts.
        for (edge, k) in [(32, 300), (64, 72), (128, 150)] {
            let (x, y) = (floats(dtype, &[edge, k], 41), floats(dtype, &[k, edge], 42));
            let alone = matmul(&x, &y);
            let count = 130;
            let what = format!("{dtype} {edge} {k}");
            check(
                &matmul(&stacked(&x, count), &stacked(&y, count)),
                &alone,
                &what,
            );
            // The first row alone.
            let first = rows_of(&x, 1);
            let row = matmul(&first, &y);
            assert!(
                alone.bytes().starts_with(row.bytes()),
                "{what}: a row alone has other bits"
            );
        }
        // Windows of several taps and of one, in tiles of the two middle sizes.
        for w in [&[70, 9, 2, 2], &[40, 9, 1, 1]] {
            let (x, w) = (floats(dtype, &[9, 9, 9], 43), floats(dtype, w, 44));
            let alone = conv(&stacked(&x, 1), &w);
            let many = conv(&stacked(&x, 130), &w);
            check(&many, &alone, &format!("{dtype} conv {w:?}"));
        }
        // Packed weights, of which the last panels are not full.
        let packed = on_cpu(
            "PackGemmB",
            &Attrs::default(),
            &[floats(dtype, &[40, 500], 46)],
            1,
        );
        let fused = int("packed", 1)
            .with("k", Attr::Int(40))
            .with("n", Attr::Int(500));
        let x = floats(dtype, &[260, 40], 47);
        let many = one("FusedGemm", &fused, &[x.clone(), packed[0].clone()]);
        let first = rows_of(&x, 1);
        let row = one("FusedGemm", &fused, &[first, packed[0].clone()]);
        assert!(many.bytes().starts_with(row.bytes()), "{dtype} packed");
        let (x, w) = (
            floats(dtype, &[1, 9, 40, 41], 48),
            floats(dtype, &[37, 9, 1, 1], 49),
        );
        let packed = on_cpu("PackConvW", &Attrs::default(), std::slice::from_ref(&w), 1);
        let fused = Attrs::default().with("w_shape", Attr::Ints(vec![37, 9, 1, 1]));
        let plain = one("FusedConv", &fused, &[x.clone(), w]);
        let fused = fused.with("packed", Attr::Int(1));
        assert_eq!(
            plain.bytes(),
            one("FusedConv", &fused, &[x, packed[0].clone()]).bytes()
        );
    }
}

#[test]
fn every_activation_follows_a_product() {
    let device = device("activations");
    let given = [
        floats(DType::F32, &[3, 5], 36),
        floats(DType::F32, &[5, 4], 37),
    ];
    for activation in [
        "Relu",
        "Clip",
        "Sigmoid",
        "HardSwish",
        "HardSigmoid",
        "Silu",
        "Gelu",
        "GeluTanh",
        "Tanh",
        "LeakyRelu",
    ] {
        let attrs = Attrs::default().with("activation", Attr::Str(activation.into()));
        let attrs = attrs
            .with("act_alpha", Attr::Float(-0.75))
            .with("act_beta", Attr::Float(0.5));
        check(&device, "FusedGemm", &attrs, &given, 1, 0.0);
    }
}

#[test]
fn convolutions_have_the_bits_of_the_cpu() {
    let device = device("convolutions");
    let list = |attrs: Attrs, name: &str, list: &[i64]| attrs.with(name, Attr::Ints(list.into()));
    for dtype in FLOATS {
        for (x, w, attrs) in [
            // One, two and three spatial axes; more filters and windows than a tile has; unequal padding.
            (
                &[2, 3, 9][..],
                &[20, 3, 4][..],
                list(int("group", 1), "pads", &[2, 0]),
            ),
            (
                &[1, 5, 12, 9],
                &[70, 5, 3, 3],
                list(int("group", 1), "pads", &[1, 1, 1, 1]),
            ),
            (
                &[2, 4, 7, 8],
                &[40, 2, 3, 2],
                list(int("group", 2), "strides", &[2, 3]),
            ),
            (
                &[1, 2, 5, 4, 6],
                &[17, 2, 2, 3, 2],
                list(int("group", 1), "dilations", &[2, 1, 3]),
            ),
            // Groups of few filters.
            (
                &[2, 6, 8, 7],
                &[6, 1, 3, 3],
                list(int("group", 6), "pads", &[0, 1, 2, 1]),
            ),
            (&[1, 4, 5, 5], &[8, 2, 2, 2], int("group", 2)),
            (&[1, 3, 6, 6], &[18, 3, 1, 1], int("group", 1)),
            (&[0, 3, 6, 6], &[18, 3, 1, 1], int("group", 1)),
        ] {
            let given = [
                floats(dtype, x, 21),
                floats(dtype, w, 22),
                floats(dtype, &w[..1], 23),
            ];
            check(&device, "Conv", &attrs, &given, 1, of_product(dtype));
            check(&device, "Conv", &attrs, &given[..2], 1, of_product(dtype));
            let plain = on_cpu("Conv", &attrs, &given[..2], 1).remove(0);
            let group = int("group", attrs.int("group", 1));
            let packed = on_cpu("PackConvW", &group, &given[1..2], 1).remove(0);
            let shape: Vec<i64> = w.iter().map(|d| *d as i64).collect();
            for activation in ["Relu", "Silu"] {
                let fused = list(attrs.clone(), "w_shape", &shape);
                let fused = fused.with("activation", Attr::Str(activation.into()));
                let [x, w, bias] = given.clone();
                let residual = floats(dtype, plain.shape(), 24);
                let whole = [x, w, bias, residual];
                check(&device, "FusedConv", &fused, &whole, 1, of_product(dtype));
                let [x, _, bias, residual] = whole;
                let fused = fused.with("packed", Attr::Int(1));
                check(
                    &device,
                    "FusedConv",
                    &fused,
                    &[x, packed.clone(), bias, residual],
                    1,
                    of_product(dtype),
                );
            }
        }
    }
}

#[test]
fn pools_have_the_bits_of_the_cpu() {
    let device = device("pools");
    let of = |kernel: &[i64]| Attrs::default().with("kernel_shape", Attr::Ints(kernel.into()));
    let list = |attrs: Attrs, name: &str, list: &[i64]| attrs.with(name, Attr::Ints(list.into()));
    for dtype in FLOATS {
        for (x, attrs) in [
            (&[2, 3, 11][..], of(&[3])),
            (
                &[1, 2, 9, 8],
                list(list(of(&[3, 2]), "strides", &[2, 2]), "pads", &[1, 0, 1, 1]),
            ),
            (&[1, 2, 9, 8], list(of(&[2, 3]), "dilations", &[3, 2])),
            (
                &[1, 3, 4, 5, 6],
                list(of(&[2, 2, 3]), "pads", &[1, 1, 1, 0, 0, 1]),
            ),
            (
                &[1, 1, 7, 6],
                list(of(&[3, 3]), "strides", &[2, 3]).with("ceil_mode", Attr::Int(1)),
            ),
            (
                &[1, 2, 7, 7],
                list(of(&[2, 2]), "strides", &[2, 2])
                    .with("auto_pad", Attr::Str("SAME_UPPER".into())),
            ),
            (&[0, 3, 8], of(&[2])),
        ] {
            let mut data = floats(dtype, x, 25);
            check(
                &device,
                "MaxPool",
                &attrs,
                std::slice::from_ref(&data),
                1,
                0.0,
            );
            check(
                &device,
                "AveragePool",
                &attrs,
                std::slice::from_ref(&data),
                1,
                0.0,
            );
            let padded = attrs.clone().with("count_include_pad", Attr::Int(1));
            check(
                &device,
                "AveragePool",
                &padded,
                std::slice::from_ref(&data),
                1,
                0.0,
            );
            if dtype == DType::F32 && !x.contains(&0) {
                let mut elements = data.as_slice::<f32>().unwrap().to_vec();
                elements[3] = f32::NAN;
                data = of_floats(dtype, x, &elements);
                check(
                    &device,
                    "MaxPool",
                    &attrs,
                    std::slice::from_ref(&data),
                    1,
                    0.0,
                );
            }
        }
        let whole = [floats(dtype, &[2, 3, 17, 19], 26)];
        let within = if dtype == DType::F32 { 1e-6 } else { 0.01 };
        check(
            &device,
            "GlobalAveragePool",
            &Attrs::default(),
            &whole,
            1,
            within,
        );
        check(&device, "GlobalMaxPool", &Attrs::default(), &whole, 1, 0.0);
    }
}

#[test]
fn attention_is_close_to_the_cpu() {
    let device = device("attention");
    let hidden = |tensor: &Tensor, from: usize, keys: usize| {
        let elements = tensor.as_slice::<f32>().unwrap().iter().enumerate();
        let masked = elements.map(|(i, x)| {
            if i % keys < from {
                f32::NEG_INFINITY
            } else {
                *x
            }
        });
        masked.collect::<Vec<f32>>()
    };
    for dtype in FLOATS {
        let within = if dtype == DType::F32 { 1e-5 } else { 0.02 };
        for (q, k, values, bias) in [
            (&[2, 4, 5, 20][..], &[2, 4, 7, 20][..], 9, &[4, 1, 7][..]),
            // Heads of queries that share a head of keys; several pieces of keys; values beyond one pass.
            (&[1, 6, 3, 16], &[1, 2, 600, 16], 70, &[1, 1, 3, 600]),
            (&[1, 1, 1, 8], &[1, 1, 258, 8], 530, &[258]),
        ] {
            let keys = k[2];
            let mut v = k.to_vec();
            v[3] = values;
            let given = [
                floats(dtype, q, 27),
                floats(dtype, k, 28),
                floats(dtype, &v, 29),
            ];
            for softcap in [0.0, 3.0] {
                let attrs = Attrs::default().with("scale", Attr::Float(0.3));
                let attrs = attrs.with("softcap", Attr::Float(softcap));
                check(&device, "FusedAttention", &attrs, &given, 1, within);
                // All keys of the first piece are hidden, or every one.
                for from in [0, keys.min(300) - 1, keys] {
                    let masked = hidden(&floats(DType::F32, bias, 30), from, keys);
                    let [q, k, v] = given.clone();
                    let masked = of_floats(dtype, bias, &masked);
                    check(
                        &device,
                        "FusedAttention",
                        &attrs,
                        &[q, k, v, masked],
                        1,
                        within,
                    );
                }
            }
        }
        // Scores that are all infinitely small without a bias have no mean.
        let q = of_floats(dtype, &[1, 1, 1, 1], &[1.0]);
        let low = of_floats(dtype, &[1, 1, 2, 1], &[f32::NEG_INFINITY; 2]);
        let attrs = Attrs::default().with("scale", Attr::Float(1.0));
        check(
            &device,
            "FusedAttention",
            &attrs,
            &[q, low, floats(dtype, &[1, 1, 2, 3], 38)],
            1,
            0.0,
        );
        let none = [&[1, 2, 3, 4][..], &[1, 2, 0, 4], &[1, 2, 0, 5]].map(|s| floats(dtype, s, 31));
        let attrs = Attrs::default().with("scale", Attr::Float(1.0));
        check(&device, "FusedAttention", &attrs, &none, 1, 0.0);
    }
}

#[test]
fn products_with_packed_codes_have_the_bits_of_the_cpu() {
    let device = device("codes");
    let bytes = |len: usize, seed: u64| {
        let byte = |i| ((i as u64 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
        Tensor::from_slice(&[len], &(0..len).map(byte).collect::<Vec<u8>>()).unwrap()
    };
    for dtype in FLOATS {
        for (bits, m, k, n, block) in [
            (4usize, 1usize, 70usize, 131usize, 32usize),
            (4, 9, 96, 64, 16),
            (8, 3, 40, 65, 20),
            (2, 70, 33, 70, 16),
        ] {
            let blocks = k.div_ceil(block);
            let sized =
                |name: &str, bits: usize| int("bits", bits as i64).with(name, Attr::Int(n as i64));
            let packed = |given: &Tensor| {
                on_cpu(
                    "PackCodes",
                    &sized("N", bits),
                    std::slice::from_ref(given),
                    1,
                )
                .remove(0)
            };
            let attrs = sized("N", bits).with("K", Attr::Int(k as i64));
            let attrs = attrs
                .with("block_size", Attr::Int(block as i64))
                .with("packed", Attr::Int(1));
            let weights = packed(&bytes(n * blocks * block * bits / 8, 1));
            let zeros = packed(&bytes(n * (blocks * bits).div_ceil(8), 2));
            let (x, scales) = (floats(dtype, &[m, k], 32), floats(dtype, &[blocks * n], 33));
            let (numbers, bias) = (floats(dtype, &[blocks * n], 34), floats(dtype, &[n], 35));
            let middle = [x.clone(), weights.clone(), scales.clone()];
            check(&device, "MatMulNBits", &attrs, &middle, 1, 0.0);
            for zeros in [zeros, numbers] {
                let given = [
                    x.clone(),
                    weights.clone(),
                    scales.clone(),
                    zeros,
                    bias.clone(),
                ];
                check(&device, "MatMulNBits", &attrs, &given[..4], 1, 0.0);
                check(&device, "MatMulNBits", &attrs, &given, 1, 0.0);
            }
        }
    }
}
