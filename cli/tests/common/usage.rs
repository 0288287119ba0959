//! The memory and files of a process, as the system counts them.

use std::fmt;

/// Memory and open files of one process at one time.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Resident bytes of anonymous memory; pages of files are left out, as they come and go with the page cache.
    pub memory: u64,
    /// The number of open file descriptors.
    pub files: usize,
}

impl Usage {
    /// The usage of the process with this id.
    pub fn of(pid: u32) -> Usage {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
        let kib = line.unwrap().trim().trim_end_matches(" kB");
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        // A process that looks at itself counts the descriptor of the folder that it lists.
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
