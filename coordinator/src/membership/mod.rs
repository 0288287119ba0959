//! Membership: which workers are there, what they offer, and whose plans and leases they carry.
//!
//! A pure core: no I/O, no clock, no task. Inputs are methods that take the time; what is to be done about them
//! comes out of [`Membership::next_command`], and [`Membership::poll_timeout`] says when to call
//! [`Membership::handle_timeout`]. Its shell is the service.
//!
//! Invariants
//! 1. A name has at most one living holder. A newcomer takes it over only with the holder's own certificate, or
//!    once the holder is lost.
//! 2. A worker is alive as long as the connection it registered on; and for [`RETURN_BOUND`] more where it ended that
//!    because it took the coordinator for lost.
//! 3. A lease that names a worker ends no later than that incarnation does; a client's leases and plans end when it
//!    leaves, or does not return in time. Whoever else carries such a lease is told.
//! 4. Members, plans and what is kept of the lost are bounded.

mod commands;
mod drivers;
mod error;
mod leases;
mod links;
mod member;
mod names;
mod plans;
mod quarantine;
mod standing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use convoke_common::ids::Incarnation;
use convoke_common::mutant;
use convoke_common::program::Participant;
use convoke_common::rpc::{LinkReport, Loss, MeasuredLink, MemberStatus, RETURN_BOUND, close};
use tokio::time::Instant;

pub use commands::{Command, ConnectionId, Fingerprint};
pub use drivers::Driver;
pub use error::MembershipError;
pub use leases::{Granted, LeaseState};
pub use member::{Newcomer, Offer};
pub use plans::Plan;
pub use quarantine::{Counted, Record};

use crate::place::{ClusterModel, WorkerModel};
use drivers::Drivers;
use leases::Leases;
use links::Links;
use member::{Life, Member, Standing};
use names::MEMBERS;
use plans::Plans;
use quarantine::Quarantine;

/// Peers that a newcomer is asked to probe: a round of more would take too long.
const PROBED: usize = 64;

/// What becomes of a process whose name and certificate another one shows.
const REPLACED: &str = "replaced by a newer process";

/// The core.
#[derive(Debug)]
pub struct Membership {
    /// The numerics profile that all workers must have.
    profile: String,
    members: BTreeMap<String, Member>,
    /// When members of a former process of the coordinator were taken over.
    restored: Option<Instant>,
    drivers: Drivers,
    links: Links,
    plans: Plans,
    leases: Leases,
    quarantine: Quarantine,
    commands: VecDeque<Command>,
}

impl Membership {
    /// Of workers with this numerics profile; nobody is there yet.
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
            commands: VecDeque::new(),
        }
    }

    /// How much it holds for clients.
    pub fn tables(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("leases", self.leases.len()),
            ("plans", self.plans.len()),
            ("drivers", self.drivers.len()),
        ]
    }

    /// What is to be done next; asked until `None` after every input.
    pub fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// When [`Membership::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let names = self.members.values().filter_map(Member::forgotten_at).min();
        let away = self.members.values().filter_map(|m| m.away.as_ref());
        let away = away.map(|(until, _)| *until).min();
        [
            names,
            away,
            self.plans.next_expiry(),
            self.drivers.next_expiry(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Drops what is no longer worth keeping.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.plans.expire(now);
        let over = |m: &Member| m.forgotten_at().is_some_and(|t| t <= now);
        let gone: Vec<String> = self.names_of(over).collect();
        gone.iter().for_each(|name| self.forget(name));
        for driver in self.drivers.overdue(now) {
            self.end_driver(&driver);
        }
        let late = |m: &Member| m.away.as_ref().is_some_and(|(until, _)| *until <= now);
        let late: Vec<String> = self.names_of(late).collect();
        for name in late {
            let away = self.members.get_mut(&name).and_then(|m| m.away.take());
            if let Some((_, why)) = away {
                self.lose(now, &name, &why);
            }
        }
    }

    fn names_of(&self, wanted: impl Fn(&Member) -> bool) -> impl Iterator<Item = String> {
        self.members
            .iter()
            .filter(move |(_, m)| wanted(m))
            .map(|(name, _)| name.clone())
    }

    fn forget(&mut self, name: &str) {
        self.members.remove(name);
        self.links.forget(name);
        self.commands.push_back(Command::Forget {
            name: name.to_owned(),
        });
    }

    /// A worker says what it is and offers. Answers the other workers, to probe.
    pub fn register(
        &mut self,
        now: Instant,
        newcomer: Newcomer,
    ) -> Result<Vec<Participant>, MembershipError> {
        let Newcomer {
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
        let mut standing = Standing::Serving;
        if let Some(Member {
            life:
                Life::Alive {
                    connection: holder,
                    offer: last,
                    standing: before,
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
                // The same process, whose old connection broke: what it holds goes on.
                standing = before.clone();
                if holder != connection {
                    self.commands.push_back(Command::Close {
                        connection: holder,
                        code: close::LOST,
                        reason: "back on another connection",
                    });
                }
            } else {
                self.lose(now, &name, REPLACED);
                if holder != connection {
                    self.commands.push_back(Command::Close {
                        connection: holder,
                        code: close::REPLACED,
                        reason: REPLACED,
                    });
                }
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
                standing,
            },
        );
        member.seen = now;
        member.reserved_until = None;
        member.away = None;
        match before {
            // What ended while nothing reached it, it still holds.
            Life::Lost { offer: last, .. } | Life::Alive { offer: last, .. }
                if last.incarnation == offer.incarnation =>
            {
                self.release_ended(connection, (&name, offer.incarnation), &leases);
            }
            Life::Expected => {
                self.links.forget(&name);
                self.adopt(now, &name, &offer, leases);
            }
            _ => self.links.forget(&name),
        }
        if !known {
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
        self.commands.push_back(Command::Population(self.serving()));
        Ok(peers)
    }

    /// A worker measured its links.
    pub fn reported(&mut self, now: Instant, connection: ConnectionId, reports: &[LinkReport]) {
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

    /// A worker answered. Its name, while it is registered on that connection.
    pub fn heard(&mut self, now: Instant, connection: ConnectionId) -> Option<String> {
        let (name, member) = self
            .members
            .iter_mut()
            .find(|(_, m)| m.connection() == Some(connection))?;
        member.seen = now;
        Some(name.clone())
    }

    /// A worker's connection ended, or a client's broke: `why`, in words that follow "lost contact with PEER: ".
    pub fn closed(&mut self, now: Instant, connection: ConnectionId, why: &str) {
        self.driver_away(now, connection);
        let name = self.names_of(|m| m.connection() == Some(connection)).next();
        if let Some(name) = name {
            self.lose(now, &name, why);
            self.commands.push_back(Command::Population(self.serving()));
        }
    }

    /// A peer ended its connection because it took this coordinator for lost: it was the coordinator that was away. A
    /// worker has as long to return as a client; until then its leases go on.
    pub fn parted(&mut self, now: Instant, connection: ConnectionId, why: &str) {
        self.driver_away(now, connection);
        let mut members = self.members.values_mut();
        if let Some(member) = members.find(|m| m.connection() == Some(connection)) {
            member.away = Some((now + RETURN_BOUND, why.to_owned()));
            self.commands.push_back(Command::Population(self.serving()));
        }
    }

    /// Turns a living worker into a lost one and ends its leases.
    fn lose(&mut self, now: Instant, name: &str, why: &str) {
        let leases = self.leases.of_worker(name);
        let Some(member) = self.members.get_mut(name) else {
            return;
        };
        let Life::Alive {
            offer, standing, ..
        } = &member.life
        else {
            return;
        };
        member.remark = match standing {
            Standing::Wedged(why) => format!("its former process was wedged: {why}"),
            _ => String::new(),
        };
        member.life = Life::Lost {
            offer: offer.clone(),
            left: *standing == Standing::Leaving,
        };
        member.seen = now;
        member.away = None;
        let lost = Loss {
            worker: name.to_owned(),
            why: why.to_owned(),
        };
        for lease in leases {
            self.end_lease(lease, Some(&lost));
        }
    }

    /// How many workers take new work.
    pub fn serving(&self) -> u32 {
        let serving = self.members.values().filter(|m| m.serving().is_some());
        serving.count() as u32
    }

    /// The living workers' names and connections, by name.
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

    /// What placement may use, by name: those that take new work, but these incarnations.
    pub fn model(&self, avoid: &[(String, Incarnation)]) -> ClusterModel {
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
        let worker = |(name, offer): (&String, &Offer)| WorkerModel {
            name: name.clone(),
            address: offer.address.clone(),
            incarnation: offer.incarnation,
            threads: offer.threads,
            memory: offer.memory,
            window: offer.window,
            flops: offer.flops,
            memory_bandwidth: offer.memory_bandwidth,
            ops: offer.ops.clone(),
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

    /// What was measured of the links between workers.
    pub fn links(&self) -> Vec<MeasuredLink> {
        self.links.all().collect()
    }

    /// All that were ever registered and are not forgotten; their own accounts are for the caller to ask.
    pub fn status(&self, now: Instant) -> Vec<MemberStatus> {
        let status = |(name, m): (&String, &Member)| {
            let offer = m.offer();
            // Of a newcomer only the name is known, as of those that were there before a restart: they are told of.
            if offer.is_none() && !m.drained && m.reserved_until.is_some() {
                return None;
            }
            Some(MemberStatus {
                name: name.clone(),
                incarnation: offer.map_or(Incarnation(0), |o| o.incarnation),
                address: offer.map(|o| o.address.clone()).unwrap_or_default(),
                host: offer.map(|o| o.host.clone()).unwrap_or_default(),
                threads: offer.map_or(0, |o| o.threads),
                memory: offer.map_or(0, |o| o.memory),
                flops: offer.map_or(0.0, |o| o.flops),
                last_seen_ms: u64::try_from(now.duration_since(m.seen).as_millis())
                    .unwrap_or(u64::MAX),
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
