//! Making and taking connections: TLS, then role, then version, with one deadline over all three.

use std::net::SocketAddr;
use std::time::Duration;

use quinn::{Connection, ConnectionError, VarInt};
use tokio::time::{Instant, timeout_at};

use super::subject::{PeerIdentity, Role, peer_identity};
use crate::world::hello::{self, CLOSE_VERSION, HelloError};
use crate::world::{Endpoint, Incoming, admit_all_streams, welcome};

/// How long dialling may take in all: some lost packets on a slow path, and still an answer while somebody watches.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// The close code of a connection whose server has another role than the dialler expects.
pub const CLOSE_WRONG_ROLE: VarInt = VarInt::from_u32(0x11);

/// Which end refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// This process.
    Us,
    /// The peer.
    Peer,
}

/// Why TLS refused, from the alert: the same on both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsCause {
    /// A certificate's time is over or has not begun.
    OutOfDate,
    /// Signed by another authority.
    OtherCluster,
    /// Its token was revoked.
    Revoked,
    /// A newcomer met a member that is not the coordinator.
    NotCoordinator,
    /// No common protocol: something else listens there.
    NotConvoke,
    /// Anything else.
    Other,
}

impl TlsCause {
    /// From a TLS alert's number (RFC 8446, section 6), and whether it was the listener's.
    pub(super) fn from_alert(alert: u64, by_listener: bool) -> Self {
        match alert {
            // It shows nothing to whoever does not ask for its cluster.
            49 if by_listener => Self::OtherCluster,
            44 => Self::Revoked,
            45 => Self::OutOfDate,
            48 => Self::OtherCluster,
            49 => Self::NotCoordinator,
            120 => Self::NotConvoke,
            _ => Self::Other,
        }
    }

    fn advice(self, side: Side) -> &'static str {
        match (self, side) {
            (Self::OutOfDate, Side::Us) => {
                "its certificate is out of date: check the clocks of both machines"
            }
            (Self::OutOfDate, Side::Peer) => {
                "it finds this machine's certificate out of date: check the clocks, or join anew with a fresh token"
            }
            (Self::OtherCluster, Side::Us) => {
                "it is not of this cluster: check the address, or take a token of the cluster that is there"
            }
            (Self::OtherCluster, Side::Peer) => {
                "it is of another cluster: check the address, or join that cluster with a token of its own"
            }
            (Self::Revoked, Side::Us) => "its token was revoked",
            (Self::Revoked, Side::Peer) => {
                "this machine's token was revoked: join anew with a fresh token"
            }
            (Self::NotCoordinator, _) => {
                "it is a member but not the coordinator: join at the coordinator's address"
            }
            (Self::NotConvoke, _) => "something else listens there: check the address",
            (Self::Other, _) => "see the reason, and the log of the peer",
        }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Nobody answered.
    #[error(
        "nobody answers at {addr}: check that it is running there, and that UDP port {} passes the firewall",
        addr.port()
    )]
    Unreachable {
        /// Who was dialled.
        addr: SocketAddr,
    },
    /// TLS refused, on either end.
    #[error("no trusted connection to {addr}: {}", cause.advice(*side))]
    TlsRejected {
        /// Who was dialled.
        addr: SocketAddr,
        /// Which end refused.
        side: Side,
        /// Why.
        cause: TlsCause,
        /// In TLS's own words.
        reason: String,
    },
    /// The peer is there and does not want the connection.
    #[error("{addr} refused the connection: {reason}")]
    Refused {
        /// Who was dialled.
        addr: SocketAddr,
        /// In the peer's words.
        reason: String,
    },
    /// A member of another role is there.
    #[error("{addr} is a {found}, not a {expected}: check the address")]
    WrongRole {
        /// Who was dialled.
        addr: SocketAddr,
        /// The role wanted.
        expected: Role,
        /// The role there.
        found: Role,
    },
    /// The peer speaks another version.
    #[error(
        "{addr} speaks protocol version {theirs}, this program {ours}: run the same release on both"
    )]
    VersionMismatch {
        /// Who was dialled.
        addr: SocketAddr,
        /// This side's.
        ours: u16,
        /// The peer's.
        theirs: u16,
    },
    /// The peer answered TLS and then no more.
    #[error("{addr} accepted the connection and then did not greet in time: see its log")]
    Timeout {
        /// Who was dialled.
        addr: SocketAddr,
    },
    /// The address cannot be dialled from this endpoint, or the endpoint is closed.
    #[error("cannot dial {addr}")]
    Local {
        /// Who was to be dialled.
        addr: SocketAddr,
        /// The cause.
        #[source]
        source: quinn::ConnectError,
    },
}

fn refused(addr: SocketAddr, error: impl ToString) -> DialError {
    DialError::Refused {
        addr,
        reason: error.to_string(),
    }
}

/// The alert in a QUIC error code, for the codes that carry one.
pub(super) fn alert(code: quinn::TransportErrorCode) -> Option<u64> {
    let code = u64::from(code);
    (0x100..0x200).contains(&code).then_some(code & 0xff)
}

impl DialError {
    fn from_connection(addr: SocketAddr, error: ConnectionError) -> Self {
        let (side, code, reason) = match &error {
            ConnectionError::TimedOut => return Self::Unreachable { addr },
            ConnectionError::TransportError(error) => (Side::Us, error.code, error.reason.clone()),
            ConnectionError::ConnectionClosed(close) => (
                Side::Peer,
                close.error_code,
                String::from_utf8_lossy(&close.reason).into_owned(),
            ),
            other => return refused(addr, other),
        };
        match alert(code) {
            Some(alert) => Self::TlsRejected {
                addr,
                side,
                cause: TlsCause::from_alert(alert, side == Side::Peer),
                reason,
            },
            None => refused(addr, error),
        }
    }

    fn from_hello(addr: SocketAddr, error: HelloError) -> Self {
        match error {
            HelloError::VersionMismatch { ours, theirs } => {
                Self::VersionMismatch { addr, ours, theirs }
            }
            HelloError::Timeout => Self::Timeout { addr },
            // The peer judges our certificate only after our half of the handshake is done.
            HelloError::Lost(error) => Self::from_connection(addr, error),
            error @ (HelloError::NotConvoke { .. } | HelloError::Cut { .. }) => {
                refused(addr, error)
            }
        }
    }
}

impl DialError {
    /// Of what came of dialling two addresses of one host, what says more of the host. That this endpoint cannot dial the later
    /// one, which is of the other family, says nothing.
    pub fn telling(before: Option<DialError>, later: DialError) -> DialError {
        match (before, later) {
            (Some(before), DialError::Local { .. }) => before,
            (_, later) => later,
        }
    }

    /// Whether the peer does not know the cluster that it was asked for.
    fn knows_another_cluster(&self) -> bool {
        let (peer, other) = (Side::Peer, TlsCause::OtherCluster);
        matches!(self, DialError::TlsRejected { side, cause, .. } if *side == peer && *cause == other)
    }
}

/// A connection that this side made.
#[derive(Debug, Clone)]
pub struct Dialled {
    /// Open, greeted.
    pub connection: Connection,
    /// Who is there.
    pub identity: PeerIdentity,
}

/// Connects to a member of the role expected, speaking this protocol version. Nothing but the greeting is sent before
/// all of that is known.
pub async fn dial(
    endpoint: &Endpoint,
    addr: SocketAddr,
    expected: Role,
    timeout: Duration,
) -> Result<Dialled, DialError> {
    dial_as(hello::PROTOCOL_VERSION, endpoint, addr, expected, timeout).await
}

async fn dial_as(
    version: u16,
    endpoint: &Endpoint,
    addr: SocketAddr,
    expected: Role,
    timeout: Duration,
) -> Result<Dialled, DialError> {
    let deadline = Instant::now() + timeout;
    let mut names = endpoint.asked_names().into_iter().peekable();
    let connection = loop {
        let name = names.next().unwrap_or_default();
        let connecting = endpoint
            .connect_asking(addr, &name)
            .map_err(|source| DialError::Local { addr, source })?;
        let connected = timeout_at(deadline, connecting)
            .await
            .map_err(|_| DialError::Unreachable { addr })?
            .map_err(|error| DialError::from_connection(addr, error));
        match connected {
            Ok(connection) => break connection,
            // It may know the cluster by an authority that replaced this one, or that this one replaced.
            Err(error) if error.knows_another_cluster() && names.peek().is_some() => {}
            Err(error) => return Err(error),
        }
    };
    let Some(identity) = peer_identity(&connection) else {
        // The verifier let no such server pass.
        return Err(refused(addr, "its certificate names no member"));
    };
    if identity.role != expected {
        connection.close(CLOSE_WRONG_ROLE, b"wrong role");
        return Err(DialError::WrongRole {
            addr,
            expected,
            found: identity.role,
        });
    }
    if let Err(error) = hello::open(&connection, version, deadline).await {
        connection.close(CLOSE_VERSION, b"no common greeting");
        return Err(DialError::from_hello(addr, error));
    }
    Ok(Dialled {
        connection,
        identity,
    })
}

/// A connection that a peer made.
#[derive(Debug, Clone)]
pub struct Greeted {
    /// Open, greeted.
    pub connection: Connection,
    /// Who is there; a peer without a certificate may use the join service only.
    pub identity: Option<PeerIdentity>,
}

/// Why a peer that dialled was not let in.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The handshake failed; a dialler that is refused by TLS shows here.
    #[error("handshake with {addr} failed")]
    Handshake {
        /// Who dialled.
        addr: SocketAddr,
        /// The cause.
        #[source]
        source: ConnectionError,
    },
    /// The handshake took too long.
    #[error("handshake with {addr} took too long")]
    Timeout {
        /// Who dialled.
        addr: SocketAddr,
    },
    /// No common greeting.
    #[error("{addr} did not greet as expected")]
    Hello {
        /// Who dialled.
        addr: SocketAddr,
        /// The cause.
        #[source]
        source: HelloError,
    },
}

/// Completes a peer's connection: TLS, then the greeting. Run one task for each: a slow peer must not hold up others.
/// A peer with a certificate may then send as much ahead of its readers as the endpoint allows, on all streams.
pub async fn greet(incoming: Incoming, timeout: Duration) -> Result<Greeted, AcceptError> {
    let window = VarInt::from_u32(incoming.member_window());
    let greeted = greet_first(incoming, timeout).await?;
    if greeted.identity.is_some() {
        greeted.connection.set_receive_window(window);
        admit_all_streams(&greeted.connection);
    }
    Ok(greeted)
}

/// As [`greet`], but a peer with a certificate has no more than it needs to say what its connection is for.
pub(super) async fn greet_first(
    incoming: Incoming,
    timeout: Duration,
) -> Result<Greeted, AcceptError> {
    greet_as(hello::PROTOCOL_VERSION, incoming, timeout).await
}

async fn greet_as(
    version: u16,
    incoming: Incoming,
    timeout: Duration,
) -> Result<Greeted, AcceptError> {
    let deadline = Instant::now() + timeout;
    let addr = incoming.remote_address();
    let failed = |source| AcceptError::Handshake { addr, source };
    let connecting = incoming.accept().map_err(failed)?;
    let connection = timeout_at(deadline, connecting)
        .await
        .map_err(|_| AcceptError::Timeout { addr })?
        .map_err(failed)?;
    let identity = peer_identity(&connection);
    // Before the greeting is answered: what is granted arrives with the answer.
    if identity.is_some() {
        welcome(&connection);
    }
    if let Err(source) = hello::answer(&connection, version, deadline).await {
        connection.close(CLOSE_VERSION, b"no common greeting");
        return Err(AcceptError::Hello { addr, source });
    }
    Ok(Greeted {
        connection,
        identity,
    })
}

#[cfg(test)]
mod tests;
