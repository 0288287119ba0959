//! What a process holds, as the system counts it.

use std::fmt;

/// Memory and open files of one process at one time.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Bytes of memory of its own that are resident: no file's pages, which come and go with the page cache.
    pub memory: u64,
    /// File descriptors.
    pub files: usize,
}

impl Usage {
    /// Of the process with this id.
    pub fn of(pid: u32) -> Usage {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
        let kib = line.unwrap().trim().trim_end_matches(" kB");
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        // The folder that lists them is one of them where a process looks at itself.
        let own = usize::from(pid == std::process::id());
        Usage {
            memory: kib.parse::<u64>().unwrap() * 1024,
            files: files.count() - own,
        }
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = self.memory / 1024;
        write!(f, "{kib} KiB, {} files", self.files)
    }
}
