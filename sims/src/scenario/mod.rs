//! A scenario: everything that a run does, as plain data that a seed determines.
//!
//! Every element can be left out and the rest still makes sense, so that a failing scenario can be shrunk; it goes to
//! JSON and back, so that a shrunken one can be run again.

mod draw;
mod shrink;

use std::collections::BTreeMap;

use convoke_common::identity::{Amount, Budget};
use serde::{Deserialize, Serialize};

use crate::cluster::Host;
use crate::eager::How;
use crate::faults::Fault;
use crate::workload::ModelSpec;

pub use shrink::smaller;

/// See the module. Times are milliseconds since the cluster was ready.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    pub seed: u64,
    pub workers: Vec<WorkerSpec>,
    pub clients: Vec<ClientSpec>,
    pub faults: Vec<Fault>,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerSpec {
    pub memory_mib: u32,
    /// Milliseconds that a kernel takes, at most.
    pub kernel_ms: u32,
    /// When it joins; 0: before anything else happens.
    pub joins: u32,
    /// When it leaves for good, as after SIGTERM.
    pub leaves: Option<u32>,
    /// It has a token of its own.
    #[serde(default)]
    pub own: bool,
}

/// A client: its models, and the calls it makes of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientSpec {
    pub models: Vec<ModelUse>,
    pub calls: Vec<CallSpec>,
    /// It has a token of its own, which lets it have this many hundredths of each worker's memory.
    #[serde(default)]
    pub own: Option<u8>,
}

/// How a client loads a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelUse {
    pub spec: ModelSpec,
    /// When it starts to load.
    pub at: u32,
    /// Over exactly this many workers, else as the coordinator likes.
    pub workers: Option<u32>,
    /// The number of a step node, modulo how many there are, and the worker that it is pinned to.
    pub pin: Option<(u32, u16)>,
    pub in_flight: u32,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallSpec {
    pub at: u32,
    /// Index into the client's models.
    pub model: usize,
    /// Seed of its inputs.
    pub inputs: u64,
    /// The dynamic axis.
    pub axis: i64,
    /// The model's trap fails.
    pub sprung: bool,
    /// Milliseconds until the deadline.
    pub deadline: Option<u32>,
    /// Milliseconds until the caller drops the call.
    pub cancel: Option<u32>,
    /// Whether it is run again when a worker is lost.
    pub retry: bool,
    /// Made on handles, on devices that this seed draws; it has no deadline, and is not run again.
    pub eager: Option<(How, u64)>,
}

impl Scenario {
    /// The scenario of `seed`.
    pub fn draw(seed: u64) -> Scenario {
        draw::scenario(seed)
    }

    /// Hosts that have tokens of their own, and what these let them have.
    pub fn own(&self) -> BTreeMap<Host, Budget> {
        let workers = self.workers.iter().enumerate();
        let workers = workers.filter(|(_, w)| w.own);
        let workers = workers.map(|(i, _)| (Host::Worker(i as u16), Budget::default()));
        let clients = self.clients.iter().enumerate();
        let clients = clients.filter_map(|(i, c)| {
            let memory = Some(Amount::Percent(c.own?));
            let budget = Budget {
                memory,
                ..Budget::default()
            };
            Some((Host::Client(i as u16), budget))
        });
        workers.chain(clients).collect()
    }

    /// All calls.
    pub fn calls(&self) -> usize {
        self.clients.iter().map(|c| c.calls.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_repeat_and_survive_json() {
        for seed in 0..200 {
            let s = Scenario::draw(seed);
            assert_eq!(s, Scenario::draw(seed));
            let text = serde_json::to_string(&s).unwrap();
            assert_eq!(serde_json::from_str::<Scenario>(&text).unwrap(), s);
            for c in &s.clients {
                assert!(c.calls.iter().all(|call| call.model < c.models.len()));
            }
            let stay = s.workers.iter().filter(|w| w.leaves.is_none()).count();
            assert!(stay >= 1, "{s:?}");
        }
    }

    #[test]
    fn what_is_smaller_is_valid() {
        let s = Scenario::draw(3);
        let weight = |s: &Scenario| {
            let of = |c: &ClientSpec| 1 + c.models.len() + c.calls.len();
            s.workers.len() + s.faults.len() + s.clients.iter().map(of).sum::<usize>()
        };
        for t in smaller(&s) {
            assert!(t != s && weight(&t) <= weight(&s), "{t:?}");
            for c in &t.clients {
                assert!(c.calls.iter().all(|call| call.model < c.models.len()));
            }
        }
    }
}
