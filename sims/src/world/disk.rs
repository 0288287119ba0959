//! A host's disk: files in memory that outlive processes. Writes that were not synced may be lost when the power fails;
//! killing a process loses nothing.
//!
//! The name of a file becomes durable when the file is synced or renamed; the removal of a file is durable at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::world::{EntryKind, FileIdentity, StoreError};

use super::knobs::{Knobs, SurvivingWrites};
use crate::draw::Draw;

/// The number of the only device.
const DEVICE: u64 = 1;

/// The operating system's error code for a disk that fails.
const EIO: i32 = 5;

enum UnsyncedChange {
    Write { offset: u64, bytes: Vec<u8> },
    Length(u64),
}

impl UnsyncedChange {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            UnsyncedChange::Write { offset, bytes } => {
                let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[start..end].copy_from_slice(bytes);
            }
            UnsyncedChange::Length(length) => content.resize(*length as usize, 0),
        }
    }
}

#[derive(Default)]
pub(super) struct Inode {
    number: u64,
    /// The content that a reader sees.
    content: Vec<u8>,
    synced: Vec<u8>,
    unsynced: Vec<UnsyncedChange>,
    named: bool,
    /// When the file changed last, as a count of the disk's changes. It serves as the file's timestamps.
    changed: u64,
    exclusive: bool,
}

pub(super) type File = Arc<Mutex<Inode>>;

fn inode(file: &File) -> MutexGuard<'_, Inode> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inode {
    fn change(&mut self, change: UnsyncedChange, at: u64) {
        change.apply(&mut self.content);
        self.unsynced.push(change);
        self.changed = at;
    }

    fn sync(&mut self) {
        self.synced.clone_from(&self.content);
        self.unsynced.clear();
        self.named = true;
    }

    /// Replaces the content by what survives a power cut. Returns whether the file's name survives.
    fn cut(&mut self, surviving: SurvivingWrites, draw: &mut Draw) -> bool {
        let changes = std::mem::take(&mut self.unsynced);
        let kept = match surviving {
            SurvivingWrites::None => 0,
            SurvivingWrites::All => changes.len(),
            SurvivingWrites::Prefix => draw.below(changes.len() as u64 + 1) as usize,
        };
        let mut content = std::mem::take(&mut self.synced);
        changes[..kept].iter().for_each(|c| c.apply(&mut content));
        if surviving == SurvivingWrites::Prefix
            && let Some(UnsyncedChange::Write { offset, bytes }) = changes.get(kept)
        {
            let torn = draw.below(bytes.len() as u64 + 1) as usize;
            let (offset, bytes) = (*offset, bytes[..torn].to_vec());
            UnsyncedChange::Write { offset, bytes }.apply(&mut content);
        }
        self.content.clone_from(&content);
        self.synced = content;
        self.named || kept > 0 || surviving == SurvivingWrites::All
    }
}

#[derive(Default)]
struct Tree {
    files: BTreeMap<PathBuf, File>,
    folders: BTreeSet<PathBuf>,
    numbers: u64,
    /// The number of changes to all files.
    changes: u64,
    /// Whether the power has failed; nothing is read or written until the next start.
    dark: bool,
}

/// The files of one host, and what the power or a fault does to them.
pub struct Disk {
    tree: Mutex<Tree>,
    draw: Mutex<Draw>,
    pub(super) knobs: Arc<Knobs>,
}

fn io(operation: &'static str, path: &Path, kind: std::io::ErrorKind) -> StoreError {
    StoreError::io(operation, path, kind.into())
}

impl Disk {
    pub(super) fn new(draw: Draw, knobs: Arc<Knobs>) -> Disk {
        let folders = BTreeSet::from([PathBuf::from("/")]);
        Disk {
            tree: Mutex::new(Tree {
                folders,
                ..Tree::default()
            }),
            draw: Mutex::new(draw),
            knobs,
        }
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the power. What survives of the unsynced writes is drawn.
    pub fn cut(&self) {
        let mut draw = self.draw.lock().unwrap_or_else(PoisonError::into_inner);
        let surviving = draw.pick(&[
            SurvivingWrites::None,
            SurvivingWrites::All,
            SurvivingWrites::Prefix,
        ]);
        let mut tree = self.tree();
        tree.dark = true;
        tree.files.retain(|_, f| inode(f).cut(surviving, &mut draw));
    }

    /// Whether the power has failed and not returned.
    pub fn is_dark(&self) -> bool {
        self.tree().dark
    }

    /// Restores the power, and releases the files that the last process held exclusively.
    pub fn start(&self) {
        let mut tree = self.tree();
        tree.dark = false;
        tree.files.values().for_each(|f| inode(f).exclusive = false);
    }

    /// Takes over what another disk has in a folder, in place of its own.
    pub fn copy_folder(&self, from: &Disk, folder: &Path) {
        let theirs = from.tree();
        let copied = theirs.files.iter().filter(|(p, _)| p.starts_with(folder));
        let copied: Vec<(PathBuf, Vec<u8>)> = copied
            .map(|(path, file)| (path.clone(), inode(file).content.clone()))
            .collect();
        let folders = theirs.folders.iter().filter(|p| p.starts_with(folder));
        let folders: Vec<PathBuf> = folders.cloned().collect();
        drop(theirs);
        let mut tree = self.tree();
        tree.files.retain(|path, _| !path.starts_with(folder));
        tree.folders.extend(folders);
        for (path, content) in copied {
            tree.numbers += 1;
            let mut file = Inode {
                number: tree.numbers,
                content,
                ..Inode::default()
            };
            file.sync();
            tree.files.insert(path, Arc::new(Mutex::new(file)));
        }
    }

    /// All files and their sizes.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let tree = self.tree();
        let size = |f: &File| inode(f).content.len() as u64;
        tree.files
            .iter()
            .map(|(p, f)| (p.clone(), size(f)))
            .collect()
    }

    /// Fails if the disk has no power, or if the scenario makes it fail. Every operation calls this first.
    fn works(&self, operation: &'static str, path: &Path) -> Result<(), StoreError> {
        if self.is_dark() {
            return Err(io(operation, path, std::io::ErrorKind::Other));
        }
        match self.knobs.disk_fails() {
            true => Err(StoreError::io(
                operation,
                path,
                std::io::Error::from_raw_os_error(EIO),
            )),
            false => Ok(()),
        }
    }

    /// Fails if the disk cannot be written. Every change of a file or a name calls this first, and the power may fail
    /// in it.
    fn may_change(&self, operation: &'static str, path: &Path) -> Result<(), StoreError> {
        self.works(operation, path)?;
        if self.knobs.cuts_power() {
            self.cut();
        }
        self.works(operation, path)?;
        match self.knobs.disk_is_full() {
            true => Err(io(operation, path, std::io::ErrorKind::StorageFull)),
            false => Ok(()),
        }
    }

    pub(super) fn find(&self, operation: &'static str, path: &Path) -> Result<File, StoreError> {
        self.works(operation, path)?;
        let tree = self.tree();
        if let Some(file) = tree.files.get(path) {
            return Ok(file.clone());
        }
        Err(match tree.folders.contains(path) {
            true => StoreError::NotAFile { path: path.into() },
            false => StoreError::NotFound { path: path.into() },
        })
    }

    pub(super) fn make(&self, path: &Path, overwrite: bool) -> Result<File, StoreError> {
        self.may_change("create", path)?;
        let mut tree = self.tree();
        if tree.folders.contains(path) {
            return Err(StoreError::NotAFile { path: path.into() });
        }
        if !path.parent().is_some_and(|p| tree.folders.contains(p)) {
            return Err(StoreError::NotFound { path: path.into() });
        }
        if !overwrite && tree.files.contains_key(path) {
            return Err(io("create", path, std::io::ErrorKind::AlreadyExists));
        }
        tree.numbers += 1;
        let number = tree.numbers;
        let file = File::new(Mutex::new(Inode {
            number,
            ..Inode::default()
        }));
        tree.files.insert(path.into(), file.clone());
        Ok(file)
    }

    /// Opens a file for one holder at a time, and creates it if it is missing.
    pub(super) fn hold(&self, path: &Path) -> Result<File, StoreError> {
        let file = match self.find("open", path) {
            Err(StoreError::NotFound { .. }) => self.make(path, false)?,
            found => found?,
        };
        if std::mem::replace(&mut inode(&file).exclusive, true) {
            return Err(StoreError::InUse { path: path.into() });
        }
        Ok(file)
    }

    pub(super) fn let_go(file: &File) {
        inode(file).exclusive = false;
    }

    pub(super) fn identity(&self, file: &File) -> FileIdentity {
        let f = inode(file);
        FileIdentity {
            device: DEVICE,
            inode: f.number,
            size: f.content.len() as u64,
            modified_ns: i128::from(f.changed),
            changed_ns: i128::from(f.changed),
        }
    }

    pub(super) fn read(
        &self,
        file: &File,
        path: &Path,
        offset: u64,
        out: &mut [u8],
    ) -> Result<usize, StoreError> {
        self.works("read", path)?;
        let f = inode(file);
        let start = f.content.len().min(offset as usize);
        let got = out.len().min(f.content.len() - start);
        out[..got].copy_from_slice(&f.content[start..start + got]);
        self.flip(&mut out[..got]);
        Ok(got)
    }

    /// Flips a bit of what was read, where the scenario has the disk do that and it is this read's turn.
    fn flip(&self, read: &mut [u8]) {
        let rate = self.knobs.disk_flips();
        if rate == 0 || read.is_empty() {
            return;
        }
        let mut draw = self.draw.lock().unwrap_or_else(PoisonError::into_inner);
        if draw.below(1_000_000) < u64::from(rate) {
            let bit = draw.below(8 * read.len() as u64);
            read[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }

    pub(super) fn write(
        &self,
        file: &File,
        path: &Path,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        self.may_change("write", path)?;
        let bytes = bytes.to_vec();
        let at = self.tick();
        inode(file).change(UnsyncedChange::Write { offset, bytes }, at);
        Ok(())
    }

    pub(super) fn length(&self, file: &File, path: &Path, length: u64) -> Result<(), StoreError> {
        self.may_change("set the length of", path)?;
        let at = self.tick();
        inode(file).change(UnsyncedChange::Length(length), at);
        Ok(())
    }

    fn tick(&self) -> u64 {
        let mut tree = self.tree();
        tree.changes += 1;
        tree.changes
    }

    pub(super) fn touch(&self, path: &Path) -> Result<(), StoreError> {
        let file = self.find("touch", path)?;
        inode(&file).changed = self.tick();
        Ok(())
    }

    pub(super) fn sync(&self, file: &File, path: &Path) -> Result<(), StoreError> {
        self.works("sync", path)?;
        inode(file).sync();
        Ok(())
    }

    /// Writes a file and syncs it in place of any other at this path. A power cut leaves the whole new file or none of
    /// it.
    pub(super) fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let file = self.make(path, true)?;
        let mut f = inode(&file);
        f.content = bytes.to_vec();
        f.sync();
        Ok(())
    }

    pub(super) fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.may_change("rename", from)?;
        let mut tree = self.tree();
        let Some(file) = tree.files.remove(from) else {
            return Err(StoreError::NotFound { path: from.into() });
        };
        inode(&file).named = true;
        tree.files.insert(to.into(), file);
        Ok(())
    }

    pub(super) fn remove(&self, path: &Path) -> Result<(), StoreError> {
        self.may_change("remove", path)?;
        match self.tree().files.remove(path) {
            Some(_) => Ok(()),
            None => Err(StoreError::NotFound { path: path.into() }),
        }
    }

    pub(super) fn make_folder(&self, path: &Path) -> Result<(), StoreError> {
        self.may_change("create the folder", path)?;
        let mut tree = self.tree();
        let above: Vec<PathBuf> = path.ancestors().map(Path::to_owned).collect();
        tree.folders.extend(above);
        Ok(())
    }

    /// The path, kind, size and time of change of each entry of a folder.
    pub(super) fn entries(
        &self,
        folder: &Path,
    ) -> Result<Vec<(PathBuf, EntryKind, u64, u64)>, StoreError> {
        self.works("list", folder)?;
        let tree = self.tree();
        if !tree.folders.contains(folder) {
            return Err(StoreError::NotFound {
                path: folder.into(),
            });
        }
        let inside = |p: &&PathBuf| p.parent() == Some(folder);
        let files = tree.files.iter().filter(|(p, _)| inside(p));
        let mut all: Vec<_> = files
            .map(|(p, f)| {
                let f = inode(f);
                (
                    p.clone(),
                    EntryKind::File,
                    f.content.len() as u64,
                    f.changed,
                )
            })
            .collect();
        let folders = tree.folders.iter().filter(inside);
        all.extend(folders.map(|p| (p.clone(), EntryKind::Folder, 0, 0)));
        all.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(all)
    }
}
