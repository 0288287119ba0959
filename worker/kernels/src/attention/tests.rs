//! Attention against the sums that define it, in f64.

use super::{Attention, Bias, attention};
use crate::Exec;
use crate::testing::{each_exec, exec, random};

fn computed(exec: &Exec, shape: &Attention<'_>, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f32> {
    let rows = shape.batch * shape.heads * shape.group * shape.queries;
    let mut y = vec![9.0; rows * shape.value_size];
    let mut scratch = vec![7.0; shape.scratch_len()];
    attention(exec, shape, (q, k, v), &mut scratch, &mut y).unwrap();
    y
}

fn defined(shape: &Attention<'_>, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f64> {
    let mut y = Vec::new();
    let rows = shape.group * shape.queries;
    for head in 0..shape.batch * shape.heads {
        for row in 0..rows {
            let q = &q[(head * rows + row) * shape.size..][..shape.size];
            let score = |key: usize| {
                let k = &k[(head * shape.keys + key) * shape.size..][..shape.size];
                let dot: f64 = q
                    .iter()
                    .zip(k)
                    .map(|(q, k)| f64::from(*q) * f64::from(*k))
                    .sum();
                let mut score = dot * f64::from(shape.scale);
                if shape.softcap > 0.0 {
                    let cap = f64::from(shape.softcap);
                    score = libm::tanh(score / cap) * cap;
                }
                let bias = shape.bias.map_or(0.0, |bias| {
                    let at = [
                        head / shape.heads,
                        head % shape.heads * shape.group + row / shape.queries,
                        row % shape.queries,
                        key,
                    ];
                    let place: usize = at.iter().zip(bias.strides).map(|(a, s)| a * s).sum();
                    f64::from(bias.data[place])
                });
                score + bias
            };
            let scores: Vec<f64> = (0..shape.keys).map(score).collect();
            let most = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
            let powers: Vec<f64> = scores.iter().map(|s| libm::exp(s - most)).collect();
            let sum: f64 = powers.iter().sum();
            for e in 0..shape.value_size {
                let of =
                    |key: usize| f64::from(v[(head * shape.keys + key) * shape.value_size + e]);
                let total: f64 = powers.iter().enumerate().map(|(key, p)| p * of(key)).sum();
                y.push(if most == f64::NEG_INFINITY {
                    0.0
                } else {
                    total / sum
                });
            }
        }
    }
    y
}

fn check(shape: &Attention<'_>) {
    let heads = shape.batch * shape.heads;
    let q: Vec<f32> = random(heads * shape.group * shape.queries * shape.size, 1.0, 1);
    let k: Vec<f32> = random(heads * shape.keys * shape.size, 1.0, 2);
    let v: Vec<f32> = random(heads * shape.keys * shape.value_size, 1.0, 3);
    let got = computed(&exec(), shape, &q, &k, &v);
    for (got, want) in got.iter().zip(defined(shape, &q, &k, &v)) {
        assert!(
            (f64::from(*got) - want).abs() < 1e-5,
            "{got} is not {want} in {shape:?}"
        );
    }
    each_exec(|exec| assert_eq!(computed(exec, shape, &q, &k, &v), got));
}

const PLAIN: Attention<'static> = Attention {
    batch: 2,
    heads: 3,
    group: 1,
    queries: 5,
    keys: 7,
    size: 8,
    value_size: 6,
    scale: 0.4,
    softcap: 0.0,
    bias: None,
};

#[test]
fn follows_the_definition() {
    check(&PLAIN);
    check(&Attention {
        group: 4,
        softcap: 0.5,
        ..PLAIN
    });
    check(&Attention {
        queries: 1,
        keys: 1,
        ..PLAIN
    });
    check(&Attention { size: 0, ..PLAIN });
    for strides in [
        [12 * 35, 35, 7, 1],
        [0, 0, 7, 1],
        [0, 0, 0, 1],
        [12, 1, 0, 0],
        [0; 4],
    ] {
        let data: Vec<f32> = random(2 * 12 * 35, 2.0, 9);
        let bias = Some(Bias {
            data: &data,
            strides,
        });
        check(&Attention {
            group: 4,
            bias,
            ..PLAIN
        });
    }
}

#[test]
fn heads_and_rows_that_exceed_a_chunk_are_cut() {
    check(&Attention {
        batch: 1,
        heads: 2,
        queries: 110,
        keys: 5000,
        size: 3,
        value_size: 2,
        ..PLAIN
    });
    check(&Attention {
        batch: 5,
        heads: 3,
        queries: 150,
        keys: 300,
        size: 3,
        value_size: 2,
        ..PLAIN
    });
}

#[test]
fn a_row_that_sees_no_key_is_zero() {
    let never = f32::NEG_INFINITY;
    let data: Vec<f32> = (0..35)
        .map(|i| if i < 7 || i % 2 == 0 { never } else { 0.0 })
        .collect();
    let bias = Some(Bias {
        data: &data,
        strides: [0, 0, 7, 1],
    });
    check(&Attention { bias, ..PLAIN });
    let bias = Some(Bias {
        data: &[never],
        strides: [0; 4],
    });
    check(&Attention { bias, ..PLAIN });
    let none = Attention { keys: 0, ..PLAIN };
    let q: Vec<f32> = random(2 * 3 * 5 * 8, 1.0, 1);
    assert_eq!(
        computed(&exec(), &none, &q, &[], &[]),
        vec![0.0; 2 * 3 * 5 * 6]
    );
}
