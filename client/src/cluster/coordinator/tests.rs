//! Tests of when the client gives up a connection that stands.

use std::net::Ipv4Addr;

use convoke_common::detection::CLOSE_LOST;
use convoke_common::identity::{ClusterCa, RevocationList, TlsConfigs, greet};
use convoke_common::world::{EndpointOptions, NoCompute};

use super::*;

const WAIT: Duration = Duration::from_secs(5);

async fn endpoint(world: &World, ca: &ClusterCa, role: Role) -> Endpoint {
    let identity = ca.issue_own(world, role, role.as_str().parse().unwrap());
    let revoked = Arc::<RevocationList>::default();
    let tls = TlsConfigs::cluster(&identity.unwrap(), revoked, world.wall.clone()).unwrap();
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let options = EndpointOptions::default();
    world.net.endpoint(any, &tls, &options).await.unwrap()
}

#[tokio::test]
async fn a_connection_that_carries_no_calls_is_ended_as_lost() {
    let world = World::real(Arc::new(NoCompute));
    let ca = ClusterCa::create(&world).unwrap();
    let coordinator = endpoint(&world, &ca, Role::Coordinator).await;
    let client = endpoint(&world, &ca, Role::Client).await;
    let dialled = dial(&client, coordinator.local_addr(), Role::Coordinator, WAIT);
    let greeted = async { greet(coordinator.accept().await.unwrap(), WAIT).await };
    let (dialled, greeted) = tokio::join!(dialled, greeted);
    let (connection, at_coordinator) = (dialled.unwrap().connection, greeted.unwrap().connection);

    let (client, carrier) = rpc::stay_connected(&world, &connection).await.unwrap();
    let watched = Detector::dialling(world.clone()).watch(connection);
    let mut there = LiveConnection {
        watched,
        client,
        carrier,
    };
    // The stream of calls ends, as it does where the coordinator cannot decode a message; the connection stands.
    let end_streams = async {
        loop {
            let (mut send, mut recv) = at_coordinator.accept_bi().await.unwrap();
            let mut kind = [0];
            recv.read_exact(&mut kind).await.unwrap();
            if kind[0] == rpc::StreamKind::Coordinator as u8 {
                drop((send.reset(0u32.into()), recv.stop(0u32.into())));
                return at_coordinator.closed().await;
            }
        }
    };
    let both = tokio::time::timeout(WAIT, futures::future::join(there.ended(), end_streams));
    let ((_, said), seen) = both.await.unwrap();
    assert_eq!(said, "it takes no more calls");
    assert!(
        matches!(&seen, ConnectionError::ApplicationClosed(c) if c.error_code == CLOSE_LOST),
        "{seen}"
    );
}
