//! Recognises handwritten digits on three workers inside this process, and says how many were right:
//! `cargo run --release -p convoke --example digits`

use std::path::Path;

use convoke::numpy::{read_npy, read_npz};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/digits");
    let labels = read_npy(folder.join("labels.npy"))?;
    let labels = labels.to_i64s().ok_or("labels are integers")?;
    let mut inputs = read_npz(folder.join("test.npz"))?;
    inputs.retain(|(name, _)| !name.starts_with("expected/"));

    let cluster = convoke::embedded(3).await?;
    let model = cluster.load(folder.join("model.onnx")).workers(3).await?;
    let plan = model.prepare(inputs.clone()).await?;
    for part in &plan.parts {
        println!(
            "{}: {} nodes, {} … {}",
            part.name, part.nodes, part.first_node, part.last_node
        );
    }
    let outputs = model.call(inputs).await?;
    let (_, logits) = outputs.0.first().ok_or("the model has an output")?;
    let classes = logits.shape().last().copied().unwrap_or(1).max(1);
    let guesses = logits.as_slice::<f32>()?.chunks_exact(classes).map(|row| {
        let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        best.map_or(-1, |(digit, _)| digit as i64)
    });
    let right = guesses
        .zip(&labels)
        .filter(|(guess, label)| guess == *label)
        .count();
    println!(
        "{right} of {} digits right ({:.1} %)",
        labels.len(),
        100. * right as f64 / labels.len() as f64
    );
    cluster.shutdown().await;
    Ok(())
}
