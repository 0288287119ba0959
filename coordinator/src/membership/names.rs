//! Who may be called what.

use std::time::Duration;

use convoke_common::identity::PeerName;
use convoke_common::rpc::RETURN_BOUND;
use tokio::time::Instant;

use super::member::{Life, Member};
use super::{Command, ConnectionId, Fingerprint, Membership, MembershipError};

/// How many names are kept, of the living and the lost. Far more than one coordinator serves well.
pub const MEMBERS: usize = 1024;

/// From a certificate going out to the worker registering: two round trips, and a slow start.
const RESERVED: Duration = Duration::from_secs(10);

impl Membership {
    /// Names kept from before a restart of the coordinator.
    pub fn restore(&mut self, now: Instant, kept: Vec<(String, Vec<Fingerprint>)>) {
        self.restored = Some(now);
        for (name, fingerprints) in kept.into_iter().take(MEMBERS) {
            self.members.insert(
                name,
                Member {
                    fingerprints,
                    ..Member::expected(now)
                },
            );
        }
    }

    /// Until when those of them that have not registered are waited for: nobody is lost before. `None` where that is over.
    pub fn returning(&self, now: Instant) -> Option<Instant> {
        let until = self.restored? + RETURN_BOUND;
        let expected = |m: &Member| matches!(m.life, Life::Expected) && !m.drained;
        (now < until && self.members.values().any(expected)).then_some(until)
    }

    /// The name that a joining worker gets: the one it wants, or the lowest free of `w0`, `w1`, …
    pub fn claim(
        &mut self,
        now: Instant,
        wanted: Option<&PeerName>,
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
            if holder.is_some() || member.reserved_until.is_some_and(|t| t > now) {
                return Err(MembershipError::NameTaken { name, holder });
            }
        } else {
            self.make_room()?;
        }
        let member = self
            .members
            .entry(name.clone())
            .or_insert_with(|| Member::expected(now));
        member.reserved_until = Some(now + RESERVED);
        Ok(name)
    }

    /// The certificate for a claimed name is made: it alone holds the name from now on.
    pub fn issued(&mut self, name: &str, fingerprint: Fingerprint) {
        if let Some(member) = self.members.get_mut(name).filter(|m| !m.is_alive()) {
            member.fingerprints = vec![fingerprint];
            let keep = Command::Keep {
                name: name.to_owned(),
                fingerprints: vec![fingerprint],
            };
            self.commands.push_back(keep);
        }
    }

    /// A worker gets a fresh certificate for the name it has.
    pub fn renewed(&mut self, connection: ConnectionId, fingerprint: Fingerprint) {
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

    /// Forgets the longest lost where the table is full.
    pub(super) fn make_room(&mut self) -> Result<(), MembershipError> {
        if self.members.len() < MEMBERS {
            return Ok(());
        }
        let lost = self
            .members
            .iter()
            .filter(|(_, m)| m.forgotten_at().is_some());
        let oldest = lost
            .min_by_key(|(_, m)| m.seen)
            .map(|(name, _)| name.clone());
        let name = oldest.ok_or(MembershipError::Full { most: MEMBERS })?;
        self.forget(&name);
        Ok(())
    }
}
