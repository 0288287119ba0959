use super::*;
use crate::conv::ConvSizes;
use crate::conv::tests::random::{DRAWS, DrawnConv};
use crate::quantised::testing::{codes, convolved, number};
use crate::quantised::{Format, Requantisation, SumBias, requantise};
use crate::testing::{check_stops, each_exec, exec};

struct Packed {
    rows: Vec<u8>,
    sums: Vec<i32>,
}

impl Packed {
    fn new(exec: &Exec, codes: &[u8], signed: bool, k: usize) -> Packed {
        let rows = codes.len().checked_div(k).unwrap_or(0);
        let (mut packed, mut sums) = (vec![7; rows * packed_row(k)], vec![7; rows]);
        let left = Bytes { codes, signed };
        pack_rows(exec, left, k, &mut packed, &mut sums).unwrap();
        Packed { rows: packed, sums }
    }

    fn left<'a>(&'a self, signed: bool, zeros: Zeros<'a>) -> PackedRows<'a> {
        PackedRows {
            packed: &self.rows,
            sums: &self.sums,
            signed,
            zeros,
        }
    }
}

/// Parameters by which sums become codes, with a list for the rows and, where there are several columns, one for the columns.
fn check_codes(
    exec: &Exec,
    sums: &[i32],
    (rows, n): (usize, usize),
    each: bool,
    compute: impl Fn(Destination<'_>),
) {
    let list =
        |n: usize, unit: f32| -> Vec<f32> { (0..n).map(|i| unit * (1 + i % 5) as f32).collect() };
    let (bias, mut scales) = (vec![-3; rows], list(rows, 1e-3));
    // Sums become numbers beyond those of 32 bits, and none at all where they are zero.
    if let [_, _, .., large, infinite] = &mut scales[..] {
        (*large, *infinite) = (1e12, f32::INFINITY);
    }
    let column_bias: Vec<i32> = (0..n as i32).map(|i| i * 5 - 9).collect();
    let (columns, zeros) = (list(if each { n } else { 1 }, 2e-3), list(rows, 7.));
    for to in [Format::I8, Format::U8] {
        let how = Requantisation {
            bias: match (each, to) {
                (false, Format::I8) => SumBias::None,
                (false, _) => SumBias::Rows(&column_bias[..rows.min(n)]),
                (true, Format::I8) => SumBias::Rows(&bias),
                (true, _) => SumBias::Columns(&column_bias),
            },
            rows: &scales,
            columns: &columns,
            scales: &[0.125],
            zeros: if each { &[3.] } else { &zeros },
            to,
        };
        let (mut want, mut got) = (vec![0; sums.len()], vec![7; sums.len()]);
        requantise(exec, sums, n, &how, &mut want).unwrap();
        compute(Destination::Codes(&mut got, &how));
        assert_eq!(got, want, "{to:?}");
    }
}

fn every_means() -> impl Iterator<Item = Means> {
    Means::ALL.iter().copied().filter(|means| means.available())
}

#[test]
fn products_of_bytes_are_the_sums_of_whole_numbers() {
    let sizes = [
        (1, 1, 1),
        (1, 200, 7),
        (1, 1100, 67),
        (7, 64, 4),
        (13, 130, 1023),
        (6, 16, 1024),
        (5, 65, 2050),
        (100, 3, 33),
        (6, 25, 12),
        (8, 105, 70),
        (40, 51, 200),
        (33, 4, 64),
        (9, 65, 130),
    ];
    for (m, n, k) in sizes {
        for (left_signed, right_signed) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let (a, b) = (codes(m * k, 3), codes(k * n, 5));
            let each: Vec<f32> = (0..n).map(|j| (j % 5) as f32 - 2.).collect();
            let rows: Vec<f32> = (0..m).map(|i| (i % 9) as f32).collect();
            for (za, zb) in [
                (Zeros::One(0), Zeros::One(0)),
                (Zeros::One(-7), Zeros::Each(&each)),
                (Zeros::Each(&rows), Zeros::One(128)),
                (Zeros::One(3), Zeros::One(-128)),
            ] {
                let sum = |i: usize, j: usize| {
                    let term = |t: usize| {
                        let a = number(a[i * k + t], left_signed) - i64::from(za.at(i));
                        let b = number(b[t * n + j], right_signed) - i64::from(zb.at(j));
                        a * b
                    };
                    (0..k).map(term).sum::<i64>() as i32
                };
                let want: Vec<i32> = (0..m * n).map(|at| sum(at / n, at % n)).collect();
                for means in every_means() {
                    each_exec(|exec| {
                        let mut packed = Packed::new(exec, &a, left_signed, k);
                        let right = Bytes {
                            codes: &b,
                            signed: right_signed,
                        };
                        if !needs_row_sums(right, zb) {
                            packed.sums.fill(77);
                        }
                        let (left, mut out) = (packed.left(left_signed, za), vec![7; m * n]);
                        let (batch, sizes) = (Batch::ONE, (m, n, k));
                        let compute = |to: Destination<'_>| {
                            product_by(means, *exec, &batch, sizes, left, (right, zb), to).unwrap()
                        };
                        compute(Destination::Sums(&mut out));
                        assert_eq!(out, want, "{sizes:?}, {za:?}, {zb:?}, {means:?}");
                        check_codes(exec, &want, (m, n), false, compute);
                        if n > 64 {
                            check_codes(exec, &want, (m, n), true, compute);
                        }
                    });
                }
            }
        }
    }
}

#[test]
fn sums_beyond_an_i32_wrap() {
    // 255 * 255 * 70,000 is more than 2^32.
    let k = 70_000;
    let (a, b) = (vec![255; k], vec![255; k]);
    for means in every_means() {
        let packed = Packed::new(&exec(), &a, false, k);
        let right = (
            Bytes {
                codes: &b,
                signed: false,
            },
            Zeros::One(0),
        );
        let left = packed.left(false, Zeros::One(0));
        let mut out = [0];
        let to = Destination::Sums(&mut out);
        product_by(means, exec(), &Batch::ONE, (1, 1, k), left, right, to).unwrap();
        assert_eq!(out, [(255i64 * 255 * k as i64) as i32]);
    }
}

#[test]
fn items_of_a_batch_have_their_own_matrices() {
    let (m, n, k) = (3, 70, 10);
    let (a, b) = (codes(2 * m * k, 1), codes(3 * k * n, 2));
    let batch = Batch {
        dims: &[2, 3],
        a_strides: &[m * k, 0],
        b_strides: &[0, k * n],
    };
    for means in every_means() {
        let packed = Packed::new(&exec(), &a, true, k);
        let left = packed.left(true, Zeros::One(3));
        let right = |codes| {
            (
                Bytes {
                    codes,
                    signed: true,
                },
                Zeros::One(-1),
            )
        };
        let mut out = vec![0; 6 * m * n];
        let compute = |to: Destination<'_>| {
            product_by(means, exec(), &batch, (m, n, k), left, right(&b), to).unwrap()
        };
        compute(Destination::Sums(&mut out));
        check_codes(&exec(), &out, (6 * m, n), true, compute);
        for (item, out) in out.chunks(m * n).enumerate() {
            let (x, y) = (item / 3, item % 3);
            let packed = Packed::new(&exec(), &a[x * m * k..(x + 1) * m * k], true, k);
            let left = packed.left(true, Zeros::One(3));
            let mut alone = vec![0; m * n];
            let right = right(&b[y * k * n..(y + 1) * k * n]);
            product_by(
                means,
                exec(),
                &Batch::ONE,
                (m, n, k),
                left,
                right,
                Destination::Sums(&mut alone),
            )
            .unwrap();
            assert_eq!(out, alone, "item {item}");
        }
    }
}

fn check_conv(sizes: &ConvSizes<'_>, signed: bool, zero: i32) {
    let shape = ConvShape::new(sizes).unwrap();
    let channels = shape.in_channels / shape.groups;
    let (k, plane) = (
        channels * shape.taps(),
        shape.output.iter().product::<usize>(),
    );
    let x = codes(shape.batch * shape.in_channels * shape.in_plane(), 4);
    let w = codes(shape.out_channels * k, 6);
    let filters: Vec<f32> = (0..shape.out_channels).map(|i| i as f32 - 1.).collect();
    let each = Zeros::Each(&filters);
    let weights = Bytes {
        codes: &w,
        signed: true,
    };
    let want = convolved(&shape, (Bytes { codes: &x, signed }, zero), (weights, each));
    for means in every_means() {
        each_exec(|exec| {
            let packed = Packed::new(exec, &w, true, k);
            let input = (Bytes { codes: &x, signed }, zero);
            let mut out = vec![7; want.len()];
            let conv = BytesConv::new(&shape).unwrap();
            let compute = |to: Destination<'_>| {
                let mut copy = vec![77; conv.copied()];
                let filters = packed.left(true, each);
                conv_by(means, *exec, &conv, input, filters, &mut copy, to).unwrap()
            };
            compute(Destination::Sums(&mut out));
            check_codes(exec, &want, (shape.out_channels, plane), false, compute);
            assert_eq!(out, want, "{shape:?}, {means:?}");
        });
    }
}

#[test]
fn drawn_convolutions_are_those_of_the_reference() {
    let drawn = (0..DRAWS).map(DrawnConv::new);
    let checked = drawn.filter_map(|drawn| {
        let sizes = drawn.sizes()?;
        BytesConv::new(&ConvShape::new(&sizes).ok()?)?;
        check_conv(&sizes, sizes.batch == 1, 3);
        Some(())
    });
    assert!(checked.count() > 100);
}

#[test]
fn convolutions_of_bytes_pad_with_the_zero_point() {
    let plain = ConvSizes {
        batch: 2,
        in_channels: 3,
        out_channels: 5,
        groups: 1,
        input: &[9, 11],
        kernel: &[3, 3],
        strides: &[1, 1],
        dilations: &[1, 1],
        pads_begin: &[1, 1],
        pads_end: &[1, 1],
    };
    check_conv(&plain, false, 130);
    check_conv(&plain, true, -5);
    let wide = ConvSizes {
        strides: &[2, 3],
        dilations: &[1, 2],
        pads_begin: &[2, 0],
        pads_end: &[0, 3],
        ..plain
    };
    check_conv(&wide, false, 3);
    let grouped = ConvSizes {
        in_channels: 4,
        out_channels: 6,
        groups: 2,
        ..plain
    };
    check_conv(&grouped, true, 0);
    // Wider than the output, so that lines are gathered: by the width of the kernel, or by its reach.
    let narrow = ConvSizes {
        in_channels: 1,
        input: &[12, 80],
        kernel: &[3, 80],
        pads_begin: &[0, 0],
        pads_end: &[0, 0],
        ..plain
    };
    check_conv(&narrow, true, 4);
    let reaching = ConvSizes {
        dilations: &[6, 6],
        pads_begin: &[6, 6],
        pads_end: &[6, 6],
        ..plain
    };
    check_conv(&reaching, false, 200);
    let strided_groups = ConvSizes {
        strides: &[2, 2],
        ..grouped
    };
    check_conv(&strided_groups, false, 31);
    for kernel in [[2, 3, 2], [3, 1, 1]] {
        let solid = ConvSizes {
            in_channels: 2,
            input: &[7, 9, 11],
            kernel: &kernel,
            strides: &[2, 1, 3],
            dilations: &[2, 1, 2],
            pads_begin: &[3, 0, 5],
            pads_end: &[1, 2, 0],
            ..plain
        };
        check_conv(&solid, true, -17);
    }
    for input in [[15, 14], [8, 131]] {
        let halved = ConvSizes {
            input: &input,
            strides: &[2, 2],
            ..plain
        };
        check_conv(&halved, true, 9);
        let one_tap = ConvSizes {
            kernel: &[1, 1],
            pads_begin: &[0, 0],
            pads_end: &[0, 0],
            ..halved
        };
        check_conv(&one_tap, false, 77);
    }
    let deep = ConvSizes {
        batch: 1,
        in_channels: 130,
        out_channels: 9,
        input: &[4, 5, 3],
        kernel: &[1, 3, 3],
        strides: &[1, 1, 1],
        dilations: &[1, 1, 1],
        pads_begin: &[0, 1, 1],
        pads_end: &[0, 1, 2],
        ..plain
    };
    check_conv(&deep, false, 255);
    let pointwise = ConvSizes {
        in_channels: 70,
        kernel: &[1, 1],
        pads_begin: &[0, 0],
        pads_end: &[0, 0],
        ..plain
    };
    check_conv(&pointwise, false, 12);
}

#[test]
fn an_input_that_is_mostly_padding_is_not_copied() {
    let padded = |pad: usize| {
        let sizes = ConvSizes {
            batch: 1,
            in_channels: 64,
            out_channels: 4,
            groups: 1,
            input: &[2, 2],
            kernel: &[3, 3],
            strides: &[1, 1],
            dilations: &[1, 1],
            pads_begin: &[pad, pad],
            pads_end: &[pad, pad],
        };
        let conv = BytesConv::new(&ConvShape::new(&sizes).unwrap());
        conv.map(|conv| conv.copied())
    };
    assert_eq!(padded(1), Some(64 * 4 * 4));
    assert_eq!(padded(1000), None);
}

#[test]
fn rows_of_signed_codes_are_packed_as_they_are() {
    for k in [4, 64, 8196] {
        let codes = codes(3 * k, 2);
        assert!(is_packed(true, k) && !is_packed(false, k) && !is_packed(true, k + 1));
        let packed = Packed::new(&exec(), &codes, true, k);
        let mut sums = [7; 3];
        sum_rows(&exec(), &codes, k, &mut sums).unwrap();
        assert_eq!((packed.rows, packed.sums), (codes, sums.to_vec()));
    }
}

#[test]
fn a_convolution_of_bytes_stops_when_it_is_cancelled() {
    let sizes = ConvSizes {
        batch: 1,
        in_channels: 1,
        out_channels: 8,
        groups: 1,
        input: &[2000, 2000],
        kernel: &[3, 3],
        strides: &[1, 1],
        dilations: &[1, 1],
        pads_begin: &[1, 1],
        pads_end: &[1, 1],
    };
    let shape = ConvShape::new(&sizes).unwrap();
    let (x, w) = (codes(shape.input_len(), 1), codes(shape.weights_len(), 2));
    let (packed, conv) = (
        Packed::new(&exec(), &w, true, 9),
        BytesConv::new(&shape).unwrap(),
    );
    let input = Bytes {
        codes: &x,
        signed: true,
    };
    for means in every_means() {
        check_stops(|exec| {
            let (mut sums, mut copy) = (vec![0; shape.output_len()], vec![0; conv.copied()]);
            let (filters, out) = (
                packed.left(true, Zeros::One(0)),
                Destination::Sums(&mut sums),
            );
            conv_by(means, *exec, &conv, (input, 0), filters, &mut copy, out)
        });
    }
}

#[test]
fn a_product_of_bytes_stops_when_it_is_cancelled() {
    let (m, n, k) = (2000, 64, 4000);
    let (a, b) = (codes(m * k, 1), codes(k * n, 2));
    let packed = Packed::new(&exec(), &a, true, k);
    for means in every_means() {
        check_stops(|exec| {
            let mut sums = vec![0; m * n];
            let left = packed.left(true, Zeros::One(0));
            let right = (
                Bytes {
                    codes: &b,
                    signed: true,
                },
                Zeros::One(0),
            );
            let out = Destination::Sums(&mut sums);
            product_by(means, *exec, &Batch::ONE, (m, n, k), left, right, out)
        });
    }
}
