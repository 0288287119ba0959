//! Generates tokens with a language model that was exported for generation; its caches stay on the workers:
//! `cargo run --release -p convoke --example generate`
//!
//! To use a running cluster, such as one that `convoke up` has started:
//! `... --example generate -- HOST:PORT TOKEN_FILE`

#[allow(dead_code, reason = "this example names no devices")]
mod common;

use convoke::{Cluster, GenerateOptions, Result, Sampling};

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../fixtures/language/grouped/model.onnx"
);

#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<()> {
    let cluster = common::cluster(2).await?;
    run(&cluster).await?;
    cluster.shutdown().await;
    Ok(())
}

pub async fn run(cluster: &Cluster) -> Result<()> {
    let model = cluster.load(MODEL).workers(2).await?;
    let decoder = model.decoder()?;
    let drawn = Sampling {
        temperature: 0.8,
        top_p: 0.95,
        seed: 7,
        ..Sampling::default()
    };
    for sampling in [Sampling::default(), drawn] {
        let options = GenerateOptions {
            max_new_tokens: 16,
            sampling,
            ..GenerateOptions::default()
        };
        let mut generation = decoder.generate(&[39, 82, 128, 115], options)?;
        while let Some(token) = generation.next().await? {
            print!("{token} ");
        }
        println!("({:?})", generation.ended());
    }
    Ok(())
}
