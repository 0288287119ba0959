//! One line of the audit log.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use convoke_common::identity::{PeerIdentity, Role, TokenId};
use convoke_common::{Code, Error, Printable};
use serde::Serialize;

use crate::calendar::Utc;

/// What happened. The names in the file never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The coordinator serves.
    Started,
    /// A newcomer was given a certificate.
    Joined,
    JoinRefused,
    /// A worker entered, or returned.
    Registered,
    RegistrationRefused,
    /// A member was given another certificate.
    Renewed,
    /// A member was not let in although its certificate is good.
    ConnectionRefused,
    /// The time for which its token let a member stay is over.
    MembershipEnded,
    TokenCreated,
    TokenRevoked,
    /// A worker was taken out of service, or asked back.
    Drained,
    Undrained,
    /// A worker's name is free.
    Forgotten,
    /// Nodes of a name may run again.
    QuarantineLifted,
    CaRotated,
    CaRetired,
    /// Somebody has a copy of the authority's private key.
    BackedUp,
    /// Of so many events there is no line, because the disk did not take them.
    EventsLost,
}

/// What is known of an event.
#[derive(Debug, Serialize)]
pub struct Entry {
    event: Event,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Where a peer was seen; absent where nobody's connection brought the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<TokenId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<Code>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// Events without a line since the last one of the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    others: Option<u64>,
}

impl Entry {
    /// Of an event of which nothing more is known yet.
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

    /// What somebody is or is to be.
    pub fn role(mut self, role: Role) -> Entry {
        self.role = Some(role.as_str());
        self
    }

    /// The name that somebody has or asked for; of nodes, theirs. It is shown as people may read it.
    pub fn name(mut self, name: &str) -> Entry {
        self.name = (!name.is_empty()).then(|| Printable(name).to_string());
        self
    }

    /// Where the peer was seen.
    pub fn address(mut self, address: SocketAddr) -> Entry {
        self.address = Some(address);
        self
    }

    /// The token that it is about.
    pub fn token(mut self, token: &TokenId) -> Entry {
        self.token = Some(token.clone());
        self
    }

    /// The member that it is about.
    pub fn member(self, identity: &PeerIdentity, address: SocketAddr) -> Entry {
        let named = self.role(identity.role).name(identity.name.as_str());
        named.token(&identity.token_id).address(address)
    }

    /// Why something was refused, and how many refusals of the kind before this one have no line.
    pub fn refused(mut self, error: &Error, others: u64) -> Entry {
        self.code = Some(error.code);
        self.cause = Some(Printable(&error.message).to_string());
        self.others(others)
    }

    /// How many events of the kind before this one have no line.
    pub fn others(mut self, others: u64) -> Entry {
        self.others = Some(others);
        self
    }

    /// How many events it stands for.
    pub fn events(&self) -> u64 {
        self.others.unwrap_or(0).saturating_add(1)
    }

    /// As a line of the file, with the time of the event.
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
        // Text and numbers: there is nothing in it that JSON has no form for.
        let mut line = serde_json::to_string(&line).unwrap_or_default();
        line.push('\n');
        line
    }
}

/// To the millisecond, in UTC.
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
