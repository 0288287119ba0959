//! From what was noted to the operations on each register.

use std::collections::{BTreeMap, BTreeSet};

use convoke_common::ids::LeaseId;

use super::checker::{End, Operation};
use super::lease::LeaseOp;
use super::member::{Answer, MemberOp};
use super::record::{Entries, Entry, Listing, Reply, Request};

impl Entries {
    /// Until when a request may have taken effect: its answer says so, or the end of the process that was asked.
    fn end(&self, entry: &Entry) -> End {
        match &entry.answered {
            Some((at, Reply::Operator(Answer::Unknown))) => End::Expires(*at),
            Some((at, _)) => End::Answered(*at),
            None => {
                let ends = self.coordinator_ends.iter();
                let over = ends.copied().find(|at| *at > entry.begun);
                over.map_or(End::Never, End::Expires)
            }
        }
    }

    fn operation<O>(&self, entry: &Entry, op: O) -> Operation<O> {
        Operation {
            op,
            begun: entry.begun,
            end: self.end(entry),
            repeats: false,
        }
    }

    /// The statuses that were answered, with their requests.
    fn listings(&self) -> impl Iterator<Item = (&Entry, &Listing)> {
        self.entries.iter().filter_map(|e| match &e.answered {
            Some((_, Reply::Listing(listing))) => Some((e, listing)),
            _ => None,
        })
    }

    fn restarts(&self) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter(|e| e.request == Request::Restart)
    }
}

/// A request that may take effect again and again from a moment on, until it expires.
fn again<O>(op: O, begun: u64, end: End) -> Operation<O> {
    Operation {
        op,
        begun,
        end,
        repeats: true,
    }
}

/// A request that does not end with the coordinator's process: a restart, or what its caller repeats until it is answered.
fn lasting<O>(entry: &Entry, op: O) -> Operation<O> {
    let answered = entry.answered.as_ref();
    Operation {
        op,
        begun: entry.begun,
        end: answered.map_or(End::Never, |(at, _)| End::Answered(*at)),
        repeats: false,
    }
}

/// How an operator's request was answered.
fn told(entry: &Entry) -> Answer {
    match &entry.answered {
        Some((_, Reply::Operator(answer))) => *answer,
        Some(_) | None => Answer::Unknown,
    }
}

/// Returns the operations on each name.
pub(super) fn members(noted: &Entries) -> BTreeMap<String, Vec<Operation<MemberOp>>> {
    let mut registers: BTreeMap<String, Vec<Operation<MemberOp>>> = BTreeMap::new();
    let once = noted.entries.iter().filter_map(|e| once(noted, e));
    for (name, operation) in once.chain(unanswered(noted)) {
        let register = registers.entry(name.clone()).or_default();
        register.push(operation);
    }
    for (name, ..) in noted.listings().flat_map(|(_, l)| &l.members) {
        registers.entry(name.clone()).or_default();
    }
    for (name, register) in &mut registers {
        register.extend(noted.restarts().map(|e| lasting(e, MemberOp::Restart)));
        register.extend(noted.listings().map(|(entry, listing)| {
            let mut of_name = listing.members.iter().filter(|(n, ..)| n == name);
            let found = of_name.next().map(|(_, i, state)| (*i, *state));
            let op = match of_name.next() {
                None => MemberOp::Read(found),
                Some(_) => MemberOp::ReadTwice,
            };
            noted.operation(entry, op)
        }));
    }
    registers
}

/// The operation on a name that a request with an answer stands for, with the name.
fn once<'a>(noted: &Entries, entry: &'a Entry) -> Option<(&'a String, Operation<MemberOp>)> {
    entry.answered.as_ref()?;
    let (name, op) = match &entry.request {
        Request::Register { name, incarnation } => (name, MemberOp::Register(*incarnation)),
        Request::Drain { name } => (name, MemberOp::Drain(told(entry))),
        Request::Undrain { name } => (name, MemberOp::Undrain(told(entry))),
        Request::Forget { name } => (name, MemberOp::Forget(told(entry))),
        _ => return None,
    };
    Some((name, noted.operation(entry, op)))
}

/// The operations on names by requests without an answer. What a process asks for again and again until it is heard takes
/// effect any number of times: its certificate when it starts, unless it has one, its registration once it has lost the
/// coordinator, and its departure. So does a request that was made more than once, from the first time on.
fn unanswered(noted: &Entries) -> Vec<(&String, Operation<MemberOp>)> {
    let mut unanswered: Vec<(&String, Operation<MemberOp>)> = vec![];
    for entry in &noted.entries {
        let (name, op, end, repeats) = match &entry.request {
            Request::Start { name } => {
                let registered = registered(noted, entry, name);
                let end = registered.map_or(End::Never, End::Expires);
                (name, MemberOp::Join, end, true)
            }
            Request::Register { name, incarnation } if entry.answered.is_none() => {
                (name, MemberOp::Register(*incarnation), End::Never, false)
            }
            Request::Stay { name, incarnation } => {
                (name, MemberOp::Register(*incarnation), End::Never, true)
            }
            Request::Drain { name } if entry.answered.is_none() => {
                let op = MemberOp::Drain(Answer::Unknown);
                (name, op, noted.end(entry), false)
            }
            Request::Undrain { name } if entry.answered.is_none() => {
                let op = MemberOp::Undrain(Answer::Unknown);
                (name, op, noted.end(entry), false)
            }
            Request::Forget { name } if entry.answered.is_none() => {
                let op = MemberOp::Forget(Answer::Unknown);
                (name, op, noted.end(entry), false)
            }
            Request::Leave { name, incarnation } => {
                (name, MemberOp::Leave(*incarnation), End::Never, true)
            }
            _ => continue,
        };
        let mut known = unanswered.iter_mut();
        match known.find(|(of, o)| *of == name && o.op == op && o.end == end) {
            Some((_, known)) => known.repeats = true,
            None => {
                let operation = Operation {
                    op,
                    begun: entry.begun,
                    end,
                    repeats,
                };
                unanswered.push((name, operation));
            }
        }
    }
    unanswered
}

/// When this process, or another one of this name that was started after it, was registered.
fn registered(noted: &Entries, started: &Entry, name: &str) -> Option<u64> {
    let registered = noted.entries.iter().filter_map(|e| match &e.request {
        Request::Register { name: of, .. } if of == name => Some(e.answered.as_ref()?.0),
        _ => None,
    });
    registered.filter(|at| *at > started.begun).min()
}

/// What is known of a lease.
struct KnownLease<'a> {
    /// The hosts that take part in it.
    hosts: BTreeSet<&'a str>,
    /// The name of its model, once a status has listed it.
    model: Option<&'a str>,
    /// When it was first heard of.
    first: u64,
}

impl<'a> KnownLease<'a> {
    fn at(first: u64) -> KnownLease<'a> {
        KnownLease {
            hosts: BTreeSet::new(),
            model: None,
            first,
        }
    }

    fn hear(&mut self, at: u64, hosts: impl Iterator<Item = &'a str>) {
        self.hosts.extend(hosts);
        self.first = self.first.min(at);
    }
}

fn known(noted: &Entries) -> BTreeMap<LeaseId, KnownLease<'_>> {
    let mut known = BTreeMap::new();
    for (entry, listing) in noted.listings() {
        for listed in &listing.leases {
            let lease = known.entry(listed.lease);
            let lease = lease.or_insert(KnownLease::at(entry.begun));
            lease.hear(entry.begun, listed.workers.iter().map(String::as_str));
            lease.model = Some(&listed.model);
        }
    }
    for entry in &noted.entries {
        if let Request::Grant { lease, host, .. } = &entry.request {
            let lease = known.entry(*lease).or_insert(KnownLease::at(entry.begun));
            lease.hear(entry.begun, [host.as_str()].into_iter());
        }
    }
    known
}

/// Returns the operations on each lease.
pub(super) fn leases(noted: &Entries) -> BTreeMap<LeaseId, Vec<Operation<LeaseOp>>> {
    let known = known(noted).into_iter();
    known
        .map(|(lease, known)| (lease, operations(noted, lease, &known)))
        .collect()
}

fn operations(noted: &Entries, lease: LeaseId, known: &KnownLease<'_>) -> Vec<Operation<LeaseOp>> {
    let since = |e: &Entry| e.answered.as_ref().is_none_or(|(at, _)| *at >= known.first);
    let asked = noted
        .entries
        .iter()
        .filter_map(|entry| match &entry.request {
            Request::Grant {
                lease: of, driver, ..
            } if *of == lease => Some(Operation {
                // The grant was made before its answer came; nobody notes when the request was made.
                begun: known.first,
                ..noted.operation(entry, LeaseOp::Grant(driver.clone()))
            }),
            Request::Release { lease: of } if *of == lease => {
                Some(lasting(entry, LeaseOp::Release))
            }
            // An unload that was answered before the lease was heard of gave up another one of this model.
            Request::Unload { model } if known.model == Some(model) && since(entry) => {
                Some(lasting(entry, LeaseOp::Release))
            }
            _ => None,
        });
    let mut operations: Vec<_> = asked.collect();
    operations.extend(noted.restarts().map(|e| lasting(e, LeaseOp::Restart)));
    let troubles = known
        .hosts
        .iter()
        .filter_map(|host| noted.troubles.get(*host));
    if let Some(trouble) = troubles.min() {
        operations.push(Operation {
            op: LeaseOp::End,
            begun: *trouble,
            end: End::Never,
            repeats: false,
        });
        if let Some(restarted) = noted.restarts().map(|e| e.begun).min() {
            operations.push(again(LeaseOp::Return, restarted.max(*trouble), End::Never));
        }
    }
    // A status from before says nothing of the lease.
    let listings = noted.listings().filter(|(entry, _)| since(entry));
    operations.extend(listings.map(|(entry, listing)| {
        let found = listing.leases.iter().find(|l| l.lease == lease);
        let driver = found.map(|l| l.driver.clone());
        noted.operation(entry, LeaseOp::Read(driver))
    }));
    operations
}
