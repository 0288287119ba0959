//! Fuzz target `install`, whose entry and budget are in `convoke_worker::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("install", convoke_worker::fuzzing::TARGETS);
