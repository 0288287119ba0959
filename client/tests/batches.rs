//! A row of a batch has the same bits whatever the size of the batch, its place in it, and the number of workers.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use convoke::{Embedded, HostTensor as Tensor, Model, Numerics};

/// A model of `fixtures/` whose rows do not depend on each other.
struct Batched {
    name: &'static str,
    /// The inputs of a batch of these rows.
    inputs: fn(&[usize]) -> Vec<(&'static str, Tensor)>,
    /// The outputs, each with the axis along which its rows lie.
    outputs: &'static [(&'static str, usize)],
    /// The numbers of workers that have something to do.
    workers: &'static [u32],
    numerics: Numerics,
}

const DIGITS: Batched = Batched {
    name: "digits",
    inputs: images,
    outputs: &[("logits", 0)],
    workers: &[1, 2, 3, 5],
    numerics: Numerics::Standard,
};

const MINI_TRANSFORMER: Batched = Batched {
    name: "mini_transformer",
    inputs: sentences,
    outputs: &[("last_hidden_state", 0), ("sentence_embedding", 0)],
    workers: &[1, 2, 3, 5],
    numerics: Numerics::Standard,
};

/// The sizes of batches whose plans differ: what fits one tile of a kernel, and what does not.
const WHOLE: usize = 64;
/// The last, the first and others, out of order.
const SEVEN: [usize; 7] = [63, 0, 31, 5, 17, 40, 62];
const SINGLES: [usize; 3] = [0, 31, 63];

/// A number from -1 to 1 for each element `i` of row `row`.
fn number(row: usize, i: usize) -> f32 {
    let mixed = (row * 7919 + i * 104_729 + 17).wrapping_mul(2_654_435_761) >> 7;
    (mixed % 2001) as f32 / 1000.0 - 1.0
}

/// `f(row, i)` for the `each` elements of each row.
fn elements<T>(rows: &[usize], each: usize, f: impl Fn(usize, usize) -> T) -> Vec<T> {
    let row = |row: &usize| {
        let row = *row;
        (0..each).map(move |i| (row, i))
    };
    rows.iter()
        .flat_map(row)
        .map(|(row, i)| f(row, i))
        .collect()
}

/// Floats with the rows along axis 0.
fn floats(rows: &[usize], each: &[usize], seed: usize) -> Tensor {
    let shape: Vec<usize> = [rows.len()].iter().chain(each).copied().collect();
    let numbers = elements(rows, each.iter().product(), |row, i| {
        number(row + 100 * seed, i)
    });
    Tensor::from_slice(&shape, &numbers).unwrap()
}

fn images(rows: &[usize]) -> Vec<(&'static str, Tensor)> {
    let pixels = elements(rows, 64, |row, i| number(row, i).abs());
    let pixels = Tensor::from_slice(&[rows.len(), 1, 8, 8], &pixels).unwrap();
    vec![("image", pixels)]
}

/// Ids of sentences of one to twelve words, with a mask of the words.
fn sentences(rows: &[usize]) -> Vec<(&'static str, Tensor)> {
    ids::<12>(rows)
}

/// Ids of single words: a product has one row where the batch has one.
fn words(rows: &[usize]) -> Vec<(&'static str, Tensor)> {
    ids::<1>(rows)
}

fn ids<const LENGTH: usize>(rows: &[usize]) -> Vec<(&'static str, Tensor)> {
    let is_word = |row: usize, i: usize| i64::from(i <= row % LENGTH);
    let id = |row, i| is_word(row, i) * (1 + ((number(row, i) + 1.0) * 79.0) as i64);
    let tensor = |all: Vec<i64>| Tensor::from_slice(&[rows.len(), LENGTH], &all).unwrap();
    vec![
        ("input_ids", tensor(elements(rows, LENGTH, id))),
        ("attention_mask", tensor(elements(rows, LENGTH, is_word))),
    ]
}

/// Queries, keys and values of three tokens, after a cache of five.
fn tokens(rows: &[usize]) -> Vec<(&'static str, Tensor)> {
    vec![
        ("q", floats(rows, &[3, 48], 1)),
        ("k", floats(rows, &[3, 16], 2)),
        ("v", floats(rows, &[3, 16], 3)),
        ("past_key", floats(rows, &[2, 5, 8], 4)),
        ("past_value", floats(rows, &[2, 5, 8], 5)),
    ]
}

/// Audio that is loud in each row, and a loop that no row ends, so that no row decides what becomes of the others.
fn audio(rows: &[usize]) -> Vec<(&'static str, Tensor)> {
    let samples = elements(rows, 40, |row, i| if i == 0 { 1.0 } else { number(row, i) });
    let state = floats(rows, &[16], 1).reshape(&[1, rows.len(), 16]);
    vec![
        (
            "audio",
            Tensor::from_slice(&[rows.len(), 40], &samples).unwrap(),
        ),
        ("rate", Tensor::scalar(16_000i64)),
        ("state", state.unwrap()),
        ("steps", Tensor::scalar(6i64)),
        ("limit", Tensor::scalar(-1f32)),
    ]
}

/// The bytes of row `row` along `axis`.
fn row_of(t: &Tensor, axis: usize, row: usize) -> Vec<u8> {
    let len = t.shape()[axis];
    let inner: usize = t.shape()[axis + 1..].iter().product();
    let row_bytes = inner * t.byte_len() / t.elements();
    let outer = t.bytes().chunks(row_bytes * len);
    outer
        .flat_map(|outer| outer[row * row_bytes..][..row_bytes].to_vec())
        .collect()
}

/// The bytes of each row of each output, for a batch of these rows.
async fn results(model: &Model, batched: &Batched, rows: &[usize]) -> Vec<Vec<Vec<u8>>> {
    let out = model.call((batched.inputs)(rows)).await.unwrap();
    let row = |place: usize| {
        let outputs = batched.outputs.iter();
        outputs
            .map(|(name, axis)| row_of(&out[*name], *axis, place))
            .collect()
    };
    (0..rows.len()).map(row).collect()
}

async fn check(batched: Batched) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let path = path.join(batched.name).join("model.onnx");
    let all: Vec<usize> = (0..WHOLE).collect();
    let mut batches: Vec<&[usize]> = vec![&all, &SEVEN];
    batches.extend(SINGLES.iter().map(std::slice::from_ref));
    let mut first: Option<Vec<Vec<Vec<u8>>>> = None;
    for workers in batched.workers {
        // Two threads divide a kernel's work by its size.
        let cluster = Embedded::new(*workers as usize)
            .threads(2)
            .start()
            .await
            .unwrap();
        let load = cluster.load(&path).workers(*workers);
        let model = load.numerics(batched.numerics).await.unwrap();
        for rows in &batches {
            let got = results(&model, &batched, rows).await;
            let want = first.get_or_insert_with(|| got.clone());
            for (row, got) in rows.iter().zip(got) {
                let what = format!("{}: row {row} of {rows:?} on {workers}", batched.name);
                assert!(got == want[*row], "{what} workers has other bits");
            }
        }
        let plan = model.plan().await.unwrap();
        assert!(plan.parts.iter().all(|part| part.nodes > 0));
        assert_eq!(plan.parts.len(), *workers as usize);
        cluster.shutdown().await;
    }
    // Two rows may be the same word, but not many.
    let rows = first.unwrap();
    let alike = rows.iter().filter(|row| **row == rows[0]).count();
    assert!(alike < WHOLE / 8, "{alike} rows are alike");
}

#[tokio::test]
async fn of_convolutions() {
    check(DIGITS).await;
}

#[tokio::test]
async fn of_convolutions_in_halves() {
    let name = "digits_f16";
    check(Batched { name, ..DIGITS }).await;
}

#[tokio::test]
async fn of_convolutions_between_quantisations() {
    let name = "digits_qdq";
    check(Batched { name, ..DIGITS }).await;
}

#[tokio::test]
async fn of_convolutions_of_codes() {
    let name = "digits_qoperator";
    check(Batched { name, ..DIGITS }).await;
}

#[tokio::test]
async fn of_a_transformer() {
    check(MINI_TRANSFORMER).await;
}

#[tokio::test]
async fn of_a_transformer_with_weights_of_four_bits() {
    let name = "mini_transformer_int4";
    check(Batched {
        name,
        ..MINI_TRANSFORMER
    })
    .await;
}

#[tokio::test]
async fn of_a_transformer_whose_products_are_of_codes() {
    let (name, numerics) = ("mini_transformer_int4", Numerics::Int8);
    check(Batched {
        name,
        numerics,
        ..MINI_TRANSFORMER
    })
    .await;
}

#[tokio::test]
async fn of_a_transformer_on_single_words() {
    for (name, numerics) in [
        ("mini_transformer", Numerics::Standard),
        ("mini_transformer_int4", Numerics::Standard),
        ("mini_transformer_int4", Numerics::Int8),
    ] {
        let inputs = words;
        check(Batched {
            name,
            inputs,
            numerics,
            ..MINI_TRANSFORMER
        })
        .await;
    }
}

#[tokio::test]
async fn of_attention_with_a_cache() {
    check(Batched {
        name: "decoding",
        inputs: tokens,
        outputs: &[("y", 0), ("present_key", 0), ("present_value", 0)],
        workers: &[1],
        numerics: Numerics::Standard,
    })
    .await;
}

#[tokio::test]
async fn of_branches_and_loops() {
    check(Batched {
        name: "voice",
        inputs: audio,
        outputs: &[("score", 0), ("next_state", 1), ("energies", 1)],
        workers: &[1, 2, 3, 5],
        numerics: Numerics::Standard,
    })
    .await;
}
