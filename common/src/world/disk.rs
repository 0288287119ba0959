//! The production [`Store`]: the operating system's files.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::store::{
    DirEntry, DiskSpace, EntryKind, FileIdentity, FileMode, Store, StoreError, StoreFile,
};
use super::{Job, Rng};

/// How long to wait for a file lock, which its holder keeps for the time of one small write.
const LOCK_BOUND: Duration = Duration::from_secs(2);
/// The pause between two attempts to lock a file.
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// A store on the operating system's file systems.
pub struct Disk {
    /// The source of the names of temporary files.
    rng: Arc<dyn Rng>,
}

impl Disk {
    /// Makes a store whose temporary names come from `rng`.
    pub fn new(rng: Arc<dyn Rng>) -> Self {
        Self { rng }
    }

    fn temporary(&self, path: &Path) -> Result<PathBuf, StoreError> {
        let Some(name) = path.file_name() else {
            return Err(StoreError::NotAFile {
                path: path.to_owned(),
            });
        };
        let tag = u64::from_le_bytes(self.rng.bytes());
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{tag:016x}.tmp"));
        Ok(path.with_file_name(temporary))
    }
}

fn file_bits(mode: FileMode) -> u32 {
    match mode {
        FileMode::Shared => 0o644,
        FileMode::Secret => 0o600,
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Makes a rename durable, which it is only once its folder is synced.
fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|error| StoreError::io("sync the folder", folder, error))
}

fn nanoseconds(seconds: i64, rest: i64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(rest)
}

fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // Without this flag, opening a pipe would block until another process writes to it.
    options
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32);
    options
}

struct DiskFile {
    file: File,
    path: PathBuf,
}

impl DiskFile {
    fn regular(file: File, path: PathBuf) -> Result<Arc<dyn StoreFile>, StoreError> {
        let meta = file
            .metadata()
            .map_err(|error| StoreError::io("examine", &path, error))?;
        if !meta.is_file() {
            return Err(StoreError::NotAFile { path });
        }
        Ok(Arc::new(Self { file, path }))
    }
}

impl StoreFile for DiskFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn identity(&self) -> Result<FileIdentity, StoreError> {
        let meta = self
            .file
            .metadata()
            .map_err(|error| StoreError::io("examine", &self.path, error))?;
        Ok(FileIdentity {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            modified_ns: nanoseconds(meta.mtime(), meta.mtime_nsec()),
            changed_ns: nanoseconds(meta.ctime(), meta.ctime_nsec()),
        })
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, StoreError> {
        let mut got = 0;
        while got < out.len() {
            match self.file.read_at(&mut out[got..], offset + got as u64) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(StoreError::io("read", &self.path, error)),
            }
        }
        Ok(got)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| StoreError::io("write", &self.path, error))
    }

    fn set_length(&self, length: u64) -> Result<(), StoreError> {
        self.file
            .set_len(length)
            .map_err(|error| StoreError::io("set the length of", &self.path, error))
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.file
            .sync_all()
            .map_err(|error| StoreError::io("sync", &self.path, error))
    }
}

impl Store for Disk {
    fn read(&self, path: &Path, limit: u64) -> Result<Vec<u8>, StoreError> {
        let failed = |error| StoreError::io("read", path, error);
        let file = open_options().open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        let path = path.to_owned();
        if !meta.is_file() {
            return Err(StoreError::NotAFile { path });
        }
        if meta.len() > limit {
            let size = meta.len();
            return Err(StoreError::TooLarge { path, size, limit });
        }
        let mut bytes = Vec::with_capacity(meta.len() as usize);
        // Reading one byte past the limit notices a file that grew meanwhile.
        file.take(limit.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|error| StoreError::io("read", &path, error))?;
        let size = bytes.len() as u64;
        if size > limit {
            return Err(StoreError::TooLarge { path, size, limit });
        }
        Ok(bytes)
    }

    fn write_atomic(&self, path: &Path, bytes: &[u8], mode: FileMode) -> Result<(), StoreError> {
        let temporary = self.temporary(path)?;
        let write = || {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(file_bits(mode))
                .open(&temporary)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(&temporary, path)
        };
        write().map_err(|error| {
            // Removing the temporary file is best effort: the error to report is that of the write.
            let _ = std::fs::remove_file(&temporary);
            StoreError::io("write", path, error)
        })?;
        sync_folder(folder_of(path))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn StoreFile>, StoreError> {
        let file = open_options()
            .open(path)
            .map_err(|error| StoreError::io("open", path, error))?;
        DiskFile::regular(file, path.to_owned())
    }

    fn open_beneath(&self, root: &Path, relative: &Path) -> Result<Arc<dyn StoreFile>, StoreError> {
        // Opens one component after the other without following a link, as openat2's RESOLVE_BENEATH |
        // RESOLVE_NO_SYMLINKS would; a container's filter may forbid that call. Without `..` no race can lead out of
        // the root.
        let escapes = || StoreError::Escapes {
            root: root.to_owned(),
            relative: relative.to_owned(),
        };
        let full = root.join(relative);
        let mut names = Vec::new();
        for component in relative.components() {
            match component {
                Component::Normal(name) => names.push(name),
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    return Err(escapes());
                }
            }
        }
        let Some((last, folders)) = names.split_last() else {
            return Err(StoreError::NotAFile { path: full });
        };
        let failed = |error: rustix::io::Errno| match error {
            // The path has a link in place of a folder or file.
            rustix::io::Errno::LOOP => escapes(),
            error => StoreError::io("open", &full, error.into()),
        };
        let mut at: OwnedFd = File::open(root)
            .map_err(|error| StoreError::io("open", root, error))?
            .into();
        for folder in folders {
            // O_PATH with O_NOFOLLOW opens a link itself; O_DIRECTORY then says "not a folder".
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
            at = rustix::fs::openat(&at, *folder, flags, Mode::empty()).map_err(
                |error| match error {
                    rustix::io::Errno::NOTDIR => escapes(),
                    error => failed(error),
                },
            )?;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&at, *last, flags, Mode::empty()).map_err(failed)?;
        DiskFile::regular(file.into(), full)
    }

    fn create(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn StoreFile>, StoreError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(file_bits(mode))
            .open(path)
            .map_err(|error| StoreError::io("create", path, error))?;
        DiskFile::regular(file, path.to_owned())
    }

    fn open_exclusive(
        &self,
        path: &Path,
        mode: FileMode,
    ) -> Result<Arc<dyn StoreFile>, StoreError> {
        let failed = |error| StoreError::io("open", path, error);
        let file = open_options()
            .write(true)
            .create(true)
            .mode(file_bits(mode))
            .open(path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => DiskFile::regular(file, path.to_owned()),
            Err(TryLockError::WouldBlock) => Err(StoreError::InUse {
                path: path.to_owned(),
            }),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "the callers' threads may block, and a lock of a file cannot be waited for with a bound"
    )]
    fn lock(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn StoreFile>, StoreError> {
        let started = std::time::Instant::now();
        loop {
            match self.open_exclusive(path, mode) {
                Err(StoreError::InUse { .. }) if started.elapsed() < LOCK_BOUND => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                done => return done,
            }
        }
    }

    fn replace(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        std::fs::rename(from, to).map_err(|error| StoreError::io("rename", from, error))
    }

    #[allow(clippy::disallowed_methods, reason = "files have the calendar's times")]
    fn touch(&self, path: &Path) -> Result<(), StoreError> {
        let failed = |error: rustix::io::Errno| StoreError::io("touch", path, error.into());
        // Uses the calendar's time: the time that file systems set advances in steps of milliseconds, too coarse to
        // tell which of two files was used first.
        let now = std::time::SystemTime::now();
        let now = now
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        let now = rustix::fs::Timespec {
            tv_sec: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: now.subsec_nanos().into(),
        };
        let times = rustix::fs::Timestamps {
            last_access: now,
            last_modification: now,
        };
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags).map_err(failed)
    }

    fn check_private(&self, path: &Path) -> Result<(), StoreError> {
        super::private::check(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        std::fs::rename(from, to).map_err(|error| StoreError::io("rename", from, error))?;
        sync_folder(folder_of(to))
    }

    fn list(&self, folder: &Path) -> Result<Vec<DirEntry>, StoreError> {
        let failed = |error| StoreError::io("list", folder, error);
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let meta = match entry.metadata() {
                Ok(meta) => meta,
                // The file was removed after the folder was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            let (kind, size) = if meta.is_file() {
                (EntryKind::File, meta.len())
            } else if meta.is_dir() {
                (EntryKind::Folder, 0)
            } else {
                (EntryKind::Other, 0)
            };
            entries.push(DirEntry {
                name: entry.file_name(),
                kind,
                size,
                modified_ns: nanoseconds(meta.mtime(), meta.mtime_nsec()),
            });
        }
        // File systems list entries in no fixed order.
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn remove(&self, path: &Path) -> Result<(), StoreError> {
        std::fs::remove_file(path).map_err(|error| StoreError::io("remove", path, error))
    }

    fn create_dir(&self, path: &Path, mode: FileMode) -> Result<(), StoreError> {
        let bits = match mode {
            FileMode::Shared => 0o755,
            FileMode::Secret => 0o700,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(bits)
            .create(path)
            .map_err(|error| StoreError::io("create the folder", path, error))
    }

    fn disk_space(&self, path: &Path) -> Result<DiskSpace, StoreError> {
        let stat = rustix::fs::statvfs(path)
            .map_err(|error| StoreError::io("examine the file system of", path, error.into()))?;
        Ok(DiskSpace {
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
            available: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "this is the seam that owns blocking threads"
    )]
    fn run_blocking(&self, job: Job) {
        tokio::task::spawn_blocking(job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::testing::Scratch;
    use crate::world::{SystemRng, off_thread};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn disk() -> Disk {
        Disk::new(Arc::new(SystemRng::default()))
    }

    fn permissions(path: &Path) -> u32 {
        std::fs::metadata(path)
            .expect("exists")
            .permissions()
            .mode()
            & 0o777
    }

    #[test]
    fn atomic_write_replaces_and_leaves_nothing_behind() {
        let (scratch, disk) = (Scratch::new(), disk());
        let path = scratch.path("state/key");
        let folder = scratch.path("state");
        disk.create_dir(&folder, FileMode::Secret).expect("folder");
        disk.write_atomic(&path, b"one", FileMode::Secret)
            .expect("write");
        disk.write_atomic(&path, b"two", FileMode::Secret)
            .expect("write");
        assert_eq!(disk.read(&path, 3).expect("read"), b"two");
        assert_eq!((permissions(&path), permissions(&folder)), (0o600, 0o700));
        let names: Vec<_> = disk.list(&folder).expect("list");
        assert_eq!(names.len(), 1);
        assert_eq!((names[0].kind, names[0].size), (EntryKind::File, 3));
        disk.remove(&path).expect("remove");
        assert!(disk.remove(&path).expect_err("gone").is_not_found());
    }

    #[test]
    fn sizes_are_checked_before_reading() {
        let (scratch, disk) = (Scratch::new(), disk());
        let path = scratch.path("big");
        disk.write_atomic(&path, &[0; 100], FileMode::Shared)
            .expect("write");
        let error = disk.read(&path, 99).expect_err("too large");
        assert!(matches!(error, StoreError::TooLarge { size: 100, .. }));
        let file = disk.open(&path).expect("open");
        let error = file.read_exact_at(90, &mut [0; 20]).expect_err("short");
        assert!(matches!(error, StoreError::Truncated { got: 10, .. }));
        let error = disk.open(&scratch.path("")).err().expect("a folder");
        assert!(matches!(error, StoreError::NotAFile { .. }));
    }

    #[test]
    fn a_created_file_is_written_anywhere_and_renamed() {
        let (scratch, disk) = (Scratch::new(), disk());
        let (part, whole) = (scratch.path("part"), scratch.path("whole"));
        let file = disk.create(&part, FileMode::Shared).expect("create");
        assert!(disk.create(&part, FileMode::Shared).is_err());
        let before = file.identity().expect("identity");
        file.write_at(4, b"5678").expect("write");
        file.write_at(0, b"1234").expect("write");
        file.sync().expect("sync");
        disk.rename(&part, &whole).expect("rename");
        assert_eq!(disk.read(&whole, 8).expect("read"), b"12345678");
        let after = file.identity().expect("identity");
        assert_eq!((before.inode, before.size), (after.inode, 0));
        assert_ne!(before, after);
        assert!(disk.disk_space(&whole).expect("space").total > 0);
    }

    #[test]
    fn an_exclusive_file_has_one_holder_and_keeps_its_content() {
        let (scratch, disk) = (Scratch::new(), disk());
        let path = scratch.path("state");
        let open = || disk.open_exclusive(&path, FileMode::Secret);
        let file = open().expect("made");
        assert!(matches!(open(), Err(StoreError::InUse { .. })));
        file.set_length(8).expect("room");
        file.write_at(6, b"abc").expect("write");
        drop(file);
        let file = open().expect("free again");
        assert_eq!(file.identity().expect("identity").size, 9);
        file.set_length(7).expect("cut");
        assert_eq!(disk.read(&path, 9).expect("read"), b"\0\0\0\0\0\0a");
        assert_eq!(permissions(&path), 0o600);
    }

    #[test]
    fn nothing_leads_out_of_the_root() {
        let (scratch, disk) = (Scratch::new(), disk());
        let root = scratch.path("root");
        for folder in ["root/a", "outside"] {
            disk.create_dir(&scratch.path(folder), FileMode::Shared)
                .expect("folder");
        }
        for file in ["root/a/inside", "outside/secret"] {
            disk.write_atomic(&scratch.path(file), b"x", FileMode::Shared)
                .expect("write");
        }
        symlink(scratch.path("outside"), root.join("folder-link")).expect("link");
        symlink(scratch.path("outside/secret"), root.join("file-link")).expect("link");
        let open = |relative: &str| disk.open_beneath(&root, Path::new(relative));

        assert!(open("a/inside").is_ok());
        assert!(open("./a/./inside").is_ok());
        for escaping in [
            "../outside/secret",
            "a/../../outside/secret",
            "folder-link/secret",
            "file-link",
            "/etc/passwd",
        ] {
            let error = open(escaping).err().expect(escaping);
            assert!(
                matches!(error, StoreError::Escapes { .. }),
                "{escaping}: {error}"
            );
        }
        assert!(open("a/absent").err().expect("absent").is_not_found());
        assert!(matches!(open("a").err(), Some(StoreError::NotAFile { .. })));
        assert!(matches!(open("").err(), Some(StoreError::NotAFile { .. })));
    }

    #[tokio::test]
    async fn blocking_work_leaves_the_runtime_free() {
        let (scratch, store) = (Scratch::new(), Arc::new(disk()) as Arc<dyn Store>);
        let path = scratch.path("file");
        let bytes = off_thread(&store, move |store| {
            store.write_atomic(&path, b"abc", FileMode::Shared)?;
            store.read(&path, 10)
        })
        .await
        .expect("both");
        assert_eq!(bytes, b"abc");
        let lost = off_thread::<()>(&store, |_| panic!("injected")).await;
        assert!(matches!(lost, Err(StoreError::Interrupted)));
    }
}
