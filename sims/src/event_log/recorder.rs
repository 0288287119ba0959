//! The `tracing` subscriber of a simulation: events of steps, of timers and of calls to the coordinator go to the
//! [`EventLog`], and other events to stderr if asked for.

use std::fmt::{self, Write};

use convoke_common::control_events;
use convoke_common::detection::timer::{self, TimerKind};
use convoke_common::ids::{Incarnation, LeaseId};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Level, Metadata, Subscriber};

use super::{Event, EventLog, Kind};
use crate::history::{Reply, Request};
use crate::world::{Host, SimTime, current_host};

/// Notes events of steps and timers in a trace, and prints log events.
pub struct Recorder {
    trace: EventLog,
    time: SimTime,
    /// The level up to which log events of our crates are printed.
    print: Option<Level>,
}

impl Recorder {
    /// Creates a subscriber that records into `trace`.
    pub fn new(trace: EventLog, time: SimTime, print: Option<Level>) -> Recorder {
        Recorder { trace, time, print }
    }

    fn prints(&self, metadata: &Metadata<'_>) -> bool {
        let ours = metadata.target().starts_with("convoke");
        ours && self.print.is_some_and(|most| *metadata.level() <= most)
    }
}

fn is_step(metadata: &Metadata<'_>) -> bool {
    // Metadata that only asks whether anybody listens is neither a span nor an event.
    !metadata.is_span() && metadata.target() == convoke_rendezvous::step_events::TARGET
}

fn is_timer(metadata: &Metadata<'_>) -> bool {
    metadata.is_event() && metadata.target() == timer::TARGET
}

fn is_control(metadata: &Metadata<'_>) -> bool {
    metadata.is_event() && metadata.target() == control_events::TARGET
}

impl Subscriber for Recorder {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        match self.enabled(metadata) {
            true => Interest::always(),
            false => Interest::never(),
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let noted = is_step(metadata) || is_timer(metadata) || is_control(metadata);
        noted || (metadata.is_event() && self.prints(metadata))
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // No span is ever enabled, but an id has to be returned.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let Some(host) = current_host() else { return };
        let metadata = event.metadata();
        if is_step(metadata) {
            let mut step = Step::default();
            event.record(&mut step);
            let (lease, given) = (LeaseId(step.lease).at_workers(), LeaseId(step.lease));
            if let Some(kind) = step.kind {
                self.trace.event(Event {
                    at: Default::default(),
                    host,
                    kind,
                    lease: lease.0,
                    by_driver: lease != given || matches!(host, Host::Client(_)),
                    n: step.n,
                    slot: step.slot,
                    peer: step.peer,
                    checksum: step.checksum,
                    code: step.code,
                    participants: step.participants,
                });
            }
        }
        if is_timer(metadata) {
            let mut timer = TimerEvent::default();
            event.record(&mut timer);
            if let Some(kind) = timer.kind {
                self.trace.timer(host, kind, timer.runs);
            }
        }
        if is_control(metadata) {
            let mut control = Control::default();
            event.record(&mut control);
            control.note(host, &self.trace);
        }
        if self.prints(metadata) {
            let mut text = String::new();
            event.record(&mut Text(&mut text));
            let at = self.time.now().as_secs_f64();
            eprintln!(
                "{at:9.3} {host:<11} {:5} {}{text}",
                metadata.level(),
                metadata.target()
            );
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Step {
    kind: Option<Kind>,
    lease: u64,
    n: u64,
    slot: Option<u32>,
    peer: Option<u16>,
    checksum: Option<u64>,
    code: Option<String>,
    participants: Option<String>,
}

impl Visit for Step {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "lease" => self.lease = value,
            "n" => self.n = value,
            "slot" => self.slot = u32::try_from(value).ok(),
            "peer" => self.peer = u16::try_from(value).ok(),
            "checksum" => self.checksum = Some(value),
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "kind" => self.kind = Kind::parse(value),
            "code" => self.code = Some(value.to_owned()),
            "participants" => self.participants = Some(value.to_owned()),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

#[derive(Default)]
struct TimerEvent {
    kind: Option<TimerKind>,
    runs: bool,
}

impl Visit for TimerEvent {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "timer" {
            self.kind = TimerKind::named(value);
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        if field.name() == "runs" {
            self.runs = value;
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

/// A call to the coordinator, or its answer.
#[derive(Default)]
struct Control {
    kind: String,
    name: String,
    incarnation: u64,
    lease: u64,
}

impl Control {
    fn note(self, host: Host, trace: &EventLog) {
        let history = trace.history();
        let (name, lease) = (self.name, LeaseId(self.lease));
        let incarnation = Incarnation(self.incarnation);
        let register = Request::Register {
            name: name.clone(),
            incarnation,
        };
        match &*self.kind {
            "register" => drop(history.begin(register)),
            "registered" => history.end_latest(&register, Reply::Made),
            "leave" => drop(history.begin(Request::Leave { name, incarnation })),
            "granted" => {
                let granted = history.begin(Request::Grant {
                    lease,
                    driver: name,
                    host: host.name(),
                });
                history.end(granted, Reply::Made);
            }
            "release" => drop(history.begin(Request::Release { lease })),
            "released" => history.end_latest(&Request::Release { lease }, Reply::Made),
            _ => {}
        }
    }
}

impl Visit for Control {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "incarnation" => self.incarnation = value,
            "lease" => self.lease = value,
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "kind" => self.kind = value.to_owned(),
            "name" => self.name = value.to_owned(),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

/// Writes the fields of an event as text.
struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
