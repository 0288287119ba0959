//! Hostile peers at a worker and at the coordinator: what they are refused, under which name, and that others do not
//! notice.

#![allow(clippy::unwrap_used)]
#![cfg(feature = "embedded")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use convoke::graph::Function;
use convoke::{Cluster, Code, DType, HostTensor as Tensor, TensorType, Token};
use convoke_common::admission::join;
use convoke_common::detection::Detector;
use convoke_common::device_spec::DeviceId;
use convoke_common::identity::{JoinToken, RevocationList, Role, TlsConfigs, dial};
use convoke_common::rpc::{StreamKind, close};
use convoke_common::world::quic::{Connection, ConnectionError};
use convoke_common::world::{Endpoint, EndpointOptions, NoCompute, World};
use convoke_coordinator::{Coordinator, CoordinatorConfig};
use convoke_graph::graph::{Attrs, Node, RunsAt};
use convoke_worker::{Threads, Worker, WorkerConfig};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const BOUND: Duration = Duration::from_secs(60);

struct Rig {
    world: World,
    coordinator: convoke_coordinator::RunningCoordinator,
    worker: convoke_worker::RunningWorker,
    token: JoinToken,
}

async fn rig() -> Rig {
    let world = World::real(Arc::new(NoCompute));
    let config = CoordinatorConfig {
        listen: ANY,
        state_dir: None,
        run_dir: None,
        token_dir: None,
    };
    let coordinator = Coordinator::start(world.clone(), config).await.unwrap();
    let pool = Threads::start("w", 1).unwrap();
    let own = World {
        compute: Arc::new(pool.clone()),
        ..world.clone()
    };
    let config = WorkerConfig {
        name: Some("w".into()),
        join: coordinator.addr().to_string(),
        token: coordinator.create_token(Role::Worker, None).await.unwrap(),
        state_dir: None,
        run_dir: None,
        cache_dir: None,
        cache_bytes: 0,
        artifact_root: None,
        device: DeviceId::default(),
        device_memory: 0,
        memory: 1 << 30,
        sharers: 1,
        listen: ANY,
        advertise: None,
        host: "here".into(),
        black_box: None,
    };
    let worker = Worker::start(own, config, Some(&pool)).await.unwrap();
    let token = coordinator.create_token(Role::Client, None).await.unwrap();
    Rig {
        world,
        coordinator,
        worker,
        token,
    }
}

/// Checks that the other end closes the connection with this code.
async fn check_closed(connection: &Connection, code: u32) {
    let why = tokio::time::timeout(BOUND, connection.closed()).await;
    let why = why.unwrap();
    assert!(
        matches!(&why, ConnectionError::ApplicationClosed(c) if c.error_code == code.into()),
        "{why}"
    );
}

impl Rig {
    fn address(&self) -> String {
        self.coordinator.addr().to_string()
    }

    /// Connects an honest client, and makes a call. It connects again where a busy machine takes longer for that than a
    /// connection may.
    async fn check_served(&self) -> Cluster {
        let token: Token = self.token.to_string().parse().unwrap();
        let served = async {
            loop {
                match convoke::connect(&self.address(), token.clone()).await {
                    Ok(cluster) => return cluster,
                    Err(e) => assert_eq!(e.code, Code::Unreachable, "{e}"),
                }
            }
        };
        let cluster = tokio::time::timeout(BOUND, served).await.unwrap();
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let model = cluster
            .load(root.join("../fixtures/digits/model.onnx"))
            .await
            .unwrap();
        let image = Tensor::zeros(DType::F32, &[1, 1, 8, 8]).unwrap();
        let call = tokio::time::timeout(BOUND, model.call([("image", image)]));
        call.await.unwrap().unwrap();
        cluster
    }

    /// The endpoint of a member that has the rights of a client, and does something else.
    async fn hostile(&self) -> Endpoint {
        let address = self.address();
        let joined = join(&self.world, &address, &self.token, Role::Client, "");
        let identity = joined.await.unwrap();
        let revoked = Arc::<RevocationList>::default();
        let tls = TlsConfigs::cluster(&identity, revoked, self.world.wall.clone()).unwrap();
        let options = EndpointOptions::default();
        self.world.net.endpoint(ANY, &tls, &options).await.unwrap()
    }

    /// Dials a peer, on a connection that sends heartbeats like any other.
    async fn dial(&self, from: &Endpoint, to: SocketAddr, role: Role) -> Connection {
        let connection = dial(from, to, role, BOUND).await.unwrap().connection;
        let detector = Detector::dialling(self.world.clone());
        detector.watch(connection).connection().clone()
    }
}

/// A function of one node, called `name`.
fn named(name: String) -> Function {
    let mut f = Function {
        name,
        ..Function::default()
    };
    let ty = TensorType::fixed(DType::F32, &[4]);
    let (x, y) = (f.add_value("x", ty.clone()), f.add_value("y", ty));
    f.params.push(x);
    f.nodes.push(Node {
        name: "tanh".into(),
        op: "Tanh".into(),
        attrs: Attrs::default(),
        inputs: vec![Some(x)],
        outputs: vec![y],
        runs_at: RunsAt::Step,
    });
    f.results.push(("y".into(), y));
    f
}

/// Returns the refusals that the worker and the coordinator have counted.
async fn refused(cluster: &Cluster) -> [BTreeMap<String, u64>; 2] {
    let status = cluster.status().await.unwrap();
    let worker = status.members[0].status.clone().unwrap();
    [worker.refused, status.refused]
}

/// Opens a stream with this first byte, and returns whether the stream was refused.
async fn opens(connection: &Connection, first: u8) -> bool {
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(&[first]).await.unwrap();
    let read = tokio::time::timeout(BOUND, recv.read(&mut [0; 1]))
        .await
        .unwrap();
    matches!(read, Err(convoke_common::world::quic::ReadError::Reset(_)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_a_peer_may_not_open_are_reset_and_counted() {
    let rig = rig().await;
    let cluster = rig.check_served().await;
    let mallory = rig.hostile().await;
    let worker = rig.dial(&mallory, rig.worker.addr(), Role::Worker).await;
    assert!(opens(&worker, StreamKind::Worker as u8).await);
    assert!(opens(&worker, StreamKind::Coordinator as u8).await);
    assert!(opens(&worker, StreamKind::Probe as u8).await);
    assert!(opens(&worker, 99).await);
    let address = rig.coordinator.addr();
    let coordinator = rig.dial(&mallory, address, Role::Coordinator).await;
    assert!(opens(&coordinator, StreamKind::Lane as u8).await);
    assert!(opens(&coordinator, StreamKind::Join as u8).await);
    let [at_worker, at_coordinator] = refused(&cluster).await;
    assert_eq!(
        (at_worker["stream_forbidden"], at_worker["stream_unknown"]),
        (3, 1)
    );
    assert_eq!(at_coordinator["stream_forbidden"], 2);

    // One of two lanes is refused; the other stays silent, and its connection ends.
    let lane = StreamKind::Lane as u8;
    let (a, b) = tokio::join!(opens(&worker, lane), opens(&worker, lane));
    assert!(a != b, "{a} {b}");
    let why = tokio::time::timeout(BOUND, worker.closed()).await.unwrap();
    assert!(
        matches!(why, ConnectionError::ApplicationClosed(_)),
        "{why}"
    );
    let silent = rig.dial(&mallory, rig.worker.addr(), Role::Worker).await;
    let (send, _recv) = silent.open_bi().await.unwrap();
    // The peer learns of a stream by the first byte of a later one.
    let (mut later, _later) = silent.open_bi().await.unwrap();
    later.write_all(&[StreamKind::Probe as u8]).await.unwrap();
    let [at_worker, _] = refused(&cluster).await;
    assert_eq!(
        (at_worker["stream_second_lane"], at_worker["lane_greeting"]),
        (1, 1)
    );
    let ended = tokio::time::timeout(BOUND, send.stopped()).await.unwrap();
    assert!(ended.unwrap().is_some());
    assert_eq!(refused(&cluster).await[0]["stream_silent"], 1);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_connections_stops_nobody_else() {
    let rig = rig().await;
    let cluster = rig.check_served().await;
    let mallory = rig.hostile().await;
    // More handshakes than are served at once, none of them completed: the greeting never comes.
    let mut begun = Vec::new();
    for to in [rig.worker.addr(), rig.coordinator.addr()] {
        for _ in 0..160 {
            let connecting = mallory.connect(to).unwrap();
            begun.push(tokio::spawn(async move {
                let connection = connecting.await?;
                Err::<(), _>(connection.closed().await)
            }));
        }
    }
    rig.check_served().await.shutdown().await;
    // Connections that are complete, more than one peer may have.
    let mut open = Vec::new();
    for _ in 0..40 {
        if let Ok(dialled) = dial(&mallory, rig.worker.addr(), Role::Worker, BOUND).await {
            open.push(dialled.connection);
        }
    }
    let closed = async {
        while open.iter().filter(|c| c.close_reason().is_none()).count() > 16 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(BOUND, closed).await.unwrap();
    rig.check_served().await.shutdown().await;
    let [at_worker, at_coordinator] = refused(&cluster).await;
    assert!(at_worker["connection_too_many"] >= 24, "{at_worker:?}");
    for at in [at_worker, at_coordinator] {
        // On a busy machine the handshakes' time is over before others want their places, or the connection is found to be
        // dead while its greeting is awaited.
        let ended = [
            "handshake_pushed_out",
            "handshake_too_slow",
            "handshake_greeting",
        ];
        assert!(ended.iter().any(|e| at.contains_key(*e)), "{at:?}");
    }
    begun.iter().for_each(|b| b.abort());
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_may_have_any_name_that_fits_a_call() {
    let rig = rig().await;
    let cluster = rig.check_served().await;
    let long = named(format!("a\n{}", "\u{e9}".repeat(5000)));
    let model = cluster.load_function(long, vec![]).await.unwrap();
    let status = cluster.status().await.unwrap();
    let worker = status.members[0].status.as_ref().unwrap();
    let program = worker.programs.iter().find(|p| p.name.starts_with('a'));
    let lease = status.leases.iter().find(|l| l.model.starts_with('a'));
    let (program, lease) = (&program.unwrap().name, &lease.unwrap().model);
    assert_eq!((program.len(), program), (255, lease));
    assert!(!program.contains('\n'));
    model.unload().await.unwrap();

    let huge = named("a".repeat(65 << 20));
    let refused = cluster.load_function(huge, vec![]).await.err().unwrap();
    assert_eq!(refused.code, Code::InvalidArgument, "{refused}");
    assert!(refused.message.contains("64 MiB"), "{refused}");
    cluster
        .load_function(named("b".into()), vec![])
        .await
        .unwrap();
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_token_ends_connections_without_a_lane_too() {
    let rig = rig().await;
    let mallory = rig.hostile().await;
    let idle = rig.dial(&mallory, rig.worker.addr(), Role::Worker).await;
    rig.coordinator.revoke_token(&rig.token.id).await.unwrap();
    check_closed(&idle, close::REVOKED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_membership_that_is_over_ends_at_workers_too() {
    let rig = rig().await;
    // This is time enough to join and to dial.
    let stay = Duration::from_secs(3);
    let bounded = rig.coordinator.bound_membership(&rig.token.id, stay);
    bounded.await.unwrap();
    let guest = rig.hostile().await;
    let idle = rig.dial(&guest, rig.worker.addr(), Role::Worker).await;
    check_closed(&idle, close::MEMBERSHIP_OVER).await;
}

/// A client on a runtime of one thread issues more than may wait.
async fn issue_too_much() {
    let rig = rig().await;
    let token: Token = rig.token.to_string().parse().unwrap();
    let (world, address) = (rig.world.clone(), rig.address());
    let cluster = convoke::connect_in(world, &address, token, None);
    let cluster = cluster.await.unwrap();
    let a = cluster.device("w").unwrap();
    let (mut x, mut issued) = (a.put([1f32, 2.]).unwrap(), 0);
    let refused = loop {
        match x.neg() {
            Ok(y) => x = y,
            Err(e) => break e,
        }
        issued += 1;
        assert!(issued < 1 << 20, "there is always room");
    };
    assert_eq!(refused.code, Code::WouldBlock, "{refused}");
    let said = "Neg at client/tests/limits.rs:";
    assert!(refused.message.starts_with(said), "{refused}");
    // As the error advises.
    a.ready().await.unwrap();
    let last = x.neg().unwrap().fetch::<Vec<f32>>().await.unwrap();
    let sign = if issued % 2 == 0 { -1. } else { 1. };
    assert_eq!(last, [sign, 2. * sign]);
    cluster.shutdown().await;
}

/// The task that would make room runs on the very thread that issues.
#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "one that waits for itself holds up no more than a thread"
)]
fn issuing_on_the_only_thread_of_the_clients_runtime_fails_where_it_would_wait() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(issue_too_much());
        tell.send(()).unwrap();
    });
    told.recv_timeout(BOUND).expect("it ends, and well");
}
