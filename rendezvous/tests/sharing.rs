//! Tensors of eager sessions between processes of one host, over real QUIC connections on loopback: they pass through
//! shared memory, bit for bit, and whatever ends when leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use convoke_common::Tensor;
use convoke_common::detection::Detector;
use convoke_common::error::{Error, Result};
use convoke_common::identity::{ClusterCa, RevocationList, Role, TlsConfigs, dial, greet};
use convoke_common::ids::{Incarnation, LeaseId, StepKey};
use convoke_common::memory::{Account, Ledger, Pool};
use convoke_common::rpc::StreamKind;
use convoke_common::world::{Endpoint, EndpointOptions, NoCompute, World};
use convoke_rendezvous::eager::Eager;
use convoke_rendezvous::frame::TensorHeader;
use convoke_rendezvous::hub::Refused;
use convoke_rendezvous::{Hub, Link, Outgoing, Peer, remote};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

const WAIT: Duration = Duration::from_secs(5);
const MIB: usize = 1 << 20;
const ME: Incarnation = Incarnation(7);

/// Takes what arrives of one session.
struct Inbox {
    pool: Pool,
    ledger: Ledger,
    ended: mpsc::UnboundedSender<(u64, Result<Tensor>)>,
    /// Transfers that are not announced, and who waits for that.
    unannounced: Mutex<HashMap<u64, Option<oneshot::Sender<()>>>>,
}

impl Inbox {
    fn new() -> (Arc<Inbox>, mpsc::UnboundedReceiver<(u64, Result<Tensor>)>) {
        let (ended, arrived) = mpsc::unbounded_channel();
        let ledger = Ledger::new("test", 1 << 30);
        let pool = Pool::new(&ledger, Account::Leases, 0).unwrap();
        let unannounced = Mutex::default();
        let inbox = Inbox {
            pool,
            ledger,
            ended,
            unannounced,
        };
        (Arc::new(inbox), arrived)
    }

    fn announce(&self, transfer: u64) {
        let waits = self.unannounced.lock().unwrap().remove(&transfer);
        if let Some(Some(go)) = waits {
            go.send(()).unwrap();
        }
    }
}

impl Eager for Inbox {
    fn batch(&self, _: &Peer, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn claim(&self, _: &Peer, h: &TensorHeader) -> Result<(), Refused> {
        // As one that knows its transfers.
        match h.key.lease == LeaseId::of_session(ME) {
            true => Ok(()),
            false => Err(Refused::UnknownLease),
        }
    }
    fn buffer(&self, h: &TensorHeader) -> Result<Tensor> {
        self.pool.tensor(h.dtype, &h.shape)
    }
    fn foreseen(&self, _: &Peer, h: &TensorHeader) -> Option<oneshot::Receiver<()>> {
        let mut unannounced = self.unannounced.lock().unwrap();
        let waits = unannounced.get_mut(&h.key.n)?;
        let (go, held) = oneshot::channel();
        *waits = Some(go);
        Some(held)
    }
    fn arrived(&self, _: &Peer, key: StepKey, tensor: Tensor) {
        self.ended.send((key.n, Ok(tensor))).unwrap();
    }
    fn failed(&self, _: &Peer, key: StepKey, error: Error) {
        self.ended.send((key.n, Err(error))).unwrap();
    }
    fn lost(&self, _: &Peer, _: &Error) {}
}

/// One process.
struct End {
    world: World,
    hub: Arc<Hub>,
    endpoint: Endpoint,
    inbox: Arc<Inbox>,
    arrived: mpsc::UnboundedReceiver<(u64, Result<Tensor>)>,
    /// Where it listens, for those that it shares memory with.
    listening: Option<(tokio::task::JoinHandle<()>, PathBuf)>,
}

impl End {
    async fn new(ca: &ClusterCa, role: Role, name: &str) -> End {
        let world = World::real(Arc::new(NoCompute));
        let name_of = name.parse().unwrap();
        let identity = ca.issue_own(&world, role, name_of).unwrap();
        let revoked = Arc::new(RevocationList::default());
        let tls = TlsConfigs::cluster(&identity, revoked, world.wall.clone()).unwrap();
        let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
        let options = EndpointOptions::default();
        let endpoint = world.net.endpoint(any, &tls, &options).await.unwrap();
        let hub = Hub::new(Peer {
            role,
            name: name.into(),
            incarnation: ME,
        });
        let (inbox, arrived) = Inbox::new();
        let eager: Arc<dyn Eager> = inbox.clone();
        hub.serve_eager(Arc::downgrade(&eager));
        let mut end = End {
            world,
            hub,
            endpoint,
            inbox,
            arrived,
            listening: None,
        };
        if role == Role::Worker {
            end.listen();
        }
        end
    }

    fn listen(&mut self) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("convoke-sharing-{}-{n}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let memory = self.world.shared.as_ref().unwrap();
        let listening = tokio::spawn(memory.listen(&folder).unwrap());
        self.listening = Some((listening, folder));
    }

    fn link_to(&self, other: &End) -> Arc<Link> {
        self.hub.link(&other.hub.me).unwrap()
    }

    /// What arrives next.
    async fn next(&mut self) -> (u64, Result<Tensor>) {
        within("a tensor", self.arrived.recv()).await.unwrap()
    }

    /// Bytes of tensors that are here.
    fn live(&self) -> u64 {
        self.inbox.pool.live_bytes() + self.inbox.ledger.total_and_peak().0
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some((listening, folder)) = self.listening.take() {
            listening.abort();
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

async fn within<T>(what: &str, f: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(20), f).await {
        Ok(t) => t,
        Err(_) => panic!("{what} did not end"),
    }
}

/// Links the first to the second, a worker, and waits until each knows whether the other reads its memory.
async fn link(a: &End, b: &End) {
    let accept = async {
        let greeted = greet(b.endpoint.accept().await.unwrap(), WAIT)
            .await
            .unwrap();
        let watched = Detector::dialling(b.world.clone()).watch(greeted.connection);
        // The peer announces its tripwire at the same time; without one detection is slower.
        let (send, recv) = loop {
            let (send, mut recv) = watched.connection().accept_bi().await.unwrap();
            let mut kind = [0];
            recv.read_exact(&mut kind).await.unwrap();
            if StreamKind::from_byte(kind[0]) == Some(StreamKind::Lane) {
                break (send, recv);
            }
        };
        let Peer { role, name, .. } = &a.hub.me;
        let link = remote::accept_lane(&b.world, &b.hub, watched, *role, name, send, recv);
        link.await.unwrap()
    };
    let open = async {
        let to = b.endpoint.local_addr();
        let dialled = dial(&a.endpoint, to, Role::Worker, WAIT).await.unwrap();
        let watched = Detector::dialling(a.world.clone()).watch(dialled.connection);
        let name = b.hub.me.name.clone();
        let link = remote::dial_lane(&a.world, &a.hub, watched, name);
        link.await.unwrap()
    };
    let (ours, theirs) = tokio::join!(open, accept);
    for link in [ours, theirs] {
        assert!(within("a meeting", link.shares()).await);
    }
}

/// One that dials and a worker, linked.
async fn pair(dialling: Role) -> (End, End) {
    let world = World::real(Arc::new(NoCompute));
    let ca = ClusterCa::create(&world).unwrap();
    let a = End::new(&ca, dialling, "a").await;
    let b = End::new(&ca, Role::Worker, "b").await;
    link(&a, &b).await;
    (a, b)
}

/// Bytes of which no two chunks have the same.
fn bytes(len: usize, seed: usize) -> Tensor {
    // A prime: no chunk begins like another.
    let pattern: Vec<u8> = (0..4093)
        .map(|i: usize| ((i + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
        .collect();
    let mut bytes = pattern.repeat(len / pattern.len() + 1);
    bytes.truncate(len);
    Tensor::from_slice(&[len], &bytes).unwrap()
}

/// What becomes of what was sent.
#[derive(Default)]
struct Sent(Arc<AtomicUsize>);

impl Sent {
    fn times(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    async fn once(&self) {
        within("sending", async {
            while self.times() == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(self.times(), 1);
    }
}

fn send(link: &Link, n: u64, tensor: Tensor, cancel: &CancellationToken) -> Sent {
    let (sent, lease) = (Sent::default(), LeaseId::of_session(ME));
    let count = sent.0.clone();
    link.send_tensor(Outgoing {
        key: StepKey { lease, n },
        slot: 0,
        tensor,
        priority: 0,
        cancel: cancel.clone(),
        sent: Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }),
    });
    sent
}

/// Sends one, which arrives as it was, and hardly anything over the wire.
async fn check_crosses(from: &End, to: &mut End, n: u64, tensor: Tensor) {
    let link = from.link_to(to);
    let before = link.status().sent;
    let sent = send(&link, n, tensor.clone(), &CancellationToken::new());
    let (number, arrived) = to.next().await;
    assert!((number, arrived.unwrap()) == (n, tensor.clone()));
    sent.once().await;
    let wire = (link.status().sent - before) as usize;
    assert!(wire < tensor.byte_len() / 8, "{wire} bytes took the wire");
    assert_eq!(to.live(), 0);
}

async fn check_pair(dialling: Role) {
    let (mut a, mut b) = pair(dialling).await;
    for (n, len) in [5 * MIB + 13, 256 << 10, MIB, 20 * MIB + 1]
        .into_iter()
        .enumerate()
    {
        check_crosses(&a, &mut b, n as u64, bytes(len, n)).await;
        check_crosses(&b, &mut a, n as u64, bytes(len, n + 100)).await;
    }
    for (of, other) in [(&a, &b), (&b, &a)] {
        let status = of.link_to(other).status();
        assert_eq!((&*status.path, status.queued_bytes), ("shm", 0));
        assert!(of.hub.refused().is_empty());
    }
}

#[tokio::test]
async fn between_workers_tensors_of_sessions_pass_through_memory() {
    check_pair(Role::Worker).await;
}

#[tokio::test]
async fn between_a_client_and_a_worker_they_do_both_ways() {
    check_pair(Role::Client).await;
}

/// Waits until a tensor is in the middle of arriving.
async fn middle(to: &End, sent: &Sent) {
    let before = to.live();
    within("the beginning", async {
        while to.live() == before {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(sent.times(), 0, "all of it is on its way");
}

#[tokio::test]
async fn one_that_is_cancelled_in_the_middle_is_let_go_of() {
    let (a, mut b) = pair(Role::Worker).await;
    let link = a.link_to(&b);
    for n in 0..3 {
        let cancel = CancellationToken::new();
        let sent = send(&link, n, bytes(64 * MIB, 0), &cancel);
        middle(&b, &sent).await;
        // Another's turn has not come yet.
        let waiting = send(&link, 10 + n, bytes(MIB, 0), &cancel);
        cancel.cancel();
        let (number, failed) = b.next().await;
        assert_eq!((number, failed.is_err()), (n, true));
        sent.once().await;
        waiting.once().await;
        assert_eq!(b.live(), 0);
        // All slots are free again.
        check_crosses(&a, &mut b, 20 + n, bytes(20 * MIB, 1)).await;
    }
    assert!(b.hub.refused().is_empty());
}

#[tokio::test]
async fn a_link_that_ends_in_the_middle_lets_go_of_all() {
    for ends in [true, false] {
        let (a, mut b) = pair(Role::Client).await;
        let (link, cancel) = (a.link_to(&b), CancellationToken::new());
        let sent = send(&link, 0, bytes(64 * MIB, 0), &cancel);
        let waiting = send(&link, 1, bytes(64 * MIB, 0), &cancel);
        middle(&b, &sent).await;
        match ends {
            true => link.close("cut"),
            false => b.link_to(&a).close("cut"),
        }
        let (number, failed) = b.next().await;
        assert_eq!((number, failed.is_err()), (0, true));
        sent.once().await;
        waiting.once().await;
        assert_eq!(b.live(), 0);
    }
}

#[tokio::test]
async fn a_link_that_is_finished_delivers_what_crosses() {
    let (a, mut b) = pair(Role::Worker).await;
    let (link, tensor) = (a.link_to(&b), bytes(20 * MIB, 0));
    let sent = send(&link, 0, tensor.clone(), &CancellationToken::new());
    within("the end of a link", link.finish()).await;
    let (_, arrived) = b.next().await;
    assert!(arrived.unwrap() == tensor);
    sent.once().await;
}

#[tokio::test]
async fn what_is_not_announced_holds_nothing_up() {
    let (a, mut b) = pair(Role::Worker).await;
    let link = a.link_to(&b);
    let early = 0..12u64;
    let none = early.clone().map(|n| (n, None));
    b.inbox.unannounced.lock().unwrap().extend(none);
    let cancel = CancellationToken::new();
    let sent: Vec<Sent> = early
        .clone()
        .map(|n| match n {
            11 => send(&link, n, bytes(MIB, n as usize), &cancel),
            _ => send(
                &link,
                n,
                bytes(3 * MIB, n as usize),
                &CancellationToken::new(),
            ),
        })
        .collect();
    // It comes after them, and more than once through all slots.
    check_crosses(&a, &mut b, 50, bytes(20 * MIB, 0)).await;
    assert!(sent.iter().all(|sent| sent.times() == 0));
    cancel.cancel();
    early.clone().for_each(|n| b.inbox.announce(n));
    for n in early.take(11) {
        let (number, arrived) = b.next().await;
        assert!((number, arrived.unwrap()) == (n, bytes(3 * MIB, n as usize)));
    }
    for sent in sent {
        sent.once().await;
    }
    assert_eq!(b.live(), 0);
    assert!(b.hub.refused().is_empty());
}
