//! Fuzz target `plan`, whose entry and budget are in `convoke_coordinator::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("plan", convoke_coordinator::fuzzing::TARGETS);
