//! The commands that the membership core gives to its shell, the service.

use convoke_common::grant::Participant;
use convoke_common::ids::LeaseId;
use convoke_graph::ids::FunctionId;

use super::connection::{ConnectionId, Fingerprint};
use crate::membership::tables::quarantine::Record;

/// An action that the service performs for the core.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Close a connection with this code (see [`convoke_common::rpc::close`]).
    Close {
        connection: ConnectionId,
        code: u32,
        reason: &'static str,
    },
    /// Tell the workers on these connections that a lease ended, until each has confirmed it or its connection ends.
    Release {
        lease: LeaseId,
        at: Vec<ConnectionId>,
    },
    /// Ask the worker on this connection to measure its links to others.
    Probe {
        connection: ConnectionId,
        peers: Vec<Participant>,
    },
    /// Save which certificates hold a name, and that its holder is not gone.
    Keep {
        name: String,
        fingerprints: Vec<Fingerprint>,
    },
    /// Save that the holder of a name is gone, and whether it had announced that it would leave. [`Command::Keep`]
    /// undoes it.
    Gone { name: String, left: bool },
    /// Delete the saved state of a name.
    Forget { name: String },
    /// Tell the worker on this connection to finish what runs and to end.
    Drain { connection: ConnectionId },
    /// Save the record of a node in which workers died.
    KeepDeaths(Record),
    /// Delete the saved record of a node.
    ForgetDeaths { function: FunctionId, node: String },
    /// Publish how many workers take new work.
    Population(u32),
}
