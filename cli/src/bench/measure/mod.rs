//! The measurements: one module for each subject.

pub mod cold;
pub mod compile;
pub mod devices;
pub mod eager;
pub mod exec;
pub mod fan;
pub mod remote;
pub mod steps;
pub mod transfers;
