//! The page itself: its layout, and which thread may touch what.
//!
//! ```text
//! header  256 bytes: magic u64 | incarnation u64 | signal u32 | thread u32 | zero
//! record  256 bytes: length u32 (0: none) | thread u32 | function 32 bytes | name 216 bytes
//! ```
//! Integers are in the machine's own byte order: the file stays on the machine.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use convoke_common::ids::Incarnation;
use convoke_common::rpc::Death;
use convoke_graph::ids::FunctionId;

use super::signals::FATAL;

/// Number of threads of a process that can each note a kernel at once.
pub const RECORDS: u32 = 63;

/// Bytes of a record, and of the header.
const RECORD: usize = 256;

/// The offsets of a record's parts.
const FUNCTION: usize = 8;
const NAME: usize = 40;

/// Most bytes of a name; of a longer one the end is kept, which tells nodes apart.
const LONGEST: usize = RECORD - NAME;

/// Size of the page in bytes.
pub const SIZE: usize = RECORD * (1 + RECORDS as usize);
const MAGIC: u64 = u64::from_ne_bytes(*b"cvkbox\x00\x01");

/// The header's fields.
#[repr(C)]
struct Header {
    magic: AtomicU64,
    incarnation: AtomicU64,
    signal: AtomicU32,
    thread: AtomicU32,
}

/// A page that is mapped for the life of the process.
#[derive(Debug, Clone, Copy)]
pub struct Page(NonNull<u8>);

// SAFETY: the mapping is never undone. The header is atomic; a record is written by one thread only (invariant 2 of the
// module above) and read by no thread of this process.
unsafe impl Send for Page {}
// SAFETY: the reasons for `Send` hold here as well.
unsafe impl Sync for Page {}

impl Page {
    /// Creates the file anew and maps it.
    pub fn map(path: &Path) -> io::Result<Page> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        // The file is written and not only sized: a page without a block of its own would raise SIGBUS on a full disk.
        file.write_all(&[0; SIZE])?;
        file.sync_data()?;
        // SAFETY: this is a fresh mapping at an address that the kernel chooses, of a file that is SIZE long.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast::<u8>());
        let page = Page(at.ok_or_else(|| io::Error::other("mapped at address zero"))?);
        page.header().magic.store(MAGIC, Ordering::Relaxed);
        Ok(page)
    }

    /// The address of the page, for the signal handler.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// # Safety
    /// `at` must be a pointer from [`Page::as_ptr`], or null.
    pub unsafe fn from_ptr(at: *mut u8) -> Option<Page> {
        NonNull::new(at).map(Page)
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping begins with the header, is aligned to a page, and lives for ever; any bytes that are
        // stored there, zeros included, are valid atomics.
        unsafe { self.0.cast::<Header>().as_ref() }
    }

    pub fn begin(&self, incarnation: Incarnation) {
        self.header()
            .incarnation
            .store(incarnation.0, Ordering::Relaxed);
    }

    /// Notes that this thread raised this fatal signal; the first one counts. Safe in a signal handler.
    pub fn mark(&self, signal: u32, thread: u32) {
        let header = self.header();
        let first = header
            .signal
            .compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_ok() {
            header.thread.store(thread, Ordering::Relaxed);
        }
    }

    fn record(&self, record: u32) -> *mut u8 {
        assert!(record < RECORDS);
        // SAFETY: the address is inside the mapping, since RECORDS records follow the header.
        unsafe { self.0.as_ptr().add(RECORD * (1 + record as usize)) }
    }

    fn length(&self, record: u32) -> &AtomicU32 {
        // SAFETY: the word is aligned, inside the mapping, alive for ever, and touched as an atomic only.
        unsafe { AtomicU32::from_ptr(self.record(record).cast::<u32>()) }
    }

    /// Fills the record of the calling thread.
    pub fn fill(&self, record: u32, thread: u32, function: &FunctionId, node: &str) {
        let from = node.ceil_char_boundary(node.len().saturating_sub(LONGEST));
        let name = &node.as_bytes()[from..];
        let at = self.record(record);
        // SAFETY: the parts lie inside the record, which no other thread writes or reads; the name is no longer than
        // its part.
        unsafe {
            at.add(4).cast::<u32>().write(thread);
            ptr::copy_nonoverlapping(function.0.as_ptr(), at.add(FUNCTION), 32);
            ptr::copy_nonoverlapping(name.as_ptr(), at.add(NAME), name.len());
        }
        // The record counts once its length is stored.
        self.length(record)
            .store(name.len() as u32, Ordering::Release);
    }

    /// Clears the record of the calling thread.
    pub fn clear(&self, record: u32) {
        self.length(record).store(0, Ordering::Release);
    }
}

/// The deaths that a process left in the file; none where there is no such file, or it is invalid.
pub fn read(path: &Path) -> Vec<Death> {
    let Ok(file) = std::fs::File::open(path) else {
        return vec![];
    };
    let mut bytes = Vec::new();
    match file.take(SIZE as u64).read_to_end(&mut bytes) {
        Ok(SIZE) => parse(&bytes),
        _ => vec![],
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    four.map_or(0, u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let eight = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    eight.map_or(0, u64::from_ne_bytes)
}

/// The kernels that ran when the process died. If the thread that raised the signal ran one, it is the only one
/// returned; otherwise that thread may have helped with any of them.
pub fn parse(bytes: &[u8]) -> Vec<Death> {
    let signal = u32_at(bytes, 16) as i32;
    if u64_at(bytes, 0) != MAGIC || !FATAL.contains(&signal) {
        return vec![];
    }
    let incarnation = Incarnation(u64_at(bytes, 8));
    let dying = u32_at(bytes, 20);
    let records = bytes[RECORD..].chunks_exact(RECORD);
    let noted = records.filter_map(|r| {
        let length = u32_at(r, 0) as usize;
        let name = r.get(NAME..NAME + length).filter(|n| !n.is_empty())?;
        let name = String::from_utf8_lossy(name).into_owned();
        let function = r[FUNCTION..NAME].try_into().ok()?;
        let death = Death {
            incarnation,
            signal,
            function: FunctionId(function),
            node: name.replace(char::is_control, "\u{fffd}"),
        };
        Some((u32_at(r, 4), death))
    });
    let noted: Vec<(u32, Death)> = noted.collect();
    let own = noted.iter().find(|(thread, _)| *thread == dying);
    match own {
        Some((_, death)) => vec![death.clone()],
        None => noted.into_iter().map(|(_, death)| death).collect(),
    }
}
