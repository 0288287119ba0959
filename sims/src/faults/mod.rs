//! Faults: what a scenario may do to a cluster and when, and the tables of the step states and timers that the faults met.

mod cells;
mod drain;
mod expire;
mod forge;
mod forget;
mod harm;
mod hog;
mod inject;
mod lift;
mod revoke;
mod timers;

use convoke_common::detection::timer::TimerKind;
use serde::{Deserialize, Serialize};

pub use cells::{Cells, Row, StepState};
pub use harm::{BESIDE, DISKS, Harm, OPERATIONS, Target, draw as draw_harm, drawn, is_of_swarms};
pub use hog::Hog;
pub use inject::{Air, Injector, Injury};
pub use timers::{Met, Tally, TimerCells};

/// One fault of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    pub target: Target,
    pub harm: Harm,
    pub when: Trigger,
    /// Milliseconds after which the fault is undone: healed, restarted or continued.
    pub lasts: u32,
}

/// When a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Trigger {
    /// The fault strikes at this time, in milliseconds since the scenario began.
    At(u32),
    /// The fault strikes once `nth` steps that concern the target have been seen in this state since `after`
    /// milliseconds, while a timer of this kind ran at a participant or at the coordinator where one is named.
    On {
        state: StepState,
        nth: u32,
        after: u32,
        #[serde(default)]
        timer: Option<TimerKind>,
    },
}
