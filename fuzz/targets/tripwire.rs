//! Fuzz target `tripwire`, whose entry and budget are in `convoke_common::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("tripwire", convoke_common::fuzzing::TARGETS);
