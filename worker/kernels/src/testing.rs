//! Executors, test data and checks that the tests of several kernels share.

use crate::Exec;
use crate::element::Number;
use std::cell::Cell;
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

/// An executor with one thread that is never cancelled.
pub fn exec() -> Exec<'static> {
    Exec::single(&RUNNING)
}

/// Calls `test` with executors of 1, 2, 3 and 7 threads.
pub fn each_exec(mut test: impl FnMut(&Exec)) {
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

/// `n` deterministic elements, spread over [-scale, scale).
pub fn random<T: Number>(n: usize, scale: f64, seed: u64) -> Vec<T> {
    uniform(n, seed)
        .into_iter()
        .map(|x| T::from_f64(x * scale))
        .collect()
}

/// The bit patterns of `values` as `f64`, with one pattern for every NaN, since payloads are not specified.
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

thread_local! {
    /// How often this thread has checked a cancel flag, and the number of checks after which a check sets the flag.
    static LOOKS: Cell<(usize, usize)> = const { Cell::new((0, usize::MAX)) };
}

/// Counts a kernel's check of its cancel flag, and sets the flag when the chosen number of checks was reached.
pub fn looks_at(cancel: &AtomicBool) {
    let (before, most) = LOOKS.get();
    LOOKS.set((before + 1, most));
    if before == most {
        cancel.store(true, Ordering::Relaxed);
    }
}

/// Checks that a kernel on one thread checks its cancel flag throughout its work, and stops soon after the flag is set.
/// `run` must take long enough for twenty checks.
pub fn check_stops(run: impl Fn(&Exec) -> Result<(), crate::KernelError>) {
    let looks = |most| {
        let cancel = AtomicBool::new(false);
        LOOKS.set((0, most));
        let result = run(&Exec::single(&cancel));
        (result, LOOKS.replace((0, usize::MAX)).0)
    };
    let (result, whole) = looks(usize::MAX);
    result.expect("runs");
    assert!(whole >= 20, "looks only {whole} times");
    for at in [0, whole / 20, whole / 2, whole - 1] {
        let (result, seen) = looks(at);
        let cancelled = matches!(result, Err(crate::KernelError::Cancelled(_)));
        // Each level of loops may check once more before it ends.
        let stops = seen <= at + 8;
        assert!(
            cancelled && stops,
            "cancelled at {at}, goes on to {seen} of {whole}"
        );
    }
}
