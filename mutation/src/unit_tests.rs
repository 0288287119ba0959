//! Runs the unit tests: which mutants each reaches, and which mutants they notice.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// A test that takes longer is not used: another one has to notice.
const LONGEST: Duration = Duration::from_secs(6);
/// A mutant's tests may take this many times as long as without it, and this much more.
const SLOWER: (u32, Duration) = (8, Duration::from_secs(3));
/// How many tests a process runs at first, and how many the next: most mutants die in the first few.
const FIRST: [usize; 3] = [2, 8, 40];

/// A binary of unit tests, and the folder that its tests run in.
pub struct Binary {
    pub path: PathBuf,
    pub folder: PathBuf,
}

/// A unit test: its time, and the mutants that it reaches.
pub struct Test {
    pub name: String,
    pub takes: Duration,
    pub reaches: BTreeSet<usize>,
}

/// The verdict on a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Killed,
    /// Tests reach it, and pass.
    Survived,
    /// No test reaches it.
    Unreached,
}

impl Binary {
    /// Runs tests with these variables; `false` where one fails, or they take too long. The processes that tests start end
    /// with them when they take too long.
    pub fn run(&self, tests: &[&str], vars: &[(&str, &str)], bound: Duration) -> Result<bool> {
        let mut command = Command::new(&self.path);
        command.args(tests).args(["--exact", "--test-threads=1"]);
        command.envs(vars.iter().copied());
        command.env("CARGO_MANIFEST_DIR", &self.folder);
        command.current_dir(&self.folder);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.process_group(0);
        let mut child = command.spawn().context("a test cannot be started")?;
        let begun = Instant::now();
        loop {
            if let Some(ended) = child.try_wait()? {
                return Ok(ended.success());
            }
            if begun.elapsed() > bound {
                // The group's number is that of the child, which nobody else gets before it is waited for.
                let killed = kill_group(child.id());
                child.kill()?;
                child.wait()?;
                return killed.map(|()| false);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn names(&self) -> Result<Vec<String>> {
        let mut command = Command::new(&self.path);
        let listed = command.args(["--list", "--format", "terse"]).output()?;
        let listed = String::from_utf8(listed.stdout)?;
        let names = listed.lines().filter_map(|l| l.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }

    /// Runs each test by itself, without a mutant. Leaves out those that fail or take long.
    pub fn survey(&self, scratch: &Path) -> Result<Vec<Test>> {
        let names = self.names()?;
        each(&names, |i, name| {
            let told = scratch.join(format!("seen-{i}"));
            let _ = std::fs::remove_file(&told);
            let path = told.to_string_lossy().into_owned();
            let begun = Instant::now();
            let passed = self.run(
                &[name.as_str()],
                &[("CONVOKE_MUTATION_SEEN", &path)],
                LONGEST,
            )?;
            let takes = begun.elapsed();
            let seen = std::fs::read_to_string(&told).unwrap_or_default();
            let reaches = seen.lines().filter_map(|l| l.parse().ok()).collect();
            Ok(passed.then(|| Test {
                name: name.clone(),
                takes,
                reaches,
            }))
        })
        .map(|tests| tests.into_iter().flatten().collect())
    }

    /// Tells whether a test that reaches a mutant notices it.
    pub fn judge(&self, tests: &[Test], mutant: usize) -> Result<Verdict> {
        let mut reaching: Vec<&Test> = tests
            .iter()
            .filter(|t| t.reaches.contains(&mutant))
            .collect();
        if reaching.is_empty() {
            return Ok(Verdict::Unreached);
        }
        reaching.sort_by_key(|t| t.takes);
        let number = mutant.to_string();
        let (mut rest, mut sizes) = (reaching.as_slice(), FIRST.into_iter());
        while !rest.is_empty() {
            let (some, more) = rest.split_at(rest.len().min(sizes.next().unwrap_or(rest.len())));
            let names: Vec<&str> = some.iter().map(|t| t.name.as_str()).collect();
            let takes: Duration = some.iter().map(|t| t.takes).sum();
            let bound = takes * SLOWER.0 + SLOWER.1;
            if !self.run(&names, &[("CONVOKE_MUTATION", &number)], bound)? {
                return Ok(Verdict::Killed);
            }
            rest = more;
        }
        Ok(Verdict::Survived)
    }
}

/// Kills a process group.
fn kill_group(group: u32) -> Result<()> {
    let script = format!("kill -s KILL -- -{group}");
    let killed = Command::new("sh").args(["-c", &script]).status()?;
    ensure!(killed.success(), "a process group cannot be killed");
    Ok(())
}

/// Does something with each item, on as many threads as there are cores; returns the results in the order of the items.
pub fn each<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(usize, &T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(i) else { break };
                    let result = work(i, item);
                    done.lock()
                        .unwrap_or_else(|e| e.into_inner())
                        .insert(i, result);
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_else(|e| e.into_inner());
    done.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_test_started_ends_with_it_when_it_takes_too_long() {
        let folder = std::env::temp_dir().join(format!("convoke-mutation-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let made = Command::new("mkfifo").arg(folder.join("held")).status();
        assert!(made.unwrap().success());
        let binary = Binary {
            path: "/bin/sh".into(),
            folder: folder.clone(),
        };
        let (begun, held) = (Instant::now(), folder.join("held"));
        std::thread::scope(|scope| {
            // This is at the end of the pipe once no process holds it any more.
            let read = scope.spawn(|| std::fs::read_to_string(&held).unwrap());
            let tests = ["-c", "exec 3>held; echo begun >&3; sleep 60 & wait"];
            let bound = Duration::from_secs(2);
            assert!(!binary.run(&tests, &[], bound).unwrap());
            // Had nobody opened the pipe, this would let the reader go on.
            let opened = std::fs::File::options().read(true).write(true).open(&held);
            drop(opened.unwrap());
            assert_eq!(read.join().unwrap(), "begun\n");
        });
        assert!(begun.elapsed() < Duration::from_secs(30));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
