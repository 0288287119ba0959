//! Bounded scratch memory of each thread, kept between calls.
//!
//! Invariant: a thread never holds more than [`SCRATCH_LEN`] values of scratch memory and [`BLOCK_LEN`] for a block, whatever the
//! shapes.

use std::cell::RefCell;

/// The most values of scratch that a kernel may ask for: a panel of B (320 × 48) and a block of A (512 × 320). The
/// values that a thread uses at one time fit its level-2 cache.
pub(crate) const SCRATCH_LEN: usize = (512 + 48) * 320;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// The most values of a block that is computed by another kernel, which has scratch memory of its own. They fit a level-2 cache
/// or lie next to it.
pub(crate) const BLOCK_LEN: usize = 1 << 18;

thread_local! {
    static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
    static BLOCK: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` with `len` values of this thread's scratch memory, which are aligned to 64 bytes and of unspecified content. Calls
/// must not be nested.
pub(crate) fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    assert!(len <= SCRATCH_LEN);
    SCRATCH.with_borrow_mut(|lines| f(values(lines, len)))
}

/// Runs `f`, which may call [`with_scratch`], with `len` values of this thread's memory for blocks, which are aligned to 64 bytes
/// and of unspecified content. Calls must not be nested.
pub(crate) fn with_block<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    assert!(len <= BLOCK_LEN);
    BLOCK.with_borrow_mut(|lines| f(values(lines, len)))
}

fn values(lines: &mut Vec<Line>, len: usize) -> &mut [f32] {
    if lines.len() * 16 < len {
        lines.resize(len.div_ceil(16), Line([0.0; 16]));
    }
    // SAFETY: `Line` is `repr(C)` over sixteen f32, so `len` of them are initialised.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), len) }
}
