//! The member that a plan is made for.

use convoke_common::identity::PeerIdentity;
use convoke_graph::ids::FunctionId;

use crate::membership::tables::drivers::Driver;

/// The member that asks how much is free.
#[derive(Debug, Clone)]
pub struct Asker {
    pub identity: PeerIdentity,
    /// The client and the function that it wants to install: an earlier plan of the same is replaced, and does not
    /// count.
    pub wants: Option<(Driver, FunctionId)>,
}
