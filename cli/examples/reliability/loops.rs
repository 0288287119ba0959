//! Runs loops that issue op after op without waiting for any: however long they run, no op fails, they issue as fast at
//! the end as at the beginning, and no process needs more memory.

use std::time::{Duration, Instant};

use convoke::{Cluster, Device, Result, Tensor};

use crate::common::cluster::Processes;
use crate::common::usage::Usage;

/// The bytes of the tensor that each loop works on.
const SIZE: usize = 1 << 20;

/// The bytes by which a process may grow between the first tenth and the end.
const GROWTH: u64 = 16 << 20;

/// The number of parts of a loop that are timed apart.
const PARTS: u64 = 10;

/// A loop's body: makes the next tensor from the last one, a factor, the devices and the iteration's number.
type Body = fn(&Tensor, &Tensor, &[Device], u64) -> Result<Tensor>;

const LOOPS: [(&str, Body); 2] = [
    ("x = x * 1.0001", |x, factor, _, _| x.mul(factor)),
    ("x = x.to(next)", |x, _, devices, i| {
        x.to(&devices[(i as usize + 1) % devices.len()])
    }),
];

/// Runs `iterations` iterations of each loop on one worker and on three; returns whether all was as promised.
pub async fn run(iterations: u64) -> bool {
    let mut kept = true;
    for workers in [1, 3] {
        let processes = Processes::start(&format!("loops-{workers}"), workers, "512MiB");
        let cluster = processes.connect().await;
        let pids: Vec<u32> = (0..workers).map(|i| processes.worker(i).pid()).collect();
        for (name, body) in LOOPS {
            match one(&cluster, &pids, body, iterations).await {
                Ok((rates, growth)) => {
                    let (first, last) = (rates[0], rates[rates.len() - 1]);
                    println!(
                        "{name} on {workers}: {iterations} iterations, {first:.0}/s in the first tenth, {last:.0}/s in the last; \
                         memory {:+.1} MiB at most",
                        growth as f64 / f64::from(1 << 20)
                    );
                    kept &= growth <= GROWTH as i64 && last > first / 2.;
                }
                Err(e) => {
                    println!("{name} on {workers}: {e}");
                    kept = false;
                }
            }
        }
        cluster.shutdown().await;
    }
    kept
}

/// Runs one loop. Returns the iterations per second of each part, and the most bytes by which a process grew after the
/// first part.
async fn one(
    cluster: &Cluster,
    workers: &[u32],
    body: Body,
    iterations: u64,
) -> Result<(Vec<f64>, i64)> {
    let devices = cluster.devices().await?;
    let mut x = devices[0].put(vec![1f32; SIZE / size_of::<f32>()])?;
    let factor = devices[0].put([1.0001f32])?;
    let used = || {
        let all = workers.iter().copied().chain([std::process::id()]);
        all.map(|pid| Usage::of(pid).memory as i64)
            .collect::<Vec<_>>()
    };
    let (mut rates, mut early) = (vec![], vec![]);
    for part in 0..PARTS {
        let start = Instant::now();
        let range = iterations * part / PARTS..iterations * (part + 1) / PARTS;
        let count = range.end - range.start;
        for i in range {
            x = body(&x, &factor, &devices, i)?;
        }
        x.ready().await?;
        let took = start.elapsed().max(Duration::from_nanos(1));
        rates.push(count as f64 / took.as_secs_f64());
        if part == 0 {
            early = used();
        }
    }
    let grown = used()
        .into_iter()
        .zip(early)
        .map(|(late, early)| late - early);
    Ok((rates, grown.max().unwrap_or(0)))
}
