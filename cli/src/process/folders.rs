//! The folder in which a worker process keeps its identity across restarts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use convoke_common::admission::chain;
use convoke_common::error::{Code, Error};
use convoke_common::world::{FileMode, Store, StoreError, StoreFile};

/// The largest number of workers that share a pool.
const MOST: u32 = 1000;

/// A folder for the worker's identity, which no other process uses.
pub struct StateFolder {
    /// The folder's path.
    pub path: PathBuf,
    /// The lock on a folder of a pool, held as long as this process uses the folder.
    _lock: Option<Arc<dyn StoreFile>>,
}

impl StateFolder {
    /// The folder that the user named for this worker alone; it takes no lock.
    pub fn of_its_own(path: &Path) -> StateFolder {
        StateFolder {
            path: path.to_owned(),
            _lock: None,
        }
    }

    /// Locks the first of `pool/1`, `pool/2` and so on that no other process uses. The system releases the lock when
    /// this process ends, however it ends.
    ///
    /// # Errors
    /// [`Code::Io`] if a folder cannot be made, or other users could change it; [`Code::Busy`] if [`MOST`] folders are
    /// in use.
    pub fn of_pool(store: &dyn Store, pool: &Path) -> Result<StateFolder, Error> {
        let failed = |e: StoreError| Error::new(Code::Io, chain(&e));
        for n in 1..=MOST {
            let path = pool.join(n.to_string());
            store.create_dir(&path, FileMode::Secret).map_err(failed)?;
            store.check_private(&path).map_err(failed)?;
            match store.open_exclusive(&path.join("lock"), FileMode::Secret) {
                Ok(lock) => {
                    return Ok(StateFolder {
                        path,
                        _lock: Some(lock),
                    });
                }
                Err(StoreError::InUse { .. }) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        let msg = format!("{MOST} workers use the folders in {}", pool.display());
        Err(Error::new(Code::Busy, msg).advise("name another folder with --state-pool"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoke_common::world::{Disk, SystemRng};

    #[test]
    fn each_worker_has_a_folder_and_the_next_one_takes_it_over() {
        let disk = Disk::new(Arc::new(SystemRng::default()));
        let pool = std::env::temp_dir().join(format!("convoke-pool-{}", std::process::id()));
        let take = || StateFolder::of_pool(&disk, &pool).unwrap();
        let (first, second) = (take(), take());
        assert_eq!(
            (&first.path, &second.path),
            (&pool.join("1"), &pool.join("2"))
        );
        drop(first);
        let again = take();
        assert_eq!(again.path, pool.join("1"));
        assert_eq!(take().path, pool.join("3"));
        std::fs::remove_dir_all(&pool).unwrap();
    }
}
