//! See `convoke_worker::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("session", convoke_worker::fuzzing::TARGETS);
