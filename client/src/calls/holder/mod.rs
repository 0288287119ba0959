//! The holder of a function's lease: calls get the lease from it, and wait here until there is one that serves them.
//!
//! The [`core`] makes the decisions. A caller carries out its tasks on its own future, so that they end with the
//! caller's deadline and when it is dropped; an install goes on in a task of its own, which gives it up once the caller is
//! gone.

mod core;
mod interface;

use std::sync::Arc;

use convoke_common::actor::SharedCore;
use convoke_common::error::{Code, Error, Result};
use convoke_graph::dim::Bindings;
use tokio::sync::mpsc;

use self::core::Core;
use self::interface::{Command, Event, InstalledLease, MOST_ORDERS, Refusal, Task};
use crate::calls::attempts::FailedAttempt;
use crate::calls::lease::Lease;
use crate::cluster::coordinator::is_away;

pub(crate) use self::interface::{Predecessor, Request};

type Order = self::interface::Order<Arc<Lease>, FailedAttempt>;
type LeaseEvent = Event<Arc<Lease>, FailedAttempt, mpsc::Sender<Order>>;

impl InstalledLease for Arc<Lease> {
    fn holds(&self, sizes: &Bindings) -> bool {
        Lease::holds(self, sizes)
    }

    fn is_broken(&self) -> bool {
        Lease::is_broken(self)
    }
}

/// Holds the lease of a function, which is released when it is dropped.
#[derive(Default)]
pub(crate) struct LeaseHolder(SharedCore<Core<Arc<Lease>, FailedAttempt, mpsc::Sender<Order>>>);

/// A caller's place at the holder, which it leaves when this is dropped.
struct Place<'a> {
    holder: &'a LeaseHolder,
    id: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.holder.tell(Event::Left { id: self.id });
    }
}

/// A lease, and the place that keeps it from being replaced during a call.
pub(crate) struct CallPermit<'a> {
    pub(crate) lease: Arc<Lease>,
    _place: Place<'a>,
}

/// Carries out a command.
fn perform(command: Command<Arc<Lease>, FailedAttempt, mpsc::Sender<Order>>) {
    match command {
        // A caller that is gone hears nothing, and has left.
        Command::Tell(caller, order) => drop(caller.try_send(order)),
        Command::Discard(lease) => drop(lease),
    }
}

/// Makes an answer the permit of the caller at this place.
fn permit(
    answer: Result<Arc<Lease>, Refusal<FailedAttempt>>,
    place: Place<'_>,
) -> Result<CallPermit<'_>, FailedAttempt> {
    match answer {
        Ok(lease) => Ok(CallPermit {
            lease,
            _place: place,
        }),
        Err(Refusal::Failed(failed)) => Err(failed),
        Err(Refusal::Unloaded) => {
            let msg = "the model was unloaded while it was planned and loaded";
            Err(Error::new(Code::Cancelled, msg).into())
        }
    }
}

/// Releases a lease that is to be replaced.
async fn released(old: &Lease) -> Result<Predecessor, FailedAttempt> {
    match old.release().await {
        // Without the coordinator no other lease can be made.
        Err(e) if is_away(Some(&e)) => Err(e.into()),
        _ => Ok(Predecessor {
            axes: old.planned.axes.clone(),
            unusable: old.unusable(),
        }),
    }
}

impl LeaseHolder {
    fn tell(&self, event: LeaseEvent) {
        self.0.tell(|core| core.apply(event), perform);
    }

    /// Takes a place for a caller that `event` brings.
    fn place(
        &self,
        event: impl FnOnce(u64, mpsc::Sender<Order>) -> LeaseEvent,
    ) -> (Place<'_>, mpsc::Receiver<Order>) {
        let (caller, orders) = mpsc::channel(MOST_ORDERS);
        let bring = |core: &mut Core<_, _, _>| {
            let id = core.newcomer();
            core.apply(event(id, caller));
            id
        };
        let id = self.0.tell(bring, perform);
        (Place { holder: self, id }, orders)
    }

    /// The current lease, if there is one.
    pub(crate) fn lease(&self) -> Option<Arc<Lease>> {
        self.0.look(|core| core.lease().cloned())
    }

    /// Returns the lease with a permit to call it, unless it would have to be made or waited for.
    pub(crate) fn enter(&self, sizes: &Bindings) -> Option<CallPermit<'_>> {
        let (id, lease) = self.0.tell(|core| core.enter(sizes), perform)?;
        Some(CallPermit {
            lease,
            _place: Place { holder: self, id },
        })
    }

    /// Returns a lease that serves this request, with a permit to call it. Where the turn is this caller's, it releases
    /// the former lease and has `plan` make the new one.
    pub(crate) async fn leased<P>(
        &self,
        request: &Request,
        plan: impl Fn(Predecessor) -> P,
    ) -> Result<CallPermit<'_>, FailedAttempt>
    where
        P: Future<Output = Result<Arc<Lease>, FailedAttempt>>,
    {
        let (place, mut orders) = self.place(|id, caller| Event::Asked {
            id,
            request: request.clone(),
            caller,
        });
        loop {
            let task = match orders.recv().await {
                Some(Order::Task(task)) => task,
                Some(Order::Answer(answer)) => return permit(answer, place),
                None => return Err(Error::internal("a caller without orders").into()),
            };
            let id = place.id;
            let work = async {
                match task {
                    Task::Release(old) => {
                        let outcome = released(&old).await;
                        Event::Released { id, outcome }
                    }
                    Task::Plan(predecessor) => {
                        let outcome = plan(predecessor).await;
                        Event::Planned { id, outcome }
                    }
                }
            };
            tokio::select! {
                biased;
                event = work => self.tell(event),
                // An answer before the task has ended says that the function was unloaded.
                Some(Order::Answer(answer)) = orders.recv() => return permit(answer, place),
            }
        }
    }

    /// Releases the lease because the function is unloaded. Whoever waits for the lease gives up, and calls that this
    /// ends do not run again.
    pub(crate) async fn unload(&self) -> Result<()> {
        let (_place, mut orders) = self.place(|id, caller| Event::Unloaded { id, caller });
        match orders.recv().await {
            Some(Order::Task(Task::Release(lease))) => lease.unload().await,
            Some(Order::Answer(Err(Refusal::Unloaded))) => Ok(()),
            _ => Err(Error::internal("an unload with another order")),
        }
    }
}
