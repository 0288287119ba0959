//! Runs the entries of targets and measures how much memory they allocate. The fuzzer uses this file, and so do the
//! tests that replay the corpora, which include it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use convoke_common::fuzzing::Target;

#[global_allocator]
static METER: Meter = Meter;

/// Bytes that are allocated now, and the most that were allocated at once since the last [`peak_of`] began.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Meter;

/// Counts a request of memory before it is known to succeed, so that a request that fails counts for the peak.
fn asked(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Relaxed).saturating_add(bytes);
    PEAK.fetch_max(live, Relaxed);
}

fn counted(at: *mut u8, bytes: usize) -> *mut u8 {
    if at.is_null() {
        LIVE.fetch_sub(bytes, Relaxed);
    }
    at
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        asked(layout.size());
        // SAFETY: the caller keeps the same contract.
        counted(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        asked(layout.size());
        // SAFETY: as above.
        counted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        asked(size);
        // SAFETY: as above.
        let new = counted(unsafe { System.realloc(old, layout, size) }, size);
        if !new.is_null() {
            LIVE.fetch_sub(layout.size(), Relaxed);
        }
        new
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Runs `work`, and returns its result and the most bytes that it had allocated at once.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let value = work();
    (value, PEAK.load(Relaxed).saturating_sub(before))
}

/// Runs the entry of a target. Panics where the entry panics, or allocates more than the target's budget.
pub fn run(target: &Target, input: &[u8]) {
    let (_, peak) = peak_of(|| (target.entry)(input));
    let budget = target.budget.bytes(input.len());
    assert!(
        peak <= budget,
        "{} bytes of input took {peak} bytes of memory at once; the budget of '{}' is {budget}",
        input.len(),
        target.name,
    );
}

/// Runs the entry of each target on each file of its corpus. Panics with the list of files that fail.
pub fn replay(targets: &[Target]) {
    let corpora = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus"));
    let mut failed = Vec::new();
    for target in targets {
        let files = files(&corpora.join(target.name));
        assert!(!files.is_empty(), "'{}' has no corpus", target.name);
        for file in files {
            let input = std::fs::read(&file).expect("a file of the corpus");
            if catch_unwind(AssertUnwindSafe(|| run(target, &input))).is_err() {
                failed.push(file);
            }
        }
    }
    assert!(failed.is_empty(), "these inputs fail: {failed:#?}");
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
    files.sort();
    files
}
