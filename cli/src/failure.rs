//! How a command fails, and what is said then.

use std::io::Write;
use std::process::ExitCode;

use convoke_common::admission::chain;
use convoke_common::error::{Code, Error};
use serde::Serialize;

use crate::output;

/// Why a command did not end well.
#[derive(Debug)]
pub enum Failure {
    /// The flags make no sense together.
    Usage(String),
    /// It was tried and failed.
    Error(Error),
    /// As `Error`; with `--json` its result, error included, was printed already.
    Reported(Error),
    /// Ctrl-C.
    Interrupted,
    /// Whoever read stdout has left.
    Closed,
    /// Only the exit code says so.
    Silent,
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::Error(e)
    }
}

impl From<convoke::numpy::NumpyError> for Failure {
    fn from(e: convoke::numpy::NumpyError) -> Failure {
        Failure::Error(e.into())
    }
}

#[derive(Serialize)]
struct Json<'a> {
    error: &'a Error,
}

impl Failure {
    /// An error of the operating system.
    pub fn io(what: &str, e: &dyn std::error::Error) -> Failure {
        Failure::Error(Error::new(Code::Io, format!("{what}: {}", chain(e))))
    }

    /// Tells it, and the exit code.
    pub fn report(self, json: bool) -> ExitCode {
        match self {
            Failure::Closed => ExitCode::SUCCESS,
            Failure::Silent => ExitCode::from(1),
            Failure::Interrupted => {
                let e = Error::new(Code::Cancelled, "interrupted");
                tell(&e, json);
                ExitCode::from(130)
            }
            Failure::Reported(e) => {
                tell(&e, false);
                ExitCode::from(1)
            }
            Failure::Error(e) => {
                tell(&e, json);
                ExitCode::from(1)
            }
            Failure::Usage(text) => {
                let e = Error::new(Code::InvalidArgument, text);
                tell(&e.advise("for more, try '--help'"), json);
                ExitCode::from(2)
            }
        }
    }
}

fn tell(e: &Error, json: bool) {
    output::note(&format!("error: {e}"));
    for more in &e.attached {
        output::note(&format!("  also: {more}"));
    }
    if json {
        // Whoever read stdout has left: the exit code still says it.
        let _ = output::json(&Json { error: e });
    }
}

/// What clap refused, or its help.
pub fn usage(e: &clap::Error, json: bool) -> ExitCode {
    if e.use_stderr() && json {
        let text = e.to_string();
        // What is missing is listed below the first line.
        let lines = text.lines().take_while(|l| !l.trim().is_empty());
        let message = lines.map(str::trim).collect::<Vec<_>>().join(" ");
        let message = message.strip_prefix("error: ").unwrap_or(&message);
        let error = Error::new(Code::InvalidArgument, message).advise("for more, try '--help'");
        let _ = output::json(&Json { error: &error });
    }
    // Nobody may be reading.
    let _ = e.print();
    let _ = std::io::stdout().flush();
    ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2))
}
