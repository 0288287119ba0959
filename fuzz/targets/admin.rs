//! Fuzz target `admin`, whose entry and budget are in `convoke_coordinator::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("admin", convoke_coordinator::fuzzing::TARGETS);
