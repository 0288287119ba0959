//! Memory as placement sees it: what each worker has free, and what a placement needs of it.
//!
//! `model` has one memory of a worker, `usage` the need of one participant. `prediction` finds the needs of all
//! participants of a placement: those of loading, of a step's activations, and of devices.

mod activations;
mod device;
mod loading;
mod model;
mod prediction;
mod usage;

pub use loading::{InitDependencies, needed};
pub use model::{Holder, MemoryModel, Need, Presence, PresentConstants};
pub use prediction::{on_devices, peaks, read_by_steps, retained, usage};
pub use usage::{PartsUsage, Usage};
