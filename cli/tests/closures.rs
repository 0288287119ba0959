//! Closures of users that take long, call the cluster or panic: on an embedded cluster and on processes alike, they
//! hold up only the thread on which they run.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "closures of programs may do what they like"
)]

mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::cluster::Processes;
use common::{Scratch, fixture};
use convoke::{Attrs, Cluster, Code, Embedded, Error, HostTensor, Operand, Result, Tensor};
use futures::executor::block_on;

/// A time longer than it takes to give up a silent peer; `.ci/long closures` sets a longer one.
fn long() -> Duration {
    let asked = std::env::var("CONVOKE_TEST_CLOSURE_SECONDS");
    Duration::from_secs(asked.map_or(5, |s| s.parse().unwrap()))
}

/// The log of this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn says(&self, what: &str) -> bool {
        String::from_utf8_lossy(&self.0.lock().unwrap()).contains(what)
    }
}

/// Starts to collect the warnings of all threads of this process.
fn log() -> Log {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .with_writer(move || writer.clone());
    tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
    log
}

fn negated(t: &Tensor) -> Result<Tensor> {
    let made = convoke::issue("Neg", Attrs::default(), &[Operand::Tensor(t)], 1);
    made.map(|mut made| made.remove(0))
}

/// Runs a future to its end on a thread of its own: executors do not run within each other.
fn apart<T: Send>(work: impl AsyncFnOnce() -> T + Send) -> T {
    std::thread::scope(|s| s.spawn(|| block_on(work())).join().unwrap())
}

fn check_panic<T>(result: Result<T>, of: &str) {
    let error: Error = result.err().unwrap();
    assert_eq!(error.code, Code::InvalidArgument, "{error}");
    let text = error.to_string();
    assert!(text.contains(of) && text.contains("closures.rs:"), "{text}");
    assert!(text.ends_with("panicked: on purpose"), "{text}");
}

/// Runs `work` on a thread of its own while others use the cluster, and checks that these are served all the while.
async fn undisturbed(cluster: &Cluster, work: impl AsyncFnOnce(&Cluster) + Send + 'static) {
    let device = cluster.devices().await.unwrap().remove(0);
    let kept = device.put([1f32, 2.]).unwrap();
    let own = cluster.clone();
    let mut done = tokio::task::spawn_blocking(move || block_on(work(&own)));
    loop {
        let ended = tokio::time::timeout(Duration::from_millis(50), &mut done).await;
        if let Ok(ended) = ended {
            return ended.unwrap();
        }
        let made = negated(&kept).unwrap();
        assert_eq!(made.fetch::<Vec<f32>>().await.unwrap(), [-1., -2.]);
        let status = cluster.status().await.unwrap();
        assert!(
            status.members.iter().all(|m| m.status.is_some()),
            "{status:?}"
        );
    }
}

async fn functions(cluster: &Cluster) {
    let device = cluster.devices().await.unwrap().remove(0);
    let x = device.put([1f32, 2.]).unwrap();
    let slow = cluster.function(|t| {
        std::thread::sleep(long());
        Ok(vec![negated(&t[0])?])
    });
    let made = slow.call(std::slice::from_ref(&x)).await.unwrap().remove(0);
    assert_eq!(made.fetch::<Vec<f32>>().await.unwrap(), [-1., -2.]);
    let (inner, operand) = (cluster.function(|t| Ok(vec![negated(&t[0])?])), x.clone());
    let nested = cluster.function(move |t| {
        let known = apart(async || {
            let made = inner.call(std::slice::from_ref(&operand)).await?;
            made[0].fetch::<Vec<f32>>().await
        });
        assert_eq!(known?, [-1., -2.]);
        Ok(vec![negated(&t[0])?])
    });
    let made = nested
        .call(std::slice::from_ref(&x))
        .await
        .unwrap()
        .remove(0);
    assert_eq!(made.fetch::<Vec<f32>>().await.unwrap(), [-1., -2.]);
    let broken = cluster.function(|_| panic!("on purpose"));
    check_panic(broken.call(&[x]).await, "the closure of function at");
}

async fn progress(cluster: &Cluster) {
    let image = || {
        [(
            "image",
            HostTensor::from_slice(&[1, 1, 8, 8], &[0f32; 64]).unwrap(),
        )]
    };
    let again = cluster.clone();
    let once = std::sync::Once::new();
    let load = cluster.load(fixture("digits/model.onnx")).dim("batch", 1);
    let load = load.on_progress(move |_| {
        once.call_once(|| {
            std::thread::sleep(long());
            let status = apart(async || again.status().await);
            assert!(!status.unwrap().members.is_empty());
        });
    });
    load.await.unwrap().call(image()).await.unwrap();
    let load = cluster.load(fixture("digits/model.onnx")).dim("batch", 1);
    let load = load.on_progress(|_| panic!("on purpose"));
    check_panic(load.await, "the progress closure at");
}

async fn places(cluster: &Cluster, name: String) {
    let device = cluster.devices().await.unwrap().remove(0);
    let x = device.put([1f32, 2.]).unwrap();
    let scratch = Scratch::new(&format!("places-{name}"));
    let path = scratch.path("x.safetensors");
    cluster.save_tensors(&path, &[("x", &x)]).await.unwrap();
    let again = cluster.clone();
    let load = cluster.load_tensors(&path, move |_, _| {
        std::thread::sleep(long());
        let devices = apart(async || again.devices().await);
        Some(devices.unwrap().remove(0))
    });
    let loaded = load.await.unwrap();
    assert_eq!(loaded["x"].fetch::<Vec<f32>>().await.unwrap(), [1., 2.]);
    let load = cluster.load_tensors(&path, |_, _| panic!("on purpose"));
    check_panic(load.await, "the closure that places tensors at");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closures_hold_up_their_own_thread_only() {
    let log = log();
    let processes = Processes::start("closures", 2, "512MiB");
    let embedded = Embedded::new(2).threads(1).start().await.unwrap();
    let connected = processes.connect().await;
    let check = async |cluster: &Cluster, name: &str| {
        undisturbed(cluster, functions).await;
        undisturbed(cluster, progress).await;
        let name = name.to_owned();
        undisturbed(cluster, async |c: &Cluster| places(c, name).await).await;
    };
    futures::join!(check(&embedded, "embedded"), check(&connected, "connected"));
    for what in [
        "the closure of function at cli/tests/closures.rs:",
        "the progress closure at cli/tests/closures.rs:",
        "the closure that places tensors at cli/tests/closures.rs:",
    ] {
        assert!(log.says(what), "no warning names {what}");
    }
    assert!(!log.says("no packet for"), "{log}");
    embedded.shutdown().await;
    connected.shutdown().await;
}

impl std::fmt::Display for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0.lock().unwrap()))
    }
}
