//! The artifact cache: chunks of weights on disk, under their hashes.
//!
//! Invariants
//! 1. A chunk is verified when it is read: what a disk changed is fetched again, never used.
//! 2. The bytes on disk, those being written included, stay under the bound; the chunk least recently used goes
//!    first, but never one that an installed program pins.
//! 3. Losing the cache costs time only; writes are not synced. A chunk counts as there once it is written.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::artifact::{CHUNK, ChunkHash};
use convoke_common::world::{EntryKind, FileMode, Store, StoreError};

/// See the module.
pub struct Cache {
    store: Arc<dyn Store>,
    folder: PathBuf,
    bound: u64,
    index: Mutex<Index>,
}

#[derive(Default)]
struct Index {
    chunks: HashMap<ChunkHash, Entry>,
    /// Last use → chunk: the order of eviction.
    by_use: BTreeMap<u64, ChunkHash>,
    clock: u64,
    bytes: u64,
}

struct Entry {
    bytes: u64,
    used: u64,
    pins: u32,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Only pinned.
    Absent,
    Writing,
    OnDisk,
}

impl Entry {
    const NEW: Entry = Entry {
        bytes: 0,
        used: 0,
        pins: 0,
        state: State::Absent,
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

impl Cache {
    /// Opens the cache in `folder`, holding at most `bound` bytes.
    pub fn open(store: Arc<dyn Store>, folder: PathBuf, bound: u64) -> Result<Cache, StoreError> {
        store.create_dir(&folder, FileMode::Secret)?;
        let mut index = Index::default();
        for entry in store.list(&folder)? {
            let hash = entry.name.to_str().and_then(unhex);
            if let Some(hash) = hash
                && entry.kind == EntryKind::File
                && entry.size <= CHUNK
            {
                index.add(hash, entry.size);
            }
        }
        Ok(Cache {
            store,
            folder,
            bound,
            index: Mutex::new(index),
        })
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        self.index().bytes
    }

    /// Whether a chunk is there, as far as is known without reading it.
    pub fn has(&self, hash: &ChunkHash) -> bool {
        self.index().is_on_disk(hash)
    }

    /// Reads a chunk into `buffer`, which has room for [`CHUNK`] bytes, and verifies it; answers its length, where it
    /// is there.
    pub fn read(&self, hash: &ChunkHash, buffer: &mut [u8]) -> Option<usize> {
        if !self.index().touch(hash) {
            return None;
        }
        let path = self.folder.join(hex(hash));
        let len = self.store.open(&path).and_then(|f| f.read_at(0, buffer));
        let good = len
            .ok()
            .filter(|len| blake3::hash(&buffer[..*len]).as_bytes() == hash);
        if good.is_none() {
            tracing::warn!(
                chunk = hex(hash),
                "cached chunk is damaged; it will be fetched again"
            );
            drop(self.store.remove(&path));
            self.index().forget(hash);
        }
        good
    }

    /// Keeps a verified chunk. A full disk only means that it is not kept.
    pub fn write(&self, hash: &ChunkHash, bytes: &[u8]) {
        let Some(evict) = self.index().claim(hash, bytes.len() as u64, self.bound) else {
            return;
        };
        for old in evict {
            drop(self.store.remove(&self.folder.join(hex(&old))));
        }
        // Written in place: what a crash cuts short fails its hash when it is read.
        let path = self.folder.join(hex(hash));
        let written = self
            .store
            .create(&path, FileMode::Secret)
            .and_then(|f| f.write_at(0, bytes));
        if let Err(e) = &written {
            tracing::warn!("cannot cache a chunk: {e}");
            drop(self.store.remove(&path));
        }
        self.index().written(hash, written.is_ok());
    }

    /// Keeps chunks from eviction until the pins are dropped.
    pub fn pin(self: &Arc<Self>, hashes: Vec<ChunkHash>) -> Pins {
        let mut index = self.index();
        for h in &hashes {
            index.chunks.entry(*h).or_insert(Entry::NEW).pins += 1;
        }
        drop(index);
        Pins {
            cache: self.clone(),
            hashes,
        }
    }
}

impl Index {
    fn tick(&mut self, hash: ChunkHash) -> u64 {
        self.clock += 1;
        self.by_use.insert(self.clock, hash);
        self.clock
    }

    fn is_on_disk(&self, hash: &ChunkHash) -> bool {
        let entry = self.chunks.get(hash);
        entry.is_some_and(|e| e.state == State::OnDisk)
    }

    /// Counts a chunk that was found on disk.
    fn add(&mut self, hash: ChunkHash, bytes: u64) {
        let used = self.tick(hash);
        let e = self.chunks.entry(hash).or_insert(Entry::NEW);
        (e.bytes, e.used, e.state) = (bytes, used, State::OnDisk);
        self.bytes += bytes;
    }

    /// Room for a chunk that is to be written: what to evict for it. `None` where there is no room, or where it is
    /// there or being written already.
    fn claim(&mut self, hash: &ChunkHash, bytes: u64, bound: u64) -> Option<Vec<ChunkHash>> {
        let entry = self.chunks.get(hash);
        if entry.is_some_and(|e| e.state != State::Absent) {
            return None;
        }
        let evict = self.make_room(bytes, bound)?;
        let e = self.chunks.entry(*hash).or_insert(Entry::NEW);
        (e.bytes, e.state) = (bytes, State::Writing);
        self.bytes += bytes;
        Some(evict)
    }

    /// Ends what [`Index::claim`] began.
    fn written(&mut self, hash: &ChunkHash, good: bool) {
        let used = if good { self.tick(*hash) } else { 0 };
        let Some(e) = self.chunks.get_mut(hash) else {
            return;
        };
        if good {
            (e.used, e.state) = (used, State::OnDisk);
            return;
        }
        e.state = State::Absent;
        self.bytes -= e.bytes;
        if e.pins == 0 {
            self.chunks.remove(hash);
        }
    }

    fn touch(&mut self, hash: &ChunkHash) -> bool {
        if !self.is_on_disk(hash) {
            return false;
        }
        let used = self.tick(*hash);
        if let Some(e) = self.chunks.get_mut(hash) {
            self.by_use.remove(&e.used);
            e.used = used;
        }
        true
    }

    fn forget(&mut self, hash: &ChunkHash) {
        let entry = self.chunks.get_mut(hash);
        let Some(e) = entry.filter(|e| e.state == State::OnDisk) else {
            return;
        };
        self.bytes -= e.bytes;
        self.by_use.remove(&e.used);
        e.state = State::Absent;
        if e.pins == 0 {
            self.chunks.remove(hash);
        }
    }

    /// What to evict so that `bytes` more fit; `None` where pins leave no room.
    fn make_room(&mut self, bytes: u64, bound: u64) -> Option<Vec<ChunkHash>> {
        let mut evict = Vec::new();
        let mut free = bound.saturating_sub(self.bytes);
        for hash in self.by_use.values() {
            if free >= bytes {
                break;
            }
            if let Some(e) = self.chunks.get(hash).filter(|e| e.pins == 0) {
                free += e.bytes;
                evict.push(*hash);
            }
        }
        if free < bytes {
            return None;
        }
        evict.iter().for_each(|h| self.forget(h));
        Some(evict)
    }
}

/// Chunks that an installed program needs.
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
                if e.pins == 0 && e.state == State::Absent {
                    index.chunks.remove(h);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoke_common::world::{Disk, SystemRng};

    fn chunk(i: u8) -> (ChunkHash, Vec<u8>) {
        let bytes = vec![i; 100];
        (*blake3::hash(&bytes).as_bytes(), bytes)
    }

    fn open(folder: &std::path::Path) -> Arc<Cache> {
        let store = Arc::new(Disk::new(Arc::new(SystemRng::default())));
        Arc::new(Cache::open(store, folder.to_owned(), 250).unwrap())
    }

    fn read(c: &Cache, hash: &ChunkHash) -> Option<Vec<u8>> {
        let mut buffer = vec![0; CHUNK as usize];
        let len = c.read(hash, &mut buffer)?;
        buffer.truncate(len);
        Some(buffer)
    }

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("convoke-cache-{name}-{}", std::process::id()))
    }

    #[test]
    fn bounded_by_use_but_pins_stay() {
        let dir = folder("bounded");
        let c = open(&dir);
        let [(a, ab), (b, bb), (d, db)] = [chunk(1), chunk(2), chunk(3)];
        c.write(&a, &ab);
        c.write(&b, &bb);
        assert_eq!(read(&c, &a), Some(ab.clone()));
        c.write(&d, &db);
        assert_eq!((read(&c, &b), c.bytes()), (None, 200));
        let pins = c.pin(vec![a, d]);
        c.write(&b, &bb);
        assert_eq!(read(&c, &b), None);
        drop(pins);
        drop(c);
        // A restart finds what was there, and refuses what changed.
        let c = open(&dir);
        assert_eq!(read(&c, &d), Some(db));
        std::fs::write(dir.join(hex(&a)), [9; 100]).unwrap();
        assert_eq!((read(&c, &a), c.bytes()), (None, 100));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_chunk_that_is_being_written_has_its_room_and_is_not_written_twice() {
        let mut index = Index::default();
        let [(a, _), (b, _), (d, _)] = [chunk(1), chunk(2), chunk(3)];
        assert_eq!(index.claim(&a, 100, 250), Some(vec![]));
        assert_eq!(index.claim(&a, 100, 250), None);
        assert!(!index.is_on_disk(&a));
        assert_eq!(index.claim(&b, 100, 250), Some(vec![]));
        // Neither can go before it is there.
        assert_eq!(index.claim(&d, 100, 250), None);
        index.written(&a, true);
        index.written(&b, false);
        assert_eq!((index.is_on_disk(&a), index.bytes), (true, 100));
        assert_eq!(index.claim(&b, 200, 250), Some(vec![a]));
    }
}
