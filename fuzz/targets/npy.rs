//! Fuzz target `npy`, whose entry and budget are in `convoke::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("npy", convoke::fuzzing::TARGETS);
