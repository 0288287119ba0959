//! What the tests of several kernels share: executors, and data with awkward values.

use crate::Exec;
use crate::element::Number;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

static RUNNING: AtomicBool = AtomicBool::new(false);

static POOLS: LazyLock<Vec<rayon::ThreadPool>> = LazyLock::new(|| {
    [2, 3, 7]
        .map(|n| {
            rayon::ThreadPoolBuilder::new()
                .num_threads(n)
                .build()
                .expect("threads start")
        })
        .into()
});

/// One thread, never cancelled.
pub fn exec() -> Exec<'static> {
    Exec::single(&RUNNING)
}

/// Calls `test` with executors of 1, 2, 3 and 7 threads.
pub fn each_exec(test: impl Fn(&Exec)) {
    test(&exec());
    for pool in POOLS.iter() {
        test(&Exec::pooled(pool, &RUNNING));
    }
}

/// Deterministic numbers, uniform in [-1, 1).
pub fn uniform(n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect()
}

/// `n` elements spread over [-scale, scale), starting `skew` elements into their buffer by the caller's choice.
pub fn random<T: Number>(n: usize, scale: f64, seed: u64) -> Vec<T> {
    uniform(n, seed)
        .into_iter()
        .map(|x| T::from_f64(x * scale))
        .collect()
}

/// Bit patterns, with every NaN alike: payloads are not specified.
pub fn bits<T: Number>(values: &[T]) -> Vec<u64> {
    values
        .iter()
        .map(|&x| {
            if x.is_nan() {
                u64::MAX
            } else {
                x.to_f64().to_bits()
            }
        })
        .collect()
}

/// Checks that a kernel on one thread stops in the middle of its work once it is cancelled. `run` takes long.
#[allow(
    clippy::disallowed_methods,
    reason = "what stops a kernel is another thread, in real time"
)]
pub fn check_stops(run: impl Fn(&Exec) -> Result<(), crate::KernelError>) {
    let start = std::time::Instant::now();
    run(&exec()).expect("runs");
    let whole = start.elapsed();
    let stops = || {
        let cancel = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                std::thread::sleep(whole / 20);
                cancel.store(true, Ordering::Relaxed);
            });
            let start = std::time::Instant::now();
            let result = run(&Exec::single(&cancel));
            matches!(result, Err(crate::KernelError::Cancelled(_))) && start.elapsed() < whole / 2
        })
    };
    // The other thread may be late on a busy machine, but not each time.
    assert!((0..20).any(|_| stops()), "goes on for {whole:?}");
}
