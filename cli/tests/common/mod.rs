//! Starts real processes of the binary, with bounded waits.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

pub mod clients;
pub mod cluster;
pub mod functions;
pub mod kernels;
pub mod partitions;
pub mod restarts;
pub mod usage;
pub mod waits;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

/// The longest wait for anything; it is generous because a loaded machine is slow.
pub const BOUND: Duration = Duration::from_secs(120);

/// The path of a file in `fixtures/`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures")
        .join(name)
}

/// The path of the binary: cargo tells it to tests; for an example, it lies one folder up. Tests of a package with
/// custom ops use that package's binary, which has the same commands.
fn binary() -> PathBuf {
    match option_env!("CARGO_BIN_EXE_convoke")
        .or(option_env!("CARGO_BIN_EXE_convoke-custom"))
        .or(option_env!("CARGO_BIN_EXE_convoke-file"))
    {
        Some(path) => path.into(),
        None => {
            let own = std::env::current_exe().unwrap();
            own.ancestors().nth(2).unwrap().join("convoke")
        }
    }
}

/// Makes a command of the binary, without the CONVOKE_ and OTEL_ variables of the environment.
pub fn convoke<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut c = Command::new(binary());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CONVOKE_") || text.starts_with("OTEL_") {
            c.env_remove(&name);
        }
    }
    c.args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    c
}

/// The exit code and output of a finished process.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    #[track_caller]
    pub fn expect(self, code: i32) -> Finished {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self
    }
}

/// Runs the binary to its end.
#[track_caller]
pub fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Finished {
    finish(convoke(args).spawn().unwrap())
}

/// Waits for the end of a process, at most [`BOUND`].
#[track_caller]
pub fn finish(mut child: Child) -> Finished {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let read = |from: Option<Box<dyn Read + Send>>| {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(mut from) = from {
                let _ = from.read_to_end(&mut text);
            }
            let _ = tell.send(String::from_utf8_lossy(&text).into_owned());
        });
        told
    };
    let out = read(out.map(|o| Box::new(o) as _));
    let err = read(err.map(|e| Box::new(e) as _));
    let stdout = out.recv_timeout(BOUND);
    if stdout.is_err() {
        child.kill().unwrap();
    }
    let stderr = err.recv_timeout(BOUND).unwrap_or_default();
    let code = child.wait().unwrap().code();
    let stdout = stdout.unwrap_or_else(|_| panic!("not finished in {BOUND:?}: {stderr}"));
    Finished {
        code,
        stdout,
        stderr,
    }
}

/// A running process whose stdout can be read line by line; dropping it kills the process.
pub struct Daemon {
    child: Option<Child>,
    /// The pipe whose closing ends a process with `--attached`, so that it ends with this process. It is taken out of
    /// `child`, whose `wait` would close it.
    _pipe: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
}

impl Daemon {
    pub fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Daemon {
        Daemon::logging(args, Stdio::inherit())
    }

    /// Starts a process whose log goes to `log`.
    pub fn logging<S: AsRef<OsStr>>(
        args: impl IntoIterator<Item = S>,
        log: impl Into<Stdio>,
    ) -> Daemon {
        Daemon::spawn(convoke(args).stderr(log))
    }

    pub fn spawn(command: &mut Command) -> Daemon {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let out: ChildStdout = child.stdout.take().unwrap();
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Daemon {
            _pipe: child.stdin.take(),
            child: Some(child),
            lines,
        }
    }

    /// The next line of the process' stdout.
    #[track_caller]
    pub fn line(&self) -> String {
        self.lines.recv_timeout(BOUND).expect("a line")
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Interrupts the process and waits for its end; returns its exit code.
    #[track_caller]
    pub fn interrupt(self) -> Option<i32> {
        self.signal(rustix::process::Signal::INT);
        self.wait()
    }

    /// Waits until the process ends; returns its exit code.
    #[track_caller]
    pub fn wait(mut self) -> Option<i32> {
        finish(self.child.take().unwrap()).code
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A folder that is removed at the end of the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        // Tests of one program may give their folders the same name.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let folder = format!("convoke-cli-{}-{number}-{name}", std::process::id());
        let path = std::env::temp_dir().join(folder);
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
