//! The leases of a worker, from the install to the release: a plain state machine, without locks and I/O.
//!
//! ```text
//!            begin            installed      release, end         settle
//! (unknown) ──────> Installing ───────> Held ─────────> Ending ────────> Forgone
//!     │ ^               │  │                              ^                 ^
//!     │ └─install_ended─┘  └─released, then installed─────┘                 │
//!     │                    └─released, then install_ended───────────────────┤
//!     └─release─────────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariants
//! 1. A lease that was released is not held afterwards, whether its install runs, has ended or is yet to come.
//! 2. A lease has one install at a time, and each lease that an install made leaves by one command.
//! 3. The coordinator hears of each lease that its driver gave up: by a report, or because a registration does not list
//!    it.
//! 4. The core remembers the latest [`MOST_FORGONE`] leases that are over.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use convoke_common::actor;
use convoke_common::ids::{LeaseId, PlanId};
use convoke_common::mutant;

use crate::weights::counter::Counter;

/// Most leases that are remembered as released. Each call has a stream of its own, so that a release may overtake the
/// install; it does so by seconds at most.
pub const MOST_FORGONE: usize = 256;

/// Where a lease is in its life. `L` is an installed lease, `E` what tells whether anything of it is still in use.
enum LeaseLife<L, E> {
    /// Its install runs.
    Installing {
        plan: PlanId,
        counter: Arc<Counter>,
        /// Whether the lease was released meanwhile.
        released: bool,
    },
    Held {
        lease: L,
        remains: E,
    },
    /// It was released, and kernels may still use its memory.
    Ending(E),
    /// It was released, and nothing is left of it: no install makes it any more.
    Forgone,
}

/// A command that responds to an event.
#[derive(Debug, PartialEq, Eq)]
pub enum Command<L> {
    /// End the steps of this lease, list it no longer, and drop it.
    Retire(L),
    /// List this lease no longer, whose steps have ended, and drop it.
    Unlist(L),
    /// Report the dropped leases to the coordinator, see [`Core::take_dropped`].
    Report,
    /// Wake the installs that wait for memory: some may have become free.
    Wake,
}

/// Why an install may not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeginRefusal {
    /// The lease was released before.
    Released,
    /// The lease is held already, or is being installed.
    Present,
}

/// The leases of a worker.
pub struct Core<L, E> {
    leases: BTreeMap<LeaseId, LeaseLife<L, E>>,
    /// The leases that are [`LeaseLife::Forgone`], the one that has been so for longest first.
    forgone: VecDeque<LeaseId>,
    /// Leases that their drivers gave up, of which the coordinator is yet to be told.
    dropped: BTreeSet<LeaseId>,
    commands: VecDeque<Command<L>>,
}

impl<L, E> Default for Core<L, E> {
    fn default() -> Core<L, E> {
        Core {
            leases: BTreeMap::new(),
            forgone: VecDeque::new(),
            dropped: BTreeSet::new(),
            commands: VecDeque::new(),
        }
    }
}

impl<L, E> actor::Core for Core<L, E> {
    type Command = Command<L>;

    fn next_command(&mut self) -> Option<Command<L>> {
        self.commands.pop_front()
    }
}

impl<L, E> Core<L, E> {
    /// Begins the install of a lease, which counts the bytes that it loads in `counter`. [`Core::install_ended`] ends
    /// it.
    pub fn begin(
        &mut self,
        id: LeaseId,
        plan: PlanId,
        counter: Arc<Counter>,
    ) -> Result<(), BeginRefusal> {
        match self.leases.get(&id) {
            None => {
                let released = false;
                let life = LeaseLife::Installing {
                    plan,
                    counter,
                    released,
                };
                self.leases.insert(id, life);
                Ok(())
            }
            Some(LeaseLife::Held { .. }) => Err(BeginRefusal::Present),
            Some(LeaseLife::Installing { .. }) if self.is_wanted(id) => Err(BeginRefusal::Present),
            Some(_) => Err(BeginRefusal::Released),
        }
    }

    /// Whether the install of a lease runs, and the lease was not released meanwhile.
    pub fn is_wanted(&self, id: LeaseId) -> bool {
        let life = self.leases.get(&id);
        matches!(
            life,
            Some(LeaseLife::Installing {
                released: false,
                ..
            })
        )
    }

    /// Takes the lease that an install has made. Returns whether it is held: one that was released meanwhile is not.
    pub fn installed(&mut self, id: LeaseId, lease: L, remains: E) -> bool {
        let wanted = self.is_wanted(id);
        let life = match wanted {
            true => LeaseLife::Held { lease, remains },
            false => {
                self.commands.push_back(Command::Retire(lease));
                LeaseLife::Ending(remains)
            }
        };
        self.leases.insert(id, life);
        wanted
    }

    /// Ends an install, whether or not it has made its lease.
    pub fn install_ended(&mut self, id: LeaseId) {
        match self.leases.get(&id) {
            Some(LeaseLife::Installing { released: true, .. }) => self.forgo(id),
            Some(LeaseLife::Installing { .. }) => drop(self.leases.remove(&id)),
            _ => {}
        }
        self.commands.push_back(Command::Wake);
    }

    /// Releases a lease; a second release changes nothing.
    pub fn release(&mut self, id: LeaseId) {
        let life = match self.leases.remove(&id) {
            None => return self.forgo(id),
            Some(LeaseLife::Installing { plan, counter, .. }) => LeaseLife::Installing {
                plan,
                counter,
                released: !mutant!("release-outrun"),
            },
            Some(LeaseLife::Held { lease, remains }) => {
                self.commands.push_back(Command::Retire(lease));
                LeaseLife::Ending(remains)
            }
            Some(over) => over,
        };
        self.leases.insert(id, life);
    }

    /// Releases a lease because its driver is done with it or lost. The coordinator is to be told.
    pub fn driver_gone(&mut self, id: LeaseId) {
        self.release(id);
        self.dropped.insert(id);
        self.commands.push_back(Command::Report);
    }

    /// Takes the leases that the coordinator is to be told of; the caller reports them.
    pub fn take_dropped(&mut self) -> Vec<LeaseId> {
        std::mem::take(&mut self.dropped).into_iter().collect()
    }

    /// The leases that a registration lists. Reports of dropped leases are superfluous with it.
    pub fn register(&mut self) -> impl Iterator<Item = &L> {
        self.dropped.clear();
        self.all_held()
    }

    /// Lets go of all leases that are held, because the worker ends.
    pub fn end(&mut self) {
        let is_held = |life: &LeaseLife<L, E>| matches!(life, LeaseLife::Held { .. });
        let held = self.leases.extract_if(.., |_, life| is_held(life));
        for (id, life) in held.collect::<Vec<_>>() {
            if let LeaseLife::Held { lease, remains } = life {
                self.commands.push_back(Command::Unlist(lease));
                self.leases.insert(id, LeaseLife::Ending(remains));
            }
        }
    }

    /// Notes which of the released leases are no longer in use. Returns what remains of those, for the caller to drop
    /// once it holds no lock.
    pub fn settle(&mut self, in_use: impl Fn(&E) -> bool) -> Vec<E> {
        let ending = |life: &LeaseLife<L, E>| match life {
            LeaseLife::Ending(remains) => !in_use(remains),
            _ => false,
        };
        let settled: Vec<_> = self.leases.extract_if(.., |_, life| ending(life)).collect();
        let over = settled.into_iter().filter_map(|(id, life)| {
            self.forgo(id);
            match life {
                LeaseLife::Ending(remains) => Some(remains),
                _ => None,
            }
        });
        over.collect()
    }

    /// Number of released leases whose memory is still in use, or is still being taken by their installs.
    pub fn settling(&self) -> usize {
        let settling = self.leases.values().filter(|life| match life {
            LeaseLife::Installing { released, .. } => *released,
            LeaseLife::Ending(_) => true,
            LeaseLife::Held { .. } | LeaseLife::Forgone => false,
        });
        settling.count()
    }

    /// Number of installs that run.
    pub fn installing(&self) -> usize {
        let lives = self.leases.values();
        let installing = lives.filter(|life| matches!(life, LeaseLife::Installing { .. }));
        installing.count()
    }

    /// The count of bytes that the install of a plan has loaded, while it runs.
    pub fn progress(&self, of: PlanId) -> Option<&Counter> {
        self.leases.values().find_map(|life| match life {
            LeaseLife::Installing { plan, counter, .. } if *plan == of => Some(&**counter),
            _ => None,
        })
    }

    /// A lease, if it is held.
    pub fn held(&self, id: LeaseId) -> Option<&L> {
        match self.leases.get(&id)? {
            LeaseLife::Held { lease, .. } => Some(lease),
            _ => None,
        }
    }

    /// All leases that are held, by their ids.
    pub fn all_held(&self) -> impl Iterator<Item = &L> {
        self.leases.values().filter_map(|life| match life {
            LeaseLife::Held { lease, .. } => Some(lease),
            _ => None,
        })
    }

    /// Remembers that a lease is over, and forgets that of the one that has been over for longest.
    fn forgo(&mut self, id: LeaseId) {
        if self.forgone.len() == MOST_FORGONE
            && let Some(oldest) = self.forgone.pop_front()
        {
            self.leases.remove(&oldest);
        }
        self.forgone.push_back(id);
        self.leases.insert(id, LeaseLife::Forgone);
    }
}
