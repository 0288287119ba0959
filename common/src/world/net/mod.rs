//! Sockets and tasks, as production code sees them.

mod error;
mod real;

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;

use super::{BoxFuture, Endpoint, EndpointOptions};
use crate::identity::TlsConfigs;

pub use error::NetError;
pub use real::RealNet;

/// A TCP connection's byte stream, for tripwires.
pub trait TcpConnection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> TcpConnection for T {}

/// A TCP listener.
pub trait TcpAcceptor: Send + Sync {
    /// Waits for the next connection, and returns it with the peer's address.
    fn accept(&self) -> BoxFuture<'_, io::Result<(Box<dyn TcpConnection>, SocketAddr)>>;

    /// The bound address.
    fn local_addr(&self) -> SocketAddr;
}

/// The network and the task spawner. Every future must be polled inside a tokio runtime, which then runs the I/O.
pub trait Net: Send + Sync {
    /// Opens a QUIC endpoint on one unconnected UDP socket, which dials and, with a server identity, listens.
    fn endpoint<'a>(
        &'a self,
        bind: SocketAddr,
        tls: &'a TlsConfigs,
        options: &'a EndpointOptions,
    ) -> BoxFuture<'a, Result<Endpoint, NetError>>;

    /// Opens a TCP listener.
    fn tcp_listen(&self, bind: SocketAddr)
    -> BoxFuture<'_, Result<Box<dyn TcpAcceptor>, NetError>>;

    /// Makes a TCP connection. The caller bounds the wait.
    fn tcp_connect(
        &self,
        addr: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn TcpConnection>, NetError>>;

    /// Looks up the addresses of `HOST:PORT`: at least one, the preferred first. The caller bounds the wait.
    fn lookup<'a>(&'a self, host_port: &'a str)
    -> BoxFuture<'a, Result<Vec<SocketAddr>, NetError>>;

    /// Runs a task on the current runtime.
    fn spawn(&self, task: BoxFuture<'static, ()>) -> JoinHandle<()>;

    /// Whether every peer is in this process, and ends with it. A silent peer is then one that waits for a core, as this end does.
    fn is_one_process(&self) -> bool {
        false
    }
}
