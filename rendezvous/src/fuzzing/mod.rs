//! The entries that the fuzz targets in `fuzz/` run, and the tests that replay their corpora; see
//! [`convoke_common::fuzzing`]. They are not part of the public interface.

mod driver;
#[cfg(test)]
pub(crate) mod seeds;

use std::collections::BTreeMap;
use std::sync::Arc;

use convoke_common::error::Error;
use convoke_common::fuzzing::{MemoryBound, Target, choose, on_runtime};
use convoke_common::grant::Participant;
use convoke_common::identity::Role;
use convoke_common::ids::{Incarnation, LeaseId};
use convoke_common::memory::{Ledger, Pool, Purpose};
use convoke_common::telemetry::TraceIds;
use convoke_graph::artifact::{ArtifactMeta, CHUNK};
use convoke_graph::graph::TensorType;
use convoke_graph::ids::ParticipantIx;
use convoke_graph::program::Axes;
use convoke_graph::{DType, Dim};

use crate::eager::wire::{Command, Reader};
use crate::frame::{Frame, HEAD, SharingFrame, TensorHeader};
use crate::remote::{hello_head, hello_peer, take_frame};
use crate::{Hub, Lease, Peer, RecvSpec, StepHandler, artifacts, probe, sharing};

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target {
        name: "lane",
        budget: MemoryBound {
            fixed: MOST_LEASED + (4 << 20),
            factor: 32,
        },
        entry: lane,
    },
    Target {
        name: "driver",
        budget: MemoryBound {
            fixed: MOST_LEASED + (4 << 20),
            factor: 32,
        },
        entry: |input| on_runtime(driver::entry(input)),
    },
    Target {
        name: "sharing",
        budget: MemoryBound {
            fixed: MOST_LEASED + (4 << 20),
            factor: 32,
        },
        entry: |input| on_runtime(sharing::fuzzing::entry(input)),
    },
    Target {
        name: "stream",
        budget: MemoryBound {
            fixed: MOST_LEASED + (1 << 20),
            factor: 4,
        },
        entry: |input| choose(DECODERS, input),
    },
    Target {
        name: "eager",
        budget: MemoryBound {
            fixed: 2 << 20,
            factor: 64,
        },
        entry: |input| choose(&[commands, reports], input),
    },
];

const DECODERS: &[fn(&[u8]) -> bool] = &[tensor, artifact_request, probe_request, hello, |b| {
    on_runtime(artifact_replies(b))
}];

/// How many bytes of tensors the worker's lease may hold.
const MOST_LEASED: usize = 1 << 20;

pub(crate) const LEASE: LeaseId = LeaseId(5);

/// A handler that accepts steps and runs nothing.
struct Idle;

impl StepHandler for Idle {
    fn start(&self, n: u64, axes: Vec<i64>, _: TraceIds, partial: bool) -> bool {
        std::hint::black_box((n, axes, partial));
        true
    }
    fn arrived(&self, _: u64, _: u32) {}
    fn abort(&self, _: u64, error: Error, _: ParticipantIx) {
        std::hint::black_box(error.to_string());
    }
    fn done(&self, _: u64, _: ParticipantIx) {}
    fn released(&self) {}
    fn peer_lost(&self, _: ParticipantIx, _: &Error) {}
}

/// The participant with this index: two workers, then the driver.
pub(crate) fn peer(ix: usize) -> Peer {
    let role = [Role::Worker, Role::Worker, Role::Client][ix];
    Peer {
        role,
        name: ["me", "other", "driver"][ix].into(),
        incarnation: Incarnation(ix as u64),
    }
}

pub(crate) fn participants() -> Vec<Participant> {
    let participant = |p: Peer| Participant {
        name: p.name,
        incarnation: p.incarnation,
        address: String::new(),
    };
    [0, 1, 2].map(peer).map(participant).into()
}

/// The axes that a step binds.
pub(crate) fn axes() -> Axes {
    Axes {
        bounds: vec![("n".into(), 64)],
    }
}

pub(crate) fn pool() -> Option<Pool> {
    let ledger = Ledger::new("me", MOST_LEASED as u64);
    Pool::new(&ledger, Purpose::Leases, 1 << 14).ok()
}

/// A worker that holds one lease with two workers and a driver.
pub(crate) fn worker(me: u16, recvs: Vec<RecvSpec>) -> Option<Arc<Hub>> {
    let hub = Hub::new(peer(usize::from(me)));
    let (participants, pool, idle) = (participants(), pool()?, Arc::new(Idle));
    let lease = Lease::new(LEASE, me, participants, axes(), 2, recvs, pool, idle);
    hub.add_lease(Arc::new(lease));
    Some(hub)
}

/// The first worker. Its slot 0 comes from the other worker, f32[2]; slot 1 from the driver, i64[n] with n up to 64;
/// slot 2 from the driver, bool[n, 3].
pub(crate) fn hub() -> Option<Arc<Hub>> {
    let n = || Dim::sym("n");
    let recvs = [
        (1, TensorType::fixed(DType::F32, &[2])),
        (2, TensorType::new(DType::I64, vec![n()])),
        (2, TensorType::new(DType::Bool, vec![n(), Dim::Const(3)])),
    ];
    worker(0, recvs.map(|(from, ty)| RecvSpec { from, ty }).into())
}

/// Reads the sender from the first byte, then a lane to its end or its first malformed frame. The target `sharing`
/// covers the frames that concern the link itself.
fn lane(input: &[u8]) -> bool {
    let (Some(hub), Some((from, rest))) = (hub(), input.split_first()) else {
        return false;
    };
    let from = peer(1 + usize::from(*from % 2));
    frames(&hub, &from, rest, |_| true)
}

/// Takes the frames of a lane to its end, or to the first frame that is malformed or that `hear` refuses.
pub(crate) fn frames(
    hub: &Hub,
    from: &Peer,
    mut rest: &[u8],
    mut hear: impl FnMut(SharingFrame) -> bool,
) -> bool {
    while !rest.is_empty() {
        let Some((told, after)) = frame(hub, from, rest) else {
            return false;
        };
        if !told.is_none_or(&mut hear) {
            return false;
        }
        rest = after;
    }
    true
}

/// Takes one frame; returns what it says about shared memory, if it does, and the bytes after it.
fn frame<'a>(hub: &Hub, from: &Peer, bytes: &'a [u8]) -> Option<(Option<SharingFrame>, &'a [u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
    let (kind, len) = Frame::head(head).ok()?;
    let (body, rest) = rest.split_at_checked(len)?;
    let told = take_frame(hub, from, None, kind, body, drop).ok()?;
    Some((told, rest))
}

/// Reads the header of a tensor that has its own stream, and checks the buffer that is granted for its payload.
fn tensor(input: &[u8]) -> bool {
    let (Some(hub), Some(fixed)) = (hub(), input.first_chunk()) else {
        return false;
    };
    let Ok(rank) = TensorHeader::rank(fixed) else {
        return false;
    };
    let length = TensorHeader::FIXED + rank * 8 + 8;
    let Some((header, payload)) = input.split_at_checked(length) else {
        return false;
    };
    let Ok(header) = TensorHeader::decode_all(header) else {
        return false;
    };
    let incoming = [1, 2].map(peer).into_iter();
    let mut incoming = incoming.filter_map(|from| hub.begin(&from, &header).ok());
    let Some(mut incoming) = incoming.next() else {
        return false;
    };
    let buffer = incoming.bytes_mut();
    let Some(payload) = payload.get(..buffer.len()) else {
        return false;
    };
    buffer.copy_from_slice(payload);
    incoming.finish().is_ok()
}

fn artifact_request(input: &[u8]) -> bool {
    let request = input.try_into().ok().and_then(artifacts::parse);
    request.is_some_and(|(_, chunks)| chunks.end - chunks.start <= u64::from(artifacts::MAX_COUNT))
}

/// Reads a client's replies to a worker that asked for two chunks, the last of which is short.
async fn artifact_replies(input: &[u8]) -> bool {
    let meta = ArtifactMeta::new(String::new(), CHUNK + 5, vec![[9; 32]; 2]);
    let mut replies = artifacts::Replies::new(input, meta.id, 0);
    let mut buffer = vec![0; CHUNK as usize];
    for index in 0..2 {
        match replies.next(&mut buffer).await {
            Ok(len) => drop(std::hint::black_box(
                meta.check_chunk(index, &buffer[..len]),
            )),
            Err(error) => {
                std::hint::black_box(error.to_string());
                return false;
            }
        }
    }
    true
}

fn probe_request(input: &[u8]) -> bool {
    input.try_into().ok().and_then(probe::echoed).is_some()
}

fn hello(input: &[u8]) -> bool {
    let Some((head, rest)) = input.split_first_chunk() else {
        return false;
    };
    let Ok((incarnation, len)) = hello_head(*head) else {
        return false;
    };
    let name = rest.get(..len).map(<[u8]>::to_vec);
    name.is_some_and(|name| hello_peer(Role::Worker, incarnation, name).is_ok())
}

/// Reads a batch of commands, and numbers handles as a worker does.
fn commands(input: &[u8]) -> bool {
    let (mut reader, mut next) = (Reader::new(input), 0);
    let mut defined = BTreeMap::new();
    while !reader.is_empty() {
        let Ok(command) = reader.command(next) else {
            return false;
        };
        next += match command {
            Command::Run(index) => {
                let Some((operands, outputs)) = defined.get(&index).copied() else {
                    return false;
                };
                if (0..operands).any(|_| reader.operand(next).is_err()) {
                    return false;
                }
                outputs
            }
            Command::Define(d) => {
                defined.insert(d.index, (d.operands.len(), u64::from(d.outputs)));
                0
            }
            Command::Take { .. } | Command::Literal { .. } | Command::Reserve { .. } => 1,
            other => {
                std::hint::black_box(other);
                0
            }
        };
    }
    true
}

fn reports(input: &[u8]) -> bool {
    let mut reader = Reader::new(input);
    while !reader.is_empty() {
        match reader.report() {
            Ok(report) => drop(std::hint::black_box(report)),
            Err(_) => return false,
        }
    }
    true
}
