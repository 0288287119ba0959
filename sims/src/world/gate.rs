//! The gate that every task of a host passes: through it, the host is stopped and continued as a whole, as by SIGSTOP
//! and SIGCONT.
//!
//! While the gate is closed, no task of the host is polled. Its timers fire and its sockets fill, and each task finds
//! out late, once the gate opens.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use convoke_common::world::BoxFuture;
use tokio::task::JoinHandle;

use super::host::Host;

thread_local!(static CURRENT: Cell<Option<Host>> = const { Cell::new(None) });

/// The host whose code runs on this thread at the moment.
pub fn current_host() -> Option<Host> {
    CURRENT.get()
}

/// Marks the host whose code runs on this thread, until it is dropped.
pub struct HostGuard(Option<Host>);

impl HostGuard {
    /// Marks `host` from now on.
    pub fn of(host: Host) -> HostGuard {
        HostGuard(CURRENT.replace(Some(host)))
    }
}

impl Drop for HostGuard {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// The gate of one host, which also counts the host's tasks.
pub struct Gate {
    host: Host,
    closed: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
    alive: AtomicUsize,
}

impl Gate {
    pub(crate) fn new(host: Host) -> Arc<Gate> {
        Arc::new(Gate {
            host,
            closed: AtomicBool::new(false),
            waiting: Mutex::default(),
            alive: AtomicUsize::new(0),
        })
    }

    /// The host that this gate belongs to.
    pub fn host(&self) -> Host {
        self.host
    }

    /// Stops all tasks of the host.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Lets the tasks of the host continue.
    pub fn open(&self) {
        self.closed.store(false, Ordering::Relaxed);
        let waiting = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Whether the host is stopped.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Tasks of this host that have not ended, except those of the transport.
    pub fn tasks(&self) -> usize {
        self.alive.load(Ordering::Relaxed)
    }

    /// Puts a task of this host behind the gate, and counts it until it is dropped.
    pub fn wrap(self: &Arc<Self>, task: BoxFuture<'static, ()>) -> GatedTask {
        self.alive.fetch_add(1, Ordering::Relaxed);
        GatedTask {
            gate: self.clone(),
            task: Some(task),
            counts: true,
        }
    }

    /// Spawns a task of the transport, which outlives its connection while late packets may still arrive.
    #[allow(
        clippy::disallowed_methods,
        reason = "this is the seam that owns spawning"
    )]
    pub fn spawn_transport(self: &Arc<Self>, task: BoxFuture<'static, ()>) {
        tokio::spawn(GatedTask {
            gate: self.clone(),
            task: Some(task),
            counts: false,
        });
    }

    /// Spawns a task of this host on the current runtime, which belongs to the host.
    #[allow(
        clippy::disallowed_methods,
        reason = "this is the seam that owns spawning"
    )]
    pub fn spawn(self: &Arc<Self>, task: BoxFuture<'static, ()>) -> JoinHandle<()> {
        tokio::spawn(self.wrap(task))
    }
}

/// A task behind a gate.
pub struct GatedTask {
    gate: Arc<Gate>,
    task: Option<BoxFuture<'static, ()>>,
    /// Whether the task counts towards [`Gate::tasks`].
    counts: bool,
}

impl Future for GatedTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Some(task) = &mut this.task else {
            return Poll::Ready(());
        };
        if this.gate.is_closed() {
            let mut waiting = this
                .gate
                .waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if !waiting.iter().any(|w| w.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            return Poll::Pending;
        }
        let _inside = HostGuard::of(this.gate.host);
        let polled = task.as_mut().poll(cx);
        if polled.is_ready() {
            this.task = None;
        }
        polled
    }
}

impl Drop for GatedTask {
    fn drop(&mut self) {
        // Destructors of what the task holds run in its host's name, even if the host's process is killed.
        let _inside = HostGuard::of(self.gate.host);
        self.task = None;
        if self.counts {
            self.gate.alive.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
