//! The speed of this worker's device, measured at start: the placer predicts times and balances work by it.
//!
//! Invariants
//! 1. The measured product is like those of models: packed weights, a few hundred rows, on the threads that steps run
//!    on. Running it also leaves code, stacks and the threads' scratch memory as steps need them, so that the base
//!    footprint, which is taken afterwards, includes them.
//! 2. The shortest of many repetitions counts: other processes use the machine too, and the first repetitions wake it
//!    up.
//! 3. Repetitions are bounded in number as well as in time, since time may be virtual.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use convoke_kernels::Exec;
use convoke_kernels::gemm::{
    Epilogue, Lhs, PackedB, Rhs, Strided, gemm, pack_b_into, packed_b_len,
};
use rayon::prelude::*;
use tokio::time::Instant;

/// Rows, columns and depth of the product: a layer of a transformer, or of a convolution in the middle of a network.
const SIZES: (usize, usize, usize) = (192, 768, 384);
/// Bytes that are read; few, since they count towards the peak of a process that should stay small.
const READ: usize = 4 << 20;
/// Words that one thread reads in one piece, and words of a cache line.
const PART: usize = 16 << 10;
const LINE: usize = 8;
/// Repetitions of each measurement, at least and at most.
const TURNS: (usize, usize) = (4, 64);
/// Turns of which each begins when the threads sleep, and the time that they are given to fall asleep.
const IDLE_TURNS: usize = 9;
const IDLE: Duration = Duration::from_micros(500);
/// The least and the longest time that counts as brief. A machine that is busy at start is not so for ever, and the thread
/// that has the operands has other work as well.
const BRIEF: (Duration, Duration) = (Duration::from_micros(40), Duration::from_micros(250));
/// Time after which the least number of repetitions is enough.
const LONG_ENOUGH: Duration = Duration::from_millis(10);

/// The measured speed of a pool of threads.
#[derive(Debug, Clone, Copy)]
pub struct Speed {
    /// FLOP/s of a matrix product on the pool's threads.
    pub flops: f64,
    /// Bytes/s of reading memory that no cache holds.
    pub bandwidth: f64,
    /// The longest time of work that is no faster on these threads than on the caller's own, since handing it over takes
    /// time as well.
    pub brief: Duration,
}

/// The speed of a pool, measured once per process and number of threads.
pub fn measure(pool: &rayon::ThreadPool) -> Speed {
    static KNOWN: Mutex<BTreeMap<usize, Speed>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let speed = known.entry(pool.current_num_threads());
    *speed.or_insert_with(|| {
        let (flops, bandwidth) = pool.install(|| (product(pool), reading()));
        Speed {
            flops,
            bandwidth,
            brief: brief(turnaround(pool), pool.current_num_threads()),
        }
    })
}

/// The time `t` with `t = turnaround + t / threads`, within bounds.
fn brief(turnaround: Duration, threads: usize) -> Duration {
    let longest = match threads {
        0 | 1 => BRIEF.1,
        n => turnaround * n as u32 / (n as u32 - 1),
    };
    longest.clamp(BRIEF.0, BRIEF.1)
}

/// The time from starting a job while the threads sleep until the caller, which waits, hears of its end. It is the median
/// of some turns: a turn that a thread spends awake, or waits for a processor, says nothing of the others.
fn turnaround(pool: &rayon::ThreadPool) -> Duration {
    let mut turns: Vec<Duration> = (0..IDLE_TURNS)
        .map(|_| {
            // The threads fall asleep meanwhile, as they do between steps.
            std::thread::park_timeout(IDLE);
            let start = Instant::now();
            pool.install(|| ());
            start.elapsed()
        })
        .collect();
    turns.sort_unstable();
    turns[IDLE_TURNS / 2]
}

/// Seconds of the shortest turn; each turn is prepared before its time begins.
fn shortest(mut prepare: impl FnMut(), mut turn: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::MAX;
    for n in 0..TURNS.1 {
        if n >= TURNS.0 && start.elapsed() >= LONG_ENOUGH {
            break;
        }
        prepare();
        let start = Instant::now();
        turn();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best.max(1e-9)
}

fn product(pool: &rayon::ThreadPool) -> f64 {
    let (m, n, k) = SIZES;
    let flag = AtomicBool::new(false);
    let a = vec![1.0f32; m * k];
    let mut packed = vec![0.0f32; packed_b_len(k, n)];
    // The same row is used again and again.
    pack_b_into(&mut packed, Strided::row_major(&vec![1.0f32; n], 0), k, n);
    let mut c = vec![0.0f32; m * n];
    let seconds = shortest(
        || (),
        || {
            let a = Lhs::Strided(Strided::row_major(&a, k));
            let b = Rhs::Packed(PackedB::new(&packed, k, n));
            let exec = Exec::pooled(pool, &flag);
            let done = gemm(exec, SIZES, a, b, &mut c, &Epilogue::NONE);
            debug_assert!(done.is_ok(), "nobody cancels");
        },
    );
    black_box(&c);
    2.0 * (m * n * k) as f64 / seconds
}

/// Bytes/s of reading uncached memory: steps read each weight once, and it rarely stays in a cache until the next step.
fn reading() -> f64 {
    let buffer = vec![1u64; READ / size_of::<u64>()];
    let sum = |part: &[u64]| part.iter().fold(0u64, |sum, x| sum.wrapping_add(*x));
    let seconds = shortest(
        || evict(&buffer),
        || {
            black_box(buffer.par_chunks(PART).map(sum).sum::<u64>());
        },
    );
    READ as f64 / seconds
}

/// Drops a buffer from all caches, so that a small one stands for a large one.
#[cfg(target_arch = "x86_64")]
fn evict(buffer: &[u64]) {
    use std::arch::x86_64::{_mm_clflush, _mm_mfence};
    for line in buffer.chunks(LINE) {
        // SAFETY: the instruction is part of the baseline of x86-64 and changes no contents; the address is the
        // buffer's.
        unsafe { _mm_clflush(line.as_ptr().cast()) };
    }
    // SAFETY: the instruction is part of the baseline of x86-64.
    unsafe { _mm_mfence() };
}

/// Drops a buffer from all caches, so that a small one stands for a large one.
#[cfg(target_arch = "aarch64")]
fn evict(buffer: &[u64]) {
    for line in buffer.chunks(LINE) {
        // SAFETY: Linux allows the instruction to programs, and it changes no contents; the address is the buffer's.
        unsafe {
            std::arch::asm!("dc civac, {}", in(reg) line.as_ptr(), options(nostack, preserves_flags))
        };
    }
    // SAFETY: a barrier touches no memory.
    unsafe { std::arch::asm!("dsb ish", options(nostack, preserves_flags)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the longest brief time, in microseconds, for a turnaround and a number of threads.
    fn check_brief(turnaround: u64, threads: usize, want: u64) {
        let brief = brief(Duration::from_micros(turnaround), threads);
        assert_eq!(
            brief,
            Duration::from_micros(want),
            "{turnaround}, {threads}"
        );
    }

    #[test]
    fn brief_work_is_no_faster_on_all_threads() {
        check_brief(60, 2, 120);
        check_brief(90, 4, 120);
        check_brief(100, 101, 101);
        // Within bounds, and as long as possible where nothing is divided.
        check_brief(5, 2, 40);
        check_brief(1_000, 2, 250);
        check_brief(60, 1, 250);
    }
}
