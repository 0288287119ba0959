//! The device's memory: a file, and which ranges of it are free.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The memory of a device.
pub struct FileMemory {
    file: File,
    free: Mutex<FreeRanges>,
}

/// The free ranges of the file: where each begins, and its bytes.
struct FreeRanges(BTreeMap<u64, u64>);

/// A range of the file, which is free again once it is dropped.
pub struct FileRange {
    memory: Arc<FileMemory>,
    start: u64,
    bytes: u64,
}

impl FileMemory {
    /// Makes a file that has no name, so that it is gone with the process.
    pub fn open() -> io::Result<FileMemory> {
        static OPENED: AtomicU32 = AtomicU32::new(0);
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let name = format!("convoke-file-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        std::fs::remove_file(path)?;
        Ok(FileMemory {
            file,
            free: Mutex::new(FreeRanges(BTreeMap::from([(0, u64::MAX)]))),
        })
    }

    fn lock(&self) -> MutexGuard<'_, FreeRanges> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the first free range that holds these bytes, and writes them.
    pub fn store(self: &Arc<Self>, contents: &[u8]) -> io::Result<FileRange> {
        let bytes = contents.len() as u64;
        let start = self.lock().take(bytes);
        let range = FileRange {
            memory: self.clone(),
            start: start.ok_or(io::ErrorKind::StorageFull)?,
            bytes,
        };
        self.file.write_all_at(contents, range.start)?;
        Ok(range)
    }
}

impl FreeRanges {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        if bytes == 0 {
            return Some(0);
        }
        let (start, free) = self.0.iter().find(|(_, free)| **free >= bytes)?;
        let (start, free) = (*start, *free);
        self.0.remove(&start);
        if free > bytes {
            self.0.insert(start + bytes, free - bytes);
        }
        Some(start)
    }

    fn give_back(&mut self, mut start: u64, mut bytes: u64) {
        if bytes == 0 {
            return;
        }
        if let Some(after) = self.0.remove(&(start + bytes)) {
            bytes += after;
        }
        let before = self.0.range(..start).next_back();
        if let Some((at, free)) = before.map(|(at, free)| (*at, *free))
            && at + free == start
        {
            start = at;
            bytes += free;
        }
        self.0.insert(start, bytes);
    }
}

impl FileRange {
    /// Reads the range.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut contents = vec![0; self.bytes as usize];
        self.memory.file.read_exact_at(&mut contents, self.start)?;
        Ok(contents)
    }
}

impl Drop for FileRange {
    fn drop(&mut self) {
        self.memory.lock().give_back(self.start, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

    use super::*;

    #[test]
    fn ranges_are_used_again() {
        let memory = Arc::new(FileMemory::open().unwrap());
        let store = |x: u8, bytes: usize| memory.store(&vec![x; bytes]).unwrap();
        let (a, b, c) = (store(1, 10), store(2, 20), store(3, 5));
        assert_eq!((a.start, b.start, c.start), (0, 10, 30));
        assert_eq!(
            (b.read().unwrap(), c.read().unwrap()),
            (vec![2; 20], vec![3; 5])
        );
        drop(a);
        drop(b);
        let d = store(4, 25);
        assert_eq!((d.start, d.read().unwrap()), (0, vec![4; 25]));
        drop((c, d));
        assert_eq!(memory.lock().0, BTreeMap::from([(0, u64::MAX)]));
    }
}
