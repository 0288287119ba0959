//! The store of one process: files on its host's disk, and blocking work that runs as tasks.

use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use convoke_common::world::{
    DirEntry, DiskSpace, FileIdentity, FileMode, Job, Store, StoreError, StoreFile,
};

use super::disk::{Disk, File};
use super::gate::Gate;
use crate::draw::Draw;

/// The most milliseconds that blocking work waits for a thread and the disk.
const LATENCY_MS: u64 = 1;

/// The capacity of a disk in bytes, which no simulation reaches.
const CAPACITY: u64 = 1 << 40;

/// The store of one process.
pub(super) struct SimStore {
    disk: Arc<Disk>,
    gate: Arc<Gate>,
    draw: Mutex<Draw>,
}

impl SimStore {
    pub(super) fn new(disk: Arc<Disk>, gate: Arc<Gate>, draw: Draw) -> SimStore {
        SimStore {
            disk,
            gate,
            draw: Mutex::new(draw),
        }
    }

    fn handle(&self, file: File, path: &Path, exclusive: bool) -> Arc<dyn StoreFile> {
        Arc::new(SimFile {
            disk: self.disk.clone(),
            file,
            path: path.into(),
            exclusive,
        })
    }
}

struct SimFile {
    disk: Arc<Disk>,
    file: File,
    path: PathBuf,
    exclusive: bool,
}

impl Drop for SimFile {
    fn drop(&mut self) {
        if self.exclusive {
            Disk::let_go(&self.file);
        }
    }
}

impl StoreFile for SimFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn identity(&self) -> Result<FileIdentity, StoreError> {
        Ok(self.disk.identity(&self.file))
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, StoreError> {
        self.disk.read(&self.file, &self.path, offset, out)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.disk.write(&self.file, &self.path, offset, bytes)
    }

    fn set_length(&self, length: u64) -> Result<(), StoreError> {
        self.disk.length(&self.file, &self.path, length)
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.disk.sync(&self.file, &self.path)
    }
}

impl Store for SimStore {
    fn read(&self, path: &Path, limit: u64) -> Result<Vec<u8>, StoreError> {
        let file = self.disk.find("read", path)?;
        let size = self.disk.identity(&file).size;
        if size > limit {
            let path = path.into();
            return Err(StoreError::TooLarge { path, size, limit });
        }
        let mut bytes = vec![0; size as usize];
        self.disk.read(&file, path, 0, &mut bytes)?;
        Ok(bytes)
    }

    fn write_atomic(&self, path: &Path, bytes: &[u8], _: FileMode) -> Result<(), StoreError> {
        self.disk.replace(path, bytes)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn StoreFile>, StoreError> {
        Ok(self.handle(self.disk.find("open", path)?, path, false))
    }

    fn open_beneath(&self, root: &Path, relative: &Path) -> Result<Arc<dyn StoreFile>, StoreError> {
        let inside = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::CurDir);
        if !relative.components().all(inside) {
            return Err(StoreError::Escapes {
                root: root.into(),
                relative: relative.into(),
            });
        }
        self.open(&root.join(relative))
    }

    fn create(&self, path: &Path, _: FileMode) -> Result<Arc<dyn StoreFile>, StoreError> {
        Ok(self.handle(self.disk.make(path, false)?, path, false))
    }

    fn open_exclusive(&self, path: &Path, _: FileMode) -> Result<Arc<dyn StoreFile>, StoreError> {
        Ok(self.handle(self.disk.hold(path)?, path, true))
    }

    /// Never waits: a file is locked and released within one job, and jobs run one after the other.
    fn lock(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn StoreFile>, StoreError> {
        self.open_exclusive(path, mode)
    }

    fn replace(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.disk.rename(from, to)
    }

    fn touch(&self, path: &Path) -> Result<(), StoreError> {
        self.disk.touch(path)
    }

    /// Always succeeds, since a simulated host has a single user.
    fn check_private(&self, _: &Path) -> Result<(), StoreError> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.disk.rename(from, to)
    }

    fn list(&self, folder: &Path) -> Result<Vec<DirEntry>, StoreError> {
        let entries = self.disk.entries(folder)?.into_iter();
        let entry = |(path, kind, size, changed): (PathBuf, _, _, u64)| DirEntry {
            name: path.file_name().unwrap_or_default().to_owned(),
            kind,
            size,
            modified_ns: i128::from(changed),
        };
        Ok(entries.map(entry).collect())
    }

    fn remove(&self, path: &Path) -> Result<(), StoreError> {
        self.disk.remove(path)
    }

    fn create_dir(&self, path: &Path, _: FileMode) -> Result<(), StoreError> {
        self.disk.make_folder(path)
    }

    fn disk_space(&self, _: &Path) -> Result<DiskSpace, StoreError> {
        let used: u64 = self.disk.files().iter().map(|(_, size)| size).sum();
        Ok(DiskSpace {
            total: CAPACITY,
            available: CAPACITY.saturating_sub(used),
        })
    }

    fn run_blocking(&self, job: Job) {
        let wait = {
            let mut draw = self.draw.lock().unwrap_or_else(PoisonError::into_inner);
            let wait = draw.range(0, LATENCY_MS);
            match self.disk.knobs.disk_slow() {
                0 => wait,
                most => wait + draw.range(0, most),
            }
        };
        drop(self.gate.spawn(Box::pin(async move {
            if wait > 0 {
                tokio::time::sleep(Duration::from_millis(wait)).await;
            }
            job();
        })));
    }
}
