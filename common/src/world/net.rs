//! Sockets and tasks, as production code sees them.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;

use super::{BoxFuture, Endpoint, EndpointOptions};
use crate::identity::TlsConfigs;

/// A byte stream for tripwires.
pub trait TcpConnection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> TcpConnection for T {}

/// A TCP listener.
pub trait TcpAcceptor: Send + Sync {
    /// The next connection and where it comes from.
    fn accept(&self) -> BoxFuture<'_, io::Result<(Box<dyn TcpConnection>, SocketAddr)>>;

    /// The address bound.
    fn local_addr(&self) -> SocketAddr;
}

/// Why a socket could not be had.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// Another process listens there.
    #[error(
        "{protocol} port {addr} is taken: stop the process that uses it, or listen on another port"
    )]
    PortTaken {
        /// The address asked for.
        addr: SocketAddr,
        /// "UDP" or "TCP".
        protocol: &'static str,
    },
    /// The address cannot be bound here.
    #[error("cannot listen on {protocol} {addr}: is it an address of this machine?")]
    Bind {
        /// The address asked for.
        addr: SocketAddr,
        /// "UDP" or "TCP".
        protocol: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The name has no address.
    #[error("cannot find an address for `{name}`: expected HOST:PORT with a host that resolves")]
    Lookup {
        /// The name asked for.
        name: String,
        /// The cause, where there was one.
        #[source]
        source: io::Error,
    },
    /// No TCP connection.
    #[error("cannot connect to TCP {addr}")]
    Connect {
        /// The address asked for.
        addr: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A limit or TLS setting that QUIC cannot take.
    #[error("bad endpoint setting: {what}")]
    Setting {
        /// What is wrong with it.
        what: String,
    },
}

impl NetError {
    /// A failure to bind, with a taken port as its own case.
    pub fn bind(addr: SocketAddr, protocol: &'static str, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::AddrInUse {
            return Self::PortTaken { addr, protocol };
        }
        Self::Bind {
            addr,
            protocol,
            source,
        }
    }
}

/// The network and the task spawner. Every future must be polled inside a tokio runtime, which then runs the I/O.
pub trait Net: Send + Sync {
    /// A QUIC endpoint on one unconnected UDP socket, which dials and, with a server identity, listens.
    fn endpoint<'a>(
        &'a self,
        bind: SocketAddr,
        tls: &'a TlsConfigs,
        options: &'a EndpointOptions,
    ) -> BoxFuture<'a, Result<Endpoint, NetError>>;

    /// A TCP listener.
    fn tcp_listen(&self, bind: SocketAddr)
    -> BoxFuture<'_, Result<Box<dyn TcpAcceptor>, NetError>>;

    /// A TCP connection. The caller bounds the wait.
    fn tcp_connect(
        &self,
        addr: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn TcpConnection>, NetError>>;

    /// The addresses of `HOST:PORT`, at least one, the preferred first. The caller bounds the wait.
    fn lookup<'a>(&'a self, host_port: &'a str)
    -> BoxFuture<'a, Result<Vec<SocketAddr>, NetError>>;

    /// Runs a task on the current runtime.
    fn spawn(&self, task: BoxFuture<'static, ()>) -> JoinHandle<()>;
}
