//! Disk, as a small set of verbs. Reads are positioned; nothing is ever mapped, so a file that shrinks is an error and
//! not a signal.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Job;

/// Who may read what is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileMode {
    /// 0644 for a file, 0755 for a folder, less the umask.
    Shared,
    /// 0600 for a file, 0700 for a folder.
    Secret,
}

/// What tells one version of a file from another: replaced, rewritten or grown files differ.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct FileIdentity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970.
    pub modified_ns: i128,
    /// Change time, nanoseconds since 1970: the one that a program cannot set.
    pub changed_ns: i128,
}

/// What a folder entry is.
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
    /// Its name in the folder.
    pub name: OsString,
    /// What it is; links are not followed.
    pub kind: EntryKind,
    /// Bytes, of a regular file.
    pub size: u64,
    /// When it was written or [touched](Store::touch) last, nanoseconds since 1970.
    pub modified_ns: i128,
}

/// Room on the file system that holds a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes in all.
    pub total: u64,
    /// Bytes that this process may still write.
    pub available: u64,
}

/// Why a file operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing there.
    #[error("{} does not exist", path.display())]
    NotFound {
        /// The path asked for.
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
        /// The path asked for, relative to it.
        relative: PathBuf,
    },
    /// A folder, pipe or device where a regular file is needed.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path asked for.
        path: PathBuf,
    },
    /// A folder or file that another user may change.
    #[error("{} is not safe to use: {reason}", path.display())]
    Unsafe {
        /// The path.
        path: PathBuf,
        /// Whose it is, or who may write it.
        reason: String,
    },
    /// Somebody else has it open for himself.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The path asked for.
        path: PathBuf,
    },
    /// Larger than the caller accepts; nothing was read.
    #[error("{} holds {size} bytes, more than the {limit} allowed", path.display())]
    TooLarge {
        /// The path asked for.
        path: PathBuf,
        /// Its size.
        size: u64,
        /// The caller's bound.
        limit: u64,
    },
    /// The file ends before the range does.
    #[error(
        "{} ends early: {wanted} bytes at offset {offset} were asked for and {got} are there; \
         the file is truncated or was changed while in use", path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where the range starts.
        offset: u64,
        /// Its length.
        wanted: usize,
        /// What there was of it.
        got: usize,
    },
    /// The operating system's error.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// The verb.
        operation: &'static str,
        /// The path it was applied to.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The thread that ran a blocking operation ended without a result.
    #[error("a blocking file operation was cut short by shutdown or a panic")]
    Interrupted,
}

impl StoreError {
    /// An I/O error, with absence as its own case.
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

    /// Whether the error is absence.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}

/// An open file.
pub trait StoreFile: Send + Sync {
    /// The path it was opened by, for messages.
    fn path(&self) -> &Path;

    /// Which version of the file this is, now.
    fn identity(&self) -> Result<FileIdentity, StoreError>;

    /// Reads into `out` from `offset`; fewer bytes than asked for mean the file's end.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, StoreError>;

    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), StoreError>;

    /// Cuts the file off at `length`, or fills it up to there with zeros.
    fn set_length(&self, length: u64) -> Result<(), StoreError>;

    /// Returns once all that was written would survive a power cut.
    fn sync(&self) -> Result<(), StoreError>;

    /// Fills `out` from `offset`, or says what is missing.
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

/// The disk. Every call blocks; [`off_thread`] is for callers that must not.
pub trait Store: Send + Sync {
    /// All bytes of a file no larger than `limit`.
    fn read(&self, path: &Path, limit: u64) -> Result<Vec<u8>, StoreError>;

    /// Replaces a file: after a crash it holds either all of the old or all of the new content.
    fn write_atomic(&self, path: &Path, bytes: &[u8], mode: FileMode) -> Result<(), StoreError>;

    /// Opens a regular file to read.
    fn open(&self, path: &Path) -> Result<Arc<dyn StoreFile>, StoreError>;

    /// Opens a regular file to read, beneath `root`: `relative` passes through no symbolic link and no `..`.
    fn open_beneath(&self, root: &Path, relative: &Path) -> Result<Arc<dyn StoreFile>, StoreError>;

    /// Makes a file that must not exist yet, to write and read.
    fn create(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn StoreFile>, StoreError>;

    /// Opens a regular file to read and write, and makes it where it is missing. Until the handle is dropped nobody
    /// else, of this process or another, opens it this way: that is [`StoreError::InUse`].
    fn open_exclusive(&self, path: &Path, mode: FileMode)
    -> Result<Arc<dyn StoreFile>, StoreError>;

    /// As [`Store::open_exclusive`], but waits for its turn where another process has the file locked: for a few seconds,
    /// after which that is [`StoreError::InUse`]. Nobody may hold it for longer than a short piece of work takes.
    fn lock(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn StoreFile>, StoreError>;

    /// Moves a file over another within one file system, at once for all who look. A power cut may undo it, and may leave
    /// the name with a part of the content where that was not synced.
    fn replace(&self, from: &Path, to: &Path) -> Result<(), StoreError>;

    /// Makes now the time at which a file was modified.
    fn touch(&self, path: &Path) -> Result<(), StoreError>;

    /// Moves a file over another within one file system, durably.
    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError>;

    /// The entries of a folder, by name.
    fn list(&self, folder: &Path) -> Result<Vec<DirEntry>, StoreError>;

    /// Removes a file. Absence is an error, see [`StoreError::is_not_found`].
    fn remove(&self, path: &Path) -> Result<(), StoreError>;

    /// Checks that nobody but this user and root can change a folder or file, or put another in its place: it and the folders
    /// above it are theirs and writable by nobody else (above it, folders with the sticky bit such as `/tmp` will do). A
    /// file may not even be read by others, since those that are checked hold secrets. What is missing is
    /// [`StoreError::NotFound`], what is unsafe [`StoreError::Unsafe`], with what to do.
    fn check_private(&self, path: &Path) -> Result<(), StoreError>;

    /// Makes a folder and those above it; one that exists is left as it is.
    fn create_dir(&self, path: &Path, mode: FileMode) -> Result<(), StoreError>;

    /// Room on the file system that holds `path`.
    fn disk_space(&self, path: &Path) -> Result<DiskSpace, StoreError>;

    /// Runs a job where it may block.
    fn run_blocking(&self, job: Job);
}

/// Runs a blocking use of the store away from the calling runtime's threads.
pub async fn off_thread<T: Send + 'static>(
    store: &Arc<dyn Store>,
    work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let (done, result) = tokio::sync::oneshot::channel();
    let inside = store.clone();
    store.run_blocking(Box::new(move || {
        // The receiver is gone when the caller stopped waiting; then nobody wants the result.
        let _ = done.send(work(inside.as_ref()));
    }));
    result.await.unwrap_or(Err(StoreError::Interrupted))
}
