//! The resources of this machine, and the default folders for files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use convoke_common::admission::chain;
use convoke_common::error::{Code, Error};
use convoke_common::world::{Disk, Store, SystemRng};
use convoke_graph::Printable;

use crate::text::failure::Failure;
use crate::text::output;
use crate::text::values::bytes;

/// The fraction of memory that a worker offers by default; the rest is left to the system.
const OFFERED: f64 = 0.8;
/// Bytes of memory that are assumed if /proc cannot be read: enough to start, and so few that any machine has them.
const UNKNOWN: u64 = 1 << 30;

/// The model name of this machine's processor.
pub fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut lines = text.lines().filter_map(|l| l.split_once(':'));
    let model = lines.find(|(key, _)| key.trim() == "model name");
    model.map_or("unknown".into(), |(_, name)| name.trim().to_owned())
}

/// Name and release of this machine's operating system.
pub fn kernel() -> String {
    let name = rustix::system::uname();
    let (system, release) = (name.sysname(), name.release());
    format!("{} {}", system.to_string_lossy(), release.to_string_lossy())
}

/// Bytes of memory of the machine, or of the container if its limit is lower.
pub fn memory() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo");
    let machine = machine.ok().and_then(|t| mem_total(&t));
    let all = machine.into_iter().chain(cgroup_limit()).min();
    all.unwrap_or(UNKNOWN)
}

/// Bytes that a worker offers by default: 80 % of [`memory`].
pub fn default_memory() -> u64 {
    (memory() as f64 * OFFERED) as u64
}

/// Warns on stderr if the workers of this machine offer more memory than it has.
pub fn warn_beyond(offered: u64) {
    let there = memory();
    if offered > there {
        let (offered, there) = (bytes(offered), bytes(there));
        output::note(&format!(
            "warning: {offered} are offered, and this machine has {there}: what does not fit is killed by the system"
        ));
    }
}

/// Checks that the folder that `flag` names can be read.
pub fn readable_folder(flag: &str, path: &Path) -> Result<(), Failure> {
    match std::fs::read_dir(path) {
        Ok(_) => Ok(()),
        Err(e) => {
            let path = Printable(&path.display().to_string()).to_string();
            let error = Error::new(Code::InvalidArgument, format!("{flag} {path}: {e}"));
            Err(error
                .advise("name a folder that is there and can be read")
                .into())
        }
    }
}

fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The lowest memory limit of this process' cgroup and its ancestors, if any has one.
fn cgroup_limit() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut limits: Vec<u64> = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            c if c.split(',').any(|c| c == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        // Inside a container the path may be that of the host; the root folder then holds the container's own limit.
        let folders = Path::new(path).ancestors();
        limits.extend(folders.filter_map(|folder| {
            let folder = folder.strip_prefix("/").unwrap_or(folder);
            let text = std::fs::read_to_string(Path::new(root).join(folder).join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        }));
    }
    limits.into_iter().min()
}

/// The number of cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// The machine's name, for errors and status.
pub fn hostname() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

/// The default state folder: `$XDG_STATE_HOME/convoke/WHAT`.
pub fn state_dir(what: &str) -> Result<PathBuf, Error> {
    folder("XDG_STATE_HOME", ".local/state", what, "--state-dir")
}

/// Checks that no other user of this host can change the contents of a state folder, or replace the folder.
pub fn check_private(dir: &Path) -> Result<(), Error> {
    let disk = Disk::new(Arc::new(SystemRng::default()));
    let checked = disk.check_private(dir);
    checked.map_err(|e| Error::new(Code::Io, chain(&e)))
}

/// The default cache folder: `$XDG_CACHE_HOME/convoke/WHAT`.
pub fn cache_dir(what: &str) -> Result<PathBuf, Error> {
    folder("XDG_CACHE_HOME", ".cache", what, "--cache-dir")
}

fn folder(variable: &str, under_home: &str, what: &str, flag: &str) -> Result<PathBuf, Error> {
    let set = |name: &str| {
        let value = std::env::var_os(name).map(PathBuf::from);
        value.filter(|p| p.is_absolute())
    };
    let base = set(variable).or_else(|| Some(set("HOME")?.join(under_home)));
    match base {
        Some(base) => Ok(base.join("convoke").join(what)),
        None => Err(
            Error::new(Code::Io, format!("neither {variable} nor HOME is set"))
                .advise(format!("name a folder with {flag} DIR")),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_proc() {
        let text = "MemFree: 5 kB\nMemTotal:       2048 kB\n";
        assert_eq!(mem_total(text), Some(2 << 20));
        assert_eq!(mem_total("MemTotal: many kB"), None);
        assert!(default_memory() > 1 << 20);
        assert!(memory() > default_memory());
        assert!(!hostname().is_empty() && cores() > 0);
        assert!(!cpu().is_empty() && kernel().starts_with("Linux "));
    }
}
