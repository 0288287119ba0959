//! The artifact cache: chunks of weights on disk, under their hashes, in a folder that workers of one user may share.
//!
//! Invariants
//! 1. A chunk is verified when it is read: a chunk that the disk has changed is fetched again, never used.
//! 2. A chunk gets its name once it is whole. Names are hashes, so that two workers that write one chunk write the same
//!    bytes, and none removes a chunk because another worker was faster.
//! 3. The folder holds no more than the bound. A worker writes under the folder's lock, and counts every file; the
//!    chunk that no worker has used for longest is evicted first, but never one that an installed program of this
//!    worker pins.
//! 4. Losing the cache costs time only; writes are not synced. A problem is warned of once, however many chunks it
//!    concerns.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::world::{EntryKind, FileMode, Store, StoreError, StoreFile};
use convoke_graph::artifact::{CHUNK, ChunkHash};

/// The lock file: its holder may write and remove chunks. It contains the bytes of all chunks, as eight bytes,
/// little-endian.
const LOCK: &str = "lock";

/// The file of a chunk before it gets its name. Only one worker writes at a time.
const PART: &str = "part";

/// The chunks that a worker keeps on its disk, up to a bound.
pub struct Cache {
    store: Arc<dyn Store>,
    folder: PathBuf,
    bound: u64,
    index: Mutex<Index>,
    /// Makes the threads of this process take turns before they lock the file.
    writing: Mutex<()>,
    warned: AtomicBool,
}

/// The index of the chunks in the folder.
#[derive(Default)]
struct Index {
    chunks: HashMap<ChunkHash, CacheEntry>,
    /// Bytes of the chunks that are on disk.
    bytes: u64,
}

struct CacheEntry {
    bytes: u64,
    pins: u32,
    state: ChunkState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    /// The chunk is pinned and not on disk.
    Absent,
    Writing,
    OnDisk,
}

impl CacheEntry {
    const NEW: CacheEntry = CacheEntry {
        bytes: 0,
        pins: 0,
        state: ChunkState::Absent,
    };
}

fn hex(hash: &ChunkHash) -> String {
    hash.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(name: &str) -> Option<ChunkHash> {
    if name.len() != 64 || !name.is_ascii() {
        return None;
    }
    let mut hash = [0; 32];
    for (i, b) in hash.iter_mut().enumerate() {
        *b = u8::from_str_radix(&name[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(hash)
}

/// A chunk file in the folder.
struct StoredChunk {
    hash: ChunkHash,
    bytes: u64,
    used_ns: i128,
}

/// The folder's lock, held while the folder is changed.
struct CacheLock<'a> {
    cache: &'a Cache,
    file: Arc<dyn StoreFile>,
    _turn: MutexGuard<'a, ()>,
}

impl Cache {
    /// Opens the cache in `folder`, holding at most `bound` bytes. Other workers of this user may have it open.
    ///
    /// # Errors
    /// Fails where the folder cannot be made or listed.
    pub fn open(store: Arc<dyn Store>, folder: PathBuf, bound: u64) -> Result<Cache, StoreError> {
        store.create_dir(&folder, FileMode::Secret)?;
        let cache = Cache {
            store,
            folder,
            bound,
            index: Mutex::default(),
            writing: Mutex::default(),
            warned: AtomicBool::new(false),
        };
        let stored = cache.list()?;
        cache.index().found(&stored);
        Ok(cache)
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, hash: &ChunkHash) -> PathBuf {
        self.folder.join(hex(hash))
    }

    /// Lists all chunks in the folder.
    fn list(&self) -> Result<Vec<StoredChunk>, StoreError> {
        let entries = self.store.list(&self.folder)?.into_iter();
        let stored = entries.filter(|e| e.kind == EntryKind::File && e.size <= CHUNK);
        let stored = stored.filter_map(|e| {
            Some(StoredChunk {
                hash: unhex(e.name.to_str()?)?,
                bytes: e.size,
                used_ns: e.modified_ns,
            })
        });
        Ok(stored.collect())
    }

    /// Warns of the first problem only; later ones are logged as debug, since hundreds of chunks may have the same one.
    fn warn(&self, what: &str, why: &dyn std::fmt::Display) {
        let folder = self.folder.display();
        if self.warned.swap(true, Ordering::Relaxed) {
            tracing::debug!("{what} in {folder}: {why}");
        } else {
            tracing::warn!(
                "{what} in {folder}: {why}; more of the cache's trouble is logged at the level debug"
            );
        }
    }

    /// Bytes of the chunks on disk that this worker knows of.
    pub fn bytes(&self) -> u64 {
        self.index().bytes
    }

    /// Whether a chunk is in the cache, as far as is known without reading it.
    pub fn has(&self, hash: &ChunkHash) -> bool {
        self.index().is_on_disk(hash)
    }

    /// Reads a chunk into `buffer`, which has room for [`CHUNK`] bytes, and verifies it; returns its length, or `None`
    /// where it is missing or damaged.
    pub fn read(&self, hash: &ChunkHash, buffer: &mut [u8]) -> Option<usize> {
        if !self.has(hash) {
            return None;
        }
        let path = self.path(hash);
        match self.store.open(&path).and_then(|f| f.read_at(0, buffer)) {
            Ok(len) if blake3::hash(&buffer[..len]).as_bytes() == hash => {
                // The time stamp tells other workers that the chunk is in use. If it cannot be set, the chunk is only
                // evicted sooner.
                drop(self.store.touch(&path));
                return Some(len);
            }
            Ok(_) => {
                self.warn(
                    "a cached chunk is damaged and will be fetched again",
                    &hex(hash),
                );
                self.remove_damaged(hash);
            }
            // Another worker has evicted the chunk.
            Err(e) if e.is_not_found() => {}
            Err(e) => self.warn(
                "a cached chunk cannot be read and will be fetched again",
                &e,
            ),
        }
        self.index().forget(hash);
        None
    }

    /// Removes a damaged chunk, unless another worker has replaced it by a good one meanwhile.
    fn remove_damaged(&self, hash: &ChunkHash) {
        let Ok(_locked) = self.lock() else { return };
        let path = self.path(hash);
        let mut again = vec![0; CHUNK as usize];
        let read = self
            .store
            .open(&path)
            .and_then(|f| f.read_at(0, &mut again));
        if read.is_ok_and(|len| blake3::hash(&again[..len]).as_bytes() != hash) {
            // The count stays too high until the folder is listed next.
            drop(self.store.remove(&path));
        }
    }

    /// Keeps a verified chunk. Where that fails, on a full disk for example, the chunk is only not cached.
    pub fn write(&self, hash: &ChunkHash, bytes: &[u8]) {
        if !self.index().claim(hash, bytes.len() as u64) {
            return;
        }
        let kept = self.lock().and_then(|locked| locked.keep(hash, bytes));
        if let Err(e) = &kept {
            self.warn("a chunk cannot be cached", e);
        }
        self.index().written(hash, matches!(kept, Ok(true)));
    }

    fn lock(&self) -> Result<CacheLock<'_>, StoreError> {
        let turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.store.lock(&self.folder.join(LOCK), FileMode::Secret)?;
        Ok(CacheLock {
            cache: self,
            file,
            _turn: turn,
        })
    }

    /// Keeps chunks from eviction by this worker until the pins are dropped.
    pub fn pin(self: &Arc<Self>, hashes: Vec<ChunkHash>) -> Pins {
        let mut index = self.index();
        for h in &hashes {
            index.chunks.entry(*h).or_insert(CacheEntry::NEW).pins += 1;
        }
        drop(index);
        Pins {
            cache: self.clone(),
            hashes,
        }
    }
}

impl CacheLock<'_> {
    /// Writes a chunk; returns whether it is in the folder afterwards.
    fn keep(&self, hash: &ChunkHash, bytes: &[u8]) -> Result<bool, StoreError> {
        let (store, path) = (&self.cache.store, self.cache.path(hash));
        let need = bytes.len() as u64;
        let there = store.open(&path).and_then(|f| f.identity());
        if there.is_ok_and(|there| there.size == need) {
            drop(store.touch(&path));
            return Ok(true);
        }
        let Some(total) = self.make_room(need)? else {
            return Ok(false);
        };
        // The bytes are counted before the file exists: after a crash the count may be too high, which a listing mends,
        // but not too low.
        self.count(total + need)?;
        let part = self.cache.folder.join(PART);
        match self.place(&part, &path, bytes) {
            Ok(()) => Ok(true),
            Err(e) => {
                drop(store.remove(&part));
                self.count(total)?;
                Err(e)
            }
        }
    }

    fn place(&self, part: &Path, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let store = &self.cache.store;
        match store.remove(part) {
            // A worker that was killed may have left the file; mostly there is none.
            Err(e) if !e.is_not_found() => return Err(e),
            _ => {}
        }
        store.create(part, FileMode::Secret)?.write_at(0, bytes)?;
        store.touch(part)?;
        // A chunk that a power cut damages fails its hash when it is read.
        store.replace(part, path)
    }

    fn count(&self, total: u64) -> Result<(), StoreError> {
        self.file.write_at(0, &total.to_le_bytes())
    }

    /// Makes room for `need` bytes; returns the bytes in the folder afterwards, or `None` where pins leave no room.
    fn make_room(&self, need: u64) -> Result<Option<u64>, StoreError> {
        let mut counted = [0; 8];
        let whole = self.file.read_at(0, &mut counted)? == counted.len();
        let total = u64::from_le_bytes(counted);
        let bound = self.cache.bound;
        if whole && total.saturating_add(need) <= bound {
            return Ok(Some(total));
        }
        let mut stored = self.cache.list()?;
        let mut total = stored.iter().map(|s| s.bytes).fold(0, u64::saturating_add);
        stored.sort_by_key(|s| (s.used_ns, s.hash));
        let mut index = self.cache.index();
        let goes = |total: u64| total.saturating_add(need) > bound;
        let free = stored.iter().filter(|s| index.is_free(&s.hash));
        let free: u64 = free.map(|s| s.bytes).sum();
        if goes(total.saturating_sub(free)) {
            index.found(&stored);
            return Ok(None);
        }
        let mut left = Vec::with_capacity(stored.len());
        for s in stored {
            if goes(total) && index.is_free(&s.hash) {
                match self.cache.store.remove(&self.cache.path(&s.hash)) {
                    Err(e) if !e.is_not_found() => return Err(e),
                    _ => total -= s.bytes,
                }
            } else {
                left.push(s);
            }
        }
        index.found(&left);
        Ok(Some(total))
    }
}

impl Index {
    fn is_on_disk(&self, hash: &ChunkHash) -> bool {
        let entry = self.chunks.get(hash);
        entry.is_some_and(|e| e.state == ChunkState::OnDisk)
    }

    /// Whether no program of this worker needs the chunk.
    fn is_free(&self, hash: &ChunkHash) -> bool {
        self.chunks.get(hash).is_none_or(|e| e.pins == 0)
    }

    /// Rebuilds the index from a listing of the folder.
    fn found(&mut self, stored: &[StoredChunk]) {
        for e in self.chunks.values_mut() {
            if e.state == ChunkState::OnDisk {
                e.state = ChunkState::Absent;
            }
        }
        self.bytes = 0;
        for s in stored {
            let e = self.chunks.entry(s.hash).or_insert(CacheEntry::NEW);
            // A chunk that this worker is writing counts once it is written.
            if e.state != ChunkState::Writing {
                (e.bytes, e.state) = (s.bytes, ChunkState::OnDisk);
                self.bytes += s.bytes;
            }
        }
        self.chunks
            .retain(|_, e| e.pins > 0 || e.state != ChunkState::Absent);
    }

    /// Marks a chunk as being written; false where it is on disk, or is being written already.
    fn claim(&mut self, hash: &ChunkHash, bytes: u64) -> bool {
        let e = self.chunks.entry(*hash).or_insert(CacheEntry::NEW);
        if e.state != ChunkState::Absent {
            return false;
        }
        (e.bytes, e.state) = (bytes, ChunkState::Writing);
        true
    }

    /// Ends the write that [`Index::claim`] began; `good` says whether the chunk is on disk.
    fn written(&mut self, hash: &ChunkHash, good: bool) {
        let Some(e) = self.chunks.get_mut(hash) else {
            return;
        };
        if good {
            e.state = ChunkState::OnDisk;
            self.bytes += e.bytes;
            return;
        }
        e.state = ChunkState::Absent;
        if e.pins == 0 {
            self.chunks.remove(hash);
        }
    }

    fn forget(&mut self, hash: &ChunkHash) {
        let entry = self.chunks.get_mut(hash);
        let Some(e) = entry.filter(|e| e.state == ChunkState::OnDisk) else {
            return;
        };
        self.bytes -= e.bytes;
        e.state = ChunkState::Absent;
        if e.pins == 0 {
            self.chunks.remove(hash);
        }
    }
}

/// Keeps the chunks of an installed program from eviction until it is dropped.
pub struct Pins {
    cache: Arc<Cache>,
    hashes: Vec<ChunkHash>,
}

impl Drop for Pins {
    fn drop(&mut self) {
        let mut index = self.cache.index();
        for h in &self.hashes {
            if let Some(e) = index.chunks.get_mut(h) {
                e.pins -= 1;
                if e.pins == 0 && e.state == ChunkState::Absent {
                    index.chunks.remove(h);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
