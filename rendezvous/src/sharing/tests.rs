//! A worker, and a peer on the same host that says anything about shared memory.

use convoke_common::error::Code;
use convoke_common::ids::StepKey;
use convoke_common::world::NoCompute;
use convoke_graph::Tensor;
use convoke_graph::block::Block;
use convoke_graph::segment::PeerSegment;
use convoke_graph::tensor::byte_size;

use super::buffers::{OPEN, SLOT, SLOTS};
use super::*;
use crate::fuzzing::{LEASE, hub, peer};
use crate::link::Outgoing;
use crate::remote::{LEAST_BYTES, STALL_BOUND};
use crate::step::slot::RegisterOutcome;

/// The number of the peer's segment, which is long enough for the places that the peer names.
const SEGMENT: u64 = 3;
/// The length of the segment, in bytes.
const LEN: usize = 4096;

/// A worker, and a peer that is linked to it and has given it a segment.
struct Pair {
    world: World,
    hub: Arc<Hub>,
    other: Arc<Hub>,
    link: Arc<Link>,
    shared: LinkSharing,
    block: Block,
}

fn mapped(block: &Block) -> PeerSegment {
    let segment = block.segment().unwrap().0;
    let file = segment.file().try_clone_to_owned().unwrap();
    PeerSegment::map(&file, segment.len() as u64).unwrap()
}

/// A pair whose peer is the participant of this index: a worker, or the client that drives.
fn pair(with: usize) -> Pair {
    let (hub, other) = (hub().unwrap(), Hub::new(peer(with)));
    Link::join_local(&hub, &other);
    let link = hub.link(&other.me).unwrap();
    let roles = [hub.me.role, other.me.role];
    let shared = LinkSharing::new(Arc::default(), roles, Arc::default()).unwrap();
    let block = Block::shared(LEN).unwrap();
    assert!(shared.segments.keep(SEGMENT, mapped(&block)));
    Pair {
        world: World::real(Arc::new(NoCompute)),
        hub,
        other,
        link,
        shared,
        block,
    }
}

impl Pair {
    fn tell(&self, told: SharingFrame) -> Result<()> {
        self.shared.frame(&self.world, &self.hub, &self.link, told)
    }

    /// How many frames the peer was sent; its hub counts them as tensors that nobody awaits.
    fn answers(&self) -> u64 {
        let refused = self.other.refused();
        refused.get("wrong_tensor").copied().unwrap_or_default()
    }
}

/// The client's tensor of 64 numbers.
fn numbers(transfer: u64) -> SharingFrame {
    staged(transfer, 1, DType::I64, &[64])
}

fn staged(transfer: u64, slot: u32, dtype: DType, shape: &[usize]) -> SharingFrame {
    let key = StepKey { lease: LEASE, n: 0 };
    let tensor = TensorHeader {
        key,
        slot,
        dtype,
        shape: shape.into(),
        bytes: byte_size(dtype, shape).unwrap_or(usize::MAX),
    };
    SharingFrame::Staged { transfer, tensor }
}

fn part(transfer: u64, offset: u64, len: u32) -> SharingFrame {
    SharingFrame::Part {
        transfer,
        segment: SEGMENT,
        offset,
        len,
        loan: 0,
    }
}

/// Sends these frames, and checks the error of the last one.
#[track_caller]
fn check_broken(with: usize, told: impl IntoIterator<Item = SharingFrame>, why: &str) {
    let pair = pair(with);
    let mut told: Vec<_> = told.into_iter().map(|told| pair.tell(told)).collect();
    let last = told.pop().unwrap().unwrap_err();
    assert_eq!(last.code, Code::ProtocolViolation);
    assert!(last.message.contains(why), "{last}");
    assert!(told.into_iter().all(|told| told.is_ok()));
}

const CLIENT: usize = 2;

#[tokio::test]
async fn what_makes_no_sense_of_parts_is_refused() {
    let check = |told: &[SharingFrame], why: &str| check_broken(CLIENT, told.to_vec(), why);
    let with = |told: SharingFrame, why: &str| check(&[numbers(0), told], why);
    with(part(1, 0, 8), "of no tensor");
    with(part(0, LEN as u64, 8), "outside");
    with(part(0, LEN as u64 - 64, 65), "outside");
    with(part(0, u64::MAX - 63, 64), "outside");
    with(part(0, 8, 8), "outside");
    with(part(0, 0, 513), "beyond");
    with(part(0, 0, 0), "no length");
    with(numbers(0), "another's number");
    with(SharingFrame::Cut { transfer: 1 }, "no such");
    check(&[staged(0, 1, DType::I64, &[0])], "without bytes");
    let elsewhere = SharingFrame::Part {
        transfer: 0,
        segment: SEGMENT + 1,
        offset: 0,
        len: 8,
        loan: 0,
    };
    with(elsewhere, "no such segment");
    // All of the tensor has been announced.
    let whole = [numbers(0), part(0, 0, 512)];
    for after in [part(0, 0, 8), SharingFrame::Cut { transfer: 0 }] {
        let told = whole.iter().cloned().chain([after]);
        check_broken(CLIENT, told, "no");
    }
    let cut = [numbers(0), SharingFrame::Cut { transfer: 0 }, part(0, 0, 8)];
    check(&cut, "of no tensor");
}

#[tokio::test]
async fn a_peer_has_no_more_under_way_than_it_may() {
    let parts = (0..=SLOTS).map(|_| part(0, 0, 8));
    let parts = [numbers(0)].into_iter().chain(parts);
    check_broken(CLIENT, parts, "more parts than slots");
    let tensors = (0..=OPEN as u64).map(numbers);
    check_broken(CLIENT, tensors, "too many tensors");
}

#[tokio::test]
async fn a_client_lends_nothing_and_is_met_nowhere() {
    let (nonce, address) = ([0; 32], vec![]);
    let SharingFrame::Staged { tensor, .. } = numbers(0) else {
        unreachable!();
    };
    let lent = SharingFrame::Lent {
        tensor,
        segment: SEGMENT,
        offset: 0,
        loan: 0,
    };
    let meet = SharingFrame::Meet {
        nonce,
        address: address.clone(),
    };
    let bring = SharingFrame::Bring { nonce, address };
    for told in [lent, meet, bring.clone()] {
        check_broken(CLIENT, [told], "a client");
    }
    check_broken(1, [bring], "has an address");
}

#[test]
fn of_a_clients_memory_no_more_than_the_slots_are_kept() {
    let (client, worker) = (pair(CLIENT), pair(1));
    let (small, large) = (Block::shared(LEN), Block::shared(SLOTS * SLOT + 1));
    let (small, large) = (small.unwrap(), large.unwrap());
    assert!(!client.shared.segments.keep(SEGMENT + 1, mapped(&small)));
    assert!(worker.shared.segments.keep(SEGMENT + 1, mapped(&large)));
    client.shared.end();
    assert!(!client.shared.segments.keep(SEGMENT + 1, mapped(&large)));
    assert!(client.shared.segments.keep(SEGMENT + 1, mapped(&small)));
}

#[tokio::test]
async fn parts_are_put_together_and_each_is_returned() {
    let mut pair = pair(CLIENT);
    let numbers: Vec<u8> = (0..64u64).flat_map(u64::to_le_bytes).collect();
    pair.block.bytes_mut()[64..576].copy_from_slice(&numbers);
    let whole = [self::numbers(7), part(7, 64, 64), part(7, 128, 448)];
    whole.into_iter().for_each(|t| pair.tell(t).unwrap());
    assert_eq!(pair.answers(), 0);
    while pair.answers() < 2 {
        tokio::task::yield_now().await;
    }
    // Writes of the peer to its memory now change nothing.
    pair.block.bytes_mut().fill(1);
    let lease = pair.hub.lease(LEASE).unwrap();
    let slot = lease.table.slot(0, 1).unwrap();
    let RegisterOutcome::Ready(Ok(tensor)) = slot.register(0) else {
        panic!("nothing arrived");
    };
    assert_eq!(tensor.bytes(), numbers);
    assert!(pair.hub.refused().is_empty());
}

#[tokio::test]
async fn what_is_refused_or_cut_is_returned_as_well() {
    let mut pair = pair(CLIENT);
    pair.block.bytes_mut()[..3].fill(2);
    let told = [
        // This tensor's bytes are no values of its dtype.
        staged(0, 2, DType::Bool, &[1, 3]),
        part(0, 0, 3),
        numbers(1),
        part(1, 0, 512),
        // This tensor is sent a second time.
        numbers(2),
        part(2, 0, 256),
        // This tensor belongs to no edge, and is cut.
        staged(3, 9, DType::I64, &[2]),
        part(3, 0, 8),
        SharingFrame::Cut { transfer: 3 },
    ];
    let parts = told
        .iter()
        .filter(|t| matches!(t, SharingFrame::Part { .. }));
    // The refused tensors are reported as unwanted.
    let answers = parts.count() as u64 + 3;
    told.into_iter().for_each(|t| pair.tell(t).unwrap());
    while pair.answers() < answers {
        tokio::task::yield_now().await;
    }
    let refused = pair.hub.refused();
    let refused: Vec<_> = refused.iter().map(|(why, n)| (&**why, *n)).collect();
    let expected = [("duplicate", 1), ("no_such_edge", 1), ("wrong_tensor", 1)];
    assert_eq!(refused, expected);
    // The buffers are free again for the same number of pieces.
    pair.tell(numbers(4)).unwrap();
    for _ in 0..SLOTS {
        pair.tell(part(4, 0, 8)).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_stalls_is_given_up() {
    let pair = pair(CLIENT);
    pair.tell(numbers(0)).unwrap();
    pair.tell(part(0, 0, 8)).unwrap();
    while pair.answers() < 1 {
        tokio::task::yield_now().await;
    }
    let wait = async || {
        tokio::time::advance(STALL_BOUND).await;
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        pair.hub.refused().get("stalled").copied()
    };
    // The tensor may have to wait as long as others arrive.
    pair.shared
        .received
        .fetch_add(LEAST_BYTES, Ordering::Relaxed);
    assert_eq!(wait().await, None);
    assert_eq!(wait().await, Some(1));
    // A piece that still arrives is returned.
    pair.tell(part(0, 0, 8)).unwrap();
    assert_eq!(pair.answers(), 3);
}

#[test]
fn no_tensor_waits_for_a_segment_once_the_peer_takes_no_more() {
    let shared = pair(1).shared;
    shared.sender.lending.reach.send_replace(Reach::Together);
    let tensor = |len| Tensor::from_block(DType::U8, &[len], Block::shared(len).unwrap());
    let out = |tensor: &Tensor| Outgoing {
        key: StepKey { lease: LEASE, n: 0 },
        slot: 0,
        tensor: tensor.clone(),
        priority: 0,
        cancel: Default::default(),
        sent: Box::new(|| {}),
    };
    let [known, new] = [64, 128].map(tensor);
    assert!(
        shared.sender.lend(out(&known)).is_none(),
        "it waits for its segment"
    );
    let back = shared.sender.lending.part();
    assert!(matches!(back[..], [Err(_)]));
    // Both senders found the peer there, and come to the lock after it parted.
    for tensor in [&known, &new] {
        let (segment, offset) = tensor.segment().unwrap();
        let lent = shared
            .sender
            .lending
            .lend(segment.clone(), offset, out(tensor));
        assert!(matches!(lent, Some(Err(_))), "it is sent over the wire");
    }
}
