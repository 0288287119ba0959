//! Grants: the message by which a worker installs its part of a lease, with the hash of the program and the
//! participants.

use convoke_graph::ids::{ParticipantIx, ProgramId};
use convoke_graph::program::{Axes, DriverProgram, Program};
use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::ids::{Incarnation, LeaseId, PlanId};

/// The most steps that a lease may have in flight at once: step tables have an entry for each of them.
pub const MOST_IN_FLIGHT: u32 = 256;

/// The most partitioned bodies of one plan: far more than there are bodies of such a size.
pub const MOST_BODIES: usize = 256;

/// A member of a lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Participant {
    pub name: String,
    pub incarnation: Incarnation,
    /// `host:port` where the participant listens; empty for the driver, which dials.
    pub address: String,
}

/// All that a worker needs to install its part of a lease, besides the program.
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
    /// The partitioned bodies that the receiver drives, or runs a part of, in the order in which it loads them.
    pub bodies: Vec<BodyGrant>,
}

/// All that a worker needs to install its part of a partitioned body: a function of control flow that several workers
/// run together, each iteration or taken branch as a step of a lease of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BodyGrant {
    /// The number of the body in its plan, which follows from 1.
    pub number: u32,
    /// The number of the body that the node which runs this one is a part of; 0 stands for the function itself.
    pub within: u32,
    /// The workers that run the body, then the one that drives it, which may be one of them.
    pub participants: Vec<Participant>,
    pub axes: Axes,
    /// The part of the body that the receiver runs, if it runs one.
    pub part: Option<BodyPart>,
    /// The tensors that the receiver feeds and fetches, if it drives the body.
    pub driver: Option<DriverProgram>,
}

/// The part of a partitioned body that one worker runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BodyPart {
    /// The content hash of the program.
    pub program: ProgramId,
    /// The index of the receiver among the participants of the body.
    pub me: ParticipantIx,
    /// Bytes to reserve for the tensors of one step at the bounds of the axes.
    pub step_bytes: u64,
}

fn violation(why: &str) -> Result<()> {
    Err(Error::new(Code::ProtocolViolation, why))
}

/// Checks a program, that the receiver `me` is one of the `members` participants of the lease, and that every
/// participant that the program names is another one of them.
fn check_named(program: &Program, me: ParticipantIx, members: usize) -> Result<()> {
    program.check()?;
    let known = |ix: ParticipantIx| usize::from(ix) < members && ix != me;
    let sources = program.recvs.iter().map(|r| r.from);
    let mut named = sources.chain(program.sends.iter().map(|s| s.to));
    match usize::from(me) < members && named.all(known) {
        true => Ok(()),
        false => violation("the grant names participants that do not exist"),
    }
}

impl Grant {
    /// The hashes of all programs that the grant names.
    pub fn programs(&self) -> impl Iterator<Item = &ProgramId> {
        let parts = self.bodies.iter().filter_map(|b| b.part.as_ref());
        std::iter::once(&self.program).chain(parts.map(|p| &p.program))
    }

    /// Checks the program of the grant, the number of steps in flight and that of bodies, and that every participant that
    /// the program names exists.
    pub fn check(&self, program: &Program) -> Result<()> {
        if !(1..=MOST_IN_FLIGHT).contains(&self.in_flight) {
            return violation("the grant is for more steps in flight than there may be, or none");
        }
        if self.bodies.len() > MOST_BODIES {
            return violation("the grant has more bodies than there may be");
        }
        check_named(program, self.me, self.participants.len())
    }
}

impl BodyGrant {
    /// Checks what the receiver runs of the body, if it does, and that the driver's part names the body's workers only.
    pub fn check(&self, program: Option<&Program>) -> Result<()> {
        let Some(workers) = self.participants.len().checked_sub(1) else {
            return violation("a body without participants");
        };
        if let Some(driver) = &self.driver
            && !driver.names(workers)
        {
            return violation("a body's driver names workers or slots that do not exist");
        }
        match (&self.part, program) {
            (Some(part), Some(program)) => {
                if usize::from(part.me) >= workers {
                    return violation("a body's part is none of its workers'");
                }
                check_named(program, part.me, self.participants.len())
            }
            _ => Ok(()),
        }
    }
}
