use std::sync::atomic::AtomicBool;

use convoke_common::world::NoCompute;
use serde_json::Value;

use super::*;
use crate::filling::FillableDisk;
use crate::service::testing::Scratch;

/// An audit log on a disk that can be full.
struct Rig {
    world: World,
    scratch: Scratch,
    is_full: Arc<AtomicBool>,
}

impl Rig {
    fn new() -> Rig {
        let store = FillableDisk::new();
        Rig {
            is_full: store.is_full.clone(),
            world: World {
                store: Arc::new(store),
                ..World::real(Arc::new(NoCompute))
            },
            scratch: Scratch::new(),
        }
    }

    fn audit(&self) -> (Audit, Tasks) {
        let tasks = Tasks::new(self.world.clone());
        let audit = Audit::start(&self.world, &tasks, self.scratch.path());
        (audit, tasks)
    }

    fn fill(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    /// Returns event, name and count of each line.
    fn lines(&self) -> Vec<(String, String, u64)> {
        let text = std::fs::read_to_string(self.scratch.path().join("audit.log"));
        let text = text.unwrap_or_default();
        assert!(text.is_empty() || text.ends_with('\n'), "{text}");
        let parts = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
            let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
            (
                text("event"),
                text("name"),
                line["others"].as_u64().unwrap_or(0),
            )
        };
        text.lines().map(parts).collect()
    }
}

fn of(name: &str) -> Entry {
    Entry::of(Event::Joined).name(name)
}

fn expected(lines: &[(&str, &str, u64)]) -> Vec<(String, String, u64)> {
    let owned = |(e, n, o): &(&str, &str, u64)| ((*e).to_owned(), (*n).to_owned(), *o);
    lines.iter().map(owned).collect()
}

#[tokio::test]
async fn what_was_recorded_is_written_in_order_also_when_the_coordinator_stops() {
    let rig = Rig::new();
    let (audit, tasks) = rig.audit();
    ["a", "b"].iter().for_each(|name| audit.record(of(name)));
    audit.check().await.unwrap();
    assert_eq!(
        rig.lines(),
        expected(&[("joined", "a", 0), ("joined", "b", 0)])
    );
    // Several batches are still queued when the task is told to stop.
    (0..3 * BATCH).for_each(|n| audit.record(of(&n.to_string())));
    tasks.stop().await;
    let lines = rig.lines();
    assert_eq!(lines.len(), 2 + 3 * BATCH);
    assert!(
        (2..)
            .zip(0..3 * BATCH)
            .all(|(line, n)| lines[line].1 == n.to_string())
    );
    audit.record(of("late"));
    assert!(audit.check().await.is_err(), "nobody writes any more");
}

#[tokio::test]
async fn a_disk_that_was_full_is_used_again_and_what_it_missed_is_counted() {
    let rig = Rig::new();
    let (audit, _tasks) = rig.audit();
    audit.record(of("a"));
    audit.check().await.unwrap();
    rig.fill(true);
    audit.record(of("b"));
    let refused = Error::new(Code::Unauthorized, "no");
    // This entry stands for itself and four more events.
    audit.record(of("c").refused(&refused, 4));
    for _ in 0..2 {
        let error = audit.check().await.unwrap_err();
        assert_eq!(error.code, Code::Io);
        assert!(error.message.contains("audit.log"), "{error}");
        assert!(error.message.ends_with("lacks 6 events"), "{error}");
    }
    rig.fill(false);
    audit.record(of("d"));
    audit.check().await.unwrap();
    let told = [
        ("joined", "a", 0),
        ("events_lost", "", 6),
        ("joined", "d", 0),
    ];
    assert_eq!(rig.lines(), expected(&told));
    // If no event follows, a check finds out that the disk works again.
    rig.fill(true);
    audit.record(of("e"));
    audit.check().await.unwrap_err();
    rig.fill(false);
    audit.check().await.unwrap();
    let lines = rig.lines();
    assert_eq!(lines[3..], expected(&[("events_lost", "", 1)]));
    audit.check().await.unwrap();
    assert_eq!(rig.lines().len(), lines.len(), "it is told once");
}

#[tokio::test]
async fn events_beyond_what_may_wait_are_counted_and_nobody_waits() {
    let rig = Rig::new();
    let (audit, writer) = Audit::new(&rig.world, rig.scratch.path());
    (0..QUEUE + 3).for_each(|n| audit.record(of(&n.to_string())));
    let error = audit.check().await.unwrap_err();
    assert!(error.message.contains("more happens"), "{error}");
    let stop = CancellationToken::new();
    let writing = tokio::spawn(writer.run(stop.clone()));
    while audit.check().await.is_err() {
        tokio::task::yield_now().await;
    }
    audit.record(of("last"));
    audit.check().await.unwrap();
    stop.cancel();
    writing.await.unwrap();
    let lines = rig.lines();
    assert_eq!(lines.len(), QUEUE + 2);
    let end = [("events_lost", "", 3), ("joined", "last", 0)];
    assert_eq!(lines[QUEUE..], expected(&end));
}

#[test]
fn members_that_do_much_leave_the_lines_of_others() {
    let (lines, start) = (MemberLines::default(), Instant::now());
    let [busy, other] = ["busy", "other"].map(|t| t.parse::<TokenId>().unwrap());
    let most = MEMBER_LINES.0;
    let admitted = (0..most + 5).filter_map(|_| lines.admit(&busy, start));
    assert_eq!(admitted.count(), most as usize);
    assert_eq!(lines.admit(&other, start), Some(0));
    assert_eq!(lines.admit(&busy, start + MEMBER_LINES.1), Some(5));
}
