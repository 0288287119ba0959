//! Logs to stderr, and traces over OTLP where `OTEL_EXPORTER_OTLP_ENDPOINT` is set.

use std::io;

use convoke_common::error::{Code, Error};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::args::{Command, LogArgs, LogFormat};
use crate::failure::Failure;
use crate::output;

/// Where traces go; OpenTelemetry's own variable.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// What traces are filed under; OpenTelemetry's own variable.
const SERVICE: &str = "OTEL_SERVICE_NAME";
/// Not logged unless it is named: tarpc warns of every connection that ends, which our own lines say better, and `run`
/// says itself that a step runs again.
const QUIET: &str = "tarpc=off,convoke::rerun=off";
/// What is traced whatever is logged.
const TRACED: &str = "info,convoke=debug,convoke_common=debug,convoke_rendezvous=debug,convoke_worker=debug,\
                      convoke_coordinator=debug,h2=off,hyper=off,tonic=off,tower=off,quinn=off,rustls=off";

/// Exports what is left when it finishes.
pub struct Telemetry(Option<Exporter>);

struct Exporter {
    provider: SdkTracerProvider,
    /// The exporter's own thread: this process' network thread must not wait for it.
    runtime: tokio::runtime::Runtime,
}

/// Starts to log and, where it is asked for, to export.
pub fn start(args: &LogArgs, command: &Command) -> Result<Telemetry, Failure> {
    let default = if command.is_daemon() { "info" } else { "warn" };
    let wanted = args.log.as_deref().unwrap_or(default);
    let filter = EnvFilter::try_new(format!("{QUIET},{wanted}"))
        .map_err(|e| Failure::Usage(format!("--log '{wanted}' is no filter: {e}")))?;
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let lines = match args.log_format {
        LogFormat::Json => lines.json().boxed(),
        LogFormat::Text => lines
            .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
            .boxed(),
    };
    let exporter = match std::env::var_os(ENDPOINT).is_some_and(|v| !v.is_empty()) {
        true => Some(exporter(command)?),
        false => None,
    };
    let traces = exporter.as_ref().map(|e| {
        let tracer = e.provider.tracer("convoke");
        tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_filter(EnvFilter::new(TRACED))
    });
    if exporter.is_some() {
        convoke_common::telemetry::enable();
    }
    let started = tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(traces)
        .try_init();
    started.map_err(|e| Failure::io("cannot start to log", &e))?;
    Ok(Telemetry(exporter))
}

/// The root of all that a command does. A role that runs until it is stopped has none: its traces are its callers'.
pub fn command_span(command: &Command) -> tracing::Span {
    match command.is_daemon() {
        true => tracing::Span::none(),
        false => tracing::debug_span!("command", otel.name = command.name()),
    }
}

fn exporter(command: &Command) -> Result<Exporter, Failure> {
    let failed = |e: &dyn std::error::Error| {
        let e = Error::new(Code::Io, format!("cannot export traces: {e}"));
        Failure::Error(e.advise(format!("check {ENDPOINT}, or unset it")))
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("convoke-otlp")
        .enable_all()
        .build()
        .map_err(|e| failed(&e))?;
    let entered = runtime.enter();
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .build()
        .map_err(|e| failed(&e))?;
    drop(entered);
    // With what OTEL_RESOURCE_ATTRIBUTES says.
    let mut resource = Resource::builder();
    if std::env::var_os(SERVICE).is_none() {
        resource = resource.with_service_name(format!("convoke-{}", command.name()));
    }
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource.build())
        .build();
    Ok(Exporter { provider, runtime })
}

impl Telemetry {
    /// Exports what is left, for a few seconds at most.
    pub fn finish(self) {
        let Some(exporter) = self.0 else { return };
        if let Err(e) = exporter.provider.shutdown() {
            output::note(&format!("warning: traces could not all be exported: {e}"));
        }
        exporter.runtime.shutdown_background();
    }
}
