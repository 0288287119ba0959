//! What was asked of a cluster and how it was answered, in the order in which that happened.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::ids::{Incarnation, LeaseId};
use convoke_common::rpc::{LeaseStatus, MemberState, MemberStatus};

use super::member::Answer;

/// What was asked, or what happened.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Request {
    /// A process is started that will be the member of this name. It is never answered: a registration ends it.
    Start {
        name: String,
    },
    /// The process registers with the coordinator.
    Register {
        name: String,
        incarnation: Incarnation,
    },
    /// The process registers by itself whenever it has lost the coordinator. It is never answered.
    Stay {
        name: String,
        incarnation: Incarnation,
    },
    /// The process says that it takes no new work. It is never answered: the process says so until the coordinator knows.
    Leave {
        name: String,
        incarnation: Incarnation,
    },
    Drain {
        name: String,
    },
    Undrain {
        name: String,
    },
    Forget {
        name: String,
    },
    /// The coordinator's process ends and another one takes its place, which is answered once it serves.
    Restart,
    /// A lease was granted to a driver, which runs on this host. It is answered at once.
    Grant {
        lease: LeaseId,
        driver: String,
        host: String,
    },
    Release {
        lease: LeaseId,
    },
    /// The client whose model this is releases whatever lease it has of it. No other client has a model of this name.
    Unload {
        model: String,
    },
    Read,
}

/// How a request was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The requested change was made.
    Made,
    /// The coordinator answered an operator.
    Operator(Answer),
    /// What a status lists.
    Listing(Listing),
}

/// The members and leases that a status lists.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    pub members: Vec<(String, Incarnation, MemberState)>,
    pub leases: Vec<ListedLease>,
}

/// A lease as a status lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedLease {
    pub lease: LeaseId,
    pub model: String,
    pub driver: String,
    pub workers: Vec<String>,
}

impl Listing {
    /// Returns what a status says of membership and leases.
    pub fn of(members: &[MemberStatus], leases: &[LeaseStatus]) -> Listing {
        let member = |m: &MemberStatus| (m.name.clone(), m.incarnation, m.state);
        let lease = |l: &LeaseStatus| ListedLease {
            lease: l.lease,
            model: l.model.clone(),
            driver: l.driver.clone(),
            workers: l.workers.clone(),
        };
        Listing {
            members: members.iter().map(member).collect(),
            leases: leases.iter().map(lease).collect(),
        }
    }
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub request: Request,
    pub begun: u64,
    pub answered: Option<(u64, Reply)>,
}

/// A moment of a history: moments are counted in the order in which they are noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

/// The number of a request, by which its answer is noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestId(usize);

#[derive(Debug, Clone, Default)]
pub(super) struct Entries {
    moments: u64,
    pub entries: Vec<Entry>,
    /// When processes of the coordinator had ended, with the requests that they had not answered.
    pub coordinator_ends: Vec<u64>,
    /// By host, when something first befell it that may end leases in which it takes part.
    pub troubles: BTreeMap<String, u64>,
}

impl Entries {
    fn moment(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }
}

/// A history of membership and leases, which everybody who asks something notes in; clones share it.
#[derive(Debug, Clone, Default)]
pub struct History(Arc<Mutex<Entries>>);

impl History {
    fn noted(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a moment passes, for requests that are noted later.
    pub fn moment(&self) -> Moment {
        Moment(self.noted().moment())
    }

    /// Notes a request that is about to be made.
    pub fn begin(&self, request: Request) -> RequestId {
        let now = self.moment();
        self.begin_at(now, request)
    }

    /// Notes a request that was made at a moment that has passed.
    pub fn begin_at(&self, begun: Moment, request: Request) -> RequestId {
        let mut noted = self.noted();
        noted.entries.push(Entry {
            request,
            begun: begun.0,
            answered: None,
        });
        RequestId(noted.entries.len() - 1)
    }

    /// Notes the answer to a request.
    pub fn end(&self, request: RequestId, reply: Reply) {
        let now = self.moment();
        self.end_at(now, request, reply);
    }

    /// Notes the answer to a request, which came at a moment that has passed.
    pub fn end_at(&self, at: Moment, request: RequestId, reply: Reply) {
        let (mut noted, at) = (self.noted(), at.0);
        if let Some(entry) = noted.entries.get_mut(request.0) {
            entry.answered = Some((at, reply));
        }
    }

    /// Notes the answer to the latest request of this kind that has none.
    pub fn end_latest(&self, request: &Request, reply: Reply) {
        let open = |e: &Entry| e.request == *request && e.answered.is_none();
        let latest = self.noted().entries.iter().rposition(open);
        if let Some(latest) = latest {
            self.end(RequestId(latest), reply);
        }
    }

    /// Notes that the coordinator's process has ended: it answers nothing more, and nothing that it was asked takes effect
    /// any more.
    pub fn coordinator_ended(&self) {
        let mut noted = self.noted();
        let at = noted.moment();
        noted.coordinator_ends.push(at);
    }

    /// Notes that something befalls a host by which a lease in which it takes part may end.
    pub fn trouble(&self, host: &str) {
        let mut noted = self.noted();
        let at = noted.moment();
        noted.troubles.entry(host.to_owned()).or_insert(at);
    }

    pub(super) fn entries(&self) -> Entries {
        self.noted().clone()
    }
}
