//! Faults: what can be done to a cluster, when, and in which state a step was at that moment.

mod cells;
mod forge;
mod harm;
mod hog;
mod inject;
mod revoke;

use serde::{Deserialize, Serialize};

pub use cells::{Cells, Row, StepState};
pub use harm::{BESIDE, Harm, Target, draw as draw_harm, drawn};
pub use hog::Hog;
pub use inject::{Air, Injector, Injured};

/// One fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    pub target: Target,
    pub harm: Harm,
    pub when: When,
    /// Milliseconds after which it is undone: healed, restarted, continued.
    pub lasts: u32,
}

/// When a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum When {
    /// At this time.
    At(u32),
    /// When a step that concerns the target is in this state for the `nth` time since `after`.
    On {
        state: StepState,
        nth: u32,
        after: u32,
    },
}
