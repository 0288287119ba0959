//! Files: their identities, positioned reads, and a buffered reader that never reads beyond the end of the file.

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::ModelError;

/// The identity of a file's content: equal identities mean equal bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub dev: u64,
    pub ino: u64,
    pub len: u64,
    /// The time of the last change of the content, in nanoseconds since the epoch.
    pub mtime: i128,
    /// The time of the last change of the inode, in nanoseconds since the epoch.
    pub ctime: i128,
}

impl Identity {
    pub(crate) fn of(m: &Metadata) -> Identity {
        let ns = |s: i64, n: i64| i128::from(s) * 1_000_000_000 + i128::from(n);
        Identity {
            dev: m.dev(),
            ino: m.ino(),
            len: m.size(),
            mtime: ns(m.mtime(), m.mtime_nsec()),
            ctime: ns(m.ctime(), m.ctime_nsec()),
        }
    }

    /// The identity in a fixed encoding, for cache keys.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(56);
        for v in [self.dev, self.ino, self.len] {
            out.extend_from_slice(&v.to_le_bytes());
        }
        for v in [self.mtime, self.ctime] {
            out.extend_from_slice(&v.to_le_bytes());
        }
        out
    }
}

/// An open regular file.
#[derive(Debug)]
pub(crate) struct DataFile {
    path: PathBuf,
    file: File,
    identity: Identity,
}

impl DataFile {
    /// Opens a regular file. Pipes, folders and devices are refused before they are opened, since opening a pipe would
    /// block.
    pub(crate) fn open(path: &Path) -> Result<DataFile, ModelError> {
        let io = |source| ModelError::Io {
            path: path.into(),
            action: "open",
            source,
        };
        let meta = std::fs::metadata(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => ModelError::Missing { path: path.into() },
            _ => io(e),
        })?;
        if !meta.is_file() {
            return Err(ModelError::NotAFile { path: path.into() });
        }
        let file = File::open(path).map_err(io)?;
        let identity = Identity::of(&file.metadata().map_err(io)?);
        Ok(DataFile {
            path: path.into(),
            file,
            identity,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    pub(crate) fn len(&self) -> u64 {
        self.identity.len
    }

    /// Fills `buf` with the bytes at `offset`.
    pub(crate) fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), ModelError> {
        self.file
            .read_exact_at(buf, offset)
            .map_err(|source| match source.kind() {
                // Callers read within the length that the file had when it was opened, so the file has shrunk.
                std::io::ErrorKind::UnexpectedEof => ModelError::Changed {
                    path: self.path.clone(),
                },
                _ => ModelError::Io {
                    path: self.path.clone(),
                    action: "read",
                    source,
                },
            })
    }

    /// Reads `len` bytes at `offset`. Fails where they do not lie inside the file.
    pub(crate) fn bytes(&self, offset: u64, len: u64) -> Result<Vec<u8>, ModelError> {
        let truncated = || ModelError::Truncated {
            path: self.path.clone(),
            at: offset,
            need: len,
            len: self.len(),
        };
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(truncated());
        }
        let mut out = vec![0; usize::try_from(len).map_err(|_| truncated())?];
        self.read_at(offset, &mut out)?;
        Ok(out)
    }

    /// Fails when the file is no longer the one that was opened.
    pub(crate) fn check_unchanged(&self) -> Result<(), ModelError> {
        let now = self.file.metadata().map_err(|source| ModelError::Io {
            path: self.path.clone(),
            action: "inspect",
            source,
        })?;
        if Identity::of(&now) != self.identity {
            return Err(ModelError::Changed {
                path: self.path.clone(),
            });
        }
        Ok(())
    }
}

/// A buffered reader over a [`DataFile`] that can seek.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    file: &'a DataFile,
    buf: Vec<u8>,
    /// File offset of `buf[0]`.
    start: u64,
    pos: u64,
}

/// Bytes that are read ahead.
const WINDOW: u64 = 64 << 10;

impl<'a> Reader<'a> {
    pub(crate) fn new(file: &'a DataFile) -> Reader<'a> {
        Reader {
            file,
            buf: Vec::new(),
            start: 0,
            pos: 0,
        }
    }

    pub(crate) fn file(&self) -> &'a DataFile {
        self.file
    }

    pub(crate) fn pos(&self) -> u64 {
        self.pos
    }

    /// Moves to file offset `pos` without reading.
    pub(crate) fn seek(&mut self, pos: u64) {
        self.pos = pos;
    }

    /// Returns the next bytes, at most up to `end`, without consuming them: at least one, unless the position is at
    /// `end`. `end` must lie inside the file.
    pub(crate) fn peek(&mut self, end: u64) -> Result<&[u8], ModelError> {
        let have = self.start..self.start + self.buf.len() as u64;
        if !have.contains(&self.pos) {
            let len = WINDOW.min(self.file.len().saturating_sub(self.pos));
            // The length is at most WINDOW, so the conversion is lossless.
            self.buf.resize(len as usize, 0);
            self.start = self.pos;
            if let Err(e) = self.file.read_at(self.pos, &mut self.buf) {
                self.buf.clear();
                return Err(e);
            }
        }
        let from = (self.pos - self.start) as usize;
        let most = usize::try_from(end.saturating_sub(self.pos)).unwrap_or(usize::MAX);
        let avail = &self.buf[from..];
        Ok(&avail[..avail.len().min(most)])
    }

    /// Consumes `n` bytes without reading them.
    pub(crate) fn skip(&mut self, n: u64) {
        self.pos = self.pos.saturating_add(n);
    }

    /// Appends the `n` bytes at the position, which lie inside the file, to `out`.
    pub(crate) fn copy(&mut self, n: u64, out: &mut Vec<u8>) -> Result<(), ModelError> {
        let end = self.pos + n;
        while self.pos < end {
            let part = self.peek(end)?;
            if part.is_empty() {
                return Err(ModelError::Changed {
                    path: self.file.path().into(),
                });
            }
            out.extend_from_slice(part);
            let len = part.len() as u64;
            self.skip(len);
        }
        Ok(())
    }
}
