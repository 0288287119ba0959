//! Histories that a coordinator may have, and others that it may not.

use convoke_common::ids::{Incarnation, LeaseId};
use convoke_common::rpc::MemberState;

use super::*;

const LEASE: LeaseId = LeaseId(7);

/// A history that a test makes up, of the worker `w` and the lease [`LEASE`].
#[derive(Default)]
struct Told(History);

fn name() -> String {
    "w".to_owned()
}

fn drain() -> Request {
    Request::Drain { name: name() }
}

fn undrain() -> Request {
    Request::Undrain { name: name() }
}

fn forget() -> Request {
    Request::Forget { name: name() }
}

fn register(incarnation: u64) -> Request {
    Request::Register {
        name: name(),
        incarnation: Incarnation(incarnation),
    }
}

fn done(said: bool) -> Reply {
    Reply::Operator(Answer::Done(said))
}

fn members(listed: &[(u64, MemberState)]) -> Reply {
    let member = |(i, state): &(u64, MemberState)| (name(), Incarnation(*i), *state);
    Reply::Listing(Listing {
        members: listed.iter().map(member).collect(),
        leases: vec![],
    })
}

impl Told {
    /// Something that is asked and answered before anything else is.
    fn then(self, request: Request, reply: Reply) -> Told {
        let asked = self.0.begin(request);
        self.0.end(asked, reply);
        self
    }

    fn reads(self, listed: &[(u64, MemberState)]) -> Told {
        self.then(Request::Read, members(listed))
    }

    fn registers(self, incarnation: u64) -> Told {
        self.then(register(incarnation), Reply::Made)
    }

    /// Something that is never answered.
    fn unanswered(self, request: Request) -> Told {
        self.0.begin(request);
        self
    }

    /// The coordinator's process ends, and another one serves.
    fn restarts(self) -> Told {
        self.0.coordinator_ended();
        self.then(Request::Restart, Reply::Made)
    }

    fn troubled(self, host: &str) -> Told {
        self.0.trouble(host);
        self
    }

    fn granted(self, driver: &str) -> Told {
        let grant = Request::Grant {
            lease: LEASE,
            driver: driver.to_owned(),
            host: driver.to_owned(),
        };
        self.then(grant, Reply::Made)
    }

    fn released(self) -> Told {
        self.then(Request::Release { lease: LEASE }, Reply::Made)
    }

    fn reads_lease(self, driver: Option<&str>) -> Told {
        let lease = |d: &str| ListedLease {
            lease: LEASE,
            model: "m".to_owned(),
            driver: d.to_owned(),
            workers: vec![name()],
        };
        let leases = driver.into_iter().map(lease).collect();
        let members = vec![];
        self.then(Request::Read, Reply::Listing(Listing { members, leases }))
    }

    /// Checks that no order explains this answer, or that one explains all where there is none.
    #[track_caller]
    fn check(&self, violation: Option<&str>) {
        self.check_under(SOUND, violation);
    }

    #[track_caller]
    fn check_under(&self, promises: MemberRegister, violation: Option<&str>) {
        let found = self.0.violations(promises);
        match (violation, &found[..]) {
            (None, []) => {}
            (Some(wanted), [one]) if one.contains(wanted) => {}
            _ => panic!("{violation:?}: {found:#?}"),
        }
    }
}

const SOUND: MemberRegister = MemberRegister {
    disk_is_sound: true,
    calendars_hold: true,
};

const ALIVE: MemberState = MemberState::Alive;
const LOST: MemberState = MemberState::Lost;
const DRAINED: MemberState = MemberState::Drained;
const LEAVING: MemberState = MemberState::Leaving;

/// A member with the incarnation 1.
fn member() -> Told {
    let start = Request::Start { name: name() };
    let told = Told::default().unanswered(start).registers(1);
    told.reads(&[(1, ALIVE)])
}

#[test]
fn a_worker_is_a_member_once_it_is_registered() {
    let unregistered = Told::default().unanswered(Request::Start { name: name() });
    unregistered.reads(&[]).check(None);
    Told::default().reads(&[(1, ALIVE)]).check(Some("w: Read"));
    Told::default()
        .registers(1)
        .reads(&[])
        .check(Some("w: Read(None)"));
    let overlaps = Told::default().unanswered(register(1));
    overlaps.reads(&[]).reads(&[(1, ALIVE)]).check(None);
}

#[test]
fn what_was_asked_once_happens_once() {
    let lost = |told: Told| {
        told.reads(&[(1, ALIVE)])
            .reads(&[(1, LOST)])
            .reads(&[(1, ALIVE)])
    };
    let once = || Told::default().unanswered(register(1));
    lost(once()).check(Some("w: Read"));
    lost(once().unanswered(register(1))).check(None);
    let drained = |told: Told| {
        let undrained = told.then(undrain(), done(true)).reads(&[(1, DRAINED)]);
        undrained
            .then(undrain(), done(false))
            .reads(&[(1, DRAINED)])
    };
    let once = || member().unanswered(drain());
    drained(once()).check(Some("w: "));
    drained(once().unanswered(drain())).check(None);
}

#[test]
fn a_member_is_lost_and_comes_back() {
    member().reads(&[(1, LOST)]).check(None);
    let back = member().reads(&[(1, LOST)]).reads(&[(1, ALIVE)]);
    back.check(Some("w: Read"));
    member()
        .reads(&[(1, LOST)])
        .registers(1)
        .reads(&[(1, ALIVE)])
        .check(None);
    let stays = Request::Stay {
        name: name(),
        incarnation: Incarnation(1),
    };
    let again = member().unanswered(stays).reads(&[(1, LOST)]);
    again.reads(&[(1, ALIVE)]).check(None);
}

#[test]
fn a_member_that_leaves_is_listed_no_more() {
    let leave = Request::Leave {
        name: name(),
        incarnation: Incarnation(1),
    };
    member().reads(&[]).check(Some("w: Read(None)"));
    member().reads(&[(1, LEAVING)]).check(Some("w: Read"));
    let leaving = || member().unanswered(leave.clone());
    leaving().reads(&[(1, LEAVING)]).reads(&[]).check(None);
    leaving().reads(&[]).restarts().reads(&[]).check(None);
    leaving()
        .reads(&[])
        .reads(&[(1, LOST)])
        .check(Some("w: Read"));
}

#[test]
fn a_name_has_one_member_and_none_before_it_again() {
    let next = || member().registers(2).reads(&[(2, ALIVE)]);
    next().check(None);
    next().reads(&[(1, LOST)]).check(Some("w: Read"));
    next().registers(1).check(Some("w: Register"));
    next()
        .reads(&[(1, ALIVE), (2, ALIVE)])
        .check(Some("ReadTwice"));
}

#[test]
fn a_name_is_out_of_service_from_the_drain_to_the_undrain() {
    let drained = || member().then(drain(), done(true));
    drained().reads(&[(1, LEAVING)]).check(None);
    drained().reads(&[(1, ALIVE)]).check(Some("w: Read"));
    let gone = member().then(drain(), done(false));
    gone.reads(&[(1, LEAVING)]).check(Some("w: Read"));
    let gone = || drained().reads(&[(1, DRAINED)]);
    gone().registers(2).reads(&[(2, DRAINED)]).check(None);
    gone()
        .registers(2)
        .reads(&[(2, ALIVE)])
        .check(Some("w: Read"));
    let back = || gone().registers(2).then(undrain(), done(true));
    back().reads(&[(2, ALIVE)]).check(None);
    back().reads(&[(2, DRAINED)]).check(Some("w: Read"));
    let unknown = Reply::Operator(Answer::NoSuchWorker);
    member()
        .then(drain(), unknown.clone())
        .check(Some("w: Drain"));
    Told::default()
        .then(drain(), unknown)
        .reads(&[])
        .check(None);
}

#[test]
fn a_forgotten_name_stays_so_until_a_process_joins() {
    let forgotten = || member().reads(&[(1, LOST)]).then(forget(), done(true));
    forgotten().reads(&[]).restarts().reads(&[]).check(None);
    forgotten().reads(&[(1, LOST)]).check(Some("w: Read"));
    forgotten()
        .restarts()
        .reads(&[(0, LOST)])
        .check(Some("w: Read"));
    let start = Request::Start { name: name() };
    let joined = forgotten().unanswered(start).restarts();
    joined.reads(&[(0, LOST)]).check(None);
    // Whoever is there cannot be forgotten.
    let here = member().then(forget(), Reply::Operator(Answer::Refused));
    here.reads(&[(1, ALIVE)]).check(None);
    let lost = member().then(forget(), done(true));
    lost.reads(&[(1, ALIVE)]).check(Some("w: Read"));
}

#[test]
fn a_restart_keeps_names_and_drains() {
    member().restarts().reads(&[(0, LOST)]).check(None);
    member().restarts().reads(&[]).check(Some("w: Read(None)"));
    member()
        .restarts()
        .reads(&[(1, ALIVE)])
        .check(Some("w: Read"));
    let drained = || member().then(drain(), done(true)).restarts();
    drained().reads(&[(0, DRAINED)]).check(None);
    drained().reads(&[(0, LOST)]).check(Some("w: Read"));
    let unsound = MemberRegister {
        disk_is_sound: false,
        ..SOUND
    };
    drained().reads(&[(0, LOST)]).check_under(unsound, None);
    let late = MemberRegister {
        calendars_hold: false,
        ..SOUND
    };
    member().restarts().reads(&[]).check_under(late, None);
}

#[test]
fn what_the_coordinator_failed_may_have_been_done_in_memory() {
    let failed = || member().then(drain(), Reply::Operator(Answer::Unknown));
    failed().reads(&[(1, ALIVE)]).check(None);
    failed()
        .reads(&[(1, LEAVING)])
        .restarts()
        .reads(&[(0, LOST)])
        .check(None);
    failed()
        .reads(&[(1, LEAVING)])
        .restarts()
        .reads(&[(0, DRAINED)])
        .check(None);
    // It has no effect after its answer.
    let late = failed().restarts().registers(1).reads(&[(1, ALIVE)]);
    late.reads(&[(1, DRAINED)]).check(Some("w: Read"));
    // What a process was asked that has ended has none either.
    let asked = member().unanswered(drain()).restarts().registers(1);
    asked
        .reads(&[(1, ALIVE)])
        .reads(&[(1, DRAINED)])
        .check(Some("w: Read"));
}

#[test]
fn what_is_asked_again_and_again_is_decided() {
    let asks = |told: Told| (0..100).fold(told, |told, _| told.unanswered(undrain()));
    let back = asks(member().then(drain(), done(true))).restarts();
    let back = back.then(undrain(), done(false)).registers(2);
    back.reads(&[(2, ALIVE)]).check(None);
}

#[test]
fn a_lease_is_listed_from_its_grant_to_its_release() {
    let granted = || Told::default().reads_lease(None).granted("c");
    granted()
        .reads_lease(Some("c"))
        .released()
        .reads_lease(None)
        .check(None);
    granted()
        .reads_lease(None)
        .check(Some("lease-7: Read(None)"));
    granted()
        .reads_lease(Some("d"))
        .check(Some("lease-7: Read"));
    let released = || granted().reads_lease(Some("c")).released();
    released()
        .reads_lease(Some("c"))
        .check(Some("lease-7: Read"));
    released()
        .restarts()
        .reads_lease(Some("c"))
        .check(Some("lease-7: Read"));
    let releasing = granted().unanswered(Request::Release { lease: LEASE });
    let releasing = releasing.reads_lease(Some("c")).reads_lease(None);
    releasing
        .reads_lease(Some("c"))
        .check(Some("lease-7: Read"));
}

#[test]
fn an_unloaded_model_has_no_lease() {
    let unload = |model: &str| Request::Unload {
        model: model.to_owned(),
    };
    let granted = || Told::default().granted("c").reads_lease(Some("c"));
    let unloaded = granted().then(unload("m"), Reply::Made);
    unloaded.reads_lease(Some("c")).check(Some("lease-7: Read"));
    let loaded_again = Told::default().then(unload("m"), Reply::Made).granted("c");
    loaded_again.reads_lease(Some("c")).check(None);
    let other = granted().then(unload("n"), Reply::Made);
    other.reads_lease(Some("c")).check(None);
}

#[test]
fn an_install_that_fails_is_listed_for_a_while() {
    let installing = || Told::default().reads_lease(Some("c"));
    installing().reads_lease(None).check(None);
    let back = installing().reads_lease(None).reads_lease(Some("c"));
    back.check(Some("lease-7: Read"));
}

#[test]
fn a_lease_ends_by_itself_only_where_a_member_of_it_is_in_trouble() {
    let granted = || Told::default().granted("c").reads_lease(Some("c"));
    granted().troubled("c").reads_lease(None).check(None);
    granted().troubled("w").reads_lease(None).check(None);
    granted()
        .troubled("x")
        .reads_lease(None)
        .check(Some("lease-7: Read(None)"));
    let back = granted().troubled("c").reads_lease(None);
    back.reads_lease(Some("c")).check(Some("lease-7: Read"));
}

#[test]
fn a_restarted_coordinator_lists_leases_as_workers_report_them() {
    let restarted = || {
        let granted = Told::default().granted("c").reads_lease(Some("c"));
        granted.restarts().reads_lease(None)
    };
    restarted().reads_lease(Some("c")).check(None);
    let hidden = restarted().reads_lease(Some("c")).reads_lease(None);
    hidden.check(Some("lease-7: Read(None)"));
    restarted()
        .released()
        .reads_lease(Some("c"))
        .check(Some("lease-7: Read"));
    // A worker that was out of reach may not have heard of the release.
    let unheard = restarted().troubled("w").released();
    unheard.reads_lease(Some("c")).reads_lease(None).check(None);
}
