//! The black box: what a worker process computed when a defect ended it, for the next process to report.
//!
//! ```text
//! state folder/black-box, mapped:   header: incarnation, signal, thread | records: thread, function, node
//! before a kernel: the thread's record is filled     after it: cleared       fatal signal: the header is marked
//! ```
//! A page of a file outlives its process whatever ends it, and writing to it costs as much as writing to memory: a note
//! of a name of forty bytes takes 7 to 16 ns, measured.
//!
//! Only a fatal signal that the process raises itself marks the page: SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, stack
//! overflow included. A process that is killed from outside, by the kernel for want of memory too, dies of SIGKILL,
//! which no handler sees and no node is to blame for.
//!
//! Invariants
//! 1. A process has at most one black box, mapped until it ends: a handler may need it at any time.
//! 2. A record has one writer: the thread that it belongs to.
//! 3. What the former process left is read as any file of strangers: bounded, and checked.

mod page;
mod signals;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use convoke_common::ids::{FunctionId, Incarnation};
use convoke_common::rpc::Death;

use page::{Page, RECORDS};
pub(crate) use page::{SIZE, parse};

/// The file's name in the state folder.
const FILE: &str = "black-box";

/// Records that threads have taken.
static TAKEN: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread's record and id, once it has noted something.
    static OWN: Cell<Option<(u32, u32)>> = const { Cell::new(None) };
}

/// See the module.
#[derive(Debug)]
pub struct BlackBox {
    path: PathBuf,
    deaths: Vec<Death>,
    page: OnceLock<Page>,
}

/// A note, cleared on drop.
pub struct Noted<'a> {
    page: &'a Page,
    record: u32,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.page.clear(self.record);
    }
}

impl BlackBox {
    /// Reads what the former process with this state folder left. The folder must be this process's alone.
    pub fn open(state_dir: &Path) -> BlackBox {
        let path = state_dir.join(FILE);
        BlackBox {
            deaths: page::read(&path),
            page: OnceLock::new(),
            path,
        }
    }

    /// What the former process died of.
    pub fn deaths(&self) -> &[Death] {
        &self.deaths
    }

    /// Maps a fresh page for this process, in place of what the former left: to be called once that is reported, and
    /// before a kernel runs. Fails where the process has one already.
    pub fn begin(&self, incarnation: Incarnation) -> io::Result<()> {
        signals::claim()?;
        let page = Page::map(&self.path)?;
        page.begin(incarnation);
        let page = self.page.get_or_init(|| page);
        signals::mark(page)
    }

    /// Notes that this thread runs a kernel. `None` before [`BlackBox::begin`], and for threads beyond the number of
    /// records.
    pub fn note(&self, function: &FunctionId, node: &str) -> Option<Noted<'_>> {
        let page = self.page.get()?;
        let (record, thread) = OWN.with(|own| match own.get() {
            Some(known) => known,
            None => {
                let new = (TAKEN.fetch_add(1, Ordering::Relaxed), signals::thread());
                own.set(Some(new));
                new
            }
        });
        if record >= RECORDS {
            return None;
        }
        page.fill(record, thread, function, node);
        Some(Noted { page, record })
    }

    /// Removes the file: the process ends as it should.
    pub fn remove(&self) {
        if self.page.get().is_none() {
            return;
        }
        if let Err(e) = std::fs::remove_file(&self.path) {
            tracing::warn!("cannot remove {}: {e}", self.path.display());
        }
    }
}
