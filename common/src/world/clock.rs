//! Calendar time, used for certificates and tokens only; elapsed time is `tokio::time`.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::UnixTime;

/// The calendar of a process.
pub trait WallClock: Send + Sync + fmt::Debug {
    /// The current calendar time. It is not monotonic: an operator may set it.
    fn now(&self) -> SystemTime;

    /// Whole seconds since 1970; zero for a calendar set before that.
    fn unix_seconds(&self) -> u64 {
        self.now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO)
            .as_secs()
    }
}

/// The operating system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl WallClock for SystemClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "this is the seam that owns the calendar"
    )]
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// A [`WallClock`] in the form in which TLS checks certificates and quinn dates its address tokens.
#[derive(Debug, Clone)]
pub struct WallTime(pub Arc<dyn WallClock>);

impl rustls::time_provider::TimeProvider for WallTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(
            self.0.unix_seconds(),
        )))
    }
}

impl quinn::TimeSource for WallTime {
    fn now(&self) -> SystemTime {
        self.0.now()
    }
}
