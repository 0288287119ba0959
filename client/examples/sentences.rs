//! Ranks sentences by how close they are to a query, with the real all-MiniLM-L6-v2 over three embedded workers.
//!
//! ```text
//! cargo run --release -p convoke --example sentences -- MODEL.onnx WEIGHTS.safetensors TOKENIZER.json \
//!     [QUERY [SENTENCE...]]
//! ```
//! `fixtures/make_oracles.py OUT --only minilm` writes the three files into OUT/minilm.

use std::error::Error;
use std::path::PathBuf;

use convoke::HostTensor as Tensor;
use tokenizers::{PaddingParams, Tokenizer, TruncationParams};

const QUERY: &str = "Someone is having a meal.";
const SENTENCES: [&str; 6] = [
    "The weather is lovely today.",
    "A man is eating food.",
    "He drove to the stadium.",
    "It is so sunny outside that we went for a long walk along the river with the children.",
    "Tensor programs run on many machines as if they were one.",
    "The new film was a great success.",
];
/// The longest sentence, in tokens; the rest is cut off, as it was when the model was trained.
const LONGEST: usize = 128;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut file = |what: &str| {
        arguments
            .next()
            .map(PathBuf::from)
            .ok_or(format!("{what} is missing"))
    };
    let (model, weights) = (file("MODEL.onnx")?, file("WEIGHTS.safetensors")?);
    let tokenizer = file("TOKENIZER.json")?;
    let mut lines: Vec<String> = arguments.collect();
    if lines.len() < 2 {
        lines.truncate(1);
        lines.extend(
            std::iter::once(QUERY)
                .skip(lines.len())
                .chain(SENTENCES)
                .map(String::from),
        );
    }

    let cluster = convoke::embedded(3).await?;
    let model = cluster.load(model).weights(weights).workers(3).await?;
    let out = model.call(tokens(&tokenizer, &lines)?).await?;
    let embeddings = out
        .get("sentence_embedding")
        .ok_or("the model embeds no sentences")?;

    let width = embeddings.shape().get(1).copied().unwrap_or(0).max(1);
    let rows: Vec<&[f32]> = embeddings.as_slice::<f32>()?.chunks(width).collect();
    let mut ranked: Vec<(f32, &String)> = rows
        .iter()
        .zip(&lines)
        .skip(1)
        .map(|(row, line)| (cosine(rows[0], row), line))
        .collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("query: {}", lines[0]);
    for (closeness, line) in ranked {
        println!("{closeness:7.4}  {line}");
    }
    model.unload().await?;
    cluster.shutdown().await;
    Ok(())
}

/// The model's inputs: one row per line, padded to the longest.
fn tokens(path: &PathBuf, lines: &[String]) -> Result<[(&'static str, Tensor); 3], Box<dyn Error>> {
    let failed = |e: tokenizers::Error| format!("{}: {e}", path.display());
    let mut tokenizer = Tokenizer::from_file(path).map_err(failed)?;
    tokenizer.with_padding(Some(PaddingParams::default()));
    let cut = TruncationParams {
        max_length: LONGEST,
        ..Default::default()
    };
    tokenizer.with_truncation(Some(cut)).map_err(failed)?;
    let rows = tokenizer
        .encode_batch(lines.to_vec(), true)
        .map_err(failed)?;
    let shape = [rows.len(), rows.first().map_or(0, |r| r.len())];
    let tensor = |field: fn(&tokenizers::Encoding) -> &[u32]| {
        let values: Vec<i64> = rows
            .iter()
            .flat_map(|r| field(r).iter().map(|v| i64::from(*v)))
            .collect();
        Tensor::from_slice(&shape, &values)
    };
    Ok([
        ("input_ids", tensor(|r| r.get_ids())?),
        ("attention_mask", tensor(|r| r.get_attention_mask())?),
        ("token_type_ids", tensor(|r| r.get_type_ids())?),
    ])
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
