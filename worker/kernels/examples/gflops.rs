//! Prints the speed of matrix products and convolutions beside the processor's measured peak: `cargo run --release -p
//! convoke-kernels --example gflops [filter]`

#![allow(clippy::disallowed_methods)]

use convoke_kernels::conv::{
    ConvEpilogue, ConvShape, ConvSizes, ConvWeights, conv, pack_conv_weights_into,
};
use convoke_kernels::element::{bf16, f16};
use convoke_kernels::gemm::{
    Activation, Batch, Epilogue, Lhs, PackedB, Rhs, Strided, gemm, gemm_batched, pack_b_into,
    packed_b_len,
};
use convoke_kernels::quantised::{
    BlockWeights, Bytes, BytesConv, CodedRows, Destination, Format, GroupedConv, PackedRows,
    Requantisation, SumBias, ZeroPoints, Zeros, code_rows, conv_of_bytes, grouped_conv_of_bytes,
    pack_codes, product_of_blocks, product_of_codes,
};
use convoke_kernels::reduce::{Reduce, reduce_float};
use convoke_kernels::{Cancelled, Exec};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

static NEVER: AtomicBool = AtomicBool::new(false);

fn noise(len: usize) -> Vec<f32> {
    let mut state = 1u32;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// The time of the fastest run, in seconds, among many within about 0.4 s.
fn best(mut f: impl FnMut()) -> f64 {
    f();
    let (begin, mut best) = (Instant::now(), f64::MAX);
    while begin.elapsed().as_secs_f64() < 0.4 {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

/// The speed in GFLOP/s of one thread that multiplies and adds in registers only.
fn peak() -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        #[target_feature(enable = "avx512f")]
        fn wide(n: usize) -> f32 {
            let mut acc = [_mm512_set1_ps(0.0); 16];
            // The chains differ, since the compiler would merge equal chains or shuffle them between registers.
            for (i, x) in acc.iter_mut().enumerate() {
                *x = _mm512_set1_ps(i as f32);
            }
            let (a, b) = (
                std::hint::black_box(_mm512_set1_ps(0.5)),
                std::hint::black_box(_mm512_set1_ps(1.0)),
            );
            for _ in 0..n {
                for x in &mut acc {
                    *x = _mm512_fmadd_ps(a, b, *x);
                }
            }
            acc.iter().map(|x| _mm512_reduce_add_ps(*x)).sum()
        }
        #[target_feature(enable = "avx2,fma")]
        fn narrow(n: usize) -> f32 {
            let mut acc = [_mm256_set1_ps(0.0); 12];
            for (i, x) in acc.iter_mut().enumerate() {
                *x = _mm256_set1_ps(i as f32);
            }
            let (a, b) = (
                std::hint::black_box(_mm256_set1_ps(0.5)),
                std::hint::black_box(_mm256_set1_ps(1.0)),
            );
            for _ in 0..n {
                for x in &mut acc {
                    *x = _mm256_fmadd_ps(a, b, *x);
                }
            }
            acc.iter().map(|x| _mm256_cvtss_f32(*x)).sum()
        }
        const N: usize = 1 << 20;
        if is_x86_feature_detected!("avx512f") {
            let t = best(|| {
                // SAFETY: checked above.
                let _ = std::hint::black_box(unsafe { wide(N) });
            });
            return (N * 16 * 16 * 2) as f64 / t / 1e9;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            let t = best(|| {
                // SAFETY: checked above.
                let _ = std::hint::black_box(unsafe { narrow(N) });
            });
            return (N * 12 * 8 * 2) as f64 / t / 1e9;
        }
    }
    f64::NAN
}

struct Bench {
    filter: String,
    peak: f64,
    pool: rayon::ThreadPool,
}

impl Bench {
    fn report(
        &self,
        name: &str,
        flops: f64,
        mut f: impl FnMut(Exec<'_>) -> Result<(), Cancelled> + Send,
    ) {
        if !name.contains(&self.filter) {
            return;
        }
        let one = best(|| f(Exec::single(&NEVER)).expect("nobody cancels"));
        let two = self
            .pool
            .install(|| best(|| f(Exec::pooled(&self.pool, &NEVER)).expect("nobody cancels")));
        println!(
            "{name:44} {:9.1} us {:7.1} GFLOP/s {:5.1} %   2 threads {:9.1} us  x {:.2}",
            one * 1e6,
            flops / one / 1e9,
            flops / one / 1e9 / self.peak * 100.0,
            two * 1e6,
            one / two,
        );
    }

    fn depthwise_of_bytes(&self, channels: usize, side: usize, k: usize, stride: usize) {
        let shape = square(channels, channels, channels, side, k, stride);
        let byte = |i: usize| (i * 37 % 251) as u8;
        let x: Vec<u8> = (0..shape.input_len()).map(byte).collect();
        let w: Vec<u8> = (0..shape.weights_len()).map(byte).collect();
        let scales = vec![1e-3; channels];
        let how = Requantisation {
            bias: SumBias::None,
            rows: &scales,
            columns: &[1e-2],
            scales: &[0.1],
            zeros: &[128.0],
            to: Format::U8,
        };
        let mut out = vec![0; shape.output_len()];
        let plan = GroupedConv::new(&shape).expect("a depthwise convolution");
        let bytes = |codes, signed| Bytes { codes, signed };
        self.report(
            &format!("codes {channels}->{channels} /{channels} {side}x{side} k{k} s{stride}"),
            (2 * shape.output_len() * k * k) as f64,
            |exec| {
                let (input, weights) = ((bytes(&x, false), 128), (bytes(&w, true), Zeros::One(0)));
                let to = Destination::Codes(&mut out, &how);
                let done = grouped_conv_of_bytes(exec, &plan, input, weights, to);
                assert!(done.expect("nobody cancels"));
                Ok(())
            },
        );
    }

    /// Times a convolution of codes whose groups are one.
    fn conv_of_bytes(&self, ic: usize, oc: usize, side: usize, k: usize, stride: usize) {
        let shape = square(ic, oc, 1, side, k, stride);
        let byte = |i: usize| (i * 37 % 251) as u8;
        let x: Vec<u8> = (0..shape.input_len()).map(byte).collect();
        let w: Vec<u8> = (0..shape.weights_len()).map(byte).collect();
        let (scales, sums) = (vec![1e-3; oc], vec![0; oc]);
        let how = Requantisation {
            bias: SumBias::None,
            rows: &scales,
            columns: &[1e-2],
            scales: &[0.1],
            zeros: &[128.0],
            to: Format::U8,
        };
        // The products are the same whatever the sums of rows are.
        let filters = PackedRows {
            packed: &w,
            sums: &sums,
            signed: true,
            zeros: Zeros::One(0),
        };
        let plan = BytesConv::new(&shape).expect("a small convolution");
        let (mut copy, mut out) = (vec![0; plan.copied()], vec![0; shape.output_len()]);
        let input = Bytes {
            codes: &x,
            signed: false,
        };
        self.report(
            &format!("codes {ic}->{oc} {side}x{side} k{k} s{stride}"),
            (2 * shape.output_len() * ic * k * k) as f64,
            |exec| {
                let to = Destination::Codes(&mut out, &how);
                conv_of_bytes(exec, &plan, (input, 0), filters, &mut copy, to)
                    .map_err(|_| Cancelled)
            },
        );
    }

    /// Times the means of planes.
    fn means(&self, planes: usize, side: usize) {
        let (x, mut y) = (noise(planes * side * side), vec![0.0; planes]);
        let shape = [planes, side * side];
        let name = format!("means {planes} of {side}x{side}");
        self.report(&name, x.len() as f64, |exec| {
            reduce_float(&exec, Reduce::Mean, &x, &shape, &[1], &mut y).map_err(|_| Cancelled)
        });
    }

    fn gemm(&self, m: usize, n: usize, k: usize) {
        let (a, b) = (noise(m * k), noise(k * n));
        let mut packed = vec![0.0; packed_b_len(k, n)];
        pack_b_into(&mut packed, Strided::row_major(&b, n), k, n);
        let mut c = vec![0.0; m * n];
        let bias = noise(n);
        let l = Lhs::Strided(Strided::row_major(&a, k));
        let bt = Strided {
            data: &b,
            row_stride: 1,
            col_stride: k,
        };
        let cases = [
            (
                "packed",
                Rhs::Packed(PackedB::new(&packed, k, n)),
                Epilogue::col_bias(&bias),
            ),
            (
                "row",
                Rhs::Strided(Strided::row_major(&b, n)),
                Epilogue::NONE,
            ),
            ("col", Rhs::Strided(bt), Epilogue::NONE),
        ];
        for (kind, r, e) in cases {
            let flops = 2.0 * (m * n * k) as f64;
            self.report(&format!("gemm {m} x {n} x {k} {kind}"), flops, |exec| {
                gemm(exec, (m, n, k), l, r, &mut c, &e)
            });
        }
    }

    /// Times a product with packed weights of four bits in blocks of 32, by rows of numbers and of codes.
    fn blocks(&self, m: usize, n: usize, k: usize) {
        let (a, scales) = (noise(m * k), noise(n * k.div_ceil(32)));
        let codes: Vec<u8> = (0..n * k.div_ceil(32) * 16)
            .map(|i| (i * 89) as u8)
            .collect();
        let mut packed = vec![0; n.next_multiple_of(64) / 2 * k];
        let exec = Exec::single(&NEVER);
        pack_codes(&exec, &codes, (n, k, 4, false), &mut packed).expect("packed");
        let weights = BlockWeights {
            k,
            n,
            bits: 4,
            signed: false,
            packed: true,
            block: 32,
            codes: &packed,
            scales: &scales,
            zeros: ZeroPoints::Middle,
        };
        let mut c = vec![0.0; m * n];
        let flops = 2.0 * (m * n * k) as f64;
        let mut coded = vec![0; m * k];
        let (mut row_scales, mut sums) = (vec![0.0; m * k / 32], vec![0; m * k / 32]);
        self.report(
            &format!("gemm {m} x {n} x {k} four bits by codes"),
            flops,
            |exec| {
                let of = (&mut row_scales[..], &mut sums[..]);
                code_rows(&exec, &a, (k, 32), &mut coded, of).map_err(|_| Cancelled)?;
                let left = CodedRows {
                    codes: &coded,
                    scales: &row_scales,
                    sums: &sums,
                };
                product_of_codes(&exec, left, &weights, None, &mut c).map_err(|_| Cancelled)
            },
        );
        self.report(&format!("gemm {m} x {n} x {k} four bits"), flops, |exec| {
            product_of_blocks(&exec, &a, m, &weights, None, &mut c).map_err(|_| Cancelled)
        });
    }

    fn attention(&self, heads: usize, s: usize, d: usize) {
        let (q, kt) = (noise(heads * s * d), noise(heads * s * d));
        let mut c = vec![0.0; heads * s * s];
        let l = Lhs::Strided(Strided::row_major(&q, d));
        let flops = 2.0 * (heads * s * s * d) as f64;
        for (kind, r) in [
            ("row", Strided::row_major(&kt[..], s)),
            ("col", Strided::col_major(&kt[..], d)),
        ] {
            let batch = Batch {
                dims: &[heads],
                a_strides: &[s * d],
                b_strides: &[s * d],
            };
            self.report(
                &format!("attention {heads} heads {s} x {s} x {d} {kind}"),
                flops,
                |exec| {
                    gemm_batched(
                        exec,
                        &batch,
                        (s, s, d),
                        l,
                        Rhs::Strided(r),
                        &mut c,
                        &Epilogue::NONE,
                    )
                },
            );
        }
    }

    /// Times all convolutions of a ResNet-50 at batch 1, one after the other, with their bias, residual and activation:
    /// the model without its pooling and its last layer.
    fn resnet50(&self) {
        struct Layer {
            shape: ConvShape,
            weights: Vec<f32>,
            bias: Vec<f32>,
            residual: bool,
        }
        let mut layers = Vec::new();
        let mut add = |ic: usize, oc: usize, side: usize, k: usize, stride: usize, residual| {
            let shape = square(ic, oc, 1, side, k, stride);
            let mut weights = vec![0.0; shape.weights_len()];
            pack_conv_weights_into(&mut weights, &noise(shape.weights_len()), oc, 1);
            layers.push(Layer {
                shape,
                weights,
                bias: noise(oc),
                residual,
            });
        };
        add(3, 64, 224, 7, 2, false);
        let (mut ic, mut side) = (64, 56);
        for (stage, (channels, blocks)) in [(64, 3), (128, 4), (256, 6), (512, 3)]
            .into_iter()
            .enumerate()
        {
            for block in 0..blocks {
                let stride = if block == 0 && stage > 0 { 2 } else { 1 };
                if block == 0 {
                    add(ic, channels * 4, side, 1, stride, false);
                }
                add(ic, channels, side, 1, 1, false);
                add(channels, channels, side, 3, stride, false);
                side /= stride;
                ic = channels * 4;
                add(channels, ic, side, 1, 1, true);
            }
        }
        let flops = |s: &ConvShape| {
            2.0 * s.output_len() as f64 * (s.weights_len() as f64 / s.output()[0] as f64)
        };
        let total: f64 = layers
            .iter()
            .map(|l| flops(&l.shape) / l.bias.len() as f64)
            .sum();
        let (x, residual) = (noise(64 * 112 * 112), noise(64 * 112 * 112));
        let mut y = vec![0.0; 64 * 112 * 112];
        self.report("resnet50 convolutions", total, |exec| {
            for l in &layers {
                let s = &l.shape;
                let e = ConvEpilogue {
                    bias: Some(&l.bias),
                    residual: l.residual.then_some(&residual[..s.output_len()]),
                    activation: Activation::Relu,
                };
                let (x, y) = (&x[..s.input_len()], &mut y[..s.output_len()]);
                conv(exec, s, x, ConvWeights::packed(&l.weights), &e, y)?;
            }
            Ok(())
        });
    }

    /// Times products with packed weights of 16 bits beside those with the same weights in f32.
    fn halves(&self, m: usize, n: usize, k: usize) {
        let (a, b) = (noise(m * k), noise(k * n));
        let mut c = vec![0.0; m * n];
        let flops = 2.0 * (m * n * k) as f64;
        let mut packed = vec![0.0; packed_b_len(k, n)];
        pack_b_into(&mut packed, Strided::row_major(&b, n), k, n);
        let f16s: Vec<f16> = packed.iter().map(|x| f16::from_f32(*x)).collect();
        let bf16s: Vec<bf16> = packed.iter().map(|x| bf16::from_f32(*x)).collect();
        let forms = [
            ("f32", PackedB::new(&packed, k, n)),
            ("f16", PackedB::new(&f16s, k, n)),
            ("bf16", PackedB::new(&bf16s, k, n)),
        ];
        for (dtype, b) in forms {
            let name = format!("weights {m} x {n} x {k} {dtype}");
            let (a, b) = (Lhs::Strided(Strided::row_major(&a, k)), Rhs::Packed(b));
            self.report(&name, flops, |exec| {
                gemm(exec, (m, n, k), a, b, &mut c, &Epilogue::NONE)
            });
        }
    }

    fn conv(&self, ic: usize, oc: usize, groups: usize, side: usize, k: usize, stride: usize) {
        let s = square(ic, oc, groups, side, k, stride);
        let (x, w, bias) = (noise(s.input_len()), noise(s.weights_len()), noise(oc));
        let mut packed = vec![0.0; w.len()];
        pack_conv_weights_into(&mut packed, &w, oc, groups);
        let mut y = vec![0.0; s.output_len()];
        let flops = 2.0 * (s.output_len() * ic / groups * k * k) as f64;
        for (activation, suffix) in [(Activation::Relu, ""), (Activation::Silu, " silu")] {
            let e = ConvEpilogue {
                bias: Some(&bias),
                residual: None,
                activation,
            };
            let name = format!("conv {ic}->{oc} /{groups} {side}x{side} k{k} s{stride}{suffix}");
            self.report(&name, flops, |exec| {
                conv(exec, &s, &x, ConvWeights::packed(&packed), &e, &mut y)
            });
        }
    }
}

fn square(ic: usize, oc: usize, groups: usize, side: usize, k: usize, stride: usize) -> ConvShape {
    let pad = [k / 2; 2];
    ConvShape::new(&ConvSizes {
        batch: 1,
        in_channels: ic,
        out_channels: oc,
        groups,
        input: &[side; 2],
        kernel: &[k; 2],
        strides: &[stride; 2],
        dilations: &[1; 2],
        pads_begin: &pad,
        pads_end: &pad,
    })
    .expect("sizes that fit together")
}

fn main() {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(2)
        .build()
        .expect("two threads");
    let bench = Bench {
        filter: std::env::args().nth(1).unwrap_or_default(),
        peak: peak(),
        pool,
    };
    println!("peak of one thread: {:.1} GFLOP/s", bench.peak);
    for side in [64, 128, 256, 512, 1024, 2048] {
        bench.gemm(side, side, side);
    }
    for (n, k) in [(384, 384), (1536, 384), (384, 1536)] {
        bench.gemm(128, n, k);
    }
    for (n, k) in [(768, 768), (3072, 768), (768, 3072), (50257, 768)] {
        bench.gemm(1, n, k);
    }
    bench.gemm(8, 3072, 768);
    for m in [1, 2, 8, 128] {
        bench.gemm(m, 1024, 1024);
        bench.blocks(m, 1024, 1024);
        bench.blocks(m, 4096, 4096);
    }
    for (n, k) in [(768, 768), (4096, 4096)] {
        for m in [1, 2, 4, 8, 16, 128] {
            bench.halves(m, n, k);
        }
    }
    bench.attention(12, 128, 32);
    bench.attention(12, 128, 64);
    bench.attention(12, 197, 64);
    bench.resnet50();
    bench.conv(3, 64, 1, 224, 7, 2);
    for (channels, side) in [(64, 56), (128, 28), (256, 14), (512, 7)] {
        bench.conv(channels, channels, 1, side, 3, 1);
        bench.conv(channels, channels * 4, 1, side, 1, 1);
        bench.conv(channels * 4, channels, 1, side, 1, 1);
        if channels > 64 {
            bench.conv(channels, channels, 1, side * 2, 3, 2);
            bench.conv(channels * 2, channels * 4, 1, side * 2, 1, 2);
        }
    }
    // Those of a U-Net, of a DenseNet and of a small detector have few output channels.
    for (ic, oc, side, stride) in [
        (3, 32, 256, 1),
        (32, 32, 256, 1),
        (64, 64, 128, 1),
        (128, 32, 56, 1),
        (128, 32, 28, 1),
        (128, 32, 14, 1),
        (128, 32, 7, 1),
        (16, 32, 160, 2),
        (16, 16, 80, 1),
        (32, 32, 40, 1),
        (64, 64, 20, 1),
        (80, 80, 10, 1),
        (64, 128, 40, 2),
        (64, 32, 256, 1),
        (128, 64, 128, 1),
        (256, 128, 64, 1),
    ] {
        bench.conv(ic, oc, 1, side, 3, stride);
    }
    for (channels, side, k, stride) in [
        (32, 112, 3, 1),
        (96, 112, 3, 2),
        (144, 56, 3, 1),
        (144, 56, 3, 2),
        (192, 28, 3, 1),
        (240, 28, 5, 1),
        (384, 14, 3, 1),
        (576, 14, 3, 2),
        (1152, 7, 5, 1),
        (672, 14, 5, 2),
        (960, 7, 3, 1),
    ] {
        bench.conv(channels, channels, channels, side, k, stride);
        bench.depthwise_of_bytes(channels, side, k, stride);
    }
    for (channels, side) in [(64, 56), (128, 28), (256, 14), (512, 7)] {
        bench.conv_of_bytes(channels, channels, side, 3, 1);
        bench.conv_of_bytes(channels, channels * 4, side, 1, 1);
        bench.conv_of_bytes(channels * 4, channels, side, 1, 1);
    }
    for (planes, side) in [(32, 112), (96, 56), (240, 28), (672, 14), (1152, 7)] {
        bench.means(planes, side);
    }
}
