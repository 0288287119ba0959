use super::bytes::Means;
use super::*;
use crate::Exec;
use crate::gemm::{Batch, Strided, gemm_generic};
use crate::testing::{bits as bits_of, check_stops, each_exec, exec, random};
use convoke_functions::narrow::{Narrow, NarrowInt};

const I4: Format = Format::Narrow(Narrow::Int(NarrowInt {
    bits: 4,
    signed: true,
}));
const U2: Format = Format::Narrow(Narrow::Int(NarrowInt {
    bits: 2,
    signed: false,
}));

fn bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (all, _) = bytes.as_chunks::<4>();
    all.iter().map(|b| f32::from_ne_bytes(*b)).collect()
}

fn codes(x: &[f32], p: &Parameters<'_>, to: Format) -> Vec<u8> {
    let x_bytes = bytes(x);
    let how = Quantisation {
        to,
        precision: Precision::F32,
        saturate: true,
    };
    let mut y = vec![0xee; to.bytes(x.len())];
    quantise(
        &exec(),
        &Numbers::new(Format::F32, &x_bytes),
        x.len(),
        p,
        how,
        &mut y,
    )
    .unwrap();
    y
}

fn one<'a>(scale: &'a [f32], zero: &'a [f32]) -> Parameters<'a> {
    Parameters {
        layout: Layout::Tensor,
        scales: Some(scale),
        zeros: Some(zero),
    }
}

#[test]
fn ties_go_to_even_and_the_rest_is_saturated() {
    let x = [
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        1e30,
        -1e30,
        f32::NAN,
        f32::INFINITY,
    ];
    let check = |to: Format, zero: f32, want: &[u8]| {
        assert_eq!(codes(&x, &one(&[1.], &[zero]), to), want, "{to:?}");
    };
    check(Format::U8, 1., &[1, 3, 3, 1, 0, 255, 0, 0, 255]);
    let i8 = [0i8, 2, 2, 0, -2, 127, -128, -128, 127].map(|x| x as u8);
    check(Format::I8, 0., &i8);
    check(I4, 0., &[0x20, 0x02, 0x7e, 0x88, 0x07]);
    check(U2, 0., &[0b00_10_10_00, 0b00_00_11_00, 0b11]);
    // By a zero scale everything is infinite, or NaN.
    assert_eq!(
        codes(&[1., -1., 0.], &one(&[0.], &[3.]), Format::U8),
        [255, 0, 0]
    );
}

/// What the definition says, element by element.
fn parameter(layout: Layout, at: usize) -> usize {
    match layout {
        Layout::Tensor => 0,
        Layout::Axis { len, inner } => at / inner % len,
        Layout::Blocks { len, inner, size } => {
            let (outer, along, column) = (at / inner / len, at / inner % len, at % inner);
            (outer * len.div_ceil(size) + along / size) * inner + column
        }
    }
}

#[test]
fn every_layout_finds_its_parameters() {
    for (outer, len, inner) in [(3, 5, 7), (40, 700, 1), (2, 3, 300), (1, 1, 1), (7, 9, 2)] {
        let n = outer * len * inner;
        let x: Vec<f32> = random(n, 50., 3);
        let blocks = |size| Layout::Blocks { len, inner, size };
        let layouts = [
            Layout::Tensor,
            Layout::Axis { len, inner },
            blocks(1),
            blocks(2),
            blocks(64),
            blocks(len),
        ];
        for layout in layouts {
            let scales: Vec<f32> = (0..n).map(|i| 0.25 + (i % 11) as f32).collect();
            let zeros: Vec<f32> = (0..n).map(|i| (i % 5) as f32).collect();
            let p = Parameters {
                layout,
                scales: Some(&scales),
                zeros: Some(&zeros),
            };
            let want: Vec<u8> = (0..n)
                .map(|i| {
                    let p = parameter(layout, i);
                    ((x[i] / scales[p]).round_ties_even() + zeros[p]).clamp(0., 255.) as u8
                })
                .collect();
            assert_eq!(codes(&x, &p, Format::U8), want, "{layout:?}");
            each_exec(|exec| {
                let mut y = vec![0; 4 * n];
                let numbers = Numbers::new(Format::U8, &want);
                dequantise(exec, &numbers, Take::ALL, n, &p, (Format::F32, &mut y)).unwrap();
                for (i, y) in floats(&y).into_iter().enumerate() {
                    let p = parameter(layout, i);
                    assert_eq!(y, (f32::from(want[i]) - zeros[p]) * scales[p], "{layout:?}");
                }
            });
        }
    }
}

#[test]
fn packed_elements_and_parts_of_a_tensor_are_read() {
    let four: Vec<u8> = (0..500u32).map(|i| (i * 37 % 256) as u8).collect();
    let numbers = Numbers::new(I4, &four);
    let mut all = vec![0; 4000];
    let none = Parameters {
        layout: Layout::Tensor,
        scales: None,
        zeros: None,
    };
    dequantise(
        &exec(),
        &numbers,
        Take::ALL,
        1000,
        &none,
        (Format::F32, &mut all),
    )
    .unwrap();
    let all = floats(&all);
    assert_eq!(all[..4], [0., 0., 5., 2.]);
    // Columns 3 to 7 of ten.
    let take = Take {
        run: 5,
        stride: 10,
        offset: 3,
    };
    let mut part = vec![0; 4 * 500];
    dequantise(
        &exec(),
        &numbers,
        take,
        500,
        &none,
        (Format::F32, &mut part),
    )
    .unwrap();
    let want: Vec<f32> = all.chunks(10).flat_map(|row| row[3..8].to_vec()).collect();
    assert_eq!(floats(&part), want);
}

#[test]
fn sums_of_the_exact_depth_are_exact() {
    for (a, b) in [(255, 255), (128, 128), (255, 127), (0, 255), (1, 1)] {
        let depth = exact_depth(a, b) as u64;
        let greatest = depth * u64::from(a) * u64::from(b);
        assert!(greatest <= 1 << 24, "{a} {b}");
    }
    let mut sums = vec![i32::MAX; 40_000];
    let part: Vec<f32> = (0..40_000).map(|i| (i - 20_000) as f32).collect();
    add_exact(&exec(), &part, &mut sums).unwrap();
    assert!(
        sums.iter()
            .zip(-20_000..)
            .all(|(s, i)| *s == i32::MAX.wrapping_add(i))
    );
}

#[test]
fn sums_are_requantised_row_by_row() {
    let how = Requantisation {
        bias: SumBias::Rows(&[10, -10]),
        rows: &[0.5, 0.25],
        columns: &[1., 2., 4.],
        scales: &[1.],
        zeros: &[3.],
        to: Format::U8,
    };
    let sums = [0, 1, 2, 10, 11, 12, i32::MAX, -1000, 1000, 0, 0, 0];
    let mut y = [0; 12];
    requantise(&exec(), &sums, 3, &how, &mut y).unwrap();
    // The bias of the third row wraps.
    assert_eq!(y, [8, 14, 27, 3, 3, 5, 0, 0, 255, 1, 0, 0]);
}

/// Block-quantised weights `[k, n]` of a file, with each kind of zero points.
struct FileBlocks {
    size: (usize, usize),
    block: usize,
    bits: usize,
    codes: Vec<u8>,
    scales: Vec<f32>,
    zero_codes: Vec<u8>,
    numbers: Vec<f32>,
    signed: Vec<i8>,
}

impl FileBlocks {
    fn new((k, n): (usize, usize), block: usize, bits: usize) -> FileBlocks {
        let blocks = usize::div_ceil(k, block);
        let some = |n: usize, by: usize| (0..n).map(move |i| (i * by % 251) as u8);
        FileBlocks {
            size: (k, n),
            block,
            bits,
            codes: some(n * blocks * block * bits / 8, 89).collect(),
            scales: random(n * blocks, 0.3, 1),
            zero_codes: some(n * (blocks * bits).div_ceil(8), 57).collect(),
            numbers: (0..n * blocks).map(|i| (i % 7) as f32 - 0.7).collect(),
            signed: some(n * blocks, 83).map(|x| x as i8).collect(),
        }
    }

    /// The weights by each kind of zero points.
    fn each(&self) -> [BlockWeights<'_>; 4] {
        [
            ZeroPoints::Middle,
            ZeroPoints::Packed(&self.zero_codes),
            ZeroPoints::Numbers(&self.numbers),
            ZeroPoints::Signed(&self.signed),
        ]
        .map(|zeros| BlockWeights {
            k: self.size.0,
            n: self.size.1,
            bits: self.bits,
            signed: matches!(zeros, ZeroPoints::Signed(_)),
            packed: false,
            block: self.block,
            codes: &self.codes,
            scales: &self.scales,
            zeros,
        })
    }
}

/// Block-quantised weights as they are packed once.
struct Packed {
    codes: Vec<u8>,
    scales: Vec<f32>,
    zero_codes: Vec<u8>,
    numbers: Vec<f32>,
    signed: Vec<i8>,
}

impl Packed {
    fn new(exec: &Exec, w: &BlockWeights<'_>) -> Packed {
        let blocks = w.k.div_ceil(w.block);
        let pack = |codes: &[u8], signed: bool| {
            let rows = codes.len() / w.n * 8 / w.bits;
            let mut to = vec![7; w.n.next_multiple_of(64) * w.bits / 8 * rows];
            pack_codes(exec, codes, (w.n, rows, w.bits, signed), &mut to).unwrap();
            to
        };
        fn turn<T: Copy>(all: &[T], n: usize, blocks: usize) -> Vec<T> {
            (0..all.len())
                .map(|i| all[i % n * blocks + i / n])
                .collect()
        }
        let mut made = Packed {
            codes: pack(w.codes, w.signed),
            scales: turn(w.scales, w.n, blocks),
            zero_codes: vec![],
            numbers: vec![],
            signed: vec![],
        };
        match w.zeros {
            ZeroPoints::Middle => {}
            ZeroPoints::Packed(codes) => made.zero_codes = pack(codes, false),
            ZeroPoints::Numbers(all) => made.numbers = turn(all, w.n, blocks),
            ZeroPoints::Signed(all) => made.signed = turn(all, w.n, blocks),
        }
        made
    }

    fn weights<'a>(&'a self, w: &BlockWeights<'a>) -> BlockWeights<'a> {
        BlockWeights {
            packed: true,
            signed: false,
            codes: &self.codes,
            scales: &self.scales,
            zeros: match w.zeros {
                ZeroPoints::Middle => ZeroPoints::Middle,
                ZeroPoints::Packed(_) => ZeroPoints::Packed(&self.zero_codes),
                ZeroPoints::Numbers(_) => ZeroPoints::Numbers(&self.numbers),
                ZeroPoints::Signed(_) => ZeroPoints::Signed(&self.signed),
            },
            ..*w
        }
    }
}

#[test]
fn products_with_packed_weights_are_those_with_numbers() {
    for (m, n, k, block, bits) in [
        (1, 40, 300, 32, 4),
        (5, 17, 64, 16, 4),
        (9, 3, 530, 128, 8),
        (2, 33, 31, 16, 2),
        (1100, 21, 20, 16, 4),
        (3, 100, 1000, 6, 4),
        (2, 70, 701, 20, 2),
        (3, 130, 650, 650, 8),
        (1, 1, 1, 2, 4),
    ] {
        let blocks = usize::div_ceil(k, block);
        let (blob, row) = (block * bits / 8, (blocks * bits).div_ceil(8));
        let a: Vec<f32> = random(m * k, 2., 9);
        let bias: Vec<f32> = random(n, 1., 4);
        let element = convoke_functions::packed::element;
        let file = FileBlocks::new((k, n), block, bits);
        for w in file.each() {
            let zeros = w.zeros;
            let mut wide = vec![0f32; k * n];
            for column in 0..n {
                for i in 0..k {
                    let at = column * blocks + i / block;
                    let zero = match zeros {
                        ZeroPoints::Middle => f32::from(1u8 << (bits - 1)),
                        ZeroPoints::Packed(p) => {
                            element(bits, &p[column * row..], i / block).into()
                        }
                        ZeroPoints::Numbers(z) => z[at],
                        ZeroPoints::Signed(z) => z[at].into(),
                    };
                    let code = element(bits, &w.codes[at * blob..], i % block);
                    let number = match zeros {
                        ZeroPoints::Signed(_) => {
                            f32::from((code << (8 - bits)) as i8 >> (8 - bits))
                        }
                        _ => f32::from(code),
                    };
                    wide[i * n + column] = (number - zero) * w.scales[at];
                }
            }
            let mut want = vec![0f32; m * n];
            let (sa, sb) = (Strided::row_major(&a, k), Strided::row_major(&wide, n));
            gemm_generic(exec(), &Batch::ONE, (m, n, k), sa, sb, &mut want).unwrap();
            each_exec(|exec| {
                let mut y = vec![0f32; n * m];
                product_of_blocks(exec, &a, m, &w, Some(&bias), &mut y).unwrap();
                for (i, (y, want)) in y.iter().zip(&want).enumerate() {
                    assert_eq!(
                        y.to_bits(),
                        (want + bias[i % n]).to_bits(),
                        "[{m}, {k}] · [{k}, {n}] by {bits} bits, {zeros:?}"
                    );
                }
                let held = Packed::new(exec, &w);
                let packed = held.weights(&w);
                let mut by_packed = vec![0f32; n * m];
                product_of_blocks(exec, &a, m, &packed, Some(&bias), &mut by_packed).unwrap();
                assert_eq!(bits_of(&by_packed), bits_of(&y));
                // Rows alone have the bits of rows among others.
                for (a, y) in a.chunks(k).zip(y.chunks(n)).take(3) {
                    for w in [&w, &packed] {
                        let mut alone = vec![0f32; n];
                        product_of_blocks(exec, a, 1, w, Some(&bias), &mut alone).unwrap();
                        assert_eq!(bits_of(&alone), bits_of(y));
                    }
                }
            });
        }
    }
}

#[test]
fn a_product_of_many_rows_stops_when_it_is_cancelled() {
    let (m, n, k) = (3000, 4, 2048);
    let (a, codes, scales) = (
        vec![1f32; m * k],
        vec![0x99; n * k / 2],
        vec![1f32; n * k / 32],
    );
    let w = BlockWeights {
        k,
        n,
        bits: 4,
        signed: false,
        packed: false,
        block: 32,
        codes: &codes,
        scales: &scales,
        zeros: ZeroPoints::Middle,
    };
    check_stops(|exec| product_of_blocks(exec, &a, m, &w, None, &mut vec![0f32; m * n]));
}

/// A row's codes in blocks, with the scale and the sum of each.
fn coded(x: &[f32], block: usize) -> (Vec<i64>, Vec<f32>, Vec<i64>) {
    let (mut codes, mut scales, mut sums) = (vec![], vec![], vec![]);
    for x in x.chunks(block) {
        let scale = x.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
        let own = x.iter().map(|x| match scale {
            0.0 => 0,
            _ => (x / scale).round_ties_even().clamp(-127.0, 127.0) as i64,
        });
        let own: Vec<i64> = own.collect();
        sums.push(own.iter().sum());
        scales.push(scale);
        codes.extend(own);
    }
    (codes, scales, sums)
}

/// Makes rows codes and multiplies them by the given means.
fn by_codes(means: Means, exec: &Exec, a: &[f32], w: &BlockWeights<'_>, bias: &[f32]) -> Vec<f32> {
    let (m, blocks) = (a.len() / w.k, w.k.div_ceil(w.block));
    let mut codes = vec![0xeeu8; m * blocks * w.block];
    let (mut scales, mut sums) = (vec![0f32; m * blocks], vec![0i32; m * blocks]);
    let parameters = (&mut scales[..], &mut sums[..]);
    code_rows(exec, a, (w.k, w.block), &mut codes, parameters).unwrap();
    let left = CodedRows {
        codes: &codes,
        scales: &scales,
        sums: &sums,
    };
    let mut y = vec![0f32; m * w.n];
    blocks::product_by(means, exec, left, w, Some(bias), &mut y).unwrap();
    y
}

#[test]
fn products_of_codes_are_those_of_whole_numbers() {
    for (m, n, k, block, bits) in [
        (1, 40, 300, 32, 4),
        (7, 129, 64, 16, 4),
        (5, 3, 530, 128, 8),
        (2, 33, 31, 16, 2),
        (200, 21, 20, 16, 4),
        (3, 70, 700, 256, 8),
        (3, 70, 500, 48, 4),
        (2, 65, 241, 240, 8),
        (1, 1, 1, 16, 4),
    ] {
        let blocks = usize::div_ceil(k, block);
        let (blob, row) = (block * bits / 8, (blocks * bits).div_ceil(8));
        let mut a: Vec<f32> = random(m * k, 2., 9);
        // A block of zeros, and one of which all numbers are the greatest.
        a[..k.min(block)].fill(0.0);
        a[k - 1..][..1].fill(-3.0);
        let bias: Vec<f32> = random(n, 1., 4);
        let element = convoke_functions::packed::element;
        let file = FileBlocks::new((k, n), block, bits);
        for w in file.each() {
            let zeros = w.zeros;
            let mut want = vec![0f32; m * n];
            for (a, want) in a.chunks(k).zip(want.chunks_mut(n)) {
                let (left, left_scales, left_sums) = coded(a, block);
                for (column, want) in want.iter_mut().enumerate() {
                    for b in 0..blocks {
                        let at = column * blocks + b;
                        let zero = match zeros {
                            ZeroPoints::Middle => 1 << (bits - 1),
                            ZeroPoints::Packed(p) => element(bits, &p[column * row..], b).into(),
                            ZeroPoints::Numbers(_) => 0,
                            ZeroPoints::Signed(z) => z[at].into(),
                        };
                        let own = b * block..k.min((b + 1) * block);
                        let products = own.map(|i| {
                            let code = element(bits, &w.codes[at * blob..], i % block);
                            let weight = match w.signed {
                                true => i64::from((code << (8 - bits)) as i8 >> (8 - bits)),
                                false => i64::from(code),
                            };
                            (weight - zero) * left[i]
                        });
                        let mut term = products.sum::<i64>() as f32;
                        if let ZeroPoints::Numbers(z) = zeros {
                            term = (-z[at]).mul_add(left_sums[b] as f32, term);
                        }
                        *want = (term * w.scales[at]).mul_add(left_scales[b], *want);
                    }
                    *want += bias[column];
                }
            }
            for means in Means::ALL.iter().filter(|means| means.available()) {
                each_exec(|exec| {
                    let held = Packed::new(exec, &w);
                    for w in [&w, &held.weights(&w)] {
                        let y = by_codes(*means, exec, &a, w, &bias);
                        let what =
                            format!("{means:?} [{m}, {k}] · [{k}, {n}], {bits} bits, {zeros:?}");
                        assert_eq!(bits_of(&y), bits_of(&want), "{what}");
                        let alone = by_codes(*means, exec, &a[..k], w, &bias);
                        assert_eq!(bits_of(&alone), bits_of(&y[..n]), "{what}, alone");
                    }
                });
            }
        }
    }
}

#[test]
fn rows_with_what_is_not_finite_give_nan_and_tiny_ones_zero() {
    let (k, n) = (64, 3);
    let (codes, scales) = (vec![0x2fu8; n * k / 2], vec![0.5f32; n * 4]);
    let w = BlockWeights {
        k,
        n,
        bits: 4,
        signed: false,
        packed: false,
        block: 16,
        codes: &codes,
        scales: &scales,
        zeros: ZeroPoints::Middle,
    };
    for (odd, want) in [
        (f32::NAN, f32::NAN),
        (f32::INFINITY, f32::NAN),
        (f32::NEG_INFINITY, f32::NAN),
        // Its scale is 0.
        (f32::from_bits(1), 0.0),
        // Codes 127 times the weight 7 times 0.5, and a scale of 1.
        (127.0, 444.5),
        (-127.0, -444.5),
    ] {
        let mut a = vec![0f32; k];
        a[20] = odd;
        for means in Means::ALL.iter().filter(|means| means.available()) {
            let y = by_codes(*means, &exec(), &a, &w, &vec![0.0; n]);
            assert_eq!(bits_of(&y), bits_of(&vec![want; n]), "{means:?}, {odd}");
        }
    }
}

#[test]
fn a_product_of_many_coded_rows_stops_when_it_is_cancelled() {
    let (m, n, k) = (3000, 4, 2048);
    let (left, codes) = (vec![1u8; m * k], vec![0x99; n * k / 2]);
    let (scales, sums) = (vec![1f32; m * k / 32], vec![0i32; m * k / 32]);
    let w = BlockWeights {
        k,
        n,
        bits: 4,
        signed: false,
        packed: false,
        block: 32,
        codes: &codes,
        scales: &scales[..n * k / 32],
        zeros: ZeroPoints::Middle,
    };
    let left = CodedRows {
        codes: &left,
        scales: &scales,
        sums: &sums,
    };
    check_stops(|exec| product_of_codes(exec, left, &w, None, &mut vec![0f32; m * n]));
}
