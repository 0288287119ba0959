//! The functions that the fuzz targets in `fuzz/` run, and the tests that replay their corpora; see
//! [`convoke_common::fuzzing`]. This module is no part of the interface.

#[cfg(test)]
mod seeds;

use std::sync::{Arc, Weak};

use convoke_common::fuzzing::{MemoryBound, Target, trust_install};
use convoke_common::grant::Grant;
use convoke_common::identity::Role;
use convoke_common::ids::Incarnation;
use convoke_common::memory::{Ledger, Pool, Purpose};
use convoke_common::world::NoCompute;
use convoke_graph::codec;
use convoke_graph::graph::Literal;
use convoke_graph::program::Program;
use convoke_rendezvous::{Hub, Link, Peer};

use crate::eager::Session;
use crate::executor::Engine;
use crate::health::blackbox;
use crate::node::holdings::Holdings;
use crate::node::records::{GrowingRecords, Records};
use crate::program::installed::{InstalledProgram, kernel};
use crate::program::order::Range;

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target {
        name: "blackbox",
        budget: MemoryBound {
            fixed: 128 << 10,
            factor: 4,
        },
        entry: black_box,
    },
    Target {
        name: "install",
        budget: MemoryBound {
            fixed: 8 << 20,
            factor: 1 << 10,
        },
        entry: install,
    },
    Target {
        name: "session",
        budget: MemoryBound {
            fixed: MOST_HELD + (8 << 20),
            factor: 1 << 10,
        },
        entry: |input| session(input).unwrap_or(false),
    },
];

/// Most bytes of tensors that the session's worker may hold.
const MOST_HELD: usize = 1 << 20;

/// Parses the page that a former process left; zeros at its end may be missing.
fn black_box(input: &[u8]) -> bool {
    let mut page = input.to_vec();
    page.resize(blackbox::SIZE, 0);
    !blackbox::parse(&page).is_empty()
}

/// Does all that an install does with a grant and its program before weights are loaded.
fn install(input: &[u8]) -> bool {
    let Ok((grant, program)) = codec::decode::<(Grant, Arc<Program>)>(input) else {
        return false;
    };
    if !trust_install(&grant, &program) {
        return false;
    }
    let mut constants = vec![None; program.values.len()];
    for (value, literal) in &program.literals {
        std::hint::black_box(Range::of(literal));
        if let Literal::Inline(tensor) = literal {
            constants[*value as usize] = Some(tensor.clone());
        }
    }
    let init = &program.nodes[..program.init_nodes as usize];
    let resolved = init.iter().all(|node| kernel(&program, node).is_ok());
    resolved & InstalledProgram::new(program, constants, None).is_ok()
}

/// Takes a batch of a client's commands. Brief ops run; longer ones find no thread.
fn session(input: &[u8]) -> Option<bool> {
    let [worker, client] = [(Role::Worker, "me"), (Role::Client, "client")].map(|(role, name)| {
        Hub::new(Peer {
            role,
            name: name.into(),
            incarnation: Incarnation(1),
        })
    });
    Link::join_local(&worker, &client);
    let link = worker.link(&client.me)?;
    let engine = Arc::new(Engine::new("me", "host", Arc::new(NoCompute), None));
    let ledger = Ledger::new("me", MOST_HELD as u64);
    let pool = Pool::new(&ledger, Purpose::Handles, 0).ok()?;
    let books = GrowingRecords::new(Records::new("me", &ledger)).ok()?;
    let owner = client.me.clone();
    let session = Session::new(
        owner,
        link,
        engine,
        Weak::<Holdings>::new(),
        pool,
        books,
        Arc::default(),
    );
    let accepted = session.batch(input).is_ok();
    session.end();
    Some(accepted & (session.handles() == 0))
}
