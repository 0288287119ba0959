//! The connections that members have open to a process: how many a member may have, and how many bytes each connection
//! may send before they are read.
//!
//! ```text
//! all places = places that only workers get | places for anybody
//! ```
//!
//! Invariants
//! 1. Entering and leaving look only at the entries of the member and its token, however many others there are.
//! 2. Clients never fill the process: some places are for workers only.
//! 3. The bytes that all connections of one token may send ahead of their readers are bounded in sum. They share a part
//!    that is free equally; what they need beyond it is reserved in the token's account, or refused.
//! 4. A connection that has not stated its purpose yet may send next to nothing ahead.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::memory::{Ledger, Purpose, Reservation};
use crate::world::quic::{Connection, VarInt};
use crate::world::{FIRST_WINDOW, admit_all_streams};
use serde::{Deserialize, Serialize};

use crate::identity::{PeerIdentity, PeerName, Role, TokenId};

/// The part of a token's memory that its connections may send ahead of their readers without being charged for it.
const FREE_PART: u64 = 10;

/// Bytes that QUIC keeps for a connection besides those that its peer sends ahead: 160 KiB, as measured in a debug
/// build.
const OF_CONNECTION: u64 = 192 << 10;

/// How much the connections of one token may send ahead of their readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// The bytes that all connections of one token share and are not charged for.
    pub of_token: u32,
    /// The bytes of one connection, where there are few.
    pub most: u32,
    /// The bytes of one connection, where there are many.
    pub least: u32,
}

impl Windows {
    /// The bytes of one of `connections` that share `free` bytes: a power of two, so that it rarely changes.
    fn share(&self, free: u64, connections: usize) -> u32 {
        let equal = (free / (connections as u64).max(1)).max(1);
        let power = 1u64 << equal.ilog2();
        let power = u32::try_from(power).unwrap_or(u32::MAX);
        power.min(self.most).max(self.least)
    }
}

/// The bounds on the connections that a process serves.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Connections of all members.
    pub all: usize,
    /// How many of [`Bounds::all`] clients never get.
    pub for_workers: usize,
    /// Connections of one member: it needs one, and former ones may not have ended yet.
    pub of_member: usize,
    /// Connections of all clients of one token, where the token's budget states no number.
    pub of_token: usize,
    /// The flow-control windows of clients.
    pub clients: Windows,
    /// The flow-control windows of workers.
    pub workers: Windows,
}

impl Bounds {
    /// How many connections the holders of a member's token may have together.
    fn of_token(&self, identity: &PeerIdentity) -> usize {
        let given = identity.budget.connections;
        let given = given.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        given.unwrap_or(match identity.role {
            // No token was needed: the member is the coordinator, or belongs to an embedded cluster.
            _ if identity.token_id == TokenId::direct() => self.all,
            Role::Client => self.of_token,
            // Mostly, all workers joined with one token.
            Role::Worker | Role::Coordinator => self.all / 2,
        })
    }

    fn windows(&self, role: Role) -> &Windows {
        match role {
            Role::Client => &self.clients,
            Role::Worker | Role::Coordinator => &self.workers,
        }
    }
}

/// The open connections of the members that joined with one token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenConnections {
    pub token: TokenId,
    pub role: Role,
    pub connections: u32,
    /// How many connections these members may have together.
    pub limit: u32,
}

/// A connection that has a place.
#[derive(Debug)]
struct Open {
    connection: Connection,
    /// Whether it has a share of its token's windows; until then it may send [`FIRST_WINDOW`] ahead.
    carries: bool,
}

#[derive(Debug)]
struct TokenConnections {
    role: Role,
    limit: usize,
    /// The account that is charged for windows, where one is.
    ledger: Option<Ledger>,
    charge: Option<Reservation>,
    /// The window that each carrying connection has.
    window: u32,
    connections: BTreeMap<u64, Open>,
}

#[derive(Debug, Default)]
struct Book {
    last: u64,
    all: usize,
    clients: usize,
    of_member: BTreeMap<(Role, PeerName), usize>,
    of_token: BTreeMap<TokenId, TokenConnections>,
}

/// The connections that a process serves; clones share them.
#[derive(Debug, Clone)]
pub struct Members {
    bounds: Bounds,
    book: Arc<Mutex<Book>>,
}

/// One connection, which counts until this is dropped.
#[derive(Debug)]
pub struct MemberConnection {
    members: Members,
    number: u64,
    member: (Role, PeerName),
    token: TokenId,
}

/// Why a connection is refused, in words that fit into the reason of a close.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    /// The member has too many connections.
    #[error("too many connections: this member has the {0} that one may have")]
    OfMember(usize),
    /// The holders of the member's token have too many connections.
    #[error(
        "too many connections: the holders of the token {0} have the {1} that they may have together"
    )]
    OfToken(TokenId, usize),
    /// All places that the member could get are taken.
    #[error("too many connections: all {0} places are taken")]
    All(usize),
    /// The token has no memory left for what the connection may send ahead.
    #[error("{0}")]
    Memory(String),
}

impl Members {
    /// The members of a process that serves no connections yet.
    pub fn new(bounds: Bounds) -> Members {
        Members {
            bounds,
            book: Arc::default(),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a connection of this member, or says who has too many. It may send [`FIRST_WINDOW`] bytes ahead until
    /// [`MemberConnection::carry`]. Windows beyond a tenth of the token's memory are reserved in `ledger`, where there is one.
    pub fn enter(
        &self,
        identity: &PeerIdentity,
        connection: &Connection,
        ledger: Option<Ledger>,
    ) -> Result<MemberConnection, NoPlace> {
        let mut book = self.book();
        let entered = self.admit(&mut book, identity)?;
        let mut paid = Ok(());
        if let Some(of_token) = book.of_token.get_mut(&identity.token_id) {
            of_token.ledger = ledger;
            let open = Open {
                connection: connection.clone(),
                carries: false,
            };
            of_token.connections.insert(entered.number, open);
            paid = of_token.settle(self.bounds.windows(of_token.role));
        }
        drop(book);
        match paid {
            Ok(()) => Ok(entered),
            Err(error) => Err(NoPlace::Memory(error.message)),
        }
    }

    fn admit(&self, book: &mut Book, identity: &PeerIdentity) -> Result<MemberConnection, NoPlace> {
        let bounds = &self.bounds;
        let member = (identity.role, identity.name.clone());
        let is_client = identity.role == Role::Client;
        let of_member = book.of_member.get(&member).copied().unwrap_or(0);
        let limit = bounds.of_token(identity);
        let of_token = book.of_token.get(&identity.token_id);
        if of_member >= bounds.of_member {
            return Err(NoPlace::OfMember(bounds.of_member));
        }
        if of_token.is_some_and(|t| t.connections.len() >= limit) || limit == 0 {
            return Err(NoPlace::OfToken(identity.token_id.clone(), limit));
        }
        let for_clients = bounds.all - bounds.for_workers.min(bounds.all);
        if book.all >= bounds.all || is_client && book.clients >= for_clients {
            let places = if is_client { for_clients } else { bounds.all };
            return Err(NoPlace::All(places));
        }
        book.last += 1;
        book.all += 1;
        book.clients += usize::from(is_client);
        book.of_member.insert(member.clone(), of_member + 1);
        let new = || TokenConnections {
            role: identity.role,
            limit,
            ledger: None,
            charge: None,
            window: 0,
            connections: BTreeMap::new(),
        };
        let token = identity.token_id.clone();
        book.of_token.entry(token.clone()).or_insert_with(new).limit = limit;
        Ok(MemberConnection {
            members: self.clone(),
            number: book.last,
            member,
            token,
        })
    }

    /// The open connections of the holders of each token.
    pub fn open(&self) -> Vec<OpenConnections> {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let book = self.book();
        let all = book.of_token.iter().map(|(token, of)| OpenConnections {
            token: token.clone(),
            role: of.role,
            connections: count(of.connections.len()),
            limit: count(of.limit),
        });
        all.collect()
    }
}

impl TokenConnections {
    /// Reserves the bytes that the connections need beyond the free part, and gives each connection that carries
    /// something its share.
    fn settle(&mut self, windows: &Windows) -> Result<()> {
        let carriers = self.connections.values().filter(|c| c.carries).count();
        let others = (self.connections.len() - carriers) as u64 * u64::from(FIRST_WINDOW)
            + self.connections.len() as u64 * OF_CONNECTION;
        let least = carriers as u64 * u64::from(windows.least) + others;
        let owner = self.ledger.as_ref().and_then(Ledger::owner);
        let part = owner.map_or(u64::MAX, |owner| owner.limit / FREE_PART);
        let free = part.min(u64::from(windows.of_token));
        if let Some(ledger) = &self.ledger {
            let beyond = least.saturating_sub(free);
            match &mut self.charge {
                Some(charge) if charge.bytes() >= beyond => charge.shrink(beyond),
                Some(charge) => charge.grow(beyond - charge.bytes())?,
                None => self.charge = Some(ledger.reserve(Purpose::Buffers, beyond)?),
            }
        }
        let share = windows.share(free.saturating_sub(others), carriers);
        if self.window != share {
            self.window = share;
            let carrying = self.connections.values().filter(|c| c.carries);
            carrying.for_each(|c| set_window(&c.connection, share));
        }
        Ok(())
    }
}

impl MemberConnection {
    /// Gives the connection its share of its token's windows, and all the streams of a member, because its purpose is
    /// known now. Fails where the token has no memory left for that.
    pub fn carry(&self) -> Result<()> {
        let mut book = self.members.book();
        let Some(of_token) = book.of_token.get_mut(&self.token) else {
            return Ok(());
        };
        let windows = self.members.bounds.windows(of_token.role);
        let Some(open) = of_token.connections.get_mut(&self.number) else {
            return Ok(());
        };
        open.carries = true;
        let connection = open.connection.clone();
        let settled = of_token.settle(windows);
        match settled {
            Ok(()) => {
                set_window(&connection, of_token.window);
                admit_all_streams(&connection);
            }
            Err(_) => {
                if let Some(open) = of_token.connections.get_mut(&self.number) {
                    open.carries = false;
                }
            }
        }
        settled
    }
}

fn set_window(connection: &Connection, share: u32) {
    connection.set_receive_window(VarInt::from_u32(share));
}

impl Drop for MemberConnection {
    fn drop(&mut self) {
        let mut book = self.members.book();
        book.all = book.all.saturating_sub(1);
        if self.member.0 == Role::Client {
            book.clients = book.clients.saturating_sub(1);
        }
        if let Some(of_member) = book.of_member.get_mut(&self.member) {
            *of_member = of_member.saturating_sub(1);
            if *of_member == 0 {
                book.of_member.remove(&self.member);
            }
        }
        if let Some(of_token) = book.of_token.get_mut(&self.token) {
            of_token.connections.remove(&self.number);
            match of_token.connections.len() {
                0 => drop(book.of_token.remove(&self.token)),
                _ => {
                    // With one connection less nothing more is asked for, so this cannot fail.
                    let _ = of_token.settle(self.members.bounds.windows(of_token.role));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::dial;
    use crate::identity::testing::rig;
    use std::time::Duration;

    const MIB: u32 = 1 << 20;

    fn bounds() -> Bounds {
        let windows = Windows {
            of_token: 128 * MIB,
            most: 64 * MIB,
            least: MIB,
        };
        Bounds {
            all: 16,
            for_workers: 4,
            of_member: 4,
            of_token: 6,
            clients: windows,
            workers: windows,
        }
    }

    #[test]
    fn connections_share_a_window() {
        let windows = bounds().clients;
        let free = u64::from(windows.of_token);
        let shares = [1, 2, 3, 4, 5, 100, 1000].map(|n| windows.share(free, n) / MIB);
        assert_eq!(shares, [64, 64, 32, 32, 16, 1, 1]);
    }

    #[tokio::test]
    async fn clients_leave_places_to_workers_and_tokens_to_tokens() {
        let rig = rig();
        let server = rig.member(Role::Worker).await;
        let dialler = rig.member(Role::Client).await;
        let (greeted, dialled) = tokio::join!(
            async {
                let incoming = server.accept().await.expect("open");
                crate::identity::greet(incoming, Duration::from_secs(10)).await
            },
            dial(
                &dialler,
                server.local_addr(),
                Role::Worker,
                Duration::from_secs(10)
            ),
        );
        let (connection, _dialled) = (greeted.expect("greeted").connection, dialled);
        let who = |role: Role, name: &str, token: &str| {
            let token = token.parse().expect("id");
            rig.identity_of(role, name, token).peer().clone()
        };
        let members = Members::new(bounds());
        let enter = |role, name: &str, token: &str| {
            members.enter(&who(role, name, token), &connection, None)
        };
        let mut open = vec![];
        for _ in 0..4 {
            open.push(enter(Role::Client, "a", "aaaa").expect("a place"));
        }
        let refused = enter(Role::Client, "a", "aaaa").expect_err("its own");
        assert_eq!(refused, NoPlace::OfMember(4));
        for name in ["b", "c"] {
            open.push(enter(Role::Client, name, "aaaa").expect("a place"));
        }
        let refused = enter(Role::Client, "d", "aaaa").expect_err("its token's");
        assert_eq!(refused, NoPlace::OfToken("aaaa".parse().expect("id"), 6));
        // The budget of a token counts instead of the default.
        let mut rich = who(Role::Client, "d", "aaaa");
        rich.budget.connections = Some(7);
        drop(members.enter(&rich, &connection, None).expect("a place"));
        for n in 0..6 {
            open.push(enter(Role::Client, &format!("n{n}"), "bbbb").expect("a place"));
        }
        let refused = enter(Role::Client, "e", "cccc").expect_err("the clients'");
        assert_eq!(refused, NoPlace::All(12));
        for n in 0..4 {
            open.push(enter(Role::Worker, &format!("w{n}"), "wwww").expect("a place"));
        }
        let refused = enter(Role::Worker, "w", "wwww").expect_err("all");
        assert_eq!(refused, NoPlace::All(16));
        let told: Vec<_> = members.open().iter().map(|t| t.connections).collect();
        assert_eq!(told, [6, 6, 4]);
        open.clear();
        assert!(members.open().is_empty());
        let book = members.book();
        assert_eq!((book.all, book.clients, book.of_member.len()), (0, 0, 0));
    }
}
