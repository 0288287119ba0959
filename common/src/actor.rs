//! What an actor is, and what actors have in common.
//!
//! An actor is state with one owner, which changes it. Where it has much to decide, its decisions are those of its *core*: a state
//! machine without locks, I/O or a clock of its own, which takes *events* and gives *commands*. What surrounds the core, and carries
//! the commands out, is the actor's *shell*.
//!
//! ```text
//!            ┌────────────────────── shell ──────────────────────┐
//! event ───> │ mailbox ──> core ──> commands ──> carried out     │ ──> a frame, an answer, an event of another actor
//!            │ clock ── timeout ─^                               │
//!            └───────────────────────────────────────────────────┘
//! ```
//!
//! A mailbox is of one of two kinds:
//!
//! - **A task** that owns the core, and takes events from a channel with a bound or from a connection. Membership and the detection of
//!   lost peers are of this kind: nobody needs the effect of an event on the same thread.
//! - **A lock**, such as [`SharedCore`]. The thread that brings an event applies it and carries out the commands, so that no event
//!   costs a switch of threads. Drivers, leases and their holders, steps and eager sessions are of this
//!   kind.
//!
//! An actor ends in one of three ways: its owner stops its [`Tasks`](crate::tasks::Tasks); its last handle is dropped; or its
//! core says that it is over, because what it looked after has ended.
//!
//! `docs/ARCHITECTURE.md` lists all actors.
//!
//! Invariants
//! 1. A command is carried out under no lock of its actor's core, since it may lead to further events of the same actor.
//! 2. [`SharedCore::tell_in_order`] has all commands of a core carried out in the order in which the core gave them, by one
//!    thread at a time, and none is left when that thread returns. Where carrying out a command panics, those behind it wait for
//!    the next event.

use std::future::pending;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// The core of an actor. Its events are methods, or one method that takes an `Event`; time is an argument of theirs.
pub trait Core {
    /// An action that the shell is to carry out.
    type Command;

    /// Takes the next command that the events so far have led to.
    fn next_command(&mut self) -> Option<Self::Command>;

    /// Takes all commands that the events so far have led to.
    fn commands(&mut self) -> Vec<Self::Command> {
        std::iter::from_fn(|| self.next_command()).collect()
    }
}

/// A core behind a lock: any thread tells it of events.
///
/// The commands of one core are carried out by [`SharedCore::tell`] alone or by [`SharedCore::tell_in_order`] alone.
#[derive(Debug, Default)]
pub struct SharedCore<C>(Mutex<CoreState<C>>);

#[derive(Debug, Default)]
struct CoreState<C> {
    core: C,
    /// Whether a thread carries out commands in order.
    performing: bool,
}

/// A thread's turn to carry out commands in order, which ends when this is dropped, be it by a panic.
struct Turn<'a, C> {
    shared: &'a SharedCore<C>,
    /// The lock, unless a command is being carried out.
    state: Option<MutexGuard<'a, CoreState<C>>>,
}

impl<C> Turn<'_, C> {
    fn state(&mut self) -> &mut CoreState<C> {
        self.state.get_or_insert_with(|| self.shared.state())
    }
}

impl<C> Drop for Turn<'_, C> {
    fn drop(&mut self) {
        // Under the same lock as the last look for commands: who brings an event from now on has a turn of its own.
        self.state().performing = false;
    }
}

impl<C> SharedCore<C> {
    /// Puts a core behind a lock.
    pub fn new(core: C) -> SharedCore<C> {
        SharedCore(Mutex::new(CoreState {
            core,
            performing: false,
        }))
    }

    fn state(&self) -> MutexGuard<'_, CoreState<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads from the core.
    pub fn look<R>(&self, look: impl FnOnce(&C) -> R) -> R {
        look(&self.state().core)
    }
}

impl<C: Core> SharedCore<C> {
    /// Tells the core of an event. The commands that follow are carried out on this thread before it returns, beside those of
    /// events that other threads bring.
    pub fn tell<R>(&self, event: impl FnOnce(&mut C) -> R, perform: impl FnMut(C::Command)) -> R {
        let mut state = self.state();
        let answer = event(&mut state.core);
        let commands = state.core.commands();
        drop(state);
        commands.into_iter().for_each(perform);
        answer
    }

    /// Tells the core of an event. Commands are carried out in the order decided. A thread that is carrying out commands
    /// already, be it another thread or this very one further up its stack, also carries out those of this event, with its own
    /// `perform` and `rests`; this call then returns before its commands are carried out. Once no command is left, `rests` sees
    /// the core.
    pub fn tell_in_order(
        &self,
        event: impl FnOnce(&mut C),
        perform: impl Fn(C::Command),
        rests: impl FnOnce(&C),
    ) {
        let mut state = self.state();
        event(&mut state.core);
        if std::mem::replace(&mut state.performing, true) {
            return;
        }
        let mut turn = Turn {
            shared: self,
            state: Some(state),
        };
        while let Some(command) = turn.state().core.next_command() {
            turn.state = None;
            perform(command);
        }
        rests(&turn.state().core);
    }
}

/// Returns at this instant; never if there is none.
pub async fn due(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

/// Returns what `look` finds, once it finds something: it looks now, and whenever all waiters of `changed` were notified.
pub async fn found<T>(changed: &Notify, mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        let notified = changed.notified();
        tokio::pin!(notified);
        // The waiter registers before it looks, so that it misses no change in between.
        notified.as_mut().enable();
        if let Some(found) = look() {
            return found;
        }
        notified.await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Arc, mpsc};

    use super::*;

    /// Gives back as commands what it is told.
    #[derive(Default)]
    struct Echo(VecDeque<u32>);

    impl Echo {
        fn say(&mut self, all: &[u32]) {
            self.0.extend(all);
        }
    }

    impl Core for Echo {
        type Command = u32;

        fn next_command(&mut self) -> Option<u32> {
            self.0.pop_front()
        }
    }

    #[test]
    fn commands_of_events_that_come_meanwhile_keep_their_order() {
        let core = SharedCore::<Echo>::default();
        let (done, rests) = (RefCell::new(vec![]), RefCell::new(0));
        let tell = |all: &[u32], then: &dyn Fn(u32)| {
            let perform = |command| {
                done.borrow_mut().push(command);
                then(command);
            };
            core.tell_in_order(|c| c.say(all), perform, |_| *rests.borrow_mut() += 1);
        };
        // Carrying out 1 leads to an event of its own, whose commands come after 2.
        tell(&[1, 2], &|command| {
            if command == 1 {
                tell(&[3, 4], &|_| {});
                assert_eq!(*done.borrow(), [1]);
            }
        });
        assert_eq!((done.take(), rests.take()), (vec![1, 2, 3, 4], 1));
        tell(&[5], &|_| {});
        assert_eq!((done.take(), rests.take()), (vec![5], 1));
    }

    #[test]
    fn each_thread_carries_out_its_own() {
        let core = SharedCore::<Echo>::default();
        let done = RefCell::new(vec![]);
        let answer = core.tell(
            |c| {
                c.say(&[1, 2]);
                7
            },
            |command| {
                // The lock is free: the core can be told of an event.
                if command == 1 {
                    core.tell(|c| c.say(&[3]), |command| done.borrow_mut().push(command));
                }
                done.borrow_mut().push(command);
            },
        );
        assert_eq!((answer, done.take()), (7, vec![3, 1, 2]));
    }

    #[test]
    fn after_a_command_that_panics_the_others_wait_for_an_event() {
        let core = SharedCore::<Echo>::default();
        let done = RefCell::new(vec![]);
        let perform = |command| match command {
            1 => panic!("a command fails"),
            other => done.borrow_mut().push(other),
        };
        let told = catch_unwind(AssertUnwindSafe(|| {
            core.tell_in_order(|c| c.say(&[1, 2]), perform, |_| {});
        }));
        assert!(told.is_err());
        core.tell_in_order(|c| c.say(&[3]), perform, |_| {});
        assert_eq!(done.take(), [2, 3]);
    }

    #[test]
    #[allow(
        clippy::disallowed_methods,
        reason = "the race of two threads is what is tested"
    )]
    fn an_event_that_comes_while_the_turn_ends_has_a_turn_of_its_own() {
        let core = Arc::new(SharedCore::<Echo>::default());
        let (tell, told) = mpsc::channel();
        let (began, begun) = mpsc::channel();
        let mut other = None;
        let done = tell.clone();
        core.tell_in_order(
            |c| c.say(&[1]),
            |command| done.send(command).unwrap(),
            |_| {
                // The lock is held, so the other thread's event comes right behind the end of this turn.
                let core = core.clone();
                let tell = tell.clone();
                let began = began.clone();
                other = Some(std::thread::spawn(move || {
                    began.send(()).unwrap();
                    let perform = |command| tell.send(command).unwrap();
                    core.tell_in_order(|c| c.say(&[2]), perform, |_| {});
                }));
                begun.recv().unwrap();
            },
        );
        other.unwrap().join().unwrap();
        drop((tell, done));
        assert_eq!(told.iter().collect::<Vec<u32>>(), [1, 2]);
        assert!(core.look(|c| c.0.is_empty()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_found_is_looked_for_after_each_change() {
        let (changed, found_at) = (Notify::new(), Mutex::new(0));
        let look = || Some(*found_at.lock().unwrap()).filter(|n| *n == 2);
        let mut waits = Box::pin(found(&changed, look));
        for n in 1..=2 {
            assert!(futures::poll!(&mut waits).is_pending(), "{n}");
            *found_at.lock().unwrap() = n;
            changed.notify_waiters();
        }
        assert_eq!(waits.await, 2);
        // It registers before it looks: a change within the look is not missed.
        let changes = || {
            let mut n = found_at.lock().unwrap();
            *n += 1;
            changed.notify_waiters();
            Some(*n).filter(|n| *n == 5)
        };
        let bound = std::time::Duration::from_secs(1);
        let found = tokio::time::timeout(bound, found(&changed, changes));
        assert_eq!(found.await, Ok(5));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_due_comes_in_time_and_what_is_not_never_comes() {
        let start = Instant::now();
        let hour = std::time::Duration::from_secs(3600);
        due(Some(start + hour)).await;
        assert_eq!(start.elapsed(), hour);
        assert!(tokio::time::timeout(hour, due(None)).await.is_err());
    }
}
