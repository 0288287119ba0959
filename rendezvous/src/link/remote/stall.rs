//! When a tensor that is arriving counts as stalled.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The interval at which arriving tensors are checked for progress.
pub const STALL_BOUND: Duration = Duration::from_secs(10);
/// The least number of bytes that must arrive within [`STALL_BOUND`], of any tensor on the link: streams share the link
/// by priority, so a healthy tensor may have to wait while others arrive.
pub const LEAST_BYTES: u64 = 64 << 10;

/// Returns when too few bytes of tensors arrive over a link; `link` counts those bytes.
pub(crate) async fn stalled(link: &AtomicU64) {
    let mut before = link.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(STALL_BOUND).await;
        let now = link.load(Ordering::Relaxed);
        if now - before < LEAST_BYTES {
            return;
        }
        before = now;
    }
}
