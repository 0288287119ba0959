//! Making and accepting connections: TLS first, then the peer's role, then the protocol version, with one deadline over
//! all three.

use std::net::SocketAddr;
use std::time::Duration;

use quinn::{Connection, ConnectionError, VarInt};
use tokio::time::{Instant, timeout_at};

use crate::identity::certificate::peer::PeerIdentity;
use crate::identity::certificate::subject::Role;
use crate::identity::connection::peer_certificate::peer_identity;
use crate::world::hello::{self, CLOSE_VERSION, HelloError};
use crate::world::{Endpoint, Incoming, admit_all_streams, welcome};

/// How long dialling may take in all: enough for some lost packets on a slow path, and short enough for a user who
/// waits.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// The close code of a connection whose server has another role than the dialler expects.
pub const CLOSE_WRONG_ROLE: VarInt = VarInt::from_u32(0x11);

/// The end of a connection that refused it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// This process.
    Us,
    /// The peer.
    Peer,
}

/// Why TLS refused, as the alert says it; both ends see the same alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsCause {
    /// A certificate has expired or is not valid yet.
    OutOfDate,
    /// The certificate was signed by another cluster's authority.
    OtherCluster,
    /// The certificate's token was revoked.
    Revoked,
    /// A newcomer reached a member that is not the coordinator.
    NotCoordinator,
    /// The ends have no protocol in common: another program listens at the address.
    NotConvoke,
    /// TLS refused for another reason.
    Other,
}

impl TlsCause {
    /// The cause for a TLS alert's number (RFC 8446, section 6); `by_listener` says whether the listener sent the
    /// alert.
    pub(in crate::identity) fn from_alert(alert: u64, by_listener: bool) -> Self {
        match alert {
            // A listener shows no certificate to a dialler that does not ask for the listener's cluster.
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

/// Why a peer could not be dialled.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Nobody answered at the address.
    #[error(
        "nobody answers at {addr}: check that it is running there, and that UDP port {} passes the firewall",
        addr.port()
    )]
    Unreachable {
        /// The address that was dialled.
        addr: SocketAddr,
    },
    /// TLS refused the connection, at this end or at the peer's.
    #[error("no trusted connection to {addr}: {}", cause.advice(*side))]
    TlsRejected {
        /// The address that was dialled.
        addr: SocketAddr,
        /// The end that refused.
        side: Side,
        /// Why that end refused.
        cause: TlsCause,
        /// The reason in the words of the TLS library.
        reason: String,
    },
    /// The peer answered, and refused the connection.
    #[error("{addr} refused the connection: {reason}")]
    Refused {
        /// The address that was dialled.
        addr: SocketAddr,
        /// The code with which the peer's program closed the connection, where it did.
        close: Option<u32>,
        /// The reason in the peer's words.
        reason: String,
    },
    /// A member of another role answered.
    #[error("{addr} is a {found}, not a {expected}: check the address")]
    WrongRole {
        /// The address that was dialled.
        addr: SocketAddr,
        /// The role that the dialler expected.
        expected: Role,
        /// The role of the member that answered.
        found: Role,
    },
    /// The peer speaks another version of the protocol.
    #[error(
        "{addr} speaks protocol version {theirs}, this program {ours}: run the same release on both"
    )]
    VersionMismatch {
        /// The address that was dialled.
        addr: SocketAddr,
        /// The protocol version of this process.
        ours: u16,
        /// The protocol version of the peer.
        theirs: u16,
    },
    /// The peer completed TLS, and did not greet in time.
    #[error(
        "{addr} accepted the connection and then did not greet in time: its machine may be overloaded, or its log says why"
    )]
    Timeout {
        /// The address that was dialled.
        addr: SocketAddr,
    },
    /// The address cannot be dialled from this endpoint, or the endpoint is closed.
    #[error("cannot dial {addr}")]
    Local {
        /// The address that was to be dialled.
        addr: SocketAddr,
        /// The error of the QUIC library.
        #[source]
        source: quinn::ConnectError,
    },
}

fn refused(addr: SocketAddr, error: impl ToString) -> DialError {
    DialError::Refused {
        addr,
        close: None,
        reason: error.to_string(),
    }
}

/// The TLS alert in a QUIC error code, for the codes that carry an alert.
pub(in crate::identity) fn alert(code: quinn::TransportErrorCode) -> Option<u64> {
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
            ConnectionError::ApplicationClosed(closed) => {
                return Self::Refused {
                    addr,
                    close: u32::try_from(closed.error_code.into_inner()).ok(),
                    reason: String::from_utf8_lossy(&closed.reason).into_owned(),
                };
            }
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
            // The peer judges this process's certificate only after this end has finished the handshake.
            HelloError::Lost(error) => Self::from_connection(addr, error),
            error @ (HelloError::NotConvoke { .. } | HelloError::Cut { .. }) => {
                refused(addr, error)
            }
        }
    }
}

impl DialError {
    /// Returns the error that says more about a host of which two addresses were dialled. An error of the later address
    /// says nothing if this endpoint cannot dial its address family.
    pub fn telling(before: Option<DialError>, later: DialError) -> DialError {
        match (before, later) {
            (Some(before), DialError::Local { .. }) => before,
            (_, later) => later,
        }
    }

    /// Whether the peer refused this process's certificate because its token was revoked.
    pub fn is_revocation(&self) -> bool {
        let (peer, revoked) = (Side::Peer, TlsCause::Revoked);
        matches!(self, DialError::TlsRejected { side, cause, .. } if *side == peer && *cause == revoked)
    }

    /// The error of a handshake that this end has not finished. Its peer has proven nothing and has not seen this end's
    /// certificate, so that it cannot know of a revocation.
    fn unproven(mut self) -> Self {
        if self.is_revocation()
            && let DialError::TlsRejected { cause, .. } = &mut self
        {
            *cause = TlsCause::Other;
        }
        self
    }

    /// Whether the peer does not know the cluster for which it was asked.
    fn knows_another_cluster(&self) -> bool {
        let (peer, other) = (Side::Peer, TlsCause::OtherCluster);
        matches!(self, DialError::TlsRejected { side, cause, .. } if *side == peer && *cause == other)
    }
}

/// A connection that this side made.
#[derive(Debug, Clone)]
pub struct OutboundConnection {
    /// The connection; its greeting is done.
    pub connection: Connection,
    /// The verified identity of the peer.
    pub identity: PeerIdentity,
}

/// Connects to a member of the expected role that speaks this protocol version. Nothing except the greeting is sent
/// before role and version are known.
pub async fn dial(
    endpoint: &Endpoint,
    addr: SocketAddr,
    expected: Role,
    timeout: Duration,
) -> Result<OutboundConnection, DialError> {
    dial_as(hello::PROTOCOL_VERSION, endpoint, addr, expected, timeout).await
}

async fn dial_as(
    version: u16,
    endpoint: &Endpoint,
    addr: SocketAddr,
    expected: Role,
    timeout: Duration,
) -> Result<OutboundConnection, DialError> {
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
            .map_err(|error| DialError::from_connection(addr, error).unproven());
        match connected {
            Ok(connection) => break connection,
            // The peer may know the cluster by an authority that replaced this one, or that this one replaced.
            Err(error) if error.knows_another_cluster() && names.peek().is_some() => {}
            Err(error) => return Err(error),
        }
    };
    let Some(identity) = peer_identity(&connection) else {
        // The verifier accepts no server whose certificate names no member.
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
    Ok(OutboundConnection {
        connection,
        identity,
    })
}

/// A connection that a peer made, after its greeting.
#[derive(Debug, Clone)]
pub struct InboundConnection {
    /// The connection; its greeting is done.
    pub connection: Connection,
    /// The verified identity of the peer; a peer without a certificate may use the join service only.
    pub identity: Option<PeerIdentity>,
}

/// Why a peer that dialled was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The handshake failed; this is also how a dialler appears that refuses this end's certificate.
    #[error("handshake with {addr} failed")]
    Handshake {
        /// The address of the peer.
        addr: SocketAddr,
        /// The error of the QUIC library.
        #[source]
        source: ConnectionError,
    },
    /// The handshake took too long.
    #[error("handshake with {addr} took too long")]
    Timeout {
        /// The address of the peer.
        addr: SocketAddr,
    },
    /// The peer did not greet as the protocol demands.
    #[error("{addr} did not greet as expected")]
    Hello {
        /// The address of the peer.
        addr: SocketAddr,
        /// What went wrong with the greeting.
        #[source]
        source: HelloError,
    },
}

/// Completes a peer's connection: TLS, then the greeting. Run one task for each: a slow peer must not hold up others.
/// A peer with a certificate may then send as much ahead of its readers as the endpoint allows, on all streams.
pub async fn greet(
    incoming: Incoming,
    timeout: Duration,
) -> Result<InboundConnection, AcceptError> {
    let window = VarInt::from_u32(incoming.member_window());
    let greeted = greet_first(incoming, timeout).await?;
    if greeted.identity.is_some() {
        greeted.connection.set_receive_window(window);
        admit_all_streams(&greeted.connection);
    }
    Ok(greeted)
}

/// As [`greet`], but a peer with a certificate has no more than it needs to say what its connection is for.
pub(in crate::identity) async fn greet_first(
    incoming: Incoming,
    timeout: Duration,
) -> Result<InboundConnection, AcceptError> {
    greet_as(hello::PROTOCOL_VERSION, incoming, timeout).await
}

async fn greet_as(
    version: u16,
    incoming: Incoming,
    timeout: Duration,
) -> Result<InboundConnection, AcceptError> {
    let deadline = Instant::now() + timeout;
    let addr = incoming.remote_address();
    let failed = |source| AcceptError::Handshake { addr, source };
    let connecting = incoming.accept().map_err(failed)?;
    let connection = timeout_at(deadline, connecting)
        .await
        .map_err(|_| AcceptError::Timeout { addr })?
        .map_err(failed)?;
    let identity = peer_identity(&connection);
    // The window is granted before the greeting is answered, so that the grant arrives with the answer.
    if identity.is_some() {
        welcome(&connection);
    }
    if let Err(source) = hello::answer(&connection, version, deadline).await {
        connection.close(CLOSE_VERSION, b"no common greeting");
        return Err(AcceptError::Hello { addr, source });
    }
    Ok(InboundConnection {
        connection,
        identity,
    })
}

#[cfg(test)]
mod tests;
