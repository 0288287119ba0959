//! Compares every code path, bit for bit, with a naive loop over the chain.

use super::*;
use crate::gemm::tests::{assert_bits, noise, on_threads};
use crate::gemm::{Activation, PackSource, Packed};
use crate::testing::check_stops;

mod narrow;
pub(crate) mod random;

fn reference(s: &ConvShape, x: &[f32], w: &[f32], e: &ConvEpilogue<'_>) -> Vec<f32> {
    let mut out = Vec::new();
    let [od, oh, ow] = s.output;
    for b in 0..s.batch {
        for oc in 0..s.out_channels {
            let group = oc / s.group_out();
            for at in 0..od * oh * ow {
                let o = [at / (oh * ow), at / ow % oh, at % ow];
                let mut v = 0.0f32;
                for i in 0..s.chain() {
                    let (ic, tap) = (i / s.taps(), i % s.taps());
                    let [_, kh, kw] = s.kernel;
                    let t = [tap / (kh * kw), tap / kw % kh, tap % kw];
                    let p: [usize; 3] =
                        std::array::from_fn(|d| o[d] * s.stride[d] + t[d] * s.dilation[d]);
                    let inside = (0..3).all(|d| p[d] >= s.pad[d] && p[d] - s.pad[d] < s.input[d]);
                    let x = if inside {
                        let [z, y, xx]: [usize; 3] = std::array::from_fn(|d| p[d] - s.pad[d]);
                        let channel = b * s.in_channels + group * s.group_in() + ic;
                        x[((channel * s.input[0] + z) * s.input[1] + y) * s.input[2] + xx]
                    } else {
                        0.0
                    };
                    v = w[oc * s.chain() + i].mul_add(x, v);
                }
                if let Some(bias) = e.bias {
                    v += bias[oc];
                }
                if let Some(residual) = e.residual {
                    v += residual[out.len()];
                }
                out.push(v);
            }
        }
    }
    e.activation.apply(&mut out);
    out
}

/// Checks that all instruction sets, thread counts and packings give the bits of the reference, with every epilogue.
fn check(sizes: &ConvSizes<'_>) {
    let s = ConvShape::new(sizes).unwrap();
    let (x, w) = (noise(s.input_len() + 1, 1), noise(s.weights_len() + 1, 2));
    let (bias, residual) = (noise(s.out_channels, 3), noise(s.output_len(), 4));
    let epilogues = [
        ConvEpilogue::NONE,
        ConvEpilogue {
            bias: Some(&bias),
            residual: None,
            activation: Activation::Relu,
        },
        ConvEpilogue {
            bias: Some(&bias),
            residual: Some(&residual),
            activation: Activation::Clip { min: 0.0, max: 0.7 },
        },
        ConvEpilogue {
            bias: Some(&bias),
            residual: None,
            activation: Activation::Silu,
        },
    ];
    for (shift, e) in epilogues.iter().enumerate() {
        let shift = shift % 2;
        let (x, w) = (&x[shift..][..s.input_len()], &w[shift..][..s.weights_len()]);
        let want = reference(&s, x, w, e);
        let mut packed = vec![0.0; w.len()];
        pack_conv_weights_into(&mut packed, w, s.out_channels, s.groups);
        for isa in Isa::all_available() {
            on_threads(|exec, threads| {
                for weights in [ConvWeights::RowMajor(w), ConvWeights::packed(&packed)] {
                    let mut out = vec![f32::NAN; s.output_len()];
                    conv_on(isa, exec, &s, x, weights, e, &mut out).unwrap();
                    assert_bits(&out, &want, &format!("{s:?} {isa:?} {threads} threads"));
                }
            });
        }
    }
}

const PLAIN: ConvSizes<'static> = ConvSizes {
    batch: 1,
    in_channels: 5,
    out_channels: 11,
    groups: 1,
    input: &[9, 13],
    kernel: &[3, 3],
    strides: &[1, 1],
    dilations: &[1, 1],
    pads_begin: &[1, 1],
    pads_end: &[1, 1],
};

#[test]
fn plain_strided_dilated_and_unevenly_padded() {
    check(&PLAIN);
    check(&ConvSizes {
        batch: 2,
        strides: &[2, 2],
        ..PLAIN
    });
    check(&ConvSizes {
        strides: &[1, 3],
        dilations: &[2, 1],
        ..PLAIN
    });
    check(&ConvSizes {
        pads_begin: &[0, 4],
        pads_end: &[3, 0],
        dilations: &[1, 2],
        ..PLAIN
    });
    check(&ConvSizes {
        input: &[3, 3],
        pads_begin: &[5, 5],
        pads_end: &[6, 4],
        ..PLAIN
    });
    check(&ConvSizes {
        input: &[40, 61],
        in_channels: 3,
        kernel: &[7, 7],
        strides: &[2, 2],
        ..PLAIN
    });
    check(&ConvSizes {
        input: &[4, 70],
        kernel: &[1, 5],
        pads_begin: &[0, 2],
        pads_end: &[0, 2],
        ..PLAIN
    });
}

#[test]
fn deep_and_pointwise() {
    let none: &[usize] = &[0, 0];
    let point = ConvSizes {
        kernel: &[1, 1],
        pads_begin: none,
        pads_end: none,
        ..PLAIN
    };
    check(&point);
    check(&ConvSizes {
        in_channels: 300,
        out_channels: 70,
        input: &[7, 7],
        ..point
    });
    check(&ConvSizes {
        in_channels: 40,
        out_channels: 64,
        input: &[7, 7],
        ..PLAIN
    });
    check(&ConvSizes {
        in_channels: 70,
        out_channels: 33,
        input: &[14, 14],
        ..PLAIN
    });
    check(&ConvSizes {
        strides: &[2, 2],
        input: &[14, 14],
        ..point
    });
}

/// Sizes of convolutions that are copied in bands.
const BANDS: [ConvSizes<'static>; 8] = [
    // The last panels of places and of output channels are not full.
    ConvSizes {
        in_channels: 24,
        out_channels: 20,
        input: &[70, 50],
        ..PLAIN
    },
    // Lines that are shorter than the widest vector.
    ConvSizes {
        batch: 2,
        in_channels: 8,
        out_channels: 12,
        groups: 2,
        input: &[30, 11],
        ..PLAIN
    },
    // A plane for each remainder; the last line and the last place have padding after them.
    ConvSizes {
        in_channels: 3,
        out_channels: 16,
        input: &[41, 150],
        kernel: &[5, 5],
        strides: &[2, 3],
        pads_begin: &[2, 0],
        pads_end: &[1, 5],
        ..PLAIN
    },
    // All places of taps have one remainder.
    ConvSizes {
        input: &[33, 40],
        kernel: &[4, 4],
        strides: &[2, 2],
        dilations: &[2, 4],
        pads_begin: &[3, 4],
        pads_end: &[0, 4],
        ..PLAIN
    },
    // More padding than input.
    ConvSizes {
        input: &[2, 3],
        pads_begin: &[9, 20],
        pads_end: &[7, 30],
        ..PLAIN
    },
    // Filters of one line, of which each reaches far.
    ConvSizes {
        in_channels: 2,
        out_channels: 9,
        input: &[1, 1000],
        kernel: &[1, 40],
        pads_begin: &[0, 20],
        pads_end: &[0, 19],
        ..PLAIN
    },
    // Two bands on one thread.
    ConvSizes {
        in_channels: 96,
        out_channels: 9,
        input: &[45, 50],
        kernel: &[2, 2],
        pads_begin: &[1, 1],
        pads_end: &[1, 1],
        ..PLAIN
    },
    // As many output channels as bands may have.
    ConvSizes {
        in_channels: 5,
        out_channels: 128,
        input: &[12, 40],
        ..PLAIN
    },
];

#[test]
fn copied_in_bands() {
    for sizes in &BANDS {
        let s = ConvShape::new(sizes).unwrap();
        let packed = vec![0.0f32; s.weights_len()];
        assert!(bands::Bands::new(&s, ConvWeights::packed(&packed), 1).is_some());
        check(sizes);
    }
}

#[test]
fn weights_of_16_bits_in_bands() {
    for sizes in &BANDS {
        let s = ConvShape::new(sizes).unwrap();
        let x = noise(s.input_len(), 1);
        let w = noise(s.weights_len(), 2)
            .into_iter()
            .map(half::bf16::from_f32);
        let w: Vec<half::bf16> = w.collect();
        let wide: Vec<f32> = w.iter().map(|w| w.to_f32()).collect();
        let want = reference(&s, &x, &wide, &ConvEpilogue::NONE);
        let mut packed = vec![half::bf16::default(); w.len()];
        pack_conv_weights_into(&mut packed, &w, s.out_channels, s.groups);
        for isa in Isa::all_available() {
            on_threads(|exec, threads| {
                let mut out = vec![f32::NAN; s.output_len()];
                let weights = ConvWeights::packed(&packed);
                conv_on(isa, exec, &s, &x, weights, &ConvEpilogue::NONE, &mut out).unwrap();
                assert_bits(&out, &want, &format!("{s:?} {isa:?} {threads} threads"));
            });
        }
    }
}

#[test]
fn kernels_longer_than_a_piece_of_the_chain_and_no_channels() {
    for (channels, taps) in [(1, 1500), (2, 700), (0, 40)] {
        check(&ConvSizes {
            in_channels: channels,
            input: &[1, 1530],
            kernel: &[1, taps],
            pads_begin: &[0, 20],
            pads_end: &[0, 0],
            ..PLAIN
        });
    }
}

#[test]
fn a_channel_with_many_filters_stops() {
    let s = ConvShape::new(&ConvSizes {
        in_channels: 1,
        out_channels: 400,
        input: &[20, 20],
        kernel: &[7, 7],
        ..PLAIN
    })
    .unwrap();
    let (x, w) = (noise(s.input_len(), 1), noise(s.weights_len(), 2));
    check_stops(|exec| {
        let mut out = vec![0.0; s.output_len()];
        let weights = ConvWeights::RowMajor(&w);
        Ok(conv(*exec, &s, &x, weights, &ConvEpilogue::NONE, &mut out)?)
    });
}

#[test]
fn one_and_three_dimensions() {
    let one: &[usize] = &[1];
    check(&ConvSizes {
        input: &[77],
        kernel: &[4],
        strides: &[2],
        dilations: one,
        pads_begin: one,
        pads_end: &[2],
        ..PLAIN
    });
    check(&ConvSizes {
        in_channels: 2,
        out_channels: 9,
        input: &[4, 5, 6],
        kernel: &[3, 2, 3],
        strides: &[1, 2, 1],
        dilations: &[1, 1, 2],
        pads_begin: &[1, 0, 2],
        pads_end: &[0, 1, 1],
        ..PLAIN
    });
    // The padding after a depth of one makes three depths of it.
    check(&ConvSizes {
        input: &[1, 30, 40],
        kernel: &[1, 3, 3],
        strides: &[1; 3],
        dilations: &[1; 3],
        pads_begin: &[0, 1, 1],
        pads_end: &[2, 1, 1],
        ..PLAIN
    });
}

#[test]
fn grouped_and_depthwise() {
    check(&ConvSizes {
        in_channels: 6,
        out_channels: 9,
        groups: 3,
        batch: 2,
        ..PLAIN
    });
    let depth = ConvSizes {
        in_channels: 5,
        out_channels: 5,
        groups: 5,
        batch: 2,
        ..PLAIN
    };
    check(&depth);
    check(&ConvSizes {
        input: &[7, 7],
        ..depth
    });
    check(&ConvSizes {
        out_channels: 15,
        strides: &[2, 2],
        ..depth
    });
    check(&ConvSizes {
        out_channels: 50,
        ..depth
    });
    check(&ConvSizes {
        kernel: &[5, 5],
        strides: &[3, 2],
        dilations: &[2, 3],
        pads_begin: &[4, 6],
        pads_end: &[4, 5],
        ..depth
    });
    check(&ConvSizes {
        input: &[150, 200],
        in_channels: 2,
        out_channels: 2,
        groups: 2,
        ..depth
    });
    check(&ConvSizes {
        input: &[5, 2600],
        in_channels: 1,
        out_channels: 1,
        groups: 1,
        batch: 1,
        ..depth
    });
    // Several tiles of a plane that is read in place, and of one that is copied.
    for (input, dilations) in [
        ([150, 1001], [1, 1]),
        ([150, 200], [2, 2]),
        ([5, 2600], [2, 2]),
    ] {
        check(&ConvSizes {
            input: &input,
            in_channels: 1,
            out_channels: 1,
            groups: 1,
            batch: 1,
            dilations: &dilations,
            pads_begin: &dilations,
            pads_end: &dilations,
            ..depth
        });
    }
    check(&ConvSizes {
        input: &[50],
        kernel: &[4],
        strides: &[1],
        dilations: &[1],
        pads_begin: &[3],
        pads_end: &[0],
        ..depth
    });
    // This kernel is too wide for the window, so the unfolded path computes the same chain.
    check(&ConvSizes {
        input: &[9, 40],
        kernel: &[1, 33],
        pads_begin: &[0, 1],
        pads_end: &[0, 1],
        ..depth
    });
}

#[test]
fn depthwise_kernels_that_read_the_input_in_place() {
    for kernel in [3, 5] {
        for stride in [1, 2] {
            for (side, pad) in [
                ([1, 1], 2),
                ([3, 4], 2),
                ([7, 7], 1),
                ([14, 14], 2),
                ([15, 33], 0),
                ([40, 17], 1),
                ([6, 6], 9),
            ] {
                if side.iter().any(|s| s + 2 * pad < kernel) {
                    continue;
                }
                check(&ConvSizes {
                    batch: 2,
                    in_channels: 3,
                    out_channels: 3,
                    groups: 3,
                    input: &side,
                    kernel: &[kernel; 2],
                    strides: &[stride; 2],
                    dilations: &[1; 2],
                    pads_begin: &[pad; 2],
                    pads_end: &[pad, pad / 2 + kernel / 2],
                });
            }
        }
    }
}

/// Checks that packed weights of 16 bits give the bits of the same weights in f32.
fn check_halves<T>(from: fn(f32) -> T, sizes: &ConvSizes<'_>)
where
    T: Packed + PackSource + PackSource<T>,
{
    let s = ConvShape::new(sizes).unwrap();
    let (x, w) = (noise(s.input_len(), 1), noise(s.weights_len(), 2));
    let halves: Vec<T> = w.iter().map(|w| from(*w)).collect();
    let w: Vec<f32> = halves.iter().map(|w| w.packed()).collect();
    let want = reference(&s, &x, &w, &ConvEpilogue::NONE);
    let mut packed = vec![T::default(); w.len()];
    pack_conv_weights_into(&mut packed, &halves, s.out_channels, s.groups);
    for isa in Isa::all_available() {
        on_threads(|exec, threads| {
            let mut out = vec![f32::NAN; s.output_len()];
            let weights = ConvWeights::packed(&packed);
            conv_on(isa, exec, &s, &x, weights, &ConvEpilogue::NONE, &mut out).unwrap();
            assert_bits(&out, &want, &format!("{s:?} {isa:?} {threads} threads"));
        });
    }
}

#[test]
fn weights_of_16_bits() {
    for sizes in [
        PLAIN,
        ConvSizes {
            in_channels: 70,
            out_channels: 33,
            input: &[14, 14],
            ..PLAIN
        },
        ConvSizes {
            in_channels: 6,
            out_channels: 9,
            groups: 3,
            ..PLAIN
        },
        ConvSizes {
            in_channels: 1,
            out_channels: 11,
            ..PLAIN
        },
        ConvSizes {
            in_channels: 1,
            out_channels: 11,
            dilations: &[2, 2],
            ..PLAIN
        },
    ] {
        check_halves(half::f16::from_f32, &sizes);
        check_halves(half::bf16::from_f32, &sizes);
    }
}

#[test]
fn padding_is_a_zero_in_every_path() {
    let shape = |groups| {
        let sizes = ConvSizes {
            in_channels: 2,
            out_channels: 2,
            groups,
            input: &[2, 2],
            ..PLAIN
        };
        ConvShape::new(&sizes).unwrap()
    };
    let cancel = std::sync::atomic::AtomicBool::new(false);
    for groups in [1, 2] {
        let s = shape(groups);
        let w = vec![f32::INFINITY; s.weights_len()];
        let x = vec![1.0; s.input_len()];
        let mut out = vec![0.0; s.output_len()];
        let (exec, w) = (Exec::single(&cancel), ConvWeights::RowMajor(&w));
        conv(exec, &s, &x, w, &ConvEpilogue::NONE, &mut out).unwrap();
        assert!(
            out.iter().all(|x| x.is_nan()),
            "0 * inf over the padding: {out:?}"
        );
    }
}

#[test]
fn some_terms_are_the_chain_with_weights_of_zero_elsewhere() {
    let shapes = [
        PLAIN,
        ConvSizes {
            batch: 2,
            strides: &[1, 3],
            dilations: &[2, 1],
            ..PLAIN
        },
        ConvSizes {
            in_channels: 11,
            groups: 11,
            ..PLAIN
        },
        ConvSizes {
            kernel: &[1, 1],
            pads_begin: &[0, 0],
            pads_end: &[0, 0],
            ..PLAIN
        },
        ConvSizes {
            in_channels: 1,
            input: &[40, 61],
            kernel: &[19, 23],
            ..PLAIN
        },
    ];
    for sizes in shapes {
        let s = ConvShape::new(&sizes).unwrap();
        let (x, w, chain) = (
            noise(s.input_len(), 1),
            noise(s.weights_len(), 2),
            s.chain(),
        );
        for terms in [0..chain, 0..0, 1..chain / 2, chain / 3..chain] {
            let inside = |(i, w): (usize, &f32)| {
                if terms.contains(&(i % chain)) {
                    *w
                } else {
                    0.0
                }
            };
            let some: Vec<f32> = w.iter().enumerate().map(inside).collect();
            let want = reference(&s, &x, &some, &ConvEpilogue::NONE);
            on_threads(|exec, threads| {
                let mut out = vec![f32::NAN; s.output_len()];
                conv_terms(exec, &s, &x, &w, terms.clone(), &mut out).unwrap();
                assert_bits(&out, &want, &format!("{s:?} {terms:?} {threads} threads"));
            });
        }
    }
}
