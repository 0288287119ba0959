//! The file of the audit log: whole lines are appended to it, and a few older files are kept beside it.

use std::path::{Path, PathBuf};

use convoke_common::world::{FileMode, Store, StoreError};

/// The file's name in the state folder. Older files have the suffixes `.1`, `.2`, …, the most recent first.
const FILE: &str = "audit.log";

/// Largest size of one file, in bytes.
const LARGEST: u64 = 16 << 20;

/// Number of older files that are kept.
const KEPT: u32 = 4;

/// The audit log's file and the older ones beside it.
#[derive(Debug, Clone)]
pub struct AuditFile {
    folder: PathBuf,
    largest: u64,
}

impl AuditFile {
    /// Returns the log in a folder that exists.
    pub fn of(folder: &Path) -> AuditFile {
        AuditFile {
            folder: folder.to_owned(),
            largest: LARGEST,
        }
    }

    fn path(&self, age: u32) -> PathBuf {
        self.folder.join(match age {
            0 => FILE.to_owned(),
            age => format!("{FILE}.{age}"),
        })
    }

    /// Appends whole lines, all of them or none; they survive a power cut once this returns. The file is opened for
    /// each call, so that a new one is created after somebody moved the old one away.
    pub fn append(&self, store: &dyn Store, lines: &str) -> Result<(), StoreError> {
        let mut file = store.open_exclusive(&self.path(0), FileMode::Secret)?;
        let mut size = file.identity()?.size;
        if size > 0 {
            let mut last = [0];
            file.read_exact_at(size - 1, &mut last)?;
            // A crash left an unfinished line at the end: terminate it.
            if last != *b"\n" {
                file.write_at(size, b"\n")?;
                size += 1;
            }
            if size.saturating_add(lines.len() as u64) > self.largest {
                file.sync()?;
                drop(file);
                self.shift(store)?;
                file = store.open_exclusive(&self.path(0), FileMode::Secret)?;
                size = 0;
            }
        }
        let written = file
            .write_at(size, lines.as_bytes())
            .and_then(|()| file.sync());
        written.inspect_err(|_| {
            // If this fails too, the next append terminates the partial line that is left.
            let _ = file.set_length(size);
        })
    }

    /// Renames each file to the next suffix, up to the first suffix that is free, or over the oldest file. A shift that
    /// a crash interrupted is thereby completed by the next one, without losing a file.
    fn shift(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut to = 1;
        while to < KEPT && self.is_there(store, to)? {
            to += 1;
        }
        (0..to)
            .rev()
            .try_for_each(|age| store.rename(&self.path(age), &self.path(age + 1)))
    }

    fn is_there(&self, store: &dyn Store, age: u32) -> Result<bool, StoreError> {
        match store.open(&self.path(age)) {
            Ok(_) => Ok(true),
            Err(e) if e.is_not_found() => Ok(false),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::filling::FillableDisk;
    use crate::service::testing::Scratch;

    /// A log whose files hold 16 bytes at most, in a folder of its own.
    fn small() -> (Scratch, AuditFile) {
        let scratch = Scratch::new();
        let file = AuditFile {
            folder: scratch.path().to_owned(),
            largest: 16,
        };
        (scratch, file)
    }

    /// The folder's files with their contents, sorted by name.
    fn held(file: &AuditFile) -> Vec<(String, String)> {
        let mut names: Vec<String> = std::fs::read_dir(&file.folder)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let read = |name: String| {
            let text = std::fs::read_to_string(file.folder.join(&name)).unwrap();
            (name, text)
        };
        names.into_iter().map(read).collect()
    }

    #[track_caller]
    fn check(file: &AuditFile, expected: &[(&str, &str)]) {
        let held = held(file);
        let held: Vec<_> = held.iter().map(|(n, t)| (n.as_str(), t.as_str())).collect();
        assert_eq!(held, expected);
    }

    #[test]
    fn a_full_file_makes_room_and_the_oldest_goes() {
        let ((_scratch, file), store) = (small(), FillableDisk::new());
        for n in 0..12 {
            file.append(&store, &format!("line {n:2}\n")).unwrap();
        }
        check(
            &file,
            &[
                ("audit.log", "line 10\nline 11\n"),
                ("audit.log.1", "line  8\nline  9\n"),
                ("audit.log.2", "line  6\nline  7\n"),
                ("audit.log.3", "line  4\nline  5\n"),
                ("audit.log.4", "line  2\nline  3\n"),
            ],
        );
        let mode = |name: &str| {
            let meta = std::fs::metadata(file.folder.join(name)).unwrap();
            meta.permissions().mode() & 0o777
        };
        assert_eq!((mode("audit.log"), mode("audit.log.4")), (0o600, 0o600));
    }

    #[test]
    fn a_file_that_moved_on_before_a_crash_is_not_moved_twice() {
        let ((_scratch, file), store) = (small(), FillableDisk::new());
        for n in 0..10 {
            file.append(&store, &format!("line {n:2}\n")).unwrap();
        }
        // The state after a machine stopped in the middle of the next shift.
        std::fs::rename(file.path(3), file.path(4)).unwrap();
        std::fs::rename(file.path(2), file.path(3)).unwrap();
        file.append(&store, "line 10\n").unwrap();
        check(
            &file,
            &[
                ("audit.log", "line 10\n"),
                ("audit.log.1", "line  8\nline  9\n"),
                ("audit.log.2", "line  6\nline  7\n"),
                ("audit.log.3", "line  4\nline  5\n"),
                ("audit.log.4", "line  2\nline  3\n"),
            ],
        );
    }

    #[test]
    fn lines_larger_than_a_file_are_whole() {
        let ((_scratch, file), store) = (small(), FillableDisk::new());
        let long = format!("{}\n", "x".repeat(40));
        file.append(&store, &long).unwrap();
        file.append(&store, "next\n").unwrap();
        check(&file, &[("audit.log", "next\n"), ("audit.log.1", &long)]);
    }

    #[test]
    fn a_line_that_a_crash_cut_off_is_ended() {
        let ((_scratch, file), store) = (small(), FillableDisk::new());
        std::fs::write(file.path(0), "torn").unwrap();
        file.append(&store, "whole\n").unwrap();
        check(&file, &[("audit.log", "torn\nwhole\n")]);
        // The unfinished line is handled also if the next append shifts the files.
        std::fs::write(file.path(0), "whole\ntorn again").unwrap();
        file.append(&store, "whole\n").unwrap();
        check(
            &file,
            &[
                ("audit.log", "whole\n"),
                ("audit.log.1", "whole\ntorn again\n"),
            ],
        );
    }

    #[test]
    fn a_full_disk_takes_all_lines_or_none() {
        let ((_scratch, file), store) = (small(), FillableDisk::new());
        file.append(&store, "one\n").unwrap();
        store.is_full.store(true, Ordering::Relaxed);
        assert!(file.append(&store, "two\n").is_err());
        store.is_full.store(false, Ordering::Relaxed);
        // The disk accepts two bytes of the line before it is full.
        store.room.store(2, Ordering::Relaxed);
        assert!(file.append(&store, "three\n").is_err());
        check(&file, &[("audit.log", "one\n")]);
        store.room.store(u64::MAX, Ordering::Relaxed);
        file.append(&store, "four\n").unwrap();
        check(&file, &[("audit.log", "one\nfour\n")]);
    }
}
