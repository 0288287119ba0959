//! The redb file of the state: locked by this process, and opened again after a failed write.
//!
//! After an I/O error redb refuses everything until its file is opened anew. A disk that was full for a moment must not
//! end the coordinator's memory, so the next use opens the file again, which undoes the failed write.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::mutant;
use convoke_common::world::{FileMode, Store, StoreError, StoreFile};
use redb::{Database, StorageBackend};

use super::{FILE, StateError, UNFINISHED};

/// A file of the store as the storage of redb.
struct Backend(Arc<dyn StoreFile>);

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Backend").field(&self.0.path()).finish()
    }
}

fn failed(error: StoreError) -> io::Error {
    let kind = match &error {
        StoreError::Truncated { .. } => io::ErrorKind::UnexpectedEof,
        StoreError::Io { source, .. } => source.kind(),
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.identity().map_err(failed)?.size)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(offset, out).map_err(failed)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_length(len).map_err(failed)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync().map_err(failed)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data).map_err(failed)
    }
}

/// Opens the state's file and locks it. If it is new, also returns its temporary name, which it has until its layout is
/// complete.
fn find_or_make(
    store: &dyn Store,
    folder: &Path,
) -> Result<(Arc<dyn StoreFile>, Option<PathBuf>), StoreError> {
    let (path, unfinished) = (folder.join(FILE), folder.join(UNFINISHED));
    let missing = || match store.open(&path) {
        Ok(_) => Ok(false),
        Err(e) if e.is_not_found() => Ok(true),
        Err(e) => Err(e),
    };
    if missing()? {
        let file = store.open_exclusive(&unfinished, FileMode::Secret)?;
        // Another process may have completed and renamed its own file in between.
        if missing()? {
            file.set_length(0)?;
            return Ok((file, Some(unfinished)));
        }
    }
    Ok((store.open_exclusive(&path, FileMode::Secret)?, None))
}

/// A database that is opened again after an error.
pub struct StateDatabase {
    path: PathBuf,
    /// The open file, which holds the lock whether or not the database is open.
    file: Arc<dyn StoreFile>,
    inner: Mutex<Inner>,
}

struct Inner {
    /// The database; `None` after an error.
    database: Option<Database>,
    /// Why the last use failed; `None` after one that succeeded.
    trouble: Option<String>,
}

/// Bytes of the file that are kept in memory. The whole state takes less; left to itself, redb keeps up to a gigabyte
/// of the pages that each write leaves behind.
const CACHE: usize = 1 << 20;

fn open(file: &Arc<dyn StoreFile>) -> Result<Database, redb::Error> {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    Ok(builder.create_with_backend(Backend(file.clone()))?)
}

impl StateDatabase {
    /// Opens the file in this folder, or creates it. A new file has the returned temporary name; the caller renames it
    /// once its layout is complete.
    pub fn open(
        store: &dyn Store,
        folder: &Path,
    ) -> Result<(StateDatabase, Option<PathBuf>), StateError> {
        let path = folder.join(FILE);
        let file = find_or_make(store, folder).map_err(|source| match source {
            StoreError::InUse { .. } => StateError::InUse { path: path.clone() },
            source => StateError::Open { source },
        });
        let (file, unfinished) = file?;
        let failed = |e| StateError::Database {
            path: path.clone(),
            source: Box::new(e),
        };
        let database = open(&file).map_err(failed)?;
        let inner = Mutex::new(Inner {
            database: Some(database),
            trouble: None,
        });
        Ok((StateDatabase { path, file, inner }, unfinished))
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the database, one use after the other. After a use that failed the file is opened again.
    pub fn with<T>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, StateError> {
        let mut inner = self.inner();
        let used = match inner.database.take() {
            Some(database) => Ok(database),
            None if mutant!("store-stays-closed") => Err(redb::Error::PreviousIo),
            None => open(&self.file),
        };
        let used = used.and_then(|database| work(&database).map(|value| (database, value)));
        match used {
            Ok((database, value)) => {
                inner.database = Some(database);
                inner.trouble = None;
                Ok(value)
            }
            Err(e) => {
                inner.trouble = Some(e.to_string());
                Err(StateError::Database {
                    path: self.path.clone(),
                    source: Box::new(e),
                })
            }
        }
    }

    /// Returns why the last use failed, if it did.
    pub fn trouble(&self) -> Option<String> {
        self.inner().trouble.clone()
    }
}
