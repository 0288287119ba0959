//! Whether a worker can go on: kernels that do not stop or kill the process, an orderly end, and the speed of the machine.

pub mod blackbox;
pub mod drain;
pub(crate) mod measure;
pub mod wedge;
