//! Steps over real QUIC connections on loopback: no tensor is lost and nothing is left behind, whatever ends when.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use convoke_common::detection::Detector;
use convoke_common::identity::{
    CERTIFICATE_LIFE, CertificateClaims, ClusterCa, OwnIdentity, OwnKey, RevocationList, Role,
    TlsConfigs, dial, greet,
};
use convoke_common::ids::{Incarnation, StepKey};
use convoke_common::rpc::StreamKind;
use convoke_common::world::{Endpoint, EndpointOptions, NoCompute, World};
use convoke_common::{Code, Error};
use convoke_rendezvous::frame::{Frame, SharingFrame, TensorHeader};
use convoke_rendezvous::remote::{self, STALL_BOUND};
use convoke_rendezvous::{Hub, Link, Outgoing, Peer};
use harness::{Cluster, LEASE, hubs, ids, over};
use tokio_util::sync::CancellationToken;

const WAIT: Duration = Duration::from_secs(5);

async fn endpoint(world: &World, ca: &ClusterCa, hub: &Hub, token: &str) -> Endpoint {
    let grant = CertificateClaims {
        role: Role::Worker,
        name: hub.me.name.parse().unwrap(),
        token_id: token.parse().unwrap(),
        budget: convoke_common::identity::Budget::default(),
        life: CERTIFICATE_LIFE,
    };
    let key = OwnKey::generate(world.rng.as_ref()).unwrap();
    let (csr, now) = (key.csr().unwrap(), world.wall.unix_seconds());
    let certificate = ca.issue(&csr, &grant, now, world.rng.as_ref()).unwrap();
    let identity = OwnIdentity::new(key, certificate, ca.certificate().clone()).unwrap();
    let revoked = Arc::new(RevocationList::default());
    let tls = TlsConfigs::cluster(&identity, revoked, world.wall.clone()).unwrap();
    let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let options = EndpointOptions::default();
    world.net.endpoint(any, &tls, &options).await.unwrap()
}

/// Links `a` to `b`, and returns the outcome at `b`.
async fn join(
    world: &World,
    a: (&Endpoint, &Arc<Hub>),
    b: (&Endpoint, &Arc<Hub>),
) -> convoke_common::Result<Arc<Link>> {
    let accept = async {
        let greeted = greet(b.0.accept().await.unwrap(), WAIT).await.unwrap();
        let watched = Detector::dialling(world.clone()).watch(greeted.connection);
        // The peer announces its tripwire at the same time. Detection is slower without one.
        let (send, recv) = loop {
            let (send, mut recv) = watched.connection().accept_bi().await.unwrap();
            let mut kind = [0];
            recv.read_exact(&mut kind).await.unwrap();
            if StreamKind::from_byte(kind[0]) == Some(StreamKind::Lane) {
                break (send, recv);
            }
        };
        let Peer { role, name, .. } = &a.1.me;
        remote::accept_lane(world, b.1, watched, *role, name, send, recv).await
    };
    let open = async {
        let dialled = dial(a.0, b.0.local_addr(), Role::Worker, WAIT).await;
        let watched = Detector::dialling(world.clone()).watch(dialled.unwrap().connection);
        let name = b.1.me.name.clone();
        // The dialling side may notice that it was refused.
        drop(remote::dial_lane(world, a.1, watched, name).await);
    };
    tokio::join!(accept, open).0
}

/// A world in which all bytes of a tensor cross the wire.
fn wire() -> World {
    World {
        shared: None,
        ..World::real(Arc::new(NoCompute))
    }
}

/// A world in which processes of one host lend each other memory.
fn host() -> World {
    World::real(Arc::new(NoCompute))
}

async fn cluster(world: World, in_flight: u32) -> Cluster {
    let ca = ClusterCa::create(&world).unwrap();
    let hubs = hubs();
    let mut ends = vec![];
    for hub in &hubs {
        ends.push(endpoint(&world, &ca, hub, "direct").await);
    }
    for (a, b) in [(0, 1), (2, 0), (2, 1)] {
        let joined = join(&world, (&ends[a], &hubs[a]), (&ends[b], &hubs[b]));
        joined.await.unwrap();
    }
    for hub in &hubs[..2] {
        for link in hub.links() {
            assert_eq!(link.shares().await, world.shared.is_some());
        }
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

#[tokio::test]
async fn another_certificate_takes_no_living_links_place() {
    let world = wire();
    let ca = ClusterCa::create(&world).unwrap();
    let hubs = hubs();
    let to = (&endpoint(&world, &ca, &hubs[1], "direct").await, &hubs[1]);
    let own = endpoint(&world, &ca, &hubs[0], "first").await;
    let link = join(&world, (&own, &hubs[0]), to).await.unwrap();

    // Another process poses as this very incarnation, or as a later one.
    let other = endpoint(&world, &ca, &hubs[0], "second").await;
    let posing = Hub::new(hubs[0].me.clone());
    let refused = join(&world, (&other, &posing), to).await.err().unwrap();
    assert_eq!(refused.code, Code::Unauthorized, "{refused}");
    let later = |incarnation| {
        Hub::new(Peer {
            incarnation: Incarnation(incarnation),
            ..hubs[0].me.clone()
        })
    };
    join(&world, (&other, &later(8)), to).await.unwrap();
    let found = hubs[1].link(&hubs[0].me).unwrap();
    assert!(Arc::ptr_eq(&found, &link) && !link.is_closed());

    // A process that has the former one's token, and was started anew, takes its place.
    let again = endpoint(&world, &ca, &hubs[0], "first").await;
    join(&world, (&again, &later(9)), to).await.unwrap();
    within("the former link", link.connection().unwrap().closed()).await;
}

async fn check_results_cross(world: World) {
    let c = Arc::new(cluster(world, 3).await);
    let calls = (0..60usize).map(|i| {
        let c = c.clone();
        // Short tensors go by the lane, long ones by streams of their own.
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
async fn results_cross_small_and_large_many_at_once() {
    check_results_cross(wire()).await;
    check_results_cross(host()).await;
}

#[tokio::test]
async fn on_one_host_nothing_large_takes_the_wire() {
    let c = cluster(host(), 2).await;
    // The links over which the driver lends to the first worker, that one to the second, and that one to the driver.
    let links = [(2, 0), (0, 1), (1, 2)];
    let links = links.map(|(from, to): (usize, usize)| c.hubs[from].link(&c.hubs[to].me).unwrap());
    let len = 100_000;
    for _ in 0..3 {
        let before = links.each_ref().map(|link| link.status().sent);
        let y = within("a call", c.call(&vec![2; len])).await;
        assert_eq!(y.unwrap(), vec![6; len]);
        for (link, before) in links.iter().zip(before) {
            let sent = link.status().sent - before;
            assert!(sent < len as u64, "{sent} bytes took the wire");
        }
    }
    check_at_rest(&c).await;
    for link in links {
        let status = link.status();
        assert_eq!((&*status.path, status.queued_bytes), ("shm", 0));
    }
}

/// Makes w0 send w1 this message about shared memory, which must end their link.
async fn check_refused(told: SharingFrame) {
    let c = cluster(host(), 1).await;
    let link = c.hubs[0].link(&c.hubs[1].me).unwrap();
    link.send(Frame::Sharing(told));
    within("the link", link.connection().unwrap().closed()).await;
    assert_eq!(c.hubs[1].refused()["malformed"], 1);
}

#[tokio::test]
async fn nonsense_of_memory_ends_the_link() {
    check_refused(SharingFrame::Returned { loan: 0 }).await;
    let (nonce, address) = ([0; 32], vec![]);
    check_refused(SharingFrame::Meet { nonce, address }).await;
    let key = StepKey { lease: LEASE, n: 0 };
    check_refused(SharingFrame::Lent {
        tensor: TensorHeader::of(key, 0, &ids(&[1])),
        segment: u64::MAX,
        offset: 0,
        loan: 0,
    })
    .await;
}

async fn check_errors_and_cancellations(world: World) {
    let c = Arc::new(cluster(world, 2).await);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_and_cancellations_leave_nothing_behind() {
    check_errors_and_cancellations(wire()).await;
    check_errors_and_cancellations(host()).await;
}

/// Cuts the link between `a` and `b` while calls run, `after` a delay.
async fn check_cut(world: World, a: usize, b: usize, after: Duration) {
    let c = Arc::new(cluster(world, 2).await);
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
    // A call that starts once the loss is known fails as well.
    let e = within("a later call", c.call(&[1])).await.unwrap_err();
    assert_eq!(e.code, Code::PeerLost, "{e}");
    assert!(c.driver.broken().is_some());
    within("a step", c.driver.quiesce()).await;
    let mut c = Arc::into_inner(c).unwrap();
    within("the end of a lease whose driver is lost", async {
        let lost = [a, b].contains(&2).then_some(a.min(b));
        while lost.is_some_and(|w| c.hubs[w].lease(LEASE).is_some()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    c.forget_dropped();
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
            check_cut(wire(), a, b, Duration::from_millis(ms)).await;
            check_cut(host(), a, b, Duration::from_millis(ms)).await;
        }
    }
}

#[tokio::test]
async fn a_link_that_is_finished_delivers_all_that_was_sent() {
    let c = cluster(wire(), 1).await;
    let link = c.hubs[0].link(&c.hubs[1].me).unwrap();
    let key = StepKey { lease: LEASE, n: 0 };
    let tensor = ids(&vec![7; 1 << 20]);
    link.send_tensor(Outgoing {
        key,
        slot: 0,
        tensor: tensor.clone(),
        priority: 1,
        cancel: CancellationToken::new(),
        sent: Box::new(|| {}),
    });
    assert!(link.status().queued_bytes >= 8 << 20);
    let error = Box::new(Error::new(Code::WorkerLeaving, "w0 is leaving"));
    link.send(Frame::Abort {
        key: StepKey { lease: LEASE, n: 9 },
        error,
    });
    within("the end of a link", link.finish()).await;
    assert!(link.is_closed() && link.status().queued_bytes == 0);
    // A tensor that was acknowledged has yet to be taken in by the step.
    let arrived = async {
        loop {
            match c.leases[1].table.slot(0, 0).unwrap().take(0) {
                Some(t) => return t.unwrap(),
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    assert_eq!(within("a tensor", arrived).await, tensor);
    assert_eq!(c.hubs[1].refused()["ahead_of_window"], 1);
    assert!(c.hubs[1].link(&c.hubs[0].me).is_none());
}

/// The first bytes that a peer sends on a lane.
fn hello(me: &Peer) -> Vec<u8> {
    let mut said = me.incarnation.0.to_le_bytes().to_vec();
    said.extend((me.name.len() as u16).to_le_bytes());
    said.extend(me.name.as_bytes());
    said
}

#[tokio::test]
async fn what_is_said_of_a_step_passes_the_tensors() {
    let world = wire();
    let ca = ClusterCa::create(&world).unwrap();
    let hubs = hubs();
    let a = endpoint(&world, &ca, &hubs[0], "direct").await;
    let b = endpoint(&world, &ca, &hubs[1], "direct").await;
    // The peer reads the lane, but no tensor.
    let lane_alone = async {
        let greeted = greet(b.accept().await.unwrap(), WAIT).await.unwrap();
        let watched = Detector::dialling(world.clone()).watch(greeted.connection);
        let (mut send, mut recv) = loop {
            let (send, mut recv) = watched.connection().accept_bi().await.unwrap();
            let mut kind = [0];
            recv.read_exact(&mut kind).await.unwrap();
            if StreamKind::from_byte(kind[0]) == Some(StreamKind::Lane) {
                break (send, recv);
            }
        };
        let mut heard = hello(&hubs[0].me);
        recv.read_exact(&mut heard).await.unwrap();
        send.write_all(&hello(&hubs[1].me)).await.unwrap();
        recv.read_exact(&mut [0; 20]).await.unwrap();
        watched.connection().stats().udp_rx.bytes
    };
    let say = async {
        let dialled = dial(&a, b.local_addr(), Role::Worker, WAIT).await.unwrap();
        let watched = Detector::dialling(world.clone()).watch(dialled.connection);
        let name = hubs[1].me.name.clone();
        let link = remote::dial_lane(&world, &hubs[0], watched, name).await;
        let link = link.unwrap();
        let key = StepKey { lease: LEASE, n: 0 };
        link.send_tensor(Outgoing {
            key,
            slot: 0,
            tensor: ids(&vec![7; 4 << 20]),
            priority: u64::MAX,
            cancel: CancellationToken::new(),
            sent: Box::new(|| {}),
        });
        link.send(Frame::Done { key });
        link
    };
    let (before, _link) = within("a frame", async { tokio::join!(lane_alone, say) }).await;
    // Without priority for the lane, half of the tensor would come first: what fits the window of its stream.
    assert!(before < 8 << 20, "{before} bytes came before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_that_stalls_fails_its_step_and_holds_nothing() {
    let c = cluster(wire(), 2).await;
    let link = c.hubs[2].link(&c.hubs[0].me).unwrap();
    let mut stream = link.connection().unwrap().open_uni().await.unwrap();
    let mut some = Vec::new();
    let key = StepKey { lease: LEASE, n: 1 };
    TensorHeader::of(key, 0, &ids(&[1; 9000])).encode(&mut some);
    some.extend([0; 1000]);
    stream.write_all(&some).await.unwrap();
    // Other calls are served meanwhile.
    assert_eq!(within("a call", c.call(&[1])).await.unwrap(), [12]);
    let stalled = async {
        let x = ids(&[1; 9000]);
        c.driver.call(vec![x], vec![9000], None).await.unwrap_err()
    };
    let bound = STALL_BOUND * 10;
    let error = tokio::time::timeout(bound, stalled).await.unwrap();
    assert_eq!(error.code, Code::PeerLost, "{error}");
    assert!(
        error.message.contains("in the middle of a tensor"),
        "{error}"
    );
    assert_eq!(c.hubs[0].refused()["stalled"], 1);
    check_at_rest(&c).await;
    assert!(stream.write_all(&[0; 10]).await.is_err() || stream.stopped().await.is_ok());
}
