//! What a worker gets to install its part of a lease: the hash of the program, and who takes part.

use convoke_graph::ids::{ParticipantIx, ProgramId};
use convoke_graph::program::{Axes, Program};
use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::ids::{Incarnation, LeaseId, PlanId};

/// The most steps that a lease may have in flight at once: step tables have an entry for each of them.
pub const MOST_IN_FLIGHT: u32 = 256;

/// A member of a lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Participant {
    pub name: String,
    pub incarnation: Incarnation,
    /// `host:port` where the participant listens; empty for the driver, which dials.
    pub address: String,
}

/// What a worker needs to install its part of a lease, besides the program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    pub lease: LeaseId,
    pub plan: PlanId,
    /// The content hash of the program, under which the worker may have it.
    pub program: ProgramId,
    /// The index of the receiver in `participants`.
    pub me: ParticipantIx,
    /// The workers, then the driver.
    pub participants: Vec<Participant>,
    pub axes: Axes,
    /// The most steps that may be in flight at once.
    pub in_flight: u32,
    /// Bytes to reserve for the tensors of one step at the bounds of the axes.
    pub step_bytes: u64,
}

impl Grant {
    /// Checks the program of the grant and the number of steps in flight, and that every participant that the program
    /// names exists.
    pub fn check(&self, program: &Program) -> Result<()> {
        program.check()?;
        let violation = |why: &str| Err(Error::new(Code::ProtocolViolation, why));
        if !(1..=MOST_IN_FLIGHT).contains(&self.in_flight) {
            return violation("the grant is for more steps in flight than there may be, or none");
        }
        let members = self.participants.len();
        let known = |ix: ParticipantIx| usize::from(ix) < members && ix != self.me;
        let sources = program.recvs.iter().map(|r| r.from);
        let mut named = sources.chain(program.sends.iter().map(|s| s.to));
        if usize::from(self.me) < members && named.all(known) {
            Ok(())
        } else {
            violation("the grant names participants that do not exist")
        }
    }
}
