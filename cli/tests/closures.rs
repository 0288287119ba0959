//! Closures of users that take long, call the cluster or panic: on an embedded cluster and on processes alike, they
//! hold up only the thread on which they run.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "closures of programs may do what they like"
)]

use crate::common;

use std::io::Write;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::cluster::Processes;
use common::{BOUND, Scratch, fixture};
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
    fn count(&self, what: &str) -> usize {
        let text = self.to_string();
        text.matches(what).count()
    }
}

impl std::fmt::Display for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0.lock().unwrap()))
    }
}

/// The number of the only line of this file that starts so.
fn line_of(start: &str) -> usize {
    let lines = (1..).zip(include_str!("closures.rs").lines());
    let mut lines = lines.filter(|(_, line)| line.trim_start().starts_with(start));
    let (number, _) = lines.next().unwrap();
    assert!(lines.next().is_none(), "{start}");
    number
}

/// The warnings of this process, of all its threads.
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
    for (what, line) in [
        ("the closure of function", "let slow = cluster.function("),
        ("the progress closure", "let load = load.on_progress(move"),
        (
            "the closure that places tensors",
            "let load = cluster.load_tensors(&path, move",
        ),
    ] {
        let warning = format!("{what} at cli/tests/closures.rs:{} has run", line_of(line));
        // On the embedded cluster and on that of processes.
        assert_eq!(log.count(&warning), 2, "{warning}: {log}");
    }
    assert_eq!(log.count("no packet for"), 0, "{log}");
    embedded.shutdown().await;
    connected.shutdown().await;
}

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// How a closure waits for an answer on the thread that it runs on.
type Wait = fn(Work<Result<f32>>) -> Result<f32>;
/// The result of the call with a closure, and how an error names the closure.
type Answer = (Result<f32>, String);

fn named(what: &str, line: &str) -> String {
    format!("{what} at cli/tests/closures.rs:{}", line_of(line))
}

/// A function whose closure calls another one, and waits for that.
async fn nested_function(cluster: Cluster, wait: Wait) -> Answer {
    let device = cluster.device("w0").unwrap();
    let x = device.put(1f32).unwrap();
    let (inner, operand) = (cluster.function(|t| Ok(vec![negated(&t[0])?])), x.clone());
    let waits = cluster.function(move |t| {
        let called = inner.call(std::slice::from_ref(&operand));
        let known = wait(Box::pin(async move {
            let made = called.await?.remove(0);
            // More often than a task of tokio's may go on before it pauses.
            for _ in 0..300 {
                made.fetch::<f32>().await?;
            }
            made.fetch().await
        }));
        assert_eq!(known?, -1.);
        Ok(vec![negated(&t[0])?])
    });
    let called = async { waits.call(&[x]).await?.remove(0).fetch().await };
    let line = "let waits = cluster.function(";
    (called.await, named("the closure of function", line))
}

/// A model whose progress is told to a closure that asks for the status, and waits for that.
async fn nested_progress(cluster: Cluster, wait: Wait) -> Answer {
    let load = cluster.load(fixture("digits/model.onnx")).dim("batch", 1);
    let waits = load.on_progress(move |_| {
        let cluster = cluster.clone();
        let asked = async move { Ok(cluster.status().await?.members.len() as f32) };
        assert_eq!(wait(Box::pin(asked)).unwrap(), 1.);
    });
    let loaded = async { waits.await.map(|_| -1.) };
    let line = "let waits = load.on_progress(";
    (loaded.await, named("the progress closure", line))
}

/// A file whose tensors are placed by a closure that asks for the devices, and waits for them.
async fn nested_place(cluster: Cluster, wait: Wait) -> Answer {
    let x = cluster.device("w0").unwrap().put(-1f32).unwrap();
    // Tests run at the same time, and threads of their runtimes have the same names.
    static PLACED: AtomicUsize = AtomicUsize::new(0);
    let number = PLACED.fetch_add(1, Ordering::Relaxed);
    let scratch = Scratch::new(&format!("placed-{number}"));
    let path = scratch.path("x.safetensors");
    cluster.save_tensors(&path, &[("x", &x)]).await.unwrap();
    let again = cluster.clone();
    let waits = cluster.load_tensors(&path, move |_, _| {
        let cluster = again.clone();
        let asked = async move { Ok(cluster.devices().await?.len() as f32) };
        assert_eq!(wait(Box::pin(asked)).unwrap(), 1.);
        again.device("w0").ok()
    });
    let loaded = async { waits.await?["x"].fetch().await };
    let line = "let waits = cluster.load_tensors(";
    (loaded.await, named("the closure that places tensors", line))
}

/// What the calls with each kind of closure answer, each on a thread of this name, which has to end.
fn answers(name: &str, run: fn(Work<Answer>) -> Answer, wait: Wait) -> Vec<Answer> {
    let cluster = block_on(async { Embedded::new(1).threads(1).start().await }).unwrap();
    let kinds: [fn(Cluster, Wait) -> Work<Answer>; 3] = [
        |cluster, wait| Box::pin(nested_function(cluster, wait)),
        |cluster, wait| Box::pin(nested_progress(cluster, wait)),
        |cluster, wait| Box::pin(nested_place(cluster, wait)),
    ];
    let answer = |kind: fn(Cluster, Wait) -> Work<Answer>| {
        let (tell, told) = std::sync::mpsc::channel();
        let cluster = cluster.clone();
        let thread = std::thread::Builder::new().name(name.into());
        // Nobody waits any more for one that hangs.
        let work = move || drop(tell.send(run(kind(cluster, wait))));
        thread.spawn(work).unwrap();
        told.recv_timeout(BOUND).expect("the closure hangs")
    };
    let answers = kinds.map(answer).into();
    block_on(cluster.shutdown());
    answers
}

fn one_thread(work: Work<Answer>) -> Answer {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(work)
}

fn two_threads(work: Work<Answer>) -> Answer {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::spawn(work).await.unwrap() })
}

/// An executor within itself is refused by the executor: the call answers that, and names the closure.
#[test]
fn a_closure_that_runs_its_own_executor_again_is_an_error() {
    let tokio: Wait = |work| tokio::runtime::Handle::current().block_on(work);
    let futures = answers("futures", block_on, block_on);
    let one = answers("one", one_thread, tokio);
    let two = answers("two", two_threads, tokio);
    for (answer, name) in futures.into_iter().chain(one).chain(two) {
        let e = answer.unwrap_err();
        assert_eq!(e.code, Code::InvalidArgument, "{e}");
        let start = format!("{name} panicked: ");
        assert!(e.message.starts_with(&start), "{name}: {e}");
    }
}

/// An executor of another kind waits on the closure's own thread; the answer that it waits for needs no other thread.
#[test]
fn a_closure_that_waits_by_another_executor_is_answered() {
    for (name, run) in [
        ("waits-one", one_thread as fn(Work<Answer>) -> Answer),
        ("waits-two", two_threads),
    ] {
        for (answer, name) in answers(name, run, block_on) {
            assert_eq!(answer.unwrap(), -1., "{name}");
        }
    }
}
