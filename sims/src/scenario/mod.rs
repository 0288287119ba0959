//! A scenario: everything that a run does, as plain data that a seed determines.
//!
//! A scenario stays valid when any of its elements is left out, so that a failing one can be shrunk. It is stored as
//! JSON, so that a shrunken one can be run again.

mod aimed;
mod draw;
mod shrink;
mod swarm;

use std::collections::BTreeMap;

use clap::ValueEnum;
use convoke_common::detection::timer::TimerKind;
use convoke_common::identity::{Amount, Budget};
use serde::{Deserialize, Serialize};

use crate::cluster::Host;
use crate::eager::CallMode;
use crate::faults::{Fault, Row, StepState};
use crate::workload::ModelSpec;

pub use shrink::smaller;

/// How seeds draw scenarios.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum,
)]
pub enum ScenarioKind {
    /// Up to six workers and four clients for some seconds, with few faults, which are brief.
    #[default]
    Plain,
    /// Up to twelve workers and six clients, with more faults, which last up to two minutes; each seed has a mix of its
    /// own.
    Swarm,
}

impl ScenarioKind {
    /// Every kind.
    pub const ALL: [ScenarioKind; 2] = [ScenarioKind::Plain, ScenarioKind::Swarm];

    /// The kind's name, as it stands in a corpus and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ScenarioKind::Plain => "plain",
            ScenarioKind::Swarm => "swarm",
        }
    }
}

/// Everything that a run does. Times are milliseconds since the cluster was ready.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    pub seed: u64,
    pub workers: Vec<WorkerSpec>,
    pub clients: Vec<ClientSpec>,
    pub faults: Vec<Fault>,
}

/// A worker of the scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerSpec {
    pub memory_mib: u32,
    /// The most milliseconds that a kernel takes.
    pub kernel_ms: u32,
    /// When the worker joins; 0 means before anything else happens.
    pub joins: u32,
    /// When the worker leaves for good, as after SIGTERM; `None` if it stays.
    pub leaves: Option<u32>,
    /// Whether the worker has a token of its own.
    #[serde(default)]
    pub own: bool,
    /// Whether the worker's device is a simulated GPU, with as much memory as the worker itself.
    #[serde(default)]
    pub simgpu: bool,
}

/// A client: the models that it loads, and the calls that it makes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientSpec {
    pub models: Vec<ModelUse>,
    pub calls: Vec<CallSpec>,
    /// If the client has a token of its own, the percentage of each worker's memory that the token allows.
    #[serde(default)]
    pub own: Option<u8>,
}

/// How a client loads a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelUse {
    pub spec: ModelSpec,
    /// When the client starts to load the model.
    pub at: u32,
    /// The exact number of workers to load the model over; with `None` the coordinator chooses.
    pub workers: Option<u32>,
    /// The node to pin and the worker to pin it to. The node is a number modulo the number of the model's step nodes.
    pub pin: Option<(u32, u16)>,
    pub in_flight: u32,
    /// Milliseconds after which the client gives its first load of the model up, if it does. It loads the model again then.
    #[serde(default)]
    pub gives_up: Option<u32>,
}

/// One call of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallSpec {
    pub at: u32,
    /// Index into the client's models.
    pub model: usize,
    /// Seed of its inputs.
    pub inputs: u64,
    /// The size of the dynamic axis.
    pub axis: i64,
    /// Whether the inputs make the model's trap fail.
    pub sprung: bool,
    /// Milliseconds from the call until its deadline, if it has one.
    pub deadline: Option<u32>,
    /// Milliseconds from the call until its caller drops it, if it does.
    pub cancel: Option<u32>,
    /// Whether the call is run again when a worker is lost.
    pub retry: bool,
    /// If present, the call is made on handles, on devices that this seed draws. It has no deadline and is not run
    /// again.
    pub eager: Option<(CallMode, u64)>,
}

impl Scenario {
    /// Draws the plain scenario of `seed`.
    pub fn draw(seed: u64) -> Scenario {
        draw::scenario(seed)
    }

    /// Draws the scenario of this kind that `seed` determines.
    pub fn of_kind(kind: ScenarioKind, seed: u64) -> Scenario {
        match kind {
            ScenarioKind::Plain => draw::scenario(seed),
            ScenarioKind::Swarm => swarm::scenario(seed),
        }
    }

    /// The scenario with this number that aims at a cell of the table fault × step state, or timer × fault × step state.
    pub fn aimed(row: Row, state: StepState, timer: Option<TimerKind>, number: u64) -> Scenario {
        aimed::scenario(row, state, timer, number)
    }

    /// The hosts that have tokens of their own, and the budgets of these tokens.
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

    /// The number of calls of all clients.
    pub fn calls(&self) -> usize {
        self.clients.iter().map(|c| c.calls.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_repeat_and_survive_json() {
        let all = (0..400).map(|i| (ScenarioKind::ALL[i % 2], i as u64 / 2));
        for (kind, seed) in all {
            let s = Scenario::of_kind(kind, seed);
            assert_eq!(s, Scenario::of_kind(kind, seed));
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
