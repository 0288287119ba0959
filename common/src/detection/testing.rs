//! Monitored connections over loopback, and a relay between their ends that loses packets and ends tripwires.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Detector, WatchedConnection};
use crate::identity::testing::Rig;
use crate::identity::{Role, TlsConfigs, dial, greet};
use crate::rpc::StreamKind;
use crate::world::{Endpoint, World};

/// The longest time that a test waits for anything.
pub const WAIT: Duration = Duration::from_secs(30);

/// Waits until `done` returns true.
pub async fn until(what: &str, done: impl Fn() -> bool) {
    let waited = timeout(WAIT, async {
        while !done() {
            sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}");
}

/// A member that listens, with the detector of its process.
pub struct Listening {
    pub endpoint: Endpoint,
    pub detector: Detector,
}

impl Listening {
    pub async fn start(rig: &Rig) -> Listening {
        let any = "127.0.0.1:0".parse().expect("address");
        let tls = rig.tls(&rig.identity(Role::Coordinator, "coordinator"));
        Listening::bind(&rig.world, any, &tls).await
    }

    pub async fn bind(world: &World, at: SocketAddr, tls: &TlsConfigs) -> Listening {
        let options = Default::default();
        let bound = Detector::listening(world, at, tls, &options).await;
        let (endpoint, detector, listen) = bound.expect("a port");
        tokio::spawn(listen);
        Listening { endpoint, detector }
    }

    /// Accepts the next member that dials, monitors its connection, and answers its tripwires.
    pub async fn accept(&self) -> WatchedConnection {
        let incoming = self.endpoint.accept().await.expect("open");
        let greeted = greet(incoming, WAIT).await.expect("greeted");
        let watched = self.detector.watch(greeted.connection);
        let (detector, peer) = (self.detector.clone(), watched.clone());
        tokio::spawn(async move {
            while let Ok((send, mut recv)) = peer.connection().accept_bi().await {
                let (detector, peer) = (detector.clone(), peer.clone());
                tokio::spawn(async move {
                    let mut kind = [0];
                    recv.read_exact(&mut kind).await.expect("a kind");
                    assert_eq!(StreamKind::from_byte(kind[0]), Some(StreamKind::Tripwire));
                    detector.expect_tripwire(&peer, send, recv).await;
                });
            }
        });
        watched
    }
}

/// Dials a member at `addr` and monitors it.
pub async fn dialled(rig: &Rig, addr: SocketAddr) -> (Endpoint, WatchedConnection) {
    let endpoint = rig.member(Role::Worker).await;
    let dialled = dial(&endpoint, addr, Role::Coordinator, WAIT).await;
    let detector = Detector::dialling(rig.world.clone());
    let watched = detector.watch(dialled.expect("connected").connection);
    (endpoint, watched)
}

/// Both ends of a connection.
pub struct Pair {
    pub here: WatchedConnection,
    pub there: WatchedConnection,
    pub server: Listening,
    pub relay: Arc<Relay>,
    _dialler: Endpoint,
}

impl Pair {
    /// Connects two members through a relay, and waits until the tripwire is armed.
    pub async fn connect(rig: &Rig) -> Pair {
        let server = Listening::start(rig).await;
        let relay = Relay::start(server.endpoint.local_addr()).await;
        let ((dialler, here), there) = tokio::join!(dialled(rig, relay.addr), server.accept());
        until("armed", || here.tripwire() && there.tripwire()).await;
        Pair {
            here,
            there,
            server,
            relay,
            _dialler: dialler,
        }
    }
}

/// Forwards UDP and TCP between one dialler and a server.
pub struct Relay {
    pub addr: SocketAddr,
    /// Whether packets pass to the server, and to the dialler.
    pub there: AtomicBool,
    pub back: AtomicBool,
    cut_tcp: std::sync::Mutex<CancellationToken>,
}

impl Relay {
    pub async fn start(server: SocketAddr) -> Arc<Relay> {
        let local = "127.0.0.1:0";
        let tcp = TcpListener::bind(local).await.expect("a TCP port");
        let addr = tcp.local_addr().expect("address");
        let udp = UdpSocket::bind(addr).await.expect("the same UDP port");
        let onward = UdpSocket::bind(local).await.expect("a UDP port");
        onward.connect(server).await.expect("connected");
        let relay = Arc::new(Relay {
            addr,
            there: AtomicBool::new(true),
            back: AtomicBool::new(true),
            cut_tcp: Default::default(),
        });
        tokio::spawn(relay.clone().packets(udp, onward));
        tokio::spawn(relay.clone().tripwires(tcp, server));
        relay
    }

    async fn packets(self: Arc<Self>, udp: UdpSocket, onward: UdpSocket) {
        let (mut out, mut back) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let mut dialler = None;
        loop {
            tokio::select! {
                biased;
                Ok((len, from)) = udp.recv_from(&mut out) => {
                    dialler = Some(from);
                    if self.there.load(Ordering::Relaxed) {
                        // A packet may be lost.
                        let _ = onward.send(&out[..len]).await;
                    }
                }
                Ok(len) = onward.recv(&mut back) => {
                    if let Some(to) = dialler.filter(|_| self.back.load(Ordering::Relaxed)) {
                        let _ = udp.send_to(&back[..len], to).await;
                    }
                }
            }
        }
    }

    async fn tripwires(self: Arc<Self>, listener: TcpListener, server: SocketAddr) {
        while let Ok((mut from, _)) = listener.accept().await {
            let cut = self.cut_tcp.lock().expect("no panic").clone();
            tokio::spawn(async move {
                let mut to = TcpStream::connect(server).await.expect("connected");
                let copy = tokio::io::copy_bidirectional(&mut from, &mut to);
                // Dropping both ends ends the tripwire at both.
                cut.run_until_cancelled(copy).await;
            });
        }
    }

    /// Ends all TCP connections through the relay.
    pub fn cut_tcp(&self) {
        let mut cut = self.cut_tcp.lock().expect("no panic");
        std::mem::take(&mut *cut).cancel();
    }
}
