//! Runs a model on three workers inside this process:
//! `cargo run --release -p convoke --example run_model -- fixtures/digits/model.onnx fixtures/digits/test.npz`

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut paths = std::env::args().skip(1);
    let (Some(model), Some(inputs)) = (paths.next(), paths.next()) else {
        return Err("usage: run_model MODEL.onnx INPUTS.npz".into());
    };
    let mut inputs = convoke::numpy::read_npz(inputs)?;
    inputs.retain(|(name, _)| !name.starts_with("expected/"));

    let cluster = convoke::embedded(3).await?;
    let model = cluster.load(model).workers(3).await?;
    for part in model.prepare(inputs.clone()).await?.parts {
        println!("{} runs {} nodes", part.name, part.nodes);
    }
    for (name, tensor) in model.call(inputs).await?.0 {
        println!("{name}: {tensor:?} {}", tensor.digest());
    }
    model.unload().await?;
    cluster.shutdown().await;
    Ok(())
}
