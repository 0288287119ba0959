//! The production [`Net`]: the operating system's sockets on tokio.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use quinn::Runtime;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::error::NetError;
use super::{Net, TcpAcceptor, TcpConnection};
use crate::identity::TlsConfigs;
use crate::world::endpoint::build_endpoint;
use crate::world::{BoxFuture, Endpoint, EndpointOptions, Rng, WallClock};

/// The size to which a UDP socket's buffers are raised: about 3 ms of a 10 Gbit/s link, so that a burst does not
/// overflow them while the I/O thread is scheduled away. The kernel may cap the size (`net.core.rmem_max`).
const UDP_BUFFER: usize = 4 << 20;

/// The operating system's sockets.
pub struct RealNet {
    wall: Arc<dyn WallClock>,
    rng: Arc<dyn Rng>,
    one_process: bool,
}

impl RealNet {
    /// A network whose endpoints date tokens by `wall` and draw keys and connection ids from `rng`.
    pub fn new(wall: Arc<dyn WallClock>, rng: Arc<dyn Rng>) -> Self {
        Self {
            wall,
            rng,
            one_process: false,
        }
    }

    /// A network between members that are all in this process.
    pub fn of_one_process(wall: Arc<dyn WallClock>, rng: Arc<dyn Rng>) -> Self {
        Self {
            one_process: true,
            ..Self::new(wall, rng)
        }
    }

    fn open(
        &self,
        bind: SocketAddr,
        tls: &TlsConfigs,
        options: &EndpointOptions,
    ) -> Result<Endpoint, NetError> {
        let failed = |error| NetError::bind(bind, "UDP", error);
        // SO_REUSEADDR must not be set: for UDP it lets two processes share the port silently.
        let socket = std::net::UdpSocket::bind(bind).map_err(failed)?;
        raise_buffers(&socket);
        socket.set_nonblocking(true).map_err(failed)?;
        let runtime = Arc::new(quinn::TokioRuntime);
        let options = &EndpointOptions {
            ends_when_idle: options.ends_when_idle && !self.one_process,
            ..*options
        };
        let socket = runtime.wrap_udp_socket(socket).map_err(failed)?;
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

/// Raises the socket's buffers. This is best effort: with small buffers more packets are lost, and the protocol still
/// works.
fn raise_buffers(socket: &std::net::UdpSocket) {
    use rustix::net::sockopt;
    // The forced option exceeds the kernel's cap if the process has the privilege.
    if sockopt::set_socket_recv_buffer_size_force(socket, UDP_BUFFER).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, UDP_BUFFER);
    }
    if sockopt::set_socket_send_buffer_size_force(socket, UDP_BUFFER).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, UDP_BUFFER);
    }
    if let Ok(got) = sockopt::socket_recv_buffer_size(socket)
        && got < UDP_BUFFER
    {
        tracing::debug!(
            got,
            wanted = UDP_BUFFER,
            "small UDP buffer: raise net.core.rmem_max"
        );
    }
}

struct RealAcceptor {
    listener: TcpListener,
    local: SocketAddr,
}

impl TcpAcceptor for RealAcceptor {
    fn accept(&self) -> BoxFuture<'_, io::Result<(Box<dyn TcpConnection>, SocketAddr)>> {
        Box::pin(async {
            let (stream, from) = self.listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok((Box::new(stream) as Box<dyn TcpConnection>, from))
        })
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Net for RealNet {
    fn endpoint<'a>(
        &'a self,
        bind: SocketAddr,
        tls: &'a TlsConfigs,
        options: &'a EndpointOptions,
    ) -> BoxFuture<'a, Result<Endpoint, NetError>> {
        Box::pin(async move { self.open(bind, tls, options) })
    }

    fn tcp_listen(
        &self,
        bind: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn TcpAcceptor>, NetError>> {
        Box::pin(async move {
            let failed = |error| NetError::bind(bind, "TCP", error);
            let listener = TcpListener::bind(bind).await.map_err(failed)?;
            let local = listener.local_addr().map_err(failed)?;
            Ok(Box::new(RealAcceptor { listener, local }) as Box<dyn TcpAcceptor>)
        })
    }

    fn tcp_connect(
        &self,
        addr: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn TcpConnection>, NetError>> {
        Box::pin(async move {
            let failed = |source| NetError::Connect { addr, source };
            let stream = TcpStream::connect(addr).await.map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            Ok(Box::new(stream) as Box<dyn TcpConnection>)
        })
    }

    fn lookup<'a>(
        &'a self,
        host_port: &'a str,
    ) -> BoxFuture<'a, Result<Vec<SocketAddr>, NetError>> {
        Box::pin(async move {
            let failed = |source| NetError::Lookup {
                name: host_port.to_owned(),
                source,
            };
            let found: Vec<SocketAddr> = tokio::net::lookup_host(host_port)
                .await
                .map_err(failed)?
                .collect();
            if found.is_empty() {
                return Err(failed(io::ErrorKind::NotFound.into()));
            }
            Ok(found)
        })
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "this is the seam that owns spawning"
    )]
    fn spawn(&self, task: BoxFuture<'static, ()>) -> JoinHandle<()> {
        tokio::spawn(task)
    }

    fn is_one_process(&self) -> bool {
        self.one_process
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::SystemRng;
    use crate::world::testing::FakeWall;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn net() -> RealNet {
        RealNet::new(Arc::new(FakeWall::at(0)), Arc::new(SystemRng::default()))
    }

    #[tokio::test]
    async fn tcp_there_and_back() {
        let net = net();
        let any = "127.0.0.1:0".parse().expect("address");
        let listener = net.tcp_listen(any).await.expect("listen");
        let mut dialled = net.tcp_connect(listener.local_addr()).await.expect("dial");
        let (mut accepted, _) = listener.accept().await.expect("accept");
        dialled.write_all(b"hi").await.expect("write");
        let mut got = [0; 2];
        accepted.read_exact(&mut got).await.expect("read");
        assert_eq!(&got, b"hi");
        drop(accepted);
        assert_eq!(dialled.read(&mut got).await.expect("end of file"), 0);

        let taken = net.tcp_listen(listener.local_addr()).await.err();
        assert!(matches!(
            taken,
            Some(NetError::PortTaken {
                protocol: "TCP",
                ..
            })
        ));
    }

    #[tokio::test]
    async fn lookup_takes_literals_and_refuses_nonsense() {
        let net = net();
        let found = net.lookup("127.0.0.1:9").await.expect("a literal");
        assert_eq!(found, ["127.0.0.1:9".parse().expect("address")]);
        for bad in ["127.0.0.1", "", "nowhere.invalid:1"] {
            let error = net.lookup(bad).await.expect_err(bad);
            assert!(matches!(error, NetError::Lookup { .. }), "{bad}: {error}");
        }
    }
}
