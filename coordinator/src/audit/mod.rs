//! The audit log: who was let in, who was refused, and what the owner changed, in a file of the state folder.
//!
//! ```text
//! record (anybody) -- queue, bounded -- one task -- lines, in order -- file (where it may block)
//! ```
//!
//! Invariants
//! 1. Recording an event neither waits nor fails. Events that the queue or the disk does not accept are counted, and
//!    the next line states their number.
//! 2. Lines are whole, and in the order in which the events were recorded.
//! 3. No secret is ever part of an [`Entry`].

mod entry;
mod file;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use convoke_common::admission::chain;
use convoke_common::identity::{PeerIdentity, TokenId};
use convoke_common::telemetry::LineLimit;
use convoke_common::world::{WallClock, World, off_thread};
use convoke_common::{Code, Error, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

pub use entry::{Entry, Event};
use file::AuditFile;

use convoke_common::tasks::Tasks;

/// How many events may wait for the disk; each takes a few hundred bytes.
const QUEUE: usize = 1024;

/// How many events are written in one batch.
const BATCH: usize = 256;

/// Most lines about the members of one token in a minute: more than a cluster has members.
const MEMBER_LINES: (u32, Duration) = (1000, Duration::from_secs(60));

/// How long the disk may take to show that it works.
const CHECK_BOUND: Duration = Duration::from_secs(5);

enum Message {
    Event {
        at: SystemTime,
        entry: Entry,
        /// The number of events before this one that found no place in the queue.
        lost: u64,
    },
    /// Asks whether the events recorded before this message were written.
    Check(oneshot::Sender<Result<()>>),
}

struct Inner {
    wall: Arc<dyn WallClock>,
    queue: mpsc::Sender<Message>,
    /// Events that found no place in the queue since the last one that did.
    lost: AtomicU64,
    members: MemberLines,
}

/// Limits the number of lines about the members of each token. Only tokens of the book have an entry, and the book is
/// bounded.
#[derive(Default)]
struct MemberLines(Mutex<BTreeMap<TokenId, LineLimit>>);

impl MemberLines {
    /// Same result as [`LineLimit::admit`], for this token.
    fn admit(&self, token: &TokenId, now: Instant) -> Option<u64> {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = || LineLimit::new(MEMBER_LINES.0, MEMBER_LINES.1);
        let limit = tokens.entry(token.clone()).or_insert_with(limit);
        limit.admit(now)
    }
}

/// The handle through which events are recorded; clones share one log. The default handle records nothing: it belongs
/// to a coordinator without a state folder.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<Inner>>);

impl Audit {
    /// Opens the log in a state folder and spawns the task that writes it.
    pub fn start(world: &World, tasks: &Tasks, folder: &Path) -> Audit {
        let (audit, writer) = Audit::new(world, folder);
        tasks.spawn_to_end(|stop| writer.run(stop));
        audit
    }

    fn new(world: &World, folder: &Path) -> (Audit, Writer) {
        let (tx, rx) = mpsc::channel(QUEUE);
        let inner = Inner {
            wall: world.wall.clone(),
            queue: tx,
            lost: AtomicU64::new(0),
            members: MemberLines::default(),
        };
        let writer = Writer {
            world: world.clone(),
            file: AuditFile::of(folder),
            queue: rx,
            lost: 0,
            trouble: None,
        };
        (Audit(Some(Arc::new(inner))), writer)
    }

    /// Queues a line about an event that happened now.
    pub fn record(&self, entry: Entry) {
        let Some(inner) = &self.0 else { return };
        let lost = inner.lost.swap(0, Ordering::Relaxed);
        let events = entry.events();
        let message = Message::Event {
            at: inner.wall.now(),
            entry,
            lost,
        };
        if inner.queue.try_send(message).is_err() {
            let lost = lost.saturating_add(events);
            if inner.lost.fetch_add(lost, Ordering::Relaxed) == 0 {
                tracing::warn!("the audit log takes events more slowly than they happen");
            }
        }
    }

    /// Queues a line about an action of a member, unless the members of its token exceed [`MEMBER_LINES`].
    pub fn record_of(&self, identity: &PeerIdentity, entry: Entry) {
        let Some(inner) = &self.0 else { return };
        match inner.members.admit(&identity.token_id, Instant::now()) {
            Some(0) => self.record(entry),
            Some(others) => self.record(entry.others(others)),
            None => {}
        }
    }

    /// Checks that all events recorded so far were written, and tries the disk again for that. The error gives the
    /// reason.
    pub async fn check(&self) -> Result<()> {
        let Some(inner) = &self.0 else { return Ok(()) };
        let behind = |why: &str| Error::new(Code::Io, format!("cannot write the audit log: {why}"));
        let (answer, answered) = oneshot::channel();
        let asked = inner.queue.try_send(Message::Check(answer));
        asked.map_err(|_| behind("more happens than the disk takes"))?;
        match timeout(CHECK_BOUND, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(behind("the coordinator is stopping")),
            Err(_) => Err(behind("the disk does not answer")),
        }
    }
}

/// The state of the task that owns the file.
struct Writer {
    world: World,
    file: AuditFile,
    queue: mpsc::Receiver<Message>,
    /// Events that were not written and that no line has counted yet.
    lost: u64,
    /// Why the last write failed; `None` after one that succeeded.
    trouble: Option<String>,
}

impl Writer {
    /// Writes events until `stop` is cancelled, then those that are still in the queue.
    async fn run(mut self, stop: CancellationToken) {
        loop {
            let first = tokio::select! {
                biased;
                () = stop.cancelled() => {
                    self.queue.close();
                    self.queue.try_recv().ok()
                }
                first = self.queue.recv() => first,
            };
            let Some(first) = first else { return };
            let mut batch = vec![first];
            while batch.len() < BATCH
                && let Ok(next) = self.queue.try_recv()
            {
                batch.push(next);
            }
            self.write(batch).await;
        }
    }

    async fn write(&mut self, batch: Vec<Message>) {
        let (mut lines, mut checks) = (String::new(), Vec::new());
        // `untold`: lost events that the next line must count. `all`: events that are lost if this batch is not
        // written.
        let (mut untold, mut all) = (self.lost, self.lost);
        for message in batch {
            match message {
                Message::Event { at, entry, lost } => {
                    untold = untold.saturating_add(lost);
                    all = all.saturating_add(lost).saturating_add(entry.events());
                    lines.extend(self.told(&mut untold));
                    lines.push_str(&entry.line(at));
                }
                Message::Check(answer) => checks.push(answer),
            }
        }
        // The batch may hold checks only: then the lost events are written as a line of their own.
        lines.extend(self.told(&mut untold));
        if !lines.is_empty() {
            let file = self.file.clone();
            let written = off_thread(&self.world.store, move |store| file.append(store, &lines));
            self.note(written.await.map_err(|e| chain(&e)), all);
        }
        for answer in checks {
            let written = self.trouble.as_ref().map_or(Ok(()), |why| {
                let msg = format!("{why}; the audit log lacks {} events", self.lost);
                Err(Error::new(Code::Io, msg))
            });
            // The receiver may have stopped waiting.
            let _ = answer.send(written);
        }
    }

    /// Returns the line that counts the lost events, if there are any, and resets the count.
    fn told(&self, untold: &mut u64) -> Option<String> {
        let events = std::mem::take(untold);
        let line = || {
            let entry = Entry::of(Event::EventsLost).others(events);
            entry.line(self.world.wall.now())
        };
        (events > 0).then(line)
    }

    /// Records whether a write succeeded. After a failure `all` events are lost.
    fn note(&mut self, written: std::result::Result<(), String>, all: u64) {
        let was_in_trouble = self.trouble.is_some();
        match written {
            Ok(()) => {
                if was_in_trouble {
                    let lost = self.lost;
                    tracing::info!(lost, "the audit log is written again");
                }
                (self.lost, self.trouble) = (0, None);
            }
            Err(why) => {
                if !was_in_trouble {
                    tracing::error!(error = why, "the audit log cannot be written");
                }
                (self.lost, self.trouble) = (all, Some(why));
            }
        }
    }
}
