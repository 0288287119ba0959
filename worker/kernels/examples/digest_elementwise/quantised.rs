//! The kernels of quantised numbers.

use crate::digest::{Digest, data};
use convoke_kernels::Exec;
use convoke_kernels::conv::{ConvShape, ConvSizes};
use convoke_kernels::error::Result;
use convoke_kernels::gemm::Batch;
use convoke_kernels::narrow::{Narrow, NarrowFloat, NarrowInt};
use convoke_kernels::quantised::{
    BlockWeights, Bytes, Destination, Format, GroupedConv, Layout, Numbers, PackedRows, Parameters,
    Precision, Quantisation, Requantisation, SumBias, Take, ZeroPoints, Zeros, add_exact,
    dequantise, grouped_conv_of_bytes, pack_codes, pack_rows, packed_row, product_of_blocks,
    product_of_bytes, quantise, requantise, span,
};

/// A product of bytes, of the sizes where its panels end and in between.
fn byte_products(exec: &Exec, digest: &mut Digest) -> Result {
    for (m, n, k) in [(1, 64, 4), (1, 1100, 67), (7, 100, 1027), (64, 3, 70)] {
        let (a, b) = (data::<u8>(m * k, 255.0, 3), data::<u8>(k * n, 255.0, 4));
        let (mut packed, mut sums) = (vec![0; m * packed_row(k)], vec![0; m]);
        let left = Bytes {
            codes: &a,
            signed: false,
        };
        pack_rows(exec, left, k, &mut packed, &mut sums)?;
        let left = PackedRows {
            packed: &packed,
            sums: &sums,
            signed: false,
            zeros: Zeros::One(117),
        };
        let right = Bytes {
            codes: &b,
            signed: true,
        };
        let mut y = vec![0; m * n];
        let right = (right, Zeros::One(-3));
        product_of_bytes(
            *exec,
            &Batch::ONE,
            (m, n, k),
            left,
            right,
            Destination::Sums(&mut y),
        )?;
        digest.add(&format!("product_of_bytes [{m}, {k}] · [{k}, {n}]"), &y);
    }
    Ok(())
}

/// Convolutions of bytes whose groups have few filters, in each form: with and without zero points of filters, and of a stride that
/// only plain loops serve.
fn grouped_convolutions(exec: &Exec, digest: &mut Digest) -> Result {
    for (stride, zero) in [(1, 0), (2, 0), (1, 9), (7, -5)] {
        let sizes = ConvSizes {
            batch: 2,
            in_channels: 6,
            out_channels: 6,
            groups: 3,
            input: &[19, 37],
            kernel: &[3, 5],
            strides: &[stride; 2],
            dilations: &[1, 2],
            pads_begin: &[1, 4],
            pads_end: &[2, 3],
        };
        let shape = ConvShape::new(&sizes).expect("sizes that fit together");
        let plan = GroupedConv::new(&shape).expect("few filters of a group");
        let x = data::<u8>(shape.input_len(), 255.0, 5);
        let w = data::<u8>(shape.weights_len(), 255.0, 6);
        let bytes = |codes, signed| Bytes { codes, signed };
        let (input, weights) = ((bytes(&x, false), 120), (bytes(&w, true), Zeros::One(zero)));
        let mut sums = vec![0; shape.output_len()];
        let to = Destination::Sums(&mut sums);
        assert!(grouped_conv_of_bytes(*exec, &plan, input, weights, to)?);
        digest.add(&format!("grouped_conv_of_bytes {stride} {zero}"), &sums);
        let how = Requantisation {
            bias: SumBias::None,
            rows: &[1e-3],
            columns: &[2e-3],
            scales: &[0.1],
            zeros: &[3.0],
            to: Format::I8,
        };
        let mut codes = vec![0; sums.len()];
        let to = Destination::Codes(&mut codes, &how);
        assert!(grouped_conv_of_bytes(*exec, &plan, input, weights, to)?);
        digest.add(
            &format!("codes of grouped_conv_of_bytes {stride} {zero}"),
            &codes,
        );
    }
    Ok(())
}

pub fn quantised(exec: &Exec, digest: &mut Digest) -> Result {
    let n = 10_000;
    let x = data::<f32>(n, 40.0, 7);
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_ne_bytes()).collect();
    let scales: Vec<f32> = (1..=100).map(|i| i as f32 * 0.01).collect();
    let zeros: Vec<f32> = (0..100).map(|i| (i % 7) as f32).collect();
    let signed = Narrow::Int(NarrowInt {
        bits: 4,
        signed: true,
    });
    let float = Narrow::Float(NarrowFloat::F8E4M3FN);
    let layouts = [
        Layout::Tensor,
        Layout::Axis { len: 100, inner: 1 },
        Layout::Axis {
            len: 100,
            inner: 100,
        },
        Layout::Blocks {
            len: 100,
            inner: 100,
            size: 100,
        },
    ];
    for (to, width) in [
        (Format::U8, 2),
        (Format::I16, 4),
        (Format::Narrow(signed), 1),
        (Format::Narrow(float), 2),
    ] {
        for precision in [Precision::F32, Precision::F16, Precision::BF16] {
            for layout in layouts {
                let parameters = Parameters {
                    layout,
                    scales: Some(&scales),
                    zeros: Some(&zeros),
                };
                let how = Quantisation {
                    to,
                    precision,
                    saturate: false,
                };
                let mut codes = vec![0u8; n / 2 * width];
                let numbers = Numbers::new(Format::F32, &bytes);
                quantise(exec, &numbers, n, &parameters, how, &mut codes)?;
                digest.add(&format!("quantise {to:?} {precision:?} {layout:?}"), &codes);
                let mut back = vec![0u8; 4 * n];
                let numbers = Numbers::new(to, &codes);
                let into = (Format::F32, &mut back[..]);
                dequantise(exec, &numbers, Take::ALL, n, &parameters, into)?;
                digest.add(&format!("dequantise {to:?} {layout:?}"), &back);
            }
        }
    }
    let (low, high) = span(exec, &x)?;
    digest.add("span", &[low, high]);
    let mut sums = data::<i32>(n, 1e6, 3);
    let part: Vec<f32> = sums.iter().map(|s| (s % 1000) as f32).collect();
    add_exact(exec, &part, &mut sums)?;
    digest.add("add_exact", &sums);
    byte_products(exec, digest)?;
    grouped_convolutions(exec, digest)?;
    let how = Requantisation {
        bias: SumBias::Rows(&[5, -9]),
        rows: &scales,
        columns: &scales,
        scales: &[0.7, 11.0],
        zeros: &[3.0],
        to: Format::I8,
    };
    let mut codes = vec![0u8; n];
    requantise(exec, &sums, 100, &how, &mut codes)?;
    digest.add("requantise", &codes);
    let column_bias: Vec<i32> = (0..100).map(|i| 37 * i - 900).collect();
    let how = Requantisation {
        bias: SumBias::Columns(&column_bias),
        ..how
    };
    requantise(
        exec,
        &sums[..n / 100 * 100],
        100,
        &how,
        &mut codes[..n / 100 * 100],
    )?;
    digest.add("requantise with a bias of columns", &codes);
    let (m, k, columns, block) = (5, 300, 20, 32);
    let packed = data::<u8>(columns * 10 * block / 2, 255.0, 5);
    // A number that is not finite would make every sum NaN.
    let finite = |x: f32| if x.is_finite() { x } else { 0.5 };
    let a: Vec<f32> = data(m * k, 1.0, 13).into_iter().map(finite).collect();
    let scales: Vec<f32> = data(columns * 10, 0.2, 11)
        .into_iter()
        .map(finite)
        .collect();
    let weights = BlockWeights {
        k,
        n: columns,
        bits: 4,
        signed: false,
        packed: false,
        block,
        codes: &packed,
        scales: &scales,
        zeros: ZeroPoints::Middle,
    };
    let mut y = vec![0f32; m * columns];
    product_of_blocks(exec, &a, m, &weights, None, &mut y)?;
    digest.add("product_of_blocks", &y);
    let mut alone = vec![0f32; columns];
    product_of_blocks(exec, &a[..k], 1, &weights, None, &mut alone)?;
    digest.add("product_of_blocks of one row", &alone);
    assert_eq!(alone, y[..columns], "one row, alone and among others");
    let rows = 10 * block;
    let mut laid_out = vec![0u8; columns.next_multiple_of(64) / 2 * rows];
    pack_codes(exec, &packed, (columns, rows, 4, false), &mut laid_out)?;
    digest.add("pack_codes", &laid_out);
    let turned: Vec<f32> = (0..scales.len())
        .map(|i| scales[i % columns * 10 + i / columns])
        .collect();
    let weights = BlockWeights {
        packed: true,
        codes: &laid_out,
        scales: &turned,
        ..weights
    };
    let mut of_packed = vec![0f32; m * columns];
    product_of_blocks(exec, &a, m, &weights, None, &mut of_packed)?;
    assert_eq!(of_packed, y, "packed weights");
    product_of_blocks(exec, &a[..k], 1, &weights, None, &mut alone)?;
    assert_eq!(alone, y[..columns], "one row by packed weights");
    Ok(())
}
