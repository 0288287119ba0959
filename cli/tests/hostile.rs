//! Bounds on what hostile peers can make real processes hold, write, and refuse to others.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

use crate::common;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::cluster::Processes;
use common::usage::Usage;
use convoke::{Attr, Attrs, Code, HostTensor, Token};
use convoke_common::admission::{call, join};
use convoke_common::detection::Detector;
use convoke_common::identity::{
    JoinToken, OwnIdentity, OwnKey, RevocationList, Role, TlsConfigs, TokenSecret, dial,
};
use convoke_common::ids::{Incarnation, LeaseId, StepKey};
use convoke_common::rpc::{JoinRequest, MemberState, StreamKind, connect_joining};
use convoke_common::world::quic::Connection;
use convoke_common::world::{Endpoint, EndpointOptions, NoCompute, World, hello};
use convoke_graph::DType;
use convoke_rendezvous::eager::wire::{Command, Definition, MOST_PREPARED};
use convoke_rendezvous::eager::{Batch, Batches};
use convoke_rendezvous::frame::TensorHeader;
use convoke_rendezvous::{Hub, Peer, remote};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// The bytes that strangers together may add to a process.
const STRANGERS: u64 = 64 << 20;
/// The bytes that members of one token may add to the coordinator by default.
const REQUESTS: u64 = 128 << 20;
/// How long an attack lasts.
const ATTACK: Duration = Duration::from_secs(4);
const BOUND: Duration = Duration::from_secs(60);

fn world() -> World {
    World::real(Arc::new(NoCompute))
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

/// The largest memory of a process since the watch began.
struct Watch {
    idle: u64,
    most: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Watch {
    fn begin(pid: u32) -> Watch {
        let most = Arc::<AtomicU64>::default();
        let noted = most.clone();
        let idle = Usage::of(pid).memory;
        let task = tokio::spawn(async move {
            loop {
                noted.fetch_max(Usage::of(pid).memory, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        Watch { idle, most, task }
    }

    /// The largest number of bytes by which the process grew.
    fn grown(self) -> u64 {
        self.task.abort();
        self.most.load(Ordering::Relaxed).saturating_sub(self.idle)
    }
}

/// Joins with the cluster's client token, and returns the new member's identity.
async fn member(cluster: &Processes) -> OwnIdentity {
    let world = world();
    let token = JoinToken::from_file(world.store.as_ref(), cluster.client_token().as_ref());
    joined(cluster, token.unwrap()).await
}

async fn joined(cluster: &Processes, token: JoinToken) -> OwnIdentity {
    let world = world();
    let joined = join(&world, &cluster.address, &token, Role::Client, "");
    joined.await.unwrap()
}

/// A client token with a budget, as text.
fn token_of(cluster: &Processes, budget: &[&str]) -> String {
    let state = cluster.path("coordinator");
    let create = ["token", "create", "--role", "client", "--state-dir", &state];
    let made = common::run(create.iter().chain(budget));
    made.expect(0).stdout.trim().to_owned()
}

async fn endpoint(world: &World, identity: &OwnIdentity) -> Endpoint {
    let revoked = Arc::<RevocationList>::default();
    let tls = TlsConfigs::cluster(identity, revoked, world.wall.clone()).unwrap();
    let options = EndpointOptions::default();
    world.net.endpoint(ANY, &tls, &options).await.unwrap()
}

/// Makes an endpoint that shows no certificate.
async fn stranger(cluster: &Processes) -> Endpoint {
    let world = world();
    // The member's identity is used only to accept the cluster's servers.
    let identity = member(cluster).await;
    let revoked = Arc::<RevocationList>::default();
    let mut tls = TlsConfigs::cluster(&identity, revoked, world.wall.clone()).unwrap();
    let token = JoinToken::from_file(world.store.as_ref(), cluster.client_token().as_ref());
    let nameless = TlsConfigs::joining(token.unwrap().ca, world.wall.clone()).unwrap();
    Arc::make_mut(&mut tls.client).client_auth_cert_resolver =
        nameless.client.client_auth_cert_resolver.clone();
    let options = EndpointOptions::default();
    world.net.endpoint(ANY, &tls, &options).await.unwrap()
}

/// Opens up to `streams` streams, as the peer allows, and sends zeros after `head` on each until the attack is over.
async fn flood(connection: &Connection, streams: usize, head: Vec<u8>, most: usize) {
    let zeros = vec![0u8; 64 << 10];
    let (zeros, head) = (Arc::new(zeros), Arc::new(head));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..streams {
        let (connection, zeros, head) = (connection.clone(), zeros.clone(), head.clone());
        tasks.spawn(async move {
            let Ok((mut send, recv)) = connection.open_bi().await else {
                return;
            };
            let mut left = most;
            let _ = send.write_all(&head).await;
            while left > 0 {
                let part = left.min(zeros.len());
                if send.write_all(&zeros[..part]).await.is_err() {
                    return;
                }
                left -= part;
            }
            // The stream stays open, half sent.
            std::future::pending::<()>().await;
            drop((send, recv));
        });
    }
    tokio::time::sleep(ATTACK).await;
}

async fn strangers_flood(cluster: &Processes, pid: u32, address: &str) -> u64 {
    let watch = Watch::begin(pid);
    let from = stranger(cluster).await;
    let mut attacks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (from, address) = (from.clone(), address.parse().unwrap());
        attacks.spawn(async move {
            let connection = from.connect(address).unwrap().await.unwrap();
            // The peer waits for the other half of this greeting as long as the attack lasts.
            let mut greeting = connection.open_bi().await.unwrap();
            greeting.0.write_all(b"CNVK").await.unwrap();
            flood(&connection, 32, vec![], usize::MAX).await;
            drop(greeting);
        });
    }
    attacks.join_all().await;
    watch.grown()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_shows_no_certificate_makes_nobody_hold_much() {
    let cluster = Processes::start("strangers", 1, "700MiB");
    let pid = cluster.coordinator.as_ref().unwrap().pid();
    let coordinator = strangers_flood(&cluster, pid, &cluster.address).await;
    let worker = strangers_flood(&cluster, cluster.worker(0).pid(), cluster.listens(0)).await;
    println!(
        "grown: coordinator {} MiB, worker {} MiB",
        mib(coordinator),
        mib(worker)
    );
    assert!(coordinator <= STRANGERS && worker <= STRANGERS);
    // Honest members are served.
    assert_eq!(
        cluster
            .connect()
            .await
            .status()
            .await
            .unwrap()
            .members
            .len(),
        1
    );
}

/// The attack begins joins and never finishes them, which is all that a newcomer can do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_that_are_half_sent_cost_next_to_nothing() {
    let cluster = Processes::start("joins", 0, "700MiB");
    let watch = Watch::begin(cluster.coordinator.as_ref().unwrap().pid());
    let from = stranger(&cluster).await;
    let mut attacks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (from, address) = (from.clone(), cluster.address.parse().unwrap());
        attacks.spawn(async move {
            let connection = from.connect(address).unwrap().await.unwrap();
            let deadline = tokio::time::Instant::now() + BOUND;
            hello::open(&connection, hello::PROTOCOL_VERSION, deadline)
                .await
                .unwrap();
            // The frame is sent except for its last byte. Streams beyond those that are served wait with the bytes that
            // they hold.
            let mut head = vec![StreamKind::Join as u8];
            head.extend((16u32 << 10).to_be_bytes());
            flood(&connection, 64, head, (16 << 10) - 1).await;
            flood(&connection, 64, vec![StreamKind::Join as u8], usize::MAX).await;
        });
    }
    attacks.join_all().await;
    let grown = watch.grown();
    println!("grown: {} MiB", mib(grown));
    assert!(grown <= STRANGERS, "{} MiB", mib(grown));
}

/// The attack sends frames that declare 60 MiB and never end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_that_are_half_sent_stay_within_the_budget_of_their_token() {
    let cluster = Processes::start("plans", 0, "700MiB");
    let watch = Watch::begin(cluster.coordinator.as_ref().unwrap().pid());
    let world = world();
    let mut attacks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let from = endpoint(&world, &member(&cluster).await).await;
        let (world, address) = (world.clone(), cluster.address.parse().unwrap());
        attacks.spawn(async move {
            let dialled = dial(&from, address, Role::Coordinator, BOUND)
                .await
                .unwrap();
            let watched = Detector::dialling(world).watch(dialled.connection);
            let mut head = vec![StreamKind::Coordinator as u8];
            head.extend((60u32 << 20).to_be_bytes());
            flood(watched.connection(), 7, head, (60 << 20) - 1).await;
        });
    }
    attacks.join_all().await;
    let grown = watch.grown();
    println!("grown: {} MiB", mib(grown));
    // The bound is a token's default budget at the coordinator, and a tenth more.
    let budget = 128u64 << 20;
    assert!(grown <= budget + budget / 10, "{} MiB", mib(grown));
}

/// The attack sends definitions of 120 KiB each, as many as a session may have, in several sessions of one token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_stay_within_the_budget_of_their_token() {
    struct Definitions(std::sync::Mutex<u32>);
    impl Batches for Definitions {
        fn take(&self, out: &mut Vec<u8>) {
            let mut next = self.0.lock().unwrap();
            let mut batch = Batch::default();
            let text = "x".repeat(120 << 10);
            for _ in 0..8 {
                if *next == MOST_PREPARED {
                    break;
                }
                let definition = Command::Define(Definition {
                    index: *next,
                    op: "Tanh".into(),
                    attrs: Attrs::default().with("text", Attr::Str(text.as_str().into())),
                    operands: vec![Some(DType::F32)],
                    outputs: 1,
                    report: false,
                    origin: 0,
                });
                let mut one = Vec::new();
                definition.encode(&mut one, 0).unwrap();
                batch.body().extend(one);
                *next += 1;
            }
            batch.take(out);
        }
    }
    let cluster = Processes::start("definitions", 1, "200MiB");
    let watch = Watch::begin(cluster.worker(0).pid());
    let world = world();
    let mut links = vec![];
    for _ in 0..4 {
        let identity = member(&cluster).await;
        let from = endpoint(&world, &identity).await;
        let address = cluster.listens(0).parse().unwrap();
        let dialled = dial(&from, address, Role::Worker, BOUND).await.unwrap();
        let hub = Hub::new(Peer {
            role: Role::Client,
            name: identity.peer().name.to_string(),
            incarnation: Incarnation(u64::from_le_bytes(world.rng.bytes())),
        });
        let watched = Detector::dialling(world.clone()).watch(dialled.connection);
        let link = remote::dial_lane(&world, &hub, watched, "w0".into())
            .await
            .unwrap();
        links.push((hub, link, from, Arc::new(Definitions(0.into()))));
    }
    let end = Instant::now() + 2 * ATTACK;
    while Instant::now() < end {
        for (_, link, _, definitions) in &links {
            let source: Arc<dyn Batches> = definitions.clone();
            link.ready(&source);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let grown = watch.grown();
    let told: u32 = links.iter().map(|l| *l.3.0.lock().unwrap()).sum();
    println!("grown: {} MiB by {told} definitions", mib(grown));
    let budget = 200u64 << 20;
    assert!(grown <= budget + budget / 10, "{} MiB", mib(grown));
    // The token is at its limit, yet another client is served.
    cluster.connect().await.status().await.unwrap();
}

/// The attack sends joins with names of 12 KiB and a wrong secret, as fast as they are answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_joins_write_next_to_nothing_and_end_their_connection() {
    let mut cluster = Processes::prepare("refused", "700MiB");
    cluster.log_to_files("info");
    cluster.start_coordinator();
    let world = world();
    let from = stranger(&cluster).await;
    let token = JoinToken::from_file(world.store.as_ref(), cluster.client_token().as_ref());
    let token = token.unwrap();
    let wrong: TokenSecret = JoinToken::from_file(
        world.store.as_ref(),
        cluster.path("tokens/worker/token").as_ref(),
    )
    .unwrap()
    .secret;
    let log = cluster.scratch.path("coordinator.log");
    let before = std::fs::metadata(&log).unwrap().len();
    let end = Instant::now() + Duration::from_secs(2);
    let mut asked = 0;
    let mut longest = Duration::ZERO;
    while Instant::now() < end {
        let address = cluster.address.parse().unwrap();
        let begun = Instant::now();
        let dialled = dial(&from, address, Role::Coordinator, BOUND)
            .await
            .unwrap();
        let client = connect_joining(&world, &dialled.connection).await.unwrap();
        let csr = OwnKey::generate(world.rng.as_ref()).unwrap().csr().unwrap();
        while dialled.connection.close_reason().is_none() && Instant::now() < end {
            let request = JoinRequest {
                token_id: token.id.clone(),
                secret: wrong.clone(),
                role: Role::Worker,
                name: "n".repeat(12 << 10),
                csr: csr.clone(),
                former: vec![],
                version: convoke_common::VERSION.to_owned(),
            };
            asked += 1;
            if let Ok(Ok(_)) = client.join(call(), request).await {
                panic!("a wrong secret lets nobody in");
            }
        }
        longest = longest.max(begun.elapsed());
    }
    let written = std::fs::metadata(&log).unwrap().len() - before;
    println!("{asked} joins wrote {written} bytes, the longest connection {longest:?}");
    assert!(written <= 64 << 10, "{written} bytes");
    assert!(longest < Duration::from_millis(1900), "{longest:?}");
}

/// The attack makes as many connections as one token's members can, to the coordinator and to a worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_one_token_leave_places_to_others() {
    let cluster = Processes::start("places", 1, "700MiB");
    let (world, state) = (world(), cluster.path("coordinator"));
    let token = token_of(&cluster, &["--connections", "8", "--memory", "64MiB"]);
    let token: JoinToken = token.parse().unwrap();
    let mut standing = vec![];
    for (role, address) in [
        (Role::Coordinator, cluster.address.clone()),
        (Role::Worker, cluster.listens(0).to_owned()),
    ] {
        let (mut open, mut refused) = (0, 0);
        for _ in 0..3 {
            let from = endpoint(&world, &joined(&cluster, token.clone()).await).await;
            for _ in 0..4 {
                // The refusal may come before the greeting is through, or after.
                let why = match dial(&from, address.parse().unwrap(), role, BOUND).await {
                    Err(error) => Some(error.to_string()),
                    Ok(dialled) => {
                        let watched = Detector::dialling(world.clone()).watch(dialled.connection);
                        let ended = watched.connection().closed();
                        let ended = tokio::time::timeout(Duration::from_millis(500), ended).await;
                        standing.push((from.clone(), watched.clone()));
                        ended.ok().map(|why| why.to_string())
                    }
                };
                match why {
                    Some(why) => {
                        let who = format!("the holders of the token {} have the 8", token.id);
                        assert!(why.contains(&who), "{why}");
                        refused += 1;
                    }
                    None => open += 1,
                }
            }
        }
        assert_eq!((open, refused), (8, 4), "{role}");
    }
    // Other clients are served, and `status` tells them which token holds the connections.
    let others = cluster.connect().await;
    let status = others.status().await.unwrap();
    let worker = status.members[0].status.as_ref().unwrap();
    for open in [&status.connections, &worker.connections] {
        let of = open.iter().find(|o| o.token == token.id).unwrap();
        assert_eq!((of.connections, of.limit), (8, 8));
    }
    let listed = common::run(["token", "list", "--state-dir", &state])
        .expect(0)
        .stdout;
    assert!(
        listed.contains("memory 64.0 MiB, 8 connections"),
        "{listed}"
    );
}

/// The members of one token, one after the other, dial the coordinator as often as they can, and keep the connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_connections_loses_nobody() {
    let cluster = Processes::start("crowd", 1, "700MiB");
    let pid = cluster.coordinator.as_ref().unwrap().pid();
    let (world, address) = (world(), cluster.address.parse().unwrap());
    let honest = cluster.connect().await;
    let device = honest.devices().await.unwrap().remove(0);
    let watch = Watch::begin(pid);
    let (end, mut standing, mut refused) = (Instant::now() + 2 * ATTACK, vec![], 0);
    let mut served = 0;
    while Instant::now() < end {
        let from = endpoint(&world, &member(&cluster).await).await;
        let dialled = (0..20).map(|_| dial(&from, address, Role::Coordinator, BOUND));
        for dialled in futures::future::join_all(dialled).await {
            match dialled {
                Ok(dialled) => {
                    let watched = Detector::dialling(world.clone()).watch(dialled.connection);
                    standing.push((from.clone(), watched));
                }
                Err(_) => refused += 1,
            }
        }
        // Members that were connected before go on working with the worker and the coordinator.
        let x = HostTensor::from_slice(&[1], &[2f32]).unwrap();
        let x = device.put(x).unwrap();
        let y: HostTensor = x.fetch().await.unwrap();
        assert_eq!(y, HostTensor::from_slice(&[1], &[2f32]).unwrap());
        let status = honest.status().await.unwrap();
        assert_eq!(status.members[0].state, MemberState::Alive);
        served += 1;
    }
    let grown = watch.grown();
    let open = standing
        .iter()
        .filter(|(_, w)| w.connection().close_reason().is_none())
        .count();
    println!(
        "{} connections, {refused} refused, {open} open, {served} rounds of others, {} MiB",
        standing.len(),
        mib(grown)
    );
    assert!(
        open <= 512 && grown <= REQUESTS,
        "{open} open, {} MiB",
        mib(grown)
    );
}

/// Bytes on many connections that no reader wants yet: on streams that wait to be served, and in tensors that nobody
/// announces.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_connections_send_ahead_stays_within_the_budget_of_their_token() {
    let cluster = Processes::start("ahead", 1, "700MiB");
    let budget = 64u64 << 20;
    let token: JoinToken = token_of(&cluster, &["--memory", "64MiB"]).parse().unwrap();
    let watch = Watch::begin(cluster.worker(0).pid());
    let (world, address) = (world(), cluster.listens(0).parse().unwrap());
    let tensor = HostTensor::from_slice(&[4 << 20], &vec![0f32; 4 << 20]).unwrap();
    let (mut links, mut refused, mut attacks) = (vec![], 0, tokio::task::JoinSet::new());
    let mut why = None;
    for _ in 0..24 {
        let identity = joined(&cluster, token.clone()).await;
        let from = endpoint(&world, &identity).await;
        for carries in [true, false, false, false] {
            let Ok(dialled) = dial(&from, address, Role::Worker, BOUND).await else {
                refused += 1;
                continue;
            };
            let watched = Detector::dialling(world.clone()).watch(dialled.connection);
            let connection = watched.connection().clone();
            if carries {
                let incarnation = Incarnation(u64::from_le_bytes(world.rng.bytes()));
                let hub = Hub::new(Peer {
                    role: Role::Client,
                    name: identity.peer().name.to_string(),
                    incarnation,
                });
                match remote::dial_lane(&world, &hub, watched, "w0".into()).await {
                    Ok(link) => links.push((hub, link)),
                    Err(error) => why = Some(error),
                }
                let lease = LeaseId::of_session(incarnation);
                attacks.spawn(unannounced(connection, lease, tensor.clone()));
            } else {
                attacks.spawn(async move {
                    // The worker waits for streams that have not yet sent the byte that states their kind.
                    flood(&connection, 1024, vec![], usize::MAX).await;
                    drop(watched);
                });
            }
        }
    }
    attacks.join_all().await;
    let grown = watch.grown();
    println!(
        "grown: {} MiB by {} links, {refused} connections refused",
        mib(grown),
        links.len()
    );
    assert!(grown <= budget + budget / 10, "{} MiB", mib(grown));
    let why = why.expect("the budget does not hold for everybody's lane");
    let who = format!("token {} (", token.id);
    assert!(
        why.code == Code::OutOfMemory && why.message.contains(&who),
        "{why}"
    );
    // Others are served.
    let others = cluster.connect().await;
    let device = others.devices().await.unwrap().remove(0);
    let x: HostTensor = device.put(tensor.clone()).unwrap().fetch().await.unwrap();
    assert_eq!(x, tensor);
}

/// Sends a tensor on each of as many streams as there may be, to a session that was told of none.
async fn unannounced(connection: Connection, lease: LeaseId, tensor: HostTensor) {
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..256 {
        let (connection, tensor) = (connection.clone(), tensor.clone());
        tasks.spawn(async move {
            let Ok(mut stream) = connection.open_uni().await else {
                return;
            };
            let mut header = vec![];
            TensorHeader::of(StepKey { lease, n }, 0, &tensor).encode(&mut header);
            if stream.write_all(&header).await.is_ok() {
                let _ = stream.write_all(tensor.bytes()).await;
            }
            std::future::pending::<()>().await;
        });
    }
    tokio::time::sleep(ATTACK).await;
}

/// Puts and sessions, as many as are taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_puts_stays_within_the_budget_of_its_token() {
    let cluster = Processes::start("puts", 1, "700MiB");
    let budget = 64u64 << 20;
    let text = token_of(&cluster, &["--memory", "64MiB", "--sessions", "1"]);
    let token: JoinToken = text.parse().unwrap();
    let watch = Watch::begin(cluster.worker(0).pid());
    let connect = || convoke::connect(&cluster.address, text.parse::<Token>().unwrap());
    let (first, second) = (connect().await.unwrap(), connect().await.unwrap());
    let device = first.devices().await.unwrap().remove(0);
    let mut held = vec![];
    let refused = loop {
        let mut bytes = vec![0u8; 4 << 20];
        bytes[0] = held.len() as u8;
        let x = HostTensor::from_slice(&[bytes.len()], &bytes).unwrap();
        let x = device.put(x).unwrap();
        match x.i(0).unwrap().fetch::<u8>().await {
            Ok(_) => held.push(x),
            Err(error) => break error,
        }
    };
    let grown = watch.grown();
    println!(
        "grown: {} MiB by {} puts: {refused}",
        mib(grown),
        held.len()
    );
    assert!(grown <= budget + budget / 10, "{} MiB", mib(grown));
    let who = format!("token {} (", token.id);
    assert!(refused.message.contains(&who), "{refused}");
    assert!(held.len() >= 8, "{}", held.len());
    // The token has one session, and this would be another.
    let device = second.devices().await.unwrap().remove(0);
    let error = device.put(1f32).unwrap().fetch::<f32>().await.unwrap_err();
    let who = format!("the holders of token {} have 1 sessions", token.id);
    assert!(
        error.code == Code::Busy && error.message.contains(&who),
        "{error}"
    );
}
