//! Ctrl-C and SIGTERM.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal as Kind, kill_process};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// How long work that looks for signals itself has to end before [`end_anyway`] ends the process.
const GRACE: Duration = Duration::from_secs(1);

/// Hears SIGINT and SIGTERM from the time it is made.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Instead of ending the process, the signals are heard from now on.
    pub fn hear() -> Result<Signals, Failure> {
        let failed = |e: std::io::Error| Failure::io("cannot wait for signals", &e);
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
        })
    }

    /// Waits for one of them.
    pub async fn wait(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Does `work` unless a signal comes first, which drops it.
    pub async fn or<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            () = self.wait() => Err(Failure::Interrupted),
            done = work => done,
        }
    }

    /// Does `work`; a signal ends the process at once, for those who ask twice.
    pub async fn or_exit<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            () = self.wait() => std::process::exit(130),
            done = work => done,
        }
    }
}

/// Ends this process a second after a signal, however busy its other threads are: kills its children, removes `folder` and
/// exits. For work that keeps a thread busy for longer than a person waits, and so hears no signal itself.
pub fn end_anyway(folder: PathBuf) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::io("cannot wait for signals", &e);
    // This runtime hears signals on a thread of its own.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().map_err(failed)?;
    let mut signals = {
        let _runtime = runtime.enter();
        Signals::hear()?
    };
    let wait = move || {
        runtime.block_on(async {
            signals.wait().await;
            tokio::time::sleep(GRACE).await;
        });
        for child in children() {
            // It may have ended meanwhile.
            let _ = kill_process(child, Kind::KILL);
        }
        // The folder may be gone, which is as well.
        let _ = std::fs::remove_dir_all(&folder);
        std::process::exit(130);
    };
    let thread = std::thread::Builder::new().name("signals".into());
    #[allow(
        clippy::disallowed_methods,
        reason = "a thread of the binary's own, which lasts as long as it does"
    )]
    let started = thread.spawn(wait);
    started.map(drop).map_err(failed)
}

/// The processes whose parent is this one.
fn children() -> impl Iterator<Item = Pid> {
    let folders = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = std::process::id().to_string();
    folders.filter_map(move |folder| {
        let pid = folder.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(folder.path().join("stat")).ok()?;
        // The name in brackets may hold anything; after it come the state and the parent.
        let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?;
        Pid::from_raw(pid).filter(|_| parent == own)
    })
}
