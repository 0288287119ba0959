//! Files as artifacts: the BLAKE3 hashes of their chunks are computed in one sequential read at first use, and
//! remembered under the identity of the file.
//!
//! Invariants
//! 1. Remembered hashes are used only for the very same file: device, inode, length, and both times to the
//!    nanosecond. A list written within a second of the file's last change is not trusted, since a later
//!    change in the same tick of the clock would not show.
//! 2. Remembering is a shortcut: hashes that cannot be read from or written to the cache folder are computed again.
//! 3. A [`Source`] hands out bytes of the file that was hashed or an error, as far as times can tell; the
//!    reader's own check of the chunk's hash covers the rest.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use convoke_graph::artifact::{ArtifactMeta, CHUNK, ChunkHash};

use crate::error::ModelError;
use crate::file::{DataFile, Identity};

/// How far the hashing of files has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are hashed.
    pub done: u64,
    /// Bytes to hash; files whose hashes are remembered do not count.
    pub total: u64,
}

/// Called while files are hashed, from the thread that loads.
pub type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// The user's cache folder: `$XDG_CACHE_HOME/convoke` or `~/.cache/convoke`; `None` where neither is set.
pub fn default_cache_dir() -> Option<PathBuf> {
    let absolute = |name: &str, rest: &str| {
        let base = PathBuf::from(std::env::var_os(name)?);
        base.is_absolute().then(|| base.join(rest))
    };
    absolute("XDG_CACHE_HOME", "convoke").or_else(|| absolute("HOME", ".cache/convoke"))
}

/// A file from which ranges of weights are served.
#[derive(Debug, Clone)]
pub struct Source {
    path: PathBuf,
    identity: Identity,
    meta: ArtifactMeta,
}

impl Source {
    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The length, chunk hashes and id of the file.
    pub fn meta(&self) -> &ArtifactMeta {
        &self.meta
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Reads chunk `index`. Fails when the file is no longer the one that was hashed.
    pub fn read_chunk(&self, index: u64) -> Result<Vec<u8>, ModelError> {
        let file = DataFile::open(&self.path)?;
        if file.identity() != self.identity {
            return Err(ModelError::Changed {
                path: self.path.clone(),
            });
        }
        let len = self.meta.chunk_len(index) as u64;
        let bytes = file.bytes(index.saturating_mul(CHUNK).min(file.len()), len)?;
        file.check_unchanged()?;
        Ok(bytes)
    }
}

/// Computes and remembers chunk hashes.
#[derive(Debug, Clone)]
pub struct ArtifactIndex {
    /// The folder of remembered lists of hashes; `None` where nothing is remembered.
    dir: Option<PathBuf>,
    /// The folder that workers may share.
    root: Option<PathBuf>,
}

/// First bytes of a remembered list of hashes; the number changes with the format.
const MAGIC: &[u8; 16] = b"convoke-hashes-1";
/// How much older than its list a file's last change must be, in nanoseconds.
const SETTLED: i128 = 1_000_000_000;

impl ArtifactIndex {
    /// Creates an index that remembers lists of hashes under `cache_dir`. Workers get the path of a file relative to
    /// `root`, where the file is beneath it.
    pub fn new(cache_dir: Option<&Path>, root: Option<&Path>) -> ArtifactIndex {
        ArtifactIndex {
            dir: cache_dir.map(|d| d.join("hashes")),
            root: root.and_then(|r| r.canonicalize().ok()),
        }
    }

    /// Returns the files as artifacts, in the same order. Reads every file whose hashes are not remembered.
    pub fn sources(
        &self,
        paths: &[PathBuf],
        progress: Option<&(dyn Fn(Progress) + Send + Sync)>,
    ) -> Result<Vec<Source>, ModelError> {
        let mut known = Vec::with_capacity(paths.len());
        let mut total = 0u64;
        for path in paths {
            let identity = DataFile::open(path)?.identity();
            let hashes = self.recall(identity);
            if hashes.is_none() {
                total = total.saturating_add(identity.len);
            }
            known.push(hashes);
        }
        let mut done = 0;
        let mut report = |n: u64| {
            done += n;
            if let Some(p) = progress {
                p(Progress { done, total });
            }
        };
        paths
            .iter()
            .zip(known)
            .map(|(path, hashes)| {
                // Files are opened again, one at a time, since a model may consist of more files than a process may
                // have open.
                let file = DataFile::open(path)?;
                let hashes = match hashes {
                    Some(h) if h.len() as u64 == file.len().div_ceil(CHUNK) => h,
                    _ => {
                        let h = hash(&file, &mut report)?;
                        self.remember(file.identity(), &h);
                        h
                    }
                };
                let meta = ArtifactMeta::new(self.shared_path(path), file.len(), hashes);
                Ok(Source {
                    path: path.clone(),
                    identity: file.identity(),
                    meta,
                })
            })
            .collect()
    }

    /// The path relative to the shared folder; empty where the file is not in it.
    fn shared_path(&self, path: &Path) -> String {
        let relative = || {
            let path = path.canonicalize().ok()?;
            Some(
                path.strip_prefix(self.root.as_ref()?)
                    .ok()?
                    .to_str()?
                    .to_string(),
            )
        };
        relative().unwrap_or_default()
    }

    /// The name of the list of hashes for the file with this identity.
    fn entry(identity: Identity) -> String {
        blake3::hash(&identity.to_bytes()).to_hex()[..32].to_string()
    }

    fn recall(&self, identity: Identity) -> Option<Vec<ChunkHash>> {
        let file = DataFile::open(&self.dir.as_ref()?.join(Self::entry(identity))).ok()?;
        if file.identity().mtime < identity.ctime.saturating_add(SETTLED) {
            return None;
        }
        let head = [MAGIC.as_slice(), &identity.to_bytes()].concat();
        let body = identity.len.div_ceil(CHUNK).checked_mul(32)?;
        if file.len() != body.checked_add(head.len() as u64 + 32)? {
            return None;
        }
        let bytes = file.bytes(0, file.len()).ok()?;
        let (content, sum) = bytes.split_at(bytes.len() - 32);
        if !content.starts_with(&head) || blake3::hash(content).as_bytes() != sum {
            return None;
        }
        content[head.len()..]
            .chunks_exact(32)
            .map(|c| c.try_into().ok())
            .collect()
    }

    /// Writes the list of hashes. A failure is ignored, since the hashes are then computed again next time.
    fn remember(&self, identity: Identity, hashes: &[ChunkHash]) {
        let Some(dir) = &self.dir else { return };
        let mut content = [MAGIC.as_slice(), &identity.to_bytes()].concat();
        content.extend_from_slice(hashes.as_flattened());
        let sum = blake3::hash(&content);
        content.extend_from_slice(sum.as_bytes());
        let _ = std::fs::create_dir_all(dir).and_then(|()| {
            write_atomically(dir, |f| {
                f.write_all(&content).map(|()| Self::entry(identity))
            })
        });
    }
}

fn hash(file: &DataFile, report: &mut dyn FnMut(u64)) -> Result<Vec<ChunkHash>, ModelError> {
    let chunks = file.len().div_ceil(CHUNK);
    let mut hashes = Vec::new();
    let mut buf = vec![0; CHUNK.min(file.len()) as usize];
    for i in 0..chunks {
        let offset = i * CHUNK;
        let part = &mut buf[..CHUNK.min(file.len() - offset) as usize];
        file.read_at(offset, part)?;
        hashes.push(*blake3::hash(part).as_bytes());
        report(part.len() as u64);
    }
    file.check_unchanged()?;
    Ok(hashes)
}

/// Writes a file into the folder `dir` that appears completely or not at all; `write` fills it and returns its name.
pub(crate) fn write_atomically<E: From<std::io::Error>>(
    dir: &Path,
    write: impl FnOnce(&mut std::fs::File) -> Result<String, E>,
) -> Result<PathBuf, E> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let temp = dir.join(format!(".{}.{n}.part", std::process::id()));
    let result = (|| {
        let mut file = std::fs::File::create(&temp)?;
        let path = dir.join(write(&mut file)?);
        file.sync_all()?;
        std::fs::rename(&temp, &path)?;
        Ok(path)
    })();
    if result.is_err() {
        let _ = std::fs::remove_file(&temp);
    }
    result
}
