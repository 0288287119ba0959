//! Programs drawn at random give the same bits issued op by op, on any devices, and traced, however split: on the
//! embedded cluster and over processes.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use crate::common;

use common::cluster::Processes;
use convoke::{
    Attrs, Cluster, DType, Device, Embedded, HostTensor, Operand, Result, Tensor, with_device,
};
use convoke_graph::ops;

/// A generator of test cases: xorshift64*.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }
}

/// One op of a program: which op it is, the earlier values that it uses, and its device.
#[derive(Clone, Copy)]
struct Op {
    what: What,
    of: [usize; 2],
    device: usize,
}

#[derive(Clone, Copy)]
enum What {
    Method(&'static str, Apply),
    /// An op of the registry, with default attributes and only its required operands.
    Registered(&'static ops::OpDef),
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.what {
            What::Method(name, _) => name,
            What::Registered(def) => def.name,
        };
        write!(f, "{name}{:?} on {}", self.of, self.device)
    }
}

impl Op {
    fn draw(rng: &mut Rng, devices: usize) -> Op {
        let registry: Vec<_> = ops::all().collect();
        let what = match rng.below(3) {
            0 => What::Registered(registry[rng.below(registry.len())]),
            _ => {
                let (name, apply) = METHODS[rng.below(METHODS.len())];
                What::Method(name, apply)
            }
        };
        Op {
            what,
            of: [rng.below(64), rng.below(64)],
            device: rng.below(devices),
        }
    }

    fn apply(&self, values: &[Tensor]) -> Result<Tensor> {
        let [a, b] = self.of.map(|i| &values[i % values.len()]);
        match self.what {
            What::Method(_, apply) => apply(a, b),
            What::Registered(def) => {
                let must = def.operands.iter().filter(|o| !o.optional).count();
                let operands = [a, b].into_iter().cycle().take(must);
                let operands: Vec<_> = operands.map(Operand::Tensor).collect();
                let made = convoke::issue(def.name, Attrs::default(), &operands, 1)?;
                Ok(made[0].clone())
            }
        }
    }
}

type Apply = fn(&Tensor, &Tensor) -> Result<Tensor>;

const METHODS: &[(&str, Apply)] = &[
    ("add", |a, b| a + b),
    ("sub", |a, b| a - b),
    ("mul", |a, b| a * b),
    ("div", |a, b| a / &(&b.abs()? + 1.0)?),
    ("maximum", |a, b| a.maximum(b)),
    ("scaled", |a, _| a * 0.5),
    ("neg", |a, _| -a),
    ("relu", |a, _| a.relu()),
    ("tanh", |a, _| a.tanh()),
    ("exp", |a, _| a.tanh()?.exp()),
    ("sqrt", |a, _| a.abs()?.sqrt()),
    ("softmax", |a, _| a.softmax(-1)),
    ("matmul", |a, b| a.matmul(&b.t()?)),
    ("transposed", |a, _| a.t()),
    ("rows", |a, _| a.i((0..2, ..))),
    ("last column", |a, _| a.i((.., -1))),
    ("sum", |a, _| a.sum(0)),
    ("mean", |a, _| a.mean(-1)),
    ("largest", |a, _| a.max(1)),
    ("cumsum", |a, _| a.cumsum(-1)),
    ("raveled", |a, _| a.ravel()),
    ("unsqueezed", |a, _| a.reshape([1, -1])),
    ("concat", |a, b| Tensor::concat(&[a, b], 0)),
    ("chosen", |a, b| a.greater(b)?.where_(a, b)),
    ("cast", |a, _| a.cast(DType::F64)?.cast(DType::F32)),
    ("integers", |a, _| {
        (&a.cast(DType::I32)? % 3)?.cast(DType::F32)
    }),
];

/// Runs a program, each op on the device that `place` chooses.
fn run(
    ops: &[Op],
    given: &[Tensor],
    place: &dyn Fn(Op, &dyn Fn() -> Result<Tensor>) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let mut values = given.to_vec();
    for op in ops {
        let made = place(*op, &|| op.apply(&values))?;
        values.push(made);
    }
    Ok(values.split_off(given.len()))
}

fn anywhere(_: Op, f: &dyn Fn() -> Result<Tensor>) -> Result<Tensor> {
    f()
}

/// The ops of a drawn program that fit their operands and do not fail.
async fn fitting(drawn: &[Op], given: &[Tensor]) -> Vec<Op> {
    let mut values = given.to_vec();
    let mut fit = Vec::new();
    for op in drawn {
        if let Ok(made) = op.apply(&values)
            && made.fetch::<HostTensor>().await.is_ok()
        {
            fit.push(*op);
            values.push(made);
        }
    }
    fit
}

async fn bits(values: &[Tensor]) -> Vec<(DType, Vec<usize>, Vec<u8>)> {
    let mut all = Vec::new();
    for v in values {
        let t: HostTensor = v.fetch().await.unwrap();
        all.push((t.dtype(), t.shape().to_vec(), t.bytes().to_vec()));
    }
    all
}

/// Draws the first values of a program, each on the device that `at` chooses.
fn given(devices: &[Device], at: fn(usize) -> usize, rows: usize, seed: u64) -> Vec<Tensor> {
    let shapes = [[rows, 4], [rows, 4], [1, 4]];
    let draw = |(i, shape)| {
        let device = &devices[at(i) % devices.len()];
        device.random_normal(shape, DType::F32, seed + i as u64)
    };
    let drawn = shapes.into_iter().enumerate().map(draw);
    drawn.collect::<Result<_>>().unwrap()
}

const ALONE: fn(usize) -> usize = |_| 0;
const SPREAD: fn(usize) -> usize = |i| i;

/// Draws a program and compares its ways to run; returns the names of the registry's ops in it.
async fn check(cluster: &Cluster, devices: &[Device], seed: u64) -> Vec<&'static str> {
    let mut rng = Rng(seed * 2 + 1);
    let drawn: Vec<Op> = (0..20).map(|_| Op::draw(&mut rng, devices.len())).collect();
    let (alone, spread) = (
        given(devices, ALONE, 3, seed),
        given(devices, SPREAD, 3, seed),
    );
    let ops = fitting(&drawn, &alone).await;
    assert!(ops.len() > 3, "seed {seed}: {drawn:?}");

    let expected = bits(&run(&ops, &alone, &anywhere).unwrap()).await;
    let there = |op: Op, f: &dyn Fn() -> Result<Tensor>| with_device(&devices[op.device], f);
    let eager = bits(&run(&ops, &spread, &there).unwrap()).await;
    assert_eq!(
        eager, expected,
        "issued on drawn devices, seed {seed}: {ops:?}"
    );

    let traced = ops.clone();
    let f = cluster.function(move |t| run(&traced, t, &anywhere));
    let split = bits(&f.call(&spread).await.unwrap()).await;
    assert_eq!(split, expected, "traced, seed {seed}: {ops:?}");

    let (pinned, on) = (ops.clone(), devices.to_vec());
    let f = cluster.function(move |t| run(&pinned, t, &|op, f| f()?.on(&on[op.device])));
    let split = bits(&f.call(&spread).await.unwrap()).await;
    assert_eq!(split, expected, "traced and pinned, seed {seed}: {ops:?}");

    check_dynamic(cluster, devices, seed, &ops).await;
    let registered = ops.iter().filter_map(|op| match op.what {
        What::Registered(def) => Some(def.name),
        What::Method(..) => None,
    });
    registered.collect()
}

/// Checks a program whose rows are a dynamic axis, and half of which is a function called within.
async fn check_dynamic(cluster: &Cluster, devices: &[Device], seed: u64, ops: &[Op]) {
    let (first, then) = ops.split_at(ops.len() / 2);
    let (first, then) = (first.to_vec(), then.to_vec());
    let inner = cluster.function(move |t| run(&first, t, &anywhere));
    let f = cluster.function(move |t| {
        let made = inner.apply(t)?;
        let all = [t, &made].concat();
        Ok([made, run(&then, &all, &anywhere)?].concat())
    });
    let f = f.dynamic(0, 0, "rows").unwrap().dynamic(1, 0, "rows");
    let f = f.unwrap();
    for rows in [3, 5, 2] {
        // With another number of rows an op may not fit its operands.
        let Ok(eager) = run(ops, &given(devices, ALONE, rows, seed), &anywhere) else {
            continue;
        };
        let traced = match f.call(&given(devices, SPREAD, rows, seed)).await {
            Ok(traced) => traced,
            // The rank of some ops' results depends on a value that a dynamic axis leaves open.
            Err(e) if e.message.contains("must be known before the run") => return,
            Err(e) => panic!("{rows} rows, seed {seed}: {ops:?}: {e}"),
        };
        let (eager, traced) = (bits(&eager).await, bits(&traced).await);
        assert_eq!(traced, eager, "{rows} rows, seed {seed}: {ops:?}");
    }
    assert_eq!(f.traces(), 1);
}

async fn check_seeds(cluster: Cluster, seeds: std::ops::Range<u64>) {
    let devices = cluster.devices().await.unwrap();
    let mut registered = std::collections::BTreeSet::new();
    for seed in seeds {
        registered.extend(check(&cluster, &devices, seed).await);
    }
    println!("{} of the registry: {registered:?}", registered.len());
    // All dropped tensors are freed.
    assert_eq!(cluster.memory().await.unwrap(), []);
    cluster.shutdown().await;
}

#[tokio::test]
async fn eager_and_traced_have_the_same_bits_on_any_devices() {
    let cluster = Embedded::new(3).threads(1).start().await.unwrap();
    check_seeds(cluster, 0..40).await;
}

#[tokio::test]
async fn eager_and_traced_have_the_same_bits_on_any_processes() {
    let processes = Processes::start("programs", 3, "512MiB");
    check_seeds(processes.connect().await, 40..60).await;
}
