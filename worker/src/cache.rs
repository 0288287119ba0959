//! The artifact cache: chunks of weights on disk, under their hashes.
//!
//! Invariants
//! 1. A chunk is verified when it is read: what a disk changed is fetched again, never used.
//! 2. The bytes on disk stay under the bound; the chunk least recently used goes first, but never one that
//!    an installed program pins.
//! 3. Losing the cache costs time only; writes are not synced.

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
    on_disk: bool,
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

    /// The verified bytes of a chunk, where it is there.
    pub fn read(&self, hash: &ChunkHash) -> Option<Vec<u8>> {
        if !self.index().touch(hash) {
            return None;
        }
        let path = self.folder.join(hex(hash));
        let bytes = self.store.read(&path, CHUNK).ok();
        let good = bytes.filter(|b| blake3::hash(b).as_bytes() == hash);
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
        let evict = {
            let mut index = self.index();
            if index.chunks.get(hash).is_some_and(|e| e.on_disk) {
                return;
            }
            let Some(evict) = index.make_room(bytes.len() as u64, self.bound) else {
                return;
            };
            evict
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
        match written {
            Ok(()) => self.index().add(*hash, bytes.len() as u64),
            Err(e) => {
                tracing::warn!("cannot cache a chunk: {e}");
                drop(self.store.remove(&path));
            }
        }
    }

    /// Keeps chunks from eviction until the pins are dropped.
    pub fn pin(self: &Arc<Self>, hashes: Vec<ChunkHash>) -> Pins {
        let mut index = self.index();
        for h in &hashes {
            let entry = index.chunks.entry(*h);
            entry
                .or_insert(Entry {
                    bytes: 0,
                    used: 0,
                    pins: 0,
                    on_disk: false,
                })
                .pins += 1;
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

    fn add(&mut self, hash: ChunkHash, bytes: u64) {
        let used = self.tick(hash);
        let e = self.chunks.entry(hash).or_insert(Entry {
            bytes: 0,
            used,
            pins: 0,
            on_disk: false,
        });
        if e.on_disk {
            self.bytes -= e.bytes;
            self.by_use.remove(&e.used);
        }
        (e.bytes, e.used, e.on_disk) = (bytes, used, true);
        self.bytes += bytes;
    }

    fn touch(&mut self, hash: &ChunkHash) -> bool {
        let Some(old) = self.chunks.get(hash).filter(|e| e.on_disk).map(|e| e.used) else {
            return false;
        };
        self.by_use.remove(&old);
        let used = self.tick(*hash);
        if let Some(e) = self.chunks.get_mut(hash) {
            e.used = used;
        }
        true
    }

    fn forget(&mut self, hash: &ChunkHash) {
        let Some(e) = self.chunks.get_mut(hash).filter(|e| e.on_disk) else {
            return;
        };
        self.bytes -= e.bytes;
        self.by_use.remove(&e.used);
        e.on_disk = false;
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
                if e.pins == 0 && !e.on_disk {
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

    #[test]
    fn bounded_by_use_but_pins_stay() {
        let dir = std::env::temp_dir().join(format!("convoke-cache-{}", std::process::id()));
        let c = open(&dir);
        let [(a, ab), (b, bb), (d, db)] = [chunk(1), chunk(2), chunk(3)];
        c.write(&a, &ab);
        c.write(&b, &bb);
        assert_eq!(c.read(&a), Some(ab.clone()));
        c.write(&d, &db);
        assert_eq!((c.read(&b), c.bytes()), (None, 200));
        let pins = c.pin(vec![a, d]);
        c.write(&b, &bb);
        assert_eq!(c.read(&b), None);
        drop(pins);
        drop(c);
        // A restart finds what was there, and refuses what changed.
        let c = open(&dir);
        assert_eq!(c.read(&d), Some(db));
        std::fs::write(dir.join(hex(&a)), [9; 100]).unwrap();
        assert_eq!((c.read(&a), c.bytes()), (None, 100));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
