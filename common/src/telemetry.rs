//! Trace context across hops.
//!
//! Spans are `tracing`'s. A binary that exports them calls [`enable`] once; until then nothing here costs
//! more than one relaxed load. Over tarpc the context travels in tarpc's own request context; on step lanes
//! it travels in `Start`.

use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing_opentelemetry::OpenTelemetrySpanExt;

static ENABLED: AtomicBool = AtomicBool::new(false);

/// W3C trace id and span id; zeros when there is none.
pub type TraceIds = ([u8; 16], [u8; 8]);

/// Says that spans are exported from now on.
pub fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// The ids of a span.
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
