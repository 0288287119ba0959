//! Tensors of eager sessions between processes of one host, over real QUIC connections on loopback: they pass through
//! shared memory, bit for bit, and nothing is left behind whichever part ends first.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use convoke_common::detection::Detector;
use convoke_common::error::{Error, Result};
use convoke_common::identity::{ClusterCa, RevocationList, Role, TlsConfigs, dial, greet};
use convoke_common::ids::{Incarnation, LeaseId, StepKey};
use convoke_common::memory::{Ledger, Pool, Purpose};
use convoke_common::rpc::StreamKind;
use convoke_common::world::{Endpoint, EndpointOptions, NoCompute, World};
use convoke_graph::Tensor;
use convoke_rendezvous::FrameRefusal;
use convoke_rendezvous::eager::EagerService;
use convoke_rendezvous::frame::TensorHeader;
use convoke_rendezvous::link::LinkId;
use convoke_rendezvous::{Hub, Link, Outgoing, Peer, remote};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

const WAIT: Duration = Duration::from_secs(5);
const MIB: usize = 1 << 20;
const ME: Incarnation = Incarnation(7);

/// Takes the tensors that arrive for one session.
struct Inbox {
    pool: Pool,
    ledger: Ledger,
    ended: mpsc::UnboundedSender<(u64, Result<Tensor>)>,
    /// Transfers that are not announced yet, and the senders that wait for the announcement.
    unannounced: Mutex<HashMap<u64, Option<oneshot::Sender<()>>>>,
}

impl Inbox {
    fn new() -> (Arc<Inbox>, mpsc::UnboundedReceiver<(u64, Result<Tensor>)>) {
        let (ended, arrived) = mpsc::unbounded_channel();
        let ledger = Ledger::new("test", 1 << 30);
        let pool = Pool::new(&ledger, Purpose::Leases, 0).unwrap();
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
            // The receiver is gone if its link has ended.
            let _ = go.send(());
        }
    }
}

impl EagerService for Inbox {
    fn batch(&self, _: &Peer, _: Option<LinkId>, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn claim(&self, _: &Peer, h: &TensorHeader) -> Result<(), FrameRefusal> {
        // Only transfers of this session are accepted.
        match h.key.lease == LeaseId::of_session(ME) {
            true => Ok(()),
            false => Err(FrameRefusal::UnknownLease),
        }
    }
    fn buffer(&self, h: &TensorHeader) -> Result<Tensor> {
        self.pool.tensor(h.dtype, &h.shape)
    }
    fn adopt(&self, _: &TensorHeader, tensor: Tensor) -> Result<Tensor> {
        self.pool.adopt(tensor)
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

/// One process of the test.
struct End {
    world: World,
    hub: Arc<Hub>,
    endpoint: Endpoint,
    inbox: Arc<Inbox>,
    arrived: mpsc::UnboundedReceiver<(u64, Result<Tensor>)>,
    /// The task that listens for processes that share memory, and the folder of its socket.
    listening: Option<(tokio::task::JoinHandle<()>, PathBuf)>,
}

impl End {
    /// Makes a process; a worker can be met by others of its host, unless it is `apart` from them.
    async fn new(ca: &ClusterCa, role: Role, name: &str, apart: bool) -> End {
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
        let eager: Arc<dyn EagerService> = inbox.clone();
        hub.serve_eager(Arc::downgrade(&eager));
        let mut end = End {
            world,
            hub,
            endpoint,
            inbox,
            arrived,
            listening: None,
        };
        if role == Role::Worker && !apart {
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

    /// Waits for the next tensor that arrives.
    async fn next(&mut self) -> (u64, Result<Tensor>) {
        within("a tensor", self.arrived.recv()).await.unwrap()
    }

    /// Bytes of tensors that the process holds.
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

/// Links the first process to the second, a worker; returns whether each then knows that the other reads its memory.
async fn link(a: &End, b: &End) -> [bool; 2] {
    let accept = async {
        let greeted = greet(b.endpoint.accept().await.unwrap(), WAIT)
            .await
            .unwrap();
        let watched = Detector::dialling(b.world.clone()).watch(greeted.connection);
        // The peer announces its tripwire on another stream, which this end drops; failure detection is then slower.
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
    let both = async { tokio::join!(ours.shares(), theirs.shares()) };
    within("a meeting", both).await.into()
}

/// A dialling process and a worker, linked, on one host or apart.
async fn ends(dialling: Role, apart: bool) -> (End, End) {
    let world = World::real(Arc::new(NoCompute));
    let ca = ClusterCa::create(&world).unwrap();
    let a = End::new(&ca, dialling, "a", apart).await;
    let b = End::new(&ca, Role::Worker, "b", apart).await;
    assert_eq!(link(&a, &b).await, [!apart; 2]);
    (a, b)
}

async fn pair(dialling: Role) -> (End, End) {
    ends(dialling, false).await
}

/// Bytes in which no two pieces are equal.
fn bytes(len: usize, seed: usize) -> Tensor {
    // The length is a prime, so that no piece begins like another.
    let pattern: Vec<u8> = (0..4093)
        .map(|i: usize| ((i + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
        .collect();
    let mut bytes = pattern.repeat(len / pattern.len() + 1);
    bytes.truncate(len);
    Tensor::from_slice(&[len], &bytes).unwrap()
}

/// Counts what became of a tensor that was sent.
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

/// Sends a tensor, which must arrive unchanged, with hardly any bytes over the wire.
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

#[tokio::test]
async fn those_that_cannot_meet_take_the_wire() {
    for dialling in [Role::Worker, Role::Client] {
        let (mut a, mut b) = ends(dialling, true).await;
        let tensor = bytes(5 * MIB + 13, 0);
        for (from, to) in [(0, 1), (1, 0)] {
            let ends = [&mut a, &mut b];
            let link = ends[from].link_to(ends[to]);
            let before = link.status().sent;
            let sent = send(&link, 0, tensor.clone(), &CancellationToken::new());
            let (_, arrived) = ends.into_iter().nth(to).unwrap().next().await;
            assert!(arrived.unwrap() == tensor);
            sent.once().await;
            let status = link.status();
            assert_eq!(status.path, "quic");
            assert!(status.sent - before > tensor.byte_len() as u64);
        }
    }
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
        // The turn of the other tensor has not come yet.
        let waiting = send(&link, 10 + n, bytes(MIB, 0), &cancel);
        cancel.cancel();
        let (number, failed) = b.next().await;
        assert_eq!((number, failed.is_err()), (n, true));
        sent.once().await;
        waiting.once().await;
        assert_eq!(b.live(), 0);
        // All buffers are free again.
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
    // This tensor passes the held ones, and goes through all buffers more than once.
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

#[tokio::test]
async fn one_that_is_refused_is_let_go_of_at_once() {
    let (a, mut b) = pair(Role::Client).await;
    let (link, sent) = (a.link_to(&b), Sent::default());
    let (count, lease) = (sent.0.clone(), LeaseId::of_session(Incarnation(8)));
    let len = 64 * MIB;
    link.send_tensor(Outgoing {
        key: StepKey { lease, n: 0 },
        slot: 0,
        tensor: bytes(len, 0),
        priority: 0,
        cancel: CancellationToken::new(),
        sent: Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }),
    });
    sent.once().await;
    assert_eq!(b.hub.refused()["unknown_lease"], 1);
    check_crosses(&a, &mut b, 1, bytes(20 * MIB, 0)).await;
}

/// Sends many tensors at once, and cancels some; those that arrive are unchanged, and nothing is left behind.
async fn check_many(from: &End, to: &mut End) {
    let link = from.link_to(to);
    let tensor = |n: u64| {
        bytes(
            [300 << 10, MIB + 7, 3 * MIB, 9 * MIB][n as usize % 4],
            n as usize,
        )
    };
    let mut due = HashMap::new();
    let mut all = vec![];
    for n in 0..60 {
        let cancel = CancellationToken::new();
        all.push(send(&link, n, tensor(n), &cancel));
        if n % 3 > 0 {
            due.insert(n, tensor(n));
            continue;
        }
        tokio::spawn(async move {
            for _ in 0..n * 7 % 50 {
                tokio::task::yield_now().await;
            }
            cancel.cancel();
        });
    }
    while !due.is_empty() {
        let (n, arrived) = to.next().await;
        match arrived {
            Ok(arrived) => {
                assert!(arrived == tensor(n), "{n}");
                due.remove(&n);
            }
            Err(e) => assert!(!due.contains_key(&n), "{n}: {e}"),
        }
    }
    for sent in all {
        sent.once().await;
    }
    within("a cancelled one", async {
        while to.live() > 0 {
            // A tensor may have arrived before it was cancelled.
            while to.arrived.try_recv().is_ok() {}
            tokio::task::yield_now().await;
        }
    })
    .await;
    while to.arrived.try_recv().is_ok() {}
    check_crosses(from, to, 100, bytes(20 * MIB, 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_and_cancelled_leave_nothing_behind() {
    for dialling in [Role::Worker, Role::Client] {
        let (mut a, mut b) = pair(dialling).await;
        for n in (0..60).step_by(4) {
            b.inbox.unannounced.lock().unwrap().insert(n, None);
        }
        let inbox = b.inbox.clone();
        tokio::spawn(async move {
            for n in (0..60).step_by(4) {
                tokio::task::yield_now().await;
                inbox.announce(n);
            }
        });
        check_many(&a, &mut b).await;
        check_many(&b, &mut a).await;
        assert!(a.hub.refused().is_empty() && b.hub.refused().is_empty());
    }
}
