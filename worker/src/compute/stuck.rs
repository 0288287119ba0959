//! A watch over the compute threads: a crew that stands still although it has a turn will never end its job.
//!
//! A thread that computes uses the processor, or waits for it. A crew of which no thread has done either for [`BOUND`]
//! is stuck: a thread of it is stopped, or waits for something that does not come. The watch needs nothing of kernels,
//! so that it holds wherever a thread stands still, in a kernel or outside of one.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::Crew;

/// How long the threads of a crew that has a turn may stand still.
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

/// The processor time of a crew's threads when it was last seen to grow, and since when it has not grown.
struct StandingStill {
    used: u64,
    since: Instant,
}

/// Remembers the crews that have a turn, by the number of their turn.
#[derive(Default)]
pub(super) struct Watch {
    seen: BTreeMap<u64, StandingStill>,
    before: Option<Instant>,
}

impl Watch {
    /// Looks at the crews that have a turn; returns the turn of one that stands still for good, and the name of its
    /// thread.
    pub(super) fn look<'a>(
        &mut self,
        crews: impl Iterator<Item = (u64, &'a Crew)>,
        now: Instant,
    ) -> Option<(u64, String)> {
        let crews = crews.filter(|(_, crew)| !crew.is_excused());
        let crews: Vec<_> = crews.map(|(turn, crew)| (turn, crew.threads())).collect();
        let samples = |(turn, threads): &(u64, Vec<(u32, String)>)| {
            // Where the system does not tell, nothing is known of the threads.
            let seen = threads.iter().map(|(id, _)| seen(*id));
            (*turn, seen.collect::<Option<_>>().unwrap_or_default())
        };
        let samples: Vec<(u64, Vec<ThreadSample>)> = crews.iter().map(samples).collect();
        let at = self.stands_still(&samples, now)?;
        // Threads that sleep may only wait for the thread that stands still.
        let thread = samples[at].1.iter().position(|t| !t.sleeps).unwrap_or(0);
        let (turn, threads) = crews.get(at)?;
        Some((*turn, threads.get(thread)?.1.clone()))
    }

    /// The place of the turn whose threads stand still for good.
    fn stands_still(&mut self, turns: &[(u64, Vec<ThreadSample>)], now: Instant) -> Option<usize> {
        let before = self.before.replace(now);
        let late = before.is_none_or(|b| now.saturating_duration_since(b) > LATE);
        let is_there = |turn: &u64| turns.iter().any(|(there, _)| there == turn);
        self.seen.retain(|turn, _| is_there(turn));
        let mut stuck = None;
        for (at, (turn, threads)) in turns.iter().enumerate() {
            let used = threads.iter().map(|t| t.used).sum();
            let lively = threads.is_empty() || threads.iter().any(|t| t.runs);
            let fresh = StandingStill { used, since: now };
            let still = self.seen.entry(*turn).or_insert(fresh);
            if late || lively || still.used != used {
                *still = StandingStill { used, since: now };
            }
            if now.saturating_duration_since(still.since) >= BOUND {
                stuck = stuck.or(Some(at));
            }
        }
        stuck
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

    /// Looks at one thread twice a second. Each look gives the number of its turn, whether it runs, and the processor
    /// time that it has used. Returns the look at which the thread counts as stuck.
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
            // Beside a job that runs.
            let busy = ThreadSample { runs: true, ..seen };
            watch.stands_still(&[(0, vec![busy]), (*turn, vec![seen])], at) == Some(1)
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
        let none = |i: u64| watch.stands_still(&[], at(i)).is_none();
        assert!((0..40).all(none));
        let mut watch = Watch::default();
        let unknown = |i: u64| watch.stands_still(&[(1, vec![])], at(i)).is_none();
        assert!((0..40).all(unknown));
    }
}
