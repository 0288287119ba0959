//! The rules for which process may have which name.

use std::time::Duration;

use convoke_common::identity::PeerName;
use convoke_common::rpc::RETURN_BOUND;

use super::Membership;
use super::interface::{Command, ConnectionId, Fingerprint, MembershipError, Moment};
use super::tables::member::{Absence, KEPT, KeptMember, Life, MEMBERS, Member};
use super::tables::offer::Offer;

/// How long a worker may take from its certificate to its registration: two round trips, and a slow start.
const RESERVED: Duration = Duration::from_secs(10);

impl Membership {
    /// Restores the names that were saved before a restart of the coordinator.
    pub(super) fn restore(&mut self, now: Moment, kept: Vec<KeptMember>) {
        self.restored = Some(now);
        for kept in kept.into_iter().take(MEMBERS) {
            let KeptMember {
                name,
                fingerprints,
                gone,
            } = kept;
            let mut member = Member {
                fingerprints,
                ..Member::expected(now)
            };
            if let Some(Absence { ago, left }) = gone {
                member.seen = now - ago.min(KEPT);
                if left {
                    member.life = Life::Left;
                }
            }
            self.members.insert(name, member);
        }
    }

    /// Returns the names that will be forgotten, and when: those of workers that are gone and hold no lease.
    pub(super) fn forgettable(&self) -> impl Iterator<Item = (&str, Moment)> {
        let holders = self.leases.holders();
        self.members.iter().filter_map(move |(name, m)| {
            let holds = |o: &Offer| holders.contains(&(name.as_str(), o.incarnation));
            let at = m.forgotten_at()?;
            Some((name.as_str(), at)).filter(|_| !m.offer().is_some_and(holds))
        })
    }

    pub(super) fn forget(&mut self, name: &str) {
        self.members.remove(name);
        self.links.forget(name);
        self.leases.forget(name);
        self.memory_freed(None);
        self.exposures.forget(name);
        self.commands.push_back(Command::Forget {
            name: name.to_owned(),
        });
    }

    /// Returns the living workers with the certificates that hold their names.
    pub fn holders(&self) -> Vec<(String, Vec<Fingerprint>)> {
        let there = self.members.iter().filter(|(_, m)| m.is_alive());
        there
            .map(|(name, m)| (name.clone(), m.fingerprints.clone()))
            .collect()
    }

    /// Forgets a worker that the owner does not expect to return: its name is free.
    pub(super) fn forget_gone(&mut self, name: &str) -> Result<(), MembershipError> {
        let name = name.to_owned();
        let Some(member) = self.members.get(&name) else {
            return Err(MembershipError::NoSuchWorker { name });
        };
        if member.is_alive() {
            return Err(MembershipError::StillThere { name });
        }
        if self.reserving(&name) > 0 {
            return Err(MembershipError::HoldsLeases { name });
        }
        self.forget(&name);
        Ok(())
    }

    /// Returns until when restored workers that have not registered are waited for: none of them counts as lost before.
    /// `None` once the wait is over.
    pub fn returning(&self, now: Moment) -> Option<Moment> {
        let until = self.restored? + RETURN_BOUND;
        // A worker that was gone before the restart is not expected.
        let was_there = |m: &Member| self.restored.is_some_and(|at| m.seen >= at);
        let expected = |m: &Member| matches!(m.life, Life::Expected) && !m.drained && was_there(m);
        (now < until && self.members.values().any(expected)).then_some(until)
    }

    /// Reserves a name for a joining worker: the one it wants, or the first free one of `w0`, `w1`, … A name that is
    /// taken, or whose last process may still hold leases, is given only to a worker that proved that it holds the
    /// certificate `former`, if that certificate holds the name. Such a worker may be that last process, whose
    /// certificate ended while it was out of reach.
    pub(super) fn claim(
        &mut self,
        now: Moment,
        wanted: Option<&PeerName>,
        former: Option<Fingerprint>,
    ) -> Result<String, MembershipError> {
        let name = match wanted {
            Some(name) => name.as_str().to_owned(),
            None => (0..)
                .map(|n| format!("w{n}"))
                .find(|name| !self.members.contains_key(name))
                .ok_or(MembershipError::Full { most: MEMBERS })?,
        };
        if let Some(member) = self.members.get(&name) {
            let holder = member.connection();
            let is_own = former.is_some_and(|f| member.fingerprints.contains(&f));
            let is_reserved = member.reserved_until.is_some_and(|t| t > now);
            if !is_own && (holder.is_some() || is_reserved) {
                return Err(MembershipError::NameTaken { name, holder });
            }
            let leases = self.reserving(&name);
            if !is_own && leases > 0 {
                return Err(MembershipError::NameReserved { name, leases });
            }
        } else {
            self.make_room()?;
        }
        let member = self
            .members
            .entry(name.clone())
            .or_insert_with(|| Member::expected(now));
        if !member.is_alive() {
            member.reserved_until = Some(now + RESERVED);
        }
        Ok(name)
    }

    /// Notes the certificate that was issued for a claimed name. From now on it alone holds the name, together with
    /// `former` if that certificate held the name too.
    pub(super) fn issued(
        &mut self,
        name: &str,
        fingerprint: Fingerprint,
        former: Option<Fingerprint>,
    ) {
        let Some(member) = self.members.get_mut(name) else {
            return;
        };
        if former.is_some_and(|f| member.fingerprints.contains(&f)) {
            member.add_fingerprint(fingerprint);
        } else if !member.is_alive() {
            member.fingerprints = vec![fingerprint];
        } else {
            return;
        }
        let keep = Command::Keep {
            name: name.to_owned(),
            fingerprints: member.fingerprints.clone(),
        };
        self.commands.push_back(keep);
    }

    /// Returns whether a worker holds its name: it is registered on this connection, or its certificate holds the name.
    pub fn holds(&self, connection: ConnectionId, name: &str, shown: Fingerprint) -> bool {
        let member = self.members.get(name);
        member
            .is_some_and(|m| m.connection() == Some(connection) || m.fingerprints.contains(&shown))
    }

    /// Notes that a worker got a new certificate for its name.
    pub(super) fn renewed(&mut self, connection: ConnectionId, fingerprint: Fingerprint) {
        let found = self
            .members
            .iter_mut()
            .find(|(_, m)| m.connection() == Some(connection));
        if let Some((name, member)) = found {
            member.add_fingerprint(fingerprint);
            let fingerprints = member.fingerprints.clone();
            self.commands.push_back(Command::Keep {
                name: name.clone(),
                fingerprints,
            });
        }
    }

    /// If the table is full, forgets the worker that has been gone for the longest time. Fails if none can be
    /// forgotten.
    pub(super) fn make_room(&mut self) -> Result<(), MembershipError> {
        if self.members.len() < MEMBERS {
            return Ok(());
        }
        let oldest = self.forgettable().min_by_key(|(_, at)| *at);
        let (name, _) = oldest.ok_or(MembershipError::Full { most: MEMBERS })?;
        let name = name.to_owned();
        self.forget(&name);
        Ok(())
    }
}
