//! Fuzz target `npz`, whose entry and budget are in `convoke::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("npz", convoke::fuzzing::TARGETS);
