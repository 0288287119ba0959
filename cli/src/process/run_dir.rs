//! The folder of a cluster that one command runs. It holds keys, so it does not outlive the command for long.
//!
//! The command removes its folder when it ends. A killed process removes nothing: it held a lock on a file of its
//! folder, which the system has released, and the next command of the same user removes every such folder whose lock is
//! free.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::{ErrorKind, Read, Result, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use convoke_common::error::{Code, Error};
use rustix::fs::OFlags;

/// The file that the command has locked while it runs.
const LOCK: &str = "convoke-run.lock";
/// The contents of the file that marks such a folder: a folder without it is never removed.
const CONTENT: &str =
    "The folder of a Convoke cluster. Convoke removes it once no process has this file locked.\n";

/// The run folder; dropping it removes the folder and everything in it.
pub struct RunDir {
    pub path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Makes the folder `given`, or one named after `command` and this process id, and removes those that killed
    /// processes left in its place or beside it.
    ///
    /// # Errors
    /// [`Code::Io`] if the folder exists, unless a killed process left it.
    pub fn make(given: Option<PathBuf>, command: &str) -> std::result::Result<RunDir, Error> {
        let path = match given {
            Some(path) => {
                // A slash at the end would follow a link.
                let path: PathBuf = path.components().collect();
                remove_if_left(&path);
                path
            }
            None => {
                let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
                let base = base.filter(|b| b.is_dir());
                let base = base.unwrap_or_else(std::env::temp_dir);
                let prefix = format!("convoke-{command}-");
                remove_left_in(&base, &prefix);
                base.join(format!("{prefix}{}", std::process::id()))
            }
        };
        RunDir::new(path.clone()).map_err(|e| {
            let msg = format!("cannot make the folder {}: {e}", path.display());
            Error::new(Code::Io, msg)
        })
    }

    fn new(path: PathBuf) -> Result<RunDir> {
        // Do not create recursively: an existing folder belongs to somebody, and would be removed at the end.
        DirBuilder::new().mode(0o700).create(&path)?;
        match locked_in(&path) {
            Ok(lock) => Ok(RunDir { path, _lock: lock }),
            Err(e) => {
                remove(&path);
                Err(e)
            }
        }
    }
}

/// Makes the lock file of a new folder. Whoever finds the file by its name finds it locked.
fn locked_in(path: &Path) -> Result<File> {
    let unnamed = path.join("unlocked");
    let mut lock = File::create_new(&unnamed)?;
    lock.write_all(CONTENT.as_bytes())?;
    lock.try_lock()?;
    std::fs::rename(unnamed, path.join(LOCK))?;
    Ok(lock)
}

impl Drop for RunDir {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes a folder, and the lock file last, so that a folder that could not be emptied can still be recognised.
fn remove(path: &Path) {
    let emptied = std::fs::read_dir(path).and_then(|mut entries| {
        entries.try_for_each(|entry| {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                _ if entry.file_name() == LOCK => Ok(()),
                true => std::fs::remove_dir_all(entry.path()),
                false => std::fs::remove_file(entry.path()),
            }
        })
    });
    if let Err(e) = emptied.and_then(|()| std::fs::remove_dir_all(path)) {
        tracing::warn!("cannot remove {}: {e}", path.display());
    }
}

/// Removes what killed processes left in the folder `base`, in folders whose names begin with `prefix`.
fn remove_left_in(base: &Path, prefix: &str) {
    let found = std::fs::read_dir(base).into_iter().flatten().flatten();
    for entry in found {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            remove_if_left(&entry.path());
        }
    }
}

/// Removes a folder if a process of this user made it for a run and was killed.
fn remove_if_left(path: &Path) {
    // The lock is held until the folder is gone, so that two processes do not remove it at once.
    if let Ok(Some(_lock)) = lock_if_left(path) {
        tracing::info!("removes {}, which a killed process left", path.display());
        remove(path);
    }
}

/// Locks the folder of a run whose process has ended; `None` if its process runs, or if it is no such folder.
fn lock_if_left(path: &Path) -> Result<Option<File>> {
    let found = std::fs::symlink_metadata(path)?;
    let private = found.is_dir() && found.mode() & 0o077 == 0;
    if !private || found.uid() != rustix::process::geteuid().as_raw() {
        return Ok(None);
    }
    let at = path.join(LOCK);
    let lock = File::options()
        .read(true)
        .write(true)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(&at)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Interrupted => return Ok(None),
        Err(TryLockError::Error(e)) => return Err(e),
    }
    let mut content = Vec::new();
    let most = CONTENT.len() as u64 + 1;
    (&lock).take(most).read_to_end(&mut content)?;
    // Meanwhile another process may have removed the folder and made one of its own in its place.
    let (locked, there) = (lock.metadata()?, std::fs::symlink_metadata(&at)?);
    let same = (locked.dev(), locked.ino()) == (there.dev(), there.ino());
    Ok((same && content == CONTENT.as_bytes()).then_some(lock))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a folder as a process does that is killed: nothing is dropped but its lock.
    fn abandon(path: &Path) {
        let run = RunDir::new(path.to_owned()).unwrap();
        std::fs::write(path.join("key"), "secret").unwrap();
        run._lock.unlock().unwrap();
        std::mem::forget(run);
    }

    #[test]
    fn a_folder_that_a_killed_process_left_is_removed_by_the_next() {
        let base = std::env::temp_dir().join(format!("convoke-run-dirs-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let at = |name: &str| base.join(name);
        let running = RunDir::new(at("convoke-up-1")).unwrap();
        abandon(&at("convoke-up-2"));
        abandon(&at("convoke-bench-3"));
        DirBuilder::new()
            .mode(0o700)
            .create(at("convoke-up-4"))
            .unwrap();
        // The lock of another program is not a sign that the folder is of a run.
        std::fs::write(at("convoke-up-4").join(LOCK), "1234").unwrap();
        remove_left_in(&base, "convoke-up-");
        let mut left: Vec<_> = std::fs::read_dir(&base)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        // The process of the first one runs, the third one is of another command, and the last one is of another
        // program.
        assert_eq!(left, ["convoke-bench-3", "convoke-up-1", "convoke-up-4"]);

        abandon(&at("given"));
        let given = RunDir::make(Some(at("given")), "up").unwrap();
        assert!(!at("given").join("key").exists());
        let taken = |name: &str| RunDir::make(Some(at(name)), "up").err().map(|e| e.code);
        assert_eq!(taken("given"), Some(Code::Io));
        assert_eq!(taken("convoke-up-4"), Some(Code::Io));
        drop((given, running));
        assert!(!at("given").exists() && !at("convoke-up-1").exists());
        std::fs::remove_dir_all(base).unwrap();
    }
}
