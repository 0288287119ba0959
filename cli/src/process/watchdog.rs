//! A watchdog over the network thread, which runs on a thread of its own.
//!
//! Kernels of programs that are predicted to be brief run on the network thread. If one does not return, everything
//! that would notice is blocked too: the process neither answers nor ends. Its peers give it up within seconds; the
//! watchdog ends it, so that its supervisor restarts it as a new incarnation.

use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::text::failure::Failure;
use crate::text::output;

/// How long the network thread may be blocked. By then, peers have given up the process.
const BOUND: Duration = Duration::from_secs(10);
/// How often the network thread gives a sign of life, and how often the watchdog looks for one.
const PERIOD: Duration = Duration::from_millis(500);

/// Decides whether the network thread has been blocked for too long. If the whole process was suspended, the watchdog
/// itself comes late, which proves nothing about the network thread: the time then starts anew.
struct Watch {
    seen: u64,
    since: Duration,
    before: Duration,
}

impl Watch {
    /// Takes the number of the thread's signs of life so far, at time `now`; returns whether the bound is exceeded.
    fn is_away(&mut self, signs: u64, now: Duration) -> bool {
        let late = now.saturating_sub(self.before) > 4 * PERIOD;
        self.before = now;
        if late || signs != self.seen {
            (self.seen, self.since) = (signs, now);
        }
        now - self.since > BOUND
    }
}

/// Starts a watchdog over the thread that polls the returned future, until the future is dropped.
#[allow(clippy::disallowed_methods, reason = "a binary provides threads")]
pub fn start() -> Result<impl Future<Output = ()>, Failure> {
    let signs = Arc::new(AtomicU64::new(0));
    let weak = Arc::downgrade(&signs);
    let watch = move || {
        let start = Instant::now();
        let mut watch = Watch {
            seen: 0,
            since: Duration::ZERO,
            before: Duration::ZERO,
        };
        while let Some(signs) = weak.upgrade() {
            if watch.is_away(signs.load(Ordering::Relaxed), start.elapsed()) {
                output::note(&format!(
                    "error: the network's thread has not answered for {BOUND:?}: a kernel on it does not return"
                ));
                exit(1);
            }
            drop(signs);
            std::thread::sleep(PERIOD);
        }
    };
    let thread = std::thread::Builder::new()
        .name("convoke-watchdog".into())
        .spawn(watch);
    thread.map_err(|e| Failure::io("cannot start a thread", &e))?;
    Ok(async move {
        loop {
            tokio::time::sleep(PERIOD).await;
            signs.fetch_add(1, Ordering::Relaxed);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds (signs of life, time in seconds) to a watch, and checks the time at which the thread first counts as
    /// blocked.
    fn check(signs: &[(u64, f64)], away_at: Option<f64>) {
        let mut watch = Watch {
            seen: 0,
            since: Duration::ZERO,
            before: Duration::ZERO,
        };
        let mut looks = signs.iter();
        let away = looks.find(|(signs, at)| watch.is_away(*signs, Duration::from_secs_f64(*at)));
        assert_eq!(away.map(|(_, at)| *at), away_at);
    }

    #[test]
    fn only_a_thread_that_stays_away_is_noticed() {
        let half = |n: u64| n as f64 / 2.0;
        let lively: Vec<_> = (0..100).map(|n| (n / 3, half(n))).collect();
        check(&lively, None);
        let away: Vec<_> = (0..100).map(|n| (n.min(20), half(n))).collect();
        check(&away, Some(20.5));
        // The process is suspended for a minute, and continues.
        let gap = |n: u64| if n > 12 { 60.0 } else { 0.0 };
        let stopped: Vec<_> = (0..30)
            .map(|n| (n.min(10) + n / 15, half(n) + gap(n)))
            .collect();
        check(&stopped, None);
    }
}
