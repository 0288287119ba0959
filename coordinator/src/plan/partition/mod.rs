//! Partition: a placed function becomes one program per worker and one for the driver.
//!
//! ```text
//!   driver --feed--> worker --send/recv--> worker --fetch--> driver
//! ```
//!
//! Invariants
//! 1. A tensor crosses once to each participant that reads it, however many nodes read it there.
//! 2. Every operand of a program is a literal, a recv, or an output of an earlier node of it.
//! 3. A program holds the constants and init nodes that its nodes need, and only the artifacts of those.
//! 4. Workers come first in the numbering of participants; the driver is the last.

mod program;
mod summary;

use std::collections::BTreeMap;

use convoke_graph::graph::ValueId;
use convoke_graph::ids::ParticipantIx;
use convoke_graph::program::{DriverProgram, DriverSlot, Feed, Fetch, FetchFrom, Program};

use crate::place::{NONE, Placement};

pub use summary::{cut_edges, extent, names, summarise};

/// A tensor that one worker sends to another in every step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    pub value: ValueId,
    pub from: ParticipantIx,
    pub to: ParticipantIx,
    pub bytes: u64,
}

/// The programs of all participants, and the tensors that cross between them.
#[derive(Debug, Clone)]
pub struct Partition {
    /// One program for each participant of the team.
    pub programs: Vec<Program>,
    pub driver: DriverProgram,
    pub cuts: Vec<Cut>,
    /// Most bytes of one step's tensors at once on each worker.
    pub step_bytes: Vec<u64>,
}

/// A send before values are renumbered.
struct UnnumberedSend {
    value: ValueId,
    to: ParticipantIx,
    slot: u32,
    priority: u64,
}

/// All tensors that cross between participants.
#[derive(Default)]
struct Crossings {
    /// Values that each worker receives, in slot order.
    recvs: Vec<Vec<(ValueId, ParticipantIx)>>,
    sends: Vec<Vec<UnnumberedSend>>,
    driver: DriverProgram,
    cuts: Vec<Cut>,
}

/// Partitions `placed`.
pub fn partition(placed: &Placement) -> Partition {
    let crossings = crossings(placed);
    let programs = (0..placed.team.size())
        .map(|m| program::build(placed, &crossings, m))
        .collect();
    Partition {
        programs,
        driver: crossings.driver,
        cuts: crossings.cuts,
        step_bytes: placed.usage.iter().map(|u| u.activations).collect(),
    }
}

fn crossings(placed: &Placement) -> Crossings {
    let (f, work, team) = (&placed.function, &placed.work, &placed.team);
    let driver = team.size() as ParticipantIx;
    let mut c = Crossings::default();
    c.recvs.resize_with(team.size(), Vec::new);
    c.sends.resize_with(team.size(), Vec::new);
    c.driver.feeds = f
        .params
        .iter()
        .map(|p| Feed {
            name: f.value(*p).name.to_string(),
            ty: f.ty(*p).clone(),
            to: vec![],
        })
        .collect();
    for (v, value) in work.flow_value.iter().copied().enumerate() {
        let writer = work.writer[v];
        let from = if writer == NONE {
            driver
        } else {
            placed.participant[writer as usize]
        };
        // The urgency of the most urgent reader at each destination.
        let mut readers: BTreeMap<ParticipantIx, u64> = BTreeMap::new();
        for r in work.readers.row(v).iter().map(|r| *r as usize) {
            let urgency = readers.entry(placed.participant[r]).or_default();
            *urgency = (*urgency).max(placed.schedule.priority[r]);
        }
        for (to, urgency) in readers.into_iter().filter(|(to, _)| *to != from) {
            let slot = c.recvs[usize::from(to)].len() as u32;
            c.recvs[usize::from(to)].push((value, from));
            if from == driver {
                // The first flows are the parameters, in order.
                c.driver.feeds[v].to.push((to, slot));
                continue;
            }
            let bytes = work.flow_bytes[v];
            let transfer = team.transfer_ns(usize::from(from), usize::from(to), bytes);
            let priority = transfer.saturating_add(urgency);
            c.sends[usize::from(from)].push(UnnumberedSend {
                value,
                to,
                slot,
                priority,
            });
            c.cuts.push(Cut {
                value,
                from,
                to,
                bytes,
            });
        }
    }
    fetches(placed, &mut c);
    c
}

/// Assigns the results: parameters stay with the driver, and a value that is a result twice crosses once.
fn fetches(placed: &Placement, c: &mut Crossings) {
    let (f, work) = (&placed.function, &placed.work);
    let driver = placed.team.size() as ParticipantIx;
    let homes: BTreeMap<ValueId, u16> = work
        .const_results
        .iter()
        .zip(&placed.homes)
        .map(|(r, home)| (work.const_value[*r as usize], *home))
        .collect();
    let params: BTreeMap<ValueId, u32> = f.params.iter().copied().zip(0..).collect();
    let mut slots: BTreeMap<ValueId, (ParticipantIx, u32)> = BTreeMap::new();
    for (name, value) in &f.results {
        let ty = f.ty(*value).clone();
        let from = match params.get(value) {
            Some(param) => FetchFrom::Param(*param),
            None => {
                let next = c.driver.slots.len() as u32;
                let (from, slot) = *slots.entry(*value).or_insert_with(|| {
                    let at = work.of_value[value.ix()] as usize;
                    let (from, bytes) = match homes.get(value) {
                        Some(home) => (*home, work.const_bytes[at]),
                        None => (
                            placed.participant[work.writer[at] as usize],
                            work.flow_bytes[at],
                        ),
                    };
                    let priority = placed.team.driver.transfer_ns(bytes);
                    let sending = UnnumberedSend {
                        value: *value,
                        to: driver,
                        slot: next,
                        priority,
                    };
                    c.sends[usize::from(from)].push(sending);
                    c.driver.slots.push(DriverSlot {
                        from,
                        ty: ty.clone(),
                    });
                    (from, next)
                });
                FetchFrom::Worker { from, slot }
            }
        };
        c.driver.fetches.push(Fetch {
            name: name.clone(),
            ty,
            from,
        });
    }
}

#[cfg(test)]
mod tests;
