//! See `convoke::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("npz", convoke::fuzzing::TARGETS);
