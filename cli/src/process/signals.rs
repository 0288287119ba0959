//! Waits for Ctrl-C and SIGTERM.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal as Kind, kill_process};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::text::failure::{self, Failure};

/// How long after a signal [`end_anyway`] and [`end_unnoticed`] wait for the process to end by itself.
const GRACE: Duration = Duration::from_secs(1);

/// Whether the network thread has noticed a signal since [`end_unnoticed`] looked last.
static NOTICED: AtomicBool = AtomicBool::new(false);

/// Receives SIGINT and SIGTERM from the time at which it is made.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

fn failed(e: std::io::Error) -> Failure {
    Failure::io("cannot wait for signals", &e)
}

impl Signals {
    /// Registers for the signals, which from now on no longer end the process.
    pub fn hear() -> Result<Signals, Failure> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Waits for either signal.
    pub async fn wait(&mut self) {
        self.next().await;
        NOTICED.store(true, Ordering::Release);
    }

    /// Does `work`; a signal that comes first drops it and returns [`Failure::Interrupted`].
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

    /// Does `work` that ends the command; a signal meanwhile, often the second Ctrl-C, is reported and ends the process
    /// at once.
    pub async fn or_exit<T>(&mut self, json: bool, work: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            () = self.wait() => {
                let _ = Failure::Interrupted.report(json);
                std::process::exit(130)
            }
            done = work => done,
        }
    }
}

/// Starts a thread that does `work` for as long as the process lasts.
fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let thread = std::thread::Builder::new().name(name.into());
    #[allow(
        clippy::disallowed_methods,
        reason = "a thread of the binary's own, which lasts as long as it does"
    )]
    let started = thread.spawn(work);
    started.map(drop).map_err(failed)
}

/// Starts a thread that does `work` with signals of its own, and with a runtime that receives them there.
fn apart(work: impl FnOnce(Runtime, Signals) + Send + 'static) -> Result<(), Failure> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().map_err(failed)?;
    let signals = {
        let _runtime = runtime.enter();
        Signals::hear()?
    };
    thread("signals", move || work(runtime, signals))
}

/// Starts a thread that ends this process one second after a signal: it kills the process's children, removes `folder`
/// and exits. Meant for work that keeps the network thread busy for longer than a person waits, so that the thread does
/// not notice signals.
pub fn end_anyway(folder: PathBuf) -> Result<(), Failure> {
    apart(move |runtime, mut signals| {
        runtime.block_on(async {
            signals.next().await;
            tokio::time::sleep(GRACE).await;
        });
        for child in children() {
            // The child may have ended meanwhile.
            let _ = kill_process(child, Kind::KILL);
        }
        // The folder may have been removed already.
        let _ = std::fs::remove_dir_all(&folder);
        std::process::exit(130)
    })
}

/// Starts a thread that ends this process one second after a signal that the network thread has not noticed by then:
/// the thread no longer waits for signals, or it is held up, for example by a pipe that nobody reads.
pub fn end_unnoticed(json: bool) -> Result<(), Failure> {
    apart(move |runtime, mut signals| {
        runtime.block_on(async {
            loop {
                signals.next().await;
                tokio::time::sleep(GRACE).await;
                if !NOTICED.swap(false, Ordering::AcqRel) {
                    return;
                }
            }
        });
        // A stream that nobody reads must not hold up the end; without the thread, only the report is missing.
        let _ = thread("report", move || failure::end_interrupted(json));
        runtime.block_on(async { tokio::time::sleep(GRACE).await });
        std::process::exit(130)
    })
}

/// The processes whose parent is this one.
fn children() -> impl Iterator<Item = Pid> {
    let folders = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = std::process::id().to_string();
    folders.filter_map(move |folder| {
        let pid = folder.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(folder.path().join("stat")).ok()?;
        // The process name, in parentheses, may contain any character; the state and the parent's id follow it.
        let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?;
        Pid::from_raw(pid).filter(|_| parent == own)
    })
}
