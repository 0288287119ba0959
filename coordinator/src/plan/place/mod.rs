//! Placement: the choice of a worker for each node.
//!
//! ```text
//! Function -> Work (flat arrays) -> candidates -> prediction of time and memory -> Placement
//!             cuts along the order (segment, refine) | branches in parallel (ranked)
//! ```
//!
//! Invariants
//! 1. Every step node has one worker; constants and init nodes follow their readers, on as many workers as
//!    read them.
//! 2. No placement needs more memory of a worker's host, or of its device, than each of them offers.
//! 3. Nodes are assigned whole and none is changed: values do not depend on placement.
//! 4. A node runs on a worker that has a kernel for its op at its dtype, and a pinned one on a worker of the pin's set.
//! 5. Pure and deterministic: equal inputs give equal placements.

mod bytes;
mod cluster;
mod device_nodes;
mod eligibility;
mod inner;
mod memory;
mod needed_kernel;
mod pins;
mod schedule;
mod search;
mod too_small;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;

use convoke_common::rpc::{PlanOptions, WorkerCount};
use convoke_common::{Code, Error, Result};
use convoke_graph::graph::Function;
use convoke_graph::program::{ConstantId, NUMERICS_PROFILE};

pub use bytes::{At, MOST_BYTES, bytes_of};
pub use cluster::{ASSUMED_LINK, ClusterModel, LinkSpeed, Team, WorkerModel};
pub use inner::inner_bytes;
pub use memory::{
    Holder, InitDependencies, MemoryModel, Need, PartsUsage, PresentConstants, Usage, needed,
};
pub use pins::{Pins, PlacedStage, check as check_pins, is_pinned};
pub use schedule::Schedule;
pub use too_small::{human, no_room};
pub use work::{NONE, Work};

use eligibility::Eligibility;
use memory::Presence;
use search::Search;

/// A function after placement.
#[derive(Debug, Clone)]
pub struct Placement {
    pub function: Function,
    pub work: Work,
    /// The workers in use, by their index as participants.
    pub team: Team,
    /// The participant of each position of `work`.
    pub participant: Vec<u16>,
    /// The participant that holds each constant result of `work`.
    pub homes: Vec<u16>,
    pub schedule: Schedule,
    pub usage: Vec<Usage>,
    /// Predicted peak of each participant's process above its base footprint.
    pub peaks: Vec<u64>,
    /// The predicted nanoseconds of a step on the fastest single worker whose memory holds the whole function.
    pub single_ns: Option<u64>,
    pub pins: Pins,
    /// How many workers were asked for.
    pub asked: WorkerCount,
}

impl Placement {
    /// Returns the constants that each participant keeps for its leases to share, with their bytes, by their ids.
    pub fn constants(&self) -> Vec<BTreeMap<ConstantId, u64>> {
        let read = memory::read_by_steps(&self.work, self.team.size(), &self.participant);
        let kept = memory::retained(&self.work, &read, &self.homes);
        let bytes = &self.work.const_bytes;
        let each = kept.into_iter();
        each.map(|kept| self.identified(kept, bytes)).collect()
    }

    /// Returns those of the constants that each participant keeps on a device with memory of its own.
    pub fn device_constants(&self) -> Vec<BTreeMap<ConstantId, u64>> {
        let read = memory::on_devices(&self.work, &self.team, &self.participant);
        let each = read.into_iter().zip(&self.team.workers);
        let each = each.map(|(read, worker)| {
            let read = read?;
            Some(self.identified(read, worker.on_device.constant_bytes()))
        });
        each.map(Option::unwrap_or_default).collect()
    }

    fn identified(&self, kept: Vec<bool>, bytes: &[u64]) -> BTreeMap<ConstantId, u64> {
        let ids = self.work.const_id.iter().zip(bytes);
        let kept = ids.zip(kept).filter(|(_, kept)| *kept);
        kept.filter_map(|((id, bytes), _)| Some(((*id)?, *bytes)))
            .collect()
    }

    /// Returns what each participant would need if the workers of the cluster had what `parts` keep there, by their
    /// index, and no other constants, with the peak of its process.
    pub fn usage_after(&self, parts: &[PartsUsage], in_flight: u32) -> Vec<(Usage, u64)> {
        let mut team = self.team.clone();
        for (worker, i) in team.workers.iter_mut().zip(&self.team.indices) {
            let presence = Presence::new(&self.work, &self.work.const_bytes, &parts[*i].constants);
            worker.host.presence = Arc::new(presence);
        }
        let (work, participant) = (&self.work, &self.participant);
        let order = &self.schedule.order;
        let all = memory::usage(work, &team, participant, order, &self.homes, in_flight);
        let loads = |usage: &Usage| Usage {
            weights: usage.missing,
            artifacts: usage.lacking.artifacts,
            chunks: usage.lacking.chunks,
            loading: usage.lacking.peak,
            ..*usage
        };
        let loaded: Vec<Usage> = all.iter().map(loads).collect();
        let peaks = memory::peaks(work, &team, participant, order, in_flight, &loaded);
        all.into_iter().zip(peaks).collect()
    }
}

/// Places `function`, which was verified, on workers of `cluster`.
pub fn place(
    function: Function,
    cluster: &ClusterModel,
    options: &PlanOptions,
) -> Result<Placement> {
    if cluster.workers.is_empty() {
        let e = Error::new(Code::NoWorkers, "no worker has joined");
        return Err(e.advise("start one with `convoke worker --join HOST:PORT --token-file FILE`"));
    }
    if cluster.workers.len() >= usize::from(u16::MAX) {
        return Err(Error::new(
            Code::InvalidArgument,
            "more workers than a plan can number",
        ));
    }
    let bounds = options.axes.at_bounds();
    let mut expected = bounds.clone();
    for (axis, size) in &options.expected {
        // An axis without a bound is not one of the function's axes.
        if let Some(e) = expected.get_mut(axis.as_str()) {
            *e = (*size).clamp(0, *e);
        }
    }
    let mut work = Work::new(&function, &bounds, &expected);
    // If profiles are mixed, the planner does not see which constants are present at devices of other profiles.
    let profile = cluster.profile().unwrap_or(NUMERICS_PROFILE);
    work.identify(&function, profile)
        .map_err(|e| Error::internal(format!("constants cannot be encoded: {e}")))?;
    let cluster = &cluster.for_work(&function, &work);
    let pins = Pins::resolve(&function, &work, cluster, options)?;
    let able = Eligibility::new(&function, &work, cluster, &pins, &options.ops)?;
    let search = Search::new(&work, cluster, &pins.fixed, &able, options.in_flight);
    let single = search.single();
    let single_ns = single.as_ref().map(|c| c.schedule.step_ns);
    let chosen = match options.workers {
        WorkerCount::Exactly(n) => search.exactly(n as usize, single)?,
        WorkerCount::Auto => search.fewest(single)?,
    };
    let search::Candidate {
        team,
        participant,
        homes,
        schedule,
        usage,
    } = chosen;
    let peaks = memory::peaks(
        &work,
        &team,
        &participant,
        &schedule.order,
        options.in_flight,
        &usage,
    );
    Ok(Placement {
        function,
        work,
        team,
        participant,
        homes,
        schedule,
        usage,
        peaks,
        single_ns,
        pins,
        asked: options.workers,
    })
}

#[cfg(test)]
mod tests;
