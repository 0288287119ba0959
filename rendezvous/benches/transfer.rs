//! Sends a tensor from one process's hub to another's over the wire of a remote link, and a small one back as the
//! acknowledgement; beside it TCP moves the same bytes in the same run.
//!
//! `cargo bench -p convoke-rendezvous --bench transfer`

#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use convoke_common::Error;
use convoke_common::detection::Detector;
use convoke_common::grant::Participant;
use convoke_common::identity::{
    ClusterCa, PeerName, RevocationList, Role, TlsConfigs, dial, greet,
};
use convoke_common::ids::{Incarnation, LeaseId, StepKey};
use convoke_common::memory::{Ledger, Pool, Purpose};
use convoke_common::rpc::StreamKind;
use convoke_common::world::{Endpoint, EndpointOptions, NoCompute, World};
use convoke_graph::graph::TensorType;
use convoke_graph::ids::ParticipantIx;
use convoke_graph::program::Axes;
use convoke_graph::{DType, Tensor};
use convoke_rendezvous::frame::Frame;
use convoke_rendezvous::step::slot::RegisterOutcome;
use convoke_rendezvous::{Hub, Lease, Link, Outgoing, Peer, RecvSpec, StepHandler, remote};
use tokio_util::sync::CancellationToken;

const LEASE: LeaseId = LeaseId(1);
const WAIT: Duration = Duration::from_secs(5);

/// Takes the tensors that arrive: the receiver answers with a small tensor, the sender wakes its thread.
struct End {
    lease: OnceLock<std::sync::Weak<Lease>>,
    link: OnceLock<Arc<Link>>,
    arrived: Option<mpsc::Sender<u64>>,
}

impl End {
    fn take(&self, n: u64) {
        let lease = self.lease.get().unwrap().upgrade().unwrap();
        drop(lease.table.slot(n, 0).unwrap().take(n));
        self.finish(&lease, n);
    }

    fn finish(&self, lease: &Lease, n: u64) {
        lease.table.retire(n);
        match &self.arrived {
            Some(tell) => tell.send(n).unwrap(),
            None => {
                // The next step is registered before the answer lets the sender start that step.
                register(self, lease, n + 1);
                self.link
                    .get()
                    .unwrap()
                    .send_tensor(outgoing(n, Tensor::scalar(1f32)));
            }
        }
    }
}

fn register(end: &End, lease: &Lease, n: u64) {
    lease.table.admit(n).unwrap();
    if let RegisterOutcome::Ready(_) = lease.table.slot(n, 0).unwrap().register(n) {
        end.finish(lease, n);
    }
}

impl StepHandler for End {
    fn start(&self, _: u64, _: Vec<i64>, _: ([u8; 16], [u8; 8]), _: bool) -> bool {
        true
    }
    fn arrived(&self, n: u64, _: u32) {
        self.take(n);
    }
    fn abort(&self, _: u64, error: Error, _: ParticipantIx) {
        panic!("{error}");
    }
    fn done(&self, _: u64, _: ParticipantIx) {}
    fn released(&self) {}
    fn peer_lost(&self, _: ParticipantIx, _: &Error) {}
}

fn outgoing(n: u64, tensor: Tensor) -> Outgoing {
    Outgoing {
        key: StepKey { lease: LEASE, n },
        slot: 0,
        tensor,
        priority: 1,
        cancel: CancellationToken::new(),
        sent: Box::new(|| {}),
    }
}

fn peer(name: &str) -> Peer {
    Peer {
        role: Role::Worker,
        name: name.into(),
        incarnation: Incarnation(1),
    }
}

fn lease(me: u16, ty: TensorType, end: &Arc<End>) -> Arc<Lease> {
    let participants = ["a", "b", "driver"].map(|n| Participant {
        name: n.into(),
        incarnation: Incarnation(1),
        address: String::new(),
    });
    let ledger = Ledger::new("bench", 4 << 30);
    let pool = Pool::new(&ledger, Purpose::Leases, 256 << 20).unwrap();
    let recvs = vec![RecvSpec { from: 1 - me, ty }];
    let handler: Arc<dyn StepHandler> = end.clone();
    let lease = Lease::new(
        LEASE,
        me,
        participants.into(),
        Axes::default(),
        2,
        recvs,
        pool,
        handler,
    );
    let lease = Arc::new(lease);
    end.lease.set(Arc::downgrade(&lease)).unwrap();
    lease
}

/// Runs `work` on a network thread of its own.
fn on_thread<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send + 'static) {
    std::thread::spawn(|| {
        let rt = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        rt.block_on(work());
    });
}

async fn endpoint(world: &World, ca: &ClusterCa, name: &str) -> Endpoint {
    let name: PeerName = name.parse().unwrap();
    let identity = ca.issue_own(world, Role::Worker, name).unwrap();
    let revoked = Arc::new(RevocationList::default());
    let tls = TlsConfigs::cluster(&identity, revoked, world.wall.clone()).unwrap();
    let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    world
        .net
        .endpoint(any, &tls, &EndpointOptions::default())
        .await
        .unwrap()
}

struct Sender {
    link: Arc<Link>,
    end: Arc<End>,
    lease: Arc<Lease>,
    told: mpsc::Receiver<u64>,
    n: u64,
}

impl Sender {
    fn round(&mut self, tensor: &Tensor) -> Duration {
        register(&self.end, &self.lease, self.n);
        let start = Instant::now();
        self.link.send_tensor(outgoing(self.n, tensor.clone()));
        assert_eq!(self.told.recv_timeout(WAIT).unwrap(), self.n);
        self.n += 1;
        start.elapsed()
    }
}

fn connect(elements: usize) -> Sender {
    let world = World {
        shared: None,
        ..World::real(Arc::new(NoCompute))
    };
    let ca = Arc::new(ClusterCa::create(&world).unwrap());
    let big = TensorType::fixed(DType::F32, &[elements]);
    let small = TensorType::fixed(DType::F32, &[]);
    let (tell_addr, addr) = mpsc::channel();
    let (w, c) = (world.clone(), ca.clone());
    on_thread(move || async move {
        let ep = endpoint(&w, &c, "b").await;
        tell_addr.send(ep.local_addr()).unwrap();
        let greeted = greet(ep.accept().await.unwrap(), WAIT).await.unwrap();
        let watched = Detector::dialling(w.clone()).watch(greeted.connection);
        // The peer announces its tripwire on another stream, which this end drops; failure detection is then slower.
        let (send, recv) = loop {
            let (send, mut recv) = watched.connection().accept_bi().await.unwrap();
            let mut kind = [0];
            recv.read_exact(&mut kind).await.unwrap();
            if StreamKind::from_byte(kind[0]) == Some(StreamKind::Lane) {
                break (send, recv);
            }
        };
        let end = Arc::new(End {
            lease: OnceLock::new(),
            link: OnceLock::new(),
            arrived: None,
        });
        let hub = Hub::new(peer("b"));
        let lease = lease(1, big, &end);
        hub.add_lease(lease.clone());
        let link = remote::accept_lane(&w, &hub, watched, Role::Worker, "a", send, recv)
            .await
            .unwrap();
        assert!(end.link.set(link).is_ok());
        register(&end, &lease, 0);
        std::future::pending::<()>().await;
    });
    let addr = addr.recv().unwrap();
    let (tell, told) = mpsc::channel();
    let end = Arc::new(End {
        lease: OnceLock::new(),
        link: OnceLock::new(),
        arrived: Some(tell),
    });
    let lease = lease(0, small, &end);
    let (ready, linked) = mpsc::channel();
    let own = lease.clone();
    on_thread(move || async move {
        let ep = endpoint(&world, &ca, "a").await;
        let hub = Hub::new(peer("a"));
        hub.add_lease(own);
        let dialled = dial(&ep, addr, Role::Worker, WAIT).await.unwrap();
        let watched = Detector::dialling(world.clone()).watch(dialled.connection);
        let link = remote::dial_lane(&world, &hub, watched, "b".into())
            .await
            .unwrap();
        ready.send(link).unwrap();
        std::future::pending::<()>().await;
    });
    let link = linked.recv().unwrap();
    // The lane echoes a frame: once this returns, the receiver has registered its first step.
    link.send(Frame::Done {
        key: StepKey {
            lease: LEASE,
            n: u64::MAX >> 8,
        },
    });
    Sender {
        link,
        end,
        lease,
        told,
        n: 0,
    }
}

fn tcp(bytes: usize) -> impl FnMut() -> Duration {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut s, _) = listener.accept().unwrap();
        s.set_nodelay(true).unwrap();
        let mut buffer = vec![0; bytes];
        while s.read_exact(&mut buffer).is_ok() {
            s.write_all(&[1; 4]).unwrap();
        }
    });
    let mut s = TcpStream::connect(addr).unwrap();
    s.set_nodelay(true).unwrap();
    let data = vec![7u8; bytes];
    move || {
        let start = Instant::now();
        s.write_all(&data).unwrap();
        s.read_exact(&mut [0; 4]).unwrap();
        start.elapsed()
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

fn main() {
    println!("| tensor | convoke p50 | TCP p50 | ratio (TCP / convoke) |\n|---|---|---|---|");
    for (name, elements, rounds) in [("4 KiB", 1 << 10, 2000), ("64 MiB", 1 << 24, 20)] {
        let mut ours = connect(elements);
        let mut floor = tcp(elements * 4);
        let tensor = Tensor::zeros(DType::F32, &[elements]).unwrap();
        let (mut a, mut b) = (vec![], vec![]);
        for i in 0..rounds + rounds / 10 {
            // The two alternate, so that a drifting machine drifts for both; the first tenth is warm-up.
            let (x, y) = (ours.round(&tensor), floor());
            if i >= rounds / 10 {
                a.push(x);
                b.push(y);
            }
        }
        let (a, b) = (median(a), median(b));
        let show = |t: f64| {
            if elements > 1 << 20 {
                format!(
                    "{:.1} ms, {:.2} GB/s",
                    t * 1e3,
                    elements as f64 * 4. / t / 1e9
                )
            } else {
                format!("{:.0} µs", t * 1e6)
            }
        };
        println!(
            "| {name} + acknowledgement | {} | {} | {:.2} |",
            show(a),
            show(b),
            b / a
        );
    }
    std::process::exit(0);
}
