//! Fuzz target `session`, whose entry and budget are in `convoke_worker::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("session", convoke_worker::fuzzing::TARGETS);
