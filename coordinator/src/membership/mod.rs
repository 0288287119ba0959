//! Membership: which workers are there, what they offer, and whose plans and leases they carry.
//!
//! A pure core: no I/O, no clock, no task. Inputs are methods that take the time; what is to be done about them
//! comes out of [`Membership::next_command`], and [`Membership::poll_timeout`] says when to call
//! [`Membership::handle_timeout`]. Its shell is the service.
//!
//! Invariants
//! 1. A name has at most one living holder. A newcomer takes it over only with the holder's own certificate, or
//!    once the holder is lost.
//! 2. A worker is alive exactly as long as the connection it registered on.
//! 3. A lease that names a worker ends no later than that incarnation does; a client's leases and plans end no
//!    later than its connection. Whoever else carries such a lease is told.
//! 4. Members, plans and what is kept of the lost are bounded.

mod commands;
mod error;
mod leases;
mod links;
mod member;
mod names;
mod plans;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use convoke_common::program::Participant;
use convoke_common::rpc::{LinkReport, MemberStatus, close};
use tokio::time::Instant;

pub use commands::{Command, ConnectionId, Fingerprint};
pub use error::MembershipError;
pub use leases::{Granted, LeaseState};
pub use member::{Newcomer, Offer};
pub use plans::Plan;

use crate::place::{ClusterModel, WorkerModel};
use leases::Leases;
use links::Links;
use member::{Life, Member};
use names::MEMBERS;
use plans::Plans;

/// Peers that a newcomer is asked to probe: a round of more would take too long.
const PROBED: usize = 64;

/// The core.
#[derive(Debug)]
pub struct Membership {
    /// The numerics profile that all workers must have.
    profile: String,
    members: BTreeMap<String, Member>,
    links: Links,
    plans: Plans,
    leases: Leases,
    commands: VecDeque<Command>,
}

impl Membership {
    /// Of workers with this numerics profile; nobody is there yet.
    pub fn new(profile: &str) -> Membership {
        Membership {
            profile: profile.to_owned(),
            members: BTreeMap::new(),
            links: Links::default(),
            plans: Plans::default(),
            leases: Leases::default(),
            commands: VecDeque::new(),
        }
    }

    /// What is to be done next; asked until `None` after every input.
    pub fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// When [`Membership::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let names = self.members.values().filter_map(Member::forgotten_at).min();
        [names, self.plans.next_expiry()]
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
            register,
        } = newcomer;
        if register.profile != self.profile {
            return Err(MembershipError::Profile {
                name,
                theirs: register.profile,
                ours: self.profile.clone(),
            });
        }
        let offer = Offer::check(&name, address, register)?;
        if !self.members.contains_key(&name) {
            self.make_room()?;
        }
        let known = self
            .members
            .get(&name)
            .is_some_and(|m| m.fingerprints.contains(&fingerprint));
        if let Some(Member {
            life: Life::Alive {
                connection: holder, ..
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
            self.lose(
                now,
                &name,
                (holder != connection).then_some((close::REPLACED, "replaced by a newer process")),
            );
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
            },
        );
        member.seen = now;
        member.reserved_until = None;
        match before {
            // The process that missed them is the one that comes back; another one never had them.
            Life::Lost { offer: last, owed } if last.incarnation == offer.incarnation => {
                let owed = owed.into_iter();
                self.commands.extend(owed.map(|lease| Command::Release {
                    lease,
                    at: vec![connection],
                    lost: None,
                }));
            }
            _ => self.links.forget(&name),
        }
        if !known {
            self.commands.push_back(Command::Keep {
                name: name.clone(),
                fingerprints,
            });
        }
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
        self.commands.push_back(Command::Population(self.alive()));
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

    /// A worker's or client's connection ended.
    pub fn closed(&mut self, now: Instant, connection: ConnectionId) {
        self.plans.forget_owner(connection);
        for lease in self.leases.of_driver(connection) {
            self.end_lease(lease, None);
        }
        let name = self.names_of(|m| m.connection() == Some(connection)).next();
        if let Some(name) = name {
            self.lose(now, &name, None);
            self.commands.push_back(Command::Population(self.alive()));
        }
    }

    /// Turns a living worker into a lost one and ends its leases.
    fn lose(&mut self, now: Instant, name: &str, close: Option<(u32, &'static str)>) {
        let leases = self.leases.of_worker(name);
        let Some(member) = self.members.get_mut(name) else {
            return;
        };
        let Life::Alive { connection, offer } = &member.life else {
            return;
        };
        let connection = *connection;
        member.life = Life::Lost {
            offer: offer.clone(),
            owed: leases.clone(),
        };
        member.seen = now;
        for lease in leases {
            self.end_lease(lease, Some(name));
        }
        if let Some((code, reason)) = close {
            self.commands.push_back(Command::Close {
                connection,
                code,
                reason,
            });
        }
    }

    /// How many workers are alive.
    pub fn alive(&self) -> u32 {
        self.members.values().filter(|m| m.is_alive()).count() as u32
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

    /// What placement may use, by name.
    pub fn model(&self) -> ClusterModel {
        let living = || {
            self.members
                .iter()
                .filter_map(|(name, m)| Some((name, m.living()?)))
        };
        let worker = |(name, offer): (&String, &Offer)| WorkerModel {
            name: name.clone(),
            address: offer.address.clone(),
            incarnation: offer.incarnation,
            threads: offer.threads,
            memory: offer.memory,
            flops: offer.flops,
            memory_bandwidth: offer.memory_bandwidth,
        };
        let mut model = ClusterModel::new(living().map(worker).collect());
        for (i, (from, _)) in living().enumerate() {
            for (j, (to, _)) in living().enumerate() {
                if let Some(link) = self.links.get(from, to) {
                    model.set_link(i, j, link);
                }
            }
        }
        model
    }

    /// All that were ever registered and are not forgotten; their own accounts are for the caller to ask.
    pub fn status(&self, now: Instant) -> Vec<MemberStatus> {
        let status = |(name, m): (&String, &Member)| {
            let offer = m.offer()?;
            Some(MemberStatus {
                name: name.clone(),
                incarnation: offer.incarnation,
                address: offer.address.clone(),
                host: offer.host.clone(),
                threads: offer.threads,
                memory: offer.memory,
                flops: offer.flops,
                last_seen_ms: u64::try_from(now.duration_since(m.seen).as_millis())
                    .unwrap_or(u64::MAX),
                alive: m.is_alive(),
                status: None,
            })
        };
        self.members.iter().filter_map(status).collect()
    }
}
