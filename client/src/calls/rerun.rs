//! The report that something runs again.

use std::fmt;

use convoke_common::error::Error;

/// The report that a call or a load runs again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rerun {
    /// The number of the attempt that begins, 2 or more.
    pub attempt: u32,
    /// How many attempts there are at most.
    pub of: u32,
    /// Why the attempt before failed.
    pub cause: Error,
    /// The names of the workers that the attempt runs on.
    pub workers: Vec<String>,
}

impl fmt::Display for Rerun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rerun {
            attempt,
            of,
            cause,
            workers,
        } = self;
        f.write_str(&cause.message)?;
        for more in &cause.attached {
            write!(f, "; {}", more.message)?;
        }
        write!(
            f,
            "; running again on {} (attempt {attempt} of {of})",
            workers.join(", ")
        )
    }
}
