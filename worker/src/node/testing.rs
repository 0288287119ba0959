//! A worker without a coordinator, and a client that links to it over QUIC, for tests of a worker's holdings.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use convoke_common::detection::Detector;
use convoke_common::identity::{ClusterCa, RevocationList, Role, TlsConfigs, dial, greet};
use convoke_common::ids::Incarnation;
use convoke_common::memory::Ledger;
use convoke_common::rpc::StreamKind;
use convoke_common::world::{Endpoint, EndpointOptions, World};
use convoke_rendezvous::{Hub, Link, Peer, remote};

use super::holdings::Holdings;
use crate::compute::Threads;
use crate::executor::Engine;

const WAIT: Duration = Duration::from_secs(5);

/// A worker, and a client that links to it as often as it is told to.
pub(crate) struct Rig {
    world: World,
    pub holdings: Arc<Holdings>,
    pub client: Arc<Hub>,
    from: Endpoint,
}

async fn endpoint(world: &World, ca: &ClusterCa, role: Role, name: &str) -> Endpoint {
    let identity = ca.issue_own(world, role, name.parse().unwrap()).unwrap();
    let revoked = Arc::new(RevocationList::default());
    let tls = TlsConfigs::cluster(&identity, revoked, world.wall.clone()).unwrap();
    let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let options = EndpointOptions::default();
    world.net.endpoint(any, &tls, &options).await.unwrap()
}

impl Rig {
    pub async fn new() -> Rig {
        let world = World {
            shared: None,
            ..World::real(Arc::new(Threads::start("w0", 1).unwrap()))
        };
        let ca = ClusterCa::create(&world).unwrap();
        let peer = |role, name: &str| Peer {
            role,
            name: name.into(),
            incarnation: Incarnation(9),
        };
        let holdings = Holdings::new(
            world.clone(),
            peer(Role::Worker, "w0"),
            endpoint(&world, &ca, Role::Worker, "w0").await,
            Detector::dialling(world.clone()),
            Arc::new(Engine::new("w0", "here", world.compute.clone(), None)),
            Ledger::new("w0", 64 << 20),
            None,
            None,
            Arc::default(),
        );
        Rig {
            holdings,
            client: Hub::new(peer(Role::Client, "me")),
            from: endpoint(&world, &ca, Role::Client, "me").await,
            world,
        }
    }

    /// Links the client to the worker, and returns the worker's end.
    pub async fn link(&self) -> Arc<Link> {
        let (world, worker) = (&self.world, &self.holdings);
        let accept = async {
            let greeted = greet(worker.endpoint.accept().await.unwrap(), WAIT);
            let watched =
                Detector::dialling(world.clone()).watch(greeted.await.unwrap().connection);
            let (send, recv) = loop {
                let (send, mut recv) = watched.connection().accept_bi().await.unwrap();
                let mut kind = [0];
                recv.read_exact(&mut kind).await.unwrap();
                if StreamKind::from_byte(kind[0]) == Some(StreamKind::Lane) {
                    break (send, recv);
                }
            };
            let Peer { role, name, .. } = &self.client.me;
            remote::accept_lane(world, &worker.hub, watched, *role, name, send, recv).await
        };
        let open = async {
            let to = worker.endpoint.local_addr();
            let dialled = dial(&self.from, to, Role::Worker, WAIT).await.unwrap();
            let watched = Detector::dialling(world.clone()).watch(dialled.connection);
            remote::dial_lane(world, &self.client, watched, "w0".into()).await
        };
        let (accepted, opened) = tokio::join!(accept, open);
        opened.unwrap();
        accepted.unwrap()
    }
}
