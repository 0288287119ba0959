//! Disk, as a small set of verbs. Reads give a position; nothing is ever mapped, so a file that shrinks causes an error
//! and not a signal.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Job;

/// The users who may read a file or folder that is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileMode {
    /// 0644 for a file, 0755 for a folder, less the umask.
    Shared,
    /// 0600 for a file, 0700 for a folder.
    Secret,
}

/// What distinguishes one version of a file from another: it changes when the file is replaced, rewritten or grows.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct FileIdentity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970.
    pub modified_ns: i128,
    /// Change time, nanoseconds since 1970: unlike the modification time, a program cannot set it.
    pub changed_ns: i128,
}

/// What kind of entry a folder holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A link, pipe, socket or device.
    Other,
}

/// One entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The entry's name in the folder.
    pub name: OsString,
    /// What the entry is; links are not followed.
    pub kind: EntryKind,
    /// Length of a regular file, in bytes.
    pub size: u64,
    /// When the entry was last written or [touched](Store::touch), in nanoseconds since 1970.
    pub modified_ns: i128,
}

/// Space on the file system that holds a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Size of the file system, in bytes.
    pub total: u64,
    /// Bytes that this process may still write.
    pub available: u64,
}

/// Why a file operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The path does not exist.
    #[error("{} does not exist", path.display())]
    NotFound {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The path would leave the folder it is resolved in, or passes through a link.
    #[error(
        "{} is refused: it must stay inside {} and pass through no symbolic link; \
         copy the file there, or name its real place",
        relative.display(), root.display()
    )]
    Escapes {
        /// The folder that bounds the resolution.
        root: PathBuf,
        /// The path that was asked for, relative to the root.
        relative: PathBuf,
    },
    /// The path is a folder, pipe or device where a regular file is needed.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// Another user may change the folder or file.
    #[error("{} is not safe to use: {reason}", path.display())]
    Unsafe {
        /// The unsafe path.
        path: PathBuf,
        /// The user who owns the path, or those who may write to it.
        reason: String,
    },
    /// Another process, or another part of this one, has the file open exclusively.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The file is larger than the caller accepts; nothing was read.
    #[error("{} holds {size} bytes, more than the {limit} allowed", path.display())]
    TooLarge {
        /// The path that was asked for.
        path: PathBuf,
        /// The size of the file, in bytes.
        size: u64,
        /// The caller's bound, in bytes.
        limit: u64,
    },
    /// The file ends before the end of the range.
    #[error(
        "{} ends early: {wanted} bytes at offset {offset} were asked for and {got} are there; \
         the file is truncated or was changed while in use", path.display()
    )]
    Truncated {
        /// The path of the file.
        path: PathBuf,
        /// The offset at which the range starts, in bytes.
        offset: u64,
        /// The length of the range, in bytes.
        wanted: usize,
        /// How many bytes of the range the file has.
        got: usize,
    },
    /// The operating system refused the operation.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// What could not be done, beginning with a verb.
        operation: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The thread that ran a blocking operation ended without a result.
    #[error("a blocking file operation was cut short by shutdown or a panic")]
    Interrupted,
}

impl StoreError {
    /// The error of an I/O operation; a missing path has its own variant.
    pub fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound { path },
            _ => Self::Io {
                operation,
                path,
                source,
            },
        }
    }

    /// Whether the error is that the path does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}

/// An open file.
pub trait StoreFile: Send + Sync {
    /// The path by which the file was opened, for messages.
    fn path(&self) -> &Path;

    /// Identifies the current version of the file.
    fn identity(&self) -> Result<FileIdentity, StoreError>;

    /// Reads into `out` from `offset`, and returns the number of bytes; fewer than `out` holds mean the file's end.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, StoreError>;

    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), StoreError>;

    /// Cuts the file off at `length`, or extends it to that length with zeros.
    fn set_length(&self, length: u64) -> Result<(), StoreError>;

    /// Returns once everything that was written would survive a power cut.
    fn sync(&self) -> Result<(), StoreError>;

    /// Fills `out` from `offset`, or fails with [`StoreError::Truncated`].
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        let got = self.read_at(offset, out)?;
        if got == out.len() {
            return Ok(());
        }
        Err(StoreError::Truncated {
            path: self.path().to_owned(),
            offset,
            wanted: out.len(),
            got,
        })
    }
}

/// The disk. Every call blocks; [`off_thread`] is for callers that must not block.
pub trait Store: Send + Sync {
    /// Reads all bytes of a file that is no larger than `limit`.
    fn read(&self, path: &Path, limit: u64) -> Result<Vec<u8>, StoreError>;

    /// Replaces a file: after a crash it holds either all of the old or all of the new content.
    fn write_atomic(&self, path: &Path, bytes: &[u8], mode: FileMode) -> Result<(), StoreError>;

    /// Opens a regular file to read.
    fn open(&self, path: &Path) -> Result<Arc<dyn StoreFile>, StoreError>;

    /// Opens a regular file beneath `root` to read: `relative` may pass through no symbolic link and no `..`.
    fn open_beneath(&self, root: &Path, relative: &Path) -> Result<Arc<dyn StoreFile>, StoreError>;

    /// Makes a file that must not exist yet, for writing and reading.
    fn create(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn StoreFile>, StoreError>;

    /// Opens a regular file for reading and writing, and makes it if it is missing. Until the handle is dropped,
    /// another exclusive open, by this process or another, fails with [`StoreError::InUse`].
    fn open_exclusive(&self, path: &Path, mode: FileMode)
    -> Result<Arc<dyn StoreFile>, StoreError>;

    /// Like [`Store::open_exclusive`], but while another process has the file locked it waits for a few seconds, and
    /// then fails with [`StoreError::InUse`]. A lock may be held only for a short piece of work.
    fn lock(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn StoreFile>, StoreError>;

    /// Moves a file over another within one file system; for all observers the change is atomic. A power cut may undo
    /// it, or leave a part of the content under the name if the content was not synced.
    fn replace(&self, from: &Path, to: &Path) -> Result<(), StoreError>;

    /// Sets a file's modification time to the current time.
    fn touch(&self, path: &Path) -> Result<(), StoreError>;

    /// Moves a file over another within one file system, and makes the move durable.
    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError>;

    /// The entries of a folder, sorted by name.
    fn list(&self, folder: &Path) -> Result<Vec<DirEntry>, StoreError>;

    /// Removes a file. A missing file is an error, see [`StoreError::is_not_found`].
    fn remove(&self, path: &Path) -> Result<(), StoreError>;

    /// Checks that only this user and root can change a folder or file, or put another in its place: they own it and
    /// the folders above it, and nobody else may write to them (folders above it may have the sticky bit instead, such
    /// as `/tmp`). Others may not even read a file, since the files that are checked hold secrets. Fails with
    /// [`StoreError::NotFound`] if the path is missing, and with [`StoreError::Unsafe`], which says what to do, if
    /// others can change it.
    fn check_private(&self, path: &Path) -> Result<(), StoreError>;

    /// Makes a folder and the folders above it; a folder that exists stays unchanged.
    fn create_dir(&self, path: &Path, mode: FileMode) -> Result<(), StoreError>;

    /// The space on the file system that holds `path`.
    fn disk_space(&self, path: &Path) -> Result<DiskSpace, StoreError>;

    /// Runs a job on a thread that it may block.
    fn run_blocking(&self, job: Job);
}

/// Runs a blocking use of the store off the calling runtime's threads.
pub async fn off_thread<T: Send + 'static>(
    store: &Arc<dyn Store>,
    work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let (done, result) = tokio::sync::oneshot::channel();
    let inside = store.clone();
    store.run_blocking(Box::new(move || {
        // The receiver is gone if the caller stopped waiting; then nobody wants the result.
        let _ = done.send(work(inside.as_ref()));
    }));
    result.await.unwrap_or(Err(StoreError::Interrupted))
}
