//! The store without an executor: installs that want constants, make them, fail and stall.

use std::sync::atomic::Ordering;

use convoke_common::error::Code;
use convoke_common::memory::{Owner, Purpose};
use convoke_graph::DType;
use futures::FutureExt;

use super::*;

const MIB: u64 = 1 << 20;

/// A store in a ledger of 8 MiB.
struct Rig {
    ledger: Ledger,
    store: Arc<WeightStore>,
}

/// An install by the holders of one token.
struct Install {
    constants: Constants,
    pool: Pool,
    values: Vec<Option<Tensor>>,
    counter: Arc<Counter>,
}

fn id(n: u8) -> ConstantId {
    ConstantId([n; 32])
}

impl Rig {
    fn new() -> Rig {
        let ledger = Ledger::new("w0", 8 * MIB);
        let store = WeightStore::new(&ledger);
        Rig { ledger, store }
    }

    /// Begins an install that wants these constants, the first as value 0.
    fn install(&self, token: &str, wanted: &[u8]) -> Install {
        let ledger = self.ledger.of(Owner {
            token: token.parse().unwrap(),
            member: format!("client-of-{token}"),
            limit: 6 * MIB,
        });
        let counter = Arc::<Counter>::default();
        let ids = wanted.iter().zip(0..).map(|(n, v)| (v, id(*n)));
        Install {
            constants: self.store.begin(ids.collect(), counter.clone()),
            pool: Pool::new(&ledger, Purpose::Weights, 0).unwrap(),
            values: vec![None; wanted.len()],
            counter,
        }
    }

    /// Bytes that are counted as weights, and as unused ones.
    fn counted(&self) -> [u64; 2] {
        let used = self.ledger.used();
        [Purpose::Weights, Purpose::UnusedWeights]
            .map(|purpose| used.get(&purpose).copied().unwrap_or(0) / MIB)
    }

    /// Installs these constants and ends the lease.
    fn leave(&self, wanted: &[u8]) {
        let mut install = self.install("aaaa", wanted);
        for v in install.next().unwrap() {
            install.make(v);
        }
        assert_eq!(install.next(), Some(vec![]));
    }

    /// Those of these constants that an install would have to make.
    fn absent(&self, wanted: &[u8]) -> Vec<u32> {
        self.install("bbbb", wanted).next().unwrap()
    }
}

impl Install {
    /// The constants that the install is to make; `None` if it waits.
    fn next(&mut self) -> Option<Vec<u32>> {
        let next = self.constants.next(&self.pool, &mut self.values);
        next.now_or_never().map(|next| next.unwrap())
    }

    /// Makes a constant of 1 MiB, whose bytes are all `v`.
    fn make(&mut self, v: u32) {
        let mut made = self.pool.tensor(DType::U8, &[MIB as usize]).unwrap();
        made.bytes_mut().unwrap().fill(v as u8);
        let made = self.constants.publish(v, made, &self.pool).unwrap();
        self.values[v as usize] = Some(made);
    }
}

#[test]
fn a_second_install_makes_nothing_and_memory_counts_once() {
    let rig = Rig::new();
    let mut first = rig.install("aaaa", &[1, 2]);
    assert_eq!(first.next(), Some(vec![0, 1]));
    first.make(0);
    first.make(1);
    assert_eq!(first.next(), Some(vec![]));
    let mut second = rig.install("bbbb", &[2, 1]);
    assert_eq!(second.next(), Some(vec![]));
    let same = |v: usize| first.values[v].as_ref().unwrap().bytes().as_ptr();
    assert_eq!(second.values[0].as_ref().unwrap().bytes().as_ptr(), same(1));
    // Neither may write where the other reads.
    assert!(!second.values[0].as_ref().unwrap().is_unique());
    assert_eq!(rig.counted(), [2, 0]);
    let held: Vec<u64> = rig.ledger.holdings().iter().map(|h| h.total()).collect();
    assert_eq!(held, [2 * MIB; 2]);
    let status = rig.store.status();
    assert_eq!((status.held_bytes, status.shared_bytes), (2 * MIB, 2 * MIB));
    let charges = second.constants.finish();
    drop(first);
    assert_eq!(
        (rig.counted(), rig.store.status().shared_bytes),
        ([2, 0], 0)
    );
    drop(charges);
    assert_eq!(
        (rig.counted(), rig.store.status().unused_bytes),
        ([0, 2], 2 * MIB)
    );
    assert!(rig.ledger.holdings().is_empty());
    assert_eq!(rig.absent(&[1, 2, 3]), [2]);
}

#[test]
fn a_constant_that_two_values_have_is_made_once() {
    let rig = Rig::new();
    let mut install = rig.install("aaaa", &[1, 1]);
    assert_eq!(install.next(), Some(vec![0]));
    install.make(0);
    assert_eq!(install.next(), Some(vec![]));
    assert_eq!(
        (rig.counted(), install.values.iter().flatten().count()),
        ([1, 0], 2)
    );
}

#[tokio::test(start_paused = true)]
async fn installs_at_once_make_each_constant_once_and_need_not_each_other() {
    let rig = Rig::new();
    let mut first = rig.install("aaaa", &[1, 2]);
    assert_eq!(first.next(), Some(vec![0, 1]));
    let mut second = rig.install("bbbb", &[3, 2, 1]);
    assert_eq!(second.next(), Some(vec![0]));
    second.make(0);
    assert_eq!(second.next(), None);
    first.make(0);
    // The first install is cancelled: the constants that it has made are there, and the second install makes the rest.
    drop(first);
    assert_eq!(second.next(), Some(vec![1]));
    second.make(1);
    assert_eq!(second.next(), Some(vec![]));
    assert_eq!(rig.counted(), [3, 0]);

    // Those who wait hear of it, too.
    let mut third = rig.install("aaaa", &[4]);
    assert_eq!(third.next(), Some(vec![0]));
    let mut fourth = rig.install("bbbb", &[4]);
    let waits = fourth.constants.next(&fourth.pool, &mut fourth.values);
    let (next, ()) = tokio::join!(waits, async { drop(third) });
    assert_eq!(next.unwrap(), [0]);
}

/// Has an install wait for another one that loads this many bytes a second, and says after how many seconds it takes
/// over, if it does within a minute.
async fn check(rate: u64, expected: Option<u64>) {
    let rig = Rig::new();
    let mut slow = rig.install("aaaa", &[1]);
    assert_eq!(slow.next(), Some(vec![0]));
    let mut waits = rig.install("bbbb", &[1]);
    let began = Instant::now();
    let counter = slow.counter.clone();
    let load = async {
        for _ in 0..60 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            counter.done.fetch_add(rate, Ordering::Relaxed);
        }
    };
    let next = waits.constants.next(&waits.pool, &mut waits.values);
    let took = tokio::select! {
        biased;
        mine = next => {
            assert_eq!(mine.unwrap(), [0]);
            Some(began.elapsed().as_secs())
        }
        () = load => None,
    };
    assert_eq!(took, expected);
    // Both use the same constant, whichever install is faster.
    slow.make(0);
    if took.is_some() {
        waits.make(0);
    }
    assert_eq!(waits.next(), Some(vec![]));
    assert_eq!(rig.counted(), [1, 0]);
}

#[tokio::test(start_paused = true)]
async fn who_waits_takes_over_where_the_other_stalls() {
    check(0, Some(10)).await;
    check(64 << 10, Some(10)).await;
    check(4 << 20, None).await;
}

#[test]
fn what_is_unused_for_longest_makes_room_and_what_is_used_does_not() {
    let rig = Rig::new();
    for n in 1..=6 {
        rig.leave(&[n]);
    }
    // The second is used again, and then the first.
    rig.leave(&[2]);
    let mut used = rig.install("aaaa", &[1]);
    assert_eq!(used.next(), Some(vec![]));
    assert_eq!(rig.counted(), [1, 5]);
    let steps = rig.ledger.reserve(Purpose::Leases, 4 * MIB).unwrap();
    assert_eq!(rig.counted(), [1, 3]);
    let missing = |wanted: &[u8]| {
        let mut core = rig.store.core();
        let pool = Pool::new(&rig.ledger, Purpose::Weights, 0).unwrap();
        let load = core.begin(Arc::default());
        let is = |n: &&u8| {
            matches!(
                core.want(load, id(**n), &pool).unwrap(),
                ConstantAnswer::Yours
            )
        };
        let missing: Vec<u8> = wanted.iter().filter(is).copied().collect();
        core.end(load);
        missing
    };
    assert_eq!(missing(&[1, 2, 3, 4, 5, 6]), [3, 4]);
    drop(steps);
    let e = rig.ledger.reserve(Purpose::Leases, 8 * MIB).unwrap_err();
    assert_eq!((e.code, rig.counted()), (Code::OutOfMemory, [1, 0]));
    assert_eq!(missing(&[1, 2, 5, 6]), [2, 5, 6]);
    // A constant that is evicted lives on where somebody holds it.
    let kept = used.values[0].clone().unwrap();
    let handles = Pool::new(&rig.ledger, Purpose::Handles, 0).unwrap();
    let handle = handles.charged(&kept).unwrap().unwrap();
    drop((used, kept));
    assert!(rig.ledger.reserve(Purpose::Leases, 8 * MIB).is_err());
    assert_eq!(rig.counted(), [1, 0]);
    drop(handle);
    assert!(rig.ledger.reserve(Purpose::Leases, 8 * MIB).is_ok());
    assert_eq!(rig.counted(), [0, 0]);
}

#[test]
fn a_token_that_has_no_room_for_a_constant_is_refused_it() {
    let rig = Rig::new();
    rig.leave(&[1]);
    let mut install = rig.install("bbbb", &[1]);
    let mut others = vec![];
    for _ in 0..6 {
        others.push(install.pool.tensor(DType::U8, &[MIB as usize]).unwrap());
    }
    let next = install.constants.next(&install.pool, &mut install.values);
    let e = next.now_or_never().unwrap().unwrap_err();
    assert_eq!(e.code, Code::OutOfMemory);
    assert!(e.message.contains("token bbbb"), "{e}");
    assert_eq!(rig.counted(), [6, 1]);
}
