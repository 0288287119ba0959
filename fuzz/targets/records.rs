//! Fuzz target `records`, whose entry and budget are in `convoke_coordinator::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("records", convoke_coordinator::fuzzing::TARGETS);
