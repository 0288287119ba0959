//! Where a worker process keeps what outlives it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use convoke_common::admission::chain;
use convoke_common::error::{Code, Error};
use convoke_common::world::{FileMode, Store, StoreError, StoreFile};

/// The most workers that share a pool.
const MOST: u32 = 1000;

/// A folder for the identity, which no other process uses.
pub struct StateFolder {
    /// The folder.
    pub path: PathBuf,
    /// Held as long as this process uses a folder of a pool.
    _lock: Option<Arc<dyn StoreFile>>,
}

impl StateFolder {
    /// The one that was named.
    pub fn of_its_own(path: &Path) -> StateFolder {
        StateFolder {
            path: path.to_owned(),
            _lock: None,
        }
    }

    /// The first of `pool/1`, `pool/2` and so on that no other process uses. It is free again when this process ends, however
    /// it ends.
    ///
    /// # Errors
    /// Fails where a folder cannot be made or is not safe, and where a thousand are in use.
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
