//! The inputs that change the membership: one for each thing that a member, the owner or the clock does.
//!
//! Each input is plain data and has an answer of its own type. An [`Event`] is any of them. A shell may write down each
//! event with its time, as bytes; whoever applies the same events at the same times to a fresh core gets the same state
//! and the same commands. Random numbers and dates are therefore fields of the inputs that need them: the core makes
//! none.
//!
//! A row of the table below is an input: its fields, its answer, and the method of the core that gives it.

use std::sync::Arc;

use convoke_common::Error;
use convoke_common::grant::Participant;
use convoke_common::identity::PeerName;
use convoke_common::ids::{LeaseId, PlanId};
use convoke_common::memory::Reservation;
use convoke_common::rpc::{LinkReport, MemoryReport, Registration};
use serde::{Deserialize, Serialize};

use super::connection::{ConnectionId, Fingerprint};
use super::error::MembershipError;
use super::moment::Moment;
use crate::membership::Membership;
use crate::membership::tables::drivers::Driver;
use crate::membership::tables::member::KeptMember;
use crate::membership::tables::plans::{InstallOrder, Plan};
use crate::membership::tables::quarantine::Record;

/// An input of the core.
pub trait Input: Clone + Into<Event> + Send + 'static {
    /// The core's answer.
    type Answer: Send + 'static;

    /// Applies the input to the core, as [`Membership::apply`] does.
    fn apply_to(self, core: &mut Membership, now: Moment) -> Self::Answer;
}

/// Declares each input as a struct, and [`Event`] as any of them.
macro_rules! inputs {
    ($(
        $(#[$doc:meta])*
        $Name:ident { $($(#[$about:meta])* $field:ident: $Type:ty),* $(,)? } -> $Answer:ty
            = |$core:ident, $now:pat_param| $body:expr;
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Serialize, Deserialize)]
            pub struct $Name { $($(#[$about])* pub $field: $Type),* }

            impl Input for $Name {
                type Answer = $Answer;

                fn apply_to(self, $core: &mut Membership, $now: Moment) -> $Answer {
                    let $Name { $($field),* } = self;
                    $body
                }
            }

            impl From<$Name> for Event {
                fn from(input: $Name) -> Event {
                    Event::$Name(input)
                }
            }
        )*

        /// Any input of the core, as it is written down and replayed. Its own answer is empty: whoever asked was
        /// answered when it happened.
        // An event lives until it is written down or applied, so its size does not matter.
        #[allow(clippy::large_enum_variant)]
        #[derive(Debug, Clone, Serialize, Deserialize)]
        pub enum Event { $($Name($Name)),* }

        impl Input for Event {
            type Answer = ();

            fn apply_to(self, core: &mut Membership, now: Moment) {
                match self {
                    $(Event::$Name(input) => {
                        let _ = input.apply_to(core, now);
                    })*
                }
            }
        }

        /// The names of all inputs.
        #[cfg(test)]
        pub(in crate::membership) const NAMES: &[&str] = &[$(stringify!($Name)),*];
    };
}

inputs! {
    // The core itself.

    /// The state that was saved before a restart of the coordinator is restored: the names, those that are out of
    /// service, and the nodes in which workers died.
    Restoration { members: Vec<KeptMember>, drained: Vec<String>, deaths: Vec<Record> } -> ()
        = |core, now| {
            core.restore(now, members);
            core.restore_drained(now, drained);
            core.restore_quarantine(deaths);
        };

    /// The time of [`Membership::poll_timeout`] has come.
    Timeout {} -> () = |core, now| core.handle_timeout(now);

    // Names and certificates.

    /// A worker that joins asks for a name. The answer is the name that it gets.
    NameClaim {
        /// The name that it wants; `None` if the core shall choose one.
        wanted: Option<PeerName>,
        /// The certificate that the worker proved to hold.
        former: Option<Fingerprint>,
    } -> Result<String, MembershipError>
        = |core, now| core.claim(now, wanted.as_ref(), former);

    /// A certificate was issued for a claimed name.
    IssuedCertificate { name: String, fingerprint: Fingerprint, former: Option<Fingerprint> } -> ()
        = |core, _| core.issued(&name, fingerprint, former);

    /// The worker on this connection got another certificate for its name.
    RenewedCertificate { connection: ConnectionId, fingerprint: Fingerprint } -> ()
        = |core, _| core.renewed(connection, fingerprint);

    /// The owner does not expect a worker to return.
    ForgottenName { name: String } -> Result<(), MembershipError>
        = |core, _| core.forget_gone(&name);

    // Connections and workers.

    /// A worker registers. The answer is the other workers, to which it measures its links.
    Newcomer {
        connection: ConnectionId,
        /// The name in the worker's certificate.
        name: String,
        fingerprint: Fingerprint,
        /// The address at which other members reach the worker.
        address: String,
        register: Registration,
        /// When the registration arrived: seconds since 1970, by the coordinator's calendar.
        at: u64,
    } -> Result<Vec<Participant>, MembershipError>
        = |core, now| {
            let newcomer = Newcomer { connection, name, fingerprint, address, register, at };
            core.register(now, newcomer)
        };

    /// The worker on this connection answered.
    SignOfLife { connection: ConnectionId } -> ()
        = |core, now| {
            core.heard(now, connection);
        };

    /// The worker on this connection measured its links.
    LinkReports { connection: ConnectionId, reports: Vec<LinkReport> } -> ()
        = |core, now| core.reported(now, connection, &reports);

    /// A member's connection ended, and the member may return.
    Disconnection { connection: ConnectionId } -> ()
        = |core, now| core.closed(now, connection);

    /// A member closed its connection itself, and does not return as the same incarnation.
    Goodbye { connection: ConnectionId } -> () = |core, now| core.left(now, connection);

    // Workers that take no new work.

    /// The worker on this connection finishes its steps and ends.
    Departure { connection: ConnectionId } -> () = |core, now| core.leave(now, connection);

    /// A kernel of the worker on this connection does not stop.
    Wedge { connection: ConnectionId, why: Error } -> ()
        = |core, now| core.wedged(now, connection, &why);

    /// The owner takes a name out of service. The answer says whether its worker is connected.
    Drain { name: String } -> Result<bool, MembershipError> = |core, _| core.drain(&name);

    /// The owner puts a name back into service. The answer says whether plans use its worker from now on.
    Undrain { name: String } -> Result<bool, MembershipError> = |core, _| core.undrain(&name);

    // Quarantine.

    /// The owner forgives the deaths in the nodes of this name. The answer is the number of functions in which such a
    /// node was refused.
    QuarantineLift { node: String } -> Result<u32, MembershipError> = |core, _| core.lift(&node);

    // Drivers.

    /// A client says which leases it holds as this driver. Its other leases end.
    Resumption { connection: ConnectionId, driver: Driver, held: Vec<LeaseId> } -> Result<(), MembershipError>
        = |core, _| core.resume(connection, driver, held);

    /// A client asks for something as this driver. If it had not named its leases before, it holds none.
    Introduction { connection: ConnectionId, driver: Driver } -> Result<(), MembershipError>
        = |core, _| core.speaks(connection, driver);

    // Plans.

    /// A plan was made for the client on this connection.
    KeptPlan {
        owner: ConnectionId,
        id: PlanId,
        plan: Arc<Plan>,
        /// The reservation that charges the plan's memory to its client. It is this process's own: a replayed plan is
        /// charged to nobody.
        #[serde(skip)]
        charge: Option<Arc<Reservation>>,
        /// Whether the client installs the plan at once, so that the memory that it needs counts as taken.
        installs: bool,
    } -> ()
        = |core, now| core.keep_plan(now, owner, id, plan, charge, installs);

    /// A plan of the client on this connection is looked up. The answer fails if the plan cannot be installed any more.
    PlanUse { owner: ConnectionId, id: PlanId } -> Result<InstallOrder, MembershipError>
        = |core, now| core.plan(now, owner, id);

    /// The plan that a client has not used for the longest time makes room. The answer says whether it had one.
    PlanEviction { owner: ConnectionId } -> bool = |core, _| core.drop_oldest_plan(owner);

    // Leases.

    /// A plan is to be installed as a lease. One of [`InstallSuccess`] and [`InstallFailure`] follows.
    InstallRequest { driver: ConnectionId, plan: PlanId, lease: LeaseId } -> Result<InstallOrder, MembershipError>
        = |core, now| core.grant(now, driver, plan, lease);

    /// All workers acknowledged the install. The answer fails if the driver gave the lease up meanwhile.
    InstallSuccess { lease: LeaseId } -> Result<(), MembershipError>
        = |core, _| core.installed(lease);

    /// The install failed, or its caller went away.
    InstallFailure { lease: LeaseId } -> () = |core, _| core.abandon(lease);

    /// A worker had no room for its part of a lease.
    RoomRefusal { lease: LeaseId, worker: String } -> ()
        = |core, now| core.had_no_room(now, lease, &worker);

    /// A client stopped waiting for the install of a plan, and may not know whether it was granted.
    PlanAbandonment { driver: ConnectionId, plan: PlanId } -> () = |core, _| core.give_up(driver, plan);

    /// A driver releases its lease.
    LeaseRelease { driver: ConnectionId, lease: LeaseId } -> Result<(), MembershipError>
        = |core, _| core.release(driver, lease);

    /// The worker on this connection dropped these leases.
    LeaseDrop { connection: ConnectionId, leases: Vec<LeaseId> } -> ()
        = |core, _| core.dropped(connection, &leases);

    // Memory.

    /// Workers said how much of their memory is in use.
    MemoryReports {
        /// The number that [`Membership::to_report`] returned when the workers were asked.
        asked: u64,
        reports: Vec<(ConnectionId, MemoryReport)>,
    } -> ()
        = |core, _| {
            for (connection, used) in reports {
                core.reported_memory(connection, asked, used);
            }
        };
}
