//! A run: it carries a scenario out from start to rest, and checks the invariants on the way.
//!
//! ```text
//! ready ── calls, faults ──> all have ended ── heal ──> all are back ── canary ──> rest ── all stop ──> report
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use convoke::Code;
use convoke_common::detection::bounds::LOST;
use serde::{Deserialize, Serialize};
use tracing::Level;

use crate::cluster::{Cluster, Host, HostState, Setup, Task};
use crate::draw::Draw;
use crate::event_log::Event;
use crate::faults::{Air, Cells, Injector, TimerCells};
use crate::invariants::{
    CALL_BOUND, Canary, Findings, Invariants, KEPT_BOUND, REST_BOUND, SETTLE_BOUND, Stage, View,
    Violation, deserted, keeps, left_over, of_coordinator, unretired,
};
use crate::oracle::{ExpectedOutcome, expect};
use crate::scenario::Scenario;
use crate::script::{self, CallOutcome, Models, Notes, Record};
use crate::steps::Steps;
use crate::workload::{Model, ModelSpec, inputs};
use crate::world::Wire;

/// How long workers may take to register and clients to connect, from the first tick.
const READY_BOUND: Duration = Duration::from_secs(20);

/// How long a canary may take.
const CANARY_BOUND: Duration = Duration::from_secs(15);

/// How long the coordinator may take to answer what it holds, and the pause before it is asked again.
const ANSWER_BOUND: Duration = Duration::from_secs(1);
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// How often the coordinator is asked which members and leases there are, in ticks.
const OBSERVED: u128 = 50;

/// How long a process may take to stop: what its owner grants it, and a little more.
const STOP_BOUND: Duration = Duration::from_secs(12);

/// The result of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub seed: u64,
    /// The hash of everything that happened, in order.
    pub hash: u64,
    /// Simulated milliseconds.
    pub simulated: u64,
    /// The number of steps by outcome: the error's code, `ok`, or `lost` without an outcome.
    pub steps: BTreeMap<String, u64>,
    /// The number of calls by outcome: the error's code, `ok`, `dropped` or `lost`.
    pub calls: BTreeMap<String, u64>,
    pub cells: Cells,
    pub timers: TimerCells,
    pub violations: Vec<Violation>,
}

/// Runs `scenario`. With `print`, the log of all processes up to that level goes to stderr.
pub fn run(scenario: &Scenario, print: Option<Level>) -> Report {
    let mut run = Run::new(scenario, print);
    if run.ready() {
        run.disturb();
        run.recover();
        run.stop();
    }
    run.report()
}

struct Run<'a> {
    scenario: &'a Scenario,
    cluster: Cluster,
    steps: Steps,
    events: Vec<Event>,
    injector: Injector,
    invariants: Invariants,
    found: Findings,
    notes: Notes,
    records: Vec<Record>,
    /// The version of `notes` that `records` is a copy of.
    copied: u64,
    models: Vec<Models>,
    expected: BTreeMap<(usize, usize), ExpectedOutcome>,
    scripts: Vec<Option<Task<()>>>,
    /// Whether each client has finished its script. A client whose process dies goes on with its remaining calls.
    spoken: Vec<bool>,
    /// Workers that have not joined yet.
    absent: BTreeSet<usize>,
    left: BTreeMap<Host, Duration>,
    /// Whether the coordinator kept what it was told once everything was mended; `None` until then.
    kept: Option<Result<(), String>>,
    ends: usize,
    /// The last question of which members and leases there are.
    observed: Option<Task<()>>,
    zero: Duration,
}

/// What happens to every packet of a run: some networks are slow, and a few lose or double a packet now and then.
fn air(seed: u64) -> Wire {
    let mut d = Draw::new(seed).fork("air");
    Wire {
        loss: d.weighted(&[(6, 0), (1, 1000), (1, 10_000)]),
        duplicate: d.weighted(&[(6, 0), (1, 5000)]),
        delay: d.pick(&[(0, 0), (0, 1), (0, 3), (2, 4)]),
        ..Wire::default()
    }
}

/// Whether an error says that a link was found dead, in a step or while a model was loaded.
fn is_lost(code: Code) -> bool {
    matches!(code, Code::PeerLost | Code::Unreachable)
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, print: Option<Level>) -> Run<'a> {
        let (workers, clients) = (scenario.workers.len(), scenario.clients.len());
        let mut cluster = Cluster::new(Setup {
            seed: scenario.seed,
            workers: workers as u16,
            clients: clients as u16,
            memories: scenario
                .workers
                .iter()
                .map(|w| u64::from(w.memory_mib) << 20)
                .collect(),
            simgpus: scenario.workers.iter().map(|w| w.simgpu).collect(),
            own: scenario.own(),
            print,
            ..Setup::default()
        });
        let air = air(scenario.seed);
        let draw = Draw::new(scenario.seed).fork("injector");
        cluster.wires(air);
        let mut absent = BTreeSet::new();
        for (i, w) in scenario.workers.iter().enumerate() {
            let host = Host::Worker(i as u16);
            cluster.knobs(host).set_job_ms(0, u64::from(w.kernel_ms));
            if w.joins > 0 {
                cluster.kill(host);
                absent.insert(i);
            }
        }
        let models: Vec<Models> = scenario
            .clients
            .iter()
            .map(|c| Models::new(c.models.iter().map(|m| m.spec.build()).collect()))
            .collect();
        let mut expected = BTreeMap::new();
        for (c, client) in scenario.clients.iter().enumerate() {
            for (i, call) in client.calls.iter().enumerate() {
                let model: &Model = &models[c][call.model];
                expected.insert((c, i), expect(model, &script::given(model, call)));
            }
        }
        Run {
            injector: Injector::new(&scenario.faults, workers, clients, Air(air), draw),
            scripts: scenario.clients.iter().map(|_| None).collect(),
            spoken: vec![false; scenario.clients.len()],
            scenario,
            cluster,
            steps: Steps::default(),
            events: vec![],
            invariants: Invariants::default(),
            found: Findings::default(),
            notes: Notes::default(),
            records: vec![],
            copied: 0,
            models,
            expected,
            absent,
            left: BTreeMap::new(),
            kept: None,
            ends: 0,
            observed: None,
            zero: Duration::ZERO,
        }
    }

    fn now(&self) -> Duration {
        self.cluster.elapsed().saturating_sub(self.zero)
    }

    fn ready(&mut self) -> bool {
        let ready = self.cluster.settle(READY_BOUND);
        self.look(Stage::Ready, &[], &[]);
        if !ready {
            return false;
        }
        self.zero = self.cluster.elapsed();
        self.injector.begin(self.zero);
        true
    }

    fn is_back(&self, host: Host) -> bool {
        let away = matches!(host, Host::Worker(i) if self.absent.contains(&usize::from(i)));
        away || self.left.contains_key(&host) || self.cluster.is_ready(host)
    }

    /// Lets one millisecond pass, takes in its events, and checks all invariants.
    fn tick(&mut self) {
        let running = self.cluster.trace().running();
        let due = self.cluster.elapsed().as_millis().is_multiple_of(OBSERVED);
        if due && self.observed.as_ref().is_none_or(Task::is_over) {
            self.observed = Some(self.cluster.observe());
        }
        self.cluster.tick();
        self.events = self.steps.peek(self.cluster.trace());
        self.injector.note(&self.events, &self.steps, &running);
        self.steps.apply(&self.events);
        for (at, host, _) in &self.cluster.ends()[self.ends..] {
            self.steps.gone(*host, *at);
            if let Host::Client(c) = host {
                self.notes
                    .lost(usize::from(*c), at.saturating_sub(self.zero));
            }
        }
        self.ends = self.cluster.ends().len();
        if let Some((copied, records)) = self.notes.changed(self.copied) {
            (self.copied, self.records) = (copied, records);
        }
        let view = View {
            now: self.cluster.elapsed(),
            zero: self.zero,
            scenario: self.scenario,
            cluster: &self.cluster,
            steps: &self.steps,
            events: &self.events,
            injured: &self.injector.injured,
            hogs: &self.injector.hogs,
            left: &self.left,
            records: &self.records,
            expected: &self.expected,
            coordinators: &[],
            kept: None,
            canaries: &[],
            absent: &self.absent,
        };
        self.invariants.tick(&view, &mut self.found);
    }

    /// Lets workers join and leave when they are due, and starts the scripts of clients.
    fn direct(&mut self) {
        let now = self.now();
        let due = |ms: u32| now >= Duration::from_millis(u64::from(ms));
        for (i, w) in self.scenario.workers.iter().enumerate() {
            let host = Host::Worker(i as u16);
            if due(w.joins) && self.absent.remove(&i) {
                self.cluster.start(host);
            }
            if w.leaves.is_some_and(due) && !self.left.contains_key(&host) {
                self.left.insert(host, self.cluster.elapsed());
                self.injector.left.insert(host);
                self.cluster.stop(host);
            }
        }
        for (c, spec) in self.scenario.clients.iter().enumerate() {
            let host = Host::Client(c as u16);
            if self.cluster.state(host) != HostState::Up {
                self.notes.lost(c, now);
                self.scripts[c] = None;
                self.spoken[c] = false;
                continue;
            }
            if let Some(task) = &self.scripts[c] {
                if !task.is_over() {
                    continue;
                }
                self.spoken[c] |= task.take().is_some();
            }
            if self.spoken[c] {
                continue;
            }
            self.notes.lost(c, now);
            let task = script::run(
                &self.cluster,
                c,
                spec,
                &self.models[c],
                &self.notes,
                self.zero,
            );
            self.scripts[c] = Some(task);
        }
    }

    /// Runs the calls and the faults until all of them are over.
    fn disturb(&mut self) {
        let mut over_since = None;
        loop {
            self.direct();
            self.injector.tick(&mut self.cluster, &mut self.steps);
            self.tick();
            let idle = self.injector.is_over() && self.spoken();
            match (idle, over_since) {
                (true, _) => return,
                (false, None) if self.injector.is_over() => over_since = Some(self.now()),
                (false, Some(since)) if self.now() > since + CALL_BOUND => return,
                _ => {}
            }
        }
    }

    /// Whether the script of every client has ended.
    fn spoken(&self) -> bool {
        self.scripts
            .iter()
            .all(|s| s.as_ref().is_some_and(Task::is_over))
    }

    /// Lets time pass until `over` holds, at most for `bound`. Returns whether it holds.
    fn wait(&mut self, bound: Duration, over: impl Fn(&Run<'_>) -> bool) -> bool {
        let end = self.cluster.elapsed() + bound;
        while !over(self) {
            if self.cluster.elapsed() >= end {
                return false;
            }
            self.tick();
        }
        true
    }

    /// Mends everything, and checks that everybody comes back, that a step succeeds, and that nothing is left over.
    fn recover(&mut self) {
        self.injector.heal(&mut self.cluster);
        self.cluster.heal();
        self.cluster.wires(Wire::default());
        for host in self.cluster.hosts() {
            let away = matches!(host, Host::Worker(i) if self.absent.contains(&usize::from(i)));
            if !self.left.contains_key(&host) && !away {
                self.cluster.start(host);
            }
        }
        let back = |r: &Run<'_>| r.cluster.hosts().iter().all(|h| r.is_back(*h));
        let back = self.wait(SETTLE_BOUND, back);
        self.look(Stage::Back, &[], &[]);
        if !back {
            return;
        }
        let canaries = self.canaries();
        let keeps = keeps(&self.cluster);
        self.wait(ANSWER_BOUND, |_| keeps.is_over());
        self.kept = Some(keeps.take().unwrap_or_else(|| Err("no answer".to_owned())));
        // The models of clients that died are freed once the coordinator has noticed their end.
        self.wait(REST_BOUND, |r| {
            left_over(&r.cluster).is_empty() && unretired(&r.cluster, &r.steps).next().is_none()
        });
        let held = self.of_coordinator(false);
        self.look(Stage::Rest, &held, &canaries);
    }

    /// Checks the invariants at a stage; `coordinators` is what the coordinator holds.
    fn look(&mut self, stage: Stage, coordinators: &[String], canaries: &[Canary]) {
        let records = self.notes.records();
        let view = View {
            now: self.cluster.elapsed(),
            zero: self.zero,
            scenario: self.scenario,
            cluster: &self.cluster,
            steps: &self.steps,
            events: &[],
            injured: &self.injector.injured,
            hogs: &self.injector.hogs,
            left: &self.left,
            records: &records,
            expected: &self.expected,
            coordinators,
            kept: self.kept.as_ref(),
            canaries,
            absent: &self.absent,
        };
        self.invariants.at(stage, &view, &mut self.found);
    }

    /// Lists what the coordinator holds, as text. It is asked until that is nothing, since it is the last to learn that
    /// work is over.
    fn of_coordinator(&mut self, deserted: bool) -> Vec<String> {
        let end = self.cluster.elapsed() + KEPT_BOUND;
        loop {
            let asked = of_coordinator(&self.cluster, deserted);
            self.wait(ANSWER_BOUND, |_| asked.is_over());
            let left = asked
                .take()
                .unwrap_or_else(|| vec!["coordinator: no answer".into()]);
            if left.is_empty() || self.cluster.elapsed() >= end {
                return left;
            }
            self.wait(ASK_AGAIN, |_| false);
        }
    }

    /// Runs a step of each client.
    fn canaries(&mut self) -> Vec<Canary> {
        let model = ModelSpec::narrow(7, 12).build();
        let ExpectedOutcome::Results(want) = expect(&model, &inputs(&model, 1, 2, false)) else {
            return vec![];
        };
        let alive = (0..self.scenario.workers.len())
            .filter(|i| self.cluster.is_ready(Host::Worker(*i as u16)))
            .count();
        let mut canaries = Vec::new();
        for client in 0..self.scenario.clients.len() as u16 {
            let mut again = true;
            let got = loop {
                let task = script::canary(&self.cluster, client, &model, alive.min(3) as u32);
                self.wait(CANARY_BOUND, |_| task.is_over());
                match task.take() {
                    // Links that ended while packets were lost are found dead one by one, each within this bound.
                    Some(Err(e)) if is_lost(e.code) && std::mem::take(&mut again) => {
                        self.wait(LOST, |_| false);
                    }
                    got => break got,
                }
            };
            canaries.push(Canary {
                client,
                want: want.clone(),
                got,
            });
        }
        canaries
    }

    /// Stops the clients, then the workers, then the coordinator.
    fn stop(&mut self) {
        let is_client = |h: &Host| matches!(h, Host::Client(_));
        let is_worker = |h: &Host| matches!(h, Host::Worker(_));
        let hosts = self.cluster.hosts();
        let parts: [Vec<Host>; 3] = [
            hosts.iter().copied().filter(is_client).collect(),
            hosts.iter().copied().filter(is_worker).collect(),
            vec![Host::Coordinator],
        ];
        for (part, hosts) in parts.into_iter().enumerate() {
            let up: Vec<Host> = hosts
                .into_iter()
                .filter(|h| self.cluster.state(*h) == HostState::Up)
                .collect();
            for host in &up {
                self.left.insert(*host, self.cluster.elapsed());
                self.cluster.stop(*host);
            }
            let down = |r: &Run<'_>| up.iter().all(|h| r.cluster.state(*h) == HostState::Down);
            self.wait(STOP_BOUND, down);
            if part == 0 {
                let at_rest = |r: &Run<'_>| deserted(&r.cluster).is_empty();
                self.wait(REST_BOUND, at_rest);
                let held = self.of_coordinator(true);
                // While the coordinator answered, it may have begun to measure links, for which it has tasks.
                self.wait(REST_BOUND, at_rest);
                self.look(Stage::Deserted, &held, &[]);
            }
        }
        self.look(Stage::Over, &[], &[]);
    }

    fn report(self) -> Report {
        let mut steps = BTreeMap::new();
        for step in self.steps.steps.values() {
            let outcome = match step.outcomes.first() {
                Some((_, None)) => "ok",
                Some((_, Some(code))) => code,
                None => "lost",
            };
            *steps.entry(outcome.to_owned()).or_default() += 1;
        }
        let mut calls = BTreeMap::new();
        for record in self.notes.records().iter().filter(|r| r.call.is_some()) {
            let outcome = match &record.ended {
                Some((_, CallOutcome::Results(_))) => "ok".to_owned(),
                Some((_, CallOutcome::Failed(e))) => e.code.name(),
                Some((_, CallOutcome::Dropped)) => "dropped".to_owned(),
                Some((_, CallOutcome::Lost)) | None => "lost".to_owned(),
            };
            *calls.entry(outcome).or_default() += 1;
        }
        Report {
            seed: self.scenario.seed,
            hash: self.cluster.trace().hash(),
            simulated: self.cluster.elapsed().as_millis() as u64,
            steps,
            calls,
            cells: self.injector.tally.cells,
            timers: self.injector.tally.timers,
            violations: self.found.violations,
        }
    }
}
