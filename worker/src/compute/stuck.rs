//! A watch over the compute threads: a crew that stands still although it has the turn will never end its job.
//!
//! A thread that computes uses the processor, or waits for it. A crew of which no thread has done either for [`BOUND`]
//! is stuck: a thread of it is stopped, or waits for something that does not come. The watch needs nothing of kernels,
//! so that it holds wherever a thread stands still, in a kernel or outside of one.

use std::time::Duration;

use tokio::time::Instant;

use super::Crew;

/// How long the threads of a crew that has the turn may stand still.
const BOUND: Duration = Duration::from_secs(6);
/// Longest time between two looks. A longer one says nothing of the threads: the process itself was stopped.
const LATE: Duration = Duration::from_secs(2);

/// The state of a thread at one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ThreadSample {
    /// Whether the thread uses the processor, or waits for it.
    runs: bool,
    /// Whether the thread sleeps: it is idle, or waits for another thread.
    sleeps: bool,
    /// Processor time that the thread has used, in clock ticks.
    used: u64,
}

/// Remembers what the threads of the crew with the turn have used, and since when.
#[derive(Default)]
pub(super) struct Watch {
    /// The turn at the last look, and the ticks that its threads had used.
    seen: Option<(u64, u64)>,
    since: Option<Instant>,
    before: Option<Instant>,
}

impl Watch {
    /// Looks at the crew that has the turn; returns the name of a thread of it that stands still for good.
    pub(super) fn look(&mut self, crew: Option<&Crew>, turn: u64, now: Instant) -> Option<String> {
        let threads = crew.filter(|l| !l.is_excused()).map(Crew::threads);
        let threads = threads.unwrap_or_default();
        let seen = threads.iter().map(|(id, _)| seen(*id));
        // Where the system does not tell, nothing is known of the threads.
        let seen: Vec<ThreadSample> = seen.collect::<Option<_>>().unwrap_or_default();
        if !self.stands_still(&seen, turn, now) {
            return None;
        }
        // Threads that sleep may only wait for the thread that stands still.
        let at = seen.iter().position(|t| !t.sleeps).unwrap_or(0);
        Some(threads.get(at)?.1.clone())
    }

    fn stands_still(&mut self, threads: &[ThreadSample], turn: u64, now: Instant) -> bool {
        let before = self.before.replace(now);
        let late = before.is_none_or(|b| now.saturating_duration_since(b) > LATE);
        let used = threads.iter().map(|t| t.used).sum();
        let lively = threads.is_empty() || threads.iter().any(|t| t.runs);
        if late || lively || self.seen != Some((turn, used)) {
            self.seen = Some((turn, used));
            self.since = Some(now);
        }
        let since = self.since.unwrap_or(now);
        now.saturating_duration_since(since) >= BOUND
    }
}

/// The calling thread's id, as the system numbers it.
pub(super) fn this_thread() -> Option<u32> {
    let link = std::fs::read_link("/proc/thread-self").ok()?;
    link.file_name()?.to_str()?.parse().ok()
}

/// The state of a thread of this process, by `proc(5)`.
fn seen(thread: u32) -> Option<ThreadSample> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    parse(&text)
}

fn parse(stat: &str) -> Option<ThreadSample> {
    // The fields come behind the name, which may contain anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let mut ticks = fields.skip(10).map_while(|f| f.parse::<u64>().ok());
    let used = ticks.next()?.saturating_add(ticks.next()?);
    Some(ThreadSample {
        runs: state == "R",
        sleeps: state == "S",
        used,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_words_are_understood() {
        let stat = "77 (a) b) S 1 2 3 0 -1 64 10 0 0 0 123 45 0 0 20 0 9 0 100";
        let want = ThreadSample {
            runs: false,
            sleeps: true,
            used: 168,
        };
        assert_eq!(parse(stat), Some(want));
        assert_eq!(parse("77 (a"), None);
        let me = seen(this_thread().unwrap()).unwrap();
        assert!(me.runs);
    }

    /// Looks twice a second at one thread, given its turn, whether it runs and what it has used. Returns the look at
    /// which it counts as stuck.
    fn check(looks: impl IntoIterator<Item = (u64, bool, u64)>, gap: u64) -> Option<usize> {
        let mut watch = Watch::default();
        let start = Instant::now();
        let mut looks = looks.into_iter().enumerate();
        let found = looks.find(|(i, (turn, runs, used))| {
            let late = if *i > 6 { gap } else { 0 };
            let at = start + Duration::from_millis(500 * *i as u64) + Duration::from_secs(late);
            let seen = ThreadSample {
                runs: *runs,
                sleeps: false,
                used: *used,
            };
            watch.stands_still(&[seen], *turn, at)
        });
        found.map(|(i, _)| i)
    }

    #[test]
    fn only_a_thread_that_neither_runs_nor_ends_its_job_is_stuck() {
        assert_eq!(check((0..40).map(|_| (1, false, 7)), 0), Some(12));
        // The thread runs, waits for the processor, or has had another job.
        assert_eq!(check((0..40).map(|i| (1, false, i / 9)), 0), None);
        assert_eq!(check((0..40).map(|i| (1, i % 9 == 0, 7)), 0), None);
        assert_eq!(check((0..40).map(|i| (i / 9, false, 7)), 0), None);
        // The process was stopped for a minute.
        assert_eq!(check((0..40).map(|_| (1, false, 7)), 60), Some(19));
        // No crew has the turn, or nothing is known of its threads.
        let mut watch = Watch::default();
        let start = Instant::now();
        let at = |i: u64| start + Duration::from_millis(500 * i);
        assert!((0..40).all(|i| !watch.stands_still(&[], 1, at(i))));
    }
}
