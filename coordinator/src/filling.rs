//! A disk that fills up, for tests.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use convoke_common::world::{
    DirEntry, Disk, DiskSpace, FileIdentity, FileMode, Job, Store, StoreError, StoreFile, SystemRng,
};

/// A disk that accepts no more writes once it is full.
pub struct FillableDisk {
    disk: Disk,
    pub is_full: Arc<AtomicBool>,
    /// Number of bytes that the disk still accepts.
    pub room: Arc<AtomicU64>,
}

struct FillingFile {
    file: Arc<dyn StoreFile>,
    is_full: Arc<AtomicBool>,
    room: Arc<AtomicU64>,
}

impl FillingFile {
    fn full(&self) -> StoreError {
        StoreError::Io {
            operation: "write",
            path: self.file.path().to_owned(),
            source: io::ErrorKind::StorageFull.into(),
        }
    }

    fn check(&self) -> Result<(), StoreError> {
        match self.is_full.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(self.full()),
        }
    }
}

impl StoreFile for FillingFile {
    fn path(&self) -> &Path {
        self.file.path()
    }
    fn identity(&self) -> Result<FileIdentity, StoreError> {
        self.file.identity()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, StoreError> {
        self.file.read_at(offset, out)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.check()?;
        let room = self.room.load(Ordering::Relaxed);
        let fits = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        self.file.write_at(offset, &bytes[..fits])?;
        self.room.store(room - fits as u64, Ordering::Relaxed);
        match fits == bytes.len() {
            true => Ok(()),
            false => Err(self.full()),
        }
    }
    fn set_length(&self, length: u64) -> Result<(), StoreError> {
        self.check()?;
        self.file.set_length(length)
    }
    fn sync(&self) -> Result<(), StoreError> {
        self.check()?;
        self.file.sync()
    }
}

impl FillableDisk {
    /// Returns a disk with room.
    pub fn new() -> FillableDisk {
        FillableDisk {
            disk: Disk::new(Arc::new(SystemRng::default())),
            is_full: Arc::default(),
            room: Arc::new(u64::MAX.into()),
        }
    }

    fn file(&self, file: Arc<dyn StoreFile>) -> Arc<dyn StoreFile> {
        Arc::new(FillingFile {
            file,
            is_full: self.is_full.clone(),
            room: self.room.clone(),
        })
    }
}

impl Store for FillableDisk {
    fn read(&self, path: &Path, limit: u64) -> Result<Vec<u8>, StoreError> {
        self.disk.read(path, limit)
    }
    fn write_atomic(&self, path: &Path, bytes: &[u8], mode: FileMode) -> Result<(), StoreError> {
        self.disk.write_atomic(path, bytes, mode)
    }
    fn open(&self, path: &Path) -> Result<Arc<dyn StoreFile>, StoreError> {
        self.disk.open(path)
    }
    fn open_beneath(&self, root: &Path, relative: &Path) -> Result<Arc<dyn StoreFile>, StoreError> {
        self.disk.open_beneath(root, relative)
    }
    fn create(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn StoreFile>, StoreError> {
        self.disk.create(path, mode)
    }
    fn open_exclusive(
        &self,
        path: &Path,
        mode: FileMode,
    ) -> Result<Arc<dyn StoreFile>, StoreError> {
        Ok(self.file(self.disk.open_exclusive(path, mode)?))
    }
    fn lock(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn StoreFile>, StoreError> {
        self.disk.lock(path, mode)
    }
    fn replace(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.disk.replace(from, to)
    }
    fn touch(&self, path: &Path) -> Result<(), StoreError> {
        self.disk.touch(path)
    }
    fn check_private(&self, path: &Path) -> Result<(), StoreError> {
        self.disk.check_private(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.disk.rename(from, to)
    }
    fn list(&self, folder: &Path) -> Result<Vec<DirEntry>, StoreError> {
        self.disk.list(folder)
    }
    fn remove(&self, path: &Path) -> Result<(), StoreError> {
        self.disk.remove(path)
    }
    fn create_dir(&self, path: &Path, mode: FileMode) -> Result<(), StoreError> {
        self.disk.create_dir(path, mode)
    }
    fn disk_space(&self, path: &Path) -> Result<DiskSpace, StoreError> {
        self.disk.disk_space(path)
    }
    fn run_blocking(&self, job: Job) {
        self.disk.run_blocking(job);
    }
}
