//! What tests show a checker.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::cluster::{Cluster, Host};
use crate::event_log::Event;
use crate::faults::Injury;
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;
use crate::oracle::ExpectedOutcome;
use crate::scenario::{Scenario, WorkerSpec};
use crate::steps::Steps;

/// A run that a test makes up, of one worker with a simulated GPU. All of its times are since the simulation began.
pub struct FeignedRun {
    pub cluster: Cluster,
    pub steps: Steps,
    pub injured: Vec<Injury>,
    scenario: Scenario,
    left: BTreeMap<Host, Duration>,
    absent: BTreeSet<usize>,
    expected: BTreeMap<(usize, usize), ExpectedOutcome>,
}

impl FeignedRun {
    pub fn new(cluster: Cluster) -> FeignedRun {
        let worker = WorkerSpec {
            memory_mib: 64,
            kernel_ms: 1,
            joins: 0,
            leaves: None,
            own: false,
            simgpu: true,
        };
        FeignedRun {
            cluster,
            steps: Steps::default(),
            injured: vec![],
            scenario: Scenario {
                seed: 0,
                workers: vec![worker],
                clients: vec![],
                faults: vec![],
            },
            left: BTreeMap::new(),
            absent: BTreeSet::new(),
            expected: BTreeMap::new(),
        }
    }

    /// Has a checker look at a tick, and returns what it says.
    pub fn shows(
        &self,
        checker: &mut dyn Invariant,
        now: Duration,
        events: &[Event],
    ) -> Vec<String> {
        let view = View {
            now,
            zero: Duration::ZERO,
            scenario: &self.scenario,
            cluster: &self.cluster,
            steps: &self.steps,
            events,
            injured: &self.injured,
            hogs: &[],
            left: &self.left,
            absent: &self.absent,
            records: &[],
            expected: &self.expected,
            coordinators: &[],
            kept: None,
            canaries: &[],
        };
        let mut found = Findings::default();
        checker.tick(&view, &mut found);
        found.violations.into_iter().map(|v| v.what).collect()
    }
}
