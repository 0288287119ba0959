use super::super::testing::{codes, convolved};
use super::super::{Format, Requantisation, SumBias, requantise};
use super::*;
use crate::conv::ConvSizes;
use crate::conv::tests::random::{DRAWS, DrawnConv};
use crate::testing::{check_stops, each_exec, exec};

fn every_form(s: &ConvShape, centred: bool) -> impl Iterator<Item = Form> {
    let s = *s;
    let all = Form::ALL.iter().copied();
    all.filter(move |form| form.serves(&s, centred))
}

#[test]
fn drawn_convolutions_are_those_of_the_reference() {
    let drawn = (0..DRAWS).map(DrawnConv::new);
    let forms = drawn.filter_map(|drawn| {
        let sizes = drawn.sizes()?;
        GroupedConv::new(&ConvShape::new(&sizes).ok()?).map(|_| check(&sizes))
    });
    assert!(forms.sum::<usize>() > 1000);
}

/// Compares all forms, as sums and as codes, with the reference; returns how many forms there were.
fn check(sizes: &ConvSizes<'_>) -> usize {
    let s = ConvShape::new(sizes).unwrap();
    let plan = GroupedConv::new(&s).unwrap();
    let (x, w) = (codes(s.input_len(), 4), codes(s.weights_len(), 6));
    let mut count = 0;
    for (x_signed, w_signed, zero) in [
        (false, true, 130),
        (false, true, 255),
        (true, true, -128),
        (true, false, 127),
        (false, false, 0),
    ] {
        let low = if w_signed { -128 } else { 0 };
        let each: Vec<f32> = (0..s.out_channels)
            .map(|i| (low + i as i32 * 85 % 256) as f32)
            .collect();
        for zeros in [
            Zeros::One(low + 128),
            Zeros::One(low),
            Zeros::One(low + 255),
            Zeros::Each(&each),
        ] {
            let input = Bytes {
                codes: &x,
                signed: x_signed,
            };
            let weights = Bytes {
                codes: &w,
                signed: w_signed,
            };
            let want = convolved(&s, (input, zero), (weights, zeros));
            let centred = matches!(zeros, Zeros::One(zero) if zero == low + 128);
            for form in every_form(&s, centred) {
                count += 1;
                each_exec(|exec| {
                    let compute = |to: Destination<'_>| {
                        conv_by(form, *exec, &plan, (input, zero), (weights, zeros), to).unwrap()
                    };
                    let mut got = vec![7; want.len()];
                    assert!(compute(Destination::Sums(&mut got)));
                    assert_eq!(got, want, "{s:?}, {zeros:?}, {form:?}");
                    check_codes(exec, &s, &want, compute);
                });
            }
        }
    }
    count
}

fn check_codes(
    exec: &Exec,
    s: &ConvShape,
    sums: &[i32],
    compute: impl Fn(Destination<'_>) -> bool,
) {
    let of_filters = |unit: f32| -> Vec<f32> {
        (0..s.out_channels)
            .map(|i| unit * (1 + i % 5) as f32)
            .collect()
    };
    let bias: Vec<i32> = (0..s.out_channels as i32).map(|i| i * 997 - 1500).collect();
    let (scales, zeros) = (of_filters(1e-3), of_filters(7.));
    // Scales that give NaN and infinity are as good as any.
    let odd: Vec<f32> = [f32::NAN, f32::INFINITY, 1e-3]
        .iter()
        .copied()
        .cycle()
        .take(s.out_channels)
        .collect();
    for (to, rows) in [
        (Format::I8, &scales),
        (Format::U8, &scales),
        (Format::I8, &odd),
    ] {
        let mut how = Requantisation {
            bias: SumBias::Rows(&bias),
            rows,
            columns: &[2e-3],
            scales: &[1.5e-4],
            zeros: &zeros,
            to,
        };
        let n = s.out_plane();
        let (mut want, mut got) = (vec![0; sums.len()], vec![7; sums.len()]);
        requantise(exec, sums, n, &how, &mut want).unwrap();
        assert!(compute(Destination::Codes(&mut got, &how)));
        assert_eq!(got, want, "{s:?} {to:?}");
        if n > 1 {
            let columns = vec![1.0; n];
            how.columns = &columns;
            assert!(
                !compute(Destination::Codes(&mut got, &how)),
                "scales of columns"
            );
        }
    }
}

const PLAIN: ConvSizes<'_> = ConvSizes {
    batch: 1,
    in_channels: 3,
    out_channels: 3,
    groups: 3,
    input: &[9, 21],
    kernel: &[3, 3],
    strides: &[1, 1],
    dilations: &[1, 1],
    pads_begin: &[1, 1],
    pads_end: &[1, 1],
};

#[test]
fn depthwise_convolutions_of_bytes_are_sums_of_whole_numbers() {
    let count = check(&PLAIN);
    // Vectors serve where the processor has them: each kind of codes, and without zero points of filters the wider ones.
    #[cfg(target_arch = "x86_64")]
    if Isa::Avx2Fma.available() {
        assert!(count >= 40, "{count} forms");
    }
    assert!(count >= 20);
    for (kernel, strides, dilations, pads_begin, pads_end) in [
        ([5, 5], [1, 1], [1, 1], [2, 2], [2, 2]),
        ([5, 5], [2, 2], [1, 1], [1, 2], [2, 1]),
        ([3, 3], [2, 2], [1, 1], [0, 0], [1, 1]),
        ([3, 3], [3, 4], [1, 1], [1, 0], [0, 4]),
        ([3, 3], [1, 1], [2, 3], [2, 3], [2, 3]),
        ([2, 4], [1, 2], [3, 2], [0, 7], [3, 0]),
        ([1, 1], [2, 5], [1, 1], [0, 0], [0, 0]),
        ([3, 7], [1, 1], [1, 1], [4, 9], [0, 5]),
        ([3, 3], [9, 23], [4, 9], [0, 2], [0, 0]),
        ([9, 21], [1, 1], [1, 1], [0, 0], [0, 0]),
        ([1, 3], [1, 9], [1, 8], [12, 30], [3, 40]),
    ] {
        check(&ConvSizes {
            batch: 2,
            kernel: &kernel,
            strides: &strides,
            dilations: &dilations,
            pads_begin: &pads_begin,
            pads_end: &pads_end,
            ..PLAIN
        });
    }
}

#[test]
fn planes_of_any_width_and_groups_of_few_filters_are_served() {
    for side in [1, 2, 7, 8, 15, 16, 17, 33, 64, 65] {
        for (strides, dilations) in [([1, 1], [1, 1]), ([2, 2], [1, 1]), ([1, 4], [2, 1])] {
            check(&ConvSizes {
                input: &[side, 2 * side],
                strides: &strides,
                dilations: &dilations,
                pads_begin: &[2, 2],
                pads_end: &[2, 1],
                ..PLAIN
            });
        }
    }
    // One dimension, wider than a block.
    check(&ConvSizes {
        input: &[2500],
        kernel: &[3],
        strides: &[1],
        dilations: &[1],
        pads_begin: &[2],
        pads_end: &[0],
        ..PLAIN
    });
    // More rows than a window has.
    check(&ConvSizes {
        input: &[300, 130],
        strides: &[2, 1],
        ..PLAIN
    });
    for (in_channels, out_channels, groups) in [(2, 6, 2), (6, 2, 2), (8, 4, 2), (5, 3, 1)] {
        check(&ConvSizes {
            batch: 2,
            in_channels,
            out_channels,
            groups,
            ..PLAIN
        });
    }
}

#[test]
fn blocks_may_lie_in_the_padding_as_a_whole() {
    check(&ConvSizes {
        batch: 1,
        in_channels: 2,
        out_channels: 2,
        groups: 2,
        input: &[2, 9],
        kernel: &[1, 3],
        strides: &[1, 1],
        dilations: &[1, 1],
        pads_begin: &[0, 1500],
        pads_end: &[1, 3000],
    });
}

#[test]
fn what_has_another_algorithm_is_refused() {
    let plan = |sizes: &ConvSizes<'_>| GroupedConv::new(&ConvShape::new(sizes).unwrap());
    assert!(plan(&PLAIN).is_some());
    assert!(
        plan(&ConvSizes {
            out_channels: 12,
            ..PLAIN
        })
        .is_none(),
        "many filters"
    );
    let deep = ConvSizes {
        input: &[4, 9, 9],
        kernel: &[2, 3, 3],
        strides: &[1; 3],
        dilations: &[1; 3],
        pads_begin: &[0; 3],
        pads_end: &[0; 3],
        ..PLAIN
    };
    assert!(plan(&deep).is_none(), "three dimensions");
    let wide = ConvSizes {
        input: &[40, 2000],
        dilations: &[18, 900],
        ..PLAIN
    };
    assert!(plan(&wide).is_none(), "a large window");
}

#[test]
fn a_plane_without_outputs_is_nothing() {
    let s = ConvShape::new(&ConvSizes { batch: 0, ..PLAIN }).unwrap();
    let (plan, none) = (
        GroupedConv::new(&s).unwrap(),
        Bytes {
            codes: &[],
            signed: false,
        },
    );
    let w = codes(s.weights_len(), 1);
    let weights = (
        Bytes {
            codes: &w,
            signed: true,
        },
        Zeros::One(0),
    );
    let out = Destination::Sums(&mut []);
    assert!(grouped_conv_of_bytes(exec(), &plan, (none, 0), weights, out).unwrap());
}

#[test]
fn a_grouped_convolution_stops_when_it_is_cancelled() {
    let sizes = ConvSizes {
        in_channels: 900,
        out_channels: 900,
        groups: 900,
        input: &[64, 64],
        ..PLAIN
    };
    let s = ConvShape::new(&sizes).unwrap();
    let (x, w) = (codes(s.input_len(), 1), codes(s.weights_len(), 2));
    let plan = GroupedConv::new(&s).unwrap();
    for form in every_form(&s, true) {
        check_stops(|exec| {
            let mut sums = vec![0; s.output_len()];
            let input = (
                Bytes {
                    codes: &x,
                    signed: false,
                },
                3,
            );
            let weights = (
                Bytes {
                    codes: &w,
                    signed: true,
                },
                Zeros::One(0),
            );
            let out = Destination::Sums(&mut sums);
            conv_by(form, *exec, &plan, input, weights, out).map(|_| ())
        });
    }
}
