//! Models and calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use convoke::graph::Function;
use convoke::{
    CallOptions, Cluster, Code, Error, HostTensor as Tensor, Model, Outputs, Phase, Result, Retry,
};

use crate::common::BOUND;
use crate::common::functions::tanh_chain;

/// Elements of the tensor that brief steps pass on.
const SIZE: usize = 64;

/// Brief steps over three workers, each of which has a link to each: the nodes go round twice.
pub async fn ring(cluster: &Cluster) -> Result<Model> {
    let mut load = cluster.load_function(tanh_chain(&[SIZE], 6), vec![]);
    load = load.workers(3);
    for i in 1..=6 {
        load = load.pin(format!("Tanh_{i}"), format!("w{}", i % 3));
    }
    load.await
}

/// Brief steps over all workers, wherever the planner puts them; whether one of them was run again.
pub async fn brief(cluster: &Cluster) -> Result<(Model, Arc<AtomicBool>)> {
    let again = Arc::new(AtomicBool::new(false));
    let told = again.clone();
    let load = cluster.load_function(tanh_chain(&[SIZE], 12), vec![]);
    let tell = move |phase: Phase| {
        if matches!(phase, Phase::Rerun(_)) {
            told.store(true, Ordering::Relaxed);
        }
    };
    Ok((load.workers(3).on_progress(tell).await?, again))
}

/// The only input of a function, whatever its shape.
pub fn input(f: &Function) -> Tensor {
    let shape = f.ty(f.params[0]).fixed_shape().unwrap();
    let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 500.0;
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_slice(&shape, &values).unwrap()
}

/// One brief step.
pub async fn call(model: &Model, retry: Retry) -> Result<Outputs> {
    let x = Tensor::from_slice(&[SIZE], &[0.5f32; SIZE]).unwrap();
    let options = CallOptions {
        retry,
        ..CallOptions::default()
    };
    let call = model.call_with([("x", x)], options);
    let hung = || Error::new(Code::Internal, "a call hangs");
    tokio::time::timeout(BOUND, call)
        .await
        .map_err(|_| hung())?
}

/// Brief steps without a pause: the first error, and when it came.
pub async fn until_error(model: &Model) -> (Error, Instant) {
    loop {
        if let Err(e) = call(model, Retry::Off).await {
            return (e, Instant::now());
        }
    }
}

/// Brief steps without a pause, until one that was run again has its result: when.
pub async fn until_again(model: &Model, again: &AtomicBool) -> Result<Instant> {
    while !again.load(Ordering::Relaxed) {
        call(model, Retry::On).await?;
    }
    Ok(Instant::now())
}

/// Loads a model over three workers, as soon as they are there, and has its first result: when.
pub async fn until_planned(cluster: &Cluster) -> Result<Instant> {
    loop {
        let planned = async {
            let (model, _) = brief(cluster).await?;
            call(&model, Retry::Off).await?;
            model.unload().await
        };
        match planned.await {
            Ok(()) => return Ok(Instant::now()),
            // It was planned for a worker that was lost meanwhile, or while the coordinator was away.
            Err(e) if matches!(e.code, Code::PeerLost | Code::Unreachable) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(e) => return Err(e),
        }
    }
}
