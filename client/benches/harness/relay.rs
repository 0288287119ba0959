//! A relay of 4-byte messages over plain quinn, round a ring of parties with a network thread each: what a step, or an op,
//! is measured beside.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use convoke_common::identity::{
    ClusterCa, PeerName, RevocationList, Role, TlsConfigs, dial, greet,
};
use convoke_common::world::quic::{RecvStream, SendStream};
use convoke_common::world::{Endpoint, EndpointOptions, World};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::{ANY, WAIT, on_thread, world};

async fn endpoint(world: &World, ca: &ClusterCa, name: &str) -> Endpoint {
    let name: PeerName = name.parse().unwrap();
    let identity = ca.issue_own(world, Role::Worker, name).unwrap();
    let revoked = Arc::new(RevocationList::default());
    let tls = TlsConfigs::cluster(&identity, revoked, world.wall.clone()).unwrap();
    world
        .net
        .endpoint(ANY, &tls, &EndpointOptions::default())
        .await
        .unwrap()
}

/// The stream to a peer that [`incoming`] at the other end returns.
async fn outgoing(endpoint: &Endpoint, to: SocketAddr) -> SendStream {
    let dialled = dial(endpoint, to, Role::Worker, WAIT).await.unwrap();
    let (mut send, _) = dialled.connection.open_bi().await.unwrap();
    // A stream exists for the peer once something was written to it.
    send.write_all(&[0; 4]).await.unwrap();
    send
}

async fn incoming(endpoint: &Endpoint) -> RecvStream {
    let greeted = greet(endpoint.accept().await.unwrap(), WAIT).await.unwrap();
    let (_, mut recv) = greeted.connection.accept_bi().await.unwrap();
    recv.read_exact(&mut [0; 4]).await.unwrap();
    recv
}

/// One party of the relay: passes on what comes.
fn relay_hop(ca: &Arc<ClusterCa>, name: &'static str, to: SocketAddr) -> SocketAddr {
    let ca = ca.clone();
    on_thread(move |tell| async move {
        let ep = endpoint(&world(), &ca, name).await;
        tell.send(ep.local_addr()).unwrap();
        let mut recv = incoming(&ep).await;
        let mut send = outgoing(&ep, to).await;
        let mut message = [0; 4];
        while recv.read_exact(&mut message).await.is_ok() {
            send.write_all(&message).await.unwrap();
        }
    })
}

/// Asks the relay's driver for rounds: with 1 it answers after each, else after all, with their times.
pub struct Relay(UnboundedSender<(usize, mpsc::Sender<Vec<Duration>>)>);

impl Relay {
    /// A driver and these parties, in a ring.
    pub fn start(hops: &'static [&'static str]) -> Relay {
        let ca = Arc::new(ClusterCa::create(&world()).unwrap());
        let own = ca.clone();
        // The ring is closed through the driver, so its address is needed first and its first hop last.
        let (to_first, first) = tokio::sync::oneshot::channel();
        let (ask, mut asked) = unbounded_channel::<(usize, mpsc::Sender<Vec<Duration>>)>();
        let (addr, ready) = on_thread(move |tell| async move {
            let ep = endpoint(&world(), &own, "driver").await;
            let (tell_ready, ready) = mpsc::channel();
            tell.send((ep.local_addr(), ready)).unwrap();
            let mut send = outgoing(&ep, first.await.unwrap()).await;
            let mut recv = incoming(&ep).await;
            tell_ready.send(()).unwrap();
            while let Some((rounds, answer)) = asked.recv().await {
                let mut times = Vec::with_capacity(rounds);
                for _ in 0..rounds {
                    let start = Instant::now();
                    send.write_all(&[7; 4]).await.unwrap();
                    recv.read_exact(&mut [0; 4]).await.unwrap();
                    times.push(start.elapsed());
                }
                answer.send(times).unwrap();
            }
        });
        let next = |to, name: &&'static str| relay_hop(&ca, name, to);
        to_first.send(hops.iter().rev().fold(addr, next)).unwrap();
        ready.recv_timeout(WAIT).unwrap();
        Relay(ask)
    }

    pub fn ask(&self, rounds: usize) -> Vec<Duration> {
        let (answer, answered) = mpsc::channel();
        self.0.send((rounds, answer)).unwrap();
        answered.recv_timeout(WAIT).unwrap()
    }

    /// The time of a round, called from this thread.
    pub fn called(&self) -> Duration {
        let start = Instant::now();
        self.ask(1);
        start.elapsed()
    }
}
