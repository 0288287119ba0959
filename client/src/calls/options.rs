//! The options of functions and of their calls.

use std::collections::BTreeMap;
use std::time::Duration;

use convoke_common::rpc::{Numerics, Profiles, WorkerCount};

use crate::cluster::callbacks::Progress;

/// Whether a step or a load whose worker is lost runs again on the workers that are left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Retry {
    /// The step or the load runs again, twice at most, and is planned anew each time. The results have the same bits.
    #[default]
    On,
    /// Nothing runs again: the loss is the call's error.
    Off,
}

/// The options of one call.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallOptions {
    /// The time within which the call has to end, with the planning that it may need and all attempts. A call that has
    /// not ended by then fails, and its step is cancelled everywhere.
    pub deadline: Option<Duration>,
    /// What happens when a worker is lost.
    pub retry: Retry,
}

/// The options of a function's plans and loads.
#[derive(Clone)]
pub(crate) struct FunctionOptions {
    pub(crate) workers: WorkerCount,
    /// Pins: a pattern of node names, and the devices that may run these nodes.
    pub(crate) pins: Vec<(String, String)>,
    /// The bounds of dynamic axes that the program asks for, by symbol.
    pub(crate) bounds: BTreeMap<String, i64>,
    pub(crate) numerics: Numerics,
    pub(crate) profiles: Profiles,
    /// How many calls run at once.
    pub(crate) in_flight: u32,
    /// What happens when a worker is lost during a load that no call asked for.
    pub(crate) retry: Retry,
    /// How long a load waits for memory.
    pub(crate) wait: Option<Duration>,
    pub(crate) progress: Progress,
}

impl Default for FunctionOptions {
    fn default() -> Self {
        FunctionOptions {
            workers: WorkerCount::Auto,
            pins: vec![],
            bounds: BTreeMap::new(),
            numerics: Numerics::Standard,
            profiles: Profiles::Uniform,
            in_flight: 2,
            retry: Retry::default(),
            wait: None,
            progress: Progress::default(),
        }
    }
}
