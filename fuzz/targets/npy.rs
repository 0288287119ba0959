//! See `convoke::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("npy", convoke::fuzzing::TARGETS);
