//! Fuzz target `blackbox`, whose entry and budget are in `convoke_worker::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("blackbox", convoke_worker::fuzzing::TARGETS);
