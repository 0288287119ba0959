//! Looks up what a member's network threads look up by a key, such as a lease for each frame, in three kinds of maps: one
//! behind a mutex, one behind a lock for many readers, and a `DashMap`. Each thread looks up keys of its own, as links of
//! different peers do.
//!
//! `cargo bench -p convoke-rendezvous --bench lookups`

#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier, Mutex, RwLock};
use std::time::Instant;

use dashmap::DashMap;

/// Entries of each map: the leases of a busy worker.
const ENTRIES: u64 = 64;
/// Lookups of each thread in one measurement.
const LOOKUPS: u64 = 200_000;
/// Measurements of each map, in turns.
const TURNS: usize = 15;

/// A value whose count of references shares no line of the cache with that of another.
#[repr(align(128))]
struct Apart(u64);

type Value = Arc<Apart>;
type Lookup<'a> = &'a (dyn Fn(u64) -> Value + Sync);

/// Nanoseconds of a lookup, while this many threads look up as fast as they can.
fn measure(threads: u64, lookup: Lookup<'_>) -> f64 {
    let begin = Barrier::new(threads as usize);
    let times = std::thread::scope(|scope| {
        let run = |thread| {
            let begin = &begin;
            scope.spawn(move || {
                begin.wait();
                let start = Instant::now();
                for i in 0..LOOKUPS {
                    let key = (i * threads + thread) % ENTRIES;
                    std::hint::black_box(lookup(key).0);
                }
                start.elapsed()
            })
        };
        let all: Vec<_> = (0..threads).map(run).collect();
        let times = all.into_iter().map(|t| t.join().unwrap().as_secs_f64());
        times.fold(0., f64::max)
    });
    times * 1e9 / LOOKUPS as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let entries = || (0..ENTRIES).map(|key| (key, Arc::new(Apart(key))));
    let mutex: Mutex<BTreeMap<u64, Value>> = Mutex::new(entries().collect());
    let readers: RwLock<BTreeMap<u64, Value>> = RwLock::new(entries().collect());
    let dash: DashMap<u64, Value> = entries().collect();
    let maps: [(&str, Lookup<'_>); 3] = [
        ("Mutex<BTreeMap>", &|key| {
            mutex.lock().unwrap()[&key].clone()
        }),
        ("RwLock<BTreeMap>", &|key| {
            readers.read().unwrap()[&key].clone()
        }),
        ("DashMap", &|key| dash.get(&key).unwrap().clone()),
    ];
    println!("| map of {ENTRIES} | 1 thread | 2 threads | 4 threads |\n|---|---|---|---|");
    let mut all = maps.map(|_| [const { vec![] }; 3]);
    for _ in 0..TURNS {
        for ((_, lookup), times) in maps.iter().zip(&mut all) {
            for (threads, times) in [1, 2, 4].into_iter().zip(times) {
                times.push(measure(threads, *lookup));
            }
        }
    }
    for ((name, _), times) in maps.iter().zip(all) {
        let [one, two, four] = times.map(median);
        println!("| `{name}` | {one:.0} ns | {two:.0} ns | {four:.0} ns |");
    }
}
