//! Whether a worker can go on: kernels that do not stop or kill the process, failed steps, an orderly end, and the speed
//! of the machine.

pub mod blackbox;
pub mod drain;
pub mod failures;
pub(crate) mod measure;
pub mod wedge;
