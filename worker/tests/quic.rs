//! The same steps over real QUIC connections on loopback: nothing is lost, nothing stays, whatever ends when.

#![allow(clippy::unwrap_used)]

mod harness;

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::Code;
use convoke_common::identity::{
    ClusterCa, PeerName, RevocationList, Role, TlsConfigs, dial, greet,
};
use convoke_common::world::{ComputePool, Endpoint, EndpointOptions, World};
use convoke_rendezvous::{Hub, remote};
use harness::{Cluster, hubs, ids, over};

const WAIT: Duration = Duration::from_secs(5);

async fn endpoint(world: &World, ca: &ClusterCa, hub: &Hub) -> Endpoint {
    let name: PeerName = hub.me.name.parse().unwrap();
    let identity = ca.issue_own(world, Role::Worker, name).unwrap();
    let revoked = Arc::new(RevocationList::default());
    let tls = TlsConfigs::cluster(&identity, revoked, world.wall.clone()).unwrap();
    let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let options = EndpointOptions::default();
    world.net.endpoint(any, &tls, &options).await.unwrap()
}

/// Links `a` to `b`.
async fn join(world: &World, ends: &[Endpoint], hubs: &[Arc<Hub>], a: usize, b: usize) {
    let accept = async {
        let greeted = greet(ends[b].accept().await.unwrap(), WAIT).await.unwrap();
        let connection = greeted.connection;
        let (send, mut recv) = connection.accept_bi().await.unwrap();
        recv.read_exact(&mut [0]).await.unwrap();
        let name = &hubs[a].me.name;
        remote::accept_lane(world, &hubs[b], connection, name, send, recv)
            .await
            .unwrap();
    };
    let open = async {
        let dialled = dial(&ends[a], ends[b].local_addr(), Role::Worker, WAIT).await;
        let connection = dialled.unwrap().connection;
        let name = hubs[b].me.name.clone();
        remote::dial_lane(world, &hubs[a], connection, name)
            .await
            .unwrap();
    };
    tokio::join!(accept, open);
}

async fn cluster(in_flight: u32) -> Cluster {
    let pool = ComputePool::start("unused", NonZeroUsize::MIN, 1).unwrap();
    let world = World::real(pool.handle());
    let ca = ClusterCa::create(&world).unwrap();
    let hubs = hubs();
    let mut ends = vec![];
    for hub in &hubs {
        ends.push(endpoint(&world, &ca, hub).await);
    }
    for (a, b) in [(0, 1), (2, 0), (2, 1)] {
        join(&world, &ends, &hubs, a, b).await;
    }
    over(hubs, in_flight)
}

async fn within<T>(what: &str, f: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(20), f).await {
        Ok(t) => t,
        Err(_) => panic!("{what} did not end"),
    }
}

/// Waits until nothing of any step is left; a receive may end a moment after its step.
async fn check_at_rest(c: &Cluster) {
    within("a step", c.driver.quiesce()).await;
    let left = || {
        let of = |(e, l): (&Arc<_>, &Arc<convoke_rendezvous::Lease>)| {
            let e: &convoke_worker::executor::Executor = e;
            e.live_steps() + l.table.open_steps() + l.pool.live_bytes()
        };
        c.executors.iter().zip(&c.leases).map(of).sum::<u64>()
    };
    within("a receive", async {
        while left() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_cross_small_and_large_many_at_once() {
    let c = Arc::new(cluster(3).await);
    let calls = (0..60usize).map(|i| {
        let c = c.clone();
        // By lane, and by streams of their own.
        let len = if i % 3 == 0 { 20_000 } else { 3 };
        tokio::spawn(async move {
            assert_eq!(c.call(&vec![2; len]).await.unwrap(), vec![6; len]);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        within("a call", call).await.unwrap();
    }
    check_at_rest(&c).await;
    assert!(c.hubs.iter().all(|h| h.refused().is_empty()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_and_cancellations_leave_nothing_behind() {
    let c = Arc::new(cluster(2).await);
    for i in 0..150u64 {
        let own = c.clone();
        let len = [1, 20_000, 100_000][i as usize % 3];
        let x = vec![(i % 2) as i64; len];
        let call = tokio::spawn(async move { own.call(&x).await });
        if i % 5 == 0 {
            let _ = within("a call", call).await;
            continue;
        }
        tokio::time::sleep(Duration::from_micros((i * 379) % 3000)).await;
        call.abort();
        drop(within("a cancelled call", call).await);
    }
    check_at_rest(&c).await;
    assert_eq!(c.call(&[3]).await.unwrap(), [4]);
}

/// Cuts the link between `a` and `b` while calls run, `after` so long.
async fn check_cut(a: usize, b: usize, after: Duration) {
    let c = Arc::new(cluster(2).await);
    let calls: Vec<_> = (0..8usize)
        .map(|i| {
            let c = c.clone();
            let len = if i % 2 == 0 { 200_000 } else { 3 };
            let x = vec![2; len];
            tokio::spawn(async move { c.driver.call(vec![ids(&x)], vec![len as i64], None).await })
        })
        .collect();
    tokio::time::sleep(after).await;
    let link = c.hubs[a].link(&c.hubs[b].me).unwrap();
    link.close("cut");
    for call in calls {
        if let Err(e) = within("a call", call).await.unwrap() {
            assert_eq!(e.code, Code::PeerLost, "{e}");
        }
    }
    // Also one that starts when all is known.
    let e = within("a later call", c.call(&[1])).await.unwrap_err();
    assert_eq!(e.code, Code::PeerLost, "{e}");
    assert!(c.driver.broken().is_some());
    within("a step", c.driver.quiesce()).await;
    within("a worker's step", async {
        while c.executors.iter().any(|e| e.live_steps() > 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_cut_at_any_moment_ends_every_call() {
    for (a, b) in [(0, 1), (2, 0), (2, 1), (1, 2)] {
        for ms in [0, 1, 3, 7, 15] {
            check_cut(a, b, Duration::from_millis(ms)).await;
        }
    }
}
