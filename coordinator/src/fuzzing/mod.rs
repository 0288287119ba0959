//! The code that the fuzz targets in `fuzz/` run, and the tests that replay their corpora; see
//! [`convoke_common::fuzzing`]. It is not part of the public interface.

#[cfg(test)]
mod seeds;

use std::sync::Arc;

use convoke_common::fuzzing::{MemoryBound, Target, choose};
use convoke_common::identity::TokenStore;
use convoke_common::rpc::{PlanOptions, Speed};
use convoke_graph::codec;
use convoke_graph::graph::Function;
use convoke_graph::program::NUMERICS_PROFILE;

use crate::admin::{Answer, Request};
use crate::membership::{Fingerprint, Membership, Moment, Record, events};
use crate::place::{ClusterModel, MemoryModel, WorkerModel};
use crate::service::planning::compute::compute;

/// The fuzz targets of this crate.
pub const TARGETS: &[Target] = &[
    Target {
        name: "records",
        budget: MemoryBound {
            fixed: 4 << 20,
            factor: 64,
        },
        entry: |input| choose(&[tokens, holders, deaths], input),
    },
    Target {
        name: "admin",
        budget: MemoryBound {
            fixed: 64 << 10,
            factor: 64,
        },
        entry: |input| choose(&[is_request, is_answer], input),
    },
    Target {
        name: "plan",
        budget: MemoryBound {
            fixed: 16 << 20,
            factor: 8 << 10,
        },
        entry: plan,
    },
];

/// Seconds since 1970.
const NOW: u64 = 1_800_000_000;

/// Returns whether a line parses as a request.
fn is_request(line: &[u8]) -> bool {
    let line = String::from_utf8_lossy(line);
    serde_json::from_str::<Request>(&line).is_ok()
}

/// Returns whether a line parses as an answer.
fn is_answer(line: &[u8]) -> bool {
    let line = String::from_utf8_lossy(line);
    match serde_json::from_str(&line) {
        Ok(Answer::Failed(error)) => !error.to_string().is_empty(),
        Ok(_) => true,
        Err(_) => false,
    }
}

/// Decodes the book of tokens, as it is stored in the state.
fn tokens(bytes: &[u8]) -> bool {
    let Ok(book) = codec::decode::<TokenStore>(bytes) else {
        return false;
    };
    std::hint::black_box((book.list(), book.revoked()));
    true
}

/// Decodes the holders of a name, as they are stored in the state.
fn holders(bytes: &[u8]) -> bool {
    codec::decode::<Vec<Fingerprint>>(bytes).is_ok()
}

/// Decodes the deaths in a node, as they are stored in the state; then admits plans and reads the status.
fn deaths(bytes: &[u8]) -> bool {
    let Ok(record) = codec::decode::<Record>(bytes) else {
        return false;
    };
    let (function, node) = (record.function, record.node.clone());
    let mut membership = Membership::new(NUMERICS_PROFILE);
    let restoration = events::Restoration {
        members: vec![],
        drained: vec![],
        deaths: vec![record],
    };
    membership.apply(Moment::START, restoration);
    let refused = membership.admit(&function).map_err(|e| e.to_string());
    drop(std::hint::black_box((refused, membership.quarantine(NOW))));
    let lift = events::QuarantineLift { node };
    std::hint::black_box(membership.apply(Moment::START, lift).is_ok());
    true
}

/// Two workers; the memory of the second suffices for small functions only.
fn cluster() -> ClusterModel {
    let speed = Speed {
        flops: 1e11,
        memory_bandwidth: 1e10,
    };
    let worker = |i: u64| WorkerModel {
        threads: 2,
        load_buffer: 1 << 20,
        host: MemoryModel {
            free: (1 << 30) >> (8 * i),
            ..MemoryModel::idle(1 << 30)
        },
        ..WorkerModel::cpu(i, 1 << 30, speed)
    };
    ClusterModel::new((0..2).map(worker).collect())
}

/// Plans a function that a client sent, from its verification to the programs.
fn plan(input: &[u8]) -> bool {
    let Ok((function, options)) = codec::decode::<(Arc<Function>, PlanOptions)>(input) else {
        return false;
    };
    match compute(function, &cluster(), options) {
        Ok(planned) => planned.programs.iter().all(|p| p.program().check().is_ok()),
        Err(error) => {
            std::hint::black_box(error.to_string());
            false
        }
    }
}
