//! Notifications between tasks, and the threads that run tasks, over the checker's locks. The models of the client use
//! this file too.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::{Condvar, Mutex};

/// Notifies waiting tasks, with the contract of tokio's type of this name.
#[derive(Default)]
pub(crate) struct Notify(Mutex<NotifyState>);

#[derive(Default)]
struct NotifyState {
    /// Whether a notification of one waits for somebody to take it.
    permit: bool,
    /// Number of notifications of all.
    rounds: u64,
    waiters: Vec<(u64, Waker)>,
    next: u64,
}

/// The wait for a notification.
pub(crate) struct Notified<'a> {
    notify: &'a Notify,
    /// Number of notifications of all when the wait began.
    rounds: u64,
    progress: Progress,
}

#[derive(Clone, Copy, PartialEq)]
enum Progress {
    Begun,
    /// Among the waiters, under this number.
    Waiting(u64),
    Done,
}

impl Notify {
    pub(crate) fn new() -> Notify {
        Notify::default()
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        Notified {
            notify: self,
            rounds: self.0.lock().unwrap().rounds,
            progress: Progress::Begun,
        }
    }

    pub(crate) fn notify_one(&self) {
        let mut state = self.0.lock().unwrap();
        if state.waiters.is_empty() {
            state.permit = true;
            return;
        }
        let (_, waker) = state.waiters.remove(0);
        drop(state);
        waker.wake();
    }

    pub(crate) fn notify_waiters(&self) {
        let mut state = self.0.lock().unwrap();
        state.rounds += 1;
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        waiters.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

impl Notified<'_> {
    pub(crate) fn enable(self: Pin<&mut Self>) -> bool {
        self.poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let waker = context.waker().clone();
        let mut state = self.notify.0.lock().unwrap();
        let told = state.rounds != self.rounds;
        let next = match self.progress {
            Progress::Done => Progress::Done,
            Progress::Begun if told => Progress::Done,
            Progress::Begun if std::mem::take(&mut state.permit) => Progress::Done,
            Progress::Begun => {
                let number = state.next;
                state.next += 1;
                state.waiters.push((number, waker));
                Progress::Waiting(number)
            }
            Progress::Waiting(number) => {
                match state.waiters.iter_mut().find(|(n, _)| *n == number) {
                    Some((_, former)) => {
                        *former = waker;
                        Progress::Waiting(number)
                    }
                    None => Progress::Done,
                }
            }
        };
        drop(state);
        self.progress = next;
        match next {
            Progress::Done => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        if let Progress::Waiting(number) = self.progress {
            let mut state = self.notify.0.lock().unwrap();
            state.waiters.retain(|(n, _)| *n != number);
        }
    }
}

/// Wakes a thread that waits for a future.
#[derive(Default)]
struct ThreadWaker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

/// Runs a future to its end on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let thread = Arc::<ThreadWaker>::default();
    let waker = Waker::from(thread.clone());
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        let mut woken = thread.woken.lock().unwrap();
        while !std::mem::take(&mut *woken) {
            woken = thread.changed.wait(woken).unwrap();
        }
    }
}
