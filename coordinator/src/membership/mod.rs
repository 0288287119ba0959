//! Membership: which workers are connected, what they offer, and which plans and leases they hold.
//!
//! A pure core: no I/O, no clock, no task, no randomness. Whatever changes it is an input ([`events`]) that is applied
//! at a time by [`Membership::apply`]; the actions to take in response come out of [`Core::next_command`], and
//! [`Membership::poll_timeout`] says when [`events::Timeout`] is due. All other methods only read. Its shell is the
//! service.
//!
//! ```text
//! (Moment, Event), (Moment, Event), … -- apply --> Membership -- next_command --> Command, Command, …
//! ```
//!
//! Invariants
//! 1. A name has at most one living holder. A newcomer takes it over only with the holder's own certificate, or once
//!    the holder is lost and holds no lease any more. A process that was superseded does not come back.
//! 2. Plans use a worker as long as the connection that it registered on is open.
//! 3. The end of a connection ends no lease: a lease ends when its driver or its workers say so.
//! 4. The numbers of members, of plans and of records about lost workers are bounded.
//! 5. The same events at the same times give the same state and the same commands.

mod absent;
mod drivers;
mod interface;
mod leases;
mod names;
mod plans;
mod quarantine;
mod room;
mod service_state;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use convoke_common::actor::Core;
use convoke_common::grant::Participant;
use convoke_common::ids::Incarnation;
use convoke_common::mutant;
use convoke_common::rpc::{LinkReport, MeasuredLink, MemberStatus, close};

pub use interface::events::{self, Event, Input};
pub use interface::{Asker, Command, ConnectionId, Fingerprint, MembershipError, Moment};
pub use tables::drivers::Driver;
pub use tables::member::{Absence, KeptMember};
pub use tables::offer::{Offer, shortened};
pub use tables::plans::{InstallOrder, Plan, PlanPart};
pub use tables::quarantine::{CountedDeath, Record};

use crate::place::{ClusterModel, WorkerModel};
use tables::drivers::Drivers;
use tables::exposure::Exposures;
use tables::leases::Leases;
use tables::links::Links;
use tables::member::{Life, MEMBERS, Member, ServiceState};
use tables::plans::Plans;
use tables::quarantine::Quarantine;

/// Most peers that a newcomer is asked to probe: a longer round would take too long.
const PROBED: usize = 64;

/// Why a process is disconnected if another one registered with its name and certificate.
const REPLACED: &str = "replaced by a newer process";

/// The membership core.
#[derive(Debug)]
pub struct Membership {
    /// The numerics profile that all workers must have.
    profile: String,
    members: BTreeMap<String, Member>,
    /// When the members known to a former process of the coordinator were restored.
    restored: Option<Moment>,
    drivers: Drivers,
    links: Links,
    plans: Plans,
    leases: Leases,
    quarantine: Quarantine,
    exposures: Exposures,
    /// How many installs are over.
    installs: u64,
    /// How often memory may have become free.
    freed: u64,
    commands: VecDeque<Command>,
}

impl Core for Membership {
    type Command = Command;

    fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }
}

impl Membership {
    /// Returns a core without members, for workers with this numerics profile.
    pub fn new(profile: &str) -> Membership {
        Membership {
            profile: profile.to_owned(),
            members: BTreeMap::new(),
            restored: None,
            drivers: Drivers::default(),
            links: Links::default(),
            plans: Plans::default(),
            leases: Leases::default(),
            quarantine: Quarantine::default(),
            exposures: Exposures::default(),
            installs: 0,
            freed: 0,
            commands: VecDeque::new(),
        }
    }

    /// Applies an input at a time, which is not before that of any former input, and returns the answer to it.
    pub fn apply<I: Input>(&mut self, now: Moment, input: I) -> I::Answer {
        input.apply_to(self, now)
    }

    /// Returns the sizes of the tables that are kept for clients.
    pub fn tables(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("leases", self.leases.living()),
            (
                "unconfirmed releases",
                self.leases.len() - self.leases.living(),
            ),
            ("plans", self.plans.len()),
            ("drivers", self.drivers.len()),
        ]
    }

    /// Returns when [`events::Timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Moment> {
        let names = self.forgettable();
        [
            names.map(|(_, at)| at).min(),
            self.plans.next_expiry(),
            self.drivers.next_expiry(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Drops names, plans and drivers whose time is over.
    fn handle_timeout(&mut self, now: Moment) {
        self.plans.expire(now);
        let over = self.forgettable().filter(|(_, at)| *at <= now);
        let gone: Vec<String> = over.map(|(name, _)| name.to_owned()).collect();
        gone.iter().for_each(|name| self.forget(name));
        for driver in self.drivers.overdue(now) {
            self.forget_driver(&driver);
        }
    }

    fn names_of(&self, wanted: impl Fn(&Member) -> bool) -> impl Iterator<Item = String> {
        self.members
            .iter()
            .filter(move |(_, m)| wanted(m))
            .map(|(name, _)| name.clone())
    }

    /// Registers a worker with what it offers. Returns the other workers, to which it measures its links.
    fn register(
        &mut self,
        now: Moment,
        newcomer: events::Newcomer,
    ) -> Result<Vec<Participant>, MembershipError> {
        let events::Newcomer {
            connection,
            name,
            fingerprint,
            address,
            mut register,
            at,
        } = newcomer;
        if register.profile != self.profile {
            return Err(MembershipError::Profile {
                name,
                theirs: register.profile,
                ours: self.profile.clone(),
            });
        }
        let deaths = std::mem::take(&mut register.deaths);
        let leases = std::mem::take(&mut register.leases);
        let offer = Offer::check(&name, address, register)?;
        if !self.members.contains_key(&name) {
            self.make_room()?;
        }
        let was_lost = |m: &Member| matches!(m.life, Life::Lost { .. });
        if mutant!("lost-keep-their-names") && self.members.get(&name).is_some_and(was_lost) {
            return Err(MembershipError::NameTaken { name, holder: None });
        }
        let known = self
            .members
            .get(&name)
            .is_some_and(|m| m.fingerprints.contains(&fingerprint));
        let superseded = |m: &Member| m.superseded.contains(&offer.incarnation);
        if self.members.get(&name).is_some_and(superseded) {
            self.commands.push_back(Command::Close {
                connection,
                code: close::REPLACED,
                reason: REPLACED,
            });
            return Err(MembershipError::Superseded { name });
        }
        let reserved = |m: &Member| !m.is_alive() && m.reserved_until.is_some_and(|t| t > now);
        if !known && self.members.get(&name).is_some_and(reserved) {
            // The name was given to another worker a moment ago, which has yet to register.
            return Err(MembershipError::NameTaken { name, holder: None });
        }
        let leases_left = self.reserving(&name);
        if !known && leases_left > 0 {
            return Err(MembershipError::NameReserved {
                name,
                leases: leases_left,
            });
        }
        let is_gone = |m: &Member| matches!(m.life, Life::Lost { .. } | Life::Left);
        let was_gone = self.members.get(&name).is_some_and(is_gone);
        let mut service = ServiceState::Serving;
        if let Some(Member {
            life:
                Life::Alive {
                    connection: holder,
                    offer: last,
                    service: before,
                },
            ..
        }) = self.members.get(&name)
        {
            let holder = *holder;
            if holder != connection && !known {
                return Err(MembershipError::NameTaken {
                    name,
                    holder: Some(holder),
                });
            }
            if last.incarnation == offer.incarnation {
                // The same process returned after its old connection broke: its leases go on.
                service = before.clone();
                if holder != connection {
                    self.commands.push_back(Command::Close {
                        connection: holder,
                        code: close::LOST,
                        reason: "back on another connection",
                    });
                }
            } else if holder == connection {
                // A process keeps its incarnation, so nobody has seen the former one end.
                let what = "another incarnation on the same connection";
                return Err(MembershipError::BadRegister { name, what });
            } else {
                self.lose(now, &name);
                self.commands.push_back(Command::Close {
                    connection: holder,
                    code: close::REPLACED,
                    reason: REPLACED,
                });
            }
        }
        let member = self
            .members
            .entry(name.clone())
            .or_insert_with(|| Member::expected(now));
        if !known {
            member.fingerprints = vec![fingerprint];
        }
        let fingerprints = member.fingerprints.clone();
        let before = std::mem::replace(
            &mut member.life,
            Life::Alive {
                connection,
                offer: offer.clone(),
                service,
            },
        );
        member.seen = now;
        member.reserved_until = None;
        let former = before.offer().map(|last| last.incarnation);
        if former != Some(offer.incarnation) {
            former.into_iter().for_each(|i| member.supersede(i));
            self.links.forget(&name);
        }
        self.reconcile(&name, &offer, leases);
        let drains = self.members.get(&name).is_some_and(Member::is_to_drain);
        if drains && former == Some(offer.incarnation) {
            // The worker was out of reach when it was taken out of service.
            self.commands.push_back(Command::Drain { connection });
        }
        // Saving the name also deletes the note that its holder is gone.
        if !known || was_gone {
            self.commands.push_back(Command::Keep {
                name: name.clone(),
                fingerprints,
            });
        }
        self.died(&name, at, deaths);
        let peers = self
            .participants()
            .filter(|p| p.name != name)
            .take(PROBED)
            .collect::<Vec<_>>();
        if !peers.is_empty() {
            self.commands.push_back(Command::Probe {
                connection,
                peers: peers.clone(),
            });
        }
        self.memory_freed(Some(&name));
        self.commands.push_back(Command::Population(self.serving()));
        Ok(peers)
    }

    /// Records the links that a worker measured.
    fn reported(&mut self, now: Moment, connection: ConnectionId, reports: &[LinkReport]) {
        let Some(name) = self.heard(now, connection) else {
            return;
        };
        for report in reports.iter().take(MEMBERS) {
            let peer_is_there = self.members.get(&report.peer).is_some_and(Member::is_alive);
            if peer_is_there && report.peer != name {
                self.links.set(&name, report);
            }
        }
    }

    /// Notes that a worker answered. Returns its name if it is registered on that connection.
    fn heard(&mut self, now: Moment, connection: ConnectionId) -> Option<String> {
        let (name, member) = self
            .members
            .iter_mut()
            .find(|(_, m)| m.connection() == Some(connection))?;
        member.seen = now;
        Some(name.clone())
    }

    /// Handles the end of a worker's or a client's connection.
    fn closed(&mut self, now: Moment, connection: ConnectionId) {
        self.driver_away(now, connection);
        let name = self.names_of(|m| m.connection() == Some(connection)).next();
        if let Some(name) = name {
            self.lose(now, &name);
            self.keep_gone(name);
            self.commands.push_back(Command::Population(self.serving()));
        }
    }

    /// Asks the shell to save that the holder of a name is gone, after the commands that other members wait for.
    fn keep_gone(&mut self, name: String) {
        let life = self.members.get(&name).map(|m| &m.life);
        if let Some(Life::Lost { left, .. }) = life {
            let left = *left;
            self.commands.push_back(Command::Gone { name, left });
        }
    }

    /// Returns how many workers take new work.
    pub fn serving(&self) -> u32 {
        let serving = self.members.values().filter(|m| m.serving().is_some());
        serving.count() as u32
    }

    /// Returns the living workers' names and connections, sorted by name.
    pub fn connections(&self) -> Vec<(String, ConnectionId)> {
        let of = |(name, m): (&String, &Member)| Some((name.clone(), m.connection()?));
        self.members.iter().filter_map(of).collect()
    }

    fn participants(&self) -> impl Iterator<Item = Participant> {
        self.members.iter().filter_map(|(name, m)| {
            let offer = m.living()?;
            Some(Participant {
                name: name.clone(),
                incarnation: offer.incarnation,
                address: offer.address.clone(),
            })
        })
    }

    /// Returns the workers that placement may use, sorted by name, with the memory that is free there for `asker`:
    /// those that take new work, except the incarnations `avoid`.
    pub fn model(
        &self,
        now: Moment,
        avoid: &[(String, Incarnation)],
        asker: &Asker,
    ) -> ClusterModel {
        let avoided = |name: &str, o: &Offer| {
            let is = |(n, i): &(String, Incarnation)| n == name && *i == o.incarnation;
            avoid.iter().any(is)
        };
        let usable = || {
            let there = self
                .members
                .iter()
                .filter_map(|(name, m)| Some((name, m.serving()?)));
            there.filter(|(name, offer)| !avoided(name, offer))
        };
        let worker = |(name, offer): (&String, &Offer)| {
            let (host, device_memory) = self.room(now, name, offer, asker);
            WorkerModel {
                name: name.clone(),
                address: offer.address.clone(),
                incarnation: offer.incarnation,
                device: offer.device.clone(),
                profile: offer.device_profile.clone(),
                threads: offer.threads,
                host,
                device_memory,
                load_buffer: offer.load_buffer,
                host_speed: offer.host_speed,
                device_speed: offer.device_speed,
                kernels: offer.kernels.clone(),
                device_blocks: offer.device_blocks,
                on_device: Arc::default(),
                ops: offer.ops.clone(),
            }
        };
        let mut model = ClusterModel::new(usable().map(worker).collect());
        for (i, (from, _)) in usable().enumerate() {
            for (j, (to, _)) in usable().enumerate() {
                if let Some(link) = self.links.get(from, to) {
                    model.set_link(i, j, link);
                }
            }
        }
        model
    }

    /// Returns the measured links between workers.
    pub fn links(&self) -> Vec<MeasuredLink> {
        self.links.all().collect()
    }

    /// Returns the status of all workers that have not left and are not forgotten. The caller asks the workers
    /// themselves for what only they know.
    pub fn status(&self, now: Moment) -> Vec<MemberStatus> {
        let status = |(name, m): (&String, &Member)| {
            let offer = m.offer();
            // The core knows only the name of a newcomer that has yet to register, so the newcomer is omitted. Workers
            // from before a restart are known by name only as well, but they are listed.
            let is_newcomer = offer.is_none() && !m.drained && m.reserved_until.is_some();
            if is_newcomer || m.has_left() {
                return None;
            }
            let former = m.superseded.back();
            let former = former.filter(|_| mutant!("former-incarnation-listed"));
            let listed = former.copied().or(offer.map(|o| o.incarnation));
            Some(MemberStatus {
                name: name.clone(),
                incarnation: listed.unwrap_or(Incarnation(0)),
                address: offer.map(|o| o.address.clone()).unwrap_or_default(),
                host: offer.map(|o| o.host.clone()).unwrap_or_default(),
                version: offer.map(|o| o.version.clone()).unwrap_or_default(),
                device: offer.map(|o| o.device.clone()).unwrap_or_default(),
                device_profile: offer
                    .map(|o| o.device_profile.to_string())
                    .unwrap_or_default(),
                threads: offer.map_or(0, |o| o.threads),
                memory: offer.map_or(0, |o| o.memory),
                device_memory: offer.map_or(0, |o| o.device_memory),
                host_flops: offer.map_or(0.0, |o| o.host_speed.flops),
                flops: offer.map_or(0.0, |o| o.device_speed.flops),
                memory_bandwidth: offer.map_or(0.0, |o| o.device_speed.memory_bandwidth),
                last_seen_ms: u64::try_from(now.since(m.seen).as_millis()).unwrap_or(u64::MAX),
                state: m.state(),
                remark: m.remark().to_owned(),
                tripwire: false,
                ops: offer.map(|o| o.ops.clone()).unwrap_or_default(),
                status: None,
            })
        };
        self.members.iter().filter_map(status).collect()
    }
}
