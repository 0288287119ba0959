//! Programs drawn at random have the same bits issued op by op, on whatever devices, and traced, however split.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

use convoke::{Cluster, DType, Device, Embedded, Result, Tensor, with_device};

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

/// One op: which, on which values so far, and where.
#[derive(Debug, Clone, Copy)]
struct Op {
    what: usize,
    of: [usize; 2],
    device: usize,
}

type Apply = fn(&Tensor, &Tensor) -> Result<Tensor>;

const OPS: &[(&str, Apply)] = &[
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

/// Runs a program: an op that does not fit its operands is passed over.
fn run(
    ops: &[Op],
    given: &[Tensor],
    place: &dyn Fn(Op, &dyn Fn() -> Result<Tensor>) -> Result<Tensor>,
) -> Vec<Tensor> {
    let mut values = given.to_vec();
    for op in ops {
        let [a, b] = op.of.map(|i| values[i % values.len()].clone());
        if let Ok(y) = place(*op, &|| OPS[op.what].1(&a, &b)) {
            values.push(y);
        }
    }
    values.split_off(given.len())
}

/// Runs a program of ops that all fit.
fn strictly(ops: &[Op], given: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut values = given.to_vec();
    for op in ops {
        let [a, b] = op.of.map(|i| values[i % values.len()].clone());
        values.push(OPS[op.what].1(&a, &b)?);
    }
    Ok(values.split_off(given.len()))
}

/// The ops of a program that fit their operands.
fn fitting(ops: &[Op], given: &[Tensor]) -> Vec<Op> {
    let mut fit: Vec<Op> = Vec::new();
    for op in ops {
        fit.push(*op);
        if strictly(&fit, given).is_err() {
            fit.pop();
        }
    }
    fit
}

async fn bits(values: &[Tensor]) -> Vec<(Vec<usize>, Vec<u32>)> {
    let mut all = Vec::new();
    for v in values {
        let t: convoke::HostTensor = v.fetch().await.unwrap();
        let elements = t.as_slice::<f32>().unwrap();
        all.push((
            t.shape().to_vec(),
            elements.iter().map(|e| e.to_bits()).collect(),
        ));
    }
    all
}

async fn check(cluster: &Cluster, devices: &[Device], seed: u64) {
    let mut rng = Rng(seed * 2 + 1);
    let ops: Vec<Op> = (0..14)
        .map(|_| Op {
            what: rng.below(OPS.len()),
            of: [rng.below(64), rng.below(64)],
            device: rng.below(devices.len()),
        })
        .collect();
    let put = |rows: usize, at: &dyn Fn(usize) -> usize| -> Vec<Tensor> {
        let draw = |(i, shape)| devices[at(i)].random_normal(shape, DType::F32, seed + i as u64);
        [[rows, 4], [rows, 4], [1, 4]]
            .into_iter()
            .enumerate()
            .map(|t| draw(t).unwrap())
            .collect()
    };
    let alone = put(3, &|_| 0);
    let spread = put(3, &|i| i % devices.len());
    let anywhere = |_: Op, f: &dyn Fn() -> Result<Tensor>| f();
    let names: Vec<_> = ops
        .iter()
        .map(|o| (OPS[o.what].0, o.of, o.device))
        .collect();

    let expected = bits(&run(&ops, &alone, &anywhere)).await;
    assert!(expected.len() > 3, "seed {seed}: {names:?}");
    let there = |op: Op, f: &dyn Fn() -> Result<Tensor>| with_device(&devices[op.device], f);
    let eager = bits(&run(&ops, &spread, &there)).await;
    assert_eq!(
        eager, expected,
        "issued on drawn devices, seed {seed}: {names:?}"
    );

    let traced = ops.clone();
    let f = cluster.function(move |t| Ok(run(&traced, t, &|_, f| f())));
    let split = bits(&f.call(&spread).await.unwrap()).await;
    assert_eq!(split, expected, "traced, seed {seed}: {names:?}");

    let (pinned, on) = (ops.clone(), devices.to_vec());
    let f = cluster.function(move |t| {
        Ok(run(&pinned, t, &|op, f| {
            f().and_then(|y| y.on(&on[op.device]))
        }))
    });
    let split = bits(&f.call(&spread).await.unwrap()).await;
    assert_eq!(split, expected, "traced and pinned, seed {seed}: {names:?}");

    // Rows are a dynamic axis, and half of the program is a function within.
    let fit = fitting(&ops, &alone);
    let (first, then) = fit.split_at(fit.len() / 2);
    let (first, then) = (first.to_vec(), then.to_vec());
    let inner = cluster.function(move |t| strictly(&first, t));
    let f = cluster.function(move |t| {
        let made = inner.apply(t)?;
        let all = [t, &made].concat();
        Ok([made, strictly(&then, &all)?].concat())
    });
    let f = f.dynamic(0, 0, "rows").unwrap().dynamic(1, 0, "rows");
    let f = f.unwrap();
    for rows in [3, 5, 2] {
        // Of another size an op may not fit.
        let Ok(eager) = strictly(&fit, &put(rows, &|_| 0)) else {
            continue;
        };
        let traced = f.call(&put(rows, &|i| i % devices.len())).await;
        let traced = traced.unwrap_or_else(|e| panic!("{rows} rows, seed {seed}: {fit:?}: {e}"));
        let (eager, traced) = (bits(&eager).await, bits(&traced).await);
        assert_eq!(traced, eager, "{rows} rows, seed {seed}: {fit:?}");
    }
    assert_eq!(f.traces(), 1);
}

#[tokio::test]
async fn eager_and_traced_have_the_same_bits_on_any_devices() {
    let cluster = Embedded::new(3).threads(1).start().await.unwrap();
    let devices = cluster.devices().await.unwrap();
    for seed in 0..40 {
        check(&cluster, &devices, seed).await;
    }
    // Nothing is left of what was dropped.
    assert_eq!(cluster.memory().await.unwrap(), []);
    cluster.shutdown().await;
}
