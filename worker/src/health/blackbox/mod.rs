//! The black box: it notes the kernels that a worker process runs, so that the next process can report a kernel that
//! ended its process.
//!
//! ```text
//! state folder/black-box, mapped:   header: incarnation, signal, thread | records: thread, function, node
//! before a kernel: the thread's record is filled     after it: cleared       fatal signal: the header is marked
//! ```
//! A page of a file outlives its process whatever ends it, and writing to it costs as much as writing to memory: noting
//! a name of forty bytes takes 7 to 16 ns, measured.
//!
//! Only a fatal signal that the process raises itself marks the page: SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT,
//! including a stack overflow. A process that is killed from outside, for example by the kernel for lack of memory,
//! dies of SIGKILL, which no handler sees and no node is to blame for.
//!
//! Invariants
//! 1. A process has at most one black box, which stays mapped until it ends: a handler may need it at any time.
//! 2. A record has one writer, the thread that it belongs to.
//! 3. The page of the former process is read like a file from strangers: bounded, and checked.

mod page;
mod signals;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use convoke_common::ids::Incarnation;
use convoke_common::rpc::Death;
use convoke_graph::ids::FunctionId;

use page::{Page, RECORDS};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use page::{SIZE, parse};

/// The file's name in the state folder.
const FILE: &str = "black-box";

/// Number of records that threads have taken.
static TAKEN: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread's record and id; `None` before its first note.
    static OWN: Cell<Option<(u32, u32)>> = const { Cell::new(None) };
}

/// The page of a worker process, and the deaths that the page of the former process tells of.
#[derive(Debug)]
pub struct BlackBox {
    /// The page's file; `None` where fatal signals are simulated.
    path: Option<PathBuf>,
    deaths: Vec<Death>,
    page: OnceLock<Page>,
}

/// The note of a running kernel, which is cleared when it is dropped.
pub struct NoteGuard<'a> {
    page: &'a Page,
    record: u32,
}

impl Drop for NoteGuard<'_> {
    fn drop(&mut self) {
        self.page.clear(self.record);
    }
}

impl BlackBox {
    /// Reads the page that the former process with this state folder left. No other process may use the folder.
    pub fn open(state_dir: &Path) -> BlackBox {
        let path = state_dir.join(FILE);
        BlackBox {
            deaths: page::read(&path),
            page: OnceLock::new(),
            path: Some(path),
        }
    }

    /// A box without a page, which notes nothing and tells of these deaths: simulation decides itself what ends a process.
    pub fn of_deaths(deaths: Vec<Death>) -> BlackBox {
        BlackBox {
            deaths,
            page: OnceLock::new(),
            path: None,
        }
    }

    /// The kernels that ran when a signal killed the former process.
    pub fn deaths(&self) -> &[Death] {
        &self.deaths
    }

    /// Maps a fresh page for this process, in place of the former one. To be called once the deaths are reported, and
    /// before a kernel runs. Fails where the process has a page already.
    pub fn begin(&self, incarnation: Incarnation) -> io::Result<()> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        signals::claim()?;
        let page = Page::map(path)?;
        page.begin(incarnation);
        let page = self.page.get_or_init(|| page);
        signals::mark(page)
    }

    /// Notes that this thread runs a kernel. `None` before [`BlackBox::begin`], and for threads beyond the number of
    /// records.
    pub fn note(&self, function: &FunctionId, node: &str) -> Option<NoteGuard<'_>> {
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
        Some(NoteGuard { page, record })
    }

    /// Removes the file, because the process ends in order.
    pub fn remove(&self) {
        let Some(path) = self.path.as_ref().filter(|_| self.page.get().is_some()) else {
            return;
        };
        if let Err(e) = std::fs::remove_file(path) {
            tracing::warn!("cannot remove {}: {e}", path.display());
        }
    }
}
