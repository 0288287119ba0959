//! Convolutions of 16 bits that are converted within, beside those whose operands are converted before.

use super::*;
use crate::element::Float;

/// Checks that a convolution of numbers of 16 bits gives the bits of widening all of them before, and of rounding the
/// results after.
fn check_narrow<T: Float<Wide = f32> + Packed + PackSource<T>>(sizes: &ConvSizes<'_>) {
    let s = ConvShape::new(sizes).unwrap();
    check_planned::<T>(&s, &NarrowConv::new(&s).unwrap());
}

/// Checks a planned convolution as [`check_narrow`] does.
pub fn check_planned<T: Float<Wide = f32> + Packed + PackSource<T>>(
    s: &ConvShape,
    plan: &NarrowConv,
) {
    let narrow = |x: Vec<f32>| -> Vec<T> { x.into_iter().map(T::narrow).collect() };
    let mut x = narrow(noise(s.input_len(), 1));
    let w = narrow(noise(s.weights_len(), 2));
    // Infinities that meet give NaN.
    for i in (0..x.len()).step_by(13) {
        x[i] = if i % 2 == 0 { T::HIGHEST } else { T::LOWEST };
    }
    let bias = noise(s.out_channels, 3);
    let mut packed = vec![T::default(); w.len()];
    pack_conv_weights_into(&mut packed, &w, s.out_channels, s.groups);
    let wide: Vec<f32> = x.iter().map(|x| x.widen()).collect();
    for (activation, gates) in [
        (Activation::None, false),
        (Activation::Relu, false),
        (Activation::Silu, false),
        (Activation::Sigmoid, true),
    ] {
        let epilogue = ConvEpilogue {
            bias: Some(&bias),
            ..ConvEpilogue::NONE
        };
        let ending = NarrowEnding { activation, gates };
        let weights = ConvWeights::packed(&packed);
        for isa in Isa::all_available() {
            on_threads(|exec, threads| {
                let mut want = vec![0.0; s.output_len()];
                conv_on(isa, exec, s, &wide, weights, &epilogue, &mut want).unwrap();
                let mut got = vec![T::ONE; want.len()];
                let end = (Some(&bias[..]), ending);
                plan.run_on(isa, exec, &x, weights, end, &mut got).unwrap();
                let got: Vec<f32> = got.into_iter().map(T::widen).collect();
                let mut all = vec![T::ONE; want.len()];
                ending.finish_all(&exec, &mut want, &mut all).unwrap();
                let want: Vec<f32> = all.into_iter().map(T::widen).collect();
                assert_bits(&got, &want, &format!("{s:?} {isa:?} {threads} threads"));
            });
        }
    }
}

#[test]
fn depthwise_convolutions_of_16_bits_are_converted_within() {
    let depthwise = ConvSizes {
        batch: 2,
        in_channels: 3,
        out_channels: 6,
        groups: 3,
        ..PLAIN
    };
    for (input, kernel, stride) in [
        ([7, 7], 3, 1),
        ([15, 40], 5, 2),
        ([1, 1], 3, 2),
        ([33, 14], 5, 1),
    ] {
        let sizes = ConvSizes {
            input: &input,
            kernel: &[kernel; 2],
            strides: &[stride; 2],
            pads_begin: &[kernel / 2; 2],
            pads_end: &[kernel / 2; 2],
            ..depthwise
        };
        check_narrow::<crate::element::f16>(&sizes);
        check_narrow::<crate::element::bf16>(&sizes);
    }
    // Forms without a kernel of their own, and planes that are too large for one block.
    for sizes in [
        ConvSizes {
            dilations: &[2, 2],
            ..depthwise
        },
        ConvSizes {
            batch: 1,
            input: &[500, 500],
            ..depthwise
        },
    ] {
        check_narrow::<crate::element::f16>(&sizes);
    }
}

#[test]
fn convolutions_of_16_bits_are_converted_in_blocks() {
    let pointwise = ConvSizes {
        batch: 2,
        in_channels: 24,
        out_channels: 21,
        groups: 1,
        input: &[13, 37],
        kernel: &[1, 1],
        strides: &[1, 1],
        dilations: &[1, 1],
        pads_begin: &[0, 0],
        pads_end: &[0, 0],
    };
    let taps = ConvSizes {
        kernel: &[3, 3],
        pads_begin: &[1, 1],
        pads_end: &[1, 1],
        ..pointwise
    };
    for sizes in [
        PLAIN,
        pointwise,
        taps,
        ConvSizes {
            groups: 3,
            strides: &[2, 2],
            ..taps
        },
        ConvSizes {
            dilations: &[3, 2],
            pads_begin: &[4, 0],
            pads_end: &[5, 3],
            ..taps
        },
        // The last outputs lie in the padding, and the first ones too.
        ConvSizes {
            input: &[2, 5],
            pads_begin: &[4, 4],
            pads_end: &[2, 2],
            ..taps
        },
        // Several blocks of lines.
        ConvSizes {
            batch: 1,
            input: &[67, 190],
            ..taps
        },
        // Several blocks of output channels.
        ConvSizes {
            batch: 1,
            in_channels: 90,
            out_channels: 700,
            input: &[16, 24],
            ..pointwise
        },
        // One and three dimensions.
        ConvSizes {
            input: &[301],
            kernel: &[5],
            strides: &[2],
            dilations: &[1],
            pads_begin: &[2],
            pads_end: &[2],
            ..pointwise
        },
        ConvSizes {
            in_channels: 3,
            input: &[6, 7, 9],
            kernel: &[2, 3, 3],
            strides: &[1, 2, 1],
            dilations: &[1; 3],
            pads_begin: &[1, 0, 1],
            pads_end: &[0, 1, 1],
            ..pointwise
        },
    ] {
        check_narrow::<crate::element::f16>(&sizes);
        check_narrow::<crate::element::bf16>(&sizes);
    }
    // A block of it does not fit, or an output reads nothing before its padding.
    for sizes in [
        ConvSizes {
            in_channels: 1 << 16,
            ..pointwise
        },
        ConvSizes {
            pads_end: &[40, 1],
            ..taps
        },
        // The padding after an axis of one element makes more outputs of it.
        ConvSizes {
            input: &[1, 9],
            kernel: &[1, 3],
            pads_begin: &[0, 1],
            pads_end: &[2, 1],
            ..taps
        },
        ConvSizes {
            input: &[1, 6, 7],
            kernel: &[1, 3, 3],
            strides: &[1; 3],
            dilations: &[1; 3],
            pads_begin: &[0, 1, 1],
            pads_end: &[2, 1, 1],
            ..taps
        },
        ConvSizes {
            input: &[0, 8],
            pads_begin: &[3, 1],
            ..taps
        },
    ] {
        assert!(NarrowConv::new(&ConvShape::new(&sizes).unwrap()).is_none());
    }
}
