//! Compiled sources on disk, by the hash of source and options, compiler and architecture.
//!
//! The GPU executes the files of this folder, so the folder must be its owner's alone: a folder that others can enter,
//! or that somebody else owns, is refused. A folder that cannot be made costs time, and nothing else. A file comes into
//! its place complete, by a rename.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use convoke_common::error::{Code, Error, Result};
use convoke_common::world::{Rng, SystemRng};
use rustix::fs::{self, AtFlags, Mode, OFlags};

/// The most bytes that a compiled source may have.
const MOST: u64 = 64 << 20;

/// The folder of compiled sources.
pub struct Cache {
    folder: OwnedFd,
}

fn refused(path: &Path, why: impl std::fmt::Display) -> Error {
    let msg = format!(
        "the folder of compiled CUDA kernels, {}, {why}",
        path.display()
    );
    Error::new(Code::Io, msg).advise(
        "make it a folder of this user that nobody else can enter (chmod 700), or set XDG_CACHE_HOME to another place",
    )
}

/// The place of the folder: beneath the user's folder for caches. `None` where the user has none.
pub fn default_place() -> Option<PathBuf> {
    let given = |name| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let caches = given("XDG_CACHE_HOME").or_else(|| Some(given("HOME")?.join(".cache")))?;
    caches
        .is_absolute()
        .then(|| caches.join("convoke").join("cuda"))
}

/// Makes the folder where it is not there.
fn make(path: &Path) -> std::io::Result<()> {
    if let Some(above) = path.parent() {
        std::fs::create_dir_all(above)?;
    }
    match fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

impl Cache {
    /// Opens the folder, which is made where it is not there; `None` where it cannot be made.
    ///
    /// # Errors
    /// `io` where it is not a folder, is not this user's, or can be entered by others.
    pub fn open(path: &Path) -> Result<Option<Cache>> {
        if let Err(error) = make(path) {
            let path = path.display();
            tracing::warn!(%error, %path, "compiled CUDA kernels are not kept, since their folder cannot be made");
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = fs::open(path, flags, Mode::empty())
            .map_err(|e| refused(path, format!("cannot be opened: {e}")))?;
        let stat = fs::fstat(&folder).map_err(|e| refused(path, format!("cannot be read: {e}")))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(refused(path, "belongs to another user"));
        }
        if stat.st_mode & 0o077 != 0 {
            return Err(refused(path, "can be entered by other users"));
        }
        Ok(Some(Cache { folder }))
    }

    /// The compiled source of this name; `None` where it is not there, or cannot be read.
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(fs::openat(&self.folder, name, flags, Mode::empty()).ok()?);
        let mut contents = vec![];
        file.take(MOST).read_to_end(&mut contents).ok()?;
        (!contents.is_empty()).then_some(contents)
    }

    /// Keeps a compiled source. A cache that cannot be written costs time at the next start, and nothing else.
    pub fn put(&self, name: &str, contents: &[u8]) {
        if let Err(error) = self.write(name, contents) {
            tracing::warn!(%error, name, "a compiled CUDA kernel cannot be kept");
        }
    }

    /// Removes a compiled source that is of no use.
    pub fn remove(&self, name: &str) {
        let _ = fs::unlinkat(&self.folder, name, AtFlags::empty());
    }

    fn write(&self, name: &str, contents: &[u8]) -> std::io::Result<()> {
        // Processes of several containers may have the same number, so the name is drawn.
        let mut salt = [0; 8];
        SystemRng::default().fill(&mut salt);
        let new = format!("{name}.{:016x}", u64::from_le_bytes(salt));
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let mut file = File::from(fs::openat(&self.folder, &*new, flags, mode)?);
        let written = file.write_all(contents);
        let kept =
            written.and_then(|()| Ok(fs::renameat(&self.folder, &*new, &self.folder, name)?));
        if kept.is_err() {
            let _ = fs::unlinkat(&self.folder, &*new, AtFlags::empty());
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn place(name: &str) -> PathBuf {
        let at = std::env::temp_dir().join(format!("convoke-cuda-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&at);
        at
    }

    #[test]
    fn what_is_kept_is_found_by_the_next_process() {
        let at = place("kept").join("below");
        let cache = Cache::open(&at).unwrap().unwrap();
        assert_eq!(cache.get("a"), None);
        cache.put("a", b"cubin");
        let next = Cache::open(&at).unwrap().unwrap();
        assert_eq!(next.get("a").unwrap(), b"cubin");
        next.put("a", b"another");
        assert_eq!(cache.get("a").unwrap(), b"another");
        let files = std::fs::read_dir(&at).unwrap().count();
        assert_eq!(files, 1, "nothing is left beside it");
        cache.remove("a");
        assert_eq!(next.get("a"), None);
        let mode = std::fs::metadata(&at).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        std::fs::remove_dir_all(at).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_keeps_nothing() {
        let at = place("file");
        std::fs::write(&at, "a file").unwrap();
        assert!(Cache::open(&at.join("below")).unwrap().is_none());
        std::fs::remove_file(at).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_enter_is_refused() {
        let at = place("open");
        std::fs::create_dir(&at).unwrap();
        std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o711)).unwrap();
        let refused = Cache::open(&at).err().unwrap();
        assert!(refused.message.contains("other users"), "{refused}");
        std::fs::remove_dir_all(&at).unwrap();
        std::os::unix::fs::symlink("/", &at).unwrap();
        assert!(Cache::open(&at).is_err(), "a link is not followed");
        std::fs::remove_file(at).unwrap();
    }
}
