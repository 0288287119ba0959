//! The injector: it starts each fault at its moment, keeps its effects in force, and undoes them.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::time::Duration;

use convoke_common::memory::{Purpose, Reservation};

use super::drain::PendingDrain;
use super::expire::{PASSED, PendingExpiry, Progress};
use super::forge::forge;
use super::forget::PendingForget;
use super::harm::AT_ONCE;
use super::hog::Hog;
use super::lift::PendingLift;
use super::revoke::PendingRevocation;
use super::{Fault, Harm, Met, Row, Tally, Target, Trigger};
use crate::cluster::{Cluster, Host, HostState};
use crate::draw::Draw;
use crate::event_log::{Event, Kind, RunningTimers};
use crate::steps::{Key, Steps};
use crate::world::{DeadlyNode, Wire};

/// Milliseconds after which a fault strikes even if its moment has not come: since the scenario began, and since the fault
/// waits for it.
const LATEST: (u32, u32) = (6000, 2000);

/// Milliseconds between bursts of forged frames.
const FORGE_EVERY: u128 = 4;

/// Seconds per day.
const DAY: i64 = 86_400;

/// How long a peer may be silent without being lost.
const BRIEF: Duration = Duration::from_millis(900);

/// What happens to every packet of a run, even without faults.
#[derive(Debug, Clone, Copy)]
pub struct Air(pub Wire);

/// A fault that struck, with the times at which it did.
#[derive(Debug, Clone)]
pub struct Injury {
    pub harm: Harm,
    pub row: Row,
    pub host: Host,
    /// The other end of a cut, or the client that hoards memory or floods compute.
    pub other: Option<Host>,
    pub at: Duration,
    /// When the fault was undone, if it was.
    pub until: Option<Duration>,
    /// When the coordinator confirmed the revocation that this fault asked for, if it did.
    pub answered: Option<Duration>,
}

impl Injury {
    /// The two hosts whose link was cut, both ways or one way, where the fault concerns only them.
    pub fn link(&self) -> Option<(Host, Host)> {
        let other = self.other.filter(|other| *other != self.host)?;
        matches!(self.harm, Harm::Cut { .. } | Harm::OneWay { .. }).then_some((self.host, other))
    }

    /// The worker that the fault takes away, where it does nothing else: the worker's process or its host ends, is stopped
    /// or reaches nobody, or the worker is taken out of service.
    pub fn lost_worker(&self) -> Option<Host> {
        let alone = match self.harm {
            Harm::Crash | Harm::PowerCut | Harm::Forget | Harm::Drain | Harm::Pause => true,
            Harm::Cut { .. } | Harm::OneWay { .. } => self.link().is_none(),
            _ => false,
        };
        (alone && matches!(self.host, Host::Worker(_))).then_some(self.host)
    }

    /// Whether the fault kept packets from passing, or a process from running, for so short a time until `now` at the latest
    /// that nobody may count as lost by it: the next heartbeat after it, at most half a second later, is still echoed
    /// within two seconds of the one before it, which may be half a second older.
    pub fn is_brief(&self, now: Duration) -> bool {
        let lasted = self.until.unwrap_or(now).saturating_sub(self.at);
        let harm = matches!(
            self.harm,
            Harm::Cut { .. } | Harm::OneWay { .. } | Harm::Pause
        );
        harm && lasted < BRIEF
    }
}

/// The part of an active fault that needs a state of its own.
enum ActiveFault {
    Nothing,
    /// The memory that is kept from the worker.
    Memory {
        _taken: Option<Reservation>,
    },
    /// Index into [`Injector::hogs`].
    Hog(usize),
    Revoke(PendingRevocation),
    Expire(PendingExpiry),
    Drain(PendingDrain),
    Forget(PendingForget),
    Deadly(PendingLift),
    /// The number of days that have yet to pass.
    Days(u16),
}

enum Stage {
    /// The fault waits for its moment. These are the steps that were seen in the wanted state so far.
    Armed(BTreeSet<Key>),
    Active {
        until: Duration,
        met: Met,
        /// Index into [`Injector::injured`].
        injury: usize,
        ongoing: ActiveFault,
    },
    /// The fault's time is up; it is over once its ongoing part has ended.
    Ending {
        injury: usize,
        ongoing: ActiveFault,
    },
    Over,
}

/// Strikes with the faults of a scenario, and records what they met.
pub struct Injector {
    faults: Vec<(Fault, Stage)>,
    workers: usize,
    clients: usize,
    air: Air,
    draw: Draw,
    /// When the scenario begins, as time since the simulation began.
    zero: Duration,
    /// Hosts that left for good, which no fault strikes or starts any more.
    pub left: BTreeSet<Host>,
    pub tally: Tally,
    pub injured: Vec<Injury>,
    /// Clients that take, or took, all they can get of a worker.
    pub hogs: Vec<Hog>,
    /// The seconds by which all calendars have advanced.
    passed: i64,
    /// When the next days pass. Several faults share it: days of two of them would pass faster than members can renew their
    /// certificates.
    days_due: Duration,
}

impl Injector {
    /// Prepares the faults for a cluster with `workers` workers and `clients` clients. Their random choices come from
    /// `draw`.
    pub fn new(faults: &[Fault], workers: usize, clients: usize, air: Air, draw: Draw) -> Injector {
        let armed = |f: &Fault| (f.clone(), Stage::Armed(BTreeSet::new()));
        Injector {
            faults: faults.iter().map(armed).collect(),
            workers,
            clients,
            air,
            draw,
            zero: Duration::ZERO,
            left: BTreeSet::new(),
            tally: Tally::default(),
            injured: Vec::new(),
            hogs: Vec::new(),
            passed: 0,
            days_due: Duration::ZERO,
        }
    }

    /// Starts the scenario's time: the moments of faults count from `zero`.
    pub fn begin(&mut self, zero: Duration) {
        self.zero = zero;
    }

    /// Whether every fault has struck and been undone.
    pub fn is_over(&self) -> bool {
        let over = |(_, stage): &(Fault, Stage)| matches!(stage, Stage::Over);
        self.faults.iter().all(over)
    }

    /// Counts the faults that come from the workload itself. `events` are those of the last tick; `before` are the steps, and
    /// `running` the timers, as they were before that tick.
    pub fn note(&mut self, events: &[Event], before: &Steps, running: &RunningTimers) {
        let mut first = BTreeSet::new();
        for e in events.iter().filter(|e| e.kind == Kind::Abort) {
            let row = match e.code.as_deref() {
                Some("kernel_failed") => Row::KernelError,
                Some("out_of_memory") => Row::OutOfMemory,
                Some("kernel_panicked") => Row::Panic,
                _ => continue,
            };
            let key = (e.lease, e.n);
            let known = before.steps.get(&key).is_some_and(|s| s.has_failed());
            // Participants abort as well when they are told of an error: only the first of them was hit.
            if known || !first.insert(key) {
                continue;
            }
            let states = before.states(e.host);
            let mut met = Met::new();
            self.tally.count(row, &mut met, &states, before, running);
        }
    }

    /// Strikes with the faults that are due, and ends those whose time is up.
    pub fn tick(&mut self, cluster: &mut Cluster, steps: &mut Steps) {
        let now = cluster.elapsed();
        self.take_away(cluster);
        let log = cluster.trace().clone();
        let running = OnceCell::new();
        let running = || running.get_or_init(|| log.running());
        for i in 0..self.faults.len() {
            let host = self.host(i);
            match &mut self.faults[i] {
                (fault, Stage::Armed(seen)) => {
                    let elapsed = now.saturating_sub(self.zero);
                    if due(fault, elapsed, seen, steps, host, running) {
                        self.strike(i, host, cluster, steps, running());
                    }
                }
                (_, Stage::Active { until, .. }) if *until <= now => self.undo(i, host, cluster),
                (_, Stage::Ending { .. }) => self.end(i, host, cluster, steps),
                (fault, Stage::Active { met, .. }) => {
                    let row = fault.harm.row(fault.target);
                    if fault.harm == Harm::Forge && now.as_millis().is_multiple_of(FORGE_EVERY) {
                        forge(cluster, steps, host, &mut self.draw);
                    }
                    let states = steps.states(host);
                    self.tally.count(row, met, &states, steps, running());
                    self.goes_on(i, host, cluster, steps);
                }
                (_, Stage::Over) => {}
            }
        }
    }

    /// Takes the processes away that a node has ended. From now on that node ends every process that runs it.
    fn take_away(&mut self, cluster: &mut Cluster) {
        for i in 0..self.workers as u16 {
            let host = Host::Worker(i);
            let Some((function, node)) = cluster.knobs(host).take_death() else {
                continue;
            };
            cluster.die(i, function, &node);
            for (_, stage) in &mut self.faults {
                if let Stage::Active {
                    ongoing: ActiveFault::Deadly(lift),
                    ..
                } = stage
                {
                    lift.died(host, &node);
                    let deadly = DeadlyNode::Named(function, node.clone());
                    set_deadly(cluster, self.workers, Some(&deadly));
                }
            }
        }
    }

    /// Ends all faults, including those that have not struck yet.
    pub fn heal(&mut self, cluster: &mut Cluster) {
        self.take_away(cluster);
        for i in 0..self.faults.len() {
            let host = self.host(i);
            if let Stage::Active { .. } = self.faults[i].1 {
                self.undo(i, host, cluster);
            }
            self.faults[i].1 = Stage::Over;
        }
        for hog in &self.hogs {
            hog.stop();
        }
    }

    fn host(&self, i: usize) -> Host {
        self.faults[i].0.target.host(self.workers, self.clients)
    }

    fn other(&self, harm: Harm) -> Option<Host> {
        match harm {
            Harm::Cut { from: end } | Harm::OneWay { to: end } => {
                Some(end.host(self.workers, self.clients))
            }
            Harm::Hoard { by } | Harm::Flood { by } => {
                Some(Target::Client(by).host(self.workers, self.clients))
            }
            _ => None,
        }
    }

    fn strike(
        &mut self,
        i: usize,
        host: Host,
        cluster: &mut Cluster,
        steps: &mut Steps,
        running: &RunningTimers,
    ) {
        let fault = self.faults[i].0.clone();
        let begun = match self.left.contains(&host) {
            true => None,
            false => self.set_off(fault.harm, host, cluster),
        };
        let Some(ongoing) = begun else {
            self.faults[i].1 = Stage::Over;
            return;
        };
        let row = fault.harm.row(fault.target);
        let (states, mut met) = (steps.states(host), Met::new());
        self.tally.count(row, &mut met, &states, steps, running);
        let now = cluster.elapsed();
        let other = self.other(fault.harm);
        // A lease is none of the coordinator's business: what befalls it alone, or its links, ends none; nor does a mild
        // fault.
        let ends = [Some(host), other].into_iter().flatten();
        if !fault.harm.is_mild() && ends.clone().all(|end| end != Host::Coordinator) {
            ends.for_each(|end| cluster.trace().history().trouble(&end.name()));
        }
        self.injured.push(Injury {
            harm: fault.harm,
            row,
            host,
            other,
            at: now,
            until: None,
            answered: None,
        });
        self.faults[i].1 = Stage::Active {
            until: now + Duration::from_millis(u64::from(fault.lasts)),
            met,
            injury: self.injured.len() - 1,
            ongoing,
        };
        match fault.harm {
            Harm::Crash | Harm::Forget => cluster.kill(host),
            Harm::PowerCut => cluster.power_off(host),
            Harm::Panic(count) => cluster.knobs(host).panic_at("*", count),
            Harm::Deadly => cluster.knobs(host).set_deadly(Some(DeadlyNode::Next)),
            _ => {}
        }
        if fault.harm.kills() {
            steps.gone(host, now);
        }
        self.apply(host, cluster);
    }

    /// Starts the ongoing part of a fault. Returns `None` if the fault cannot strike at all.
    fn set_off(&mut self, harm: Harm, host: Host, cluster: &Cluster) -> Option<ActiveFault> {
        Some(match harm {
            Harm::Memory => ActiveFault::Memory {
                _taken: take_memory(cluster, host),
            },
            Harm::Revoke => ActiveFault::Revoke(PendingRevocation::begin(cluster, host)?),
            Harm::Expire => ActiveFault::Expire(PendingExpiry::begin(cluster, host)?),
            Harm::Drain => ActiveFault::Drain(PendingDrain::begin(cluster, host)),
            Harm::Forget => ActiveFault::Forget(PendingForget::begin(cluster, host)),
            Harm::Deadly => ActiveFault::Deadly(PendingLift::default()),
            Harm::Days(days) => ActiveFault::Days(days),
            Harm::Hoard { .. } | Harm::Flood { .. } => {
                let client = self.other(harm)?;
                cluster.own_token(client)?;
                let hog = match harm {
                    Harm::Hoard { .. } => Hog::hoards(cluster, client, host),
                    _ => Hog::floods(cluster, client, host),
                };
                self.hogs.push(hog);
                ActiveFault::Hog(self.hogs.len() - 1)
            }
            _ => ActiveFault::Nothing,
        })
    }

    /// Advances the ongoing part of an active fault.
    fn goes_on(&mut self, i: usize, host: Host, cluster: &mut Cluster, steps: &mut Steps) {
        let now = cluster.elapsed();
        let Stage::Active {
            injury, ongoing, ..
        } = &mut self.faults[i].1
        else {
            return;
        };
        let answered = match ongoing {
            ActiveFault::Revoke(revoking) => revoking.look(cluster),
            ActiveFault::Drain(draining) => {
                draining.look(cluster);
                false
            }
            ActiveFault::Forget(forgetting) => {
                forgetting.look(cluster);
                false
            }
            _ => false,
        };
        if answered {
            self.injured[*injury].answered = Some(now);
        }
        let passes = match ongoing {
            ActiveFault::Days(left) if *left > 0 && self.days_due <= now => {
                let (most, pause) = AT_ONCE;
                let days = most.min(*left);
                *left -= days;
                self.days_due = now + Duration::from_millis(pause.into());
                i64::from(days) * DAY
            }
            ActiveFault::Expire(expiring) => match expiring.look(cluster) {
                Progress::Expires => PASSED,
                Progress::Restarts => {
                    steps.gone(host, now);
                    0
                }
                Progress::Waits => 0,
            },
            _ => 0,
        };
        if passes > 0 {
            self.passed += passes;
            for host in cluster.hosts() {
                self.set_calendar(host, cluster);
            }
        }
    }

    /// Ends the ongoing part of a fault, which may take several ticks.
    fn end(&mut self, i: usize, host: Host, cluster: &mut Cluster, steps: &mut Steps) {
        let now = cluster.elapsed();
        let Stage::Ending { injury, ongoing } = &mut self.faults[i].1 else {
            return;
        };
        let ended = match ongoing {
            ActiveFault::Revoke(revoking) => {
                let ended = self.left.contains(&host) || revoking.end(cluster);
                if ended {
                    steps.gone(host, now);
                }
                ended
            }
            ActiveFault::Expire(expiring) => {
                let ended = self.left.contains(&host) || expiring.end(cluster);
                if ended {
                    steps.gone(host, now);
                }
                ended
            }
            ActiveFault::Hog(hog) => self.hogs[*hog].stop(),
            ActiveFault::Drain(draining) => self.left.contains(&host) || draining.end(cluster),
            ActiveFault::Forget(forgetting) => self.left.contains(&host) || forgetting.end(cluster),
            ActiveFault::Deadly(lift) => lift.end(cluster),
            ActiveFault::Nothing | ActiveFault::Memory { .. } | ActiveFault::Days(_) => true,
        };
        if ended {
            self.injured[*injury].until = Some(now);
            self.faults[i].1 = Stage::Over;
            self.apply(host, cluster);
        }
    }

    fn undo(&mut self, i: usize, host: Host, cluster: &mut Cluster) {
        match std::mem::replace(&mut self.faults[i].1, Stage::Over) {
            Stage::Active {
                injury,
                ongoing:
                    ongoing @ (ActiveFault::Hog(_)
                    | ActiveFault::Revoke(_)
                    | ActiveFault::Expire(_)
                    | ActiveFault::Drain(_)
                    | ActiveFault::Forget(_)
                    | ActiveFault::Deadly(_)),
                ..
            } => {
                self.faults[i].1 = Stage::Ending { injury, ongoing };
                if self.faults[i].0.harm == Harm::Deadly {
                    set_deadly(cluster, self.workers, None);
                }
                return;
            }
            Stage::Active { injury, .. } => {
                self.injured[injury].until = Some(cluster.elapsed());
            }
            Stage::Armed(_) | Stage::Ending { .. } | Stage::Over => {}
        }
        match self.faults[i].0.harm {
            Harm::Crash | Harm::PowerCut if !self.left.contains(&host) => cluster.start(host),
            Harm::Panic(_) => cluster.knobs(host).calm(),
            _ => {}
        }
        self.apply(host, cluster);
    }

    fn active(&self) -> impl Iterator<Item = (Host, Harm)> {
        let active =
            |(_, (_, stage)): &(usize, &(Fault, Stage))| matches!(stage, Stage::Active { .. });
        let of = |(i, (fault, _)): (usize, &(Fault, Stage))| (self.host(i), fault.harm);
        self.faults.iter().enumerate().filter(active).map(of)
    }

    /// Sets a host's knobs, its wires and all cuts to match the faults that are active.
    fn apply(&self, host: Host, cluster: &mut Cluster) {
        let on_host = |want: fn(Harm) -> Option<i64>| {
            self.active()
                .filter(|(h, _)| *h == host)
                .filter_map(|(_, harm)| want(harm))
                .max()
        };
        let knobs = cluster.knobs(host);
        let slow = on_host(|h| match h {
            Harm::Slow(factor) => Some(i64::from(factor)),
            _ => None,
        });
        knobs.set_slow(slow.map_or(1, |f| f as u32));
        let hang = on_host(|h| (h == Harm::Hang).then_some(1)).is_some();
        if hang != knobs.hangs() {
            knobs.set_hang(hang);
        }
        knobs.set_refuse(on_host(|h| (h == Harm::Refuse).then_some(1)).is_some());
        knobs.set_disk_full(on_host(|h| (h == Harm::DiskFull).then_some(1)).is_some());
        knobs.set_disk_fails(on_host(|h| (h == Harm::DiskFails).then_some(1)).is_some());
        let disk_slow = on_host(|h| match h {
            Harm::DiskSlow(most) => Some(i64::from(most)),
            _ => None,
        });
        knobs.set_disk_slow(disk_slow.map_or(0, |most| most as u64));
        let disk_flips = on_host(|h| match h {
            Harm::DiskFlips(rate) => Some(i64::from(rate)),
            _ => None,
        });
        knobs.set_disk_flips(disk_flips.map_or(0, |rate| rate as u32));
        self.set_calendar(host, cluster);
        let paused = on_host(|h| (h == Harm::Pause).then_some(1)).is_some();
        match (
            paused,
            cluster.state(host) == HostState::Up,
            cluster.is_running(host),
        ) {
            (true, true, true) => cluster.pause(host),
            (false, true, false) => cluster.resume(host),
            _ => {}
        }
        for peer in cluster.hosts() {
            if peer != host {
                for (from, to) in [(host, peer), (peer, host)] {
                    cluster.wire(from, to, self.wire(from, to));
                }
            }
        }
        self.sever(cluster);
    }

    /// Sets a host's calendar to match the time that has passed and the faults that are active.
    fn set_calendar(&self, host: Host, cluster: &Cluster) {
        let active = self.active().filter(|(h, _)| *h == host);
        let off = active.filter_map(|(_, harm)| match harm {
            Harm::Clock(seconds) => Some(seconds),
            _ => None,
        });
        let off = off.max().unwrap_or(0);
        cluster.knobs(host).set_clock_off(self.passed + off);
    }

    /// What happens to packets between two hosts: the worst of all faults that are active at either end.
    fn wire(&self, from: Host, to: Host) -> Wire {
        let mut wire = self.air.0;
        for (_, harm) in self.active().filter(|(h, _)| *h == from || *h == to) {
            match harm {
                Harm::Loss(rate) => wire.loss = wire.loss.max(rate),
                Harm::Duplicate(rate) => wire.duplicate = wire.duplicate.max(rate),
                Harm::Corrupt(rate) => wire.corrupt = wire.corrupt.max(rate),
                Harm::Delay(most) => wire.delay = (most, most.max(wire.delay.1)),
                Harm::Reorder(most) => wire.delay.1 = wire.delay.1.max(most),
                _ => {}
            }
        }
        wire
    }

    /// Cuts and repairs links to match the faults that are active.
    fn sever(&self, cluster: &mut Cluster) {
        let mut wanted = BTreeSet::new();
        let cuts = self.active();
        let cuts = cuts.filter(|(_, h)| matches!(h, Harm::Cut { .. } | Harm::OneWay { .. }));
        for (host, harm) in cuts {
            let Some(other) = self.other(harm) else {
                continue;
            };
            let ends: Vec<Host> = match other == host {
                true => cluster.hosts().into_iter().filter(|h| *h != host).collect(),
                false => vec![other],
            };
            for end in ends {
                wanted.insert((host, end));
                if matches!(harm, Harm::Cut { .. }) {
                    wanted.insert((end, host));
                }
            }
        }
        let now: BTreeSet<(Host, Host)> = cluster.cuts().clone();
        now.difference(&wanted)
            .for_each(|(from, to)| cluster.repair(*from, *to));
        wanted
            .difference(&now)
            .for_each(|(from, to)| cluster.cut(*from, *to));
    }
}

/// Makes a node end every worker's process that runs it, or none any more.
fn set_deadly(cluster: &Cluster, workers: usize, node: Option<&DeadlyNode>) {
    for i in 0..workers as u16 {
        cluster.knobs(Host::Worker(i)).set_deadly(node.cloned());
    }
}

/// Whether a fault's moment has come.
fn due<'a>(
    fault: &Fault,
    now: Duration,
    seen: &mut BTreeSet<Key>,
    steps: &Steps,
    host: Host,
    running: impl Fn() -> &'a RunningTimers,
) -> bool {
    let ms = |t: u32| Duration::from_millis(u64::from(t));
    match fault.when {
        Trigger::At(at) => now >= ms(at),
        Trigger::On {
            state,
            nth,
            after,
            timer,
        } => {
            if now < ms(after) {
                return false;
            }
            let there = steps.states(host).into_iter().filter(|(_, s)| *s == state);
            let runs = |key: &Key| {
                timer.is_none_or(|timer| steps.timers(key.0, running()).contains(&timer))
            };
            seen.extend(there.map(|(key, _)| key).filter(runs));
            seen.len() >= nth as usize || now >= ms(LATEST.0.max(after + LATEST.1))
        }
    }
}

/// Reserves everything that is free in a worker's ledger.
fn take_memory(cluster: &Cluster, host: Host) -> Option<Reservation> {
    let Host::Worker(i) = host else { return None };
    let ledger = cluster.worker(i)?.ledger().clone();
    let free = ledger.limit() - ledger.total_and_peak().0;
    ledger.reserve(Purpose::Handles, free).ok()
}
