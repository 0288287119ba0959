//! Becoming a member: trade a join token for a certificate, and reach the coordinator.
//!
//! Invariants
//! 1. The token's secret is sent only over a connection whose server proved to be the coordinator of the
//!    cluster that the token names.
//! 2. Every error says which address was tried and what to do next.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tarpc::context::Context;

use crate::error::{Code, Error, Result};
use crate::identity::{
    DialError, IdentityError, JoinToken, OutboundConnection, OwnIdentity, OwnKey, Role, TlsConfigs,
    dial,
};
use crate::rpc::transport::call_context;
use crate::rpc::{CALL_BOUND, JoinAnswer, JoinRequest, answer, close, connect_joining};
use crate::world::{Endpoint, EndpointOptions, NetError, World};

/// How long a dial may take. That leaves time for several lost handshake packets.
pub const DIAL_BOUND: Duration = Duration::from_secs(5);

/// The context of a control call that does no work of its own.
pub fn call() -> Context {
    call_context(CALL_BOUND)
}

/// The text of an error and of its chain of sources, in one line.
pub fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(s) = source {
        let s_text = s.to_string();
        if !text.contains(&s_text) {
            text.push_str(": ");
            text.push_str(&s_text);
        }
        source = s.source();
    }
    text
}

impl From<IdentityError> for Error {
    fn from(e: IdentityError) -> Error {
        Error::new(Code::Unauthorized, chain(&e))
    }
}

impl From<NetError> for Error {
    fn from(e: NetError) -> Error {
        match e {
            NetError::PortTaken { .. } => Error::new(Code::AddressInUse, chain(&e)),
            _ => Error::unreachable(None, chain(&e)),
        }
    }
}

impl From<DialError> for Error {
    fn from(e: DialError) -> Error {
        let code = match e {
            DialError::VersionMismatch { .. } => Code::VersionMismatch,
            DialError::WrongRole { .. } | DialError::TlsRejected { .. } => Code::Unauthorized,
            DialError::Refused {
                close: Some(close::NO_MEMORY),
                ..
            } => Code::OutOfMemory,
            _ => return Error::unreachable(None, chain(&e)),
        };
        Error::new(code, chain(&e))
    }
}

/// The address to bind when dialling `peer`: the wildcard address of its family, or IPv4's loopback where `peer` is
/// there. The system chooses the port.
pub fn bind_towards(peer: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match peer {
        SocketAddr::V4(a) if a.ip().is_loopback() => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, 0)
}

/// Resolves `HOST:PORT` to its addresses.
pub async fn lookup(world: &World, host_port: &str) -> Result<Vec<SocketAddr>> {
    let found = tokio::time::timeout(CALL_BOUND, world.net.lookup(host_port)).await;
    let unknown = |why: String| {
        let msg = format!("cannot resolve '{host_port}': {why}");
        Error::unreachable(None, msg).advise("give HOST:PORT, for example coordinator.example:7070")
    };
    match found {
        Ok(Ok(addrs)) => Ok(addrs),
        Ok(Err(e)) => Err(unknown(chain(&e))),
        Err(_) => Err(unknown("the name service did not answer".into())),
    }
}

/// Dials a member by `HOST:PORT`, trying its addresses in turn.
pub async fn reach(
    world: &World,
    endpoint: &Endpoint,
    host_port: &str,
    expected: Role,
) -> Result<OutboundConnection, JoinFailure> {
    let mut last = None;
    for addr in lookup(world, host_port).await? {
        match dial(endpoint, addr, expected, DIAL_BOUND).await {
            Ok(d) => return Ok(d),
            Err(e) => last = Some(DialError::telling(last, e)),
        }
    }
    let Some(last) = last else {
        let msg = format!("'{host_port}' has no address");
        return Err(Error::unreachable(None, msg).into());
    };
    Err(JoinFailure::of_dial(last))
}

/// Whether `HOST:PORT` can be reached from its own machine only.
fn is_loopback(host_port: &str) -> bool {
    let host = host_port
        .rsplit_once(':')
        .map_or(host_port, |(host, _)| host);
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    ip.map_or(host == "localhost", |ip| ip.is_loopback())
}

/// Logs a warning where one of two workers is at a loopback address and the other is not, since workers of other
/// machines cannot reach the first. Each worker is given as its name and `HOST:PORT`.
pub fn warn_of_loopback<'a>(
    worker: (&'a str, &'a str),
    others: impl Iterator<Item = (&'a str, &'a str)>,
) {
    let own = is_loopback(worker.1);
    for other in others {
        if is_loopback(other.1) == own {
            continue;
        }
        let (hidden, seen) = if own {
            (worker, other)
        } else {
            (other, worker)
        };
        tracing::warn!(
            "worker {} is at {}, which workers of other machines, as {} at {}, cannot reach: have it join by an address of \
             its network, or give it --advertise HOST:PORT",
            hidden.0,
            hidden.1,
            seen.0,
            seen.1
        );
        return;
    }
}

/// Joins the cluster that `token` names as a `role`, through the coordinator at `HOST:PORT`. An empty `name` lets
/// the coordinator choose one.
pub async fn join(
    world: &World,
    host_port: &str,
    token: &JoinToken,
    role: Role,
    name: &str,
) -> Result<OwnIdentity> {
    let joined = try_join(world, host_port, token, role, name, None);
    joined.await.map_err(JoinFailure::into_error)
}

/// Why a member did not join, or did not reach the coordinator.
#[derive(Debug)]
pub enum JoinFailure {
    /// The coordinator was not reached, or failed: another try may succeed.
    Unreachable(Error),
    /// The coordinator refuses the token, or the name.
    Refused(Error),
    /// The coordinator refuses the member's certificate, because its token was revoked.
    Revoked(Error),
}

impl JoinFailure {
    /// The failure that an error of dialling the coordinator means. Revocation is for ever, while other errors of
    /// certificates may come from a calendar that is wrong.
    pub fn of_dial(e: DialError) -> JoinFailure {
        match e.is_revocation() {
            true => JoinFailure::Revoked(e.into()),
            false => JoinFailure::Unreachable(e.into()),
        }
    }

    /// The error of any variant.
    pub fn into_error(self) -> Error {
        match self {
            JoinFailure::Unreachable(e) | JoinFailure::Refused(e) | JoinFailure::Revoked(e) => e,
        }
    }
}

impl<E: Into<Error>> From<E> for JoinFailure {
    fn from(e: E) -> JoinFailure {
        JoinFailure::Unreachable(e.into())
    }
}

/// As [`join`], but the error says whether another try may succeed. A member that has joined before shows its `former`
/// identity and keeps its name.
pub async fn try_join(
    world: &World,
    host_port: &str,
    token: &JoinToken,
    role: Role,
    name: &str,
    former: Option<&OwnIdentity>,
) -> Result<OwnIdentity, JoinFailure> {
    let addrs = lookup(world, host_port).await?;
    let Some(first) = addrs.first() else {
        let msg = format!("'{host_port}' has no address");
        return Err(Error::unreachable(None, msg).into());
    };
    let tls = TlsConfigs::joining(token.ca, world.wall.clone())?;
    let options = EndpointOptions::default();
    let endpoint = world
        .net
        .endpoint(bind_towards(*first), &tls, &options)
        .await?;
    let result = async {
        let dialled = reach(world, &endpoint, host_port, Role::Coordinator).await?;
        let client = connect_joining(world, &dialled.connection).await?;
        let (key, csr) = match former {
            Some(former) => former.request_with_same_key()?,
            None => {
                let key = OwnKey::generate(world.rng.as_ref())?;
                let csr = key.csr()?;
                (key, csr)
            }
        };
        let request = JoinRequest {
            token_id: token.id.clone(),
            secret: token.secret.clone(),
            role,
            name: name.to_owned(),
            csr,
            version: crate::VERSION.to_owned(),
            former: former.map_or(vec![], |f| f.certificate().to_vec()),
        };
        let joined = answer(None, client.join(call(), request).await);
        let joined: JoinAnswer = joined.map_err(|e| match e.code {
            Code::Unauthorized => JoinFailure::Refused(e),
            _ => JoinFailure::Unreachable(e),
        })?;
        // The handshake proved that the answer is from the coordinator of the token's cluster.
        let issued = OwnIdentity::issued(key, joined.certificate, joined.authorities);
        Ok(issued?)
    }
    .await;
    endpoint.close(0u32.into(), b"joined");
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_known() {
        for own in ["127.0.0.1:7", "127.8.0.1:7", "[::1]:7", "localhost:7"] {
            assert!(is_loopback(own), "{own}");
        }
        for other in ["10.0.0.1:7", "[fe80::1]:7", "host:7", "localhosts:7"] {
            assert!(!is_loopback(other), "{other}");
        }
    }
}
