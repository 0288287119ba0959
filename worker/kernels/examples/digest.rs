//! Prints one hash over the bits of a fixed set of matrix products and convolutions, and the instruction set on stderr.
//! The hash must be the same on every machine. Run it with `cargo run --release -p convoke-kernels --example digest`,
//! also under `qemu-x86_64 -cpu Haswell`.

use convoke_kernels::Exec;
use convoke_kernels::conv::{
    ConvEpilogue, ConvShape, ConvSizes, ConvWeights, NarrowConv, NarrowEnding, conv,
    pack_conv_weights_into,
};
use convoke_kernels::element::{bf16, f16};
use convoke_kernels::gemm::{
    Activation, Addend, Epilogue, Lhs, PackedA, PackedB, Rhs, Strided, gemm, pack_a_into,
    pack_b_into, packed_a_len, packed_b_len,
};
use convoke_kernels::isa::Isa;
use std::sync::atomic::AtomicBool;

const ACTIVATIONS: [Activation; 11] = [
    Activation::None,
    Activation::Relu,
    Activation::Clip {
        min: -0.5,
        max: 0.5,
    },
    Activation::LeakyRelu { alpha: 0.1 },
    Activation::HardSigmoid {
        alpha: 0.2,
        beta: 0.5,
    },
    Activation::HardSwish,
    Activation::Sigmoid,
    Activation::Silu,
    Activation::Tanh,
    Activation::Gelu,
    Activation::GeluTanh,
];

/// A generator of deterministic values, and an FNV-1a hash of the results.
struct Digest {
    state: u32,
    hash: u64,
}

impl Digest {
    fn noise(&mut self, len: usize) -> Vec<f32> {
        let mut next = || {
            self.state = self.state.wrapping_mul(1664525).wrapping_add(1013904223);
            (self.state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next()).collect()
    }

    fn absorb(&mut self, values: &[f32]) {
        for byte in values.iter().flat_map(|x| x.to_bits().to_le_bytes()) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn gemm(&mut self, exec: Exec<'_>, m: usize, n: usize, k: usize, activation: Activation) {
        let (a, b, bias) = (self.noise(m * k), self.noise(k * n), self.noise(m * n));
        let (a, b) = (Strided::row_major(&a, k), Strided::row_major(&b, n));
        let mut pa = vec![0.0; packed_a_len(m, k)];
        let mut pb = vec![0.0; packed_b_len(k, n)];
        pack_a_into(&mut pa, a, m, k);
        pack_b_into(&mut pb, b, k, n);
        let general = Epilogue {
            alpha: 0.7,
            addend: Some(Addend {
                values: Strided::row_major(&bias, n),
                scale: 0.3,
            }),
            residual: Some(&bias),
            activation,
        };
        let (pa, pb) = (
            Lhs::Packed(PackedA::new(&pa, m, k)),
            Rhs::Packed(PackedB::new(&pb, k, n)),
        );
        let mut c = vec![0.0; m * n];
        for (l, r) in [(Lhs::Strided(a), Rhs::Strided(b)), (pa, pb)] {
            for e in [
                Epilogue::col_bias(&bias[..n]).activation(activation),
                general,
            ] {
                gemm(exec, (m, n, k), l, r, &mut c, &e).expect("nobody cancels");
                self.absorb(&c);
            }
        }
    }

    /// Absorbs products with packed weights of 16 bits.
    fn halves(&mut self, exec: Exec<'_>, m: usize, n: usize, k: usize) {
        let (a, b) = (self.noise(m * k), self.noise(packed_b_len(k, n)));
        let f16s: Vec<f16> = b.iter().map(|x| f16::from_f32(*x)).collect();
        let bf16s: Vec<bf16> = b.iter().map(|x| bf16::from_f32(*x)).collect();
        let a = Lhs::Strided(Strided::row_major(&a, k));
        let mut c = vec![0.0; m * n];
        for b in [PackedB::new(&f16s, k, n), PackedB::new(&bf16s, k, n)] {
            let (b, none) = (Rhs::Packed(b), &Epilogue::NONE);
            gemm(exec, (m, n, k), a, b, &mut c, none).expect("nobody cancels");
            self.absorb(&c);
        }
    }

    fn conv(&mut self, exec: Exec<'_>, sizes: &ConvSizes<'_>, activation: Activation) {
        let s = ConvShape::new(sizes).expect("sizes that fit together");
        let (x, w) = (self.noise(s.input_len()), self.noise(s.weights_len()));
        let (bias, residual) = (self.noise(sizes.out_channels), self.noise(s.output_len()));
        let mut packed = vec![0.0; w.len()];
        pack_conv_weights_into(&mut packed, &w, sizes.out_channels, sizes.groups);
        let mut y = vec![0.0; s.output_len()];
        for weights in [ConvWeights::RowMajor(&w), ConvWeights::packed(&packed)] {
            for residual in [None, Some(&residual[..])] {
                let e = ConvEpilogue {
                    bias: Some(&bias),
                    residual,
                    activation,
                };
                conv(exec, &s, &x, weights, &e, &mut y).expect("nobody cancels");
                self.absorb(&y);
            }
        }
        if let Some(plan) = NarrowConv::new(&s) {
            let x: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
            let mut y = vec![f16::ZERO; s.output_len()];
            let weights = ConvWeights::RowMajor(&w);
            for gates in [false, true] {
                let end = (Some(&bias[..]), NarrowEnding { activation, gates });
                plan.run(exec, &x, weights, end, &mut y)
                    .expect("nobody cancels");
                let y: Vec<f32> = y.iter().map(|y| y.to_f32()).collect();
                self.absorb(&y);
            }
        }
    }

    fn everything(exec: Exec<'_>) -> u64 {
        let mut d = Digest {
            state: 1,
            hash: 0xcbf2_9ce4_8422_2325,
        };
        for (i, activation) in ACTIVATIONS.into_iter().enumerate() {
            d.gemm(exec, 1 + 11 * i, 7 + 23 * i, 5 + 71 * i, activation);
        }
        for (m, n, k) in [(1, 500, 300), (64, 64, 64), (130, 100, 1024), (9, 3, 700)] {
            d.gemm(exec, m, n, k, Activation::None);
            d.halves(exec, m, n, k);
        }
        let plain = ConvSizes {
            batch: 1,
            in_channels: 12,
            out_channels: 20,
            groups: 1,
            input: &[14, 14],
            kernel: &[3, 3],
            strides: &[1, 1],
            dilations: &[1, 1],
            pads_begin: &[1, 1],
            pads_end: &[1, 1],
        };
        let none: &[usize] = &[0, 0];
        let shapes = [
            plain,
            ConvSizes {
                strides: &[2, 2],
                input: &[33, 29],
                ..plain
            },
            ConvSizes {
                strides: &[3, 3],
                dilations: &[2, 1],
                input: &[33, 29],
                ..plain
            },
            ConvSizes {
                kernel: &[1, 1],
                pads_begin: none,
                pads_end: none,
                in_channels: 64,
                ..plain
            },
            ConvSizes {
                in_channels: 64,
                input: &[7, 7],
                out_channels: 44,
                ..plain
            },
            ConvSizes {
                groups: 4,
                batch: 2,
                ..plain
            },
            ConvSizes {
                groups: 12,
                out_channels: 12,
                ..plain
            },
            ConvSizes {
                groups: 12,
                out_channels: 24,
                strides: &[2, 2],
                ..plain
            },
        ];
        for (sizes, activation) in shapes.iter().zip(ACTIVATIONS) {
            d.conv(exec, sizes, activation);
        }
        d.hash
    }
}

fn main() {
    let cancel = AtomicBool::new(false);
    let one = Digest::everything(Exec::single(&cancel));
    for threads in [2, 3, 7] {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("threads");
        let many = Digest::everything(Exec::pooled(&pool, &cancel));
        assert_eq!(many, one, "{threads} threads differ from one");
    }
    eprintln!("{:?}", Isa::detect());
    println!("{one:016x}");
}
