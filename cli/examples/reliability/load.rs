//! The models that the long runs call, and ways to call them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use convoke::graph::Function;
use convoke::{
    CallOptions, Cluster, Code, Error, HostTensor as Tensor, Model, Outputs, Phase, Result, Retry,
};

use crate::common::BOUND;
use crate::common::functions::tanh_chain;

/// The number of elements of the tensor that brief steps pass on.
const SIZE: usize = 64;

/// Loads a model of brief steps over three workers. Its nodes go round the workers twice, so each links to each other.
pub async fn ring(cluster: &Cluster) -> Result<Model> {
    let mut load = cluster.load_function(tanh_chain(&[SIZE], 6), vec![]);
    load = load.workers(3);
    for i in 1..=6 {
        load = load.pin(format!("Tanh_{i}"), format!("w{}", i % 3));
    }
    load.await
}

/// Loads a model of brief steps over all workers, placed by the planner. The flag says whether a step was run again.
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

/// Makes the tensor for the only input of a function.
pub fn input(f: &Function) -> Tensor {
    let shape = f.ty(f.params[0]).fixed_shape().unwrap();
    let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 500.0;
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_slice(&shape, &values).unwrap()
}

/// Runs one brief step; a call that does not end is an error.
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

/// Runs brief steps without a pause; returns the first error, and when it came.
pub async fn until_error(model: &Model) -> (Error, Instant) {
    loop {
        if let Err(e) = call(model, Retry::Off).await {
            return (e, Instant::now());
        }
    }
}

/// Runs brief steps without a pause, and returns when the first step that was run again had its result.
pub async fn until_again(model: &Model, again: &AtomicBool) -> Result<Instant> {
    while !again.load(Ordering::Relaxed) {
        call(model, Retry::On).await?;
    }
    Ok(Instant::now())
}

/// Loads a model over three workers as soon as they are alive, and returns when it had its first result.
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
