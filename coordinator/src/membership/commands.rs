//! What membership asks of its shell.

use convoke_common::ids::{FunctionId, LeaseId};
use convoke_common::program::Participant;

use super::Record;

/// One connection of a member, as the shell numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// BLAKE3 of a certificate.
pub type Fingerprint = [u8; 32];

/// What is to be done.
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
    /// Remember whose a name is.
    Keep {
        name: String,
        fingerprints: Vec<Fingerprint>,
    },
    /// Remember that the holder of a name is gone, and whether it had said that it would leave. [`Command::Keep`] takes it
    /// back.
    Gone { name: String, left: bool },
    /// No longer remember a name.
    Forget { name: String },
    /// Tell the worker on this connection to finish what runs and to end.
    Drain { connection: ConnectionId },
    /// Remember a node in which workers died.
    KeepDeaths(Record),
    /// No longer remember one.
    ForgetDeaths { function: FunctionId, node: String },
    /// So many workers take new work.
    Population(u32),
}
