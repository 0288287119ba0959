//! How a command fails, and how the failure is reported.

use std::io::Write;
use std::process::ExitCode;

use convoke_common::admission::chain;
use convoke_common::error::{Code, Error};
use serde::Serialize;

use crate::text::output;

/// Why a command did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// The flags make no sense together.
    Usage(String),
    /// The command was tried and failed.
    Error(Error),
    /// The command failed, and with `--json` its result, which includes the error, was printed already.
    Reported(Error),
    /// The user pressed Ctrl-C.
    Interrupted,
    /// The reader of stdout has closed it.
    Closed,
    /// The command failed, and only the exit code reports it.
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
    /// Makes a failure of an error of the operating system, with its chain of causes.
    pub fn io(what: &str, e: &dyn std::error::Error) -> Failure {
        Failure::Error(Error::new(Code::Io, format!("{what}: {}", chain(e))))
    }

    /// Reports the failure on stderr, with `json` also on stdout, and returns the exit code.
    pub fn report(self, json: bool) -> ExitCode {
        match self {
            Failure::Closed => ExitCode::SUCCESS,
            Failure::Silent => ExitCode::from(1),
            Failure::Interrupted => {
                tell(&interrupted(), json);
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

fn interrupted() -> Error {
    Error::new(Code::Cancelled, "interrupted")
}

/// Ends the process as [`Failure::Interrupted`] does, from another thread than the one that writes the results: the
/// error is left out of stdout where anything was written there.
pub fn end_interrupted(json: bool) -> ! {
    let error = &interrupted();
    output::note(&format!("error: {error}"));
    output::end(json.then_some(&Json { error }), 130)
}

fn tell(e: &Error, json: bool) {
    output::note(&format!("error: {e}"));
    for more in &e.attached {
        output::note(&format!("  also: {more}"));
    }
    if json {
        // If the reader of stdout has closed it, the exit code still reports the error.
        let _ = output::json(&Json { error: e });
    }
}

/// Prints the usage error of clap, or the help that the user asked for, and returns the exit code.
pub fn usage(e: &clap::Error, json: bool) -> ExitCode {
    if e.use_stderr() && json {
        let text = e.to_string();
        // clap lists missing arguments below the first line.
        let lines = text.lines().take_while(|l| !l.trim().is_empty());
        let message = lines.map(str::trim).collect::<Vec<_>>().join(" ");
        let message = message.strip_prefix("error: ").unwrap_or(&message);
        let error = Error::new(Code::InvalidArgument, message).advise("for more, try '--help'");
        let _ = output::json(&Json { error: &error });
    }
    // The reader may have closed the stream.
    let _ = e.print();
    let _ = std::io::stdout().flush();
    ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2))
}
