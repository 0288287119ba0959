//! The partitioned bodies of a lease: what this worker runs of them, and those that it drives.

use std::sync::Arc;

use convoke_common::error::{Error, Result};
use convoke_common::grant::{BodyGrant, Participant};
use convoke_common::identity::Role;
use convoke_common::ids::LeaseId;
use convoke_common::memory::Pool;
use convoke_graph::ids::ParticipantIx;
use convoke_graph::program::{Axes, DriverProgram, HashedProgram};
use convoke_rendezvous::Link;
use convoke_rendezvous::driver::Driver;

use super::Holdings;
use super::installing::Part;
use crate::executor::DrivenBody;

/// A body that this worker is to drive, with its links to the workers of the body.
pub(super) struct BodyDriver {
    number: u32,
    /// The number of the body whose program has the node that runs this one; 0 for the function itself.
    pub(super) within: u32,
    lease: LeaseId,
    participants: Vec<Participant>,
    axes: Axes,
    program: DriverProgram,
    pub(super) links: Vec<Arc<Link>>,
}

impl BodyDriver {
    /// Becomes the driver of the body's lease. Results arrive in the memory of the steps that drive it.
    pub(super) fn start(self, node: &Holdings, in_flight: u32, pool: &Pool) -> DrivenBody {
        DrivenBody {
            number: self.number,
            driver: Driver::new(
                &node.world,
                node.hub.clone(),
                self.lease,
                self.participants,
                self.program,
                self.axes.clone(),
                in_flight,
                self.links,
                pool.clone(),
            ),
            axes: self.axes,
        }
    }
}

impl Holdings {
    /// Checks the bodies in the grant of the lease `around`, and links this worker to their participants. `programs`
    /// are those of the bodies that it runs a part of, in order.
    pub(super) async fn bodies(
        self: &Arc<Self>,
        around: LeaseId,
        grants: Vec<BodyGrant>,
        mut programs: impl Iterator<Item = HashedProgram>,
    ) -> Result<(Vec<Part>, Vec<BodyDriver>)> {
        let (mut parts, mut drivers) = (vec![], vec![]);
        for body in grants {
            let hashed = body.part.as_ref().and_then(|_| programs.next());
            body.check(hashed.as_ref().map(|h| &**h.program()))?;
            let lease = around.of_body(body.number);
            if let Some(program) = body.driver {
                let owner = body.participants.len() - 1;
                self.is_mine(&body.participants, owner as ParticipantIx)?;
                let mut links = Vec::with_capacity(owner);
                for p in &body.participants[..owner] {
                    links.push(self.link_to_worker(p).await?);
                }
                drivers.push(BodyDriver {
                    number: body.number,
                    within: body.within,
                    lease,
                    participants: body.participants.clone(),
                    axes: body.axes.clone(),
                    program,
                    links,
                });
            }
            if let Some(part) = body.part {
                let missing = || Error::internal("an install without the program of a body");
                let hashed = hashed.ok_or_else(missing)?;
                self.is_mine(&body.participants, part.me)?;
                let links = self
                    .links(&body.participants, part.me, hashed.program(), Role::Worker)
                    .await?;
                parts.push(Part {
                    number: body.number,
                    lease,
                    hashed,
                    me: part.me,
                    participants: body.participants,
                    axes: body.axes,
                    step_bytes: part.step_bytes,
                    links,
                });
            }
        }
        Ok((parts, drivers))
    }

    /// Returns the link to a worker, which may be this one. Between two workers, the one whose name sorts first dials.
    pub(super) async fn link_to_worker(self: &Arc<Self>, p: &Participant) -> Result<Arc<Link>> {
        if p.name == self.me.name && p.incarnation == self.me.incarnation {
            return Ok(Link::to_itself(&self.hub));
        }
        self.link_to(p, Role::Worker, self.me.name < p.name).await
    }
}
