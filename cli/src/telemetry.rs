//! Logs to stderr, and exports traces over OTLP if `OTEL_EXPORTER_OTLP_ENDPOINT` is set.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::{fmt, io};

use convoke_common::error::{Code, Error};
use convoke_graph::printable::{Message, Printable};
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::args::{Command, LogArgs, LogFormat};
use crate::process::machine;
use crate::text::failure::Failure;
use crate::text::output;

/// OpenTelemetry's environment variable for the address to which traces are exported.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// OpenTelemetry's environment variable for the service name of traces.
const SERVICE: &str = "OTEL_SERVICE_NAME";
/// Filter for targets that are logged only if `--log` names them: tarpc warns of every connection that ends, which our
/// own events describe better, `run` reports itself that a step runs again, and events of steps, of timers and of calls to
/// the coordinator are for tests. A target stands for all that begin with it.
const QUIET: &str = "tarpc=off,convoke::rerun=off,convoke::step_event=off,convoke::timer=off,\
convoke::control_event=off";
/// Further filter for commands that are not daemons: they report the error of a failed step themselves.
const QUIET_COMMAND: &str = "convoke::steps=off";
/// Prefixes of the names of crates that log.
const CRATES: [&str; 7] = [
    "convoke",
    "quinn",
    "rustls",
    "tarpc",
    "opentelemetry",
    "h2",
    "hyper",
];
/// The filter of exported traces, which `--log` does not change.
const TRACED: &str = "info,convoke=debug,convoke_common=debug,convoke_rendezvous=debug,convoke_worker=debug,\
                      convoke_coordinator=debug,h2=off,hyper=off,tonic=off,tower=off,quinn=off,rustls=off";

/// The exporter of traces, if there is one. [`Telemetry::finish`] exports the remaining spans.
pub struct Telemetry(Option<Exporter>);

struct Exporter {
    provider: SdkTracerProvider,
    /// The runtime with the exporter's own thread: this process' network thread must not wait for exports.
    runtime: tokio::runtime::Runtime,
}

/// Starts logging and, if the variable is set, the export of traces.
pub fn start(args: &LogArgs, command: &Command) -> Result<Telemetry, Failure> {
    let default = if command.is_daemon() { "info" } else { "warn" };
    let wanted = args.log.as_deref().unwrap_or(default);
    let filter = filter(wanted, command.is_daemon())?;
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let no_color = std::env::var_os("NO_COLOR");
    let colours = colours(io::stderr().is_terminal(), no_color.as_deref());
    let lines = match args.log_format {
        LogFormat::Json => lines.json().boxed(),
        LogFormat::Text => lines.fmt_fields(fields()).with_ansi(colours).boxed(),
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

/// Whether lines have colours: on a terminal whose user does not refuse them by `NO_COLOR`, <https://no-color.org>.
fn colours(terminal: bool, no_color: Option<&OsStr>) -> bool {
    terminal && no_color.is_none_or(OsStr::is_empty)
}

/// Parses the filter of `--log`. A directive of a single word must be a level or the name of a crate that logs: tracing
/// would take any other word for a crate that never logs.
fn filter(wanted: &str, daemon: bool) -> Result<EnvFilter, Failure> {
    let wrong = |why: &str| {
        Failure::Usage(format!(
            "--log '{}' is no filter: {why}; write off, error, warn, info, debug or trace, or for one crate, as \
             convoke_worker=debug",
            Printable(wanted)
        ))
    };
    for word in wanted.split(',').map(str::trim) {
        let plain = word
            .chars()
            .all(|c| c.is_alphanumeric() || c == '_' || c == '-');
        let level = word.parse::<LevelFilter>().is_ok();
        if plain && !level && !CRATES.iter().any(|c| word.starts_with(c)) {
            return Err(wrong(&format!(
                "'{}' is neither a level nor a crate that logs",
                Printable(word)
            )));
        }
    }
    let quiet = if daemon {
        QUIET.to_owned()
    } else {
        format!("{QUIET},{QUIET_COMMAND}")
    };
    EnvFilter::try_new(format!("{quiet},{wanted}")).map_err(|e| wrong(&e.to_string()))
}

/// Writes the fields of an event or span for people. Values may be names that other users chose, or errors that a peer
/// sent: they are escaped, so that an event cannot forge further events or control the terminal.
fn fields() -> impl for<'w> FormatFields<'w> + 'static {
    let field = |to: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug| {
        let value = format!("{value:?}");
        let value = Message(&value);
        match field.name() {
            "message" => write!(to, "{value}"),
            name => write!(to, "{name}={value}"),
        }
    };
    debug_fn(field).delimited(" ")
}

/// The root span of a command. A daemon has none: its spans belong to the traces of its callers.
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
    // These attributes tell which process of which machine it is, beside those of OTEL_RESOURCE_ATTRIBUTES.
    let host = machine::hostname();
    let instance = format!("{host}:{}", std::process::id());
    let mut resource = Resource::builder().with_attributes([
        KeyValue::new("host.name", host),
        KeyValue::new("service.instance.id", instance),
    ]);
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
    /// Exports the remaining spans, for a few seconds at most.
    pub fn finish(self) {
        let Some(exporter) = self.0 else { return };
        if let Err(e) = exporter.provider.shutdown() {
            output::note(&format!("warning: traces could not all be exported: {e}"));
        }
        exporter.runtime.shutdown_background();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_filter_is_a_level_or_of_a_crate() {
        for good in [
            "off",
            "WARN",
            "debug,quinn=info",
            "convoke_worker",
            "convoke_rendezvous::link::remote=trace",
        ] {
            assert!(filter(good, true).is_ok(), "{good}");
        }
        for bad in ["loud", "info,loud", "convoke=loud"] {
            assert!(matches!(filter(bad, true), Err(Failure::Usage(_))), "{bad}");
        }
    }

    #[test]
    fn events_for_tests_are_logged_only_where_they_are_named() {
        let logged = |wanted: &str| {
            let log = Log::default();
            let to = log.clone();
            let lines = tracing_subscriber::fmt::layer().with_writer(move || to.clone());
            let lines = lines.without_time().with_level(false).with_ansi(false);
            let lines = lines.with_target(false);
            let lines = lines.with_filter(filter(wanted, true).unwrap());
            let subscriber = tracing_subscriber::registry().with(lines);
            tracing::subscriber::with_default(subscriber, || {
                tracing::trace!(target: convoke_common::detection::timer::TARGET, "A");
                tracing::trace!(target: convoke_rendezvous::step_events::TARGET, "B");
                tracing::trace!(target: convoke_common::rpc::STEPS, "C");
                convoke_common::control_event!("D");
            });
            let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
            text.matches(['A', 'B', 'C', 'D']).collect::<String>()
        };
        assert_eq!(logged("trace"), "C");
        assert_eq!(logged("trace,convoke::timer=trace"), "AC");
        assert_eq!(logged("trace,convoke::step_event=trace"), "BC");
        assert_eq!(logged("trace,convoke::control_event=trace"), "CD");
    }

    #[test]
    fn colours_are_for_terminals_whose_users_want_them() {
        assert!(colours(true, None));
        // A variable that is empty says nothing.
        assert!(colours(true, Some("".as_ref())));
        for refused in ["1", "0", "no"] {
            assert!(!colours(true, Some(refused.as_ref())), "{refused}");
        }
        assert!(!colours(false, None));
    }

    #[test]
    fn what_peers_and_files_say_is_escaped_in_the_log() {
        let log = Log::default();
        let to = log.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(move || to.clone())
            .without_time()
            .fmt_fields(fields())
            .with_ansi(false);
        let subscriber = tracing_subscriber::registry().with(lines);
        tracing::subscriber::with_default(subscriber, || {
            let name = "w\u{1b}[2J";
            let error = Error::new(Code::Internal, "bad\nINFO all is well\u{9b}0m");
            tracing::warn!(%name, %error, "a model '{name}' came");
        });
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text,
            " WARN convoke_cli::telemetry::tests: a model 'w\\u{1b}[2J' came name=w\\u{1b}[2J \
             error=bad\n    INFO all is well\\u{9b}0m\n"
        );
    }
}
