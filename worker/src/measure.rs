//! How fast this worker's device is, measured once at start: the placer balances by it.

use std::hint::black_box;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use convoke_kernels::Exec;
use convoke_kernels::gemm::{Epilogue, Lhs, Rhs, Strided, gemm};
use tokio::time::Instant;

/// Edge of the square product: large enough to be bound by arithmetic, done in about a millisecond.
const EDGE: usize = 256;
/// Bytes of the copy: beyond the second-level cache.
const COPY: usize = 8 << 20;

/// FLOP/s of a matrix product and bytes/s of a copy. Measured once per process and thread count.
pub fn measure(threads: Option<&rayon::ThreadPool>) -> (f64, f64) {
    static KNOWN: OnceLock<(f64, f64)> = OnceLock::new();
    let one = *KNOWN.get_or_init(|| (product(), copy()));
    // Copies share the memory bus; products scale with threads.
    (
        one.0 * threads.map_or(1, |p| p.current_num_threads()) as f64,
        one.1,
    )
}

fn product() -> f64 {
    let flag = AtomicBool::new(false);
    let a = vec![1.0f32; EDGE * EDGE];
    let mut c = vec![0.0f32; EDGE * EDGE];
    let mut best = f64::MAX;
    for _ in 0..3 {
        let start = Instant::now();
        let exec = Exec::single(&flag);
        let m = Strided::row_major(&a, EDGE);
        let sizes = (EDGE, EDGE, EDGE);
        let done = gemm(
            exec,
            sizes,
            Lhs::Strided(m),
            Rhs::Strided(m),
            &mut c,
            &Epilogue::NONE,
        );
        debug_assert!(done.is_ok(), "nobody cancels");
        best = best.min(start.elapsed().as_secs_f64());
    }
    black_box(&c);
    2.0 * (EDGE * EDGE * EDGE) as f64 / best.max(1e-9)
}

fn copy() -> f64 {
    let from = vec![1u8; COPY];
    let mut to = vec![0u8; COPY];
    let mut best = f64::MAX;
    for _ in 0..2 {
        let start = Instant::now();
        to.copy_from_slice(black_box(&from));
        best = best.min(start.elapsed().as_secs_f64());
    }
    black_box(&to);
    2.0 * COPY as f64 / best.max(1e-9)
}
