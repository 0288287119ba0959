//! What the fuzz targets in `fuzz/` run, and the tests that replay their corpora; see [`convoke_common::fuzzing`]. No
//! part of the interface.

#[cfg(test)]
pub(crate) mod seeds;

use std::collections::BTreeMap;
use std::sync::Arc;

use convoke_common::error::Error;
use convoke_common::fuzzing::{Budget, Target, choose};
use convoke_common::graph::TensorType;
use convoke_common::identity::Role;
use convoke_common::ids::{Incarnation, LeaseId, ParticipantIx};
use convoke_common::memory::{Account, Ledger, Pool};
use convoke_common::program::{Axes, Participant};
use convoke_common::telemetry::TraceIds;
use convoke_common::{DType, Dim};

use crate::eager::wire::{Command, Reader};
use crate::frame::{Frame, HEAD, TensorHeader};
use crate::remote::{hello_head, hello_peer, take_frame};
use crate::{Hub, Lease, Peer, RecvSpec, StepHandler, artifacts, probe};

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target {
        name: "lane",
        budget: Budget {
            fixed: MOST_LEASED + (4 << 20),
            factor: 32,
        },
        entry: lane,
    },
    Target {
        name: "stream",
        budget: Budget {
            fixed: MOST_LEASED + (1 << 20),
            factor: 4,
        },
        entry: |input| choose(DECODERS, input),
    },
    Target {
        name: "eager",
        budget: Budget {
            fixed: 2 << 20,
            factor: 64,
        },
        entry: |input| choose(&[commands, reports], input),
    },
];

const DECODERS: &[fn(&[u8]) -> bool] = &[tensor, artifact_request, probe_request, hello];

/// What the lease's worker may hold of tensors.
const MOST_LEASED: usize = 1 << 20;

const LEASE: LeaseId = LeaseId(5);

/// Owns steps and does nothing in them.
struct Idle;

impl StepHandler for Idle {
    fn start(&self, n: u64, axes: Vec<i64>, _: TraceIds) -> bool {
        std::hint::black_box((n, axes));
        true
    }
    fn arrived(&self, _: u64, _: u32) {}
    fn abort(&self, _: u64, error: Error, _: ParticipantIx) {
        std::hint::black_box(error.to_string());
    }
    fn done(&self, _: u64, _: ParticipantIx) {}
    fn peer_lost(&self, _: ParticipantIx, _: &Error) {}
}

fn peer(ix: usize) -> Peer {
    let role = [Role::Worker, Role::Worker, Role::Client][ix];
    Peer {
        role,
        name: ["me", "other", "driver"][ix].into(),
        incarnation: Incarnation(ix as u64),
    }
}

/// A worker with one lease of two workers and a driver. Slot 0 comes from the other worker, f32[2]; slot 1 from the
/// driver, i64[n] with n up to 64; slot 2 from the driver, bool[n, 3].
fn hub() -> Option<Arc<Hub>> {
    let participants = [0, 1, 2].map(peer).map(|p| Participant {
        name: p.name,
        incarnation: p.incarnation,
        address: String::new(),
    });
    let axes = Axes {
        bounds: vec![("n".into(), 64)],
    };
    let n = || Dim::sym("n");
    let recvs = [
        (1, TensorType::fixed(DType::F32, &[2])),
        (2, TensorType::new(DType::I64, vec![n()])),
        (2, TensorType::new(DType::Bool, vec![n(), Dim::Const(3)])),
    ];
    let recvs = recvs.map(|(from, ty)| RecvSpec { from, ty });
    let ledger = Ledger::new("me", MOST_LEASED as u64);
    let pool = Pool::new(&ledger, Account::Leases, 1 << 14).ok()?;
    let hub = Hub::new(peer(0));
    hub.add_lease(Arc::new(Lease::new(
        LEASE,
        0,
        participants.into(),
        axes,
        2,
        recvs.into(),
        pool,
        Arc::new(Idle),
    )));
    Some(hub)
}

/// The first byte says who sends; then the lane, to its end or the first malformed frame.
fn lane(input: &[u8]) -> bool {
    let (Some(hub), Some((from, mut rest))) = (hub(), input.split_first()) else {
        return false;
    };
    let from = peer(1 + usize::from(*from % 2));
    while let Some((head, after)) = rest.split_first_chunk::<HEAD>() {
        let Ok((kind, len)) = Frame::head(head) else {
            return false;
        };
        let Some((body, after)) = after.split_at_checked(len) else {
            return false;
        };
        if take_frame(&hub, &from, kind, body).is_err() {
            return false;
        }
        rest = after;
    }
    rest.is_empty()
}

/// A stream with a tensor of its own: what is read before the payload, and the buffer that is granted for that.
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

/// A batch of a session, which numbers handles as a worker does.
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
