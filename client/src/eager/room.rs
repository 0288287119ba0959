//! The wait for room in a session.
//!
//! Invariant: whoever waits for room is woken after each change that may make some. A change of the session's state is
//! made under its lock; the bytes of puts are changed without it.

use std::sync::PoisonError;

use crate::primitives::{AtomicU64, Condvar, Mutex, MutexGuard, Notify, Ordering};

/// The bytes of puts that are on their way, and those who wait for room in a session.
#[derive(Default)]
pub(super) struct Room {
    putting: AtomicU64,
    tasks: Notify,
    threads: Condvar,
}

impl Room {
    /// Bytes of puts that are on their way.
    pub fn putting(&self) -> u64 {
        self.putting.load(Ordering::Relaxed)
    }

    /// Counts a put that begins.
    pub fn put(&self, bytes: u64) {
        self.putting.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts the end of a put, and wakes everybody who waits for room in the session whose state this is.
    pub fn put_ended<T>(&self, bytes: u64, state: &Mutex<T>) {
        self.putting.fetch_sub(bytes, Ordering::Relaxed);
        // With the lock taken once, a thread that saw no room waits by now, and is woken.
        drop(state.lock().unwrap_or_else(PoisonError::into_inner));
        self.tell();
    }

    /// Wakes everybody who waits for room.
    pub fn tell(&self) {
        self.tasks.notify_waiters();
        self.threads.notify_all();
    }

    /// Unlocks the session's state until there may be room again. The caller looks then.
    pub fn wait<'a, T>(&self, state: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let woken = self.threads.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `look` returns something.
    pub async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            let room = self.tasks.notified();
            tokio::pin!(room);
            // Registered before looking, so that nothing in between is missed.
            room.as_mut().enable();
            if let Some(found) = look() {
                return found;
            }
            room.await;
        }
    }
}
