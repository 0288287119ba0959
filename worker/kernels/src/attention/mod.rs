//! Scaled dot-product attention in f32.
//!
//! ```text
//! scores = q · kᵀ      one chunk of rows at a time, which stays in the cache
//! scores = softmax(cap(scores * scale) + bias)
//! y      = scores · v
//! ```
//!
//! Heads of the queries that share one head of the keys are rows of the same product. Chunks follow from shapes alone,
//! and products and sums have the order that they have as separate ops.

use crate::Exec;
use crate::error::Result;
use crate::gemm::{Batch, Epilogue, Lhs, Rhs, Strided, gemm_batched};
use crate::multiversion::multiversion;
use crate::shape::Axis;
use crate::softmax::softmax_rows;
use crate::split::{tiles2, units_per_tile};
use crate::unary::{FloatUnary, float_block};

/// The most scores of a chunk, unless one row has more: 2 MiB. The scratch holds them twice, before and after the softmax.
const CHUNK: usize = 1 << 19;

/// What is added to the scores.
#[derive(Debug, Clone, Copy)]
pub struct Bias<'a> {
    pub data: &'a [f32],
    /// The strides along batch, heads of the queries, queries and keys, which are 0 where the bias is broadcast.
    pub strides: [usize; 4],
}

/// The sizes and parameters of attention.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    pub batch: usize,
    /// The heads of keys and values.
    pub heads: usize,
    /// How many heads of the queries share one head of the keys.
    pub group: usize,
    pub queries: usize,
    pub keys: usize,
    /// Elements of a query and of a key.
    pub size: usize,
    /// Elements of a value.
    pub value_size: usize,
    pub scale: f32,
    /// Bounds scores to this magnitude, where it is above zero.
    pub softcap: f32,
    pub bias: Option<Bias<'a>>,
}

impl Attention<'_> {
    /// The rows of scores that belong to one head of the keys.
    fn rows(&self) -> usize {
        self.group * self.queries
    }

    /// How many heads of the keys a chunk covers, and how many of the rows of each.
    fn chunk(&self) -> (usize, usize) {
        let (rows, row) = (self.rows().max(1), self.keys.max(1));
        match rows.checked_mul(row) {
            Some(head) if head <= CHUNK => (CHUNK / head, rows),
            _ => (1, (CHUNK / row).clamp(1, rows)),
        }
    }

    /// Elements of scratch memory that attention needs.
    pub fn scratch_len(&self) -> usize {
        let (heads, rows) = self.chunk();
        heads.min(self.batch * self.heads) * rows.min(self.rows()) * self.keys * 2
    }

    /// The bias of one row of scores: one number for each key, or one for all.
    fn bias_of(&self, head: usize, row: usize) -> Option<&[f32]> {
        let bias = self.bias?;
        let (batch, kv_head) = (head / self.heads, head % self.heads);
        let query_head = kv_head * self.group + row / self.queries;
        let [by_batch, by_head, by_query, by_key] = bias.strides;
        let first = batch * by_batch + query_head * by_head + row % self.queries * by_query;
        let count = if by_key == 0 { 1 } else { self.keys };
        Some(&bias.data[first..first + count])
    }

    /// Whether the bias lets one row of scores see no key at all.
    fn is_empty(&self, head: usize, row: usize) -> bool {
        let bias = self.bias_of(head, row);
        bias.is_some_and(|bias| bias.iter().all(|b| *b == f32::NEG_INFINITY))
    }
}

multiversion! {
    fn scaled<>(x: &[f32], scale: f32, y: &mut [f32]) {
        let y = &mut y[..x.len()];
        for i in 0..x.len() {
            y[i] = x[i] * scale;
        }
    }
}

multiversion! {
    fn divided<>(y: &mut [f32], by: f32) {
        for i in 0..y.len() {
            y[i] /= by;
        }
    }
}

multiversion! {
    fn biased<>(y: &mut [f32], bias: &[f32]) {
        let bias = &bias[..y.len()];
        for i in 0..y.len() {
            y[i] += bias[i];
        }
    }
}

/// Prepares one row of scores for the softmax.
fn prepare(shape: &Attention<'_>, head: usize, row: usize, x: &[f32], y: &mut [f32]) {
    scaled(x, shape.scale, y);
    if shape.softcap > 0.0 {
        divided(y, shape.softcap);
        float_block(FloatUnary::Tanh, y);
        for y in y.iter_mut() {
            *y *= shape.softcap;
        }
    }
    match shape.bias_of(head, row) {
        None => {}
        Some(&[one]) => {
            for y in y.iter_mut() {
                *y += one;
            }
        }
        Some(bias) => biased(y, bias),
    }
}

/// Computes attention of `q` [batch, heads * group, queries, size], `k` [batch, heads, keys, size] and `v`
/// [batch, heads, keys, value_size]. A row that sees no key is zero. `scratch` has [`Attention::scratch_len`] elements.
pub fn attention(
    exec: &Exec,
    shape: &Attention<'_>,
    (q, k, v): (&[f32], &[f32], &[f32]),
    scratch: &mut [f32],
    y: &mut [f32],
) -> Result {
    let (rows, keys, size, value_size) = (shape.rows(), shape.keys, shape.size, shape.value_size);
    let all = shape.batch * shape.heads;
    assert!(
        q.len() == all * rows * size
            && k.len() == all * keys * size
            && v.len() == all * keys * value_size
            && y.len() == all * rows * value_size
            && scratch.len() >= shape.scratch_len(),
        "{shape:?}"
    );
    if y.is_empty() {
        return Ok(exec.check()?);
    }
    if keys == 0 {
        y.fill(0.0);
        return Ok(exec.check()?);
    }
    let (heads, chunk) = shape.chunk();
    for first in (0..all).step_by(heads) {
        let heads = heads.min(all - first);
        for from in (0..rows).step_by(chunk) {
            let count = chunk.min(rows - from);
            // Several heads are only taken together with all of their rows.
            let at = first * rows + from;
            let (scores, prepared) = scratch.split_at_mut(heads * count * keys);
            let prepared = &mut prepared[..scores.len()];
            let batch = Batch {
                dims: &[heads],
                a_strides: &[rows * size],
                b_strides: &[keys * size],
            };
            gemm_batched(
                *exec,
                &batch,
                (count, keys, size),
                Lhs::Strided(Strided::row_major(&q[at * size..], size)),
                Rhs::Strided(Strided::col_major(&k[first * keys * size..], size)),
                scores,
                &Epilogue::NONE,
            )?;
            let grain = units_per_tile(keys);
            let place = |unit: usize| (first + unit / count, from + unit % count);
            tiles2(
                exec,
                (scores, keys),
                (prepared, keys),
                heads * count,
                grain,
                |range, scores, prepared| {
                    let pairs = scores.chunks(keys).zip(prepared.chunks_mut(keys));
                    for (unit, (scores, prepared)) in range.clone().zip(pairs) {
                        let (head, row) = place(unit);
                        prepare(shape, head, row, scores, prepared);
                    }
                    let axis = Axis {
                        outer: range.len(),
                        len: keys,
                        inner: 1,
                    };
                    softmax_rows(exec, axis, prepared, scores);
                    for (unit, scores) in range.zip(scores.chunks_mut(keys)) {
                        let (head, row) = place(unit);
                        if shape.is_empty(head, row) {
                            scores.fill(0.0);
                        }
                    }
                },
            )?;
            exec.check()?;
            let batch = Batch {
                dims: &[heads],
                a_strides: &[count * keys],
                b_strides: &[keys * value_size],
            };
            gemm_batched(
                *exec,
                &batch,
                (count, value_size, keys),
                Lhs::Strided(Strided::row_major(scores, keys)),
                Rhs::Strided(Strided::row_major(
                    &v[first * keys * value_size..],
                    value_size,
                )),
                &mut y[at * value_size..(at + heads * count) * value_size],
                &Epilogue::NONE,
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
