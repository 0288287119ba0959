use convoke_graph::graph::{Attr, Attrs};
use convoke_graph::{DType, Element, Tensor};

use crate::cpu::testing::{launch, one, vec1};

fn tensor<T: Element>(shape: &[usize], code: impl Fn(usize) -> T) -> Tensor {
    let all: Vec<T> = (0..shape.iter().product()).map(code).collect();
    Tensor::from_slice(shape, &all).unwrap()
}

/// The elements of a tensor of codes or sums.
fn ints(t: &Tensor) -> Vec<i64> {
    t.to_i64s().unwrap()
}

/// `a [m, k]` times `b [k, n]`, each less the zero points that the functions give, wrapping.
fn sums(
    (a, b): (&Tensor, &Tensor),
    (m, n, k): (usize, usize, usize),
    a_zero: impl Fn(usize) -> i64,
    b_zero: impl Fn(usize) -> i64,
) -> Vec<i32> {
    let (a, b) = (ints(a), ints(b));
    let each = |r: usize, c: usize| {
        let terms = (0..k).map(|i| (a[r * k + i] - a_zero(r)) * (b[i * n + c] - b_zero(c)));
        terms.sum::<i64>() as i32
    };
    (0..m * n).map(|i| each(i / n, i % n)).collect()
}

#[test]
fn products_of_codes_are_exact_and_wrap() {
    for (m, n, k) in [
        (3, 5, 7),
        (2, 3, 1000),
        (1, 1, 40_000),
        (4, 17, 259),
        (2, 2, 0),
    ] {
        let a = tensor(&[m, k], |i| if k > 20_000 { 255 } else { (i * 97) as u8 });
        let b = tensor(&[k, n], |i| if k > 20_000 { 255 } else { (i * 31) as u8 });
        let y = one("MatMulInteger", Attrs::default(), &[&a, &b]).unwrap();
        assert_eq!(
            y.as_slice::<i32>().unwrap(),
            sums((&a, &b), (m, n, k), |_| 0, |_| 0)
        );
        let signed = tensor(&[k, n], |i| (i * 13) as u8 as i8);
        let (rows, columns) = (
            tensor(&[m, 1], |i| (i * 80) as u8),
            tensor(&[n], |i| (i * 9 + 156) as u8 as i8),
        );
        let y = one(
            "MatMulInteger",
            Attrs::default(),
            &[&a, &signed, &rows, &columns],
        )
        .unwrap();
        let (row, column) = (ints(&rows), ints(&columns));
        let want = sums((&a, &signed), (m, n, k), |r| row[r], |c| column[c]);
        assert_eq!(y.as_slice::<i32>().unwrap(), want);
    }
}

#[test]
fn stacks_of_products_have_zero_points_for_each_matrix() {
    let a = tensor(&[2, 3, 4], |i| (i * 7) as u8);
    let b = tensor(&[4, 5], |i| (i * 11) as u8);
    let zeros = tensor(&[2, 3, 1], |i| i as u8 * 3);
    let y = one("MatMulInteger", Attrs::default(), &[&a, &b, &zeros]).unwrap();
    assert_eq!(y.shape(), [2, 3, 5]);
    let each = ints(&zeros);
    assert_eq!(
        y.as_slice::<i32>().unwrap(),
        sums((&a, &b), (6, 5, 4), |r| each[r], |_| 0)
    );
    let vector = tensor(&[4], |i| i as u8);
    let y = one("MatMulInteger", Attrs::default(), &[&vector, &vector]).unwrap();
    assert_eq!(y, Tensor::scalar(14i32));
    let refused =
        |zeros: &Tensor| one("MatMulInteger", Attrs::default(), &[&a, &b, zeros]).is_err();
    assert!(refused(&tensor(&[2], |_| 0u8)) && refused(&tensor(&[2, 3, 4], |_| 0u8)));
}

/// The convolution of one spatial axis, as its definition says.
fn convolved(
    (x, x_shape, x_zero): (&[i64], [usize; 3], i64),
    (w, w_shape, w_zero): (&[i64], [usize; 3], &[i64]),
    (group, stride, dilation, pad): (usize, usize, usize, usize),
) -> Vec<i32> {
    let ([batch, channels, len], [filters, depth, taps]) = (x_shape, w_shape);
    let out = (len + 2 * pad - (taps - 1) * dilation - 1) / stride + 1;
    let mut y = Vec::new();
    for n in 0..batch {
        for f in 0..filters {
            for o in 0..out {
                let mut sum = 0;
                for c in 0..depth {
                    let channel = f / (filters / group) * depth + c;
                    for t in 0..taps {
                        let Some(at) = (o * stride + t * dilation).checked_sub(pad) else {
                            continue;
                        };
                        if at < len {
                            let x = x[(n * channels + channel) * len + at] - x_zero;
                            sum += x * (w[(f * depth + c) * taps + t] - w_zero[f % w_zero.len()]);
                        }
                    }
                }
                y.push(sum as i32);
            }
        }
    }
    y
}

#[test]
fn convolutions_of_codes_are_exact() {
    for (channels, filters, taps, group, stride, dilation, pad) in [
        (4, 6, 3, 2, 1, 1, 1),
        (64, 3, 5, 1, 2, 1, 0),
        (2, 2, 600, 1, 7, 1, 300),
        (8, 8, 3, 8, 1, 2, 2),
        (300, 2, 1, 1, 1, 1, 0),
        // Mostly padding, so that no copy of the input is made.
        (96, 2, 3, 1, 1, 600, 600),
    ] {
        let (x_shape, w_shape) = ([2, channels, 41], [filters, channels / group, taps]);
        let x = tensor(&x_shape, |i| if i % 3 == 0 { 255 } else { (i * 91) as u8 });
        let w = tensor(&w_shape, |i| {
            if i % 5 == 0 {
                -128
            } else {
                (i * 57) as u8 as i8
            }
        });
        let each = tensor(&[filters], |i| (i * 20 + 196) as u8 as i8);
        let attrs = Attrs::default()
            .with("group", Attr::Int(group as i64))
            .with("strides", Attr::Ints(vec![stride as i64]))
            .with("dilations", Attr::Ints(vec![dilation as i64]))
            .with("pads", Attr::Ints(vec![pad as i64; 2]));
        let y = one("ConvInteger", attrs, &[&x, &w, &Tensor::scalar(3u8), &each]).unwrap();
        let want = convolved(
            (&ints(&x), x_shape, 3),
            (&ints(&w), w_shape, &ints(&each)),
            (group, stride, dilation, pad),
        );
        assert_eq!(y.as_slice::<i32>().unwrap(), want, "{channels} {taps}");
    }
}

#[test]
fn codes_are_requantised() {
    let (a, b) = (
        tensor(&[2, 3], |i| i as u8 * 40),
        tensor(&[3, 2], |i| i as i8 * 20 - 50),
    );
    let scales = [vec1(&[0.5f32]), vec1(&[0.25f32, 2.]), Tensor::scalar(8f32)];
    let zeros = [Tensor::scalar(10u8), vec1(&[1i8, -1]), Tensor::scalar(-5i8)];
    let [a_scale, b_scale, y_scale] = &scales;
    let [a_zero, b_zero, y_zero] = &zeros;
    let operands = [&a, a_scale, a_zero, &b, b_scale, b_zero, y_scale, y_zero];
    let y = one("QLinearMatMul", Attrs::default(), &operands).unwrap();
    let sums = sums((&a, &b), (2, 2, 3), |_| 10, |c| [1, -1][c]);
    let scale = |i: usize| 0.5 * [0.25, 2.][i % 2] / 8.;
    let want = |bias: [i32; 2]| -> Vec<i8> {
        let all = sums
            .iter()
            .enumerate()
            .map(|(i, s)| (s + bias[i % 2]) as f32 * scale(i));
        let all = all.map(|y| (y.round_ties_even() - 5.).clamp(-128., 127.) as i8);
        all.collect()
    };
    assert_eq!(y.as_slice::<i8>().unwrap(), want([0, 0]));
    let bias = vec1(&[300i32, -20]);
    let operands = [&operands[..], &[&bias]].concat();
    let y = one("QLinearMatMul", Attrs::default(), &operands).unwrap();
    assert_eq!(y.as_slice::<i8>().unwrap(), want([300, -20]));
}

#[test]
fn zero_points_of_i32_are_subtracted_before_numbers_are_rounded() {
    let check = |x: &[i32], zeros: &Tensor, scales: &Tensor, want: &[u32]| {
        let attrs = Attrs::default().with("axis", Attr::Int(0));
        let y = one("DequantizeLinear", attrs, &[&vec1(x), scales, zeros]).unwrap();
        let y = y.as_slice::<f32>().unwrap().iter().map(|y| y.to_bits());
        assert_eq!(y.collect::<Vec<_>>(), want, "{x:?} less {zeros:?}");
    };
    let scale = Tensor::scalar(0.37f32);
    // As ONNX Runtime computes them.
    check(
        &[16_777_218, i32::MAX, -5, 33_554_435],
        &Tensor::scalar(16_777_217),
        &scale,
        &[1_052_602_532, 1_312_552_387, 3_401_412_776, 1_253_929_125],
    );
    // A difference beyond i32 does not wrap.
    let difference = (u32::MAX as f32 * 0.37).to_bits();
    check(
        &[i32::MAX],
        &Tensor::scalar(i32::MIN),
        &scale,
        &[difference],
    );
    check(
        &[16_777_218, 16_777_219],
        &vec1(&[16_777_217, -1]),
        &vec1(&[0.5f32, 2.0]),
        &[0.5f32, 33_554_440.0].map(f32::to_bits),
    );
}

#[test]
fn each_dtype_is_quantised_and_back() {
    let x = vec1(&[-2f32, -1., 0., 0.5, 1., 2., 3.]);
    for to in convoke_graph::ops::attrs::QUANTISED {
        for scale in [DType::F32, DType::F16, DType::BF16] {
            let cast = |t: &Tensor, to| {
                one("Cast", Attrs::default().with("to", Attr::DType(to)), &[t]).unwrap()
            };
            let one_half = cast(&Tensor::scalar(0.5f32), scale);
            let attrs = Attrs::default().with("output_dtype", Attr::DType(*to));
            let y = one("QuantizeLinear", attrs, &[&cast(&x, scale), &one_half]).unwrap();
            assert_eq!(y.dtype(), *to);
            let back = one("DequantizeLinear", Attrs::default(), &[&y, &one_half]).unwrap();
            assert_eq!(back.dtype(), scale);
            let (low, high) = match to {
                DType::U8 | DType::U16 | DType::U4 => (0., 3.),
                DType::U2 => (0., 1.5),
                DType::I2 => (-1., 0.5),
                _ => (-2., 3.),
            };
            let want: Vec<f32> = x
                .as_slice::<f32>()
                .unwrap()
                .iter()
                .map(|x| x.clamp(low, high))
                .collect();
            assert_eq!(cast(&back, DType::F32), vec1(&want), "{to} by {scale}");
        }
    }
}

#[test]
fn the_precision_decides_how_quotients_are_rounded() {
    // 2.50048828125 is 2.5 as f16.
    let (x, scale) = (vec1(&[2.500_488_3f32]), Tensor::scalar(1f32));
    let quantised = |precision: DType| {
        let attrs = Attrs::default().with("precision", Attr::DType(precision));
        one("QuantizeLinear", attrs, &[&x, &scale])
            .unwrap()
            .as_slice::<u8>()
            .unwrap()
            .to_vec()
    };
    assert_eq!(
        (quantised(DType::F32), quantised(DType::F16)),
        (vec![3], vec![2])
    );
}

#[test]
fn scales_of_a_wrong_shape_are_refused() {
    let x = tensor(&[2, 6], |i| i as f32);
    let check = |scales: &[usize], zeros: Option<&[usize]>, attrs: &[(&str, i64)], fits: bool| {
        let attrs = attrs
            .iter()
            .fold(Attrs::default(), |a, (n, v)| a.with(n, Attr::Int(*v)));
        let mut operands = vec![Some(x.clone()), Some(tensor(scales, |_| 1f32))];
        operands.extend(zeros.map(|z| Some(tensor(z, |_| 0u8))));
        let ran = launch("QuantizeLinear", attrs.clone(), operands, 1);
        assert_eq!(ran.is_ok(), fits, "{scales:?} {zeros:?} {attrs:?}");
    };
    check(&[], Some(&[1]), &[], true);
    check(&[6], Some(&[6]), &[], true);
    check(&[2], None, &[("axis", 0)], true);
    check(&[2, 2], Some(&[2, 2]), &[("block_size", 3)], true);
    check(&[2, 2], None, &[("block_size", 4)], true);
    check(&[2, 2], Some(&[2, 2]), &[("block_size", 2)], false);
    check(&[5], None, &[], false);
    check(&[6], Some(&[2]), &[], false);
    check(&[6], None, &[("axis", 7)], false);
    check(&[2, 6], None, &[], false);
    check(&[2, 2], None, &[("block_size", -3)], false);
}

#[test]
fn packed_weights_multiply_as_their_numbers() {
    let (m, k, n, block) = (2051, 70, 9, 32);
    let a = tensor(&[m, k], |i| (i % 13) as f32 - 6.25);
    let codes = tensor(&[n, 3, 16], |i| (i * 37) as u8);
    let scales = tensor(&[n * 3], |i| 0.01 * (i % 5 + 1) as f32);
    let attrs = [("K", k), ("N", n), ("bits", 4), ("block_size", block)];
    let attrs = attrs.iter().fold(Attrs::default(), |a, (name, v)| {
        a.with(name, Attr::Int(*v as i64))
    });
    let y = one("MatMulNBits", attrs.clone(), &[&a, &codes, &scales]).unwrap();
    let (bytes, scale) = (
        codes.as_slice::<u8>().unwrap(),
        scales.as_slice::<f32>().unwrap(),
    );
    let number = |i: usize| {
        let (row, column) = (i / n, i % n);
        let byte = bytes[column * 48 + row / 2];
        let code = if row % 2 == 0 { byte & 15 } else { byte >> 4 };
        (f32::from(code) - 8.) * scale[column * 3 + row / block]
    };
    let wide = tensor(&[k, n], number);
    assert_eq!(y, one("MatMul", Attrs::default(), &[&a, &wide]).unwrap());
    for m in [1, 1024] {
        let first = tensor(&[m, k], |i| (i % 13) as f32 - 6.25);
        let rows = one("MatMulNBits", attrs.clone(), &[&first, &codes, &scales]).unwrap();
        assert_eq!(
            rows.as_slice::<f32>().unwrap(),
            &y.as_slice::<f32>().unwrap()[..m * n]
        );
    }
    let short = tensor(&[n * 2], |_| 1f32);
    assert!(one("MatMulNBits", attrs, &[&a, &codes, &short]).is_err());
}

#[test]
fn products_of_codes_are_near_those_of_numbers_and_the_same_in_any_batch() {
    let (m, k, n, block) = (70, 70, 9, 32);
    let number = |i: usize| ((i * 37 % 101) as f32 - 50.) / 25.;
    let codes = tensor(&[n, 3, 16], |i| (i * 37) as u8);
    let scales = tensor(&[n * 3], |i| 0.01 * (i % 5 + 1) as f32);
    let sizes = [("K", k), ("N", n), ("bits", 4), ("block_size", block)];
    let attrs = sizes.iter().fold(Attrs::default(), |a, (name, v)| {
        a.with(name, Attr::Int(*v as i64))
    });
    let by = |op: &str, m: usize| {
        let a = tensor(&[m, k], number);
        let y = one(op, attrs.clone(), &[&a, &codes, &scales]).unwrap();
        y.as_slice::<f32>().unwrap().to_vec()
    };
    let (exact, coded) = (by("MatMulNBits", m), by("MatMulNBitsInt8", m));
    let greatest = exact.iter().fold(0f32, |most, y| most.max(y.abs()));
    let off = exact.iter().zip(&coded).map(|(y, z)| (y - z).abs());
    let off = off.fold(0f32, f32::max) / greatest;
    assert!((1e-5..1e-2).contains(&off), "{off}");
    for rows in [1, 7, 64] {
        assert_eq!(by("MatMulNBitsInt8", rows), coded[..rows * n]);
    }
}
