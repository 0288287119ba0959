//! The network of one process: turmoil's sockets, quinn on top of them, and tasks behind the host's gate.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use convoke_common::identity::TlsConfigs;
use convoke_common::world::{
    BoxFuture, Endpoint, EndpointOptions, Net, NetError, Rng, TcpAcceptor, TcpConnection,
    WallClock, build_endpoint,
};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime};
use tokio::task::JoinHandle;

use super::SharedWorld;
use super::disk::Disk;
use super::gate::Gate;
use super::udp::{SimUdp, Sockets};
use crate::draw::Draw;

/// The network of one process.
pub(super) struct SimNet {
    gate: Arc<Gate>,
    disk: Arc<Disk>,
    common: SharedWorld,
    wall: Arc<dyn WallClock>,
    rng: Arc<dyn Rng>,
    draw: Draw,
    opened: AtomicU64,
    sockets: Arc<Sockets>,
}

impl SimNet {
    pub(super) fn new(
        gate: Arc<Gate>,
        disk: Arc<Disk>,
        common: SharedWorld,
        wall: Arc<dyn WallClock>,
        rng: Arc<dyn Rng>,
        draw: Draw,
        sockets: Arc<Sockets>,
    ) -> SimNet {
        SimNet {
            gate,
            disk,
            common,
            wall,
            rng,
            draw,
            opened: AtomicU64::new(0),
            sockets,
        }
    }

    fn names(&self) -> &BTreeMap<String, IpAddr> {
        &self.common.names
    }

    async fn open(
        &self,
        bind: SocketAddr,
        tls: &TlsConfigs,
        options: &EndpointOptions,
    ) -> Result<Endpoint, NetError> {
        let failed = |error| NetError::bind(bind, "UDP", error);
        let unknown = || failed(io::ErrorKind::AddrNotAvailable.into());
        let me = *self
            .names()
            .get(&self.gate.host().name())
            .ok_or_else(unknown)?;
        let socket = self.opened.fetch_add(1, Ordering::Relaxed);
        let socket = SimUdp::bind(
            bind,
            me,
            self.gate.clone(),
            self.disk.clone(),
            self.common.wires.clone(),
            self.common.trace.clone(),
            self.draw.fork(&format!("socket {socket}")),
        );
        let socket = socket.await.map_err(failed)?;
        self.sockets.add(&socket);
        let runtime = Arc::new(SimRuntime(self.gate.clone()));
        build_endpoint(
            socket,
            runtime,
            tls,
            options,
            self.wall.clone(),
            self.rng.clone(),
        )
    }
}

/// The runtime of quinn: its timers use tokio's clock, and its tasks run behind the gate.
struct SimRuntime(Arc<Gate>);

impl std::fmt::Debug for SimRuntime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimRuntime({})", self.0.host())
    }
}

impl Runtime for SimRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        quinn::TokioRuntime.new_timer(at)
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn_transport(task);
    }

    fn wrap_udp_socket(&self, _: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn now(&self) -> Instant {
        quinn::TokioRuntime.now()
    }
}

struct SimAcceptor {
    listener: turmoil::net::TcpListener,
    local: SocketAddr,
}

impl TcpAcceptor for SimAcceptor {
    fn accept(&self) -> BoxFuture<'_, io::Result<(Box<dyn TcpConnection>, SocketAddr)>> {
        Box::pin(async {
            let (stream, from) = self.listener.accept().await?;
            Ok((Box::new(stream) as Box<dyn TcpConnection>, from))
        })
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Net for SimNet {
    fn endpoint<'a>(
        &'a self,
        bind: SocketAddr,
        tls: &'a TlsConfigs,
        options: &'a EndpointOptions,
    ) -> BoxFuture<'a, Result<Endpoint, NetError>> {
        Box::pin(self.open(bind, tls, options))
    }

    fn tcp_listen(
        &self,
        bind: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn TcpAcceptor>, NetError>> {
        Box::pin(async move {
            let failed = |error| NetError::bind(bind, "TCP", error);
            let listener = turmoil::net::TcpListener::bind(bind)
                .await
                .map_err(failed)?;
            let local = listener.local_addr().map_err(failed)?;
            Ok(Box::new(SimAcceptor { listener, local }) as Box<dyn TcpAcceptor>)
        })
    }

    fn tcp_connect(
        &self,
        addr: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn TcpConnection>, NetError>> {
        Box::pin(async move {
            let stream = turmoil::net::TcpStream::connect(addr).await;
            let stream = stream.map_err(|source| NetError::Connect { addr, source })?;
            Ok(Box::new(stream) as Box<dyn TcpConnection>)
        })
    }

    fn lookup<'a>(
        &'a self,
        host_port: &'a str,
    ) -> BoxFuture<'a, Result<Vec<SocketAddr>, NetError>> {
        Box::pin(async move {
            let failed = |kind: io::ErrorKind| NetError::Lookup {
                name: host_port.to_owned(),
                source: kind.into(),
            };
            let (name, port) = host_port
                .rsplit_once(':')
                .ok_or_else(|| failed(io::ErrorKind::InvalidInput))?;
            let port = port
                .parse()
                .map_err(|_| failed(io::ErrorKind::InvalidInput))?;
            let literal = name.parse::<Ipv4Addr>().map(IpAddr::V4).ok();
            let found = literal.or_else(|| self.names().get(name).copied());
            let ip = found.ok_or_else(|| failed(io::ErrorKind::NotFound))?;
            Ok(vec![SocketAddr::new(ip, port)])
        })
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) -> JoinHandle<()> {
        self.gate.spawn(task)
    }
}
