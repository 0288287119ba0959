//! Weights in simulation: they stream from the client and are kept in the worker's cache. What a power cut leaves of
//! the cache is verified and used, or fetched again. A disk that is full, fails or gives wrong bits costs time only.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::error::Error;
use convoke_common::memory::Purpose;
use convoke_graph::graph::{Attrs, Function, Literal, Node, RunsAt, TensorType};
use convoke_graph::{DType, Tensor};
use convoke_models::{ArtifactIndex, Source};
use convoke_sims::cluster::{Cluster, Host, Setup, Task};
use convoke_sims::world::{Knobs, Wire};

/// Starts a fault of a worker's disk if the flag is true, and ends it if not.
type Harm = fn(&Knobs, bool);

const BOUND: Duration = Duration::from_secs(60);
/// Elements of the weight: one chunk and a quarter.
const ELEMENTS: usize = 5 << 16;

fn weight() -> Vec<f32> {
    (0..ELEMENTS).map(|i| (i % 8191) as f32).collect()
}

/// A file with the weight, the same in every run.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> File {
        let name = format!("convoke-sims-weights-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let bytes: Vec<u8> = weight().iter().flat_map(|w| w.to_le_bytes()).collect();
        std::fs::write(&path, bytes).expect("written");
        File(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// y = x + w.
fn function(source: &Source) -> Function {
    let mut f = Function {
        name: "adds".into(),
        artifacts: vec![source.meta().clone()],
        ..Function::default()
    };
    let x = f.add_value("x", TensorType::fixed(DType::F32, &[1]));
    let w = f.add_value("w", TensorType::fixed(DType::F32, &[ELEMENTS]));
    let y = f.add_value("y", TensorType::fixed(DType::F32, &[ELEMENTS]));
    f.params.push(x);
    f.literals.push((
        w,
        Literal::Range {
            artifact: 0,
            offset: 0,
            len: 4 * ELEMENTS as u64,
        },
    ));
    f.nodes.push(Node {
        name: "add".into(),
        op: "Add".into(),
        attrs: Attrs::default(),
        inputs: vec![Some(x), Some(w)],
        outputs: vec![y],
        runs_at: RunsAt::Step,
    });
    f.results.push(("y".into(), y));
    f.verify().expect("valid");
    f
}

/// Asks for all of the worker's memory, so that it drops the weights that nobody uses.
fn forget(cluster: &Cluster) {
    let ledger = cluster.worker(0).expect("there").ledger().clone();
    let unused = ledger.used().get(&Purpose::UnusedWeights).copied();
    let free = ledger.limit() - ledger.total_and_peak().0 + unused.unwrap_or(0);
    drop(ledger.reserve(Purpose::Handles, free).expect("free"));
    let left = ledger.used().get(&Purpose::UnusedWeights).copied();
    assert_eq!(left.unwrap_or(0), 0);
}

/// Has the worker drop the weights of earlier loads, and loads the model as [`loads`] does.
fn check(cluster: &mut Cluster, source: &Source) -> [u64; 3] {
    forget(cluster);
    loads(cluster, source)
}

/// Has a client load, call and unload the model.
fn begin(cluster: &mut Cluster, client: u16, source: &Source) -> Task<Result<Tensor, Error>> {
    let (function, sources) = (Arc::new(function(source)), vec![source.clone()]);
    cluster.on_client(client, move |c| async move {
        let model = c.load_function(function, sources).await?;
        let one = Tensor::from_slice(&[1], &[1f32])?;
        let mut outputs = model.call([("x", one)]).await?;
        model.unload().await?;
        Ok::<_, Error>(outputs.0.remove(0).1)
    })
}

fn ends_well(cluster: &mut Cluster, task: &Task<Result<Tensor, Error>>) {
    assert!(cluster.run_until(BOUND, |_| task.is_over()));
    let got = task.take().expect("the client lives").expect("a result");
    let want: Vec<f32> = weight().iter().map(|w| 1. + w).collect();
    assert!(got.as_slice::<f32>().expect("f32") == want);
}

/// Loads, calls and unloads the model. Returns the bytes of weights that the worker took from the shared path, the
/// cache and the client.
fn loads(cluster: &mut Cluster, source: &Source) -> [u64; 3] {
    let before = cluster.worker(0).expect("there").status().loaded;
    let task = begin(cluster, 0, source);
    ends_well(cluster, &task);
    let after = cluster.worker(0).expect("there").status().loaded;
    [
        after.shared_path - before.shared_path,
        after.cache - before.cache,
        after.clients - before.clients,
    ]
}

/// Starts a cluster of one worker and one client.
fn settled(seed: u64) -> Cluster {
    settled_with(seed, 1)
}

fn settled_with(seed: u64, clients: u16) -> Cluster {
    let mut cluster = Cluster::new(Setup {
        seed,
        workers: 1,
        clients,
        ..Setup::default()
    });
    assert!(cluster.settle(BOUND), "{:?}", cluster.ends());
    cluster
}

/// The weight's file with its hashes, as clients offer it.
fn hashed(file: &File) -> Source {
    let index = ArtifactIndex::new(None, None);
    let sources = index.sources(std::slice::from_ref(&file.0), None);
    sources.expect("hashed").remove(0)
}

#[test]
fn a_cache_whose_disk_is_full_or_fails_costs_time_and_no_bit() {
    let file = File::new("disks");
    let source = hashed(&file);
    let all = 4 * ELEMENTS as u64;
    let (full, fails): (Harm, Harm) = (Knobs::set_disk_full, Knobs::set_disk_fails);
    for (seed, harm) in [(10, full), (11, fails)] {
        let mut cluster = settled(seed);
        let knobs = cluster.knobs(Host::Worker(0));
        harm(&knobs, true);
        assert_eq!(check(&mut cluster, &source), [0, 0, all], "seed {seed}");
        assert_eq!(
            check(&mut cluster, &source),
            [0, 0, all],
            "nothing was kept"
        );
        harm(&knobs, false);
        assert_eq!(check(&mut cluster, &source), [0, 0, all], "seed {seed}");
        assert_eq!(
            check(&mut cluster, &source),
            [0, all, 0],
            "it is kept again"
        );
        fails(&knobs, true);
        assert_eq!(
            check(&mut cluster, &source),
            [0, 0, all],
            "what cannot be read is fetched"
        );
        assert!(cluster.ends().is_empty(), "{:?}", cluster.ends());
        assert!(cluster.panics().is_empty(), "{:?}", cluster.panics());
    }
}

#[test]
fn a_cache_whose_disk_gives_wrong_bits_costs_time_and_no_bit() {
    let file = File::new("flips");
    let source = hashed(&file);
    let all = 4 * ELEMENTS as u64;
    let mut cluster = settled(13);
    let knobs = cluster.knobs(Host::Worker(0));
    assert_eq!(check(&mut cluster, &source), [0, 0, all]);
    assert_eq!(check(&mut cluster, &source), [0, all, 0], "it is kept");
    knobs.set_disk_flips(1_000_000);
    for _ in 0..2 {
        assert_eq!(
            check(&mut cluster, &source),
            [0, 0, all],
            "what is read with a wrong bit is fetched"
        );
    }
    knobs.set_disk_flips(0);
    assert_eq!(
        check(&mut cluster, &source),
        [0, all, 0],
        "it was kept again, with right bits"
    );
    assert!(cluster.ends().is_empty(), "{:?}", cluster.ends());
    assert!(cluster.panics().is_empty(), "{:?}", cluster.panics());
}

#[test]
fn weights_that_the_worker_still_has_are_not_loaded() {
    let file = File::new("again");
    let source = hashed(&file);
    let all = 4 * ELEMENTS as u64;
    let mut cluster = settled(12);
    assert_eq!(check(&mut cluster, &source), [0, 0, all]);
    assert_eq!(loads(&mut cluster, &source), [0, 0, 0]);
    assert_eq!(check(&mut cluster, &source), [0, all, 0]);
    assert!(cluster.panics().is_empty(), "{:?}", cluster.panics());
}

/// Has two clients load the model at once, the first over a slow link. Returns the bytes that the worker took from
/// them. With `dies` the first is killed while the second waits for what it loads.
fn at_once(seed: u64, source: &Source, dies: bool) -> u64 {
    let mut cluster = settled_with(seed, 2);
    let slow = Wire {
        delay: (20, 24),
        ..Wire::default()
    };
    cluster.wire(Host::Client(0), Host::Worker(0), slow);
    let installs = |cluster: &Cluster| {
        let tables = cluster.worker(0).map_or(vec![], |w| w.tables());
        let installs = tables.iter().find(|(name, _)| *name == "installs");
        installs.map_or(0, |(_, count)| *count)
    };
    let first = begin(&mut cluster, 0, source);
    assert!(cluster.run_until(BOUND, |c| installs(c) == 1));
    let second = begin(&mut cluster, 1, source);
    assert!(cluster.run_until(BOUND, |c| installs(c) == 2));
    if dies {
        cluster.kill(Host::Client(0));
    } else {
        ends_well(&mut cluster, &first);
    }
    ends_well(&mut cluster, &second);
    assert!(cluster.panics().is_empty(), "{:?}", cluster.panics());
    let worker = cluster.worker(0).expect("there");
    assert_eq!(worker.status().weights.held_bytes, 4 * ELEMENTS as u64);
    worker.status().loaded.clients
}

#[test]
fn two_who_load_at_once_load_once_and_need_not_each_other() {
    let file = File::new("two");
    let source = hashed(&file);
    let all = 4 * ELEMENTS as u64;
    for seed in 20..24 {
        assert_eq!(at_once(seed, &source, false), all, "seed {seed}");
        let loaded = at_once(seed, &source, true);
        assert!((all..2 * all).contains(&loaded), "seed {seed}: {loaded}");
    }
}

#[test]
fn a_power_cut_costs_time_and_no_bit() {
    let file = File::new("power");
    let source = hashed(&file);
    let all = 4 * ELEMENTS as u64;
    let mut kept = Vec::new();
    for seed in 0..4 {
        let mut cluster = settled(seed);
        assert_eq!(check(&mut cluster, &source), [0, 0, all], "seed {seed}");
        assert_eq!(check(&mut cluster, &source), [0, all, 0], "seed {seed}");
        cluster.power_off(Host::Worker(0));
        cluster.start(Host::Worker(0));
        assert!(cluster.settle(BOUND), "{:?}", cluster.ends());
        let [shared, cached, fetched] = check(&mut cluster, &source);
        assert_eq!((shared, cached + fetched), (0, all), "seed {seed}");
        kept.push(cached);
        assert!(cluster.panics().is_empty(), "{:?}", cluster.panics());
    }
    assert!(kept.iter().any(|k| *k < all), "nothing was ever lost");
    assert!(kept.iter().any(|k| *k > 0), "everything was always lost");
}
