//! One line of the audit log.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use convoke_common::identity::{PeerIdentity, Role, TokenId};
use convoke_common::{Code, Error};
use convoke_graph::Printable;
use serde::Serialize;

use crate::calendar::Utc;

/// The kind of an event. The names written to the file never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The coordinator was started.
    Started,
    /// A newcomer was given a certificate.
    Joined,
    JoinRefused,
    /// A worker registered, for the first time or again.
    Registered,
    RegistrationRefused,
    /// A member was given another certificate.
    Renewed,
    /// A member's connection was refused although its certificate is valid.
    ConnectionRefused,
    /// A member's connection was ended because its token bounds how long it may stay.
    MembershipEnded,
    TokenCreated,
    TokenRevoked,
    /// A worker was taken out of service.
    Drained,
    Undrained,
    /// A worker that is gone was forgotten; its name is free.
    Forgotten,
    /// The nodes of a name may run again.
    QuarantineLifted,
    CaRotated,
    CaRetired,
    /// A backup was made: a copy of the authority's private key is outside of the state folder.
    BackedUp,
    /// A number of events have no line because the disk did not accept them.
    EventsLost,
}

/// One line of the log: an event, with the fields that are known for it.
#[derive(Debug, Serialize)]
pub struct Entry {
    event: Event,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The peer's address; absent if no connection caused the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<TokenId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<Code>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// Number of events of this kind since the last line about one that have no line of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    others: Option<u64>,
}

impl Entry {
    /// Returns an entry with the kind of the event and no other field.
    pub fn of(event: Event) -> Entry {
        Entry {
            event,
            role: None,
            name: None,
            address: None,
            token: None,
            code: None,
            cause: None,
            others: None,
        }
    }

    /// Adds the role that a peer has or that a token grants.
    pub fn role(mut self, role: Role) -> Entry {
        self.role = Some(role.as_str());
        self
    }

    /// Adds the name of the member or node, or the name that a newcomer asked for, with unprintable characters escaped.
    pub fn name(mut self, name: &str) -> Entry {
        self.name = (!name.is_empty()).then(|| Printable(name).to_string());
        self
    }

    /// Adds the peer's address.
    pub fn address(mut self, address: SocketAddr) -> Entry {
        self.address = Some(address);
        self
    }

    /// Adds the token that the event concerns.
    pub fn token(mut self, token: &TokenId) -> Entry {
        self.token = Some(token.clone());
        self
    }

    /// Adds role, name, token and address of the member that the event concerns.
    pub fn member(self, identity: &PeerIdentity, address: SocketAddr) -> Entry {
        let named = self.role(identity.role).name(identity.name.as_str());
        named.token(&identity.token_id).address(address)
    }

    /// Adds the reason for a refusal, and the number of earlier refusals of this kind that have no line.
    pub fn refused(mut self, error: &Error, others: u64) -> Entry {
        self.code = Some(error.code);
        self.cause = Some(Printable(&error.message).to_string());
        self.others(others)
    }

    /// Adds the number of earlier events of this kind that have no line.
    pub fn others(mut self, others: u64) -> Entry {
        self.others = Some(others);
        self
    }

    /// Returns the number of events that the entry stands for: its own and those without a line.
    pub fn events(&self) -> u64 {
        self.others.unwrap_or(0).saturating_add(1)
    }

    /// Formats the entry as one line of JSON, with the time of the event.
    pub fn line(&self, at: SystemTime) -> String {
        #[derive(Serialize)]
        struct Line<'a> {
            time: String,
            #[serde(flatten)]
            entry: &'a Entry,
        }
        let line = Line {
            time: rfc3339(at),
            entry: self,
        };
        // Serialization cannot fail: the entry consists of text and numbers only.
        let mut line = serde_json::to_string(&line).unwrap_or_default();
        line.push('\n');
        line
    }
}

/// Formats a time as RFC 3339 in UTC, with milliseconds.
fn rfc3339(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let Utc {
        year,
        month,
        day,
        hour,
        minute,
        second,
    } = Utc::of(since.as_secs());
    let ms = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_known_and_nothing_else() {
        let at = UNIX_EPOCH + Duration::from_millis(951_782_400_007);
        let token = "aaaa2345".parse().unwrap();
        let address = "[fd00::7]:4711".parse().unwrap();
        let error = Error::new(Code::Unauthorized, "the join token was revoked").advise("do");
        let entry = Entry::of(Event::JoinRefused)
            .role(Role::Worker)
            .name("w\u{1b}[2J\"")
            .address(address)
            .token(&token)
            .refused(&error, 0);
        assert_eq!(
            entry.line(at),
            r#"{"time":"2000-02-29T00:00:00.007Z","event":"join_refused","role":"worker","#
                .to_owned()
                + r#""name":"w\\u{1b}[2J\"","address":"[fd00::7]:4711","token":"aaaa2345","#
                + r#""code":"unauthorized","cause":"the join token was revoked","others":0}"#
                + "\n"
        );
        assert_eq!(
            Entry::of(Event::CaRotated).name("").line(UNIX_EPOCH),
            "{\"time\":\"1970-01-01T00:00:00.000Z\",\"event\":\"ca_rotated\"}\n"
        );
    }
}
