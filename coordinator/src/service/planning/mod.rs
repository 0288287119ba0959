//! Makes plans: away from the network's threads, a few at a time.

pub(crate) mod compute;
mod fitting;
mod limits;
mod options;
mod profiles;
pub(super) mod queue;

use std::sync::Arc;

use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::grant::Participant;
use convoke_common::ids::{Incarnation, PlanId};
use convoke_common::memory::{Ledger, Purpose, Reservation};
use convoke_common::rpc::transport::current_charge;
use convoke_common::rpc::{Intent, PlanAnswer, PlanOptions};
use convoke_common::{Error, Result};
use convoke_graph::graph::Function;
use convoke_graph::program::{HashedProgram, model_name};
use tokio::time::timeout_at;

use self::fitting::{FittingPlan, Request};
pub use self::limits::PlanningLimits;
use super::Service;
use super::peers::Caller;
use crate::blocking::blocking_within;
use crate::membership::{Asker, ConnectionId, Plan, PlanPart, events};

/// How many times its size on the wire a program takes in memory.
const IN_MEMORY: u64 = 3;

impl Service {
    /// Waits for the workers that a restarted coordinator knows and that have not registered again yet.
    pub(super) async fn returned(&self) -> Result<()> {
        let mut population = self.population.subscribe();
        while let Some(until) = self.core.query(|core, now| core.returning(now)).await? {
            let until = self.core.instant(until);
            // Wake when another worker has registered, or when the wait is over.
            let _timer = Timer::arm(TimerKind::Return, until);
            let _ = timeout_at(until, population.changed()).await;
        }
        Ok(())
    }

    /// Drops plans of the caller until the plans of its token leave half of the token's memory to requests.
    async fn make_room(&self, caller: ConnectionId, account: &Ledger) -> Result<()> {
        let limit = account.owner().map_or(u64::MAX, |owner| owner.limit);
        while account.used_by_owner(Purpose::Plans) > limit / 2 {
            let dropped = self.core.apply(events::PlanEviction { owner: caller });
            if !dropped.await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Charges a plan that is to be kept. If there is no room, the caller's oldest plans are dropped.
    async fn charge_plan(
        &self,
        caller: ConnectionId,
        account: &Ledger,
        plan: &Plan,
    ) -> Result<Reservation> {
        let parts = plan.parts.iter().map(|part| &part.program);
        let all = parts.chain(plan.bodies.iter().flat_map(|b| &b.programs));
        let written = all.map(HashedProgram::encoded_bytes);
        let bytes = written.sum::<u64>().saturating_mul(IN_MEMORY);
        loop {
            let refused = match account.reserve(Purpose::Plans, bytes) {
                Ok(charge) => return Ok(charge),
                Err(refused) => refused,
            };
            let dropped = self.core.apply(events::PlanEviction { owner: caller });
            if !dropped.await? {
                return Err(refused);
            }
        }
    }

    /// Plans `function` for the caller as its driver, and keeps the plan.
    pub(super) async fn plan(
        &self,
        caller: &Caller,
        function: Arc<Function>,
        options: PlanOptions,
        driver: Incarnation,
    ) -> Result<PlanAnswer> {
        self.returned().await?;
        let place = self.planning.enter(caller.id, &caller.identity.token_id)?;
        let account = self.account_of(&caller.identity);
        self.make_room(caller.id, &account).await?;
        let held = Arc::new((place, current_charge()));
        let turn = self.planning.turn().await?;
        // The hashing goes on if the call is cancelled meanwhile, and so keeps its turn, its place and its charge.
        let hashed = blocking_within(&self.world, (turn, held), move || {
            let id = function.id();
            (function, id)
        });
        let ((function, function_id), (turn, held)) = hashed.await?;
        let function_id = function_id.map_err(|e| Error::internal(e.to_string()))?;
        self.core
            .query(move |core, _| core.admit(&function_id))
            .await??;
        drop(turn);
        let me = caller.driver(driver);
        let introduction = events::Introduction {
            connection: caller.id,
            driver: me.clone(),
        };
        self.core.apply(introduction).await??;
        let model = model_name(&function.name);
        let installs = options.intent != Intent::Explain;
        let request = Request {
            client: caller.id,
            identity: &caller.identity,
            asker: Asker {
                identity: caller.identity.clone(),
                wants: Some((me, function_id)),
            },
            options,
        };
        let FittingPlan { planned, _place } = self.fitted(&request, function, held).await?;
        let id = PlanId(u64::from_le_bytes(self.world.rng.bytes()));
        let mut participants = planned.participants;
        let name = caller.identity.name.to_string();
        participants.push(Participant {
            name,
            incarnation: driver,
            address: String::new(),
        });
        let parts = planned.programs.into_iter().zip(planned.step_bytes);
        let parts = parts.zip(planned.needed);
        let parts = parts.map(|((program, step_bytes), needed)| PlanPart {
            program,
            step_bytes,
            needed,
        });
        let plan = Arc::new(Plan {
            model,
            function: function_id,
            token: caller.identity.token_id.clone(),
            parts: parts.collect(),
            participants: participants.clone(),
            bodies: planned.bodies,
            axes: planned.axes.clone(),
            in_flight: planned.in_flight,
        });
        if plan.parts.len() + 1 != participants.len() {
            return Err(Error::internal(
                "a plan's programs and workers differ in number",
            ));
        }
        let charge = self.charge_plan(caller.id, &account, &plan).await?;
        tracing::info!(plan = %id, model = plan.model, workers = plan.parts.len(), "planned");
        let kept = events::KeptPlan {
            owner: caller.id,
            id,
            plan,
            charge: Some(Arc::new(charge)),
            installs,
        };
        self.core.apply(kept).await?;
        Ok(PlanAnswer {
            plan: id,
            participants,
            driver: planned.driver,
            axes: planned.axes,
            summary: planned.summary,
            nodes: planned.nodes,
        })
    }
}
