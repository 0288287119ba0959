//! Traces and logs of a process: trace context that crosses to other processes, and log lines that a flood of events
//! does not multiply.
//!
//! Spans are `tracing`'s. A binary that exports them calls [`enable`] once; until then, each function on spans costs no
//! more than one relaxed load. Over tarpc the context travels in tarpc's own request context; on lanes it travels in
//! `Start`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tokio::time::Instant;
use tracing_opentelemetry::OpenTelemetrySpanExt;

static ENABLED: AtomicBool = AtomicBool::new(false);

/// W3C trace id and span id; zeros when there is none.
pub type TraceIds = ([u8; 16], [u8; 8]);

/// Switches trace context on, since spans are exported from now on.
pub fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// The trace id and span id of a span; zeros while spans are not exported.
pub fn trace_of(span: &tracing::Span) -> TraceIds {
    if !ENABLED.load(Ordering::Relaxed) {
        return ([0; 16], [0; 8]);
    }
    let context = span.context();
    let span = context.span();
    let ids = span.span_context();
    (ids.trace_id().to_bytes(), ids.span_id().to_bytes())
}

/// Makes `span` a child of a span in another process.
pub fn set_parent(span: &tracing::Span, parent: TraceIds) {
    if !ENABLED.load(Ordering::Relaxed) || parent.0 == [0; 16] {
        return;
    }
    let remote = SpanContext::new(
        TraceId::from_bytes(parent.0),
        SpanId::from_bytes(parent.1),
        TraceFlags::SAMPLED,
        true,
        TraceState::default(),
    );
    // Fails only for a span that no subscriber records.
    let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(remote));
}

/// Renames the current span, if spans are exported.
pub fn name_current_span(name: &str) {
    if ENABLED.load(Ordering::Relaxed) {
        let context = tracing::Span::current().context();
        context.span().update_name(name.to_owned());
    }
}

/// Lets a few lines about one kind of event into the log within a period, and counts the others.
#[derive(Debug)]
pub struct LineLimit {
    lines: u32,
    period: Duration,
    past: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    /// When the period began, and how many lines were written in it.
    period: Option<(Instant, u32)>,
    /// The number of events since the last line that have no line.
    left_out: u64,
}

impl Default for LineLimit {
    fn default() -> LineLimit {
        LineLimit::new(Self::LINES, Self::PERIOD)
    }
}

impl LineLimit {
    /// How many lines the default limit lets into a period.
    pub const LINES: u32 = 10;
    /// The period of the default limit.
    pub const PERIOD: Duration = Duration::from_secs(10);

    /// Makes a limit of `lines` lines within each `period`.
    pub fn new(lines: u32, period: Duration) -> LineLimit {
        LineLimit {
            lines,
            period,
            past: Mutex::default(),
        }
    }

    /// Counts an event. Returns `None` where no line about it may be written, else the number of events since the last
    /// line that had none.
    pub fn admit(&self, now: Instant) -> Option<u64> {
        let lines = &mut *self.past.lock().unwrap_or_else(PoisonError::into_inner);
        let current = lines
            .period
            .filter(|(since, _)| now.duration_since(*since) < self.period);
        let (since, written) = current.unwrap_or((now, 0));
        if written >= self.lines {
            lines.left_out += 1;
            return None;
        }
        lines.period = Some((since, written + 1));
        Some(std::mem::take(&mut lines.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_events_writes_a_few_lines() {
        let (limit, start) = (LineLimit::default(), Instant::now());
        let lines = (0..1000).filter_map(|_| limit.admit(start)).count();
        assert_eq!(lines, LineLimit::LINES as usize);
        let later = limit.admit(start + LineLimit::PERIOD);
        assert_eq!(later, Some(1000 - u64::from(LineLimit::LINES)));
        assert_eq!(limit.admit(start + LineLimit::PERIOD), Some(0));
    }
}
