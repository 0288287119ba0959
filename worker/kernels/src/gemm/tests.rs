//! Compares every code path, bit for bit, with a naive loop over the chain.

use super::*;
use crate::element::canonical_nan;
use crate::isa::Isa;
use crate::testing::each_exec;
use std::sync::atomic::AtomicBool;

/// Deterministic values in -1..1, some of which are zero.
pub(crate) fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2654435761).wrapping_add(12345);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            let x = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
            if state >> 28 == 0 { 0.0 } else { x }
        })
        .collect()
}

/// Runs `f` on 1, 2, 3 and 7 threads.
pub(crate) fn on_threads(mut f: impl FnMut(Exec<'_>, usize)) {
    each_exec(|exec| f(*exec, exec.threads()));
}

/// Values like those of `noise`, with infinities and NaNs of several bit patterns among them.
fn noise_and_nans(len: usize, seed: u32) -> Vec<f32> {
    let nans = [0x7fc0_0000, 0xffc0_0000, 0x7fc0_0123, 0xffc0_0456].map(f32::from_bits);
    let odd = [&nans[..], &[f32::INFINITY, f32::NEG_INFINITY]].concat();
    let mut values = noise(len, seed);
    for (i, x) in values.iter_mut().enumerate() {
        let at = (i + seed as usize) * 7 % 31;
        *x = odd.get(at).copied().unwrap_or(*x);
    }
    values
}

#[track_caller]
pub(crate) fn assert_bits(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            g.to_bits() == w.to_bits(),
            "{what}: value {i} is {g:e}, not {w:e}"
        );
    }
}

fn reference(
    (m, n, k): (usize, usize, usize),
    a: Strided<'_, f32>,
    b: Strided<'_, f32>,
    e: &Epilogue<'_>,
) -> Vec<f32> {
    let mut c = Vec::new();
    for r in 0..m {
        for j in 0..n {
            let mut v = 0.0f32;
            for i in 0..k {
                let x = a.data[r * a.row_stride + i * a.col_stride];
                v = x.mul_add(b.data[i * b.row_stride + j * b.col_stride], v);
            }
            v = canonical_nan(canonical_nan(v) * e.alpha);
            if let Some(Addend { values, scale }) = e.addend {
                v += scale * values.data[r * values.row_stride + j * values.col_stride];
                v = canonical_nan(v);
            }
            if let Some(res) = e.residual {
                v = canonical_nan(v + res[r * n + j]);
            }
            c.push(v);
        }
    }
    e.activation.apply(&mut c);
    c
}

/// Checks that all instruction sets, thread counts and packings give the bits of the reference.
fn check(shape: (usize, usize, usize), epilogue: &Epilogue<'_>) {
    check_values(shape, epilogue, noise);
}

/// Checks like `check`, with operands that `values` generates.
fn check_values(
    (m, n, k): (usize, usize, usize),
    epilogue: &Epilogue<'_>,
    values: fn(usize, u32) -> Vec<f32>,
) {
    // One value precedes each operand, so that half of the runs can start misaligned.
    let (a, b) = (values(m * k + 1, 1), values(k * n + 1, 2));
    let what = format!("[{m}, {k}] · [{k}, {n}]");
    for shift in [0, 1] {
        let (a, b) = (&a[shift..][..m * k], &b[shift..][..k * n]);
        let layouts = [
            (Strided::row_major(a, k), Strided::row_major(b, n)),
            (Strided::col_major(a, m), Strided::col_major(b, k)),
        ];
        for (sa, sb) in layouts {
            let want = reference((m, n, k), sa, sb, epilogue);
            let mut pa = vec![0.0; packed_a_len(m, k) + 1];
            let mut pb = vec![0.0; packed_b_len(k, n) + 1];
            let (pa, pb) = (
                &mut pa[shift..][..m * k],
                &mut pb[shift..][..packed_b_len(k, n)],
            );
            pack_a_into(pa, sa, m, k);
            pack_b_into(pb, sb, k, n);
            let lefts = [Lhs::Strided(sa), Lhs::Packed(PackedA::new(pa, m, k))];
            let rights = [Rhs::Strided(sb), Rhs::Packed(PackedB::new(pb, k, n))];
            for isa in Isa::all_available() {
                on_threads(|exec, threads| {
                    for (l, r) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                        let mut c = vec![f32::NAN; m * n + 1];
                        let c = &mut c[shift..][..m * n];
                        let (l, r, one) = (lefts[l], rights[r], &Batch::ONE);
                        gemm_on(isa, exec, one, (m, n, k), l, r, c, epilogue).unwrap();
                        assert_bits(c, &want, &format!("{what} {isa:?} {threads} threads {l:?}"));
                    }
                });
            }
        }
    }
}

/// Checks that packed operands of 16 bits give the bits of the same values in f32.
fn check_halves<T: Packed + PackSource + PackSource<T>>(
    from: fn(f32) -> T,
    (m, n, k): (usize, usize, usize),
) {
    let mut halves = [noise(m * k, 1), noise(k * n, 2)]
        .map(|all| all.iter().map(|x| from(*x)).collect::<Vec<T>>());
    if let Some(last) = halves[1].last_mut() {
        *last = from(f32::NAN);
    }
    let [a, b] = &halves;
    let wide = |all: &[T]| all.iter().map(|x| x.packed()).collect::<Vec<f32>>();
    let (wide_a, wide_b) = (wide(a), wide(b));
    let (sa, sb) = (
        Strided::row_major(&wide_a, k),
        Strided::row_major(&wide_b, n),
    );
    let bias = noise(n, 3);
    let epilogue = Epilogue::col_bias(&bias).activation(Activation::Relu);
    let want = reference((m, n, k), sa, sb, &epilogue);
    let mut pa = vec![T::default(); packed_a_len(m, k)];
    let mut pb = vec![T::default(); packed_b_len(k, n)];
    pack_a_into(&mut pa, Strided::row_major(a, k), m, k);
    pack_b_into(&mut pb, Strided::row_major(b, n), k, n);
    let lefts = [Lhs::Strided(sa), Lhs::Packed(PackedA::new(&pa, m, k))];
    let rights = [Rhs::Strided(sb), Rhs::Packed(PackedB::new(&pb, k, n))];
    for isa in Isa::all_available() {
        on_threads(|exec, threads| {
            for (l, r) in [(0, 1), (1, 0), (1, 1)] {
                let mut c = vec![f32::NAN; m * n];
                let one = &Batch::ONE;
                gemm_on(
                    isa,
                    exec,
                    one,
                    (m, n, k),
                    lefts[l],
                    rights[r],
                    &mut c,
                    &epilogue,
                )
                .unwrap();
                let what = format!("[{m}, {k}] · [{k}, {n}] {isa:?} {threads} threads {l} {r}");
                assert_bits(&c, &want, &what);
            }
        });
    }
}

#[test]
fn packed_operands_of_16_bits() {
    for m in [1, 2, 8, 13] {
        for (n, k) in [(1, 1), (16, 7), (47, 9), (48, 33), (200, 700), (500, 1100)] {
            check_halves(half::f16::from_f32, (m, n, k));
            check_halves(half::bf16::from_f32, (m, n, k));
        }
    }
}

#[test]
fn columns_are_packed_where_the_micro_kernel_reads_them() {
    for (k, n) in [(1, 1), (3, 48), (33, 47), (64, 49), (100, 200), (5, 16)] {
        let values = noise(k * n, 3);
        let halves: Vec<half::f16> = values.iter().map(|x| half::f16::from_f32(*x)).collect();
        for by_columns in [false, true] {
            let at = |i: usize, j: usize| if by_columns { j * k + i } else { i * n + j };
            let strided = |data| match by_columns {
                true => Strided::col_major(data, k),
                false => Strided::row_major(data, n),
            };
            let mut want = vec![0.0; packed_b_len(k, n)];
            for (p, panel) in want.chunks_mut(k * 48).enumerate() {
                let width = panel.len() / k;
                for j in 0..width.min(n - p * 48) {
                    (0..k).for_each(|i| panel[i * width + j] = values[at(i, p * 48 + j)]);
                }
            }
            let what = format!("[{k}, {n}], by columns: {by_columns}");
            let mut got = vec![f32::NAN; want.len()];
            pack_b_into(&mut got, strided(&values), k, n);
            assert_bits(&got, &want, &what);
            on_threads(|exec, threads| {
                got.fill(f32::NAN);
                pack_b_on(&exec, &mut got, strided(&values), k, n).unwrap();
                assert_bits(&got, &want, &format!("{what} {threads} threads"));
            });
            let halves = match by_columns {
                true => Strided::col_major(&halves, k),
                false => Strided::row_major(&halves, n),
            };
            pack_b_into(&mut got, halves, k, n);
            let rounded: Vec<f32> = want
                .iter()
                .map(|x| half::f16::from_f32(*x).to_f32())
                .collect();
            assert_bits(&got, &rounded, &format!("{what} f16"));
        }
    }
}

#[test]
fn odd_sizes_follow_the_chain() {
    for m in [1, 2, 3, 7, 8, 9, 17] {
        for n in [1, 2, 5, 15, 16, 17, 33, 47, 48, 49, 97] {
            for k in [1, 3, 4, 9] {
                check((m, n, k), &Epilogue::NONE);
            }
        }
    }
}

#[test]
fn blocks_of_k_and_large_matrices_follow_the_chain() {
    check((5, 50, 257), &Epilogue::NONE);
    check((65, 52, 700), &Epilogue::NONE);
    check((131, 259, 130), &Epilogue::NONE);
    check((1, 300, 520), &Epilogue::NONE);
    check((300, 1, 520), &Epilogue::NONE);
    check((530, 3, 64), &Epilogue::NONE);
}

#[test]
fn not_even_a_nan_depends_on_the_loop() {
    for (m, n, k) in [(5, 8, 8), (17, 49, 9), (19, 53, 40), (66, 5, 300)] {
        let full = noise_and_nans(m * n, 5);
        let bias = noise_and_nans(m.max(n), 4);
        let residual = Epilogue {
            residual: Some(&full),
            ..Epilogue::row_bias(&bias[..m])
        };
        for epilogue in [Epilogue::NONE, Epilogue::col_bias(&bias[..n]), residual] {
            for activation in [Activation::None, Activation::Relu, Activation::HardSwish] {
                let epilogue = epilogue.activation(activation);
                check_values((m, n, k), &epilogue, noise_and_nans);
            }
        }
    }
}

#[test]
fn nothing_to_sum_gives_the_epilogue() {
    let bias = noise(5, 3);
    check((3, 5, 0), &Epilogue::col_bias(&bias));
    check((0, 5, 3), &Epilogue::NONE);
    check((5, 0, 3), &Epilogue::NONE);
}

#[test]
fn epilogues_round_as_separate_ops() {
    let (m, n, k) = (19, 53, 40);
    let (bias, full) = (noise(m.max(n), 4), noise(m * n, 5));
    let (cols, rows) = (&bias[..n], &bias[..m]);
    let acts = [
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
    for act in acts {
        check((m, n, k), &Epilogue::col_bias(cols).activation(act));
    }
    let relu = Activation::Relu;
    check((m, n, k), &Epilogue::row_bias(rows).activation(relu));
    check(
        (m, n, k),
        &Epilogue {
            residual: Some(&full),
            ..Epilogue::row_bias(rows)
        },
    );
    let with = |values, scale, alpha| Epilogue {
        alpha,
        addend: Some(Addend { values, scale }),
        residual: None,
        activation: relu,
    };
    check((m, n, k), &with(Strided::row_major(&full, n), 1.0, 1.0));
    check((m, n, k), &with(Strided::row_major(&full, n), 0.3, 0.7));
    check((m, n, k), &with(Strided::col_major(&full, m), 0.3, 1.0));
    check(
        (m, n, k),
        &with(
            Strided {
                data: &full,
                row_stride: 0,
                col_stride: 0,
            },
            1.0,
            0.7,
        ),
    );
    let both = Epilogue {
        residual: Some(&full),
        ..with(Strided::row_major(&full, n), 1.0, 1.0)
    };
    check((m, n, k), &both);
}

#[test]
fn batches_follow_their_strides() {
    let (m, n, k) = (7, 20, 11);
    let (a, b) = (noise(3 * m * k, 6), noise(2 * 3 * k * n, 7));
    // Batch dimensions [2, 3]: A is shared along the first, and B is stored with both swapped.
    let batch = Batch {
        dims: &[2, 3],
        a_strides: &[0, m * k],
        b_strides: &[k * n, 2 * k * n],
    };
    for isa in Isa::all_available() {
        on_threads(|exec, threads| {
            let mut c = vec![0.0; 6 * m * n];
            let l = Lhs::Strided(Strided::row_major(&a, k));
            let r = Rhs::Strided(Strided::row_major(&b, n));
            gemm_on(isa, exec, &batch, (m, n, k), l, r, &mut c, &Epilogue::NONE).unwrap();
            for (item, c) in c.chunks(m * n).enumerate() {
                let sa = Strided::row_major(&a[item % 3 * m * k..], k);
                let sb = Strided::row_major(&b[(item % 3 * 2 + item / 3) * k * n..], n);
                let want = reference((m, n, k), sa, sb, &Epilogue::NONE);
                assert_bits(c, &want, &format!("item {item} {isa:?} {threads} threads"));
            }
        });
    }
}

#[test]
fn special_values_flow_like_the_chain() {
    let a = [f32::INFINITY, -0.0, 1e-30, -1e-30];
    let b = [1.0, 5.0, 1e-30, 1e30];
    let mut want = 0.0f32;
    for (x, y) in a.iter().zip(b) {
        want = x.mul_add(y, want);
    }
    let cancel = AtomicBool::new(false);
    for isa in Isa::all_available() {
        let mut c = [0.0];
        let (l, r) = (Strided::row_major(&a, 4), Strided::row_major(&b, 1));
        let (l, r, exec) = (Lhs::Strided(l), Rhs::Strided(r), Exec::single(&cancel));
        gemm_on(
            isa,
            exec,
            &Batch::ONE,
            (1, 1, 4),
            l,
            r,
            &mut c,
            &Epilogue::NONE,
        )
        .unwrap();
        assert_eq!(c[0].to_bits(), want.to_bits());
    }
}

#[test]
fn bounds_in_registers_keep_nan_and_negative_zero() {
    // A product below the smallest number rounds to -0.
    let (a, b) = ([1e-30], [-1e-30, 1e-30, f32::NAN, -1e30, 1e30]);
    let cancel = AtomicBool::new(false);
    for activation in [Activation::Relu, Activation::Clip { min: 0.0, max: 0.5 }] {
        for isa in Isa::all_available() {
            let (l, r) = (Strided::row_major(&a, 1), Strided::row_major(&b, 5));
            let (l, r, exec) = (Lhs::Strided(l), Rhs::Strided(r), Exec::single(&cancel));
            let e = Epilogue {
                activation,
                ..Epilogue::NONE
            };
            let mut c = [1.0; 5];
            gemm_on(isa, exec, &Batch::ONE, (1, 5, 1), l, r, &mut c, &e).unwrap();
            let mut want = b.map(|y| a[0].mul_add(y, 0.0));
            activation.apply(&mut want);
            assert_eq!(want[0].to_bits(), (-0.0f32).to_bits());
            assert!(c[2].is_nan() && want[2].is_nan());
            (c[2], want[2]) = (0.0, 0.0);
            assert_eq!(c.map(f32::to_bits), want.map(f32::to_bits));
        }
    }
}

#[test]
fn a_cancelled_product_stops() {
    let cancel = AtomicBool::new(true);
    let a = noise(4, 1);
    let s = Strided::row_major(&a, 2);
    let mut c = [0.0; 4];
    let done = gemm(
        Exec::single(&cancel),
        (2, 2, 2),
        Lhs::Strided(s),
        Rhs::Strided(s),
        &mut c,
        &Epilogue::NONE,
    );
    assert_eq!(done, Err(Cancelled));
}
