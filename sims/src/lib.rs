//! Runs the production coordinator, workers and clients in a deterministic simulation of their network, time and disks.

pub mod cluster;
pub mod draw;
pub mod eager;
pub mod event_log;
pub mod explore;
pub mod faults;
pub mod history;
pub mod invariants;
pub mod oracle;
pub mod run;
pub mod scale;
pub mod scenario;
pub mod script;
pub mod steps;
pub mod workload;
pub mod world;
